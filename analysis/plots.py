"""Figures of reports: matplotlib pictures with a caption and their numbers, as SVG on a page and as SVG, PNG and CSV files.

The same numbers make the same bytes: ids follow from the figure's name, and no date is written.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise, product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from markupsafe import Markup

from simulator.files import write_whole

PAPER = {
    "ground": "#ffffff", "panel": "#ffffff", "ink": "#000000", "soft": "#444444", "rule": "#cccccc",
    "a": "#0072b2", "b": "#c24e00", "c": "#00805d", "d": "#a8407f", "e": "#8a6d00", "f": "#3f8ec4", "g": "#555555",
    "before": "#9aa7b4", "user": "#f2f6fa", "agent": "#ffffff",
}  # fmt: skip
"""For print and for picture files. `a` to `g` distinguish lines and are readable on white."""
BLUES = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""Of a map, from low to high; monotone in lightness."""
DASHES: dict[str, Any] = {
    "a": "-",
    "b": (0, (5, 2)),
    "c": (0, (1.4, 1.8)),
    "d": (0, (6, 2, 1.4, 2)),
    "e": (0, (9, 2.5)),
    "f": (0, (3, 1.4)),
    "g": (0, (1, 3)),
}
"""A dash for each colour, so that no line is known by colour alone."""

FOLDER = "figures"
"""Holds `<name>.svg`, `<name>.png` and `<name>.csv` of each figure, next to the page."""
SMALL, WIDE, FULL = (360, 224), (520, 224), (1080, 280)
"""Width and height in pixels of a figure, with three, two or one in a row of the page."""

