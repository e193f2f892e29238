"""The default teacher: keeps every family where the agent fares just under half as well as it could, and goes back for what it forgets.

With d the strictness issued, p how the group's survivors fared (their mean reward, or the share that succeeded), p* the target, c the
ceiling (how easy users let the agent fare) and s the assumed slope -dp/dd, a family's frontier is estimated as a = level + offset_f, and
a group says by how much that is wrong (in strictness):

    surprise = (p - expected) / s,     expected = clip(p* c - s (d - a), 0, c)

    level    += min(1, N / 4) clip(rho * mean of surprises, -rate, rate)   once for all N groups that came together
    offset_f  = clip(offset_f, -.1 - level, 1.1 - level)                   for every family, level moved
    offset_f += max(1 / (n_f + offset_prior), offset_rate) * surprise      for each group; n_f of the family came before
    c        += ceiling_rate * (p - c)                                     for groups that the line puts above 1.3, not of top families

a stays within [-.1, 1.1], and so does what a surprise corrects it to. The clip keeps it there when the level moves by what other families
show: a family at a bound that had followed them further would have to come all the way back before its own groups moved it.

Near the frontier a + surprise is d + (p - p* c) / s: what a group says hangs on the strictness that was *issued*, not on where the level
has moved since, so outcomes may come many steps late without a swing. Far from it, a failure above or a success below is what was
expected and says nothing. Families share the level, because with 24 families and a handful of groups a step each alone would be seen
too seldom. The target is a share of the ceiling, so a simulator that spoils every sixth dialogue does not hold the level down.

Where rewards are 0 or 1 both measures are the same. Where they are graded, rollouts differ most, and so teach most, where the mean
reward is near a half; at that point few of them or none may succeed (docs/decisions.md has the measured densities).

A tracker leaves behind what it has mastered. When the probe panel shows that something is being forgotten (`curriculum.forgetting`), a
share of the groups becomes replay: Thompson draws on discounted bins of strictness (`curriculum.bins`), which find success that has sunk
to the target at any strictness. Families get groups by their learning progress (`curriculum.allocation`), so noise does not eat the
budget, and an entropy guard (`curriculum.guard`) moves p* when the policy narrows and its groups fare alike.

Source: our own; measured on toy students (docs/teachers.md). The untagged ancestor is AdaRFT (arXiv 2504.05520).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from curriculum.allocation import AllocationConfig
from curriculum.bins import BinsConfig, StrictnessBins
from curriculum.checks import require_between
from curriculum.forgetting import ForgettingConfig, ForgettingWatch
from curriculum.guard import EntropyGuard, GuardConfig
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, mean_reward, success_share
from curriculum.teacher import FamilyKey, GroupOutcome, Mode, UpdateStats
from simulator.scenario import Family, HiddenIntention

FULL_STEP_GROUPS = 4
"""Fewer groups than this in one `observe` move the level by a proportionally smaller step."""
MARGIN = 0.1
"""How far outside [0, 1] a frontier may be estimated to lie: enough for noise at a bound to average out, too little to wind up."""
EASY = 0.3
"""A group counts towards the ceiling when its expected success lies this far above 1: even with half the assumed slope it is easy."""


class Measure(StrEnum):
    """What a group's faring is read from; both are in [0, 1]."""

    REWARD = "reward"
    SUCCESS = "success"


