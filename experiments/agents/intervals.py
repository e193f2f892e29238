"""95 % intervals of evaluations over scenarios: those of one user depend on each other, so whole scenarios are resampled or left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from analysis import stats
from analysis.ranking import Z
from analysis.stats import NOTHING, Estimate, Sample, where_nothing_varies

NUM_GROUPS = 20
"""Parts of the scenarios that the jackknife leaves out in turn."""
Statistic = Callable[[np.ndarray], float]
"""Of scenarios' numbers, int[S]."""


def ratio(rows: Sequence[tuple[str, float, float]], *, seed: int, scale: float = 1.0) -> Estimate:
    """Sum of the parts over the sum of the wholes, times scale, by a bootstrap over scenarios.

    Args:
        rows: scenario, part, whole; 0 <= part <= whole.
    """
    sample = Sample.of([(scenario, 0, 0, 0.0, part, whole) for scenario, part, whole in rows])
    found = stats.share(sample, rng=np.random.default_rng(seed)) if sample.part.size else NOTHING
    return Estimate(value=scale * found.value, low=scale * found.low, high=scale * found.high)


def resampled(statistic: Statistic, num: int, *, seed: int) -> Estimate:
    """A statistic of `num` scenarios by a percentile bootstrap; scenarios are drawn with replacement."""
    if not num:
        return NOTHING

    def over_draws(draws: np.ndarray) -> np.ndarray:
        return np.apply_along_axis(lambda chosen: statistic(chosen.astype(int)), -1, draws[..., 0])

    return stats.estimate(over_draws, np.arange(num, dtype=float)[:, None], seed=seed)


def mean(values_N: np.ndarray, *, seed: int, within: tuple[float, float] | None = None) -> Estimate:
    """The mean of N independent values by a percentile bootstrap.

    Args:
        within: the least and the greatest possible value, which bound the mean where all N are equal.
    """
    if within is not None and values_N.size and not np.ptp(values_N):
        value = float(values_N.mean())
        low, high = where_nothing_varies(value, values_N.size, within=within)
        return Estimate(value=value, low=low, high=high)
    return resampled(lambda chosen: float(values_N[chosen].mean()), len(values_N), seed=seed)


def jackknifed(statistic: Statistic, num: int, *, seed: int, within: tuple[float, float] = (-math.inf, math.inf)) -> Estimate:
    """A statistic of `num` scenarios with an interval of 1.96 standard errors of the delete-a-group jackknife.

    For statistics that compare scenarios with each other, or count distinct things: a bootstrap, which draws some twice, would find them
    more similar than they are.

    Args:
        within: the least and the greatest possible value, where the interval ends.

    Source: Kott 2001, "The delete-a-group jackknife".
    """
    value = statistic(np.arange(num)) if num else math.nan
    groups = np.array_split(np.random.default_rng(seed).permutation(num), min(NUM_GROUPS, max(num, 1)))
    if num < 3 or math.isnan(value):
        return Estimate.alone(value)
    without = np.array([statistic(np.setdiff1d(np.arange(num), group)) for group in groups])
    without = without[~np.isnan(without)]
    if without.size < 3:
        return Estimate.alone(value)
    error = float(np.sqrt((without.size - 1) / without.size * ((without - without.mean()) ** 2).sum()))
    return Estimate(value=value, low=max(value - Z * error, within[0]), high=min(value + Z * error, within[1]))
