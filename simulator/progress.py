"""A bar on the terminal for what takes a while; nothing where no terminal is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TextIO, TypeVar

CELLS = 30

Item = TypeVar("Item")


class Progress:
    """Counts towards a total.

    Args:
        out: where it is drawn; nothing is if this is no terminal.
    """

    def __init__(self, what: str, total: int, *, out: TextIO | None = None) -> None:
        self._what, self._total, self._done = what, max(total, 1), 0
        self._out = sys.stderr if out is None else out
        self._shown = -1

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
        if percent == self._shown or not self._out.isatty():
            return
        self._shown = percent
        self._out.write(f"\r{self._what} {'#' * filled}{'.' * (CELLS - filled)} {self._done}/{self._total}")
        self._out.flush()


def progress(items: Iterable[Item], *, total: int, what: str) -> Iterator[Item]:
    """The items, counted as they are taken."""
    with Progress(what, total) as bar:
        for item in items:
            yield item
            bar.add()
