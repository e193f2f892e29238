"""Figures of a sweep's report: learning curves, contrasts, and scores of arms. Every seed is drawn with the mean of its arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from analysis.endpoints import AUC, Look, endpoint, grades_of, looks
from analysis.plots import FULL, WIDE, Dots, Figure, Line, arm_styles, binned, dot_rows, frame, heat_map, mark, running_mean
from analysis.runs import Run, read_run
from analysis.sweeps import Sweep, run_folders, seed_of
from analysis.text import finite, signed
from simulator.settings import setting

FULL_GRID = "At the last evaluation, on the full held-out grid."


@dataclass(frozen=True, kw_only=True)
class Course:
    """One run in the course of its training, finished or not."""

    arm: str
    seed: int
    run: Run
    looks: list[Look]
    """Held-out scores on the small grid."""

    @property
    def name(self) -> str:
        """Arm and seed."""
        return f"{self.arm}/seed_{self.seed}"

    @property
    def is_finished(self) -> bool:
        """Whether it has a summary."""
        return self.run.summary is not None

    @property
    def budget(self) -> int | None:
        """Policy tokens that it is allowed; None where its config does not say."""
        budget = setting(self.run.config, "budget.policy_tokens")
        return budget if isinstance(budget, int) and budget > 0 else None

    @property
    def score(self) -> Line:
        """The held-out score over policy tokens."""
        return Line(self.name, [look.policy_tokens for look in self.looks], [look.score for look in self.looks])

    def smoothed(self, key: str) -> Line:
        """A metric's running mean over the policy tokens at the end of the steps that measured it."""
        tokens = dict(zip(*self.run.series("perf/policy_tokens"), strict=True))
        points = [(tokens[step], value) for step, value in zip(*self.run.series(key), strict=True) if step in tokens]
        xs, ys = binned([x for x, _ in points], [y for _, y in points])
        return Line(self.name, xs, running_mean(ys))


class Courses(NamedTuple):
    """All runs of a sweep that can be read, by arm and seed."""

    runs: list[Course]
    unreadable: dict[str, str]
    """Why, by the name of the run."""

    @classmethod
    def read(cls, folder: Path) -> Courses:
        """Reads every run in a sweep's folder; one that cannot be read is named with the reason.

        Raises:
            ValueError: the folder holds no arms.
        """
        runs, unreadable = [], {}
        for place in run_folders(folder):
            try:
                run = read_run(place)
                runs.append(Course(arm=place.parent.name, seed=seed_of(place), run=run, looks=looks(grades_of(run.evaluation()))))
            except (ValueError, OSError) as error:
                unreadable[f"{place.parent.name}/{place.name}"] = str(error)
        return cls(runs, unreadable)

    def arms(self) -> list[str]:
        """Those with a run that can be read."""
        return list(dict.fromkeys(course.arm for course in self.runs))

    def of(self, arm: str) -> list[Course]:
        """The runs of an arm."""
        return [course for course in self.runs if course.arm == arm]


def ranked(arms: Sequence[str], found: Mapping[str, Any] | None) -> list[str]:
    """The arms by the primary endpoint, the best first, then those without."""
    primary = found["plan"]["primary"] if found else ""

    def place(arm: str) -> float:
        values = (endpoints_of(found, arm)).get(primary)
        return -endpoint(primary).sign * values["mean"]["value"] if values else float("inf")

    return sorted(arms, key=place)


def endpoints_of(found: Mapping[str, Any] | None, arm: str) -> Mapping[str, Any]:
    """What a comparison has of an arm by endpoint; nothing for an arm without runs, or whose runs are not averaged."""
    return ((found or {"arms": {}})["arms"].get(arm) or {}).get("endpoints") or {}


def sweep_figures(courses: Courses, sweep: Sweep | None, found: Mapping[str, Any] | None) -> list[Figure]:
    """All figures.

    Args:
        sweep, found: the finished runs and their comparison; None while there is none.
    """
    arms = ranked(courses.arms(), found)
    named = [arm for contrast in (found["contrasts"] if found else ()) for arm in (contrast["a"], contrast["b"]) if arm in arms]
    styles = {arm: style for arm, style in arm_styles(dict.fromkeys([*named, *arms])).items() if arm in arms}
    made = [
        learning_curves(courses, arms, styles, found),
        metric_curves(courses, styles, "strictness", "Strictness issued", "curriculum/strictness"),
        metric_curves(courses, styles, "entropy", "Policy entropy, nats", "actor/entropy"),
        metric_curves(courses, styles, "reward_density", "Reward density", "curriculum/reward_density"),
    ]
    if sweep is not None and found is not None:
        made += [
            contrasts_figure(found),
            arms_figure(found, AUC, name="area", title="Area under the held-out score"),
            arms_figure(found, "heldout.score", name="final", title="Final held-out score"),
            strictness_figure(found, arms, styles),
            intentions_figure(sweep, [arm for arm in arms if endpoints_of(found, arm)]),
        ]
    return made


