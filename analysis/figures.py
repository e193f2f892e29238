"""A figure of a report: a drawing with its words and its numbers, on the page, as a picture by itself and as a table."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from analysis.style import FIGURES, PAPER_COLOURS

FOLDER = "figures"
"""Beside the page: `<name>.svg` and `<name>.csv` of each figure."""
NOTHING = '<p class="none">Nothing was recorded.</p>'
TITLE_HEIGHT = 26.0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing that can be read without the text around it."""

    name: str
    """Of its files, without an ending."""
    title: str
    drawing: str
    """SVG, or a sentence where there is nothing to draw."""
    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    """The numbers that are drawn, unthinned."""

    def html(self) -> str:
        """As it stands on the page."""
        title = f"<h3>{escape(self.title)}</h3>" if self.title else ""
        return f"<figure>{title}{self.drawing}<figcaption>{escape(self.caption)}</figcaption></figure>"


def write_figures(folder: Path, figures: Iterable[Figure]) -> list[Path]:
    """Writes each figure that has a drawing as SVG and as CSV; returns the paths.

    Args:
        folder: of the page; they go into `figures/` in it.
    """
    written = []
    place = folder / FOLDER
    for figure in figures:
        if not figure.drawing.startswith("<svg"):
            continue
        place.mkdir(exist_ok=True)
        picture, table = place / f"{figure.name}.svg", place / f"{figure.name}.csv"
        picture.write_text(standalone(figure), encoding="utf-8")
        with table.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(figure.header)
            writer.writerows([[cell(value) for value in row] for row in figure.rows])
        written += [picture, table]
    return written


def cell(value: Any) -> str:
    """A value of the table: six digits, empty for what is not known."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def standalone(figure: Figure) -> str:
    """The drawing as a file: on white, with its title, its colours written out (drawing programs know no CSS variables)."""
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', figure.drawing).groups())  # type: ignore[union-attr]
    style = re.sub(r"var\(--([\w-]+)\)", lambda match: PAPER_COLOURS[match[1]], FIGURES)
    inner = figure.drawing.replace("<svg", f'<svg y="{TITLE_HEIGHT:g}" width="{width:g}" height="{height:g}"', 1)
    whole = height + TITLE_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {whole:g}" width="{width:g}" height="{whole:g}" '
        f'font-family="DejaVu Sans, Arial, Helvetica, sans-serif">\n<style>{style}</style>\n<desc>{escape(figure.caption)}</desc>\n'
        f'<rect width="{width:g}" height="{whole:g}" fill="#fff"/>'
        f'<text class="title" x="6" y="17">{escape(figure.title)}</text>\n{inner}\n</svg>\n'
    )
