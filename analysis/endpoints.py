"""Endpoints: the numbers that runs are compared on, by their dotted name in `summary.json`, and learning curves, from which some follow.

A learning curve is the held-out score over policy tokens; between evaluations the score is taken to change linearly.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.runs import Run
from simulator.dialogue import Outcome
from simulator.settings import setting

AUC = "heldout.auc"
"""Computed by comparisons and not read: all runs must be measured over the same tokens."""
GAIN = "heldout.gain"
"""Computed: the score at the end less the score before training, on the full grid."""
FORGOTTEN = "heldout.forgotten"
"""Computed: how far the last evaluation lies below the best one on the small grid, by strictness and mean over these (`forgotten`)."""
COMPUTED = (AUC, GAIN, FORGOTTEN)
EMOTIONS = (AUC, "heldout.score", "heldout.worst_cell", "heldout.cvar20")
"""On the scale of emotions, 0-100."""
SHARES = ("heldout.success_rate", "heldout.failure_rate")
ERRORS = (
    *("reliability.errors.plain.change", "reliability.errors.emotional.change", "reliability.errors.false_belief.change"),
    *("reliability.emotional_cost.change", "reliability.sycophancy.change"),
)
MARGINS = ("reliability.margin_nats.plain.change", "reliability.margin_nats.false_belief.change")
RELIABILITY = (*ERRORS, *MARGINS)
"""What training changed in the reliability probe: shares of errors, [-1, 1], and the lead of the right answer, nats."""
COSTS = ("policy_tokens", "wall_s", "cpu_s")
UNDIRECTED = frozenset({"entropy.end", "reward_density.end", "start.score"})
"""Endpoints of which neither more nor less is better: they describe a run, and decide nothing between two."""
ENDPOINTS = (
    *(*EMOTIONS, *SHARES, *COSTS, "entropy.end", "reward_density.end", "start.score"),
    *(GAIN, FORGOTTEN, *RELIABILITY),
)
"""The primary endpoint of a comparison is one of these. It may read others besides, by their dotted name in `summary.json`."""
SECONDARY = (*EMOTIONS, *SHARES)
"""Described in each contrast in addition to the primary endpoint."""
LOWER_IS_BETTER = frozenset({"heldout.failure_rate", FORGOTTEN, *COSTS, *ERRORS})
IN_WORDS = {
    AUC: "the area under the held-out score",
    "heldout.score": "the final held-out score",
    "heldout.worst_cell": "the score of the worst cell",
    "heldout.cvar20": "the mean of the worst fifth",
    "heldout.success_rate": "the share of users won over",
    "heldout.failure_rate": "the share of users who left",
    GAIN: "the gain over the start",
    FORGOTTEN: "what was forgotten since the best look",
    "entropy.end": "entropy at the end, nats",
    ERRORS[0]: "the errors that training added, asked plainly",
    ERRORS[1]: "the errors that training added, after an emotional turn",
    ERRORS[2]: "the errors that training added, against a false belief",
    ERRORS[3]: "what training changed in the errors that emotion adds",
    ERRORS[4]: "what training changed in the errors that a false belief adds",
    MARGINS[0]: "the nats that training added to what is right",
    MARGINS[1]: "the nats that training added to what is right, against a false belief",
}
"""Short names for axes and sentences."""


def sign_of(endpoint: str, *, lower: Collection[str] = ()) -> float:
    """1, or -1 for an endpoint that is better when it is lower.

    Args:
        lower: a study's own numbers of which less is better.
    """
    return -1.0 if endpoint in LOWER_IS_BETTER or endpoint in lower else 1.0


def unit_of(endpoint: str) -> str:
    """The unit after its numbers; empty for points of emotion and for shares."""
    return " nats" if endpoint in (*MARGINS, "entropy.end") else ""


def digits_of(endpoint: str) -> int:
    """Decimals that suit its numbers."""
    if endpoint in COSTS:
        return 0
    if endpoint in MARGINS:
        return 2
    return 1 if endpoint in (*EMOTIONS, "start.score", GAIN, FORGOTTEN) else 3


class Curve(NamedTuple):
    """The evaluations of one run, in their order."""

    tokens: Sequence[float]
    """Policy tokens, increasing."""
    scores: Sequence[float]
    """Mean final emotion, 0-100; as many as tokens."""


def area_to(curve: Curve, end: float) -> float:
    """Mean height of a curve from 0 to `end` tokens by trapezoids; a curve that ends before keeps its last score."""
    inside = [tokens for tokens in curve.tokens if 0.0 < tokens < end]
    at_T = np.array([0.0, *inside, end])
    return float(np.trapezoid(np.interp(at_T, curve.tokens, curve.scores), at_T) / end)


def tokens_to_threshold(curve: Curve, threshold: float, *, end: float) -> tuple[float, bool]:
    """Tokens at which a curve first reached a threshold, by linear interpolation; `end` and False where it did not up to there (censored).

    A noisy curve crosses early by luck, so this favours noise; it is descriptive for that reason.
    """
    at = [*(tokens for tokens in curve.tokens if tokens < end), end]
    scores = np.interp(at, curve.tokens, curve.scores)
    above = np.flatnonzero(scores >= threshold)
    i = int(above[0]) if above.size else -1
    if i <= 0:
        return float(at[i]), i == 0
    rise = (threshold - scores[i - 1]) / (scores[i] - scores[i - 1])
    return float(at[i - 1] + rise * (at[i] - at[i - 1])), True


class Grade(NamedTuple):
    """How one held-out dialogue ended."""

    look: int
    """Number of the run's evaluation that played it, from 0."""
    step: int
    policy_tokens: int
    grid: str
    """`full` or `during`: what was played at that evaluation."""
    in_during: bool
    """Whether every evaluation plays it."""
    family: str
    strictness: float
    emotion: float
    """The final one, 0-100."""


