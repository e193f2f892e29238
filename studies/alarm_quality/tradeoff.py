"""Where two aims pull apart: teachers of a benchmark as points in the plane of two figures, those that vary one setting as a curve."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curriculum import TEACHERS
from curriculum.toy.benchmark import parse_arms, read
from curriculum.toy.simulation import configure
from simulator.files import check_out, draft_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (4.2, 3.6)
"""Inches of a panel."""
LINE, DEFAULT = "#0072b2", "#d55e00"
"""Blue and vermilion, which colour-blind readers tell apart."""


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--panel", nargs=3, action="append", required=True, metavar=("FILE.json", "X", "Y"), help="a benchmark and two STUDENT:FIGURE of it"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.svg", help="the picture, .svg or .png")


def run(args: Namespace) -> int:
    """Draws the panels and says where."""
    try:
        check_out(args.out)
        if args.out.suffix not in (".svg", ".png"):
            raise ValueError(f"--out must end in .svg or .png, got {str(args.out)!r}")
        draw([panel(Path(path), x, y) for path, x, y in args.panel], args.out)
    except (ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(args.out)
    return 0


@dataclass(frozen=True, kw_only=True)
class Point:
    """A teacher in the plane."""

    label: str
    x: float
    y: float
    spread_x: tuple[float, float]
    """How far the 95 % interval over seeds reaches below and above; 0 where there is none."""
    spread_y: tuple[float, float]
    is_default: bool
    """Its settings are the teacher's defaults."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One plane."""

    x: str
    """STUDENT:FIGURE."""
    y: str
    setting: str
    """The one in which all teachers differ and by whose values they are labelled; "" where they differ in more."""
    points: tuple[Point, ...]
    """In the order in which the benchmark was asked for them."""


def panel(path: Path, x: str, y: str) -> Panel:
    """The teachers that have both figures.

    Args:
        path: what `python -m curriculum benchmark --out` wrote.
        x, y: STUDENT:FIGURE, as in `S2_improving:final`.

    Raises:
        ValueError: no such file, student or figure.
    """
    results = read(path, option="--panel")
    columns = [_column(results, name, path) for name in (x, y)]
    arms = [arm for arm in columns[0] if arm in columns[1]]
    heads = {arm.partition("=")[0] for arm in arms if arm.count("=") == 1}
    setting = heads.pop() if len(heads) == 1 and all(arm.count("=") == 1 for arm in arms) else ""
    points = tuple(_point(arm, columns[0][arm], columns[1][arm], label=arm.partition("=")[2] if setting else arm) for arm in arms)
    return Panel(x=x, y=y, setting=setting, points=points)


def _column(results: Mapping[str, Mapping[str, Any]], name: str, path: Path) -> dict[str, Mapping[str, Any]]:
    student, _, figure = name.partition(":")
    if student not in results:
        raise ValueError(f"--panel must name a student of {path}, {', '.join(results)}, got {name!r}")
    rows = {arm: row[figure] for arm, row in results[student].items() if row.get(figure, {}).get("mean") is not None}
    if not rows:
        known = dict.fromkeys(key for row in results[student].values() for key in row)
        raise ValueError(f"--panel must name a figure of {student}, {', '.join(known)}, got {name!r}")
    return rows


def _point(arm: str, x: Mapping[str, Any], y: Mapping[str, Any], *, label: str) -> Point:
    return Point(
        label=label,
        x=x["mean"],
        y=y["mean"],
        spread_x=_spread(x),
        spread_y=_spread(y),
        is_default=is_default(arm),
    )


def _spread(row: Mapping[str, Any]) -> tuple[float, float]:
    low, high = row["ci95"] or (row["mean"], row["mean"])
    return row["mean"] - low, high - row["mean"]


def is_default(arm: str) -> bool:
    """Whether a teacher as the benchmark names it has nothing but defaults."""
    try:
        (found,) = parse_arms([arm])
        defaults = TEACHERS[found.kind][0]()
        return bool(configure(defaults, found.settings) == defaults)
    except ValueError:  # of another version, or with settings that depend on the student
        return False


def draw(panels: Sequence[Panel], path: Path) -> None:
    """Draws the panels side by side into an SVG or PNG file, whole or not at all.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("tradeoff needs matplotlib, which is not installed; pip install matplotlib") from None

    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.size": 9}):
        figure = Figure(figsize=(SIZE[0] * columns, SIZE[1] * rows), layout="constrained")
        for axes, each in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
            _draw_panel(axes, each)
        with draft_of(path) as draft:
            figure.savefig(draft, format=path.suffix[1:], dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)


def _draw_panel(axes: Axes, each: Panel) -> None:
    axes.plot([p.x for p in each.points], [p.y for p in each.points], color=LINE, linewidth=1, zorder=1)
    for point, above in zip(each.points, cycle((True, False)), strict=False):
        colour = DEFAULT if point.is_default else LINE
        spread_x, spread_y = ([[below], [over]] for below, over in (point.spread_x, point.spread_y))
        axes.errorbar(point.x, point.y, xerr=spread_x, yerr=spread_y, fmt="o", markersize=5, color=colour, elinewidth=0.8)
        axes.annotate(point.label, (point.x, point.y), (5, 6 if above else -12), textcoords="offset points", fontsize=7.5, color=colour)
    if any(point.is_default for point in each.points):
        axes.plot([], [], "o", markersize=5, color=DEFAULT, label="default settings")
        axes.legend(loc="best", frameon=False, fontsize=7.5)
    axes.set(xlabel=each.x, ylabel=each.y, title=each.setting)
    axes.margins(x=0.25, y=0.12)
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
