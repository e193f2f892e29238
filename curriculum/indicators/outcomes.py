"""What a fixed panel and the issued difficulty say: what was unlearned, and whether strictness still does what it is for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def largest_fall(best_C: Sequence[float], now_C: Sequence[float]) -> float:
    """By how much the worst-hit cell of a fixed panel lies below the best it has been: max over C cells of best - now. Lags, but decides.

    Returns:
        In the unit of the scores, >= 0 where `best_C` includes the present; NaN where no cell has both.
    """
    falls_C = np.subtract(best_C, now_C, dtype=float)
    falls_C = falls_C[np.isfinite(falls_C)]
    return float(falls_C.max()) if falls_C.size else math.nan


def at_bounds_share(strictness_N: Sequence[float], *, margin: float = 0.02) -> float:
    """Share of the issued strictnesses within `margin` of 0 or 1, where a teacher can no longer follow the agent. Leads.

    Returns:
        In [0, 1]; NaN without tasks.
    """
    strictness = np.asarray(strictness_N, dtype=float)
    return float(np.mean((strictness <= margin) | (strictness >= 1.0 - margin))) if strictness.size else math.nan


def spearman(x_N: Sequence[float], y_N: Sequence[float]) -> float:
    """Pearson correlation of ranks, ties sharing their mean rank; pairs with a NaN are dropped. Leads, of strictness and reward.

    Between the strictness d that was issued and how dialogues went it must be negative, or difficulty is not what the teacher thinks.
    Take it from a panel whose d is spread evenly: a teacher that finds everybody's frontier makes it vanish in training.

    Returns:
        In [-1, 1]; NaN with fewer than three pairs, or where one side does not vary.
    """
    pairs_N2 = np.column_stack([np.asarray(x_N, dtype=float), np.asarray(y_N, dtype=float)])
    pairs_N2 = pairs_N2[np.isfinite(pairs_N2).all(axis=1)]
    if len(pairs_N2) < 3 or (np.ptp(pairs_N2, axis=0) == 0.0).any():
        return math.nan
    return float(np.corrcoef(_ranks(pairs_N2[:, 0]), _ranks(pairs_N2[:, 1]))[0, 1])


def realised_strictness(score: float, strictness_K: Sequence[float], calibration_K: Sequence[float]) -> float:
    """The strictness at which these frozen transcripts used to get `score`. Leads.

    Less the commanded strictness, it is how far the simulator has drifted. The same transcripts, judged at several strictnesses when
    the run began, give a falling curve (made monotone from below and interpolated); judged again later at a commanded strictness, they
    should lie on it.

    Args:
        score: mean change of emotion, or any score that falls with strictness, of the transcripts judged now.
        strictness_K: at least two, rising.
        calibration_K: the scores of the same transcripts at the beginning.

    Returns:
        In the range of `strictness_K`, at whose ends it stays.
    """
    falling_K = np.minimum.accumulate(np.asarray(calibration_K, dtype=float))
    return float(np.interp(-score, -falling_K, np.asarray(strictness_K, dtype=float)))


def _ranks(values_N: np.ndarray) -> np.ndarray:
    # Means that are equal by algebra may differ in their last bit.
    _, inverse_N, counts_U = np.unique(np.round(values_N, 9), return_inverse=True, return_counts=True)
    return (np.cumsum(counts_U) - (counts_U - 1) / 2.0)[inverse_N]
