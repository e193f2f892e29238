"""The kinds of pictures that reports are made of: curves, bars, scores with intervals, small frames in rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from analysis.drawing.arm_looks import DASHES, LETTER
from analysis.drawing.canvas import HEADING, SMALL, WORDS, Plot, Sheet, hue, mark
from analysis.drawing.ticks import binned, number, running_mean, ticks_between

WIDTH, WIDE, FULL, HEIGHT = 360.0, 520.0, 1080.0, 224.0
"""Of a picture, three, two or one in a row of the page, pixels."""
LEFT, RIGHT, TOP, BOTTOM = 42.0, 12.0, 30.0, 38.0
"""Margins for the axes' numbers, and above for the legend."""
FEW = 3
"""Points from which a line is seen without dots."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One curve."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    noisy: bool = True
    """Draw the values pale beneath their running mean; otherwise join them and mark each."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A horizontal line to compare with."""

    name: str
    y: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One score on the number line."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    style: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Single values with their mean and its interval, in a row."""

    name: str
    values: Sequence[float]
    mean: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    """To the right of the row."""


@dataclass(frozen=True, kw_only=True)
class Stroke:
    """A curve in a small frame."""

    xs: Sequence[float]
    ys: Sequence[float]
    kind: str
    """`others`, `seed` or `mean`."""
    words: str = ""
    """Shown when it is pointed at."""


