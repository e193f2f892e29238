"""The figures of what came out of a sweep: contrasts, arms, strictness, cells. Every seed is drawn wherever a mean is.

What the runs of a sweep went through, finished or not: for the pages that show courses, where `comparisons.sweep` reads results.

The figures of a sweep's course: every run over policy tokens, and the mean of its arm.
"""

from __future__ import annotations

import bisect
import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from analysis.after_alarm import alarm_steps
from analysis.compare import THRESHOLDS
from analysis.endpoints import AUC, IN_WORDS, Curve, Look, curve_of, digits_of, lacks_looks, looks, read_grades, sign_of
from analysis.plots import (
    FULL,
    LEFT,
    STYLES,
    WIDE,
    Dots,
    Figure,
    Heat,
    Panel,
    Plot,
    Sheet,
    Stroke,
    Style,
    binned,
    dot_rows,
    dots_of_few,
    hue,
    label_width,
    maps,
    mark,
    moved_apart,
    names_beside,
    number,
    running_mean,
    set_ranges,
    style_of,
    ticks_between,
)
from analysis.plots import lattice as lattice_of
from analysis.runs import Run, read_run, setting
from analysis.stats import performance_profile
from analysis.sweeps import RunResult, Sweep, common_cells, run_folders, seed_of
from analysis.text import finite, signed
from analysis.transcripts import BeforeAfter, before_after

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
CellRun = tuple[str, Sequence[float], Sequence[float]]
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
    runs: Mapping[str, Sequence[CellRun]]
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


def shares_by_run(runs: Sequence[RunResult]) -> list[CellRun]:
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


ISSUED_BINS = 24
"""Stretches of a run over which what a teacher issued is summed up."""
FOUR_IN_FIVE = (10.0, 90.0)
"""Percentiles between which four of five values lie."""


class Issued(NamedTuple):
    """A task that a teacher gave."""

    step: int
    policy_tokens: float
    """Sampled by the end of the step before."""
    family: str
    strictness: float


@dataclass(frozen=True, kw_only=True)
class Course:
    """One run in the course of its training."""

    arm: str
    seed: int
    run: Run
    looks: list[Look]
    """At held-out users, on the small grid, as far as they were taken."""
    issued: list[Issued]
    lacks_issued: str = ""
    """Why it is not known what was issued; empty where it is."""

    @property
    def name(self) -> str:
        """As it is called in sentences."""
        return f"{self.arm}/seed_{self.seed}"

    @property
    def is_finished(self) -> bool:
        """Whether it has a summary."""
        return self.run.summary is not None

    @property
    def curve(self) -> Curve:
        """The held-out score over policy tokens."""
        return curve_of(self.looks)

    @property
    def policy_tokens(self) -> float:
        """Sampled so far."""
        return (self.run.series("perf/policy_tokens").values or [0.0])[-1]

    @property
    def budget(self) -> int | None:
        """Policy tokens that it is allowed; None where its config does not say."""
        budget = setting(self.run.config, "budget.policy_tokens")
        return budget if isinstance(budget, int) and budget > 0 else None

    def over_tokens(self, key: str) -> Curve:
        """A metric over the policy tokens at the end of the steps that measured it."""
        lines = [line for line in self.run.metrics if isinstance(line.get(key), int | float)]
        lines = [line for line in lines if isinstance(line.get("perf/policy_tokens"), int | float)]
        return Curve([float(line["perf/policy_tokens"]) for line in lines], [float(line[key]) for line in lines])

    def evaluations(self) -> BeforeAfter:
        """Its held-out dialogues, read from disk."""
        return before_after(self.run.evaluation())


