"""The figures of a sweep's report. Every seed is drawn wherever a mean is; what belongs to one arm is set before the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any, NamedTuple

from analysis.aftermath import alarm_steps
from analysis.arms import THRESHOLDS
from analysis.axes import FULL, Frame, binned, running_mean, ticks_between
from analysis.charts import grid, polyline, svg
from analysis.contrast_words import finite
from analysis.endpoints import digits_of, sign_of
from analysis.figures import NOTHING, Figure
from analysis.learning_curves import Curve
from analysis.panels import (
    COLOURS,
    STYLES,
    Dots,
    Ribbon,
    Stroke,
    cell_map,
    dot_rows,
    end_labels,
    key_column,
    label_width,
    marks,
    panel,
    tiled,
)
from analysis.sweep import Sweep
from analysis.sweep_course import Course, Courses, issued_between, mean_curve

EMOTION = (0.0, 100.0)
OVERVIEW_HEIGHT = 380.0
NEARLY = 0.97
"""Share of the longest run's tokens from which on a curve is named in the margin."""
PANEL = (270.0, 168.0)
"""Width and height of one of four frames in a row."""


def ranked(arms: Sequence[str], found: Mapping[str, Any] | None) -> list[str]:
    """The arms by the primary endpoint, the best first, then those without."""
    if found is None:
        return list(arms)
    primary = found["plan"]["primary"]
    averaged = {arm: ((found["arms"].get(arm) or {}).get("endpoints") or {}).get(primary) for arm in arms}
    means = {arm: sign_of(primary) * values["mean"]["value"] if values else -math.inf for arm, values in averaged.items()}
    return sorted(arms, key=lambda arm: -means[arm])


def colours_of(arms: Sequence[str], found: Mapping[str, Any] | None) -> dict[str, str]:
    """The class of each arm: those of the contrasts first, what is beyond all styles pale."""
    named = [arm for contrast in (found["contrasts"] if found else ()) for arm in (contrast["a"], contrast["b"])]
    ordered = list(dict.fromkeys([*(arm for arm in named if arm in arms), *arms]))
    return {arm: STYLES[i] if i < len(STYLES) else "rest" for i, arm in enumerate(ordered)}


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
        rows.append(Dots(name=name, values=values, mean=d["value"], low=low, high=high, note=f"{d['value']:+.{digits}f}"))
        seeds = contrast["seeds"] if len(contrast["seeds"]) == len(values) else [None] * len(values)
        table += [(name, seed, value, None, None) for seed, value in zip(seeds, values, strict=True)]
        table.append((name, "mean", d["value"], low, high))
    drawing = NOTHING
    if rows:
        reach = 1.6 * max(abs(value) for row in rows for value in (*row.values, row.mean)) or 1.0
        drawing = dot_rows(rows, label="differences between arms", x_label=f"difference in {primary}", zero=0.0, within=(-reach, reach))
    caption = (
        "Right of the line the first arm is higher. Rings: one seed each. Dot and bar: mean difference and Student's 95% interval; "
        "an arrow where it goes on beyond the axis."
    )
    return Figure(
        name="contrasts",
        title="Differences on the same seeds",
        drawing=drawing,
        caption=caption,
        header=("contrast", "seed", "difference", "low", "high"),
        rows=table,
    )


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
        drawing=dot_rows(rows, label=title, x_label="mean final emotion of held-out users, 0 to 100", width=520.0) if rows else NOTHING,
        caption="Rings: one run each. Dot: their mean. Bar: 95% bootstrap interval over runs, too narrow with few of them.",
        header=("arm", "seed", "score", "low", "high"),
        rows=table,
    )


def last_token(courses: Courses) -> float:
    """Where the longest run has come to."""
    return max((course.policy_tokens for course in courses.runs), default=0.0) or 1.0


