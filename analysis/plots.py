"""The one door to matplotlib: a figure that is painted when it is asked for, as SVG for a page and as SVG and PNG by itself.

No pyplot and no state that is kept: each picture has a figure of its own. Text stays text, ids follow from the picture's name, and no date
is written, so the same numbers make the same bytes. On a page the colours of paper are replaced by the page's own, which follow the
reader's light or dark.

How the arms of a comparison are told apart: never by colour alone, but by colour, dash and mark (Okabe and Ito's colours).

One hue from pale to dark, for maps: read the same in grey and without colour vision.

Which round numbers label an axis, and how a long series is thinned and smoothed.

The kinds of pictures that reports are made of: curves, bars, scores with intervals, small frames in rows.

Maps of cells: numbers by row and column, from pale to dark in one hue, with the numbers written in.

A figure of a report: a picture with its words and its numbers, on the page, as files of its own and as a table.

The course of an emotion, small enough to stand in a line of text.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from analysis.page import PAPER_COLOURS
from simulator.files import write_whole

PIXELS = 100.0
"""Of the page to matplotlib's inch, so that 8 points are 11 pixels."""
TITLE_HEIGHT = 28.0
"""Above a picture by itself."""
DPI = 150
"""Of a PNG: one and a half pixels to a pixel of the page."""
NARROW = 540.0
"""Pictures up to this width shrink with the page; wider ones stay readable, and what the screen cannot hold is scrolled to."""
LEAST, MOST = 0.7, 1.14
"""Of its own width, how far a picture that stands by itself follows the page."""
MARK = "mark"
"""First word of an artist's gid that goes into the SVG: `mark <class> <words>`."""
SMALL, WORDS, HEADING = 8.0, 8.6, 9.4
"""Sizes of letters, points."""
SETTINGS = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": SMALL,
    "svg.fonttype": "none",
    "text.parse_math": False,
    "path.simplify": True,
    "axes.linewidth": 0.7,
    "axes.unicode_minus": False,
}


def hue(name: str) -> str:
    """A colour of the page by name, as it is on paper, in six digits."""
    colour = PAPER_COLOURS[name]
    return colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing that has not been drawn yet."""

    width: float
    height: float
    """Pixels of the page."""
    label: str
    """For those who do not see it."""
    paint: Callable[[Sheet], None]
    is_hero: bool = False
    """Stands by itself on the page, and is not stretched to its width."""

    def render(self, *, name: str, title: str, formats: Sequence[str] = ("svg",)) -> dict[str, bytes]:
        """The picture by itself, on white and with its title, by format (`svg`, `png`)."""
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
            size = self.width / PIXELS, (self.height + TITLE_HEIGHT) / PIXELS
            figure = Figure(figsize=size, dpi=DPI, facecolor="none")
            sheet = Sheet(figure, self.width, self.height)
            sheet.text(6, 17 - TITLE_HEIGHT, title, size=10.0, weight="bold", gid=f"{MARK} title")
            self.paint(sheet)
            found = {}
            for form in formats:
                stream = io.BytesIO()
                ground = {"facecolor": "white"} if form == "png" else {}
                metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
                figure.savefig(stream, format=form, metadata=metadata, **ground)
                found[form] = shortened(stream.getvalue()) if form == "svg" else stream.getvalue()
        return found


class Sheet:
    """What a plot is painted on: places are in pixels from the left and from the top."""

    def __init__(self, figure: Any, width: float, height: float) -> None:
        self.figure, self.width, self.height = figure, width, height

    def axes(self, left: float, top: float, right: float, bottom: float, *, ticks_left: bool = True) -> Any:
        """A frame between these edges, with faint lines to read values at.

        Args:
            ticks_left: the lines are horizontal, for an axis of values on the left; otherwise they are vertical.
        """
        whole = self.height + TITLE_HEIGHT
        place = (left / self.width, (self.height - bottom) / whole, (right - left) / self.width, (bottom - top) / whole)
        axes = self.figure.add_axes(place, facecolor="none")
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(side == "bottom" and ticks_left)
            axes.spines[side].set_color(hue("rule"))
        axes.tick_params(length=0, colors=hue("soft"), labelsize=SMALL, pad=4)
        axes.grid(True, axis="y" if ticks_left else "x", color=hue("rule"), linewidth=0.7)
        axes.set_axisbelow(True)
        return axes

    def line(self, xs: Sequence[float], y: float, **style: Any) -> None:
        """A horizontal line at a place of the sheet."""
        from matplotlib.lines import Line2D

        height = (self.height - y) / (self.height + TITLE_HEIGHT)
        self.figure.add_artist(Line2D([x / self.width for x in xs], [height] * len(xs), transform=self.figure.transFigure, **style))

    def text(self, x: float, y: float, words: str, *, colour: str = "ink", size: float = WORDS, **style: Any) -> None:
        """Words at a place of the sheet."""
        whole = self.height + TITLE_HEIGHT
        self.figure.text(x / self.width, (self.height - y) / whole, words, color=hue(colour), fontsize=size, **style)


def shortened(svg: bytes) -> bytes:
    """The same SVG with places to a hundredth of a point; words and names stay as they are."""
    return TAG.sub(lambda tag: PLACE.sub(lambda place: LONG.sub(rb"\1", place[0]), tag[0]), svg)


TAG = re.compile(rb"<[a-z][^>]*>")
PLACE = re.compile(rb' (?:d|x|y|x1|x2|y1|y2|cx|cy|r|width|height|viewBox|points|transform|style)="[^"]*"')
"""An attribute that says where or how large."""
LONG = re.compile(rb"(\d+\.\d\d)\d+")


def on_the_page(picture: bytes, plot: Plot) -> str:
    """A picture's SVG as it stands on a page: without its title, ids and ground, in the page's colours."""
    text = picture.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(rf'<g id="{MARK} title">.*?</g>', "", text, count=1, flags=re.DOTALL)
    text = re.sub(rf'<g id="{MARK} ([\w-]+) ?([^"]*)">', shown_when_pointed_at, text)
    text = re.sub(r' id="[A-Za-z][A-Za-z0-9]*_\d+"', "", text)
    text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", in_page_colours, text)
    text = re.sub(r" font-family: [^;\"]*;?", "", text)
    text = re.sub(r' transform="rotate\(-?0 [^"]*"', "", text)
    unit = 72.0 / PIXELS
    box = f"0 {TITLE_HEIGHT * unit:g} {plot.width * unit:g} {plot.height * unit:g}"
    bounds = f' style="min-width:{LEAST * plot.width:.0f}px;max-width:{MOST * plot.width:.0f}px"' if plot.is_hero else ""
    kind = f'xmlns:xlink="http://www.w3.org/1999/xlink" class="figure drawn"{bounds}'
    root = f'<svg {kind} viewBox="{box}" role="img" aria-label="{escape(plot.label)}">'
    return re.sub(r"<svg[^>]*>", lambda _: root, text, count=1, flags=re.DOTALL).strip()


def shown_when_pointed_at(match: re.Match[str]) -> str:
    """A group with a class, and the words that a pointer shows."""
    return f'<g class="{match[1]}">' + (f"<title>{match[2]}</title>" if match[2] else "")


def in_page_colours(match: re.Match[str]) -> str:
    """A colour of paper as the page's variable; any other as it is."""
    name = VARIABLES.get(match[2])
    return f"{match[1]}: var(--{name})" if name else match[0]


