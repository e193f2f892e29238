"""What a comparison could have found: the power of the sign-flip test that decides, and the least difference it finds so often.

Differences between arms are taken to be normal, and told in their standard deviation. A t test of so few pairs would find smaller ones, but
it is not what decides: five pairs can give it any p, and the sign-flip test none below .0625.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
from scipy import optimize, stats

from analysis.paired import ROUNDING, smallest_p

MAX_SIMULATED = 10
"""Pairs up to which the test is played; with more its power is taken to be the t test's (with 12 a few hundredths too high)."""
NUM_TRIALS = 4000
"""Of the game; an estimate of a power of .8 has a standard error of .006."""


def power_of_sign_flip_test(effect: float, *, num_pairs: int, alpha: float) -> float:
    """Share of simulated trials in which the exact two-sided sign-flip test rejects at alpha.

    Args:
        effect: mean of the normal differences, in their sd.
        num_pairs: 2 to `MAX_SIMULATED`.
    """
    noise_T, sums_TP, rises_P = _trials(num_pairs)
    observed_T = np.abs(noise_T + num_pairs * effect)
    at_least_T = observed_T * (1.0 - ROUNDING)
    ps_T = (np.abs(sums_TP + effect * rises_P) >= at_least_T[:, None]).mean(axis=1)
    return float((ps_T <= alpha).mean())


@lru_cache(maxsize=2)
def _trials(num_pairs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Trials without an effect: their sums, float[T], those under each pattern of signs, float[T, P], and each pattern's sum, float[P].

    A pattern and its opposite give the same |sum|, so the first sign is always +.
    """
    noise_TN = np.random.default_rng(0).standard_normal((NUM_TRIALS, num_pairs))
    signs_PN = np.array([(1, *signs) for signs in itertools.product((1, -1), repeat=num_pairs - 1)], dtype=float)
    return noise_TN.sum(axis=1), noise_TN @ signs_PN.T, signs_PN.sum(axis=1)


def power_of_t_test(effect: float, *, num_pairs: int, alpha: float) -> float:
    """Chance that a two-sided paired t test rejects at alpha when the mean difference is `effect` standard deviations.

    P(|T| > t(1 - alpha / 2; R - 1)) for T noncentral t with R - 1 degrees of freedom and noncentrality sqrt(R) effect. The lower tail
    is taken as the upper one of the mirrored variable, because scipy's `nct.cdf` is NaN far out.
    """
    freedom, shift = num_pairs - 1, np.sqrt(num_pairs) * effect
    bound = stats.t.ppf(1.0 - alpha / 2.0, freedom)
    return float(stats.nct.sf(bound, freedom, shift) + stats.nct.sf(bound, freedom, -shift))


def minimal_detectable_effect(*, num_pairs: int, sd: float, alpha: float = 0.05, power: float = 0.8) -> float:
    """The mean difference that the sign-flip test of so many pairs would find with this power.

    Args:
        sd: of the differences, with R - 1. Taken from the same pairs it is a guess: from 5 normal ones the true sd lies
            between .6 and 2.9 times it (95 %), from 10 between .7 and 1.8 times.
        alpha: divide by the size of the family for the first step of Holm.

    Returns:
        Infinite where not even pairs that all agree get down to alpha; else 0 for an sd of 0.

    Raises:
        ValueError: fewer than two pairs, a negative sd, or alpha and power not 0 < alpha < power < 1.
    """
    if num_pairs < 2 or not sd >= 0.0:
        raise ValueError(f"num_pairs must be at least 2 and sd at least 0, got {num_pairs!r} and {sd!r}")
    if not 0.0 < alpha < power < 1.0:
        raise ValueError(f"alpha and power must satisfy 0 < alpha < power < 1, got {alpha!r} and {power!r}")
    if smallest_p(num_pairs) > alpha:
        return float("inf")
    return sd * _effect_in_sd(num_pairs, alpha, power)


@lru_cache(maxsize=64)
def _effect_in_sd(num_pairs: int, alpha: float, power: float) -> float:
    test = power_of_sign_flip_test if num_pairs <= MAX_SIMULATED else power_of_t_test

    def missing(effect: float) -> float:
        return test(effect, num_pairs=num_pairs, alpha=alpha) - power

    high = 1.0
    while missing(high) < 0.0:
        high *= 2.0
    return float(optimize.bisect(missing, 0.0, high, xtol=1e-3))