Draw = Callable[[Any], None]
"""Draws on matplotlib's Axes."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture that can be read without the text around it."""

    name: str
    """Of its files."""
    title: str
    draw: Draw | None
    """None where there is nothing to draw."""
    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    """The numbers in the picture, not thinned."""
    size: tuple[float, float] = SMALL
    """Width and height, pixels."""
    nothing: str = "Nothing was recorded."
    """Shown where there is no picture."""
    title_height: ClassVar[float] = 0.28
    """Above the picture, inches."""
    pixels: ClassVar[int] = 100
    """Of a page to matplotlib's inch."""

    def render(self, *formats: str) -> list[bytes]:
        """The picture with its title in each format, `svg` or `png`."""
        import matplotlib
        from matplotlib.figure import Figure as Canvas

        assert self.draw is not None
        style = {
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "font.size": 8,
            "text.parse_math": False,
            "svg.fonttype": "none",
            "axes.spines.left": False,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.edgecolor": PAPER["rule"],
            "axes.labelcolor": PAPER["soft"],
            "axes.labelsize": 8,
            "axes.linewidth": 0.7,
            "axes.unicode_minus": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "axes.xmargin": 0.01,
            "xaxis.labellocation": "right",
            "grid.color": PAPER["rule"],
            "grid.linewidth": 0.7,
            "legend.frameon": False,
            "legend.labelcolor": PAPER["soft"],
            "legend.handlelength": 2.4,
            "legend.borderpad": 0.1,
            **{f"{axis}tick.{name}": value for axis in "xy" for name, value in (("major.size", 0), ("color", PAPER["soft"]))},
            "svg.hashsalt": self.name,
        }
        height = self.size[1] / self.pixels + self.title_height
        with matplotlib.rc_context(style):
            canvas = Canvas(figsize=(self.size[0] / self.pixels, height), dpi=150, layout="constrained", facecolor="white")
            canvas.get_layout_engine().set(rect=(0.0, 0.0, 1.0, 1.0 - self.title_height / height))
            canvas.text(0.01, 1.0 - 0.06 / height, self.title, va="top", fontsize=10, fontweight="bold", gid=mark("title"))
            self.draw(canvas.subplots())
            canvas.draw_without_rendering()
            canvas.set_layout_engine("none")
            pictures = []
            for form in formats:
                stream = io.BytesIO()
                metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
                canvas.savefig(stream, format=form, metadata=metadata, transparent=form == "svg")
                pictures.append(stream.getvalue())
        return pictures

    @cached_property
    def pictures(self) -> list[bytes]:
        """SVG and PNG."""
        return self.render("svg", "png")

    def svg(self) -> Markup:
        """The picture for a page: without its title, in the page's colours, which follow light and dark mode, with words shown on hover."""
        picture = self.pictures[0].decode()
        picture = re.sub(r"\s*<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", picture[picture.index("<svg") :], flags=re.DOTALL)
        picture = re.sub(r'<g id="mark title">.*?</g>', "", picture, count=1, flags=re.DOTALL)
        picture = re.sub(r'<g id="mark ([\w-]+) ?([^"]*)">', r'<g class="\1"><title>\2</title>', picture)
        picture = re.sub(r' id="[A-Za-z][A-Za-z0-9]*_\d+"| font-family: [^;"]*;?', "", picture)
        # The page's CSS variables by the colour on paper.
        variables = {PAPER[name]: f"var(--{name})" for name in ("before", "rule", "soft", "ink", "ground", *reversed(DASHES))}
        picture = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", lambda m: f"{m[1]}: {variables.get(m[2], m[2])}", picture)
        # Coordinates to a hundredth of a point.
        picture = re.sub(r"<(?:path|use|text)[^>]*>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), picture)
        width, height = self.size
        box = " ".join(f"{72 * length:g}" for length in (0.0, self.title_height, width / self.pixels, height / self.pixels))
        bounds = f"min-width:{0.7 * width:.0f}px;max-width:{1.15 * width:.0f}px"
        root = f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" class="figure drawn" style="{bounds}" viewBox="{box}"'
        root = f'{root} role="img" aria-label="{escape(self.title)}">'
        return Markup(re.sub(r"<svg[^>]*>", lambda _: root, picture, count=1))


def write_figures(folder: Path, figures: Iterable[Figure]) -> None:
    """Writes each figure that has a picture into `figures/` of a page's folder, as SVG, PNG and CSV."""
    for figure in figures:
        if figure.draw is not None:
            (folder / FOLDER).mkdir(exist_ok=True)
            for form, picture in zip(("svg", "png"), figure.pictures, strict=True):
                write_whole(folder / FOLDER / f"{figure.name}.{form}", picture)
            write_whole(folder / FOLDER / f"{figure.name}.csv", as_csv(figure.header, figure.rows))


def arm_styles(arms: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's line properties by arm: seven colours with their dashes, then the same with a marker; 42 differ."""
    colours, markers, styles = list(DASHES), ("", "o", "s", "^", "D", "v"), {}
    for i, arm in enumerate(arms):
        colour = colours[i % len(colours)]
        styles[arm] = {"color": PAPER[colour], "linestyle": DASHES[colour]}
        if marker := markers[i // len(colours) % len(markers)]:
            styles[arm] |= {"marker": marker, "markersize": 4.6, "markevery": 0.12}
    return styles


def as_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV, numbers to ten digits; a cell is empty where a value is None or not finite."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        known = ["" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value for value in row]
        writer.writerow([f"{value:.10g}" if isinstance(value, float) else value for value in known])
    return text.getvalue()


def mark(kind: str, words: str = "") -> str:
    """The gid of an artist: its class in the SVG, and the words shown on hover."""
    return f"mark {kind} {words}".rstrip()


class Line(NamedTuple):
    """A curve."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


class Dots(NamedTuple):
    """A row of values with their mean and its interval."""

    name: str
    values: Sequence[float]
    mean: float
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Right of the row."""
    colour: str = "a"


def curves(
    lines: Iterable[Line],
    *,
    x_label: str,
    y_range: tuple[float, float] | None = None,
    levels: Mapping[str, float | None] | None = None,
    alarms: Sequence[float] = (),
    noisy: bool = True,
) -> Draw | None:
    """Curves over steps or tokens; None without points.

    Args:
        levels: horizontal lines to compare with, by name.
        alarms: x of each alarm, drawn as a vertical line under a triangle.
        noisy: draw values pale under their running mean; otherwise join and mark them.
    """
    drawn = [line for line in lines if len(line.xs)]
    if not drawn:
        return None

    def draw(axes: Any) -> None:
        for x in alarms:
            # A triangle above the frame.
            place = axes.get_xaxis_transform()
            axes.plot([x], [1.03], marker="v", color=PAPER["b"], markersize=4.5, clip_on=False, transform=place, gid=mark("alarm-mark"))
            axes.axvline(x, color=PAPER["b"], linewidth=0.8, linestyle=(0, (3, 3)), alpha=0.7)
        for name, y in (levels or {}).items():
            if y is not None:
                axes.axhline(y, color=PAPER["soft"], linewidth=0.8, linestyle=(0, (2, 3)))
                axes.annotate(name, (1.0, y), xycoords=("axes fraction", "data"), ha="right", va="bottom", color=PAPER["soft"])
        for colour, line in zip(DASHES, drawn, strict=False):
            style = {
                "color": PAPER[colour],
                "linestyle": DASHES[colour],
                "linewidth": 1.5,
                "label": line.name,
                "gid": mark("line", line.name),
            }
            xs, ys = binned(line.xs, line.ys)
            if noisy:
                axes.plot(xs, ys, color=PAPER[colour], linewidth=0.8, alpha=0.32)
                axes.plot(xs, running_mean(ys), marker="." if len(xs) < 3 else "", **style)
            else:
                axes.plot(xs, ys, marker="o", markersize=4, **style)
        if len(drawn) > 1:
            axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.04), ncols=len(drawn))
        frame(axes, x_label=x_label, y_range=y_range)

    return draw


def frame(axes: Any, *, x_label: str, y_range: tuple[float, float] | None = None) -> None:
    """Labels and bounds of curves: whole numbers of steps or tokens, and 0 on the axis of values."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_xlabel(x_label)
    axes.xaxis.set_major_locator(MaxNLocator(6 if axes.figure.get_figwidth() < 8 else 12, integer=True, steps=[1, 2, 5, 10]))
    if axes.get_xlim()[1] >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if y_range:
        axes.set_ylim(*y_range)
    elif axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0.0)


def binned(xs: Sequence[float], ys: Sequence[float], *, most: int = 300) -> tuple[list[float], list[float]]:
    """At most `most` points, each the mean of as many neighbours."""
    size = math.ceil(len(xs) / most) or 1
    cuts = [*range(0, len(xs), size), len(xs)]
    return [float(np.mean(xs[i:j])) for i, j in pairwise(cuts)], [float(np.mean(ys[i:j])) for i, j in pairwise(cuts)]


def running_mean(ys: Sequence[float]) -> list[float]:
    """The mean over a twelfth of the series around each point, narrower at the ends so that it stays centred."""
    reach = [min(len(ys) // 24, i, len(ys) - 1 - i) for i in range(len(ys))]
    return [float(np.mean(ys[i - r : i + r + 1])) for i, r in enumerate(reach)]


def dot_rows(
    rows: Sequence[Dots], *, x_label: str = "", zero: bool = False, x_range: tuple[float, float] | None = None
) -> tuple[Draw | None, float]:
    """A row for each arm or contrast: each run a ring, the mean a dot on its interval; None without rows. Returns the height too.

    Args:
        zero: draw a line at 0.
        x_range: of the axis; an interval beyond it ends in an arrow. None takes all values and intervals.
    """

    def draw(axes: Any) -> None:
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.spines["bottom"].set_visible(False)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=9, color=PAPER["ink"])
        axes.set_xlabel(x_label)
        axes.margins(x=0.04)
        if x_range:
            axes.set_xlim(*x_range)
        if zero:
            axes.axvline(0.0, color=PAPER["soft"], linewidth=1.0)
        for i, row in enumerate(rows):
            colour = PAPER[row.colour]
            if row.low is not None and row.high is not None:
                low, high = (row.low, row.high) if x_range is None else np.clip((row.low, row.high), *x_range)
                axes.plot([low, high], [i, i], color=colour, linewidth=3.2, alpha=0.45, solid_capstyle="round")
                for place, sign, bound in ((low, "<", row.low), (high, ">", row.high)):
                    if place != bound:
                        axes.plot([place], [i], marker=sign, color=colour, markersize=6, clip_on=False, gid=mark("arrow"))
            rings = {"markersize": 4.6, "markerfacecolor": PAPER["ground"], "clip_on": False}
            axes.plot(row.values, [i] * len(row.values), "o", color=colour, gid=mark("run", row.name), **rings)
            face = PAPER["ground"] if row.colour == "soft" else colour
            axes.plot([row.mean], [i], "o", markersize=7, color=colour, markerfacecolor=face, clip_on=False, gid=mark("point", row.name))
            axes.text(1.03, i, row.note, transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=PAPER["ink"])

    return (draw if rows else None), 30.0 * len(rows) + 40.0


def shaded_dots(dots: Sequence[tuple[float, float, float | None, tuple[str, str]]], moves: Sequence[tuple[float, str]] = ()) -> Draw | None:
    """Strictness over steps, dark where rollouts succeeded; None without dots.

    Args:
        dots: step, strictness, share of successes (None leaves the dot empty), and a kind as marker and meaning.
        moves: step and "easier" or "harder", a triangle under the dots.
    """

    def draw(axes: Any) -> None:
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.lines import Line2D

        blues = LinearSegmentedColormap.from_list("blues", BLUES)
        kinds = sorted({kind for *_, kind in dots}, key=lambda kind: (kind[0] != "o", kind))
        for kind in kinds:
            xs, ys, shares, _ = zip(*(dot for dot in dots if dot[3] == kind), strict=True)
            shades = ["none" if share is None else blues(0.1 + 0.9 * share) for share in shares]
            axes.scatter(xs, ys, s=16, c=shades, marker=kind[0], edgecolors=PAPER["soft"], linewidths=0.3, gid=mark("issued", kind[1]))
        for step, way in moves:
            axes.plot(
                [step],
                [-0.08],
                "v" if way == "easier" else "^",
                color=PAPER["ink"],
                markersize=5,
                gid=mark("move", f"{way}, step {step:g}"),
            )
        low, ticks = -0.14 if moves else -0.02, [0, 0.25, 0.5, 0.75, 1]
        frame(axes, x_label="step")
        axes.set(xlim=(0.0, max(dot[0] for dot in dots) + 0.5), ylim=(low, 1.02), yticks=ticks)
        edge = {"linestyle": "", "markersize": 5, "markeredgecolor": PAPER["soft"], "markeredgewidth": 0.4}
        labels = {f"{share:.0%}" + " successes" * (share == 0.0): blues(0.1 + 0.9 * share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
        keys = [Line2D([], [], marker="o", color=colour, label=label, **edge) for label, colour in labels.items()]
        if len(kinds) > 1:
            keys += [Line2D([], [], marker=marker, color="none", label=meaning, **edge) for marker, meaning in kinds]
        axes.legend(handles=keys, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=len(keys), handletextpad=0.2)

    return draw if dots else None


def bars(groups: Sequence[tuple[str, float | None, float | None]], *, x_label: str) -> Draw | None:
    """Scores before and after, 0-100, side by side; None without groups.

    Args:
        groups: label, score before, score after; None draws no bar.
    """

    def draw(axes: Any) -> None:
        for name, colour, place in (("before", "before", 1), ("after", "a", 2)):
            at = [(i + 0.34 * (place - 1.5), group[place]) for i, group in enumerate(groups) if group[place] is not None]
            drawn = axes.bar([x for x, _ in at], [y for _, y in at], width=0.32, color=PAPER[colour], label=name)
            axes.bar_label(drawn, fmt="%.0f", padding=2, color=PAPER["ink"])
        axes.set(
            xlabel=x_label,
            ylim=(0.0, 112.0),
            yticks=range(0, 101, 25),
            xticks=range(len(groups)),
            xticklabels=[label for label, _, _ in groups],
        )
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.04), ncols=2)

    return draw if groups else None


def heat_map(
    values: Mapping[tuple[str, str], float], rows: Sequence[str], columns: Sequence[str], *, x_label: str, high: float, form: str = "{:.0f}"
) -> Draw | None:
    """Numbers by row and column, from 0 pale to `high` dark; empty where nothing was measured. None without any.

    Args:
        form: of the number in a cell; empty writes none.
    """

    def draw(axes: Any) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        colours = LinearSegmentedColormap.from_list("blues", BLUES)
        cells = np.array([[values.get((row, column), math.nan) for column in columns] for row in rows])
        grid = {"edgecolors": PAPER["ground"], "linewidth": 1.0}
        axes.pcolormesh(np.ma.masked_invalid(cells), cmap=colours, vmin=0.0, vmax=high, **grid)
        axes.grid(False)
        axes.spines["bottom"].set_visible(False)
        axes.invert_yaxis()
        every = math.ceil(len(columns) / 16)
        axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
        axes.set_xticks(np.arange(len(columns))[::every] + 0.5, columns[::every])
        axes.set_xlabel(x_label)
        for (r, row), (c, column) in product(enumerate(rows), enumerate(columns)):
            if form and (value := values.get((row, column))) is not None:
                colour = "#fefefe" if value > 0.55 * high else "#1b1f24"
                axes.text(c + 0.5, r + 0.5, form.format(value), ha="center", va="center", fontsize=7.4, color=colour)

    return draw if values else None
