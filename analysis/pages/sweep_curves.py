"""The figures of a sweep's course: every run over policy tokens, and the mean of its arm."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from analysis.drawing.arm_looks import Style, label_width, moved_apart, names_beside, style_of
from analysis.drawing.canvas import Plot, Sheet, hue, mark
from analysis.drawing.figures import Figure
from analysis.drawing.plots import FULL, LEFT, Panel, Stroke, dots_of_few, set_ranges
from analysis.drawing.plots import lattice as lattice_of
from analysis.drawing.ticks import binned, running_mean, ticks_between
from analysis.learning_curves import Curve
from analysis.pages.aftermath import alarm_steps
from analysis.pages.sweep_course import Course, Courses, issued_between, mean_curve

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
