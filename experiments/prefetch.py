"""Rolls out steps ahead of the learner, so that engines work while it does, within a bound on staleness.

A step is submitted at most `rollout.max_staleness` updates before it is trained on, and steps are taken in order, each with exactly the
tasks that were proposed for it. So which dialogues are trained on does not depend on the speed of anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from curriculum.task import TaskSpec
from policy.rollout.dialogue import RolloutGroup, Task
from policy.rollout.pool import RolloutPool

LANE = "training"
"""Queue of the pool; evaluation has another, so neither receives the other's groups."""


@dataclass
class PlannedStep:
    """The tasks of a step, and those of the probe panel where the step plays it."""

    step: int
    tasks: list[TaskSpec]
    panel: Sequence[Task]
    is_submitted: bool = False


class RolloutPrefetcher:
    """Plans steps, submits them and returns them in order.

    Args:
        max_staleness: steps beyond the next that may be in flight.
        last_step: of the run; 0 where it is unknown.
        propose: the tasks of a new step.
        panel: the probe panel of a step; empty in most.
        records: `records()` of a checkpoint; those steps are rolled out again by its weights.
    """

    def __init__(
        self,
        pool: RolloutPool,
        *,
        max_staleness: int,
        last_step: int,
        propose: Callable[[], list[TaskSpec]],
        panel: Callable[[int], Sequence[Task]],
        records: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._pool, self._propose, self._panel = pool, propose, panel
        self._max_staleness, self._last_step = max_staleness, last_step
        self._planned = deque(
            PlannedStep(record["step"], [TaskSpec.from_dict(task) for task in record["tasks"]], panel(record["step"])) for record in records
        )

    def fill(self, step: int) -> list[TaskSpec]:
        """Puts this step and those ahead of it in flight; returns the tasks that were proposed now."""
        last = step + self._max_staleness
        if self._last_step:
            last = max(step, min(last, self._last_step))
        proposed = []
        for number in range(step + len(self._planned), last + 1):
            self._planned.append(PlannedStep(number, self._propose(), self._panel(number)))
            proposed += self._planned[-1].tasks
        for planned in self._planned:
            if not planned.is_submitted:
                self._pool.submit([*planned.tasks, *planned.panel], lane=LANE)
                planned.is_submitted = True
        return proposed

    def take(self) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
        """Groups of the earliest step in flight, in the order of its tasks, and those of its panel; waits for all of them."""
        planned = self._planned.popleft()
        groups = self._pool.ready(len(planned.tasks) + len(planned.panel), lane=LANE)
        return groups[: len(planned.tasks)], groups[len(planned.tasks) :]

    def records(self) -> list[dict[str, Any]]:
        """The steps in flight, JSON-able, for a checkpoint: none of their tasks is lost or counted twice."""
        return [{"step": planned.step, "tasks": [task.to_dict() for task in planned.tasks]} for planned in self._planned]
