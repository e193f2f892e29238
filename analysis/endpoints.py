"""What runs are compared on: one number a run, by its dotted name in `summary.json`.

Learning curves as numbers: the area under them, and how long a score took to be reached.

First a number from each run's curve, then statistics over runs (`analysis.stats`, `analysis.stats`): resampling every point of a curve by
itself would treat the looks of one run as independent and make intervals several times too narrow.

Runs look at different token counts. `common_curves` brings them to one shape: `tokens_T`, float[T], increasing, and `curves_RT`,
float[R, T], the score of each run there, NaN after its last look. Between looks the score is taken to change linearly.

How a run's held-out dialogues ended, and the learning curve that follows; `pages.before_after` reads the dialogues themselves.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.runs import Run, setting
from simulator.dialogue import Outcome

AUC = "heldout.auc"
"""The endpoint that comparisons compute anew: runs must be measured over the same tokens."""
GAIN = "heldout.gain"
"""Not in the summary either: the score at the end less the score before training, on the full grid."""
FORGOTTEN = "heldout.forgotten"
"""Likewise: how far the last look lies below the best one on the small grid, by strictness and mean over these (`grades.forgotten`)."""
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
"""What training changed in the reliability probe, of runs that took it: shares of errors and what either way adds to them, and by how many
nats the right answer leads, which still moves where errors are at their ceiling."""
COSTS = ("policy_tokens", "wall_s", "cpu_s")
ENDPOINTS = (
    *(*EMOTIONS, *SHARES, *COSTS, "entropy.end", "reward_density.end", "start.score"),
    *(GAIN, FORGOTTEN, *RELIABILITY),
)
"""What may decide a comparison. What a sweep is read by besides may be a number of a study's own in `summary.json`, by its dotted name."""
SECONDARY = (*EMOTIONS, *SHARES)
"""What each contrast describes beside the primary endpoint."""
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
"""What an axis calls those that have a short name for it."""
UNDIRECTED = frozenset({"entropy.end", "reward_density.end", "start.score"})
"""Endpoints of which neither more nor less is better: they describe a run, and decide nothing between two."""
LOWER_IS_BETTER = frozenset({"heldout.failure_rate", FORGOTTEN, *COSTS, *ERRORS})


def sign_of(endpoint: str) -> float:
    """1, or -1 for an endpoint that is better when it is lower."""
    return -1.0 if endpoint in LOWER_IS_BETTER else 1.0


def unit_of(endpoint: str) -> str:
    """What follows its numbers; empty for points of emotion, which need none, and for what has none."""
    return " nats" if endpoint in (*MARGINS, "entropy.end") else ""


def digits_of(endpoint: str) -> int:
    """Decimals that suit its numbers."""
    if endpoint in COSTS:
        return 0
    if endpoint in MARGINS:
        return 2
    return 1 if endpoint in (*EMOTIONS, "start.score", GAIN, FORGOTTEN) else 3


class Curve(NamedTuple):
    """The looks of one run, in their order."""

    tokens: Sequence[float]
    """Policy tokens, increasing."""
    scores: Sequence[float]
    """As many as tokens, finite."""


class Survival(NamedTuple):
    """Kaplan and Meier's estimate of the share of runs that have not got there yet."""

    times_K: np.ndarray
    """float[K]: when at least one run got there, increasing."""
    share_K: np.ndarray
    """float[K]: share that has still not, just after that time."""
    followed: float
    """The longest time that any run was watched."""


def check_curve(curve: Curve, name: str = "curve") -> None:
    """Raises unless the curve has at least one look and its looks are finite and in order.

    Raises:
        ValueError: naming what is wrong.
    """
    tokens, scores = np.asarray(curve.tokens, dtype=float), np.asarray(curve.scores, dtype=float)
    if tokens.ndim != 1 or tokens.shape != scores.shape or not tokens.size:
        raise ValueError(f"{name} must have a score for each of its looks, got shapes {tokens.shape} and {scores.shape}")
    if not (np.isfinite(tokens).all() and np.isfinite(scores).all()):
        raise ValueError(f"{name} must be finite, got {curve}")
    if (np.diff(tokens) <= 0).any():
        raise ValueError(f"{name} must have increasing tokens, got {tokens.tolist()}")


