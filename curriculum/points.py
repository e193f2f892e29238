"""Difficulty as a point of one or three coordinates, for teachers that may move the axes apart."""

from __future__ import annotations

from collections.abc import Sequence

from curriculum.ledger import Choice
from curriculum.teacher import Mode, TaskSpec
from simulator.difficulty import Difficulty


def point_of(task: TaskSpec, axes: int) -> list[float]:
    """Where a task was issued: its strictness, or with 3 axes (strictness, reserve, impatience)."""
    return [task.strictness] if axes == 1 else list(task.difficulty.to_dict().values())


def point_choice(point: Sequence[float], mode: Mode, share: float) -> Choice:
    """The choice of a point of 1 or 3 coordinates in [0, 1]."""
    if len(point) == 1:
        return Choice(point[0], mode, share)
    strictness, reserve, impatience = point
    return Choice.at(Difficulty(strictness=strictness, reserve=reserve, impatience=impatience), mode, share)
