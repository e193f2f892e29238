"""One arm of a sweep by itself: its runs, their mean and spread, where it is good and how it got there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from analysis import stats
from analysis.clusters import Estimate
from analysis.comparisons.notes import no_run
from analysis.comparisons.sweep import RunResult, Sweep, common_cells, measured, why_not_averaged
from analysis.endpoints import ENDPOINTS
from analysis.learning_curves import common_curves, hold_last, kaplan_meier, median_time, restricted_mean_time, tokens_to_threshold
from analysis.stats import Resampling, Statistic

THRESHOLDS = tuple(range(0, 101, 5))
"""Emotions at which performance profiles are read."""
CURVE_POINTS = 21
AGGREGATES: Mapping[str, Statistic] = {"mean": stats.mean, "median": stats.median, "iqm": stats.iqm}
GAP = "gap_to_expert"


def arm_record(arm: str, sweep: Sweep, *, threshold: float, resampling: Resampling) -> tuple[dict[str, Any], list[str]]:
    """An arm's part of `comparison.json`, and what is to be said about it; its runs are not averaged if they must not be.

    Args:
        threshold: emotion whose first reaching is timed, 0-100.
    """
    runs = list(sweep.of(arm).values())
    record: dict[str, Any] = {
        "seeds": [run.seed for run in runs],
        "runs": {str(run.seed): {**run.scalars, "world": run.world, "alarms": run.alarms} for run in runs},
    }
    if not runs:
        return record, [no_run(arm)]
    reason = next((said for run in runs[1:] if (said := why_not_averaged(runs[0], run))), "")
    if reason:
        return record, [f"{arm} is not averaged: {reason}."]
    record["endpoints"] = {
        name: spread_between_seeds(runs, name, resampling=resampling) for name in dict.fromkeys((*ENDPOINTS, *sweep.plan.read))
    }
    record |= over_cells(runs, resampling=resampling)
    record |= over_tokens(runs, end=sweep.auc_ends.get(runs[0].budget), threshold=threshold, resampling=resampling)
    return record, []


def spread_between_seeds(runs: Sequence[RunResult], endpoint: str, *, resampling: Resampling) -> dict[str, Any] | None:
    """An endpoint over the runs that measured it: mean and IQM with joint-bootstrap intervals, sd (R - 1), extremes."""
    values = measured(runs, endpoint)
    if not values.size:
        return None
    both = stats.band(lambda scores: np.array([stats.mean(scores), stats.iqm(scores)]), values[:, None], **resampling)
    return {
        "mean": estimate_at(both, 0),
        "iqm": estimate_at(both, 1),
        "sd": float(values.std(ddof=1)) if values.size > 1 else math.nan,
        "min": float(values.min()),
        "max": float(values.max()),
        "num_runs": values.size,
    }


def over_cells(runs: Sequence[RunResult], *, resampling: Resampling) -> dict[str, Any]:
    """The last full evaluation as scores[R, C] over family and strictness: aggregates, profile over strictness, shares above thresholds.

    The gap to the expert is how far cells fall short of what the scripted expert L6 scored on the whole grid; what lies beyond makes up
    for nothing.
    """
    cells = common_cells(runs)
    if not cells:
        return {"cells": None, "by_strictness": None, "profile": None}
    scores_RC = np.array([[run.cells[cell] for cell in cells] for run in runs])
    strictness_C = np.array([strictness for _, strictness in cells])
    levels_K, _ = stats.profile_over_strictness(scores_RC, strictness_C)
    by_strictness = stats.band(lambda scores: stats.profile_over_strictness(scores, strictness_C)[1], scores_RC, **resampling)
    shares = stats.band(lambda scores: stats.performance_profile(scores, np.array(THRESHOLDS)), scores_RC, **resampling)
    expert = expert_of(runs)
    # Nothing exceeds an emotion of 100, to which the gap would be 100 less the mean.
    gap: dict[str, Statistic] = {} if expert is None else {GAP: partial(stats.optimality_gap, target=expert)}
    told = {**AGGREGATES, **gap}
    aggregates = stats.band(lambda scores: np.array([statistic(scores) for statistic in told.values()]), scores_RC, **resampling)
    found = {name: estimate_at(aggregates, i) for i, name in enumerate(told)}
    return {
        "cells": {"num_cells": len(cells), **found, GAP: found.get(GAP), "expert": expert},
        "by_strictness": {"strictness": levels_K.tolist(), **band_dict(by_strictness)},
        "profile": {"threshold": list(THRESHOLDS), **band_dict(shares)},
    }


def expert_of(runs: Sequence[RunResult]) -> float | None:
    """What the scripted expert scored in the evaluation that the runs had; None where they do not all say the same."""
    scores = {run.expert for run in runs}
    return scores.pop() if len(scores) == 1 else None


def estimate_at(band: stats.Band, place: int) -> dict[str, float | None]:
    """One place of a band, as an estimate by itself."""
    value, low, high = (float(values[place]) for values in band)
    return Estimate(value=value, low=low, high=high).to_dict()


def band_dict(band: stats.Band) -> dict[str, list[float]]:
    """JSON-able."""
    return {name: values.tolist() for name, values in band._asdict().items()}


def over_tokens(runs: Sequence[RunResult], *, end: float | None, threshold: float, resampling: Resampling) -> dict[str, Any]:
    """The learning curve with its band, and the tokens to the threshold; runs that ended before their budget keep their last score.

    Where no run spent its budget they ended by steps, each with its own tokens: there a run is watched until its last look and no longer.
    """
    curves = [run.curve for run in runs if run.curve is not None]
    if not curves or end is None:
        return {"curve": None, "tokens_to_threshold": None}
    # Areas stop where the shortest of all runs does, where none spent its budget; a threshold may be reached after it.
    is_spent = end >= runs[0].budget
    tokens_T, curves_RT = common_curves(curves, end=end if is_spent else max(float(curve.tokens[-1]) for curve in curves))
    curves_RT = hold_last(curves_RT) if is_spent else curves_RT
    grid_K = np.linspace(tokens_T[0], end, CURVE_POINTS)
    held_RK = np.array([np.interp(grid_K, curve.tokens, curve.scores) for curve in curves])
    course = stats.band(lambda scores: scores.mean(axis=0), held_RK, **resampling)
    return {
        "curve": {"policy_tokens": grid_K.tolist(), **band_dict(course)},
        "tokens_to_threshold": {"threshold": threshold, **time_to(threshold, tokens_T, curves_RT)},
    }


def time_to(threshold: float, tokens_T: np.ndarray, curves_RT: np.ndarray) -> dict[str, Any]:
    """Median and restricted mean of the tokens to a threshold; runs that did not reach it are censored at their last look."""
    times_R, reached_R = tokens_to_threshold(tokens_T, curves_RT, threshold)
    survival = kaplan_meier(times_R, reached_R)
    horizon = float(tokens_T[-1] if reached_R.all() else min(tokens_T[-1], survival.followed))
    return {
        "num_reached": int(reached_R.sum()),
        "num_runs": len(times_R),
        "kaplan_meier_median": median_time(survival),
        "restricted_mean": restricted_mean_time(survival, horizon=horizon),
        "horizon": horizon,
    }