def common_curves(curves: Sequence[Curve], *, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Runs on one axis, from where the last of them began to `end`: every look of any run there is a point, so no curve loses a corner.

    Returns:
        tokens_T, float[T], and curves_RT, float[R, T], NaN where a run had ended.

    Raises:
        ValueError: no curve, a broken one, or none of them lies between start and end.
    """
    if not curves:
        raise ValueError("curves must be at least one, got none")
    for r, curve in enumerate(curves):
        check_curve(curve, f"curves[{r}]")
    start = max(float(curve.tokens[0]) for curve in curves)
    if not start < end:
        raise ValueError(f"end must lie after the first look of every run ({start:g} tokens), got {end:g}")
    looks = np.unique(np.concatenate([np.asarray(curve.tokens, dtype=float) for curve in curves]))
    tokens_T = np.unique(np.concatenate([[start], looks[(looks > start) & (looks < end)], [end]]))
    return tokens_T, np.array([np.interp(tokens_T, curve.tokens, curve.scores, right=np.nan) for curve in curves])


def area_under_curves(tokens_T: np.ndarray, curves_RT: np.ndarray) -> np.ndarray:
    """float[R], the mean height of each curve over the common tokens: 1 / (t_T - t_1) times its integral by trapezoids.

    Raises:
        ValueError: a run ended early (NaN at its end; `hold_last` first), NaN stands elsewhere, or the tokens span nothing.
    """
    if len(tokens_T) < 2 or not tokens_T[0] < tokens_T[-1]:
        raise ValueError(f"tokens must be at least two, increasing, for an area, got {np.asarray(tokens_T).tolist()}")
    lasts_R = last_looks(curves_RT)
    if (lasts_R < len(tokens_T) - 1).any():
        r = int(np.argmin(lasts_R))
        raise ValueError(
            f"curves must reach {tokens_T[-1]:g} tokens, got one (run {r}) that ends at {tokens_T[lasts_R[r]]:g}; hold it or leave it out"
        )
    return np.trapezoid(curves_RT, tokens_T, axis=1) / (tokens_T[-1] - tokens_T[0])


def hold_last(curves_RT: np.ndarray) -> np.ndarray:
    """float[R, T], runs that ended early with their last score to the end, as the policy that each left would score there."""
    lasts_R = last_looks(curves_RT)
    return np.array([np.where(np.arange(len(curve)) > last, curve[last], curve) for curve, last in zip(curves_RT, lasts_R, strict=True)])


def last_looks(curves_RT: np.ndarray) -> np.ndarray:
    """int[R], the index of the last point that each run reached.

    Raises:
        ValueError: a run without a point, or with NaN before its last one.
    """
    seen_RT = ~np.isnan(curves_RT)
    counts_R = seen_RT.sum(axis=1)
    if (counts_R == 0).any() or (seen_RT != (np.arange(curves_RT.shape[1]) < counts_R[:, None])).any():
        raise ValueError("curves must be NaN nowhere but after a run's last look, got NaN before it")
    return counts_R - 1


def tokens_to_threshold(tokens_T: np.ndarray, curves_RT: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """When each run first reached the threshold, between looks by linear interpolation.

    A noisy curve crosses early by luck, so this flatters whoever is noisier; it is secondary for that reason.

    Returns:
        times_R, float[R], the tokens at which it was reached, or at the last look where it was not; reached_R, bool[R], False for the
        latter (censored: it might have been reached later).

    Raises:
        ValueError: the threshold is NaN, which nothing reaches, or a curve has NaN before its last look.
    """
    if np.isnan(threshold):
        raise ValueError("threshold must be a number, got nan")
    times, reached = [], []
    for curve, last in zip(curves_RT, last_looks(curves_RT), strict=True):
        at = np.flatnonzero(curve[: last + 1] >= threshold)
        reached.append(bool(at.size))
        i = int(at[0]) if at.size else int(last)
        rise = (threshold - curve[i - 1]) / (curve[i] - curve[i - 1]) if at.size and i else 1.0
        times.append(tokens_T[i - 1] + rise * (tokens_T[i] - tokens_T[i - 1]) if at.size and i else tokens_T[i])
    return np.array(times, dtype=float), np.array(reached)


def kaplan_meier(times_R: np.ndarray, reached_R: np.ndarray) -> Survival:
    """S(t) = product over event times t_k <= t of 1 - e_k / n_k: e_k runs got there at t_k, of n_k that were watched until then.

    A run censored at t_k counts among the n_k.

    Source: Kaplan and Meier 1958, Nonparametric estimation from incomplete observations.
    """
    times, reached = np.asarray(times_R, dtype=float), np.asarray(reached_R, dtype=bool)
    if times.shape != reached.shape or times.ndim != 1 or not times.size or not np.isfinite(times).all():
        raise ValueError(f"times must be finite, with one `reached` each, got {times.tolist()} and {reached.tolist()}")
    times_K = np.unique(times[reached])
    events_K = (times[reached] == times_K[:, None]).sum(axis=1)
    watched_K = (times >= times_K[:, None]).sum(axis=1)
    return Survival(times_K, np.cumprod(1.0 - events_K / watched_K), float(times.max()))


def median_time(survival: Survival) -> float:
    """The smallest t with S(t) <= .5; infinite where half of the runs never got there."""
    past = np.flatnonzero(survival.share_K <= 0.5 + 1e-12)
    return float(survival.times_K[past[0]]) if past.size else float("inf")


def restricted_mean_time(survival: Survival, *, horizon: float) -> float:
    """Area under S from 0 to the horizon: the mean of min(time, horizon). It needs no threshold to be reached by half, unlike the median.

    Raises:
        ValueError: no run was watched until the horizon, and not all had got there before.
    """
    remaining = survival.share_K[-1] if survival.share_K.size else 1.0
    if horizon > survival.followed and remaining > 0.0:
        raise ValueError(f"horizon must be at most {survival.followed:g}, until when runs were watched, got {horizon:g}")
    inside = survival.times_K < horizon
    edges = np.concatenate([[0.0], survival.times_K[inside], [horizon]])
    heights = np.concatenate([[1.0], survival.share_K[inside]])
    return float((np.diff(edges) * heights).sum())


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
