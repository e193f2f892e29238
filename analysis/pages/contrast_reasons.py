"""Why a contrast came out as it did, from the learning curves, the teachers' logs and the cells of the last evaluation.

What is said are facts beside each other, not causes: where in the budget two arms part and with which users, what either teacher issued,
how much there was to learn from (reward density, groups without contrast, entropy), and in which cells the other arm is ahead at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from analysis.comparisons.contrast_words import listed
from analysis.comparisons.sweep import Sweep, common_cells
from analysis.grades import curves_by_strictness, read_grades
from analysis.learning_curves import Curve
from analysis.pages.sweep_course import Course, Courses, value_at
from analysis.teaching import read_teaching
from analysis.wording import count

NUM_PARTS = 5
"""Of the budget, one after the other."""
POINTS = 21
"""At which a curve is read in each of them."""
SIGNALS = (
    ("curriculum/reward_density", "reward density", "{:.2f}"),
    ("curriculum/zero_variance_share", "groups without contrast", "{:.0%}"),
)
"""Metric, name and form of what there was to learn from."""
ENDS = 5
"""Steps that make up the start and the end of a run."""


def why(contrast: Mapping[str, Any], courses: Courses, sweep: Sweep) -> str:
    """What went with the outcome of a contrast, in a few sentences; empty where nothing of it was recorded."""
    a, b, seeds = contrast["a"], contrast["b"], contrast["seeds"]
    ours, theirs = ([course for course in courses.of(arm) if course.seed in seeds and course.is_finished] for arm in (a, b))
    if not seeds or len(ours) != len(seeds) or len(theirs) != len(seeds):
        return ""
    said = [
        over_the_budget(a, b, ours, theirs),
        with_whom(a, b, ours, theirs),
        what_was_issued(a, b, ours, theirs),
        what_could_be_learnt(a, b, ours, theirs),
        where_the_other_leads(a, b, seeds, sweep),
        what_was_decided(a, ours),
    ]
    return " ".join(sentence for sentence in said if sentence)


def over_the_budget(a: str, b: str, ours: Sequence[Course], theirs: Sequence[Course]) -> str:
    """Where the curves part: the mean difference in each fifth of the common tokens."""
    parts = by_fifths([course.curve for course in ours], [course.curve for course in theirs])
    if not parts:
        return ""
    shown = [round(part, 1) + 0.0 for part in parts]
    numbers = [f"{part:+.1f}" for part in shown]
    if min(shown) > 0.0:
        return f"{a} led {b} by {listed(numbers)} points of held-out score in successive fifths of their common tokens."
    return f"{a} less {b} in successive fifths of their common tokens: {listed(numbers)} points of held-out score."


def by_fifths(ours: Sequence[Curve], theirs: Sequence[Curve]) -> list[float]:
    """The mean difference of two groups of curves in equal stretches of the tokens that all of them cover; empty without any."""
    curves = [*ours, *theirs]
    if any(len(curve.tokens) < 2 for curve in curves):
        return []
    first, last = max(curve.tokens[0] for curve in curves), min(curve.tokens[-1] for curve in curves)
    if not first < last:
        return []
    parts = []
    edges = np.linspace(first, last, NUM_PARTS + 1)
    for start, end in pairwise(edges):
        at = np.linspace(start, end, POINTS)
        heights = [[fmean(value_at(curve, float(x)) for curve in side) for x in at] for side in (ours, theirs)]
        differences = np.array(heights[0]) - np.array(heights[1])
        parts.append(float(np.trapezoid(differences, at) / (at[-1] - at[0])))
    return parts


def with_whom(a: str, b: str, ours: Sequence[Course], theirs: Sequence[Course]) -> str:
    """The mean difference over the common tokens at each strictness of the held-out users."""
    sides = [[curves_by_strictness(read_grades(course.run)) for course in side] for side in (ours, theirs)]
    shared = sorted(set.intersection(*(set(curves) for side in sides for curves in side)))
    parts = {at: by_fifths(*([curves[at] for curves in side] for side in sides)) for at in shared}
    if len(shared) < 2 or not all(parts.values()):
        return ""
    numbers = [f"{round(fmean(each), 1) + 0.0:+.1f} at {at:g}" for at, each in parts.items()]
    return f"By the strictness of the users who judged, {a} less {b} over their common tokens: {listed(numbers)}."


def what_was_issued(a: str, b: str, ours: Sequence[Course], theirs: Sequence[Course]) -> str:
    """Mean strictness of the users that either teacher chose, at the start and at the end."""
    ends = [ends_of(side, "curriculum/strictness") for side in (ours, theirs)]
    if None in ends:
        return ""
    (start, end), (other_start, other_end) = (pair for pair in ends if pair is not None)
    return f"{a} issued strictness from {start:.2f} to {end:.2f}, {b} from {other_start:.2f} to {other_end:.2f}."


def what_could_be_learnt(a: str, b: str, ours: Sequence[Course], theirs: Sequence[Course]) -> str:
    """Reward density, groups without contrast and entropy of either arm."""
    parts = []
    for key, name, form in SIGNALS:
        means = [mean_over(side, key) for side in (ours, theirs)]
        if None not in means:
            mine, other = (form.format(mean) for mean in means)
            parts.append(f"{name} {mine} against {other}")
    ends = [ends_of(side, "actor/entropy") for side in (ours, theirs)]
    if None not in ends:
        last, other_last = (pair[1] for pair in ends if pair is not None)
        parts.append(f"entropy at the end {last:.2f} against {other_last:.2f} nats")
    return f"{a} against {b}: {', '.join(parts)}." if parts else ""


def where_the_other_leads(a: str, b: str, seeds: Sequence[int], sweep: Sweep) -> str:
    """In how many cells of the last evaluation the other arm is ahead, and where the most."""
    sides = [[sweep.of(arm)[seed] for seed in seeds] for arm in (a, b)]
    cells = common_cells([run for side in sides for run in side])
    if not cells:
        return ""
    leads = {cell: fmean(run.cells[cell] for run in sides[1]) - fmean(run.cells[cell] for run in sides[0]) for cell in cells}
    ahead = sum(lead > 0.0 for lead in leads.values())
    if not ahead:
        return f"At the end {b} is ahead in none of {len(cells)} cells."
    family, strictness = max(leads, key=lambda cell: leads[cell])
    lead = leads[family, strictness]
    return f"At the end {b} is ahead in {ahead} of {len(cells)} cells, the most in {family} at strictness {strictness:g} ({lead:+.1f})."


def what_was_decided(a: str, ours: Sequence[Course]) -> str:
    """What the first arm's teacher noted beyond the tasks it issued, as far as its logs can be read."""
    counts, num_read = Counter[str](), 0
    for course in ours:
        try:
            counts.update(decision.name.replace("_", " ") for decision in read_teaching(course.run).decisions)
        except (ValueError, OSError):
            continue
        num_read += 1
    if not counts:
        return ""
    over = "these runs" if num_read == len(ours) else f"the {num_read} of {len(ours)} runs whose log can be read"
    said = ", ".join(f"{name} {count(num, 'time')}" for name, num in counts.most_common())
    return f"The log of {a} notes {said} over {over}."


def mean_over(side: Sequence[Course], key: str) -> float | None:
    """A metric over all steps, mean over the runs that measured it; None where none did."""
    means = [fmean(values) for values in values_of(side, key)]
    return fmean(means) if means else None


def ends_of(side: Sequence[Course], key: str) -> tuple[float, float] | None:
    """A metric over the first and over the last steps, means over the runs that measured it; None where none did."""
    ends = [(fmean(values[:ENDS]), fmean(values[-ENDS:])) for values in values_of(side, key)]
    return (fmean(start for start, _ in ends), fmean(end for _, end in ends)) if ends else None


def values_of(side: Sequence[Course], key: str) -> Iterator[list[float]]:
    """The series of the runs that have it."""
    return (values for course in side if (values := course.run.series(key).values))
