"""Two arms compared on the same seeds: differences, exact tests, and corrections for looking often.

Everything starts from one number a run. `a_R` and `b_R`, float[R], hold those of two arms in the same order of seeds, so that element r
of both shared everything but the arm; `differences_R` is a_R - b_R. NaN is refused, except by `complete_pairs`, which drops such pairs
and counts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.clusters import Estimate
from analysis.stats import LEVEL, check_level, check_scores

MAX_EXACT = 20
"""Pairs up to which all sign patterns are counted: 2 ** 20 of them."""
NUM_PATTERNS = 50_000
"""Random sign patterns beyond that."""
ROUNDING = 1e-9
"""Relative: sums that differ by less are ties, which floating point would break at random."""


@dataclass(frozen=True, kw_only=True)
class SignFlip:
    """The result of a sign-flip test."""

    p: float
    """Two-sided."""
    exact: bool
    """Whether all sign patterns were counted, or a random choice of them."""


def complete_pairs(a_R: np.ndarray, b_R: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The pairs of which neither is NaN, and the number of pairs that were dropped.

    Raises:
        ValueError: the arms do not have the same number of runs.
    """
    a, b = np.asarray(a_R, dtype=float), np.asarray(b_R, dtype=float)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"paired arms must have one value for each of the same seeds, got shapes {a.shape} and {b.shape}")
    kept = ~(np.isnan(a) | np.isnan(b))
    return a[kept], b[kept], int((~kept).sum())


def mean_difference(differences_R: np.ndarray, *, level: float = LEVEL) -> Estimate:
    """The mean with Student's interval, mean +- t(1 - (1 - level) / 2; R - 1) sd / sqrt(R), sd with R - 1.

    Exact for normal differences, whatever R; a single pair gives NaN bounds. It may exclude 0 where the sign-flip test, which assumes less,
    cannot reject: `sign_flip_interval` never disagrees with that test.
    """
    d = check_scores(differences_R, "differences", axes=1)
    check_level(level)
    if d.size < 2:
        return Estimate.alone(float(d.mean()))
    half = stats.t.ppf(0.5 + level / 2.0, d.size - 1) * d.std(ddof=1) / np.sqrt(d.size)
    return Estimate(value=float(d.mean()), low=float(d.mean() - half), high=float(d.mean() + half))


def sign_flip_test(differences_R: np.ndarray, *, seed: int = 0, max_exact: int = MAX_EXACT, num_patterns: int = NUM_PATTERNS) -> SignFlip:
    """Whether the arms differ: if not, each difference could as well have had the other sign.

    T(s) = |sum of s_r d_r| over sign patterns s. Up to `max_exact` pairs p = #{s : T(s) >= T(1)} / 2 ** R over all patterns; beyond,
    p = (1 + #{s : T(s) >= T(1)}) / (1 + num_patterns) over random ones, which never is 0. Assumes differences symmetric about their centre.

    Args:
        seed: of the random patterns; unused where all are counted.

    Source: Fisher 1935, The design of experiments, section 21; the correction: Phipson and Smyth 2010.
    """
    d = check_scores(differences_R, "differences", axes=1)
    at_least = abs(d.sum()) - ROUNDING * np.abs(d).sum()
    if d.size <= max_exact:
        sums = _all_sums(d)
        return SignFlip(p=float((np.abs(sums) >= at_least).mean()), exact=True)
    signs_NR = np.random.default_rng(seed).integers(0, 2, size=(num_patterns, d.size)) * 2 - 1
    num_extreme = int((np.abs(signs_NR @ d) >= at_least).sum())
    return SignFlip(p=(1 + num_extreme) / (1 + num_patterns), exact=False)


def _all_sums(d: np.ndarray) -> np.ndarray:
    """float[2 ** R]: the sum under every sign pattern."""
    sums = np.zeros(1)
    for value in d:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def smallest_p(num_pairs: int) -> float:
    """2 / 2 ** R, the smallest two-sided p that a sign-flip test of R pairs can give: .0625 for 5, .002 for 10."""
    return min(2.0 ** (1 - num_pairs), 1.0)


