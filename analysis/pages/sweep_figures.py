"""The figures of what came out of a sweep: contrasts, arms, strictness, cells. Every seed is drawn wherever a mean is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from analysis.comparisons.arms import THRESHOLDS
from analysis.comparisons.sweep import RunResult, Sweep, common_cells
from analysis.drawing.arm_looks import STYLES, Style, label_width, names_beside, style_of
from analysis.drawing.canvas import Plot, Sheet, hue, mark
from analysis.drawing.cell_maps import Heat, maps
from analysis.drawing.figures import Figure
from analysis.drawing.plots import FULL, LEFT, WIDE, Dots, dot_rows, set_ranges
from analysis.drawing.ticks import number
from analysis.endpoints import AUC, IN_WORDS, digits_of, sign_of
from analysis.stats import performance_profile
from analysis.wording import finite, signed

EMOTION = (0.0, 100.0)
SMALL_GRID = "On the small held-out grid, as the curves are."
FULL_GRID = "At the last evaluation, on the full held-out grid."
RINGS = "Rings: one run each. Dot: their mean. Bar: 95% bootstrap interval over runs, too narrow with few of them."
SLIM = 510.0
"""Width at which differences can still be read on a telephone."""
MAX_TICKS = 8
"""Strictnesses that are each written on the axis; of more, round numbers."""
SHORT_STROKES: dict[str, Any] = {"marker": "_", "linestyle": "", "markersize": 6.0, "markeredgewidth": 1.0, "alpha": 0.7}
THIN_LINES: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.35}
"""How single runs look beneath the means."""
Run = tuple[str, Sequence[float], Sequence[float]]
"""A run's name, and its x and y."""


def ranked(arms: Sequence[str], found: Mapping[str, Any] | None) -> list[str]:
    """The arms by the primary endpoint, the best first, then those without."""
    if found is None:
        return list(arms)
    primary = found["plan"]["primary"]
    averaged = {arm: ((found["arms"].get(arm) or {}).get("endpoints") or {}).get(primary) for arm in arms}
    means = {arm: sign_of(primary) * values["mean"]["value"] if values else -math.inf for arm, values in averaged.items()}
    return sorted(arms, key=lambda arm: -means[arm])


def styles_of(arms: Sequence[str], found: Mapping[str, Any] | None) -> dict[str, Style]:
    """Colour and mark of each arm: those of the contrasts first; the dash goes with the colour."""
    named = [arm for contrast in (found["contrasts"] if found else ()) for arm in (contrast["a"], contrast["b"])]
    ordered = list(dict.fromkeys([*(arm for arm in named if arm in arms), *arms]))
    return {arm: STYLES[i % len(STYLES)] for i, arm in enumerate(ordered)}


def contrasts_figure(found: Mapping[str, Any]) -> Figure:
    """The differences of the named contrasts, seed by seed, with their intervals."""
    primary = found["plan"]["primary"]
    rows: list[Dots] = []
    table: list[tuple[Any, ...]] = []
    for contrast in found["contrasts"]:
        endpoint = contrast["endpoints"][primary]
        if endpoint is None:
            continue
        name, d, digits = f"{contrast['a']} - {contrast['b']}", endpoint["difference"], digits_of(primary)
        low, high = finite(d["low"]), finite(d["high"])
        values = endpoint["differences"]
        rows.append(Dots(name=name, values=values, mean=d["value"], low=low, high=high, note=signed(d["value"], digits)))
        seeds = contrast["seeds"] if len(contrast["seeds"]) == len(values) else [None] * len(values)
        table += [(name, seed, value, None, None) for seed, value in zip(seeds, values, strict=True)]
        table.append((name, "mean", d["value"], low, high))
    reach = 1.6 * max((abs(value) for row in rows for value in (*row.values, row.mean)), default=1.0) or 1.0
    x_label = f"difference in {IN_WORDS.get(primary, primary)}"
    plot = dot_rows(rows, label="differences between arms", x_label=x_label, zero=0.0, width=SLIM, within=(-reach, reach), is_hero=True)
    many = "Rings: one seed each. Dot and bar: mean difference and Student's 95% interval; an arrow where it goes on beyond the axis."
    caption = f"Right of the line the first arm is higher. {many if several(rows) else 'Dot: the one seed.'}"
    return Figure(
        name="contrasts",
        title="Differences on the same seeds",
        plot=plot,
        caption=caption if rows else "",
        nothing="No contrast can be computed yet.",
        header=("contrast", "seed", "difference", "low", "high"),
        rows=table,
    )