class Courses(NamedTuple):
    """All runs of a sweep that can be read, by arm and seed."""

    runs: list[Course]
    unreadable: dict[str, str]
    """Why, by the name of the run."""
    never_averaged: frozenset[str] = frozenset()
    """Arms whose runs do not belong together, as the comparison says: they are drawn, but no mean is over them."""

    def arms(self) -> list[str]:
        """Those with a run that can be read."""
        return list(dict.fromkeys(course.arm for course in self.runs))

    def of(self, arm: str) -> list[Course]:
        """The runs of an arm."""
        return [course for course in self.runs if course.arm == arm]

    def averaged(self, arm: str) -> list[Course]:
        """Those of its runs that a mean is over: the finished ones, so that none ends with the youngest run; before there are any, all."""
        runs = [] if arm in self.never_averaged else self.of(arm)
        return [course for course in runs if course.is_finished] or runs


def read_courses(folder: Path) -> Courses:
    """Reads every run beneath a sweep's folder; one that cannot be read is named with the reason.

    Raises:
        ValueError: the folder holds no arms.
    """
    runs, unreadable = [], {}
    for place in run_folders(folder):
        try:
            runs.append(read_course(place))
        except (ValueError, OSError) as error:
            unreadable[f"{place.parent.name}/{place.name}"] = str(error)
    return Courses(runs, unreadable)


def read_course(place: Path) -> Course:
    """Reads one run; a teacher's log that cannot be read costs nothing but what was issued, as a comparison does not need it either.

    Raises:
        ValueError: another of its files cannot be read.
    """
    run = read_run(place)
    seen = looks(read_grades(run))
    if said := lacks_looks(run.summary, seen):
        raise ValueError(said)
    tasks, lacks = list[Issued](), ""
    try:
        tasks = issued(run)
    except (ValueError, OSError) as error:
        lacks = str(error)
    return Course(arm=place.parent.name, seed=seed_of(place), run=run, looks=seen, issued=tasks, lacks_issued=lacks)


