"""Does the probe panel show forgetting? How each band of strictness fares, against the best that it ever fared.

The panel plays the same training dialogues again and again. Each of its dialogues, faring x, moves the running mean of its band,

    now_b += max(rate, 1 / n_b) (x - now_b)

n_b dialogues of band b having come so far, and best_b is the greatest now_b since the band was first judged (after 1 / rate dialogues),
fading by `fading` of the gap with every dialogue so that a lucky panel is not held against the policy for ever. What has been lost asks
for practice wherever it lies:

    m_b     = (best_b + now_b) / 2
    slack_b = num_errors sqrt(m_b (1 - m_b) rate / (2 - rate))
    share   = clip(max_b (best_b - now_b - slack_b) / (full best_b), 0, 1)

The root is the standard error of a running mean of successes; graded rewards have a smaller one. Nothing is one-way: when the bands have
recovered, the share falls back to 0. Between missing what is lost and replaying what is not, `num_errors` leans to the second: a group of
replay is practice all the same (docs/toy_benchmark.md has what either costs).

Source: our own. That replay follows competence instead of being a fixed share is a choice, compared on student S3 (docs/toy_benchmark.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from curriculum.checks import require_between, require_fields, settle_types
from curriculum.teacher import GroupOutcome

NUM_BANDS = 5


@dataclass
class ForgettingConfig:
    """When a fall in the probe panel counts as forgetting, and how much replay it calls for."""

    enabled: bool = True
    """False never replays (the ablation)."""
    rate: float = 0.06
    """(0, 1]: weight of one probe dialogue in the running mean of its band."""
    fading: float = 0.002
    """[0, 1]: share of the gap to the present by which the best fades with each dialogue of its band."""
    num_errors: float = 2.5
    """[0, 100]: fall that is put down to chance, in standard errors of the running mean."""
    full: float = 0.05
    """(0, 1]: fall beyond that from which all groups are replay, as a share of the band's best."""

    def __post_init__(self) -> None:
        settle_types(self, "teacher.forgetting")
        require_between("teacher.forgetting.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.forgetting.fading", self.fading, 0.0, 1.0)
        require_between("teacher.forgetting.num_errors", self.num_errors, 0.0, 100.0)
        require_between("teacher.forgetting.full", self.full, 1e-6, 1.0)


@dataclass
class _Memory:
    now: list[float] = field(default_factory=lambda: [0.0] * NUM_BANDS)
    best: list[float] = field(default_factory=lambda: [0.0] * NUM_BANDS)
    num_seen: list[int] = field(default_factory=lambda: [0] * NUM_BANDS)


class ForgettingWatch:
    """Streams the probe panel and says which share of the groups should be replay.

    Args:
        fared: how well a group fared, in [0, 1]; asked for each dialogue of the panel, as a group of its own.
    """

    def __init__(self, config: ForgettingConfig, *, fared: Callable[[GroupOutcome], float]) -> None:
        self.config, self._fared = config, fared
        self._memory = _Memory()

    def learn(self, probes: Sequence[GroupOutcome]) -> None:
        """Takes in probe groups, each of them one dialogue or several of the same kind; ones that broke are passed over."""
        for probe in probes:
            if probe.surviving:
                band = min(int(probe.task.strictness * NUM_BANDS), NUM_BANDS - 1)
                self._learn_dialogue(band, self._fared(probe))

    def _learn_dialogue(self, band: int, fared: float) -> None:
        memory, config = self._memory, self.config
        memory.num_seen[band] += 1
        memory.now[band] += max(config.rate, 1.0 / memory.num_seen[band]) * (fared - memory.now[band])
        if self._is_judged(band):
            faded = memory.best[band] - config.fading * (memory.best[band] - memory.now[band])
            memory.best[band] = max(faded, memory.now[band])

    def _is_judged(self, band: int) -> bool:
        return self._memory.num_seen[band] * self.config.rate >= 1.0

    @property
    def drops(self) -> list[float]:
        """How far each band fares below its best, from lenient to strict; 0 before a band is judged."""
        return [best - now for best, now in self._judged_bands()]

    @property
    def slacks(self) -> list[float]:
        """Which fall of each band is not held against the policy."""
        num_errors, rate = self.config.num_errors, self.config.rate
        middles = [(best + now) / 2.0 for best, now in self._judged_bands()]
        return [num_errors * math.sqrt(max(m * (1.0 - m), 0.0) * rate / (2.0 - rate)) for m in middles]

    @property
    def replay_share(self) -> float:
        """Share of the groups that should practise what was lost, in [0, 1]."""
        if not self.config.enabled:
            return 0.0
        lost = zip(self.drops, self.slacks, self._memory.best, strict=True)
        return min(max(((drop - slack) / (self.config.full * best) for drop, slack, best in lost if drop > slack), default=0.0), 1.0)

    def _judged_bands(self) -> Iterator[tuple[float, float]]:
        memory = self._memory
        for band in range(NUM_BANDS):
            yield (memory.best[band], memory.now[band]) if self._is_judged(band) else (0.0, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Running mean and best of the bands, and what they rest on."""
        return asdict(self._memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        names = [item.name for item in fields(_Memory)]
        require_fields("teacher state's forgetting", state, names)
        for name in names:
            if len(state[name]) != NUM_BANDS:
                raise ValueError(f"teacher state's forgetting.{name} must have {NUM_BANDS} numbers, got {len(state[name])}")
        self._memory = _Memory(**{name: list(state[name]) for name in names})
