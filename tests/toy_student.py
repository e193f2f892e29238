"""A student of known ability for tests of teachers: it succeeds with probability sigmoid(8 (ability - d))."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from tiny_student import make_outcome, success_prob

from curriculum.task import GroupOutcome, TaskSpec
from curriculum.teacher import LedgerTeacher


def practise(
    teacher: LedgerTeacher,
    ability: Callable[[TaskSpec], float],
    *,
    num_steps: int,
    num_groups: int = 16,
    delay: int = 0,
    seed: int = 0,
) -> list[list[TaskSpec]]:
    """Steps of `num_groups`, whose outcomes come `delay` steps late; returns what was issued, by step."""
    rng = np.random.default_rng(seed)
    in_flight: deque[list[GroupOutcome]] = deque()
    issued = []
    first = teacher.policy_version
    for step in range(num_steps):
        tasks = teacher.propose(num_groups, policy_version=first + step)
        issued.append(tasks)
        in_flight.append(
            [make_outcome(task, rng.binomial(task.group_size, success_prob(ability(task), task.strictness))) for task in tasks]
        )
        if len(in_flight) > delay:
            teacher.observe(in_flight.popleft())
    return issued


def mean_strictness(issued: list[list[TaskSpec]]) -> np.ndarray:
    """[T] mean strictness of each step."""
    return np.array([np.mean([task.strictness for task in tasks]) for tasks in issued])