STROKES: dict[str, dict[str, Any]] = {
    "others": {"color": hue("before"), "linewidth": 0.7, "alpha": 0.5},
    "seed": {"color": hue("a"), "linewidth": 0.8, "alpha": 0.6},
    "mean": {"color": hue("a"), "linewidth": 1.8},
}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A small frame with its curves."""

    title: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    strokes: Sequence[Stroke]
    subtitle: str = ""
    bands: Sequence[tuple[Sequence[float], Sequence[float], Sequence[float]]] = field(default=())
    """x, lower and upper bound of shaded areas."""
    alarms: Sequence[float] = ()
    """x of each, marked by a triangle above the frame."""


def set_ranges(
    axes: Any, x_range: tuple[float, float], y_range: tuple[float, float], *, num_x: int = 5, num_y: int = 6, whole_x: bool = False
) -> None:
    """Bounds of a frame, with round numbers on its axes.

    Args:
        whole_x: x counts steps or tokens, and its numbers are whole.
    """
    axes.set_xlim(*x_range)
    axes.set_ylim(*y_range)
    for axis, bounds, most, whole in ((axes.xaxis, x_range, num_x, whole_x), (axes.yaxis, y_range, num_y, False)):
        places = ticks_between(*bounds, at_most=most, whole=whole)
        axis.set_ticks(places, [number(place) for place in places])


def dots_of_few(num_points: int) -> dict[str, Any]:
    """Dots on a line of so few points that it is hard to see, or not there at all."""
    return {"marker": ".", "markersize": 6.0} if num_points < FEW else {}


def alarm_mark(axes: Any, x: float) -> None:
    """A triangle above the frame."""
    place = axes.get_xaxis_transform()
    axes.plot([x], [1.03], marker="v", color=hue("b"), markersize=4.5, clip_on=False, transform=place, gid=mark("alarm-mark"))


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_range: tuple[float, float] | None = None,
    width: float = WIDTH,
    levels: Sequence[Level] = (),
    alarms: Sequence[float] = (),
) -> Plot | None:
    """Curves over steps or tokens; None without any.

    Args:
        y_range: of the axis; None takes the data's, and 0.
        alarms: x of each alarm, drawn as a vertical line with a triangle.
    """
    drawn = [line for line in lines if len(line.xs)]
    if not drawn:
        return None

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(LEFT, TOP, width - RIGHT, HEIGHT - BOTTOM)
        set_ranges(axes, x_bounds(drawn), y_range or y_bounds(drawn, levels), whole_x=True)
        sheet.text(width - RIGHT, HEIGHT - 3, x_label, colour="soft", ha="right")
        for x in alarms:
            axes.axvline(x, color=hue("b"), linewidth=0.8, linestyle=(0, (3, 3)), alpha=0.7)
            alarm_mark(axes, x)
        for level in levels:
            axes.axhline(level.y, color=hue("soft"), linewidth=0.8, linestyle=(0, (2, 3)))
            axes.annotate(level.name, (1.0, level.y), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=hue("soft"))
        for colour, line in zip(DASHES, drawn, strict=False):
            curve(axes, line, colour)
        if len(drawn) > 1:
            axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.05), ncols=len(drawn), **LEGEND)

    return Plot(width=width, height=HEIGHT, label=f"{', '.join(line.name for line in drawn)} over {x_label}", paint=paint)


LEGEND: dict[str, Any] = {
    "frameon": False,
    "handlelength": 2.2,
    "borderpad": 0.1,
    "columnspacing": 1.2,
    "labelcolor": hue("soft"),
    "fontsize": WORDS,
}


def curve(axes: Any, line: Line, colour: str) -> None:
    """A line, or a running mean above the values it is of."""
    xs, ys = binned(line.xs, line.ys)
    style: dict[str, Any] = {
        "color": hue(colour),
        "linestyle": DASHES[colour],
        "linewidth": 1.5,
        "label": line.name,
        "gid": mark("line", line.name),
    }
    if not line.noisy:
        axes.plot(xs, ys, marker="o", markersize=4, **style)
        return
    axes.plot(xs, ys, color=hue(colour), linewidth=0.8, alpha=0.32)
    axes.plot(xs, running_mean(ys), **dots_of_few(len(xs)), **style)


def x_bounds(lines: Sequence[Line]) -> tuple[float, float]:
    """From the first to the last value, from 0 where that is not far."""
    xs = [x for line in lines for x in line.xs]
    first, last = float(min(xs)), float(max(xs))
    first = 0.0 if 0.0 <= first <= 0.1 * last else first
    return first, last if last > first else first + 1.0


def y_bounds(lines: Sequence[Line], levels: Sequence[Level]) -> tuple[float, float]:
    """Round numbers that hold everything, and 0."""
    ys = [y for line in lines for y in line.ys] + [level.y for level in levels]
    low, high = min(*ys, 0.0), max(ys)
    ticks = ticks_between(low, high if high > low else low + 1.0)
    step = ticks[1] - ticks[0]
    return math.floor(low / step + 1e-9) * step, math.ceil(max(high, low + step) / step - 1e-9) * step


def bar_chart(groups: Sequence[tuple[str, float | None, float | None]], *, x_label: str, width: float = WIDTH) -> Plot | None:
    """Scores before and after, 0-100, side by side; None without groups.

    Args:
        groups: label, score before, score after; None draws no bar.
    """
    if not groups:
        return None

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(LEFT, TOP, width - RIGHT, HEIGHT - BOTTOM)
        axes.set_xlim(-0.6, len(groups) - 0.4)
        axes.set_ylim(0.0, 100.0)
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.set_xticks(range(len(groups)), [label for label, _, _ in groups])
        for place, colour, name in ((1, "before", "before"), (2, "a", "after")):
            shown = [(i + 0.34 * (place - 1.5), group[place]) for i, group in enumerate(groups) if group[place] is not None]
            bars = axes.bar([x for x, _ in shown], [y for _, y in shown], width=0.32, color=hue(colour), label=name)
            axes.bar_label(bars, fmt="%.0f", padding=2, color=hue("ink"), fontsize=SMALL)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.05), ncols=2, **LEGEND)
        sheet.text(width - RIGHT, HEIGHT - 3, x_label, colour="soft", ha="right")

    return Plot(width=width, height=HEIGHT, label=f"score before and after, by {x_label}", paint=paint)


def number_line(rows: Sequence[Row]) -> Plot:
    """Scores with their intervals on one line from 0 to 100, a row each."""
    width, left, step = 720.0, 190.0, 34.0
    colours = {"plain": "soft", "before": "before", "after": "a"}

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(left, 4, width - 60, step * len(rows), ticks_left=False)
        rows_of(axes, len(rows), (0.0, 100.0))
        axes.set_xticks([0, 25, 50, 75, 100])
        for i, row in enumerate(rows):
            colour = hue(colours[row.style])
            if row.low is not None and row.high is not None:
                axes.plot([row.low, row.high], [i, i], color=colour, linewidth=3.2, alpha=0.45, solid_capstyle="round")
            face = hue("ground") if row.style == "plain" else colour
            axes.plot(
                [row.value], [i], marker="o", markersize=7, color=colour, markerfacecolor=face, gid=mark("point", row.name), clip_on=False
            )
            weight = "bold" if row.style == "after" else "normal"
            y = 4 + (step * len(rows) - 4) * (i + 0.5) / len(rows) + 4
            sheet.text(left - 14, y, row.name, ha="right", size=HEADING, weight=weight, colour="soft" if row.style == "plain" else "ink")
            sheet.text(width - 44, y, f"{row.value:.1f}", size=HEADING, weight=weight)

    return Plot(width=width, height=step * len(rows) + 22.0, label="held-out scores, 0 to 100", paint=paint, is_hero=True)


def rows_of(axes: Any, num: int, x_range: tuple[float, float]) -> None:
    """A frame of rows, the first on top, without numbers on the left."""
    axes.set_xlim(*x_range)
    axes.set_ylim(num - 0.5, -0.5)
    axes.set_yticks([])


def dot_rows(
    rows: Sequence[Dots],
    *,
    label: str,
    x_label: str,
    zero: float | None = None,
    width: float = WIDE,
    within: tuple[float, float] | None = None,
    is_hero: bool = False,
) -> Plot | None:
    """A row for each arm or contrast: every run a small ring, the mean a dot on its interval; None without rows.

    Args:
        zero: draw a line there.
        within: bounds of the axis; an interval that leaves them ends in an arrow. None takes all values and intervals.
        is_hero: it stands by itself on the page.
    """
    if not rows:
        return None
    found = [value for row in rows for value in (*row.values, row.mean, row.low, row.high, zero) if value is not None]
    low, high = within or (min(found), max(found))
    pad = 0.04 * (high - low or 1.0)
    low, high = low - pad, high + pad
    step, top = 30.0, 8.0
    left = 24.0 + LETTER * 1.1 * max(len(row.name) for row in rows)
    right = width - 24.0 - LETTER * 1.1 * max(len(row.note) for row in rows)
    bottom = top + step * len(rows)

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(left, top, right, bottom, ticks_left=False)
        rows_of(axes, len(rows), (low, high))
        places = ticks_between(low, high)
        axes.set_xticks(places, [number(place) for place in places])
        if zero is not None:
            axes.axvline(zero, color=hue("soft"), linewidth=1.0)
        for i, row in enumerate(rows):
            if row.low is not None and row.high is not None:
                axes.plot(
                    [max(row.low, low), min(row.high, high)], [i, i], color=hue("a"), linewidth=3.0, alpha=0.45, solid_capstyle="round"
                )
                for place, sign, cut in ((low, "<", row.low < low), (high, ">", row.high > high)):
                    if cut:
                        axes.plot([place], [i], marker=sign, color=hue("a"), markersize=6, clip_on=False, gid=mark("arrow"))
            axes.plot(
                row.values,
                [i] * len(row.values),
                "o",
                markersize=4.6,
                markerfacecolor=hue("ground"),
                color=hue("a"),
                gid=mark("run", row.name),
            )
            axes.plot([row.mean], [i], "o", markersize=7, color=hue("a"), gid=mark("point", row.name))
            sheet.text(left - 14, top + step * (i + 0.5) + 4, row.name, ha="right")
            sheet.text(right + 14, top + step * (i + 0.5) + 4, row.note)
        sheet.text(right, bottom + 30, x_label, colour="soft", ha="right")

    return Plot(width=width, height=bottom + 36.0, label=label, paint=paint, is_hero=is_hero)


def lattice(panels: Sequence[Panel], *, columns: int, x_label: str, label: str, size: tuple[float, float] = (270.0, 168.0)) -> Plot | None:
    """Small frames of one size in rows, over steps or tokens; None without any."""
    if not panels:
        return None
    wide, tall = size
    num_rows = -(-len(panels) // columns)

    def paint(sheet: Sheet) -> None:
        for i, panel in enumerate(panels):
            x, y = wide * (i % columns), tall * (i // columns)
            axes = sheet.axes(x + LEFT, y + 26, x + wide - 20, y + tall - 36)
            set_ranges(axes, panel.x_range, panel.y_range, num_x=4, num_y=5, whole_x=True)
            for xs, lows, highs in panel.bands:
                axes.fill_between(xs, lows, highs, color=hue("a"), alpha=0.16, linewidth=0)
            for stroke in panel.strokes:
                if len(stroke.xs):
                    look = STROKES[stroke.kind] | dots_of_few(len(stroke.xs))
                    axes.plot(stroke.xs, stroke.ys, **look, gid=mark(stroke.kind, stroke.words))
            for at in panel.alarms:
                alarm_mark(axes, at)
            sheet.text(x + (8 if panel.subtitle else LEFT), y + 14, panel.title, size=HEADING, weight="bold")
            if panel.subtitle and has_room_beside(panel, wide - 28.0):
                sheet.text(x + wide - 20, y + 14, panel.subtitle, colour="soft", ha="right")
            if i >= len(panels) - columns:
                sheet.text(x + wide - 20, y + tall - 3, x_label, colour="soft", ha="right")

    return Plot(width=wide * columns, height=tall * num_rows, label=label, paint=paint)


def has_room_beside(panel: Panel, width: float) -> bool:
    """Whether title and subtitle fit above a frame without touching."""
    return 1.22 * LETTER * len(panel.title) + LETTER * len(panel.subtitle) + 2 * LETTER <= width