def sign_flip_interval(differences_R: np.ndarray, *, level: float = LEVEL) -> Estimate:
    """The mean difference with all shifts that the exact sign-flip test does not reject at 1 - level.

    These lie between the k-th smallest and the k-th largest mean of the 2 ** R - 1 non-empty subsets of the differences, with
    k = floor((1 - level) / 2 * 2 ** R), because flipping a subset raises the sum about theta just where the subset's mean lies below theta.
    For k = 0 (fewer than six pairs at 95 %) the bounds are infinite: so few pairs exclude nothing.

    Raises:
        ValueError: more than `MAX_EXACT` differences.

    Source: Hartigan 1969, Using subsample values as typical values.
    """
    d = check_scores(differences_R, "differences", axes=1)
    check_level(level)
    if d.size > MAX_EXACT:
        raise ValueError(f"differences must be at most {MAX_EXACT} for an exact interval, got {d.size}")
    sums, counts = np.zeros(1), np.zeros(1)
    for value in d:
        sums, counts = np.concatenate([sums, sums + value]), np.concatenate([counts, counts + 1])
    means = np.sort(sums[1:] / counts[1:])
    k = int(np.floor((1.0 - level) / 2.0 * 2.0**d.size + ROUNDING))
    low, high = (means[k - 1], means[-k]) if k else (-np.inf, np.inf)
    return Estimate(value=float(d.mean()), low=float(low), high=float(high))


def probability_of_improvement(x_RC: np.ndarray, y_SC: np.ndarray) -> float:
    """P(X > Y) = mean over cells c of 1 / (R S) sum over r, s of [x_rc > y_sc] + .5 [x_rc = y_sc]: a run of X against any run of Y.

    The arms need not have the same seeds or as many; their cells must be the same.

    Source: Agarwal et al. 2021; within a cell it is Mann and Whitney's U over R S.
    """
    x, y = check_scores(x_RC, "x"), check_scores(y_SC, "y")
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"arms must be judged on the same cells, got {x.shape[1]} and {y.shape[1]} of them")
    return float((np.sign(x[:, None] - y[None]) / 2.0 + 0.5).mean())


def paired_probability(differences_R: np.ndarray, *, level: float = LEVEL) -> Estimate:
    """Share of seeds on which the first arm was better, ties a half, with Clopper and Pearson's interval.

    For w wins of R: from the (1 - level) / 2 quantile of Beta(w, R - w + 1) to the 1 - (1 - level) / 2 quantile of Beta(w + 1, R - w).
    Covers at least at its level, and is not one point where every seed agrees, as a bootstrap would be: 5 of 5 give [.48, 1].
    A tie counts as half a win in these formulas, which then are an interpolation.
    """
    d = check_scores(differences_R, "differences", axes=1)
    check_level(level)
    wins, tail = float((d > 0).sum() + 0.5 * (d == 0).sum()), (1.0 - level) / 2.0
    low = stats.beta.ppf(tail, wins, d.size - wins + 1.0) if wins > 0 else 0.0
    high = stats.beta.ppf(1.0 - tail, wins + 1.0, d.size - wins) if wins < d.size else 1.0
    return Estimate(value=wins / d.size, low=float(low), high=float(high))


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p of each of m tests, in the order given: in ascending order p_(i) becomes max over j <= i of min(1, (m - j + 1) p_(j)).

    Keeps the chance of any false claim among the m below alpha, however they depend. A test that was planned and could not be run
    belongs to the family still: give it p = 1.

    Raises:
        ValueError: a p that is not in [0, 1].

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    for p in ps:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p must be in [0, 1], got {p!r}; a test that could not be run has p = 1")
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = highest
    return adjusted
