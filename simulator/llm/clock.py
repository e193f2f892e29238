"""A question may wait in line for a place at its server, and the dialogue's clock stands still meanwhile.

The line is inside the client, the clock belongs to whoever plays the dialogue, and between them are users who know of neither: a context
variable brings them together. Who waits is known here as well: a question that nobody waits for any more need not be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Clock(Protocol):
    """What measures how long a dialogue takes."""

    def stop(self) -> None: ...

    def go_on(self) -> None: ...


CLOCK: ContextVar[Clock | None] = ContextVar("attune_clock", default=None)
"""That of the dialogue that is played in this task."""


class DialogueClock:
    """Stops the time limit of a dialogue, as long as one of its questions is in line."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._left_s: float | None = None
        self._num_stops = 0

    def stop(self) -> None:
        self._num_stops += 1
        until = self._limit.when()
        if self._num_stops == 1 and until is not None and not self._limit.expired():
            self._left_s = until - asyncio.get_running_loop().time()
            self._limit.reschedule(None)

    def go_on(self) -> None:
        self._num_stops -= 1
        if self._num_stops == 0 and self._left_s is not None:
            if not self._limit.expired():
                self._limit.reschedule(asyncio.get_running_loop().time() + self._left_s)
            self._left_s = None


@contextmanager
def dialogue_clock(limit: asyncio.Timeout) -> Iterator[None]:
    """While entered, which must be within the limit, questions of this task stop it when they wait in line."""
    token = CLOCK.set(DialogueClock(limit))
    try:
        yield
    finally:
        CLOCK.reset(token)


class UnderWay:
    """A question on its way to an answer, and who waits for it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any]
        self.num_waiting = 0
        self._clocks: list[Clock] = []
        self._is_in_line = self._is_sent = False

    @property
    def may_be_dropped(self) -> bool:
        """Nobody waits for it, and nothing is under way that will be paid for."""
        return self.num_waiting == 0 and not self._is_sent and not self.task.done()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """While entered, the caller waits for the answer, and its dialogue's clock goes only when the question is not in line."""
        clock = CLOCK.get()
        self.num_waiting += 1
        if clock is not None:
            self._clocks.append(clock)
            if self._is_in_line:
                clock.stop()
        try:
            yield
        finally:
            self.num_waiting -= 1
            if clock is not None:
                self._clocks.remove(clock)
                if self._is_in_line:
                    clock.go_on()

    @contextmanager
    def in_line(self) -> Iterator[None]:
        """While entered, it waits for a place."""
        self._is_in_line = True
        for clock in self._clocks:
            clock.stop()
        try:
            yield
        finally:
            self._is_in_line = False
            for clock in self._clocks:
                clock.go_on()

    @contextmanager
    def sent(self) -> Iterator[None]:
        """While entered, a server works on it."""
        self._is_sent = True
        try:
            yield
        finally:
            self._is_sent = False
