"""Statistics over training runs: estimates, bootstrap intervals that resample runs, exact paired tests, Holm's correction and power.

Scores are `scores_RC`, float[R, C]: a row for each training run in the order of its seeds, a column for each cell that it was judged on
(a family at a strictness, say). One number a run is float[R, 1]. `differences_R` is what two arms differ by on the same seeds. Leave out
the run or the cell that has a NaN and say so. A `Sample` holds measurements in clusters, such as lines of dialogues by scenario.

Source: Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice (the estimators; reimplemented, because
one training run produces all cells of its row and because intervals must follow from their seed).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

LEVEL = 0.95
"""Of all intervals."""
LOW, HIGH = 0.025, 0.975
"""Quantiles at the ends of a percentile interval."""
Z = 1.959964
"""Half the width of a normal 95 % interval in standard errors."""
NUM_RESAMPLES = 2000
SAME = 1e-9
"""Relative or absolute: values that differ by less are ties, which floating point would break at random."""
MAX_EXACT = 20
"""Pairs up to which all sign patterns are counted: 2 ** 20 of them."""


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval; NaN for what there was nothing to take it from."""

    value: float
    low: float = float("nan")
    high: float = float("nan")

    def to_dict(self) -> dict[str, float | None]:
        """JSON-able; None for NaN."""
        return {name: None if np.isnan(value) else float(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, float | None]) -> Estimate:
        """The estimate that `to_dict` wrote."""
        return cls(**{name: float("nan") if value is None else value for name, value in record.items()})

    def text(self, digits: int) -> str:
        """`0.98 [0.96, 0.99]`; a dash for NaN."""
        if np.isnan(self.value):
            return "–"
        bounds = "" if np.isnan(self.low) else f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        return f"{self.value:.{digits}f}{bounds}".replace(f"-{0:.{digits}f}", f"{0:.{digits}f}")


NOTHING = Estimate(float("nan"))


def mean(scores_RC: np.ndarray) -> np.ndarray:
    """1 / (R C) sum of all scores."""
    return scores_RC.mean(axis=(-2, -1))


def iqm(scores_RC: np.ndarray) -> np.ndarray:
    """Interquartile mean: of all R C scores, sorted, floor(R C / 4) are cut off at each end and the rest averaged.

    With fewer than four scores nothing is cut off, and it is the mean.
    """
    ordered = np.sort(scores_RC.reshape(*scores_RC.shape[:-2], -1), axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)


def bootstrap(
    statistic: Callable[[np.ndarray], np.ndarray], scores_RC: np.ndarray, *, seed: int, num_resamples: int = NUM_RESAMPLES
) -> np.ndarray:
    """A statistic with its percentile interval: float[3] or, for K figures, float[3, K], each with its level by itself (pointwise).

    R whole runs are drawn with replacement, each with all that it produced. Right for training runs, whose cells rise and fall together,
    and for pairs: put two arms side by side and rows stay together. (`scipy.stats.bootstrap` resamples one axis for one figure; published
    code resamples each cell by itself, which is right only where every score came from another run.)

    From few runs the interval is too narrow: intervals of the mean of a normal variable covered it in 74, 85, 89 and 93 % of 1,500 trials
    with 3, 5, 10 and 20 runs. From one run there is none, and its bounds are NaN.

    Args:
        statistic: from scores float[..., R, C] to float[...] or, for K figures at once, float[..., K]; leading axes are resamples.
    """
    value = statistic(scores_RC)
    if len(scores_RC) < 2:
        return np.stack([value, np.full_like(value, np.nan), np.full_like(value, np.nan)])
    picks_BR = np.random.default_rng(seed).integers(0, len(scores_RC), size=(num_resamples, len(scores_RC)))
    return np.stack([value, *np.quantile(statistic(scores_RC[picks_BR]), [LOW, HIGH], axis=0)])