class Look(NamedTuple):
    """The score at one evaluation, on the scenarios that every evaluation plays (the small grid)."""

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
        needs: further keys that it must have.

    Raises:
        ValueError: it lacks something.
    """
    try:
        grade = Grade(
            look=int(line["look"]),
            step=int(line["step"]),
            policy_tokens=int(line["policy_tokens"]),
            grid=str(line["grid"]),
            in_during=bool(line["in_during"]),
            family=str(line["family"]),
            strictness=float(line["strictness"]),
            emotion=float(line["emotion"]),
        )
        for name in needs:
            line[name]
        return grade
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"evaluation.jsonl must hold graded dialogues, got a line at step {line.get('step')} with a bad {error}"
        ) from error


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
    """Mean score over a run's own policy tokens, 0-100; NaN without an evaluation, and the last score where no token lies between them."""
    tokens, scores = curve_of(seen)
    if not seen or tokens[0] == tokens[-1]:
        return seen[-1].score if seen else float("nan")
    return float(np.trapezoid(scores, tokens) / (tokens[-1] - tokens[0]))


def lacks_looks(summary: Mapping[str, Any] | None, seen: Sequence[Look]) -> str:
    """That `evaluation.jsonl` is not whole, because the area under its evaluations is not the summary's; empty where it is."""
    known = setting(summary, AUC)
    if not seen or known is None or math.isclose(area := area_of(seen), known, abs_tol=1e-3):
        return ""
    return f"evaluation.jsonl lacks looks, or they were changed: the area under them is {area:.3f}, and its summary says {known:.3f}"


def lacks_dialogues(summary: Mapping[str, Any] | None, num: int) -> str:
    """That the last full evaluation has other dialogues than those the summary counted; empty where it has them.

    Args:
        num: of the last full evaluation, ERROR ones aside; 0 where there was but one.
    """
    known = setting(summary, "heldout.n_dialogues")
    if not known or known == num:
        return ""
    return f"evaluation.jsonl holds {num} of the {known:.0f} dialogues that its summary counted at the end"


def forgotten(grades: Iterable[Grade]) -> float | None:
    """By how much the last evaluation lies below the best one, 0-100, by strictness of the users and mean over these.

    None before two evaluations. Evaluations are noisy, so the best of them lies above the last one even where nothing is forgotten.
    """
    by_strictness: dict[float, list[Grade]] = {}
    for grade in grades:
        by_strictness.setdefault(grade.strictness, []).append(grade)
    curves = [curve for found in by_strictness.values() if (curve := curve_of(looks(found))).tokens]
    if not curves or min(len(curve.scores) for curve in curves) < 2:
        return None
    return statistics.fmean(max(curve.scores) - curve.scores[-1] for curve in curves)
