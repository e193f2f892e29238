"""A figure of a report: a picture with its words and its numbers, on the page, as files of its own and as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from analysis.drawing.canvas import NARROW, Plot, on_the_page
from simulator.files import write_whole

FOLDER = "figures"
"""Beside the page: `<name>.svg`, `<name>.png` and `<name>.csv` of each figure."""
FORMATS = ("svg", "png")
DIGITS = 10


@dataclass(kw_only=True)
class Figure:
    """A picture that can be read without the text around it."""

    name: str
    """Of its files, without an ending."""
    title: str
    plot: Plot | None
    """None where there is nothing to draw."""
    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    """The numbers that are drawn, unthinned."""
    nothing: str = "Nothing was recorded."
    """What stands there instead of a picture."""
    drawn: dict[str, bytes] = field(default_factory=dict)
    """The picture by format, as far as it was asked for."""

    def pictures(self, *formats: str) -> dict[str, bytes]:
        """The picture by itself in these formats, drawn at most once for each."""
        missing = [form for form in formats if form not in self.drawn]
        if missing and self.plot is not None:
            self.drawn |= self.plot.render(name=self.name, title=self.title, formats=missing)
        return self.drawn

    def html(self) -> str:
        """As it stands on the page."""
        title = f"<h3>{escape(self.title)}</h3>" if self.title else ""
        if self.plot is None:
            drawing = f'<p class="none">{escape(self.nothing)}</p>'
        else:
            kind = "" if self.plot.width <= NARROW else " hero" if self.plot.is_hero else " full"
            drawing = f'<div class="scroll{kind}">{on_the_page(self.pictures("svg")["svg"], self.plot)}</div>'
        return f"<figure>{title}{drawing}<figcaption>{escape(self.caption)}</figcaption></figure>"

    def table(self) -> str:
        """The numbers as CSV."""
        return as_csv(self.header, self.rows)


def write_figures(folder: Path, figures: Iterable[Figure]) -> list[Path]:
    """Writes each figure that has a picture as SVG, as PNG and its numbers as CSV; returns the paths.

    Args:
        folder: of the page; they go into `figures/` in it.
    """
    written = []
    place = folder / FOLDER
    for figure in figures:
        if figure.plot is None:
            continue
        place.mkdir(exist_ok=True)
        drawn = figure.pictures(*FORMATS)
        written += [write_whole(place / f"{figure.name}.{form}", drawn[form]) for form in FORMATS]
        written += [write_whole(place / f"{figure.name}.csv", figure.table())]
    return written


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()


def cell(value: Any) -> str:
    """A value of the table: to `DIGITS` digits, so that counts of tokens stay whole; empty for what is not known."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)
