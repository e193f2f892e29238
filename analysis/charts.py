"""Figures as inline SVG that follow the page's colours: no script, no fonts to load, sharp on screen and on paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from analysis.axes import HEIGHT, LEFT, WIDTH, Frame, binned, number, running_mean, ticks_between

STYLES = ("a", "b", "c")
"""Classes of the page's style sheet: colour and dash, told apart without colour vision."""
LETTER = 6.2
"""Width of a letter in a drawing, about, so that words can be set in a row."""


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


def line_chart(
    lines: Sequence[Line],
    *,
    x_label: str,
    y_range: tuple[float, float] | None = None,
    width: float = WIDTH,
    levels: Sequence[Level] = (),
    alarms: Sequence[float] = (),
) -> str:
    """Curves over steps or tokens.

    Args:
        y_range: of the axis; None takes the data's, and 0.
        alarms: x of each alarm, drawn as a vertical mark.
    """
    lines = [line for line in lines if len(line.xs)]
    if not lines:
        return '<p class="none">Nothing was recorded.</p>'
    frame = frame_for(lines, y_range, levels, width)
    parts = [grid(frame, x_label=x_label)]
    parts += [alarm_mark(frame, x) for x in alarms]
    parts += [level_line(frame, level) for level in levels]
    for style, line in zip(STYLES, lines, strict=False):
        parts.append(curve(frame, line, style))
    if len(lines) > 1:
        parts.append(legend([(line.name, f"line {style}") for style, line in zip(STYLES, lines, strict=False)]))
    return svg(width, HEIGHT, f"{', '.join(line.name for line in lines)} over {x_label}", parts)


def frame_for(lines: Sequence[Line], y_range: tuple[float, float] | None, levels: Sequence[Level], width: float) -> Frame:
    """Bounds that hold everything, with round numbers at the ends of the y axis."""
    xs = [x for line in lines for x in line.xs]
    ys = [y for line in lines for y in line.ys] + [level.y for level in levels]
    low, high = y_range or (min(ys), max(ys))
    if y_range is None:
        low = min(low, 0.0)
        ticks = ticks_between(low, high if high > low else low + 1.0)
        step = ticks[1] - ticks[0]
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(max(high, low + step) / step - 1e-9) * step
    first, last = min(xs), max(xs)
    first = 0.0 if 0.0 <= first <= 0.1 * last else first
    return Frame(first, last if last > first else first + 1.0, low, high, width)


def grid(frame: Frame, *, x_label: str) -> str:
    """Axes with their numbers, and faint lines to read the values at."""
    parts = []
    for tick in ticks_between(frame.y_low, frame.y_high):
        y = frame.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT:g}" x2="{frame.right:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{number(tick)}</text>')
    for tick in ticks_between(frame.x_low, frame.x_high, at_most=5):
        parts.append(f'<text class="tick" x="{frame.x(tick):.1f}" y="{frame.bottom + 15:g}" text-anchor="middle">{number(tick)}</text>')
    parts.append(f'<text class="axis" x="{frame.right:g}" y="{frame.height - 3:g}" text-anchor="end">{escape(x_label)}</text>')
    return "".join(parts)


def curve(frame: Frame, line: Line, style: str) -> str:
    """A line, or a running mean above the values it is of."""
    xs, ys = binned(line.xs, line.ys)
    if not line.noisy:
        dots = "".join(dot(frame, line, x, y, style) for x, y in zip(xs, ys, strict=True))
        return polyline(frame, xs, ys, f"line {style}") + dots
    return polyline(frame, xs, ys, f"raw {style}") + polyline(frame, xs, running_mean(ys), f"line {style}")


def dot(frame: Frame, line: Line, x: float, y: float, style: str) -> str:
    """A value that can be pointed at."""
    title = f"{escape(line.name)}: {y:.3g} at {number(x)}"
    return f'<circle class="dot {style}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3"><title>{title}</title></circle>'


def polyline(frame: Frame, xs: Sequence[float], ys: Sequence[float], classes: str, *, words: str = "") -> str:
    """Points joined by straight lines; values beyond the frame are held at its edge.

    Args:
        words: shown when it is pointed at.
    """
    held = [min(max(y, frame.y_low), frame.y_high) for y in ys]
    points = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(xs, held, strict=True))
    title = f"<title>{escape(words)}</title>" if words else ""
    return f'<polyline class="{classes}" points="{points}">{title}</polyline>'


def alarm_mark(frame: Frame, x: float) -> str:
    """Where an alarm went off."""
    at = frame.x(min(max(x, frame.x_low), frame.x_high))
    triangle = f"M{at - 4:.1f},{frame.top - 8:g}h8l-4,7z"
    return f'<path class="alarm-mark" d="{triangle}"><title>alarm at step {x:g}</title></path>' + (
        f'<line class="alarm-line" x1="{at:.1f}" x2="{at:.1f}" y1="{frame.top:g}" y2="{frame.bottom:g}"/>'
    )


