"""Queueing for a place at a server is not the dialogue's fault: its time limit pauses meanwhile.

The queue is inside the client, the limit belongs to the rollout, and users in between know neither: a context variable connects them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

CLOCK: ContextVar[DialogueClock | None] = ContextVar("attune_clock", default=None)
"""The clock of the dialogue that this task plays."""


class DialogueClock:
    """Pauses the time limit of a dialogue as long as one of its questions is queued."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._left_s: float | None = None
        self._num_stops = 0

    def stop(self) -> None:
        """Pauses the limit; calls nest."""
        self._num_stops += 1
        until = self._limit.when()
        if self._num_stops == 1 and until is not None and not self._limit.expired():
            self._left_s = until - asyncio.get_running_loop().time()
            self._limit.reschedule(None)

    def resume(self) -> None:
        """Ends a `stop`."""
        self._num_stops -= 1
        if self._num_stops == 0 and self._left_s is not None:
            if not self._limit.expired():
                self._limit.reschedule(asyncio.get_running_loop().time() + self._left_s)
            self._left_s = None


@contextmanager
def dialogue_clock(limit: asyncio.Timeout) -> Iterator[None]:
    """While entered, which must be within the limit, queued questions of this task pause the limit."""
    token = CLOCK.set(DialogueClock(limit))
    try:
        yield
    finally:
        CLOCK.reset(token)


@contextmanager
def queued() -> Iterator[None]:
    """While entered, the question of this task is queued."""
    clock = CLOCK.get()
    if clock is not None:
        clock.stop()
    try:
        yield
    finally:
        if clock is not None:
            clock.resume()