@dataclass
class FrontierConfig(TeacherConfig):
    """Settings of `FrontierTeacher`."""

    measure: Measure = Measure.REWARD
    """What `target_success` is a target of: the mean reward, or the share of successes (final emotion from `success_emotion`)."""
    target_success: float = 0.46
    """[.05, .95]: p* to aim at, as a share of the ceiling; groups teach most at half, and .4 costs 4 % of that."""
    start: float = 0.15
    """[0, 1]: level before anything was observed."""
    slope: float = 2.0
    """[.1, 20]: assumed fall s of success per unit of strictness at the frontier; wrong by a factor of two is harmless."""
    rho: float = 0.3
    """(0, 1]: share of the mean surprise by which the level moves."""
    rate: float = 0.05
    """(0, 1]: the most the level moves at once, in strictness."""
    offset_prior: float = 1.35
    """[1, 100]: worth, in groups, of the belief that a family is like all others."""
    offset_rate: float = 0.06
    """(0, 1]: least weight of a new group in its family's offset; larger forgets faster."""
    ceiling_rate: float = 0.03
    """[0, 1]: weight of an easy group in the ceiling; 0 keeps it at 1."""
    explore: float = 0.05
    """[0, 1]: share of groups away from the frontier, at any strictness."""
    jitter: float = 0.01
    """[0, .2]: half-width of the uniform noise on the strictness of a group."""
    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    forgetting: ForgettingConfig = field(default_factory=ForgettingConfig)
    bins: BinsConfig = field(default_factory=BinsConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.target_success", self.target_success, 0.05, 0.95)
        require_between("teacher.start", self.start, 0.0, 1.0)
        require_between("teacher.slope", self.slope, 0.1, 20.0)
        require_between("teacher.rho", self.rho, 1e-6, 1.0)
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.offset_prior", self.offset_prior, 1.0, 100.0)
        require_between("teacher.offset_rate", self.offset_rate, 1e-6, 1.0)
        require_between("teacher.ceiling_rate", self.ceiling_rate, 0.0, 1.0)
        require_between("teacher.explore", self.explore, 0.0, 1.0)
        require_between("teacher.jitter", self.jitter, 0.0, 0.2)


class FrontierTeacher(LedgerTeacher):
    """Tracks the strictness of target success for every family with one shared level and an offset per family; replays what is lost."""

    kind = "frontier"
    adapting: ClassVar[tuple[str, ...]] = ("level", "offsets", "num_seen", "ceiling", "success", "guard", "forgetting", "bins")
    config: FrontierConfig

    def __init__(self, config: FrontierConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.level = config.start
        self.offsets = {str(family): 0.0 for family in self.families}
        self.num_seen = {str(family): 0 for family in self.families}
        self.ceiling = 1.0
        # How groups at the frontier fared of late; the guard reads it.
        self.success = config.target_success
        self.guard = EntropyGuard(config.guard)
        self.forgetting = ForgettingWatch(config.forgetting, fared=self.fared)
        self.bins = StrictnessBins(config.bins, self.families, fared=self.fared)

    @property
    def target(self) -> float:
        """What is aimed at now: the setting and what the guard adds, of the ceiling."""
        return min(max(self.config.target_success + self.guard.shift, 0.05), 0.95) * self.ceiling

    def frontier(self, family: FamilyKey) -> float:
        """Where `family` is estimated to fare as aimed at, in strictness; may lie `MARGIN` outside [0, 1]."""
        return min(max(self.level + self.offsets[str(family)], -MARGIN), 1.0 + MARGIN)

    def choose(self, family: FamilyKey) -> Choice:
        """At the family's frontier, now and then anywhere, and wherever something was lost while the probes show forgetting."""
        explore, replay = self.config.explore, (1.0 - self.config.explore) * self.forgetting.replay_share
        drawn = self.rng.random()
        if drawn < explore:
            return Choice(self.explored(family), Mode.UNIFORM, explore)
        if drawn < explore + replay:
            return Choice(self.bins.draw(family, self.target, self.rng), Mode.REPLAY, replay)
        strictness = self.frontier(family) + self.config.jitter * self.rng.uniform(-1.0, 1.0)
        return Choice(float(min(max(strictness, 0.0), 1.0)), Mode.FRONTIER, 1.0 - explore - replay)

    def explored(self, family: FamilyKey) -> float:
        """The strictness of a group away from the frontier: any."""
        return float(self.rng.random())

    def fared(self, group: GroupOutcome) -> float:
        """How well the group fared, by the measure, in [0, 1]."""
        return mean_reward(group) if self.config.measure is Measure.REWARD else success_share(group)

    def unclipped(self, group: GroupOutcome) -> float:
        """How well the group is expected to fare, by a straight line through its family's frontier."""
        return self.target - self.config.slope * (group.task.strictness - self.frontier(group.task.family))

    def surprise(self, group: GroupOutcome) -> float:
        """By how much the group says its family's frontier is misjudged, in strictness; positive means stronger than thought."""
        estimate = self.frontier(group.task.family)
        expected = min(max(self.unclipped(group), 0.0), self.ceiling)
        corrected = estimate + (self.fared(group) - expected) / self.config.slope
        return min(max(corrected, -MARGIN), 1.0 + MARGIN) - estimate

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Moves the level once, within every family's reach, then each family's offset, the ceiling, and the bins."""
        rho, rate = self.config.rho, self.config.rate
        scale = min(1.0, len(groups) / FULL_STEP_GROUPS)
        move = rho * float(np.mean([self.surprise(group) for group in groups]))
        self.level += scale * min(max(move, -rate), rate)
        self._keep_within_reach()
        for group in groups:
            self._learn_offset(group)
            self._learn_ceiling(group)
        self.bins.learn(groups)

    def _keep_within_reach(self) -> None:
        """Takes from each offset what the level's move would carry its family beyond the margin; what lies within is left to the bit."""
        low, high = -MARGIN - self.level, 1.0 + MARGIN - self.level
        self.offsets = {key: min(max(offset, low), high) for key, offset in self.offsets.items()}

    def _learn_offset(self, group: GroupOutcome) -> None:
        key = str(group.task.family)
        gain = max(1.0 / (self.num_seen[key] + self.config.offset_prior), self.config.offset_rate)
        self.offsets[key] += gain * self.surprise(group)
        self.num_seen[key] += 1
        if group.task.mode is Mode.FRONTIER:
            self.success += 0.05 * (self.fared(group) - self.success)

    def _learn_ceiling(self, group: GroupOutcome) -> None:
        # A family at the upper bound is mastered or noise, and cannot tell what an able agent would get.
        if self.frontier(group.task.family) < 1.0 and self.unclipped(group) > 1.0 + EASY:
            self.ceiling += self.config.ceiling_rate * (self.fared(group) - self.ceiling)

    def learn_probes(self, probes: Sequence[GroupOutcome]) -> None:
        """Looks for forgetting, and notes when replay begins and ends."""
        before = self.forgetting.replay_share
        self.forgetting.learn(probes)
        after = self.forgetting.replay_share
        if (before > 0.0) != (after > 0.0):
            self.decide("replay", share=after, drops=self.forgetting.drops)

    def on_update(self, stats: UpdateStats) -> None:
        """Lets the entropy guard move the target success, and notes it when it does."""
        decision = self.guard.on_update(stats, success=self.success, target=self.target)
        if decision is not None:
            self.decide("entropy_guard", update_step=stats.step, **decision)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, the level, the target, and each intention's distance from the mean over families."""
        mean = float(np.mean(list(self.offsets.values())))
        own = {"curriculum/level": self.level + mean, "curriculum/target_success": self.target, "curriculum/success_running": self.success}
        own |= {"curriculum/ceiling": self.ceiling, "curriculum/replay_share": self.forgetting.replay_share}
        own["curriculum/largest_family_share"] = float(self.allocation.shares().max())
        for intention in HiddenIntention:
            offsets = [self.offsets[str(f)] for f in self.families if isinstance(f, Family) and f.intention is intention]
            if offsets:
                own[f"curriculum/offset/{intention}"] = float(np.mean(offsets)) - mean
        return {**super().metrics(), **own}