def level_line(frame: Frame, level: Level) -> str:
    """A dashed line with its name above its right end."""
    y = frame.y(level.y)
    return f'<line class="level" x1="{LEFT:g}" x2="{frame.right:g}" y1="{y:.1f}" y2="{y:.1f}"/>' + (
        f'<text class="tick" x="{frame.right - 2:g}" y="{y - 4:.1f}" text-anchor="end">{escape(level.name)}</text>'
    )


def legend(names: Sequence[tuple[str, str]], *, left: float = LEFT, y: float = 12.0) -> str:
    """What each line or bar is, in a row above the frame.

    Args:
        names: words and classes of the mark before them.
    """
    parts, x = [], left
    for name, classes in names:
        if classes.startswith("bar"):
            parts.append(f'<rect class="{classes}" x="{x:.1f}" y="{y - 7:g}" width="12" height="8"/>')
        else:
            parts.append(f'<line class="{classes}" x1="{x:.1f}" x2="{x + 20:.1f}" y1="{y - 3:g}" y2="{y - 3:g}"/>')
        x += 16.0 if classes.startswith("bar") else 25.0
        parts.append(f'<text class="key" x="{x:.1f}" y="{y:g}">{escape(name)}</text>')
        x += LETTER * len(name) + 14.0
    return "".join(parts)


def bar_chart(groups: Sequence[tuple[str, float | None, float | None]], *, x_label: str, width: float = WIDTH) -> str:
    """Scores before and after, 0-100, side by side.

    Args:
        groups: label, score before, score after; None draws no bar.
    """
    frame = Frame(0.0, float(max(len(groups), 1)), 0.0, 100.0, width)
    parts = [grid_of_bars(frame)]
    for i, (label, before, after) in enumerate(groups):
        for value, style, shift in ((before, "before", 0.16), (after, "after", 0.52)):
            if value is not None:
                parts.append(bar(frame, i + shift, value, style))
        parts.append(f'<text class="tick" x="{frame.x(i + 0.5):.1f}" y="{frame.bottom + 15:g}" text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<text class="axis" x="{frame.right:g}" y="{HEIGHT - 3:g}" text-anchor="end">{escape(x_label)}</text>')
    parts.append(legend([(name, f"bar {name}") for name in ("before", "after")]))
    return svg(width, HEIGHT, f"score before and after, by {x_label}", parts)


def bar(frame: Frame, x: float, value: float, style: str) -> str:
    """A bar with its number on top."""
    left, width, top = frame.x(x), frame.x(x + 0.32) - frame.x(x), frame.y(value)
    return f'<rect class="bar {style}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{frame.y(0.0) - top:.1f}"/>' + (
        f'<text class="value" x="{left + width / 2:.1f}" y="{top - 3:.1f}" text-anchor="middle">{value:.0f}</text>'
    )


def grid_of_bars(frame: Frame) -> str:
    """Faint lines at round scores."""
    return "".join(
        f'<line class="grid" x1="{LEFT:g}" x2="{frame.right:g}" y1="{frame.y(tick):.1f}" y2="{frame.y(tick):.1f}"/>'
        f'<text class="tick" x="{LEFT - 6:g}" y="{frame.y(tick) + 3.5:.1f}" text-anchor="end">{tick}</text>'
        for tick in (0, 25, 50, 75, 100)
    )


def number_line(rows: Sequence[Row]) -> str:
    """Scores with their intervals on one line from 0 to 100, a row each."""
    width, left, height = 720.0, 190.0, 34.0
    right = width - 60.0

    def x(value: float) -> float:
        return left + (right - left) * value / 100.0

    bottom = height * len(rows)
    parts = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="4" y2="{bottom:g}"/>'
        f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 14:g}" text-anchor="middle">{tick}</text>'
        for tick in (0, 25, 50, 75, 100)
    ]
    for i, row in enumerate(rows):
        y = height * (i + 0.5)
        parts.append(f'<text class="row {row.style}" x="{left - 14:g}" y="{y + 4:.1f}" text-anchor="end">{escape(row.name)}</text>')
        if row.low is not None and row.high is not None:
            parts.append(f'<line class="interval {row.style}" x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<circle class="point {row.style}" cx="{x(row.value):.1f}" cy="{y:.1f}" r="6"/>')
        parts.append(f'<text class="row {row.style}" x="{right + 16:g}" y="{y + 4:.1f}">{row.value:.1f}</text>')
    return svg(width, bottom + 18.0, "held-out scores, 0 to 100", parts, classes="figure hero")


def sparkline(values: Sequence[float]) -> str:
    """The user's emotion over a dialogue, 0-100, small enough to stand in a line of text."""
    if len(values) < 2:
        return ""
    points = " ".join(f"{2 + 92 * i / (len(values) - 1):.1f},{26 - 24 * value / 100:.1f}" for i, value in enumerate(values))
    last = points.rpartition(" ")[2].split(",")
    parts = [f'<polyline class="line a" points="{points}"/><circle class="dot a" cx="{last[0]}" cy="{last[1]}" r="2.5"/>']
    return svg(96.0, 28.0, f"emotion from {values[0]:g} to {values[-1]:g}", parts, classes="spark")


def svg(width: float, height: float, label: str, parts: Sequence[str], *, classes: str = "figure") -> str:
    """The drawing, with words for those who do not see it."""
    return f'<svg class="{classes}" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
