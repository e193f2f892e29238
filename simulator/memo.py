"""Answers kept for what belongs to a scenario, found by which object it is: to hash eight facts costs more than most answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from simulator.scenario import Fact

Answer = TypeVar("Answer")


def by_facts(maxsize: int) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Keeps the answers of a function of a scenario's facts and of texts; all are dropped once there are too many."""

    def keep(function: Callable[..., Answer]) -> Callable[..., Answer]:
        kept: dict[tuple[int, tuple[str, ...]], tuple[tuple[Fact, ...], Answer]] = {}

        @wraps(function)
        def answer(facts: tuple[Fact, ...], *texts: str) -> Answer:
            # An id is somebody's only as long as they live: the entry keeps its facts alive.
            found = kept.get((id(facts), texts))
            if found is not None:
                return found[1]
            if len(kept) >= maxsize:
                kept.clear()
            value = function(facts, *texts)
            kept[id(facts), texts] = (facts, value)
            return value

        return answer

    return keep