def mean_difference(differences_R: np.ndarray) -> Estimate:
    """The mean with Student's interval, mean +- t(0.975; R - 1) sd / sqrt(R), sd with R - 1.

    Exact for normal differences; a single pair gives NaN bounds. It may exclude 0 where the sign-flip test, which assumes less, cannot
    reject: `sign_flip_interval` never disagrees with that test.
    """
    d = np.asarray(differences_R, dtype=float)
    if d.size < 2:
        return Estimate(float(d.mean()))
    half = stats.t.ppf(HIGH, d.size - 1) * d.std(ddof=1) / np.sqrt(d.size)
    return Estimate(float(d.mean()), float(d.mean() - half), float(d.mean() + half))


def sign_flip_test(differences_R: np.ndarray, *, seed: int = 0, max_exact: int = MAX_EXACT, num_patterns: int = 50_000) -> float:
    """The two-sided p of no difference between the arms: then each difference could as well have had the other sign.

    T(s) = |sum of s_r d_r| over sign patterns s. Up to `max_exact` pairs p = #{s : T(s) >= T(1)} / 2 ** R over all patterns; beyond,
    p = (1 + #{s : T(s) >= T(1)}) / (1 + num_patterns) over random ones, which never is 0. Assumes differences symmetric about their centre.
    (`scipy.stats.permutation_test` is the same but breaks ties by rounding.)

    Args:
        seed: of the random patterns; unused where all are counted.

    Source: Fisher 1935, The design of experiments, section 21; the correction: Phipson and Smyth 2010.
    """
    d = np.asarray(differences_R, dtype=float)
    at_least = abs(d.sum()) - SAME * np.abs(d).sum()
    if d.size <= max_exact:
        sums = np.zeros(1)
        for value in d:
            sums = np.concatenate([sums + value, sums - value])
        return float((np.abs(sums) >= at_least).mean())
    signs_NR = np.random.default_rng(seed).integers(0, 2, size=(num_patterns, d.size)) * 2 - 1
    return (1 + int((np.abs(signs_NR @ d) >= at_least).sum())) / (1 + num_patterns)


def sign_flip_interval(differences_R: np.ndarray) -> Estimate:
    """The mean difference with all shifts that the exact sign-flip test does not reject at 5 %, of at most `MAX_EXACT` pairs.

    These lie between the k-th smallest and the k-th largest mean of the 2 ** R - 1 non-empty subsets of the differences, with
    k = floor(0.025 * 2 ** R), because flipping a subset raises the sum about theta just where the subset's mean lies below theta.
    For k = 0 (fewer than six pairs) the bounds are infinite: so few pairs exclude nothing.

    Source: Hartigan 1969, Using subsample values as typical values.
    """
    d = np.asarray(differences_R, dtype=float)
    sums, counts = np.zeros(1), np.zeros(1)
    for value in d:
        sums, counts = np.concatenate([sums, sums + value]), np.concatenate([counts, counts + 1])
    means = np.sort(sums[1:] / counts[1:])
    k = int(np.floor((1.0 - LEVEL) / 2.0 * 2.0**d.size + SAME))
    low, high = (means[k - 1], means[-k]) if k else (-np.inf, np.inf)
    return Estimate(float(d.mean()), float(low), float(high))


def probability_of_improvement(x_RC: np.ndarray, y_SC: np.ndarray) -> np.ndarray:
    """P(X > Y) = mean over cells c of 1 / (R S) sum over r, s of [x_rc > y_sc] + 0.5 [x_rc = y_sc]: a run of X against any run of Y.

    The arms need not have the same seeds or as many; their cells must be the same. Leading axes are resamples.

    Source: Agarwal et al. 2021; within a cell it is Mann and Whitney's U over R S.
    """
    return (np.sign(x_RC[..., :, None, :] - y_SC[..., None, :, :]) / 2.0 + 0.5).mean(axis=(-3, -2, -1))