def issued(run: Run) -> list[Issued]:
    """The tasks of a run's teacher, in the order they were given.

    Raises:
        ValueError: a line lacks something.
    """
    steps, tokens = run.series("perf/policy_tokens")
    tasks = []
    for line in run.teacher():
        if line.get("event") != "task":
            continue
        before = bisect.bisect_left(steps, line["step"]) - 1
        try:
            tasks.append(Issued(line["step"], tokens[before] if before >= 0 else 0.0, str(line["family"]), float(line["strictness"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"teacher.jsonl must hold tasks, got a line at step {line['step']} with a bad {error}") from error
    return tasks


def mean_curve(curves: Sequence[Curve], *, points: int = 60) -> Curve | None:
    """The mean over runs where all of them were measured; None without a common stretch.

    Args:
        points: at which it is taken, beside both ends, evenly; between two looks a run changes linearly.
    """
    drawn = [curve for curve in curves if len(curve.tokens) > 1]
    if not drawn:
        return None
    first, last = max(curve.tokens[0] for curve in drawn), min(curve.tokens[-1] for curve in drawn)
    if not first < last:
        return None
    at = [first + (last - first) * i / (points - 1) for i in range(points)]
    heights = [np.interp(at, curve.tokens, curve.scores).tolist() for curve in drawn]
    return Curve(at, [statistics.fmean(column) for column in zip(*heights, strict=True)])


def value_at(curve: Curve, x: float) -> float:
    """A curve between its looks; held at both ends."""
    return float(np.interp(x, curve.tokens, curve.scores))


def issued_between(
    tasks: Sequence[Issued], *, end: float, num_bins: int = ISSUED_BINS, percentiles: tuple[float, float] = FOUR_IN_FIVE
) -> tuple[list[float], list[float], list[float]]:
    """Where most of the strictness that was issued lies, over tokens.

    Returns:
        The middles of equal stretches from 0 to `end` in which something was issued, and the lower and upper percentile in each.
    """
    at = np.array([task.policy_tokens for task in tasks])
    strictness = np.array([task.strictness for task in tasks])
    edges = np.linspace(0.0, end, num_bins + 1)
    found = [
        (float((left + right) / 2), *map(float, np.percentile(inside, percentiles)))
        for left, right in pairwise(edges)
        if (inside := strictness[(at >= left) & (at < right)]).size
    ]
    xs, lows, highs = ([item[i] for item in found] for i in range(3))
    return xs, lows, highs


OVERVIEW_HEIGHT = 380.0
POINTS = 41
"""Of a mean curve in a small frame."""


def last_token(courses: Courses) -> float:
    """Where the longest run has come to."""
    return max((course.policy_tokens for course in courses.runs), default=0.0) or 1.0


def learning_curves(courses: Courses, styles: Mapping[str, Style]) -> Figure:
    """All arms in one frame: each run thin, the arm's mean strong and named beside the frame."""
    drawn = [course for course in courses.runs if course.looks]
    title = "Held-out score over policy tokens"
    return Figure(
        name="learning_curves",
        title=title,
        plot=overview(courses, drawn, styles, title) if drawn else None,
        caption=(
            "Mean final emotion on the same small grid of held-out users at every look; final scores in the tables are of the full grid, "
            "so a curve need not end at them. Thin: one run each, dotted while unfinished. Strong: the mean over an arm's finished runs, "
            "as far as the shortest of them reaches; before there is one, over those begun; none over runs that do not belong together. "
            "Colour, dash and mark tell arms apart."
        ),
        header=("arm", "seed", "policy_tokens", "score"),
        rows=[(course.arm, course.seed, look.policy_tokens, look.score) for course in drawn for look in course.looks],
    )


def overview(courses: Courses, drawn: Sequence[Course], styles: Mapping[str, Style], title: str) -> Plot:
    """The frame with all arms."""
    scores = [look.score for course in drawn for look in course.looks]
    low, high = 10.0 * (min(scores) // 10.0), min(10.0 * -(-max(scores) // 10.0), 100.0)
    means = {arm: mean_curve([course.curve for course in courses.averaged(arm) if course.looks]) for arm in styles}
    right, bottom = FULL - label_width(list(styles)), max(OVERVIEW_HEIGHT, 60.0 + 15.0 * len(styles)) - 38.0
    alpha = 0.55 if len(styles) <= 7 else 0.22

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(LEFT, 14, right, bottom)
        set_ranges(axes, (0.0, last_token(courses)), (low, max(high, low + 10.0)), whole_x=True)
        sheet.text(right, bottom + 36, "policy tokens", colour="soft", ha="right")
        for course in drawn:
            dash = {} if course.is_finished else {"linestyle": ":", "alpha": 0.9}
            dots = dots_of_few(len(course.looks))
            look = {"color": hue(styles[course.arm][0]), "linewidth": 0.8, "alpha": alpha, **dash, **dots}
            axes.plot(*course.curve, gid=mark("run" if course.is_finished else "run-unfinished", course.name), **look)
        ends = []
        for i, (arm, mean) in enumerate(means.items()):
            if mean is not None:
                style = style_of(*styles[arm], num_points=len(mean.tokens), start=5 * i)
                axes.plot(*mean, linewidth=2.0, gid=mark("mean", arm), **style)
                ends.append((mean.scores[-1], arm))
        ends.sort(reverse=True)
        span = axes.get_ylim()
        wanted = [bottom - (bottom - 14.0) * (score - span[0]) / (span[1] - span[0]) for score, _ in ends]
        names_beside(sheet, [(arm, *styles[arm]) for _, arm in ends], x=right + 8, ys=moved_apart(wanted, gap=14.0, low=14.0, high=bottom))

    return Plot(width=FULL, height=bottom + 38.0, label=title, paint=paint)


class Column(NamedTuple):
    """A quantity of the lattice."""

    key: str
    """Metric, or empty for the held-out score."""
    title: str
    bounds: tuple[float, float] | None
    """Of the axis; None takes zero and what was measured."""


LATTICE = (
    Column("", "held-out score", None),
    Column("curriculum/strictness", "strictness issued", (0.0, 1.0)),
    Column("actor/entropy", "policy entropy, nats", None),
    Column("curriculum/reward_density", "reward density", None),
)


def lattice(courses: Courses, arms: Sequence[str]) -> Figure:
    """A row for each arm: its runs over tokens, in front of the means of the others."""
    end, panels, rows = last_token(courses), [], []
    lines = {column.key: {course.name: line_of(course, column.key) for course in courses.runs} for column in LATTICE}
    bounds = {column.key: bounds_of(column, lines[column.key].values()) for column in LATTICE}
    means = {
        key: {arm: mean_curve([smoothed(lines[key][course.name], key) for course in courses.averaged(arm)], points=POINTS) for arm in arms}
        for key in lines
    }
    # Every arm is drawn behind every other: of many, each with fewer points.
    every = max(2, len(arms) // 4)
    for arm in arms:
        for column in LATTICE:
            key, own = column.key, courses.of(arm)
            strokes = [
                Stroke(xs=m.tokens[::every], ys=m.scores[::every], kind="others", words=other)
                for other, m in means[key].items()
                if m and other != arm
            ]
            for course in own:
                thin = smoothed(lines[key][course.name], key)
                strokes.append(Stroke(xs=thin.tokens, ys=thin.scores, kind="seed", words=f"seed {course.seed}"))
                rows += [(arm, course.seed, column.title, x, y) for x, y in zip(*lines[key][course.name], strict=True)]
            mean = means[key][arm]
            strokes += [Stroke(xs=mean.tokens, ys=mean.scores, kind="mean", words=arm)] if mean else []
            panels.append(
                Panel(
                    title=column.title if key else arm,
                    subtitle="" if key else column.title,
                    x_range=(0.0, end),
                    y_range=bounds[key],
                    strokes=strokes,
                    bands=issued_bands(own, end) if key == "curriculum/strictness" else (),
                    alarms=() if key else [x for course in own for x in alarm_tokens(course)],
                )
            )
    return Figure(
        name="courses",
        title="Each arm by itself",
        plot=lattice_of(panels, columns=len(LATTICE), x_label="policy tokens", label="courses of all arms"),
        caption=(
            "Held-out score: on the small grid. Thin: one run each (running means where a step is noisy). Strong: their mean. "
            "Grey: the means of the other arms. Shaded: where four of five issued tasks lie. Triangles: alarms."
        ),
        header=("arm", "seed", "quantity", "policy_tokens", "value"),
        rows=rows,
    )


def line_of(course: Course, key: str) -> Curve:
    """The held-out score, or a metric, over tokens."""
    return course.over_tokens(key) if key else course.curve


def smoothed(line: Curve, key: str) -> Curve:
    """A metric's running mean; the held-out score as it is."""
    if not key or not len(line.tokens):
        return line
    xs, ys = binned(line.tokens, line.scores)
    return Curve(xs, running_mean(ys))


def bounds_of(column: Column, lines: Iterable[Curve]) -> tuple[float, float]:
    """One axis for all arms, so that rows can be compared."""
    if column.bounds is not None:
        return column.bounds
    high = max((y for line in lines for y in smoothed(line, column.key).scores), default=1.0) or 1.0
    ticks = ticks_between(0.0, high, at_most=5)
    step = ticks[1] - ticks[0]
    return 0.0, step * -(-high // step)


def issued_bands(courses: Sequence[Course], end: float) -> list[tuple[list[float], list[float], list[float]]]:
    """Between which strictnesses four of five tasks of an arm lie, over tokens; none where none is recorded."""
    tasks = [task for course in courses for task in course.issued]
    return [issued_between(tasks, end=end)] if tasks else []


def alarm_tokens(course: Course) -> list[float]:
    """Policy tokens at which alarms of a run went off; of a long run that was kept, at the last recorded step before."""
    steps, tokens = course.run.series("perf/policy_tokens")
    before = [bisect_right(steps, step) for step in alarm_steps(course.run)]
    return [tokens[number - 1] for number in before if number]
