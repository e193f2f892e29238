"""One target strictness, raised when the batch's mean reward is above one half and lowered when it is below.

    T <- clip(T + eta * tanh(alpha * (mean reward - beta)), 0, 1)     once for each batch observed; every group is issued at d = T

    beta   mean reward aimed at, 0-1          (.5)
    alpha  sensitivity, per unit of reward    (2)
    eta    the longest step, in strictness    (.5: the published 50 on a scale of 0 to 100)

As published the batch moves the *current* T, whatever strictness it was issued at, and one T serves all tasks. With outcomes that come
k steps late the loop is stable only while its gain g = eta * alpha * (-d mean reward / dd) stays below 2 sin(pi / (2 (2 k + 1))): 2 at no
delay, .62 at two steps, .095 at sixteen, where the published gain swings from bound to bound. Two repairs, each a flag:

    tagged      T <- clip(mean strictness the batch was issued at + eta * tanh(...), 0, 1): the same without delay, and as stable with any;
                it then gets on once in k + 1 steps, so that eta should stay at .5
    per_family  a T of its own for each family, moved by the mean reward of that family's groups in the batch

Faults of the public code that are not kept: its loader has drawn some sixteen batches ahead, which makes the delay; the target is in no
checkpoint and starts at 0 on resume; a KL penalty, where it is part of the reward, moves the target; at a bound the same few items come at
every step, because it takes the nearest of a fixed, labelled data set (here a scenario is drawn and the user made as strict as T says).

Source: Shi et al. 2025 (arXiv 2504.05520) and the code published with it, an extension of verl.

A ladder of levels for each family: the next one opens once nine in ten succeed on the highest.

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

A box of difficulties that grows where the learner succeeds at its walls, and shrinks where it fails there.

The box is [lo_i, hi_i] for each axis i, at first the single point `start`. Of the groups, a share boundary_share is issued at a wall: one
of the walls is drawn evenly and its axis set to it, the other axes drawn evenly within the box. All others are drawn within the box.
The success shares of the groups at a wall fill its queue; when `queue` of them have come, with q their mean,

    q >= raise_at    the wall moves outwards by `step`, at most to 0 or 1
    q <= lower_at    it moves inwards, at most to `start`
    in any case      the queue starts anew

A group counts for the walls that its issued difficulty lies on *now*: what was issued at a wall that has moved since, however late it
comes, falls away. A wall that can never move (the low ones, with `start` at 0) is not tested. ADR entropy (1 / D) sum_i log(hi_i - lo_i)
over the D axes, in nats (widths below .001 count as .001), says how large the box is.

Half the budget tests walls and most of the rest lies well inside the box: little is forgotten, and the frontier moves slowly, the more so
with three axes, whose walls are tested one at a time, with outcomes that come late, and with a box of its own for each family.

Defaults: start 0, the easiest; boundary_share .5 and step .02 as in the paper. Its thresholds are counts of successes in a row, so ours
are shares, evenly about one half: .3 and .7. The queue is 8 groups (64 rollouts of eight a group) instead of some 240 rollouts, which a
run of a hundred steps would not fill often enough.

Source: Akkaya et al. 2019 (arXiv 1910.07113), Algorithm 1. That a wall stays outside the start, and that stale outcomes fall away, is
from DeXtreme (arXiv 2210.13702) and its public code, `isaacgymenvs:adr_vec_task.py`. That code keeps a sliding queue, emptied only
when its wall moves; and its `worker_adr_boundary_fraction` is the share of workers *inside* the box, by the comparison in
`recycle_envs`: set to .4, it tests walls with .6 of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.dataclasses import dataclass

from curriculum.checks import require_between, require_one_of
from curriculum.task import FamilyKey, GroupOutcome, Mode
from curriculum.teacher import Choice, LedgerTeacher, TeacherConfig, mean_reward, point_choice, point_of, success_share
from simulator.settings import SETTINGS

ALL = "all"
"""Key of the one target that all families share."""


@dataclass(config=SETTINGS)
class AdarftConfig(TeacherConfig):
    """Settings of `AdarftTeacher`."""

    target_reward: float = 0.5
    """[0, 1]: mean reward beta aimed at."""
    alpha: float = 2.0
    """(0, 100]: sensitivity to the difference from it."""
    eta: float = 0.5
    """(0, 1]: the longest step, in strictness; .05 swings less and follows more slowly, too slowly with `tagged` and a delay."""
    start: float = 0.0
    """[0, 1]: target before anything was observed."""
    per_family: bool = False
    """Whether each family has a target of its own; published: false."""
    tagged: bool = False
    """Whether a batch moves the strictness it was issued at and not the present target; published: false."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.target_reward", self.target_reward, 0.0, 1.0)
        require_between("teacher.alpha", self.alpha, 1e-6, 100.0)
        require_between("teacher.eta", self.eta, 1e-6, 1.0)
        require_between("teacher.start", self.start, 0.0, 1.0)


