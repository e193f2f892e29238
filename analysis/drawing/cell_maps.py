"""Maps of cells: numbers by row and column, from pale to dark in one hue, with the numbers written in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from analysis.drawing.canvas import HEADING, Plot, Sheet
from analysis.drawing.hues import blue
from analysis.drawing.plots import FULL

ON_DARK = "#fefefe"


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Numbers by row and column."""

    values: Mapping[tuple[str, str], float]
    title: str = ""


def maps(
    heats: Sequence[Heat],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    low: float,
    high: float,
    x_label: str,
    label: str,
    in_a_row: int,
    cell: tuple[float, float] = (34.0, 21.0),
    form: str = "{:.0f}",
    every: int = 1,
) -> Plot | None:
    """Maps side by side, dark where numbers are high, empty where nothing was measured; None without any.

    Args:
        low, high: values of the palest and of the darkest colour.
        in_a_row: maps beside each other.
        cell: width and height of a cell, pixels.
        form: of the number in a cell; empty writes none.
        every: label only every so many columns.
    """
    if not heats or not rows or not columns:
        return None
    left, top = 100.0, 24.0 if any(heat.title for heat in heats) else 6.0
    wide, tall = cell
    width = max(left + wide * len(columns) + 10.0, FULL / in_a_row)
    height = top + tall * len(rows) + 40.0

    def paint(sheet: Sheet) -> None:
        for i, heat in enumerate(heats):
            x, y = width * (i % in_a_row), height * (i // in_a_row)
            axes = sheet.axes(x + left, y + top, x + left + wide * len(columns), y + top + tall * len(rows))
            axes.grid(False)
            axes.spines["bottom"].set_visible(False)
            axes.set_xlim(0, len(columns))
            axes.set_ylim(len(rows), 0)
            axes.set_yticks([r + 0.5 for r in range(len(rows))], rows)
            axes.set_xticks([c + 0.5 for c in range(0, len(columns), every)], list(columns)[::every])
            for (r, row), (c, column) in product(enumerate(rows), enumerate(columns)):
                value = heat.values.get((row, column))
                if value is None:
                    continue
                share = min(max((value - low) / (high - low), 0.0), 1.0)
                axes.bar([c + 0.5], [0.95], width=0.97, bottom=r, color=blue(share), linewidth=0)
                if form:
                    axes.text(
                        c + 0.5,
                        r + 0.5,
                        form.format(value),
                        ha="center",
                        va="center",
                        fontsize=7.4,
                        color=ON_DARK if share > 0.55 else "#1b1f24",
                    )
            sheet.text(x + left, y + 14, heat.title, size=HEADING, weight="bold")
            sheet.text(x + left + wide * len(columns), y + height - 8, x_label, colour="soft", ha="right")

    num_rows = -(-len(heats) // in_a_row)
    return Plot(width=width * in_a_row, height=height * num_rows, label=label, paint=paint)
