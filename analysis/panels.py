"""Drawings of several arms: small frames side by side, each arm's seeds before the other arms, dots with intervals, maps of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from analysis.axes import LEFT, WIDE, Frame, number, ticks_between
from analysis.charts import LETTER, grid, polyline, svg

BLUES = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))
"""One hue from pale to dark: read the same in grey and without colour vision."""
COLOURS = ("a", "b", "c", "d", "e", "f", "g")
"""Classes that have a colour and a dash of their own."""
MARKS = {"": "", "dots": "●", "squares": "■", "triangles": "▲"}
"""What stands on a line beside its colour and dash, and before its name, so that more arms than colours are told apart without colour."""
STYLES = tuple(f"{colour} {mark}".strip() for mark in MARKS for colour in COLOURS)
"""Classes of arms that are told apart in one frame; any further arm is pale."""
NUM_MARKS = 8
"""Marks on a line, at most."""


@dataclass(frozen=True, kw_only=True)
class Stroke:
    """A curve in a frame."""

    xs: Sequence[float]
    ys: Sequence[float]
    classes: str = "seed"
    words: str = ""
    """Shown when it is pointed at."""


@dataclass(frozen=True, kw_only=True)
class Ribbon:
    """An area between two curves."""

    xs: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    classes: str = "band"


def panel(
    frame: Frame,
    strokes: Sequence[Stroke],
    *,
    title: str,
    x_label: str,
    subtitle: str = "",
    ribbons: Sequence[Ribbon] = (),
    alarms: Sequence[float] = (),
) -> str:
    """A frame with its curves, to be placed in a drawing.

    Args:
        subtitle: beside the title, smaller.
        alarms: x of each, marked by a triangle above the frame.
    """
    words = f'{escape(title)} <tspan class="subtitle">{escape(subtitle)}</tspan>' if subtitle else escape(title)
    parts = [f'<text class="heading" x="{8 if subtitle else LEFT:g}" y="13">{words}</text>', grid(frame, x_label=x_label)]
    parts += [ribbon(frame, item) for item in ribbons]
    for stroke in strokes:
        if len(stroke.xs):
            parts.append(polyline(frame, stroke.xs, stroke.ys, stroke.classes, words=stroke.words))
    parts += [f'<path class="alarm-mark" d="M{frame.x(x) - 4:.1f},{frame.top - 8:g}h8l-4,7z"/>' for x in alarms]
    return "".join(parts)


def ribbon(frame: Frame, item: Ribbon) -> str:
    """The area, held within the frame."""
    upper = [(x, y) for x, y in zip(item.xs, item.highs, strict=True)]
    lower = [(x, y) for x, y in zip(item.xs, item.lows, strict=True)][::-1]
    points = " ".join(f"{frame.x(x):.1f},{frame.y(min(max(y, frame.y_low), frame.y_high)):.1f}" for x, y in upper + lower)
    return f'<polygon class="{item.classes}" points="{points}"/>'


def tiled(panels: Sequence[str], *, columns: int, width: float, height: float, label: str) -> str:
    """Panels of one size in rows, as one drawing that is as wide as a full row."""
    placed = [
        f'<g transform="translate({width * (i % columns):g},{height * (i // columns):g})">{panel}</g>' for i, panel in enumerate(panels)
    ]
    rows = -(-len(panels) // columns)
    return svg(width * columns, height * rows, label, placed)


def mark_of(style: str) -> str:
    """The mark of a line of this style; empty for none."""
    return MARKS[style.partition(" ")[2]]


def marks(frame: Frame, xs: Sequence[float], ys: Sequence[float], style: str, *, start: int = 0) -> str:
    """The marks on a line, spread over it; none for a style without.

    Args:
        start: the first point that may have one, so that lines of one mark have theirs at different places.
    """
    every = -(-len(xs) // NUM_MARKS) or 1
    places = list(zip(xs, ys, strict=True))[start % every :: every]
    return "".join(mark_at(frame.x(x), frame.y(min(max(y, frame.y_low), frame.y_high)), style) for x, y in places)


def mark_at(x: float, y: float, style: str) -> str:
    """One mark of a style, drawn; empty for a style without."""
    shapes = {
        "●": "m-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
        "■": "m-3.5,-3.5h7v7h-7z",
        "▲": "m0,-4.5l4.5,8h-9z",
    }
    shape = shapes.get(mark_of(style))
    return f'<path class="dot {style}" d="M{x:.1f},{y:.1f}{shape}"/>' if shape else ""


def sample(x: float, y: float, style: str) -> str:
    """A short piece of a line of this style, 22 wide."""
    line = f'<line class="line {style}" x1="{x:.1f}" x2="{x + 22:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + mark_at(x + 11, y, style)


def label_width(names: Sequence[str]) -> float:
    """What the longest name needs beside a piece of its line."""
    return 42.0 + 1.15 * LETTER * max((len(name) for name in names), default=0)


def end_labels(frame: Frame, ends: Sequence[tuple[str, float, str]], *, gap: float = 13.0) -> str:
    """Names beside the ends of curves, moved apart where they would overlap.

    Args:
        ends: name, value at the end, class of its colour.
    """
    ordered = sorted(ends, key=lambda end: -end[1])
    ys: list[float] = []
    for _, value, _ in ordered:
        ys.append(max(frame.y(value), ys[-1] + gap if ys else frame.top))
    overflow = ys[-1] - frame.bottom if ys else 0.0
    if overflow > 0:
        for i in range(len(ys) - 1, -1, -1):
            ys[i] = min(ys[i], (ys[i + 1] if i + 1 < len(ys) else frame.bottom + gap) - gap)
    return "".join(
        sample(frame.right + 6, y, style) + f'<text class="key {style}" x="{frame.right + 33:g}" y="{y + 4:.1f}">{escape(name)}</text>'
        for (name, _, style), y in zip(ordered, ys, strict=True)
    )


def key_column(frame: Frame, names: Sequence[tuple[str, str]], *, step: float = 17.0) -> str:
    """What each line is, one below the other to the right of the frame.

    Args:
        names: name and class of the colour, the topmost first.
    """
    x, parts = frame.right + 10.0, []
    for i, (name, style) in enumerate(names):
        y = frame.top + 8.0 + step * i
        parts.append(sample(x, y - 4, style))
        parts.append(f'<text class="key" x="{x + 27:g}" y="{y:g}">{escape(name)}</text>')
    return "".join(parts)


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


def dot_rows(
    rows: Sequence[Dots],
    *,
    label: str,
    x_label: str,
    zero: float | None = None,
    width: float = 720.0,
    within: tuple[float, float] | None = None,
) -> str:
    """A row for each arm or contrast: every run a small ring, the mean a dot on its interval.

    Args:
        zero: draw a line there.
        within: bounds of the axis; an interval that leaves them ends in an arrow. None takes all values and intervals.
    """
    left = 24.0 + LETTER * 1.1 * max(len(row.name) for row in rows)
    right = width - 24.0 - LETTER * 1.1 * max(len(row.note) for row in rows)
    found = [value for row in rows for value in (*row.values, row.mean, row.low, row.high, zero) if value is not None]
    low, high = within or (min(found), max(found))
    pad = 0.04 * (high - low or 1.0)
    low, high = low - pad, high + pad
    step, top = 30.0, 8.0
    bottom = top + step * len(rows)

    def x(value: float) -> float:
        return left + (right - left) * (min(max(value, low), high) - low) / (high - low)

    parts = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top:g}" y2="{bottom:g}"/>'
        f'<text class="tick" x="{x(tick):.1f}" y="{bottom + 14:g}" text-anchor="middle">{number(tick)}</text>'
        for tick in ticks_between(low, high)
    ]
    if zero is not None:
        parts.append(f'<line class="zero" x1="{x(zero):.1f}" x2="{x(zero):.1f}" y1="{top:g}" y2="{bottom:g}"/>')
    for i, row in enumerate(rows):
        y = top + step * (i + 0.5)
        parts.append(f'<text class="label" x="{left - 14:g}" y="{y + 4:.1f}" text-anchor="end">{escape(row.name)}</text>')
        if row.low is not None and row.high is not None:
            parts.append(f'<line class="interval after" x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts += [
                arrow(x(bound), y, side) for bound, side, cut in ((row.low, -1, row.low < low), (row.high, 1, row.high > high)) if cut
            ]
        parts += [
            f'<circle class="run" cx="{x(value):.1f}" cy="{y:.1f}" r="3.4"><title>{value:.4g}</title></circle>' for value in row.values
        ]
        parts.append(f'<circle class="point after" cx="{x(row.mean):.1f}" cy="{y:.1f}" r="5.5"/>')
        parts.append(f'<text class="label" x="{right + 14:g}" y="{y + 4:.1f}">{escape(row.note)}</text>')
    parts.append(f'<text class="axis" x="{right:g}" y="{bottom + 29:g}" text-anchor="end">{escape(x_label)}</text>')
    return svg(width, bottom + 34.0, label, parts, classes="figure hero" if width > WIDE else "figure")


def arrow(x: float, y: float, side: int) -> str:
    """The end of an interval that goes on beyond the axis; side is -1 for the left."""
    return f'<path class="alarm-mark" d="M{x + 6 * side:.1f},{y:.1f}l{-7 * side},-5v10z"/>'


def cell_map(
    values: Mapping[tuple[str, str], float],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    low: float,
    high: float,
    form: str = "{:.0f}",
    size: tuple[float, float] = (34.0, 21.0),
    left: float = 92.0,
    x_label: str = "",
    every: int = 1,
) -> str:
    """A map of numbers, dark where they are high, to be placed in a drawing; an empty cell was not measured.

    Args:
        values: by row and column.
        low, high: values of the palest and of the darkest colour.
        form: of the number in a cell; empty writes none.
        every: label only every so many columns.
    """
    wide, tall = size
    top = 22.0
    parts = [f'<text class="heading" x="{left:g}" y="13">{escape(title)}</text>']
    for i, row in enumerate(rows):
        y = top + tall * i
        parts.append(f'<text class="tick" x="{left - 6:g}" y="{y + tall / 2 + 4:.1f}" text-anchor="end">{escape(row)}</text>')
        for j, column in enumerate(columns):
            value = values.get((row, column))
            if value is None:
                continue
            share = min(max((value - low) / (high - low), 0.0), 1.0)
            x = left + wide * j
            words = f"<title>{escape(row)}, {escape(column)}: {value:.3g}</title>"
            parts.append(f'<rect fill="{blue(share)}" x="{x:g}" y="{y:g}" width="{wide - 1:g}" height="{tall - 1:g}">{words}</rect>')
            if form:
                on_dark = " on-dark" if share > 0.55 else ""
                middle = f'x="{x + wide / 2:g}" y="{y + tall / 2 + 3.5:.1f}" text-anchor="middle"'
                parts.append(f'<text class="in-cell{on_dark}" {middle}>{form.format(value)}</text>')
    bottom = top + tall * len(rows)
    parts += [
        f'<text class="tick" x="{left + wide * (j + 0.5):g}" y="{bottom + 13:g}" text-anchor="middle">{escape(column)}</text>'
        for j, column in enumerate(columns)
        if j % every == 0
    ]
    parts.append(f'<text class="axis" x="{left + wide * len(columns):g}" y="{bottom + 28:g}" text-anchor="end">{escape(x_label)}</text>')
    return "".join(parts)


def blue(share: float) -> str:
    """The colour of a share in [0, 1] of the way from pale to dark."""
    place = share * (len(BLUES) - 1)
    i = min(int(place), len(BLUES) - 2)
    mixed = [round(a + (b - a) * (place - i)) for a, b in zip(BLUES[i], BLUES[i + 1], strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)
