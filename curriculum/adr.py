"""A box of difficulties that grows where the learner succeeds at its walls, and shrinks where it fails there.

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
from dataclasses import dataclass
from typing import Any

from curriculum.checks import require_between, require_one_of
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, success_share
from curriculum.points import point_choice, point_of
from curriculum.teacher import FamilyKey, GroupOutcome, Mode

ALL = "all"
"""Key of the one box that all families share."""
LEAST_WIDTH = 1e-3
"""Width from which the entropy of an axis is taken, so that a point has one."""


@dataclass
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
