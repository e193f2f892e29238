"""Learning curves as numbers: the area under them, and how long a score took to be reached.

First a number from each run's curve, then statistics over runs (`analysis.stats`, `analysis.paired`): resampling every point of a curve by
itself would treat the looks of one run as independent and make intervals several times too narrow.

Runs look at different token counts. `common_curves` brings them to one shape: `tokens_T`, float[T], increasing, and `curves_RT`,
float[R, T], the score of each run there, NaN after its last look. Between looks the score is taken to change linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


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
