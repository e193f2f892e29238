"""A bar on the terminal for what takes a while, with the time left; where no terminal is, a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

CELLS = 30
EVERY_S = 60.0
"""Between two lines where there is no terminal; what is over sooner says nothing there."""

Item = TypeVar("Item")


class Progress:
    """Counts towards a total.

    Args:
        before: so many were done earlier, and say nothing of the pace.
        out: where it is drawn.
        clock: seconds from whenever.
    """

    def __init__(
        self, what: str, total: int, *, before: int = 0, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._total, self._before, self._done = what, max(total, 1), before, before
        self._out = sys.stderr if out is None else out
        self._shown = -1
        self._clock = clock
        self._began = self._told = clock()

    def __enter__(self) -> Progress:
        self._draw()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()

    def add(self, num: int = 1) -> None:
        """So many more are done."""
        self._done += num
        self._draw()

    def _draw(self) -> None:
        filled = CELLS * min(self._done, self._total) // self._total
        percent = 100 * self._done // self._total
        if not self._out.isatty():
            self._tell()
        elif percent != self._shown:
            self._shown = percent
            self._out.write(f"\r{self._what} {'#' * filled}{'.' * (CELLS - filled)} {self._done}/{self._total}{self._left()}\x1b[K")
            self._out.flush()

    def _tell(self) -> None:
        if self._clock() - self._told >= EVERY_S:
            self._told = self._clock()
            self._out.write(f"{self._what} {self._done}/{self._total}{self._left()}\n")
            self._out.flush()

    def _left(self) -> str:
        """How long the rest takes at the pace so far; empty before there is a pace, and at the end."""
        if not self._before < self._done < self._total:
            return ""
        pace_s = (self._clock() - self._began) / (self._done - self._before)
        return f"  {as_clock(pace_s * (self._total - self._done))} left"


def progress(items: Iterable[Item], *, total: int, what: str) -> Iterator[Item]:
    """The items, counted as they are taken."""
    with Progress(what, total) as bar:
        for item in items:
            yield item
            bar.add()


def as_clock(seconds: float) -> str:
    """A duration as m:ss, from an hour on as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
