"""Does the probe panel show forgetting? Success in bands of strictness, against the best that each band ever had.

The panel plays the same training dialogues again and again. Each of its dialogues moves the running success of its band,

    now_b += max(rate, 1 / n_b) (success - now_b),      n_b dialogues of band b came so far,

and best_b is the greatest now_b since the band was first judged, fading by `fading` of the gap with every dialogue so that a lucky panel
is not held against the policy for ever. What has been lost asks for practice wherever it lies:

    share = clip((max_b (best_b - now_b) - slack) / full, 0, 1)

`slack` is what chance explains: the running success has a standard deviation of at most sqrt(rate / (2 - rate)) / 2, .09 at the default.
Nothing is one-way: when the bands have recovered, the share falls back to 0.

Source: our own. That replay should follow competence and not be a fixed share is measured on student S3 in docs/teachers.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from curriculum.checks import require_between, require_fields
from curriculum.teacher import GroupOutcome

NUM_BANDS = 5
FIRST_LOOK = 10
"""Dialogues of a band before it is judged."""


@dataclass
class ForgettingConfig:
    """When a fall in the probe panel counts as forgetting, and how much replay it calls for."""

    enabled: bool = True
    """False never replays (the ablation)."""
    rate: float = 0.06
    """(0, 1]: weight of one probe dialogue in the running success of its band."""
    fading: float = 0.002
    """[0, 1]: share of the gap to the present by which the best fades with each dialogue of its band."""
    slack: float = 0.12
    """[0, 1]: fall in a band's success that chance explains."""
    full: float = 0.05
    """(0, 1]: fall beyond the slack from which all groups are replay."""

    def __post_init__(self) -> None:
        require_between("teacher.forgetting.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.forgetting.fading", self.fading, 0.0, 1.0)
        require_between("teacher.forgetting.slack", self.slack, 0.0, 1.0)
        require_between("teacher.forgetting.full", self.full, 1e-6, 1.0)


@dataclass
class _Memory:
    now: list[float] = field(default_factory=lambda: [0.0] * NUM_BANDS)
    best: list[float] = field(default_factory=lambda: [0.0] * NUM_BANDS)
    num_seen: list[int] = field(default_factory=lambda: [0] * NUM_BANDS)


class ForgettingWatch:
    """Streams the probe panel and says which share of the groups should be replay."""

    def __init__(self, config: ForgettingConfig) -> None:
        self.config = config
        self._memory = _Memory()

    def learn(self, probes: Sequence[GroupOutcome]) -> None:
        """Takes in probe dialogues; ones that broke are passed over."""
        for probe in probes:
            band = min(int(probe.task.strictness * NUM_BANDS), NUM_BANDS - 1)
            for i in probe.surviving:
                self._learn_dialogue(band, float(probe.successes[i]))

    def _learn_dialogue(self, band: int, success: float) -> None:
        memory, config = self._memory, self.config
        memory.num_seen[band] += 1
        memory.now[band] += max(config.rate, 1.0 / memory.num_seen[band]) * (success - memory.now[band])
        if memory.num_seen[band] >= FIRST_LOOK:
            faded = memory.best[band] - config.fading * (memory.best[band] - memory.now[band])
            memory.best[band] = max(faded, memory.now[band])

    @property
    def drops(self) -> list[float]:
        """Fall of each band's success from its best, from lenient to strict; 0 before a band is judged."""
        bands = zip(self._memory.best, self._memory.now, self._memory.num_seen, strict=True)
        return [best - now if num_seen >= FIRST_LOOK else 0.0 for best, now, num_seen in bands]

    @property
    def replay_share(self) -> float:
        """Share of the groups that should practise what was lost, in [0, 1]."""
        if not self.config.enabled:
            return 0.0
        return min(max((max(self.drops) - self.config.slack) / self.config.full, 0.0), 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Running and best success of the bands, and what they rest on."""
        return asdict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        names = [item.name for item in fields(_Memory)]
        require_fields("teacher state's forgetting", state, names)
        for name in names:
            if len(state[name]) != NUM_BANDS:
                raise ValueError(f"teacher state's forgetting.{name} must have {NUM_BANDS} numbers, got {len(state[name])}")
        self._memory = _Memory(**{name: list(state[name]) for name in names})