def paired_probability(differences_R: np.ndarray) -> Estimate:
    """Share of seeds on which the first arm was better, ties a half, with Clopper and Pearson's interval.

    For w wins of R: from the 2.5 % quantile of Beta(w, R - w + 1) to the 97.5 % quantile of Beta(w + 1, R - w). Covers at least at its
    level, and is not one point where every seed agrees, as a bootstrap would be: 5 of 5 give [0.48, 1]. A tie counts as half a win in
    these formulas, which then are an interpolation (`scipy.stats.binomtest` takes whole wins only).
    """
    d = np.asarray(differences_R, dtype=float)
    wins = float((d > 0).sum() + 0.5 * (d == 0).sum())
    low = stats.beta.ppf(LOW, wins, d.size - wins + 1.0) if wins > 0 else 0.0
    high = stats.beta.ppf(HIGH, wins + 1.0, d.size - wins) if wins < d.size else 1.0
    return Estimate(wins / d.size, float(low), float(high))


def holm(ps: Sequence[float]) -> list[float]:
    """Adjusted p of each of m tests, in the order given: in ascending order p_(i) becomes max over j <= i of min(1, (m - j + 1) p_(j)).

    Keeps the chance of any false claim among the m below alpha, however they depend. A test that was planned and could not be run
    belongs to the family still: give it p = 1.

    Source: Holm 1979, A simple sequentially rejective multiple test procedure.
    """
    p = np.asarray(ps, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, (p.size - np.arange(p.size)) * p[order]))
    return adjusted.tolist()


@lru_cache(maxsize=64)
def detectable(num_pairs: int, alpha: float, power: float) -> float:
    """The mean difference, in sd of the differences, that the sign-flip test of so many pairs, at least two, finds with this power.

    A t test of so few pairs would find smaller ones, but it does not decide: five pairs can give it any p, and the sign-flip test none
    below 0.0625. Up to ten pairs the power is that of 4,000 simulated normal trials (0.8 has a standard error of 0.006); for more pairs the
    t test's, P(|T| > t(1 - alpha / 2; R - 1)) for T noncentral t with noncentrality sqrt(R) effect (with 12 a few hundredths too high).

    Args:
        alpha: divide by the size of the family for the first step of Holm.

    Returns:
        Infinite where not even pairs that all agree get down to alpha.
    """
    # The smallest p that so many pairs can give: 0.0625 for 5, 0.002 for 10.
    if 2.0 ** (1 - num_pairs) > alpha:
        return float("inf")
    if num_pairs <= 10:
        noise_TN = np.random.default_rng(0).standard_normal((4000, num_pairs))
        # A pattern and its opposite give the same |sum|, so the first sign is always +.
        signs_PN = np.array([(1, *signs) for signs in itertools.product((1, -1), repeat=num_pairs - 1)], dtype=float)
        sums_TP = noise_TN @ signs_PN.T

    def power_of(effect: float) -> float:
        if num_pairs <= 10:
            at_least_T = np.abs(noise_TN.sum(axis=1) + num_pairs * effect) * (1.0 - SAME)
            ps_T = (np.abs(sums_TP + effect * signs_PN.sum(axis=1)) >= at_least_T[:, None]).mean(axis=1)
            return float((ps_T <= alpha).mean())
        freedom, shift = num_pairs - 1, np.sqrt(num_pairs) * effect
        bound = stats.t.ppf(1.0 - alpha / 2.0, freedom)
        # The lower tail is the upper one of the mirrored variable: scipy's `nct.cdf` is NaN far out.
        return float(stats.nct.sf(bound, freedom, shift) + stats.nct.sf(bound, freedom, -shift))

    high = 1.0
    while power_of(high) < power:
        high *= 2.0
    return float(optimize.bisect(lambda effect: power_of(effect) - power, 0.0, high, xtol=1e-3))


