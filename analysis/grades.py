"""How a run's held-out dialogues ended, and the learning curve that follows; `pages.before_after` reads the dialogues themselves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.learning_curves import Curve, area_under_curves
from analysis.runs import Run, setting
from simulator.dialogue import Outcome

SAME_AREA = 1e-3
"""Points by which two areas under the same looks may differ, written down as they are with few digits."""


class Grade(NamedTuple):
    """How one held-out dialogue ended."""

    look: int
    """Which evaluation of the run it belongs to, from 0."""
    step: int
    policy_tokens: int
    grid: str
    """`full` or `during`: what was played at that look."""
    in_during: bool
    """Whether every look plays it."""
    family: str
    strictness: float
    emotion: float
    """The final one, 0-100."""


class Look(NamedTuple):
    """The score at one evaluation, on the scenarios that every evaluation plays."""

    step: int
    policy_tokens: int
    score: float
    """Mean final emotion, 0-100."""


def read_grades(run: Run) -> list[Grade]:
    """The held-out dialogues of a run.

    Raises:
        ValueError: a line lacks something.
    """
    return grades_of(run.evaluation())


def grades_of(lines: Iterable[Mapping[str, Any]]) -> list[Grade]:
    """Lines of `evaluation.jsonl` as grades, in the order they were played; ERROR ones count nowhere.

    Raises:
        ValueError: a line lacks something.
    """
    return [grade_of(line) for line in lines if line.get("outcome") != Outcome.ERROR]


def grade_of(line: Mapping[str, Any], *, needs: Sequence[str] = ("outcome",)) -> Grade:
    """A line of `evaluation.jsonl` as a grade.

    Args:
        needs: what it must have besides.

    Raises:
        ValueError: it lacks something, or its emotion or strictness is none.
    """
    try:
        grade = Grade(
            look=int(line["look"]),
            step=int(line["step"]),
            policy_tokens=int(line["policy_tokens"]),
            grid=str(line["grid"]),
            in_during=bool(line["in_during"]),
            family=str(line["family"]),
            strictness=within(line, "strictness", 1),
            emotion=within(line, "emotion", 100),
        )
        if lacking := [name for name in needs if name not in line]:
            raise KeyError(lacking[0])
        return grade
    except (KeyError, TypeError, ValueError) as error:
        which = f" (dialogue {line['uid']})" if "uid" in line else ""
        raise ValueError(
            f"evaluation.jsonl must hold graded dialogues, got a line at step {line.get('step')} with a bad {error}{which}"
        ) from error


def within(line: Mapping[str, Any], name: str, highest: float) -> float:
    """A number in [0, highest].

    Raises:
        KeyError: it is not there.
        ValueError: it is something else.
    """
    value = line[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= highest:
        raise ValueError(f"{name}: it must be a number in [0, {highest}], got {value!r}")
    return float(value)


def looks(grades: Iterable[Grade]) -> list[Look]:
    """The scores that make up a learning curve, in their order; evaluations at the same moment are one."""
    emotions: dict[tuple[int, int], list[float]] = {}
    for grade in grades:
        if grade.in_during:
            emotions.setdefault((grade.step, grade.policy_tokens), []).append(grade.emotion)
    return [Look(*moment, statistics.fmean(scores)) for moment, scores in sorted(emotions.items())]


def curve_of(looks: Sequence[Look]) -> Curve:
    """Score over policy tokens."""
    return Curve([look.policy_tokens for look in looks], [look.score for look in looks])


def area_of(seen: Sequence[Look]) -> float:
    """Mean score over policy tokens, 0-100; NaN without a look, and the last score where all lie at the same number of tokens."""
    tokens_T, scores_T = map(np.array, curve_of(seen))
    if not seen or tokens_T[0] == tokens_T[-1]:
        return seen[-1].score if seen else float("nan")
    return float(area_under_curves(tokens_T, scores_T[None])[0])


def lacks_looks(summary: Mapping[str, Any] | None, seen: Sequence[Look]) -> str:
    """That the looks are not those which the summary was made of, seen by the area under them; empty where they are, or nothing tells."""
    told = setting(summary, "heldout.auc")
    if summary is not None and seen and "heldout" not in summary:
        return "its summary.json says nothing of heldout, though evaluation.jsonl holds looks"
    if not seen or told is None or math.isclose(area := area_of(seen), told, abs_tol=SAME_AREA):
        return ""
    return f"evaluation.jsonl lacks looks, or they were changed: the area under them is {area:.3f}, and its summary says {told:.3f}"


def lacks_dialogues(summary: Mapping[str, Any] | None, num: int) -> str:
    """That the last full look has other dialogues than those the summary counted; empty where it has them, or nothing tells.

    Args:
        num: of the last full look, ERROR ones aside; 0 where there was but one.
    """
    told = setting(summary, "heldout.n_dialogues")
    if not told or told == num:
        return ""
    return f"evaluation.jsonl holds {num} of the {told:.0f} dialogues that its summary counted at the end"


def curves_by_strictness(grades: Iterable[Grade]) -> dict[float, Curve]:
    """The learning curve with the users of each strictness, from the most lenient on."""
    by_strictness: dict[float, list[Grade]] = {}
    for grade in grades:
        by_strictness.setdefault(grade.strictness, []).append(grade)
    curves = {strictness: curve_of(looks(found)) for strictness, found in sorted(by_strictness.items())}
    return {strictness: curve for strictness, curve in curves.items() if curve.tokens}


def forgotten(grades: Iterable[Grade]) -> float | None:
    """By how much the last look lies below the best one, 0-100, by strictness of the users and mean over these; None before two looks.

    Looks are noisy, so the best of them lies above the last one even where nothing is forgotten.
    """
    curves = curves_by_strictness(grades).values()
    if not curves or min(len(curve.scores) for curve in curves) < 2:
        return None
    return statistics.fmean(max(curve.scores) - curve.scores[-1] for curve in curves)
