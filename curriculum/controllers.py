"""Teachers that steer difficulty by feedback from the latest groups: AdaRFT's target, RLVE's ladder, ADR's box."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec
from curriculum.teacher import Axes, Teacher, TeacherConfig
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class AdarftConfig(TeacherConfig):
    """Settings of `AdarftTeacher`."""

    target_reward: float = Field(default=0.5, ge=0, le=1)
    """Mean reward beta aimed at."""
    alpha: float = Field(default=2.0, gt=0, le=100)
    """Sensitivity to the difference from it, per unit of reward."""
    eta: float = Field(default=0.5, gt=0, le=1)
    """The longest step, in strictness; 0.05 swings less and follows more slowly, too slowly with `tagged` and a delay."""
    start: float = Field(default=0.0, ge=0, le=1)
    """Target before anything was observed."""
    per_family: bool = False
    """Whether each family has a target of its own; published: false."""
    tagged: bool = False
    """Whether a batch moves the strictness it was issued at and not the present target; published: false."""


class AdarftTeacher(Teacher):
    """One target strictness, raised when the batch's mean reward is above one half and lowered when it is below.

        T <- clip(T + eta * tanh(alpha * (mean reward - beta)), 0, 1)     once for each batch observed; every group is issued at d = T

    with beta = `target_reward`; eta = 0.5 is the published 50 on a scale of 0 to 100.

    As published the batch moves the *current* T, for any strictness it was issued at, and one T serves all tasks. With outcomes that come
    k steps late the loop is stable only while its gain g = eta * alpha * (-d mean reward / dd) stays below 2 sin(pi / (2 (2 k + 1))): 2 at
    no delay, 0.62 at two steps, 0.095 at sixteen, where the published gain swings from bound to bound. Two repairs, each a flag:

        tagged      T <- clip(mean strictness the batch was issued at + eta * tanh(...), 0, 1): stable with any delay; it then moves on
                    once in k + 1 steps, so that eta should stay at 0.5
        per_family  a T for each family, moved by the mean reward of that family's groups in the batch

    Source: Shi et al. 2025 (arXiv 2504.05520) and the code published with it, an extension of verl; without its KL penalty in the reward.
    """

    kind = "adarft"
    adapting = ("targets",)
    config: AdarftConfig

    def start(self) -> None:
        self.targets = dict.fromkeys(map(self.key, self.families), self.config.start)

    def key(self, family: FamilyKey) -> str:
        """Name of the target that this family follows."""
        return str(family) if self.config.per_family else "all"

    def choose(self, family: FamilyKey) -> TaskSpec:
        return self.task(family, self.targets[self.key(family)])

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        batches: dict[str, list[GroupOutcome]] = {}
        for group in groups:
            batches.setdefault(self.key(group.task.family), []).append(group)
        for key, batch in batches.items():
            reward = sum(group.mean_reward for group in batch) / len(batch)
            issued = sum(group.task.strictness for group in batch) / len(batch)
            step = self.config.eta * math.tanh(self.config.alpha * (reward - self.config.target_reward))
            self.targets[key] = min(max((issued if self.config.tagged else self.targets[key]) + step, 0.0), 1.0)

    def metrics(self) -> dict[str, float]:
        targets = list(self.targets.values())
        at_bound = sum(target in (0.0, 1.0) for target in targets) / len(targets)
        return {**super().metrics(), "curriculum/adarft/target": sum(targets) / len(targets), "curriculum/adarft/at_bound": at_bound}


@dataclass(config=SETTINGS)
class RlveConfig(TeacherConfig):
    """Settings of `RlveTeacher`."""

    num_levels: int = Field(default=20, ge=1, le=1000)
    """Steps from strictness 0 to 1; more are smaller and take longer to climb."""
    window: int = Field(default=4, ge=1, le=1000)
    """Levels in play, the highest included."""
    threshold: float = Field(default=0.9, ge=0, le=1)
    """Success rate at the highest level that opens the next; below 0.9 it climbs past noise."""
    prompts: int = Field(default=8, ge=1, le=10_000)
    """Groups at the highest level between two evaluations of it."""
    reversible: bool = False
    """Whether a level can be taken back; published: false."""
    lower_threshold: float = Field(default=0.3, ge=0, le=1)
    """Success rate at the highest level at or below which it is taken back, if that is allowed; below `threshold`."""

    def __post_init__(self) -> None:
        if self.reversible and self.lower_threshold >= self.threshold:
            raise ValueError(f"teacher.lower_threshold must be below teacher.threshold={self.threshold:g}, got {self.lower_threshold!r}")


class RlveTeacher(Teacher):
    """A ladder of levels for each family: the next one opens once nine in ten succeed on the highest.

        level ~ uniform over the whole numbers h_f - window + 1 ... h_f (none below 0),     d = level / num_levels
        when `prompts` groups at level h_f have come:  h_f <- h_f + 1 if their mean success rate >= threshold;  the count restarts

    h_f is the highest level of family f, 0 at first. The 20 levels are ours. Only groups *issued* at the present h_f count, so late
    outcomes of a lower level change nothing. As published a level is never taken back, and the threshold is absolute: where noise keeps
    success below 0.9 for ever the ladder stops, and a learner that forgets is left with tasks that are too hard.
    `reversible` lets it down again where success falls to `lower_threshold`.

    Source: RLVE, Zeng et al. 2025 (arXiv 2511.07317), and the code published with it, an extension of slime.
    """

    kind = "rlve"
    adapting = ("highest", "success_rates")
    config: RlveConfig

    def start(self) -> None:
        self.highest = {str(family): 0 for family in self.families}
        # Of the groups at the highest level since it was last evaluated.
        self.success_rates: dict[str, list[float]] = {str(family): [] for family in self.families}

    def choose(self, family: FamilyKey) -> TaskSpec:
        highest = self.highest[str(family)]
        lowest = max(highest - self.config.window + 1, 0)
        level = int(self.rng.integers(lowest, highest + 1))
        mode = Mode.FRONTIER if level == highest else Mode.REPLAY
        return self.task(family, level / self.config.num_levels, mode, 1.0 / (highest - lowest + 1))

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Counts the groups of the highest levels, then evaluates the families that have enough of them."""
        for group in groups:
            key = str(group.task.family)
            if group.task.strictness == self.highest[key] / self.config.num_levels:
                self.success_rates[key].append(group.success_rate)
        for key, rates in self.success_rates.items():
            if len(rates) < self.config.prompts:
                continue
            before, success = self.highest[key], sum(rates) / len(rates)
            if success >= self.config.threshold:
                self.highest[key] = min(before + 1, self.config.num_levels)
            elif self.config.reversible and success <= self.config.lower_threshold:
                self.highest[key] = max(before - 1, 0)
            if self.highest[key] != before:
                self.decide("level", family=key, before=before, after=self.highest[key], success=success, num_groups=len(rates))
            self.success_rates[key] = []

    def metrics(self) -> dict[str, float]:
        levels = [level / self.config.num_levels for level in self.highest.values()]
        own = {"highest_mean": sum(levels) / len(levels), "highest_min": min(levels), "highest_max": max(levels)}
        return {**super().metrics(), **{f"curriculum/rlve/{name}": value for name, value in own.items()}}