def learning_curves(
    courses: Courses, arms: Sequence[str], styles: Mapping[str, Mapping[str, Any]], found: Mapping[str, Any] | None
) -> Figure:
    """The held-out score over tokens: each run thin, an arm's mean strong in its band."""
    drawn = [course for course in courses.runs if course.looks]
    means = {arm: curve for arm in arms if found and (curve := (found["arms"].get(arm) or {}).get("curve"))}

    def draw(axes: Any) -> None:
        for course in drawn:
            colour = styles[course.arm]["color"]
            look = {"linewidth": 0.8, "alpha": 0.4} if course.is_finished else {"linewidth": 0.9, "linestyle": ":"}
            kind, marker = "run" if course.is_finished else "run-unfinished", "." if len(course.looks) < 3 else ""
            axes.plot(*course.score[1:], color=colour, marker=marker, label=None, gid=mark(kind, course.name), **look)
        for arm in arms:
            if mean := means.get(arm):
                tokens, style = mean["policy_tokens"], styles[arm]
                axes.fill_between(tokens, mean["low"], mean["high"], color=style["color"], alpha=0.15, linewidth=0)
                axes.plot(tokens, mean["value"], linewidth=2.0, label=arm, gid=mark("mean", arm), **style)
            else:
                axes.plot([], [], linewidth=0.8, label=arm, **styles[arm])
        frame(axes, x_label="policy tokens")
        axes.autoscale(axis="y")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), fontsize=9)

    return Figure(
        name="learning_curves",
        title="Held-out score over policy tokens",
        draw=draw if drawn else None,
        caption=(
            "Mean final emotion on the same small grid of held-out users at every evaluation; final scores in the tables are of the full "
            "grid. Thin: one run each, dotted while unfinished. Strong: the mean over an arm's finished runs with a 95% bootstrap "
            "band, too narrow with few runs; none over runs that do not belong together."
        ),
        header=("arm", "seed", "policy_tokens", "score"),
        rows=[(course.arm, course.seed, look.policy_tokens, look.score) for course in drawn for look in course.looks],
        size=(FULL[0], max(380.0, 60.0 + 18.0 * len(arms))),
    )


def metric_curves(courses: Courses, styles: Mapping[str, Mapping[str, Any]], name: str, title: str, key: str) -> Figure:
    """A metric over tokens: running means, each run thin and the mean over an arm's runs strong."""
    lines = {arm: [line for course in courses.of(arm) if len((line := course.smoothed(key)).xs)] for arm in styles}

    def draw(axes: Any) -> None:
        for arm, of_arm in lines.items():
            for line in of_arm:
                axes.plot(line.xs, line.ys, color=styles[arm]["color"], linewidth=0.6, alpha=0.35, gid=mark("run", line.name))
            if (mean := mean_line(of_arm)) is not None:
                axes.plot(*mean[1:], linewidth=1.6, gid=mark("mean", arm), **styles[arm])
        frame(axes, x_label="policy tokens", y_range=(0.0, 1.0) if name == "strictness" else None)

    return Figure(
        name=name,
        title=title,
        draw=draw if any(lines.values()) else None,
        caption="Running means: thin one run each, strong the mean of an arm, coloured as above.",
        header=("run", "policy_tokens", "value"),
        rows=[(line.name, x, y) for of_arm in lines.values() for line in of_arm for x, y in zip(line.xs, line.ys, strict=True)],
    )


def mean_line(lines: Sequence[Line], *, points: int = 60) -> Line | None:
    """The mean over runs between the last of their first points and the first of their last; None without such a stretch."""
    first, last = max((line.xs[0] for line in lines), default=0.0), min((line.xs[-1] for line in lines), default=0.0)
    if not first < last:
        return None
    xs = np.linspace(first, last, points)
    return Line("mean", xs.tolist(), np.mean([np.interp(xs, line.xs, line.ys) for line in lines], axis=0).tolist())