def learning_curves(courses: Courses, colours: Mapping[str, str]) -> Figure:
    """All arms in one frame: each run thin, the arm's mean strong and named at its end."""
    end = last_token(courses)
    drawn = [course for course in courses.runs if course.looks]
    scores = [look.score for course in drawn for look in course.looks]
    title, header = "Held-out score over policy tokens", ("arm", "seed", "policy_tokens", "score")
    caption = (
        "Mean final emotion on the same small grid of held-out users at every look. Thin: one run each, broken where it has not finished. "
        "Strong: the mean over an arm's finished runs, before there is one over those begun."
    )
    rows = [(course.arm, course.seed, look.policy_tokens, look.score) for course in drawn for look in course.looks]
    if not scores:
        return Figure(name="learning_curves", title=title, drawing=NOTHING, caption=caption, header=header, rows=rows)
    low, high = 10.0 * (min(scores) // 10.0), min(10.0 * -(-max(scores) // 10.0), 100.0)
    frame = Frame(0.0, end, low, max(high, low + 10.0), FULL, OVERVIEW_HEIGHT, top=14.0, margin=label_width(list(colours)))
    parts = [grid(frame, x_label="policy tokens")]
    for course in drawn:
        dashes = ("" if course.is_finished else " unfinished") + (" many" if len(colours) > len(COLOURS) else "")
        parts.append(polyline(frame, *course.curve, f"line thin {colours[course.arm]}{dashes}", words=course.name))
    ends = []
    for i, arm in enumerate(colours):
        mean = mean_curve([course.curve for course in courses.averaged(arm) if course.looks])
        if mean is not None:
            parts.append(polyline(frame, *mean, f"line strong {colours[arm]}", words=f"{arm}, mean"))
            parts.append(marks(frame, *mean, colours[arm], start=i))
            if mean.tokens[-1] > NEARLY * end:
                ends.append((arm, mean.scores[-1], colours[arm]))
            else:
                x, y = frame.x(mean.tokens[-1]) + 7.0, frame.y(mean.scores[-1]) + 4.0
                parts.append(f'<text class="key {colours[arm]}" x="{x:.1f}" y="{y:.1f}">{escape(arm)}</text>')
    parts.append(end_labels(frame, ends))
    return Figure(
        name="learning_curves", title=title, drawing=svg(FULL, OVERVIEW_HEIGHT, title, parts), caption=caption, header=header, rows=rows
    )


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
    frames = {column.key: frame_of(column, lines[column.key].values(), end) for column in LATTICE}
    means = {
        key: {arm: mean_curve([smoothed(lines[key][course.name], key) for course in courses.averaged(arm)]) for arm in arms}
        for key in lines
    }
    for arm in arms:
        for column in LATTICE:
            key, own = column.key, courses.of(arm)
            strokes = [
                Stroke(xs=m.tokens, ys=m.scores, classes="others", words=other) for other, m in means[key].items() if m and other != arm
            ]
            for course in own:
                thin = smoothed(lines[key][course.name], key)
                strokes.append(Stroke(xs=thin.tokens, ys=thin.scores, classes="seed", words=f"seed {course.seed}"))
                rows += [(arm, course.seed, column.title, x, y) for x, y in zip(*lines[key][course.name], strict=True)]
            mean = means[key][arm]
            strokes += [Stroke(xs=mean.tokens, ys=mean.scores, classes="mean")] if mean else []
            ribbons = [band] if column.key == "curriculum/strictness" and (band := issued_band(own, end)) else []
            alarms = [x for course in own for x in alarm_tokens(course)] if not key else []
            title, subtitle = (arm, column.title) if not key else (column.title, "")
            panels.append(
                panel(frames[key], strokes, title=title, subtitle=subtitle, x_label="policy tokens", ribbons=ribbons, alarms=alarms)
            )
    return Figure(
        name="courses",
        title="Each arm by itself",
        drawing=tiled(panels, columns=len(LATTICE), width=PANEL[0], height=PANEL[1], label="courses of all arms") if panels else NOTHING,
        caption=(
            "Thin: one run each (running means where a step is noisy). Strong: their mean. Grey: the means of the other arms. "
            "Shaded: where four of five issued tasks lie. Triangles: alarms."
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


def frame_of(column: Column, lines: Iterable[Curve], end: float) -> Frame:
    """One frame for all arms, so that rows can be compared."""
    values = [y for line in lines for y in smoothed(line, column.key).scores]
    low, high = column.bounds or (0.0, max(values, default=1.0) or 1.0)
    if column.bounds is None:
        ticks = ticks_between(low, high, at_most=5)
        step = ticks[1] - ticks[0]
        high = step * -(-high // step)
    return Frame(0.0, end, low, high, PANEL[0], PANEL[1], top=26.0, margin=20.0)


def issued_band(courses: Sequence[Course], end: float) -> Ribbon | None:
    """Between which strictnesses four of five tasks of an arm lie, over tokens; None where none is recorded."""
    tasks = [task for course in courses for task in course.issued]
    if not tasks:
        return None
    xs, lows, highs = issued_between(tasks, end=end)
    return Ribbon(xs=xs, lows=lows, highs=highs)


def alarm_tokens(course: Course) -> list[float]:
    """Policy tokens at which alarms of a run went off."""
    steps, tokens = course.run.series("perf/policy_tokens")
    at = dict(zip(steps, tokens, strict=True))
    return [at[int(step)] for step in alarm_steps(course.run) if int(step) in at]


def profiles(found: Mapping[str, Any], sweep: Sweep, colours: Mapping[str, str]) -> list[Figure]:
    """Where an arm is good: its score by strictness, and the share of runs and cells above a score."""
    records = {arm: found["arms"][arm] for arm in colours if (found["arms"].get(arm) or {}).get("by_strictness")}
    by_strictness = {arm: record["by_strictness"] for arm, record in records.items()}
    shares = {arm: record["profile"] for arm, record in records.items()}
    dots = [
        (arm, float(d), fmean(score for (_, at), score in run.cells.items() if at == d))
        for arm in records
        for run in sweep.of(arm).values()
        for d in sorted({at for _, at in run.cells})
    ]
    return [
        profile_figure(
            by_strictness,
            "strictness",
            colours,
            name="score_by_strictness",
            title="Final held-out score by strictness",
            x_label="strictness of the user",
            y_range=EMOTION,
            dots=dots,
            caption="Mean over families at the last full evaluation. Lines: means over seeds. Dots: one run each.",
        ),
        profile_figure(
            shares,
            "threshold",
            colours,
            name="performance_profile",
            title="Share of runs and cells above a score",
            x_label="score, mean final emotion",
            y_range=(0.0, 1.0),
            dots=(),
            caption=f"Over families, strictness and seeds together, at {len(THRESHOLDS)} scores. The higher a line, the better.",
        ),
    ]


def profile_figure(
    lines: Mapping[str, Mapping[str, list[float]]],
    axis: str,
    colours: Mapping[str, str],
    *,
    name: str,
    title: str,
    x_label: str,
    y_range: tuple[float, float],
    dots: Sequence[tuple[str, float, float]],
    caption: str,
) -> Figure:
    """A line for each arm, named at its end."""
    rows = [
        (arm, *values) for arm, line in lines.items() for values in zip(line[axis], line["value"], line["low"], line["high"], strict=True)
    ]
    drawing = NOTHING
    if lines:
        xs = [x for line in lines.values() for x in line[axis]]
        width, height = FULL / 2 - 10.0, max(320.0, 60.0 + 17.0 * len(lines))
        frame = Frame(min(xs), max(xs), *y_range, width, height, top=14.0, margin=label_width(list(lines)))
        parts = [grid(frame, x_label=x_label)]
        parts += [f'<circle class="dot faint {colours[arm]}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2"/>' for arm, x, y in dots]
        parts += [polyline(frame, line[axis], line["value"], f"line {colours[arm]}", words=arm) for arm, line in lines.items()]
        parts += [marks(frame, line[axis], line["value"], colours[arm], start=i) for i, (arm, line) in enumerate(lines.items())]
        best_first = sorted(lines, key=lambda arm: -fmean(lines[arm]["value"]))
        parts.append(key_column(frame, [(arm, colours[arm]) for arm in best_first]))
        drawing = svg(width, height, title, parts)
    return Figure(name=name, title=title, drawing=drawing, caption=caption, header=("arm", axis, "value", "low", "high"), rows=rows)


def cell_figure(sweep: Sweep, arms: Sequence[str]) -> Figure:
    """Held-out score by hidden intention and strictness, a map for each arm."""
    scores = {arm: by_intention(sweep, arm) for arm in arms}
    scores = {arm: cells for arm, cells in scores.items() if cells}
    levels = sorted({level for cells in scores.values() for _, level in cells})
    intentions = sorted({intention for cells in scores.values() for intention, _ in cells})
    maps = [
        cell_map(
            {(intention, f"{level:g}"): score for (intention, level), score in cells.items()},
            intentions,
            [f"{level:g}" for level in levels],
            title=arm,
            low=0.0,
            high=100.0,
            x_label="strictness",
        )
        for arm, cells in scores.items()
    ]
    width, height = 100.0 + 34.0 * len(levels), 22.0 + 21.0 * len(intentions) + 38.0
    columns = max(min(int(FULL // width), 4), 1)
    return Figure(
        name="cells",
        title="Final held-out score by hidden intention and strictness",
        drawing=tiled(maps, columns=columns, width=max(width, FULL / columns), height=height, label="scores by cell") if maps else NOTHING,
        caption="Mean over persona types and seeds at the last full evaluation, 0 to 100; dark is better.",
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
