"""The teacher target, which tracks mean reward, and its entropy guard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_dataclass

from curriculum.allocation import AllocationConfig
from curriculum.forgetting import ForgettingConfig, ForgettingWatch
from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec, UpdateStats
from curriculum.teacher import Teacher, TeacherConfig
from curriculum.thompson import BinsConfig, StrictnessBins
from simulator.scenario import Family, HiddenIntention
from simulator.settings import SETTINGS


@settings_dataclass(config=SETTINGS)
class GuardConfig:
    """When the guard acts and how far it may go."""

    enabled: bool = True
    """False leaves the target success alone (the ablation)."""
    entropy_low: float = Field(default=0.8, gt=0, le=1)
    """Acts while smoothed entropy is below this share of its start and falling."""
    density_low: float = Field(default=0.8, gt=0, le=10)
    """Acts only while smoothed reward density is below this share of its start; 10 makes entropy alone decide. Entropy that falls while
    rewards within groups still differ is learning."""
    success_margin: float = Field(default=0.1, ge=0, le=1)
    """Success below target by more than this means that the agent starves, otherwise the users are too lenient."""
    step: float = Field(default=0.02, gt=0, le=0.5)
    """How far one decision moves the target success."""
    max_shift: float = Field(default=0.1, ge=0, le=0.3)
    """How far all decisions together may move it either way."""
    hold_updates: int = Field(default=5, ge=1, le=1000)
    """Updates that make up the start, and the least number between two decisions."""
    smoothing: float = Field(default=0.3, gt=0, le=1)
    """Weight of the newest update in the smoothed values."""


@dataclass
class EntropyGuard:
    """Moves the target success when the policy narrows *and* rewards within its groups become equal.

    Down (stricter users) when success comes too easily, up (easier ones) when it does not come. Every `hold_updates` updates at most one
    decision, and only after the condition held for as many in a row; once it has been gone for as long, the shift goes back the same way.

    Source: our own; on toy students it neither helped nor hurt, so switch it off to see its effect. Each decision is recorded with its
    inputs.
    """

    config: GuardConfig
    num_updates: int = 0
    entropy: float = 0.0
    """Smoothed, in nats, as is its start."""
    density: float = 0.0
    entropy_start: float = 0.0
    """Mean over the first `hold_updates` updates."""
    density_start: float = 0.0
    held: int = 0
    """Updates since the last decision."""
    in_a_row: int = 0
    """Consecutive updates on which the condition held (positive) or did not (negative)."""
    shift: float = 0.0
    """Term to add to the target success, in [-max_shift, max_shift]."""

    def on_update(self, stats: UpdateStats, *, success: float, target: float) -> dict[str, Any] | None:
        """Takes in an update and the running success; returns the decision with its inputs, if one was taken."""
        config = self.config
        if not config.enabled or not (math.isfinite(stats.entropy) and math.isfinite(stats.reward_density)):
            return None
        self.num_updates += 1
        if self.num_updates <= config.hold_updates:
            self.entropy_start += (stats.entropy - self.entropy_start) / self.num_updates
            self.density_start += (stats.reward_density - self.density_start) / self.num_updates
            self.entropy, self.density = self.entropy_start, self.density_start
            return None
        before = self.entropy
        self.entropy += config.smoothing * (stats.entropy - self.entropy)
        self.density += config.smoothing * (stats.reward_density - self.density)
        change = self.entropy - before  # nats per update
        is_narrow = self.entropy < config.entropy_low * self.entropy_start and change < 0.0
        acting = is_narrow and self.density < config.density_low * self.density_start
        self.in_a_row = max(self.in_a_row, 0) + 1 if acting else min(self.in_a_row, 0) - 1
        self.held += 1
        if self.held < config.hold_updates or abs(self.in_a_row) < config.hold_updates:
            return None
        if self.in_a_row > 0:
            starved = success < target - config.success_margin
            action, step = ("easier", config.step) if starved else ("stricter", -config.step)
        else:
            action, step = "relax", max(-config.step, min(config.step, -self.shift))
        shift = max(-config.max_shift, min(config.max_shift, self.shift + step))
        if shift == self.shift:
            return None
        held, self.shift, self.held = self.held, shift, 0
        decided = {"action": action, "shift": shift, "success": success, "target": target}
        counts = {"updates_in_a_row": abs(self.in_a_row), "updates_since_last": held}
        entropy = {"entropy": self.entropy, "entropy_start": self.entropy_start, "entropy_change": change}
        return {**decided, **entropy, **counts, "reward_density": self.density, "reward_density_start": self.density_start}

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "config"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self.state_dict():
            setattr(self, name, state[name])


@settings_dataclass(config=SETTINGS)
class TargetConfig(TeacherConfig):
    """Settings of `TargetTeacher`."""

    measure: Literal["reward", "success"] = "reward"
    """Performance that `target_success` is a target of: the mean reward, or the share of successes (final emotion >= `success_emotion`)."""
    target_success: float = Field(default=0.46, ge=0.05, le=0.95)
    """p* to aim at, as a share of the ceiling; groups teach most at half, and 0.4 costs 4 % of that."""
    start: float = Field(default=0.15, ge=0, le=1)
    """Level before anything was observed."""
    slope: float = Field(default=2.0, ge=0.1, le=20)
    """Assumed fall s of performance per unit of strictness at the frontier; wrong by a factor of two is harmless."""
    rho: float = Field(default=0.3, gt=0, le=1)
    """Share of the mean frontier error by which the level moves."""
    rate: float = Field(default=0.05, gt=0, le=1)
    """The most the level moves at once, in strictness."""
    offset_prior: float = Field(default=1.35, ge=1, le=100)
    """Worth, in groups, of the belief that a family is like all others."""
    offset_rate: float = Field(default=0.06, gt=0, le=1)
    """Least weight of a new group in its family's offset; larger forgets faster."""
    ceiling_rate: float = Field(default=0.03, ge=0, le=1)
    """Weight of an easy group in the ceiling; 0 keeps it at 1."""
    explore: float = Field(default=0.05, ge=0, le=1)
    """Share of groups away from the frontier, at any strictness."""
    jitter: float = Field(default=0.01, ge=0, le=0.2)
    """Half-width of the uniform noise on the strictness of a group."""
    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    forgetting: ForgettingConfig = field(default_factory=ForgettingConfig)
    bins: BinsConfig = field(default_factory=BinsConfig)


