"""The default teacher: keeps every family where the agent succeeds just under half the time, by a shared level and an offset for each.

With d the strictness issued, p the success share of the group's survivors, p* the target success and s the assumed slope -dp/dd, a
family's frontier is estimated as a = level + offset_f, and a group says by how much that is wrong (in strictness):

    surprise = (p - expected) / s,     expected = clip(p* - s (d - a), 0, 1)

    level    += clip(rho * mean of surprises, -rate, rate)                 once for all groups that came together
    offset_f += max(1 / (n_f + offset_prior), offset_rate) * surprise      for each group; n_f groups of the family came before

Near the frontier a + surprise is d + (p - p*) / s: what a group says hangs on the strictness that was *issued*, not on where the level
has moved since, so outcomes may come many steps late without a swing. Far from it, a failure above or a success below is what was
expected and says nothing. Families share the level, because with 24 families and a handful of groups a step each alone would be seen
too seldom.

Source: our own; measured on toy students (tests/test_frontier.py). The untagged ancestor is AdaRFT (arXiv 2504.05520).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curriculum.allocation import AllocationConfig
from curriculum.checks import require_between
from curriculum.guard import EntropyGuard, GuardConfig
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, success_share
from curriculum.teacher import FamilyKey, GroupOutcome, Mode, UpdateStats
from simulator.scenario import Family, HiddenIntention

FULL_STEP_GROUPS = 4
"""Fewer groups than this in one `observe` move the level by a proportionally smaller step."""
MARGIN = 0.1
"""How far outside [0, 1] a frontier may be estimated to lie: enough for noise at a bound to average out, too little to wind up."""


@dataclass
class FrontierConfig(TeacherConfig):
    """Settings of `FrontierTeacher`."""

    target_success: float = 0.45
    """[.05, .95]: success share p* to aim at; groups teach most at .5, and .4 costs 4 % of that."""
    start: float = 0.15
    """[0, 1]: level before anything was observed."""
    slope: float = 2.0
    """[.1, 20]: assumed fall s of success per unit of strictness at the frontier; wrong by a factor of two is harmless."""
    rho: float = 0.3
    """(0, 1]: share of the mean surprise by which the level moves."""
    rate: float = 0.05
    """(0, 1]: the most the level moves at once, in strictness."""
    offset_prior: float = 2.0
    """[1, 100]: worth, in groups, of the belief that a family is like all others."""
    offset_rate: float = 0.1
    """(0, 1]: least weight of a new group in its family's offset; larger forgets faster."""
    explore: float = 0.05
    """[0, 1]: share of groups at a uniformly drawn strictness."""
    jitter: float = 0.01
    """[0, .2]: half-width of the uniform noise on the strictness of a group."""
    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.target_success", self.target_success, 0.05, 0.95)
        require_between("teacher.start", self.start, 0.0, 1.0)
        require_between("teacher.slope", self.slope, 0.1, 20.0)
        require_between("teacher.rho", self.rho, 1e-6, 1.0)
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.offset_prior", self.offset_prior, 1.0, 100.0)
        require_between("teacher.offset_rate", self.offset_rate, 1e-6, 1.0)
        require_between("teacher.explore", self.explore, 0.0, 1.0)
        require_between("teacher.jitter", self.jitter, 0.0, 0.2)


class FrontierTeacher(LedgerTeacher):
    """Tracks the strictness of target success for every family with one shared level and an offset per family."""

    kind = "frontier"
    adapting = ("level", "offsets", "num_seen", "success", "guard")
    config: FrontierConfig

    def __init__(self, config: FrontierConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.level = config.start
        self.offsets = {str(family): 0.0 for family in self.families}
        self.num_seen = {str(family): 0 for family in self.families}
        # Running success share of the groups at the frontier; the guard reads it.
        self.success = config.target_success
        self.guard = EntropyGuard(config.guard)

    @property
    def target(self) -> float:
        """Success share aimed at now: the setting and what the guard adds."""
        return min(max(self.config.target_success + self.guard.shift, 0.05), 0.95)

    def frontier(self, family: FamilyKey) -> float:
        """Where `family` is estimated to succeed with the target share, in strictness; may lie `MARGIN` outside [0, 1]."""
        return min(max(self.level + self.offsets[str(family)], -MARGIN), 1.0 + MARGIN)

    def choose(self, family: FamilyKey) -> Choice:
        """At the family's frontier, now and then anywhere."""
        explore, jitter = self.config.explore, self.config.jitter
        if self.rng.random() < explore:
            return Choice(float(self.rng.random()), Mode.UNIFORM, explore)
        strictness = self.frontier(family) + jitter * self.rng.uniform(-1.0, 1.0)
        return Choice(float(min(max(strictness, 0.0), 1.0)), Mode.FRONTIER, 1.0 - explore)

    def surprise(self, group: GroupOutcome) -> float:
        """By how much the group says its family's frontier is misjudged, in strictness; positive means stronger than thought."""
        estimate, slope = self.frontier(group.task.family), self.config.slope
        expected = min(max(self.target - slope * (group.task.strictness - estimate), 0.0), 1.0)
        corrected = estimate + (success_share(group) - expected) / slope
        return min(max(corrected, -MARGIN), 1.0 + MARGIN) - estimate

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Moves the level once, then each family's offset."""
        rho, rate = self.config.rho, self.config.rate
        scale = min(1.0, len(groups) / FULL_STEP_GROUPS)
        move = rho * float(np.mean([self.surprise(group) for group in groups]))
        self.level += scale * min(max(move, -rate), rate)
        for group in groups:
            self._learn_offset(group)

    def _learn_offset(self, group: GroupOutcome) -> None:
        family = group.task.family
        key = str(family)
        gain = max(1.0 / (self.num_seen[key] + self.config.offset_prior), self.config.offset_rate)
        self.offsets[key] += gain * self.surprise(group)
        self.num_seen[key] += 1
        if group.task.mode is Mode.FRONTIER:
            self.success += 0.05 * (success_share(group) - self.success)

    def on_update(self, stats: UpdateStats) -> None:
        """Lets the entropy guard move the target success, and notes it when it does."""
        decision = self.guard.on_update(stats, success=self.success, target=self.target)
        if decision is not None:
            self.decide("entropy_guard", update_step=stats.step, **decision)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, the level, the target, and each intention's distance from the mean over families."""
        mean = float(np.mean(list(self.offsets.values())))
        own = {"curriculum/level": self.level + mean, "curriculum/target_success": self.target, "curriculum/success_running": self.success}
        own["curriculum/largest_family_share"] = float(self.allocation.shares().max())
        for intention in HiddenIntention:
            offsets = [self.offsets[str(f)] for f in self.families if isinstance(f, Family) and f.intention is intention]
            if offsets:
                own[f"curriculum/offset/{intention}"] = float(np.mean(offsets)) - mean
        return {**super().metrics(), **own}
