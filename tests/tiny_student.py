"""A student for tests of teachers: it succeeds at strictness d with probability sigmoid(8 (ability - d))."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from curriculum import TEACHERS
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec, UpdateStats
from curriculum.teacher import Teacher
from simulator.scenario import Difficulty

GROUP_SIZE = 8


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def make_teacher(kind: str, *, families: Sequence[object] = ("one",), seed: int = 0, group_size: int = GROUP_SIZE, **settings) -> Teacher:
    config, teacher = TEACHERS[kind]
    scenarios = {family: [f"{family}-{i}" for i in range(5)] for family in families}
    return teacher(config(**settings), scenarios=scenarios, group_size=group_size, seed=seed)


def make_outcome(task: TaskSpec, num_successes: int, *, rewards: Sequence[float] | None = None) -> GroupOutcome:
    successes = [i < num_successes for i in range(task.group_size)]
    statuses, num_tokens = [Status.OK] * task.group_size, [1] * task.group_size
    return GroupOutcome(task=task, rewards=rewards or successes, successes=successes, num_tokens=num_tokens, statuses=statuses)


def make_task(
    teacher: Teacher, strictness: float, *, family: object = None, mode: Mode | None = None, difficulty: Difficulty | None = None
) -> TaskSpec:
    """A task of the teacher's own, as if it had been issued at `strictness`."""
    issued = teacher.propose(1, policy_version=teacher.policy_version)[0]
    task = replace(issued, family=family or issued.family, difficulty=difficulty or Difficulty.along(strictness), mode=mode or issued.mode)
    teacher._outstanding[task.uid] = task
    return task


def teach(teacher: Teacher, strictness: float, num_successes: int, **kwargs) -> None:
    """One outcome at `strictness`, observed alone."""
    teacher.observe([make_outcome(make_task(teacher, strictness, **kwargs), num_successes)])


def make_stats(step: int, *, entropy: float = 1.0, reward_density: float = 0.5, **measured: float) -> UpdateStats:
    return UpdateStats(
        step=step,
        policy_version=step,
        entropy=entropy,
        entropy_sampled=entropy,
        reward_density=reward_density,
        zero_variance_share=0.0,
        kl=math.nan,
        **measured,
    )


def practise(
    teacher: Teacher,
    ability: float | Callable[[TaskSpec], float],
    *,
    num_steps: int,
    num_groups: int = 16,
    delay: int = 0,
    seed: int = 1,
    success: Callable[[TaskSpec], float] | None = None,
) -> list[list[TaskSpec]]:
    """The tasks of each step, whose outcomes come `delay` steps late.

    Args:
        ability: constant or by task.
        success: probability of success by task, in place of that of `ability`.
    """
    rng = np.random.default_rng(seed)
    in_flight: deque[list[GroupOutcome]] = deque()
    issued, first = [], teacher.policy_version
    for step in range(num_steps):
        tasks = teacher.propose(num_groups, policy_version=first + step)
        issued.append(tasks)
        outcomes = []
        for task in tasks:
            able = ability(task) if callable(ability) else ability
            prob = success(task) if success else sigmoid(8.0 * (able - task.strictness))
            outcomes.append(make_outcome(task, rng.binomial(task.group_size, prob)))
        in_flight.append(outcomes)
        if len(in_flight) > delay:
            teacher.observe(in_flight.popleft())
    return issued


def mean_strictness(issued: list[list[TaskSpec]]) -> np.ndarray:
    """[T] mean strictness of each step."""
    return np.array([np.mean([task.strictness for task in tasks]) for tasks in issued])