VARIABLES = {hue(name): name for name in ("before", "rule", "soft", "ink", "ground", "g", "f", "e", "d", "c", "b", "a")}
"""The page's colours by their digits on paper."""


def mark(kind: str, words: str = "") -> str:
    """The gid of an artist that is to be a class, with words to point at."""
    return f"{MARK} {kind} {words}".rstrip()


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


BLUES = ((247, 251, 255), (198, 219, 239), (107, 174, 214), (33, 113, 181), (8, 48, 107))


def blue(share: float) -> str:
    """The colour of a share in [0, 1] of the way from pale to dark."""
    place = share * (len(BLUES) - 1)
    i = min(int(place), len(BLUES) - 2)
    mixed = [round(a + (b - a) * (place - i)) for a, b in zip(BLUES[i], BLUES[i + 1], strict=True)]
    return "#" + "".join(f"{part:02x}" for part in mixed)


MAX_POINTS = 300
"""Longer series are averaged in bins, so that a page stays small."""


def ticks_between(low: float, high: float, *, at_most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers in [low, high], two to `at_most` of them where the range allows.

    Args:
        whole: only whole numbers, for what is counted.
    """
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / at_most))
    steps = [power * factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (power * factor) <= at_most - 1 + 1e-9]
    step = next((step for step in steps if math.isclose(step, round(step))), 1.0) if whole else steps[0]
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """A short form: 250k, 1.5M, 0.05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


def binned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most `MAX_POINTS` points, each the mean of as many neighbours."""
    size = math.ceil(len(xs) / MAX_POINTS)
    cuts = [*range(0, len(xs), size), len(xs)]
    means = [(float(np.mean(xs[i:j])), float(np.mean(ys[i:j]))) for i, j in pairwise(cuts)]
    return [x for x, _ in means], [y for _, y in means]


def running_mean(ys: Sequence[float]) -> list[float]:
    """The mean over a twelfth of the series around each point, narrower at the ends so that it stays centred."""
    half = len(ys) // 24
    return [float(np.mean(ys[i - reach : i + reach + 1])) for i in range(len(ys)) for reach in (min(half, i, len(ys) - 1 - i),)]


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


def sparkline(values: Sequence[float]) -> str:
    """The user's emotion over a dialogue, 0-100, as inline SVG; empty with fewer than two values."""
    if len(values) < 2:
        return ""
    points = " ".join(f"{2 + 92 * i / (len(values) - 1):.1f},{26 - 24 * value / 100:.1f}" for i, value in enumerate(values))
    x, y = points.rpartition(" ")[2].split(",")
    label = f"emotion from {values[0]:g} to {values[-1]:g}"
    drawn = f'<polyline class="line a" points="{points}"/><circle class="dot a" cx="{x}" cy="{y}" r="2.5"/>'
    return f'<svg class="spark" viewBox="0 0 96 28" role="img" aria-label="{label}">{drawn}</svg>'
