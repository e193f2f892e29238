"""A student for tests of teachers: it succeeds at strictness d with probability sigmoid(8 (c - d))."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from curriculum import TEACHERS
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec
from curriculum.teacher import LedgerTeacher
from simulator.scenario import Difficulty

GROUP_SIZE = 8


def success_prob(c: float, d: float) -> float:
    return 1.0 / (1.0 + math.exp(-8.0 * (c - d)))


def make_teacher(
    kind: str, *, families: Sequence[str] = ("one",), seed: int = 0, group_size: int = GROUP_SIZE, **settings
) -> LedgerTeacher:
    config, teacher = TEACHERS[kind]
    scenarios = {family: [f"{family}-{i}" for i in range(5)] for family in families}
    return teacher(config(**settings), scenarios=scenarios, group_size=group_size, seed=seed)


def make_outcome(task: TaskSpec, num_successes: int, *, rewards: Sequence[float] | None = None) -> GroupOutcome:
    successes = tuple(i < num_successes for i in range(task.group_size))
    return GroupOutcome(
        task=task,
        rewards=tuple(rewards) if rewards is not None else tuple(float(success) for success in successes),
        successes=successes,
        num_tokens=(1,) * task.group_size,
        statuses=(Status.OK,) * task.group_size,
    )


def make_task(
    teacher: LedgerTeacher, strictness: float, *, family: str = "one", mode: Mode | None = None, difficulty: Difficulty | None = None
) -> TaskSpec:
    """A task of the teacher's own, as if it had been issued at `strictness`."""
    issued = teacher.propose(1, policy_version=teacher.policy_version)[0]
    task = replace(
        issued, family=family, strictness=strictness, difficulty=difficulty or Difficulty.along(strictness), mode=mode or issued.mode
    )
    teacher._outstanding[task.uid] = task
    return task


def teach(teacher: LedgerTeacher, strictness: float, num_successes: int, **kwargs) -> None:
    """One outcome at `strictness`, observed alone."""
    teacher.observe([make_outcome(make_task(teacher, strictness, **kwargs), num_successes)])


def practise(
    teacher: LedgerTeacher, c: Callable[[int], float] | float, *, num_steps: int, num_groups: int = 16, seed: int = 1
) -> list[list[TaskSpec]]:
    """The tasks of each step, all answered at once by a student of ability `c`, constant or by step."""
    rng = np.random.default_rng(seed)
    issued = []
    first = teacher.policy_version
    for step in range(num_steps):
        ability = c(step) if callable(c) else c
        tasks = teacher.propose(num_groups, policy_version=first + step)
        teacher.observe([make_outcome(task, rng.binomial(task.group_size, success_prob(ability, task.strictness))) for task in tasks])
        issued.append(tasks)
    return issued


def mean_distance(issued: list[list[TaskSpec]], c: float) -> float:
    """Mean distance of the strictness issued from `c`."""
    return float(np.mean([abs(task.strictness - c) for tasks in issued for task in tasks]))
