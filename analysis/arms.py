"""Each arm of a sweep by itself: its runs, their mean and spread between seeds, its profile over users, and its learning curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from analysis import stats
from analysis.endpoints import ENDPOINTS, tokens_to_threshold
from analysis.stats import Resampling
from analysis.sweeps import Note, NoteKind, RunResult, Sweep, common_cells, why_not_averaged

THRESHOLDS = tuple(range(0, 101, 5))
"""Emotions at which performance profiles are read."""
CURVE_POINTS = 21


def arm_record(arm: str, sweep: Sweep, *, threshold: float, resampling: Resampling) -> tuple[dict[str, Any], list[str]]:
    """An arm's part of `comparison.json`, and notes; its runs are not averaged if they must not be.

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
    if reason := next((why for run in runs[1:] if (why := why_not_averaged(runs[0], run))), ""):
        return record, [f"{arm} is not averaged: {reason}."]
    spread = partial(spread_between_seeds, resampling=resampling)
    measured = sweep.frame.loc[[arm]]
    record["endpoints"] = {name: spread(measured[name].dropna().to_numpy()) for name in dict.fromkeys((*ENDPOINTS, *sweep.plan.read))}
    record |= over_cells(runs, resampling=resampling)
    record |= over_tokens(runs, end=sweep.auc_ends.get(runs[0].budget), threshold=threshold, resampling=resampling)
    return record, []


def no_run(arm: str) -> Note:
    """That an arm, or each that fits a pattern, has nothing to compare."""
    return Note(f"{arm} has no run that can be used.", arm=arm, kind=NoteKind.NO_RUN)


def spread_between_seeds(values_R: np.ndarray, *, resampling: Resampling) -> dict[str, Any] | None:
    """An endpoint over the runs that measured it: mean and IQM with joint-bootstrap intervals, sd (R - 1), extremes."""
    if not values_R.size:
        return None
    both = stats.band(lambda scores: np.stack([stats.mean(scores), stats.iqm(scores)], axis=-1), values_R[:, None], **resampling)
    return {
        "mean": both.at(0).to_dict(),
        "iqm": both.at(1).to_dict(),
        "sd": float(values_R.std(ddof=1)) if values_R.size > 1 else math.nan,
        "min": float(values_R.min()),
        "max": float(values_R.max()),
        "num_runs": values_R.size,
    }


def over_cells(runs: Sequence[RunResult], *, resampling: Resampling) -> dict[str, Any]:
    """The last full evaluation as scores[R, C] over family and strictness: aggregates, profile over strictness, shares above thresholds.

    The gap to the expert is how far cells fall short of the score of the scripted expert L6 on the whole grid, where all runs name one.
    """
    cells = common_cells(runs)
    if not cells:
        return {"cells": None, "by_strictness": None, "profile": None}
    scores_RC = np.array([[run.cells[cell] for cell in cells] for run in runs])
    strictness_C = np.array([strictness for _, strictness in cells])
    statistics: dict[str, stats.Statistic] = {"mean": stats.mean, "median": stats.median, "iqm": stats.iqm}
    experts = {run.expert for run in runs}
    expert = experts.pop() if len(experts) == 1 else None
    if expert is not None:
        statistics["gap_to_expert"] = partial(stats.optimality_gap, target=expert)
    aggregates = stats.band(lambda scores: np.stack([each(scores) for each in statistics.values()], axis=-1), scores_RC, **resampling)
    by_strictness = stats.band(lambda scores: stats.profile_over_strictness(scores, strictness_C)[1], scores_RC, **resampling)
    shares = stats.band(lambda scores: stats.performance_profile(scores, np.array(THRESHOLDS)), scores_RC, **resampling)
    found = {"gap_to_expert": None} | {name: aggregates.at(i).to_dict() for i, name in enumerate(statistics)}
    return {
        "cells": {"num_cells": len(cells), **found, "expert": expert},
        "by_strictness": {"strictness": np.unique(strictness_C).tolist(), **by_strictness.to_dict()},
        "profile": {"threshold": list(THRESHOLDS), **shares.to_dict()},
    }


def over_tokens(runs: Sequence[RunResult], *, end: float | None, threshold: float, resampling: Resampling) -> dict[str, Any]:
    """The learning curve with its band, and the tokens to the threshold; runs that ended before their budget keep their last score.

    Runs that did not reach the threshold are censored at the budget; where no run spent it they ended by steps, each with its own tokens,
    and are censored at their last evaluation.
    """
    curves = [run.curve for run in runs if run.curve is not None]
    if not curves or end is None:
        return {"curve": None, "tokens_to_threshold": None}
    grid_K = np.linspace(0.0, end, CURVE_POINTS)
    course = stats.band(
        lambda scores: scores.mean(axis=-2), np.array([np.interp(grid_K, curve.tokens, curve.scores) for curve in curves]), **resampling
    )
    is_spent = end >= runs[0].budget
    ends = [end if is_spent else float(curve.tokens[-1]) for curve in curves]
    timed = [tokens_to_threshold(curve, threshold, end=last) for curve, last in zip(curves, ends, strict=True)]
    times_R, reached_R = np.array([time for time, _ in timed]), np.array([reached for _, reached in timed])
    median, restricted_mean = stats.survival_times(times_R, reached_R)
    return {
        "curve": {"policy_tokens": grid_K.tolist(), **course.to_dict()},
        "tokens_to_threshold": {
            "threshold": threshold,
            "num_reached": int(reached_R.sum()),
            "num_runs": len(timed),
            "kaplan_meier_median": median,
            "restricted_mean": restricted_mean,
            "horizon": max(ends) if reached_R.all() else float(times_R.max()),
        },
    }