def several(rows: Sequence[Dots]) -> bool:
    """Whether any row holds more than one value."""
    return any(len(row.values) > 1 for row in rows)


def arms_figure(found: Mapping[str, Any], endpoint: str, *, name: str, title: str) -> Figure:
    """An endpoint of every arm: each run, the mean, and its interval; the best on top."""
    rows: list[Dots] = []
    table: list[tuple[Any, ...]] = []
    for arm, record in found["arms"].items():
        averaged = (record.get("endpoints") or {}).get(endpoint)
        values = {seed: run[endpoint] for seed, run in record["runs"].items() if run[endpoint] is not None}
        table += [(arm, seed, value, None, None) for seed, value in values.items()]
        if averaged is None:
            continue
        mean = averaged["mean"]
        low, high = finite(mean["low"]), finite(mean["high"])
        table.append((arm, "mean", mean["value"], low, high))
        note = f"{mean['value']:.{digits_of(endpoint)}f}"
        rows.append(Dots(name=arm, values=list(values.values()), mean=mean["value"], low=low, high=high, note=note))
    rows.sort(key=lambda row: -row.mean)
    return Figure(
        name=name,
        title=title,
        plot=dot_rows(rows, label=title, x_label="mean final emotion of held-out users, 0 to 100", width=WIDE),
        caption=f"{SMALL_GRID if endpoint == AUC else FULL_GRID} {RINGS if several(rows) else 'Dot: the one run.'}",
        header=("arm", "seed", "score", "low", "high"),
        rows=table,
    )


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How every arm does along an axis: its mean, and each of its runs."""

    name: str
    title: str
    axis: str
    """What the x of `means` is called in the comparison."""
    x_label: str
    y_range: tuple[float, float]
    means: Mapping[str, Mapping[str, list[float]]]
    """By arm: the axis, `value`, and its bounds `low` and `high`."""
    runs: Mapping[str, Sequence[Run]]
    """By arm, where it has several."""
    styles: Mapping[str, Style]
    caption: str
    is_measured: bool
    """There are values at the points of the axis alone: ticks stand there, and runs are strokes rather than lines."""


def profiles(found: Mapping[str, Any], sweep: Sweep, styles: Mapping[str, Style]) -> list[Figure]:
    """Where an arm is good: its score by strictness, and the share of runs and cells above a score."""
    records = {arm: found["arms"][arm] for arm in styles if (found["arms"].get(arm) or {}).get("by_strictness")}
    repeated = {arm: list(sweep.of(arm).values()) for arm in records if len(sweep.of(arm)) > 1}
    by_strictness = Profile(
        name="score_by_strictness",
        title="Final held-out score by strictness",
        axis="strictness",
        x_label="strictness of the user",
        y_range=EMOTION,
        means={arm: record["by_strictness"] for arm, record in records.items()},
        runs={arm: [(run.name, *scores_by_strictness(run)) for run in runs] for arm, runs in repeated.items()},
        styles=styles,
        caption=f"Mean over families. {FULL_GRID} Lines: means over seeds.{' Short strokes: one run each.' if repeated else ''}",
        is_measured=True,
    )
    shares = Profile(
        name="performance_profile",
        title="Share of runs and cells above a score",
        axis="threshold",
        x_label="score, mean final emotion",
        y_range=(0.0, 1.0),
        means={arm: record["profile"] for arm, record in records.items()},
        runs={arm: shares_by_run(runs) for arm, runs in repeated.items()},
        styles=styles,
        caption=(
            f"Over families and strictness at {len(THRESHOLDS)} scores; higher is better. {FULL_GRID} "
            f"Lines: all seeds together.{' Thin lines: one run each.' if repeated else ''}"
        ),
        is_measured=False,
    )
    return [profile_figure(by_strictness), profile_figure(shares)]


def scores_by_strictness(run: RunResult) -> tuple[list[float], list[float]]:
    """The strictnesses that a run was judged at, and its mean over families at each."""
    levels = sorted({at for _, at in run.cells})
    return levels, [fmean(score for (_, at), score in run.cells.items() if at == level) for level in levels]


def shares_by_run(runs: Sequence[RunResult]) -> list[Run]:
    """The share of the cells that all runs have above each score, run by run; their mean is the arm's."""
    cells = common_cells(runs)
    scores_RC = np.array([[run.cells[cell] for cell in cells] for run in runs])
    shares = [performance_profile(scores_C[None], np.array(THRESHOLDS)).tolist() for scores_C in scores_RC]
    return [(run.name, THRESHOLDS, share) for run, share in zip(runs, shares, strict=True)]