class AdarftTeacher(LedgerTeacher):
    """d = T, families in turn."""

    kind = "adarft"
    adapting = ("targets",)
    config: AdarftConfig

    def __init__(self, config: AdarftConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.targets = dict.fromkeys(map(self.key, self.families), config.start)

    def key(self, family: FamilyKey) -> str:
        """Whose target this family follows."""
        return str(family) if self.config.per_family else ALL

    def choose(self, family: FamilyKey) -> Choice:
        """The target."""
        return Choice(self.targets[self.key(family)], Mode.FRONTIER, 1.0)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """One step of each target that the batch says anything about."""
        batches: dict[str, list[GroupOutcome]] = {}
        for group in groups:
            batches.setdefault(self.key(group.task.family), []).append(group)
        for key, batch in batches.items():
            reward = sum(map(mean_reward, batch)) / len(batch)
            issued = sum(group.task.strictness for group in batch) / len(batch)
            step = self.config.eta * math.tanh(self.config.alpha * (reward - self.config.target_reward))
            self.targets[key] = min(max((issued if self.config.tagged else self.targets[key]) + step, 0.0), 1.0)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, the mean target, and the share of targets that stand at a bound."""
        targets = self.targets.values()
        at_bound = sum(target in (0.0, 1.0) for target in targets)
        own = {"target": sum(targets) / len(targets), "at_bound": at_bound / len(targets)}
        return {**super().metrics(), **{f"curriculum/adarft/{name}": value for name, value in own.items()}}


@dataclass(config=SETTINGS)
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


"""Key of the one box that all families share."""
LEAST_WIDTH = 1e-3
"""Width from which the entropy of an axis is taken, so that a point has one."""


@dataclass(config=SETTINGS)
class AdrConfig(TeacherConfig):
    """Settings of `AdrTeacher`."""

    start: float = 0.0
    """[0, 1]: the point on each axis from which the box grows, and which it never leaves."""
    boundary_share: float = 0.5
    """[0, 1]: share of the groups issued at a wall; more moves the walls sooner and practises less between them."""
    lower_at: float = 0.3
    """[0, 1]: mean success at a wall at or below which it moves inwards; below `raise_at`."""
    raise_at: float = 0.7
    """[0, 1]: mean success at a wall at or above which it moves outwards."""
    queue: int = 8
    """[1, 10000]: groups at a wall between two decisions about it."""
    step: float = 0.02
    """(0, 1]: how far a wall moves at once; .05 suits short runs."""
    axes: int = 1
    """{1, 3}: 1 grows an interval on the line of difficulty, 3 a box of strictness, reserve and impatience."""
    per_family: bool = False
    """Whether each family has a box of its own; with few groups a step its walls then rarely move."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start", "boundary_share", "lower_at", "raise_at"):
            require_between(f"teacher.{name}", getattr(self, name), 0.0, 1.0)
        require_between("teacher.queue", self.queue, 1, 10_000)
        require_between("teacher.step", self.step, 1e-6, 1.0)
        require_one_of("teacher.axes", self.axes, (1, 3))
        if self.lower_at >= self.raise_at:
            raise ValueError(f"teacher.lower_at must be below teacher.raise_at={self.raise_at:g}, got {self.lower_at!r}")


class AdrTeacher(LedgerTeacher):
    """Draws within a box or at its walls, families in turn."""

    kind = "adr"
    adapting = ("boxes", "queues")
    config: AdrConfig

    def __init__(self, config: AdrConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        keys = {self.key(family) for family in self.families}
        # (axis, side) of every wall that can move at all, side 0 the low one.
        self.walls = [(axis, side) for axis in range(config.axes) for side in (0, 1) if config.start != side]
        # By family: [D][2] the walls lo and hi of each axis, and the success shares that wait at each wall.
        self.boxes = {key: [[config.start, config.start] for _ in range(config.axes)] for key in sorted(keys)}
        self.queues: dict[str, list[list[list[float]]]] = {key: [[[], []] for _ in range(config.axes)] for key in sorted(keys)}

    def key(self, family: FamilyKey) -> str:
        """Whose box this family draws from."""
        return str(family) if self.config.per_family else ALL

    def choose(self, family: FamilyKey) -> Choice:
        """A point within the box, half the time with one axis at a wall."""
        box = self.boxes[self.key(family)]
        point = [lo + (hi - lo) * self.rng.random() for lo, hi in box]
        share, mode = 1.0 - self.config.boundary_share, Mode.UNIFORM
        if self.rng.random() < self.config.boundary_share:
            axis, side = self.walls[int(self.rng.integers(len(self.walls)))]
            point[axis] = box[axis][side]
            share, mode = self.config.boundary_share / len(self.walls), Mode.FRONTIER
        return point_choice(point, mode, share)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Fills the queues of the walls that groups lie on, then moves the walls whose queues are full."""
        for group in groups:
            if group.task.mode is Mode.FRONTIER:
                self._enqueue(group)
        for key, queues in self.queues.items():
            for axis, side in self.walls:
                successes = queues[axis][side]
                if len(successes) >= self.config.queue:
                    self._move(key, axis, side, success=sum(successes) / len(successes))
                    successes.clear()

    def _enqueue(self, group: GroupOutcome) -> None:
        key = self.key(group.task.family)
        point = point_of(group.task, self.config.axes)
        for axis, side in self.walls:
            if point[axis] == self.boxes[key][axis][side]:
                self.queues[key][axis][side].append(success_share(group))

    def _move(self, key: str, axis: int, side: int, *, success: float) -> None:
        config, before = self.config, self.boxes[key][axis][side]
        outwards = config.step if side else -config.step
        low, high = (config.start, 1.0) if side else (0.0, config.start)
        if success >= config.raise_at:
            after = before + outwards
        elif success <= config.lower_at:
            after = before - outwards
        else:
            return
        after = min(max(after, low), high)
        if after != before:
            self.boxes[key][axis][side] = after
            self.decide("wall", box=key, axis=axis, side=("low", "high")[side], before=before, after=after, success=success)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, the box's entropy and its walls, means over axes and boxes."""
        walls = [pair for box in self.boxes.values() for pair in box]
        entropies = [math.log(max(hi - lo, LEAST_WIDTH)) for lo, hi in walls]
        low, high = (sum(pair[side] for pair in walls) / len(walls) for side in (0, 1))
        own = {"entropy": sum(entropies) / len(walls), "low": low, "high": high}
        return {**super().metrics(), **{f"curriculum/adr/{name}": value for name, value in own.items()}}
