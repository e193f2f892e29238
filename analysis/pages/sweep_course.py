"""What the runs of a sweep went through, finished or not: for the pages that show courses, where `comparisons.sweep` reads results."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.comparisons.sweep import run_folders, seed_of
from analysis.grades import Look, curve_of, lacks_looks, looks, read_grades
from analysis.learning_curves import Curve
from analysis.pages.before_after import BeforeAfter, before_after
from analysis.runs import Run, read_run, setting

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
