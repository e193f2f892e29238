"""Steps whose dialogues are under way before it is their turn, so that engines work while the learner does.

A step's tasks are submitted at most `rollout.max_staleness` updates before it is trained on, and steps are taken in their order, each with
exactly the tasks that were proposed for it. So the bound holds by construction, and which dialogues are trained on, and when, depends on
nobody's speed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from curriculum.task import TaskSpec
from curriculum.teacher import task_from_record, task_to_record
from policy.rollout.dialogue import RolloutGroup, Task

LANE = "training"
"""Of the pool; evaluation has another, so neither gets the other's groups."""


class Pool(Protocol):
    """What this needs of the rollout pool."""

    def submit(self, tasks: Sequence[Task], *, lane: str) -> None: ...
    def ready(self, num_groups: int, *, lane: str) -> list[RolloutGroup]: ...


@dataclass
class Planned:
    """The tasks of a step, and those of the probe panel where the step looks at it."""

    step: int
    tasks: list[TaskSpec]
    panel: Sequence[Task]
    is_submitted: bool = False


class Ahead:
    """Plans steps, submits them and takes them back in order.

    Args:
        max_staleness: steps that may be under way beyond the next.
        last_step: after which nothing is planned; 0 where nobody knows.
        propose: the tasks of a new step.
        panel: the probe panel of a step; empty in most.
        records: what `records()` said when a checkpoint was written. Those steps are rolled out again, by the weights of the checkpoint.
    """

    def __init__(
        self,
        pool: Pool,
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
            Planned(record["step"], [task_from_record(task) for task in record["tasks"]], panel(record["step"])) for record in records
        )

    def top_up(self, step: int) -> list[TaskSpec]:
        """Sees to it that this step and those ahead of it are under way; returns the tasks that were proposed for it just now."""
        last = step + self._max_staleness
        if self._last_step:
            last = max(step, min(last, self._last_step))
        proposed = []
        for number in range(step + len(self._planned), last + 1):
            self._planned.append(Planned(number, self._propose(), self._panel(number)))
            proposed += self._planned[-1].tasks
        for planned in self._planned:
            if not planned.is_submitted:
                self._pool.submit([*planned.tasks, *planned.panel], lane=LANE)
                planned.is_submitted = True
        return proposed

    def take(self) -> tuple[Planned, list[RolloutGroup]]:
        """The earliest step under way and its groups, in the order of its tasks and then its panel; waits for all of them."""
        planned = self._planned.popleft()
        return planned, self._pool.ready(len(planned.tasks) + len(planned.panel), lane=LANE)

    def records(self) -> list[dict[str, Any]]:
        """The steps under way, JSON-able. A checkpoint that holds them loses none of their tasks, and bills none twice."""
        return [{"step": planned.step, "tasks": [task_to_record(task) for task in planned.tasks]} for planned in self._planned]