@dataclass(config=SETTINGS)
class AdrConfig(TeacherConfig):
    """Settings of `AdrTeacher`."""

    start: float = Field(default=0.0, ge=0, le=1)
    """The point on each axis from which the box grows, and which it never leaves."""
    boundary_share: float = Field(default=0.5, ge=0, le=1)
    """Share of the groups issued at a wall; more moves the walls sooner and practises less between them."""
    lower_at: float = Field(default=0.3, ge=0, le=1)
    """Mean success at a wall at or below which it moves inwards; below `raise_at`."""
    raise_at: float = Field(default=0.7, ge=0, le=1)
    """Mean success at a wall at or above which it moves outwards."""
    queue: int = Field(default=8, ge=1, le=10_000)
    """Groups at a wall between two decisions about it."""
    step: float = Field(default=0.02, gt=0, le=1)
    """How far a wall moves at once, in strictness; 0.05 suits short runs."""
    axes: Axes = 1
    """1 grows an interval on the line of difficulty, 3 a box of strictness, reserve and impatience."""

    def __post_init__(self) -> None:
        if self.lower_at >= self.raise_at:
            raise ValueError(f"teacher.lower_at must be below teacher.raise_at={self.raise_at:g}, got {self.lower_at!r}")


class AdrTeacher(Teacher):
    """A box of difficulties that grows where the learner succeeds at its walls, and shrinks where it fails there.

    The box is [lo_i, hi_i] for each axis i, at first the single point `start`. Of the groups, a share boundary_share is issued at a wall:
    one of the walls is drawn evenly and its axis set to it, the other axes drawn evenly within the box. All others are drawn within the
    box. The success rates of the groups at a wall fill its queue; when `queue` of them have come, with q their mean,

        q >= raise_at    the wall moves outwards by `step`, at most to 0 or 1
        q <= lower_at    it moves inwards, at most to `start`
        in any case      the queue restarts

    A group counts for the walls that its issued difficulty lies on *now*, so what comes late from a wall that has moved falls away. A wall
    that can never move (the low ones, with `start` at 0) is not tested. ADR entropy, the mean over the D axes of log(hi_i - lo_i) in nats
    (widths below 0.001 count as 0.001), measures the size of the box.

    Source: Akkaya et al. 2019 (arXiv 1910.07113), Algorithm 1, whose thresholds are counts of successes in a row and whose queue holds some
    240 rollouts. That a wall stays outside the start, and that stale outcomes fall away, is from DeXtreme (arXiv 2210.13702).
    """

    kind = "adr"
    adapting = ("box", "queues")
    config: AdrConfig

    def start(self) -> None:
        # (axis, side) of every wall that can move at all, side 0 the low one.
        self.walls = [(axis, side) for axis in range(self.config.axes) for side in (0, 1) if self.config.start != side]
        # [D][2] the walls lo and hi of each axis, and the success rates that wait at each wall.
        self.box = [[self.config.start, self.config.start] for _ in range(self.config.axes)]
        self.queues: list[list[list[float]]] = [[[], []] for _ in range(self.config.axes)]

    def choose(self, family: FamilyKey) -> TaskSpec:
        point, share = [lo + (hi - lo) * self.rng.random() for lo, hi in self.box], self.config.boundary_share
        if self.rng.random() < share:
            axis, side = self.walls[int(self.rng.integers(len(self.walls)))]
            point[axis] = self.box[axis][side]
            return self.task(family, point, Mode.FRONTIER, share / len(self.walls))
        return self.task(family, point, Mode.UNIFORM, 1.0 - share)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Fills the queues of the walls that groups lie on, then moves the walls whose queues are full."""
        config = self.config
        for group in groups:
            point = group.task.point(config.axes)
            for axis, side in self.walls:
                if group.task.mode is Mode.FRONTIER and point[axis] == self.box[axis][side]:
                    self.queues[axis][side].append(group.success_rate)
        for axis, side in self.walls:
            rates = self.queues[axis][side]
            if len(rates) < config.queue:
                continue
            before, success = self.box[axis][side], sum(rates) / len(rates)
            rates.clear()
            outwards = config.step if side else -config.step
            low, high = (config.start, 1.0) if side else (0.0, config.start)
            change = outwards if success >= config.raise_at else -outwards if success <= config.lower_at else 0.0
            after = min(max(before + change, low), high)
            if after != before:
                self.box[axis][side] = after
                self.decide("wall", axis=axis, side=("low", "high")[side], before=before, after=after, success=success)

    def metrics(self) -> dict[str, float]:
        low, high = np.array(self.box).T
        entropy = np.log(np.maximum(high - low, 1e-3)).mean()
        own = {"entropy": float(entropy), "low": float(low.mean()), "high": float(high.mean())}
        return {**super().metrics(), **{f"curriculum/adr/{name}": value for name, value in own.items()}}
