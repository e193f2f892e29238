"""A ladder of levels for each family: the next one opens once nine in ten succeed on the highest.

    level ~ uniform over the whole numbers h_f - window + 1 ... h_f (none below 0),     d = level / num_levels
    when `prompts` groups at level h_f have come:  h_f <- h_f + 1 if their mean success share >= threshold;  the count starts anew

    h_f        highest level of family f, 0 ... num_levels   (starts at 0; 20 levels, ours: theirs hang on each environment)
    window     levels in play                                 (4)
    threshold  success share that opens the next level        (.9)
    prompts    groups between two looks                       (8)

Only groups *issued* at the present h_f count, so late outcomes of a lower level change nothing. As published a level is never taken back,
and the threshold is absolute: where noise keeps success below .9 for ever, or a shortcut pays well at easy levels, the ladder stops there;
a learner that forgets is left with tasks that are too hard. `reversible` lets it down again where success falls to `lower_threshold`.

Fault of the public code that is not kept: making a problem reseeds the global generator from which the next family is drawn, so that runs
with different seeds practise the same stream of families.

Source: RLVE, Zeng et al. 2025 (arXiv 2511.07317), and the code published with it, an extension of slime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curriculum.checks import require_between
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, success_share
from curriculum.teacher import FamilyKey, GroupOutcome, Mode


@dataclass
class RlveConfig(TeacherConfig):
    """Settings of `RlveTeacher`."""

    num_levels: int = 20
    """[1, 1000]: steps from strictness 0 to 1; more are smaller and take longer to climb."""
    window: int = 4
    """[1, 1000]: levels in play, the highest included."""
    threshold: float = 0.9
    """[0, 1]: success share at the highest level that opens the next; below .9 it climbs past noise."""
    prompts: int = 8
    """[1, 10000]: groups at the highest level between two looks at it."""
    reversible: bool = False
    """Whether a level is also taken back; published: false."""
    lower_threshold: float = 0.3
    """[0, 1]: success share at the highest level at or below which it is taken back, if that is allowed; below `threshold`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.num_levels", self.num_levels, 1, 1000)
        require_between("teacher.window", self.window, 1, 1000)
        require_between("teacher.threshold", self.threshold, 0.0, 1.0)
        require_between("teacher.prompts", self.prompts, 1, 10_000)
        require_between("teacher.lower_threshold", self.lower_threshold, 0.0, 1.0)
        if self.reversible and self.lower_threshold >= self.threshold:
            raise ValueError(f"teacher.lower_threshold must be below teacher.threshold={self.threshold:g}, got {self.lower_threshold!r}")


class RlveTeacher(LedgerTeacher):
    """d = level / `num_levels`, families in turn."""

    kind = "rlve"
    adapting = ("highest", "shares")
    config: RlveConfig

    def __init__(self, config: RlveConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.highest = {str(family): 0 for family in self.families}
        # Success shares of the groups at the highest level since the last look.
        self.shares: dict[str, list[float]] = {str(family): [] for family in self.families}

    def strictness(self, level: int) -> float:
        """Strictness of a level."""
        return level / self.config.num_levels

    def choose(self, family: FamilyKey) -> Choice:
        """One of the levels in play."""
        highest = self.highest[str(family)]
        lowest = max(highest - self.config.window + 1, 0)
        level = int(self.rng.integers(lowest, highest + 1))
        return Choice(self.strictness(level), Mode.FRONTIER if level == highest else Mode.REPLAY, 1.0 / (highest - lowest + 1))

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Counts what was issued at the highest level, then looks at the families that have enough of it."""
        for group in groups:
            key = str(group.task.family)
            if group.task.strictness == self.strictness(self.highest[key]):
                self.shares[key].append(success_share(group))
        for key, shares in self.shares.items():
            if len(shares) >= self.config.prompts:
                self._look(key, sum(shares) / len(shares))
                self.shares[key] = []

    def _look(self, key: str, success: float) -> None:
        before = self.highest[key]
        if success >= self.config.threshold:
            self.highest[key] = min(before + 1, self.config.num_levels)
        elif self.config.reversible and success <= self.config.lower_threshold:
            self.highest[key] = max(before - 1, 0)
        if self.highest[key] != before:
            self.decide("level", family=key, before=before, after=self.highest[key], success=success, num_groups=len(self.shares[key]))

    def metrics(self) -> dict[str, float]:
        """The ledger's figures and the levels reached, as strictness."""
        levels = [self.strictness(level) for level in self.highest.values()]
        own = {"highest_mean": sum(levels) / len(levels), "highest_min": min(levels), "highest_max": max(levels)}
        return {**super().metrics(), **{f"curriculum/rlve/{name}": value for name, value in own.items()}}
