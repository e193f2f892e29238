"""95 % intervals over scenarios: those of one user hang together, so scenarios are drawn, or left out, and never single dialogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from analysis.leaderboard import Z
from analysis.stats import HIGH, LOW, NOTHING, NUM_RESAMPLES, Estimate, Sample, share, where_nothing_varies

NUM_GROUPS = 20
"""Parts of the scenarios that the jackknife leaves out in turn."""

Row = tuple[str, int, int, float, float, float]
"""Scenario, number of the dialogue, of the reply, strictness; what was reached and what could have been."""


def ratio(rows: Sequence[Row], *, seed: int, scale: float = 1.0) -> Estimate:
    """Sum of what was reached over the sum of what could have been, [0, scale], by a bootstrap over scenarios."""
    sample = Sample.of(rows)
    found = share(sample, rng=np.random.default_rng(seed)) if sample.part.size else NOTHING
    return Estimate(value=scale * found.value, low=scale * found.low, high=scale * found.high)


def resampled(statistic: Callable[[np.ndarray], float], num: int, *, seed: int) -> Estimate:
    """A statistic of scenarios by a percentile bootstrap.

    Args:
        statistic: of scenarios' numbers, int[S], some of them more than once.
        num: scenarios there are, S.
    """
    value = statistic(np.arange(num)) if num else float("nan")
    if num < 2 or np.isnan(value):
        return Estimate.alone(value)
    rng = np.random.default_rng(seed)
    values = [statistic(rng.integers(0, num, size=num)) for _ in range(NUM_RESAMPLES)]
    low, high = np.nanquantile(values, [LOW, HIGH])
    return Estimate(value=value, low=float(low), high=float(high))


def mean(values_N: np.ndarray, *, seed: int, within: tuple[float, float] | None = None) -> Estimate:
    """The mean of one value for each of N things that were drawn, by a percentile bootstrap over them.

    Args:
        within: the least and the greatest value that there could be, which bound the mean where all N are alike.
    """
    found = resampled(lambda chosen: float(values_N[chosen].mean()), len(values_N), seed=seed)
    if within is None or not values_N.size or np.ptp(values_N) > 0.0:
        return found
    low, high = where_nothing_varies(found.value, values_N.size, within=within)
    return Estimate(value=found.value, low=low, high=high)


def jackknifed(
    statistic: Callable[[np.ndarray], float], num: int, *, seed: int, within: tuple[float, float] = (-math.inf, math.inf)
) -> Estimate:
    """A statistic of scenarios with an interval of 1.96 standard errors of the delete-a-group jackknife.

    For statistics that compare scenarios with each other, or count distinct things: a bootstrap, which takes some twice, would find them
    more alike than they are.

    Args:
        statistic: of scenarios' numbers, int[S], none more than once.
        num: scenarios there are, S.
        within: the least and the greatest value that there could be, where the interval ends: standard errors know of neither.

    Source: Kott 2001, "The delete-a-group jackknife".
    """
    value = statistic(np.arange(num)) if num else float("nan")
    groups = np.array_split(np.random.default_rng(seed).permutation(num), min(NUM_GROUPS, max(num, 1)))
    if num < 3 or np.isnan(value):
        return Estimate.alone(value)
    without = np.array([statistic(np.setdiff1d(np.arange(num), group)) for group in groups])
    without = without[~np.isnan(without)]
    if without.size < 3:
        return Estimate.alone(value)
    error = float(np.sqrt((without.size - 1) / without.size * ((without - without.mean()) ** 2).sum()))
    return Estimate(value=value, low=max(value - Z * error, within[0]), high=min(value + Z * error, within[1]))