class TargetTeacher(Teacher):
    """Keeps every family where the agent performs just under half as well as it could, and replays what it forgets.

    With d the strictness issued, p the performance of the group's survivors (their mean reward, or the share that succeeded), p* the
    target, c the ceiling (the performance at easy users) and s the assumed slope -dp/dd, a family's frontier is estimated as
    a = level + offset_f, and a group gives the error of that (in strictness):

        frontier_error = (p - expected) / s,     expected = clip(p* c - s (d - a), 0, c)

        level    += min(1, N / 4) clip(rho * mean of frontier errors, -rate, rate)   once for all N groups that came together
        offset_f  = clip(offset_f, -0.1 - level, 1.1 - level)                        for every family, level moved
        offset_f += max(1 / (n_f + offset_prior), offset_rate) * frontier_error      for each group; n_f of the family came before
        c        += ceiling_rate * (p - c)                                           for groups that the line puts above 1.3, but of
                                                                                     families whose frontier is 1 or above

    a stays within [-0.1, 1.1], and so does a plus the error. The clip keeps it there when the level moves by groups of other families:
    otherwise a family at a bound would have to come all the way back before its own groups moved it.

    Near the frontier a + frontier_error is d + (p - p* c) / s: a group's evidence depends on the strictness that was *issued*, not on
    later moves of the level, so outcomes may come many steps late without a swing. Far from it, a failure above or a success below was
    expected and says nothing. Families share the level, because with 24 families and a handful of groups a step each alone would be seen
    too seldom. The target is a share of the ceiling, so a simulator that spoils every sixth dialogue does not hold the level down.

    Where rewards are 0 or 1 both measures are the same. Where they are graded, rollouts teach most where the mean reward is near a half,
    even if few succeed there (docs/decisions.md has the measured densities).

    A tracker leaves mastered users behind. When the probe panel shows forgetting (`ForgettingWatch`), a share of the groups becomes replay:
    Thompson draws on `StrictnessBins`, which find success that has sunk to the target at any strictness. Families get groups by their
    learning progress (`curriculum.allocation`), so noise does not eat the budget, and `EntropyGuard` moves p* when the policy narrows.

    Source: our own; measured on toy students (docs/teachers.md). The untagged ancestor is AdaRFT (arXiv 2504.05520).
    """

    kind = "target"
    adapting: ClassVar[tuple[str, ...]] = ("level", "offsets", "num_seen", "ceiling", "success", "guard", "forgetting", "bins")
    config: TargetConfig

    MARGIN: ClassVar[float] = 0.1
    """How far outside [0, 1] a frontier may be estimated to lie: enough for noise at a bound to average out, too little to wind up."""
    EASY: ClassVar[float] = 0.3
    """A group counts towards the ceiling when its expected performance lies this far above 1: even with half the assumed slope it is
    easy."""

    def start(self) -> None:
        self.level = self.config.start
        self.offsets = {str(family): 0.0 for family in self.families}
        self.num_seen = {str(family): 0 for family in self.families}
        self.ceiling = 1.0
        self.success = self.config.target_success
        """Running performance of groups at the frontier, for the guard."""
        self.guard = EntropyGuard(self.config.guard)
        self.forgetting = ForgettingWatch(self.config.forgetting)
        self.bins = StrictnessBins(self.config.bins, self.families)

    @property
    def target(self) -> float:
        """Present target: the setting plus the guard's shift, times the ceiling."""
        return min(max(self.config.target_success + self.guard.shift, 0.05), 0.95) * self.ceiling

    def frontier(self, family: FamilyKey) -> float:
        """Strictness at which `family` is estimated to perform as aimed at; may lie `MARGIN` outside [0, 1]."""
        return min(max(self.level + self.offsets[str(family)], -self.MARGIN), 1.0 + self.MARGIN)

    def choose(self, family: FamilyKey) -> TaskSpec:
        """At the family's frontier, now and then anywhere, and a Thompson draw while the probes show forgetting."""
        explore, replay = self.config.explore, (1.0 - self.config.explore) * self.forgetting.replay_share
        drawn = self.rng.random()
        if drawn < explore:
            return self.task(family, self.explored(family), Mode.UNIFORM, explore)
        if drawn < explore + replay:
            return self.task(family, self.bins.draw(family, self.target, self.rng), Mode.REPLAY, replay)
        strictness = self.frontier(family) + self.config.jitter * self.rng.uniform(-1.0, 1.0)
        return self.task(family, min(max(strictness, 0.0), 1.0), Mode.FRONTIER, 1.0 - explore - replay)

    def explored(self, family: FamilyKey) -> float:
        """The strictness of a group away from the frontier: any."""
        return float(self.rng.random())

    def performance(self, group: GroupOutcome) -> float:
        return group.mean_reward if self.config.measure == "reward" else group.success_rate

    def unclipped(self, group: GroupOutcome) -> float:
        """Expected performance of the group by a straight line through its family's frontier."""
        return self.target - self.config.slope * (group.task.strictness - self.frontier(group.task.family))

    def frontier_error(self, group: GroupOutcome) -> float:
        """By how much the group says its family's frontier is misjudged, in strictness; positive means stronger than estimated."""
        estimate = self.frontier(group.task.family)
        expected = min(max(self.unclipped(group), 0.0), self.ceiling)
        corrected = estimate + (self.performance(group) - expected) / self.config.slope
        return min(max(corrected, -self.MARGIN), 1.0 + self.MARGIN) - estimate

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Moves the level once, within every family's reach, then each family's offset, the ceiling, and the bins."""
        config = self.config
        move = config.rho * float(np.mean([self.frontier_error(group) for group in groups]))
        # Fewer than four groups move it by a proportionally smaller step.
        self.level += min(1.0, len(groups) / 4) * min(max(move, -config.rate), config.rate)
        low, high = -self.MARGIN - self.level, 1.0 + self.MARGIN - self.level
        self.offsets = {key: min(max(offset, low), high) for key, offset in self.offsets.items()}
        for group in groups:
            key, performance = str(group.task.family), self.performance(group)
            gain = max(1.0 / (self.num_seen[key] + config.offset_prior), config.offset_rate)
            self.offsets[key] += gain * self.frontier_error(group)
            self.num_seen[key] += 1
            if group.task.mode is Mode.FRONTIER:
                self.success += 0.05 * (performance - self.success)
            # A family at the upper bound is mastered or noise, and says nothing about the rewards of an able agent.
            if self.frontier(group.task.family) < 1.0 and self.unclipped(group) > 1.0 + self.EASY:
                self.ceiling += config.ceiling_rate * (performance - self.ceiling)
        self.bins.learn(groups, [self.performance(group) for group in groups])

    def learn_probes(self, probes: Sequence[GroupOutcome]) -> None:
        before = self.forgetting.replay_share
        self.forgetting.learn(probes, [self.performance(probe) for probe in probes])
        after = self.forgetting.replay_share
        if (before > 0.0) != (after > 0.0):
            self.decide("replay", share=after, drops=self.forgetting.drops)

    def on_update(self, stats: UpdateStats) -> None:
        decision = self.guard.on_update(stats, success=self.success, target=self.target)
        if decision is not None:
            self.decide("entropy_guard", update_step=stats.step, **decision)

    def metrics(self) -> dict[str, float]:
        mean = float(np.mean(list(self.offsets.values())))
        own = {
            "curriculum/level": self.level + mean,
            "curriculum/target_success": self.target,
            "curriculum/success_running": self.success,
            "curriculum/ceiling": self.ceiling,
            "curriculum/replay_share": self.forgetting.replay_share,
            "curriculum/largest_family_share": float(self.allocation.shares().max()),
        }
        for intention in HiddenIntention:
            offsets = [self.offsets[str(f)] for f in self.families if isinstance(f, Family) and f.intention is intention]
            if offsets:
                own[f"curriculum/offset/{intention}"] = float(np.mean(offsets)) - mean
        return {**super().metrics(), **own}