def contrasts_figure(found: Mapping[str, Any]) -> Figure:
    """The differences of the contrasts on the primary endpoint, seed by seed, with their intervals."""
    primary = found["plan"]["primary"]
    rows: list[Dots] = []
    table: list[tuple[Any, ...]] = []
    for contrast in found["contrasts"]:
        if (main := contrast["endpoints"][primary]) is None:
            continue
        name, d, values = f"{contrast['a']} - {contrast['b']}", main["difference"], main["differences"]
        low, high = finite(d["low"]), finite(d["high"])
        rows.append(Dots(name, values, d["value"], low, high, signed(d["value"], endpoint(primary).digits)))
        seeds = contrast["seeds"] if len(contrast["seeds"]) == len(values) else [None] * len(values)
        table += [
            *((name, seed, value, None, None) for seed, value in zip(seeds, values, strict=True)),
            (name, "mean", d["value"], low, high),
        ]
    reach = 1.6 * max((abs(value) for row in rows for value in (*row.values, row.mean)), default=1.0) or 1.0
    draw, height = dot_rows(rows, x_label=f"difference in {endpoint(primary).words}", zero=True, x_range=(-reach, reach))
    many = "Rings: one seed each. Dot and bar: mean difference and Student's 95% interval; an arrow where it goes on beyond the axis."
    several = any(len(row.values) > 1 for row in rows)
    return Figure(
        name="contrasts",
        title="Differences on the same seeds",
        draw=draw,
        caption=f"Right of the line the first arm is higher. {many if several else 'Dot: the one seed.'}" if rows else "",
        header=("contrast", "seed", "difference", "low", "high"),
        rows=table,
        size=(600.0, height),
        nothing="No contrast can be computed yet.",
    )


def arms_figure(found: Mapping[str, Any], measure: str, *, name: str, title: str) -> Figure:
    """An endpoint of every arm: each run, the mean, and its interval; the best on top."""
    rows: list[Dots] = []
    table: list[tuple[Any, ...]] = []
    for arm, record in found["arms"].items():
        values = {seed: run[measure] for seed, run in record["runs"].items() if run[measure] is not None}
        table += [(arm, seed, value, None, None) for seed, value in values.items()]
        if averaged := endpoints_of(found, arm).get(measure):
            mean, low, high = (finite(averaged["mean"][bound]) for bound in ("value", "low", "high"))
            table.append((arm, "mean", mean, low, high))
            rows.append(Dots(arm, list(values.values()), averaged["mean"]["value"], low, high, f"{mean:.{endpoint(measure).digits}f}"))
    draw, height = dot_rows(sorted(rows, key=lambda row: -row.mean), x_label="mean final emotion of held-out users, 0 to 100")
    rings = "Rings: one run each. Dot: their mean. Bar: 95% bootstrap interval over runs, too narrow with few of them."
    grid = "On the small held-out grid, as the curves are." if measure == AUC else FULL_GRID
    return Figure(
        name=name,
        title=title,
        draw=draw,
        caption=f"{grid} {rings if any(len(row.values) > 1 for row in rows) else 'Dot: the one run.'}",
        header=("arm", "seed", "score", "low", "high"),
        rows=table,
        size=(WIDE[0], height),
    )


def strictness_figure(found: Mapping[str, Any], arms: Sequence[str], styles: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The final score over the strictness of users, a line for each arm with its interval."""
    lines = {arm: line for arm in arms if (line := (found["arms"].get(arm) or {}).get("by_strictness"))}

    def draw(axes: Any) -> None:
        for arm, line in lines.items():
            axes.fill_between(line["strictness"], line["low"], line["high"], color=styles[arm]["color"], alpha=0.15, linewidth=0)
            axes.plot(line["strictness"], line["value"], linewidth=1.6, label=arm, gid=mark("mean", arm), **styles[arm])
        axes.set(
            xlabel="strictness of the user", ylim=(0.0, 100.0), xticks=sorted({at for line in lines.values() for at in line["strictness"]})
        )
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02))

    names = ("strictness", "value", "low", "high")
    return Figure(
        name="score_by_strictness",
        title="Final held-out score by strictness",
        draw=draw if lines else None,
        caption=f"Mean over families and seeds, with 95% bootstrap bands. {FULL_GRID}",
        header=("arm", *names),
        rows=[(arm, *values) for arm, line in lines.items() for values in zip(*(line[name] for name in names), strict=True)],
        size=(WIDE[0], max(300.0, 60.0 + 15.0 * len(lines))),
    )


def intentions_figure(sweep: Sweep, arms: Sequence[str]) -> Figure:
    """The final score of each arm by hidden intention, a map."""
    found: dict[tuple[str, str], list[float]] = {}
    for arm in arms:
        for run in sweep.of(arm).values():
            for (family, _), score in run.cells.items():
                found.setdefault((arm, family.partition("/")[0].replace("_", " ")), []).append(score)
    means = {cell: fmean(scores) for cell, scores in found.items()}
    return Figure(
        name="score_by_intention",
        title="Final held-out score by hidden intention",
        draw=heat_map(means, arms, sorted({intention for _, intention in means}), x_label="hidden intention", high=100.0),
        caption=f"Mean over persona types, strictness and seeds, 0 to 100. {FULL_GRID}",
        header=("arm", "hidden_intention", "score"),
        rows=[(*cell, value) for cell, value in sorted(means.items())],
        size=(WIDE[0], 25.0 * len(arms) + 50.0),
    )
