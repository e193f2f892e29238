"""How the arms of a comparison are told apart: never by colour alone, but by colour, dash and mark (Okabe and Ito's colours)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from analysis.drawing.canvas import Sheet, hue, mark

LETTER = 6.4
"""Width of a letter, about, pixels."""
DASHES = {
    "a": "-",
    "b": (0, (5, 2)),
    "c": (0, (1.4, 1.8)),
    "d": (0, (6, 2, 1.4, 2)),
    "e": (0, (9, 2.5)),
    "f": (0, (3, 1.4)),
    "g": (0, (1, 3)),
}
"""A dash for each of seven colours."""
MARKS = ("", "o", "s", "^", "D", "v")
Style = tuple[str, str]
"""Colour and mark of an arm."""
STYLES: tuple[Style, ...] = tuple((colour, mark) for mark, colour in product(MARKS, DASHES))
"""Of the arms in one frame; from the 43rd on they begin anew."""


def style_of(colour: str, marker: str, *, num_points: int, start: int) -> dict[str, Any]:
    """How an arm's line looks: colour, dash, and about eight marks along it."""
    style: dict[str, Any] = {"color": hue(colour), "linestyle": DASHES[colour]}
    if marker:
        every = max(num_points // 8, 1)
        style |= {"marker": marker, "markersize": 4.6, "markevery": (start % every, every)}
    return style


def names_beside(sheet: Sheet, names: Sequence[tuple[str, str, str]], *, x: float, ys: Sequence[float]) -> None:
    """What each line is, with a piece of it.

    Args:
        names: name, colour and mark.
        x, ys: where the pieces begin, and the middle of each, pixels.
    """
    for (name, colour, marker), y in zip(names, ys, strict=True):
        marked = {"marker": marker, "markersize": 4.6, "markevery": [1]} if marker else {}
        sheet.line([x, x + 12, x + 24], y, color=hue(colour), linestyle=DASHES[colour], linewidth=1.6, gid=mark("key", name), **marked)
        sheet.text(x + 31, y + 4, name)


def moved_apart(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Places that are at least a gap from each other, near the wanted ones and within bounds where these allow it.

    Args:
        wanted: increasing.
    """
    ys: list[float] = []
    for y in wanted:
        ys.append(max(y, ys[-1] + gap if ys else low))
    if ys and ys[-1] > high:
        for i in range(len(ys) - 1, -1, -1):
            ys[i] = min(ys[i], (ys[i + 1] if i + 1 < len(ys) else high + gap) - gap)
    return ys


def label_width(names: Sequence[str]) -> float:
    """What the longest name needs beside a piece of its line, pixels."""
    return 46.0 + 1.1 * LETTER * max((len(name) for name in names), default=0)