def survival_times(times_R: np.ndarray, reached_R: np.ndarray) -> tuple[float, float]:
    """Kaplan and Meier's median of times that are censored where `reached_R` is False, and their restricted mean.

    S(t) is the share of runs that have not got there by t. The median is the smallest t with S(t) <= 0.5, infinite where half never got
    there. The restricted mean is the area under S up to the longest time that any run was watched.

    Source: Kaplan and Meier 1958, Nonparametric estimation from incomplete observations.
    """
    survival = stats.ecdf(stats.CensoredData.right_censored(times_R, ~reached_R)).sf
    times_K, share_K = survival.quantiles, survival.probabilities
    past = np.flatnonzero(share_K <= 0.5 + SAME)
    mean = float(np.diff(times_K, prepend=0.0) @ np.concatenate([[1.0], share_K[:-1]]))
    return (float(times_K[past[0]]) if past.size else float("inf")), mean


class Sample(NamedTuple):
    """Measurements in clusters, one each of N: `part` of `whole` at a turn of a dialogue. Clusters are resampled, not measurements."""

    cluster: np.ndarray
    """int[N]: the scenario, 0 to the number of scenarios less 1."""
    dialogue: np.ndarray
    """int[N]."""
    turn: np.ndarray
    """float[N]: replies before it."""
    level: np.ndarray
    """float[N]: strictness, [0, 1]."""
    part: np.ndarray
    """float[N], 0 to `whole`."""
    whole: np.ndarray
    """float[N], > 0."""

    @classmethod
    def of(cls, rows: Sequence[tuple[str, int, int, float, float, float]]) -> Sample:
        """From (scenario, dialogue, turn, strictness, part, whole); rows of which nothing could be measured (whole 0) are left out."""
        kept = [row for row in rows if row[5] > 0]
        _, cluster = np.unique(np.array([row[0] for row in kept], dtype=str), return_inverse=True)
        dialogue, *others = np.array([row[1:] for row in kept], dtype=float).reshape(-1, 5).T
        return cls(cluster, dialogue.astype(int), *others)

    def where(self, chosen: np.ndarray) -> Sample:
        """The measurements that a mask, bool[N], chooses, their scenarios numbered from 0."""
        part = Sample(*(column[chosen] for column in self))
        return part._replace(cluster=np.unique(part.cluster, return_inverse=True)[1])

    def share(self, *, rng: np.random.Generator) -> Estimate:
        """Sum of the parts over the sum of the wholes, [0, 1]."""
        return self._ratio(self.part, self.whole, rng=rng, is_share=True)

    def drift(self, *, rng: np.random.Generator) -> Estimate:
        """Slope of part / whole over turns within dialogues, a turn: dialogues that end early do not pass for a trend."""
        if not self.turn.size:
            return NOTHING
        _, place = np.unique(self.dialogue, return_inverse=True)
        centred = self.turn - (np.bincount(place, self.turn * self.whole) / np.bincount(place, self.whole))[place]
        return self._ratio(centred * self.part, centred**2 * self.whole, rng=rng, is_share=False)

    def _ratio(self, above: np.ndarray, below: np.ndarray, *, rng: np.random.Generator, is_share: bool) -> Estimate:
        if not below.size or below.sum() <= 0:
            return NOTHING
        a, b = np.bincount(self.cluster, above), np.bincount(self.cluster, below)
        value = float(a.sum() / b.sum())
        if is_share and (value in (0.0, 1.0) or (a.size > 1 and np.ptp(a / b) < SAME)):
            return Estimate(value, *where_nothing_varies(value, a.size, within=(0.0, 1.0)))
        if a.size < 2:
            return Estimate(value)
        picks = rng.integers(0, a.size, size=(1000, a.size))
        sums = b[picks].sum(axis=1)
        return Estimate(value, *map(float, np.quantile(a[picks].sum(axis=1)[sums > 0] / sums[sums > 0], [LOW, HIGH])))

    def slope_over_levels(self, *, rng: np.random.Generator) -> Estimate:
        """Slope of part / whole from strictness 0 to 1, over all measurements: least squares weighted by `whole`, centred in each draw."""
        if np.unique(self.level).size < 2:
            return NOTHING
        x, y, w = self.level, self.part, self.whole  # y is the rate times w
        sums_N5 = np.stack([np.bincount(self.cluster, column) for column in (w, w * x, y, w * x * x, x * y)], axis=1)

        def slope(sums: np.ndarray) -> np.ndarray:
            w, wx, wy, wxx, wxy = np.moveaxis(sums, -1, 0)
            spread = w * wxx - wx**2
            return np.where(spread > SAME, w * wxy - wx * wy, np.nan) / np.where(spread > SAME, spread, 1.0)

        value = float(slope(sums_N5.sum(axis=0)))
        if len(sums_N5) < 2:
            return Estimate(value)
        picks = rng.integers(0, len(sums_N5), size=(1000, len(sums_N5)))
        return Estimate(value, *map(float, np.nanquantile(slope(sums_N5[picks].sum(axis=1)), [LOW, HIGH])))


