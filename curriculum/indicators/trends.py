"""Where a short series is heading: slopes, spikes, cliffs, and how much reward the entropy that is left can still buy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAD_TO_STD = 1.4826
"""Median absolute deviation of a normal variable to its standard deviation."""


def theil_sen_slope(values: Sequence[float]) -> float:
    """Median slope over all pairs of an evenly spaced series, per step; up to 29 % of the points may be wild. NaN below two points."""
    if len(values) < 2:
        return math.nan
    series_N = np.asarray(values, dtype=float)
    earlier, later = np.triu_indices(len(series_N), k=1)
    return float(np.median((series_N[later] - series_N[earlier]) / (later - earlier)))


def updates_until(values: Sequence[float], floor: float) -> float:
    """Steps until a positive series that decays like exp(-rate t) meets `floor`: log(last / floor) / rate, rate by Theil-Sen. Leads.

    Returns:
        >= 0, infinite where the series does not fall; NaN below three values or where a value or the floor is not positive.
    """
    if len(values) < 3 or min(values) <= 0.0 or floor <= 0.0:
        return math.nan
    rate = -theil_sen_slope([math.log(value) for value in values])
    return max(math.log(values[-1] / floor), 0.0) / rate if rate > 0.0 else math.inf


@dataclass(frozen=True, kw_only=True)
class EntropyLaw:
    """R = -a exp(H) + b: what reward R costs in entropy H (nats)."""

    a: float
    b: float
    a_error: float
    """Standard error of `a`, from the scatter about the law."""
    b_error: float
    """Standard error of `b`."""
    r_squared: float
    """Share of the reward's variance that the law explains, in [0, 1]."""

    def reward(self, entropy: float) -> float:
        """What the law says at an entropy, in nats."""
        return self.b - self.a * math.exp(entropy)

    @property
    def ceiling(self) -> float:
        """b - a: the reward at which entropy is used up (H = 0)."""
        return self.b - self.a

    def headroom(self, reward: float) -> float:
        """What is left to gain before the ceiling, in units of reward."""
        return self.ceiling - reward


def fit_entropy_law(entropies_N: Sequence[float], rewards_N: Sequence[float]) -> EntropyLaw | None:
    """Least squares of reward on x = exp(entropy): a = -cov(R, x) / var(x), b = mean R + a mean x. Leads.

    The rewards must come from a fixed panel: those of training move with difficulty.

    Source: Cui et al. 2025 (arXiv 2505.22617): 36 steps predict the next 200 to about 1 %.

    Returns:
        None with fewer than three points or without any variation.
    """
    x_N, rewards = np.exp(np.asarray(entropies_N, dtype=float)), np.asarray(rewards_N, dtype=float)
    if len(x_N) < 3 or np.ptp(x_N) == 0.0 or np.ptp(rewards) == 0.0:
        return None
    (var_x, cov), (_, var_r) = np.cov(x_N, rewards, ddof=0)
    a, n = -cov / var_x, len(x_N)
    b = rewards.mean() + a * x_N.mean()
    scatter = np.square(rewards - b + a * x_N).sum() / (n - 2)
    return EntropyLaw(
        a=float(a),
        b=float(b),
        a_error=math.sqrt(scatter / (n * var_x)),
        b_error=math.sqrt(scatter * (1.0 / n + x_N.mean() ** 2 / (n * var_x))),
        r_squared=float(cov**2 / (var_x * var_r)),
    )


def spike_score(earlier: Sequence[float], newest: float) -> float:
    """z = (log newest - median of log earlier) / (1.4826 MAD of log earlier): how far a gradient's norm stands out. Coincident.

    Returns:
        In robust standard deviations; NaN below five earlier values, without any spread, or where a value is not positive.

    Source: RAGEN (arXiv 2504.20073) sees reward variance fall off a cliff, then gradients spike.
    """
    if len(earlier) < 5 or min(earlier) <= 0.0 or newest <= 0.0:
        return math.nan
    logs = np.log(np.asarray(earlier, dtype=float))
    median = np.median(logs)
    mad = np.median(np.abs(logs - median))
    return float((math.log(newest) - median) / (MAD_TO_STD * mad)) if mad > 0.0 else math.nan


def fall_within(values: Sequence[float]) -> float:
    """By what share the last value lies below the median of the window's older half. Leads, of reward's spread within groups.

    The median, because under rare rewards a single lucky group would look like a cliff a little later.

    Source: RAGEN (arXiv 2504.20073), the cliff in reward variance.

    Returns:
        At most 1 for values >= 0, negative for a rise; NaN below four values or without a positive median.
    """
    if len(values) < 4:
        return math.nan
    usual = float(np.median(list(values)[: len(values) // 2]))
    return 1.0 - values[-1] / usual if usual > 0.0 else math.nan
