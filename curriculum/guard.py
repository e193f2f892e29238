"""The entropy guard: when the policy narrows *and* its groups begin to fare alike, it moves the success a teacher aims at.

Source: our own; on toy students it neither helped nor hurt, so switch it off to see what it does. Each decision is logged with its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from curriculum.checks import require_between, require_fields, settle_types
from curriculum.teacher import UpdateStats


@dataclass
class GuardConfig:
    """When the guard acts and how far it may go."""

    enabled: bool = True
    """False leaves the target success alone (the ablation)."""
    entropy_low: float = 0.8
    """(0, 1]: acts while smoothed entropy is below this share of its start and falling."""
    density_low: float = 0.8
    """(0, 10]: acts only while smoothed reward density is below this share of its start; 10 makes entropy alone decide.
    Entropy that falls while groups still fare differently is learning."""
    success_margin: float = 0.1
    """[0, 1]: success below target by more than this means that the agent starves, otherwise the users are too lenient."""
    step: float = 0.02
    """(0, .5]: how far one decision moves the target success."""
    max_shift: float = 0.1
    """[0, .3]: how far all decisions together may move it either way."""
    hold_updates: int = 5
    """[1, 1000]: updates that make up the start, and the least number between two decisions."""
    smoothing: float = 0.3
    """(0, 1]: weight of the newest update in the smoothed values."""

    def __post_init__(self) -> None:
        settle_types(self, "teacher.guard")
        require_between("teacher.guard.entropy_low", self.entropy_low, 1e-6, 1.0)
        require_between("teacher.guard.density_low", self.density_low, 1e-6, 10.0)
        require_between("teacher.guard.success_margin", self.success_margin, 0.0, 1.0)
        require_between("teacher.guard.step", self.step, 1e-6, 0.5)
        require_between("teacher.guard.max_shift", self.max_shift, 0.0, 0.3)
        require_between("teacher.guard.hold_updates", self.hold_updates, 1, 1000)
        require_between("teacher.guard.smoothing", self.smoothing, 1e-6, 1.0)


@dataclass
class _Memory:
    num_updates: int = 0
    entropy: float = 0.0
    density: float = 0.0
    entropy_start: float = 0.0
    density_start: float = 0.0
    held: int = 0
    """Updates since the last decision."""
    alike: int = 0
    """Consecutive updates on which the guard's condition held (positive) or did not (negative)."""
    shift: float = 0.0


class EntropyGuard:
    """Shifts the target success: down (stricter users) when success comes too easily, up (easier ones) when it does not come.

    Every `hold_updates` updates at most one decision, and only after the condition held for as many in a row;
    once it has been gone for as long, the shift goes back the same way.
    """

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self._memory = _Memory()

    @property
    def shift(self) -> float:
        """What to add to the target success, in [-max_shift, max_shift]."""
        return self._memory.shift

    def on_update(self, stats: UpdateStats, *, success: float, target: float) -> dict[str, Any] | None:
        """Takes in an update and the success share of late; returns the decision with its inputs, if one was taken."""
        finite = math.isfinite(stats.entropy) and math.isfinite(stats.reward_density)
        if not self.config.enabled or not finite:
            return None
        memory = self._memory
        change = self._smooth(stats.entropy, stats.reward_density)
        if memory.num_updates <= self.config.hold_updates:
            return None
        low = memory.entropy < self.config.entropy_low * memory.entropy_start
        alike = memory.density < self.config.density_low * memory.density_start
        acting = low and change < 0.0 and alike
        memory.alike = max(memory.alike, 0) + 1 if acting else min(memory.alike, 0) - 1
        memory.held += 1
        return self._decide(success, target, change)

    def _smooth(self, entropy: float, density: float) -> float:
        """Updates averages and, at first, the start; returns the change of smoothed entropy, nats per update."""
        memory, weight = self._memory, self.config.smoothing
        memory.num_updates += 1
        n = memory.num_updates
        if n <= self.config.hold_updates:
            memory.entropy_start += (entropy - memory.entropy_start) / n
            memory.density_start += (density - memory.density_start) / n
            memory.entropy, memory.density = memory.entropy_start, memory.density_start
            return 0.0
        before = memory.entropy
        memory.entropy += weight * (entropy - memory.entropy)
        memory.density += weight * (density - memory.density)
        return memory.entropy - before

    def _decide(self, success: float, target: float, change: float) -> dict[str, Any] | None:
        memory, config = self._memory, self.config
        if memory.held < config.hold_updates or abs(memory.alike) < config.hold_updates:
            return None
        if memory.alike > 0:
            starved = success < target - config.success_margin
            action, step = ("easier", config.step) if starved else ("stricter", -config.step)
        else:
            action, step = "relax", max(-config.step, min(config.step, -memory.shift))
        shift = max(-config.max_shift, min(config.max_shift, memory.shift + step))
        if shift == memory.shift:
            return None
        inputs = {"entropy": memory.entropy, "entropy_start": memory.entropy_start, "entropy_change": change}
        inputs |= {"updates_in_a_row": abs(memory.alike), "updates_since_last": memory.held}
        memory.shift, memory.held = shift, 0
        inputs |= {"reward_density": memory.density, "reward_density_start": memory.density_start}
        return {"action": action, "shift": shift, "success": success, "target": target, **inputs}

    def state_dict(self) -> dict[str, Any]:
        """Averages, start, counters and shift."""
        return asdict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        require_fields("teacher state's guard", state, [field.name for field in fields(_Memory)])
        self._memory = _Memory(**state)