def profile_figure(profile: Profile) -> Figure:
    """A line for each arm, named at its end."""
    rows = [
        (arm, *values)
        for arm, line in profile.means.items()
        for values in zip(line[profile.axis], line["value"], line["low"], line["high"], strict=True)
    ]
    return Figure(
        name=profile.name,
        title=profile.title,
        plot=profile_plot(profile) if profile.means else None,
        caption=profile.caption,
        header=("arm", profile.axis, "value", "low", "high"),
        rows=rows,
    )


def profile_plot(profile: Profile) -> Plot:
    """The frame, with its arms beside it, the best first; the runs lie beneath the means."""
    lines, styles = profile.means, profile.styles
    xs = sorted({x for line in lines.values() for x in line[profile.axis]})
    start, end = xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1.0
    ticks = xs if profile.is_measured and len(xs) <= MAX_TICKS else []
    room = 0.04 * (end - start) if ticks else 0.0
    width, height = FULL / 2 - 10.0, max(320.0, 60.0 + 17.0 * len(lines))
    right, bottom = width - label_width(list(lines)), height - 38.0

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(LEFT, 14, right, bottom)
        set_ranges(axes, (start - room, end + room), profile.y_range)
        if ticks:
            axes.set_xticks(ticks, [number(x) for x in ticks])
        sheet.text(right, height - 3, profile.x_label, colour="soft", ha="right")
        look = SHORT_STROKES if profile.is_measured else THIN_LINES
        for arm, runs in profile.runs.items():
            for name, places, values in runs:
                axes.plot(places, values, color=hue(styles[arm][0]), gid=mark("run", name), **look)
        for i, (arm, line) in enumerate(lines.items()):
            style = style_of(*styles[arm], num_points=len(line[profile.axis]), start=i)
            axes.plot(line[profile.axis], line["value"], linewidth=1.6, gid=mark("mean", arm), **style)
        best_first = sorted(lines, key=lambda arm: -fmean(lines[arm]["value"]))
        names_beside(sheet, [(arm, *styles[arm]) for arm in best_first], x=right + 10, ys=[18.0 + 17.0 * i for i in range(len(lines))])

    return Plot(width=width, height=height, label=profile.title, paint=paint)


def cell_figure(sweep: Sweep, arms: Sequence[str]) -> Figure:
    """Held-out score by hidden intention and strictness, a map for each arm."""
    scores = {arm: by_intention(sweep, arm) for arm in arms}
    scores = {arm: cells for arm, cells in scores.items() if cells}
    levels = sorted({level for cells in scores.values() for _, level in cells})
    intentions = sorted({intention for cells in scores.values() for intention, _ in cells})
    columns = [f"{level:g}" for level in levels]
    heats = [
        Heat(title=arm, values={(intention, f"{level:g}"): score for (intention, level), score in cells.items()})
        for arm, cells in scores.items()
    ]
    return Figure(
        name="cells",
        title="Final held-out score by hidden intention and strictness",
        plot=maps(
            heats,
            intentions,
            columns,
            low=0.0,
            high=100.0,
            x_label="strictness",
            label="scores by cell",
            in_a_row=max(min(int(FULL // (110.0 + 34.0 * max(len(levels), 1))), 4), 1),
        ),
        caption=f"Mean over persona types and seeds, 0 to 100; the darker the blue, the better. {FULL_GRID}",
        header=("arm", "hidden_intention", "strictness", "score"),
        rows=[(arm, *cell, score) for arm, cells in scores.items() for cell, score in sorted(cells.items())],
    )


def by_intention(sweep: Sweep, arm: str) -> dict[tuple[str, float], float]:
    """The mean over an arm's runs and over families of one intention, by intention and strictness."""
    found: dict[tuple[str, float], list[float]] = {}
    for run in sweep.of(arm).values():
        for (family, level), score in run.cells.items():
            found.setdefault((family.partition("/")[0], level), []).append(score)
    return {cell: fmean(scores) for cell, scores in found.items()}
