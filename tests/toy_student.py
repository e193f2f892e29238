"""A student of known ability for tests of teachers: it succeeds with probability sigmoid(8 (ability - d))."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from curriculum import TEACHERS
from curriculum.ledger import LedgerTeacher
from curriculum.teacher import GroupOutcome, Status, TaskSpec

SLOPE = 8.0


def make_teacher(kind: str, *, families: tuple[Any, ...] = ("one",), group_size: int = 8, seed: int = 0, **settings: Any) -> LedgerTeacher:
    config, teacher = TEACHERS[kind]
    scenarios = {family: [f"{family}-{i}" for i in range(5)] for family in families}
    return teacher(config(**settings), scenarios=scenarios, group_size=group_size, seed=seed)


def outcome(task: TaskSpec, num_successes: int, *, rewards: tuple[float, ...] | None = None) -> GroupOutcome:
    successes = tuple(i < num_successes for i in range(task.group_size))
    return GroupOutcome(
        task=task,
        rewards=rewards or tuple(map(float, successes)),
        successes=successes,
        num_tokens=(1,) * task.group_size,
        statuses=(Status.OK,) * task.group_size,
    )


def success_prob(ability: float, d: float) -> float:
    return 1.0 / (1.0 + math.exp(-SLOPE * (ability - d)))


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
    for step in range(num_steps):
        tasks = teacher.propose(num_groups, policy_version=step)
        issued.append(tasks)
        in_flight.append([outcome(task, rng.binomial(task.group_size, success_prob(ability(task), task.strictness))) for task in tasks])
        if len(in_flight) > delay:
            teacher.observe(in_flight.popleft())
    return issued


def mean_strictness(issued: list[list[TaskSpec]]) -> np.ndarray:
    """[T] mean strictness of each step."""
    return np.array([np.mean([task.strictness for task in tasks]) for tasks in issued])