def where_nothing_varies(value: float, num: int, *, within: tuple[float, float]) -> tuple[float, float]:
    """The 95 % interval of a mean of `num` things that were all the same, of which resampling shows nothing.

    So many without an exception still bound how many exceptions there are, 1 - 0.025^(1/num), and each could have been at either end.

    Args:
        within: the least and the greatest value that there could be.
    """
    exceptions = 1.0 - LOW ** (1.0 / num)
    low, high = (value + exceptions * (end - value) for end in within)
    return low, high


def mean_interval(
    values: Sequence[float] | np.ndarray, clusters: Sequence[str], *, rng: np.random.Generator, within: tuple[float, float] | None = None
) -> tuple[float, float]:
    """The 95 % interval of the mean over all values, those of a cluster drawn together; NaNs of fewer than two clusters.

    Args:
        within: the least and the greatest value that there could be, which bound the mean where all clusters are equal.
    """
    names, place = np.unique(np.array(clusters, dtype=str), return_inverse=True)
    if names.size < 2:
        return float("nan"), float("nan")
    sums_N, counts_N = np.bincount(place, np.array(values, dtype=float)), np.bincount(place)
    if within is not None and np.ptp(sums_N / counts_N) < SAME:
        return where_nothing_varies(float(sums_N.sum() / counts_N.sum()), names.size, within=within)
    picks_BN = rng.integers(0, names.size, size=(NUM_RESAMPLES, names.size))
    low, high = np.quantile(sums_N[picks_BN].sum(axis=1) / counts_N[picks_BN].sum(axis=1), [LOW, HIGH])
    return float(low), float(high)


def rank_correlation(clusters: Sequence[str], xs: Sequence[float], ys: Sequence[float], *, rng: np.random.Generator) -> Estimate:
    """Spearman's rank correlation of pairs, [-1, 1]; ties share their mean rank."""
    # Means that are equal by algebra may differ in their last bit.
    x, y = np.round(np.array(xs, dtype=float), 9), np.round(np.array(ys, dtype=float), 9)

    def of(places: np.ndarray) -> float:
        a, b = stats.rankdata(x[places]), stats.rankdata(y[places])
        spread = a.std() * b.std()
        return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread else float("nan")

    value = of(np.arange(len(x))) if len(x) > 2 else float("nan")
    names, place = np.unique(np.array(clusters, dtype=str), return_inverse=True)
    if np.isnan(value) or names.size < 2:
        return Estimate(value)
    groups = [np.flatnonzero(place == i) for i in range(names.size)]
    draws = rng.integers(0, names.size, size=(500, names.size))
    return Estimate(value, *map(float, np.nanquantile([of(np.concatenate([groups[i] for i in draw])) for draw in draws], [LOW, HIGH])))
