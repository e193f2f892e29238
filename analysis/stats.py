"""Shares, slopes and rank correlations of things that come in clusters, with intervals over the clusters.

Lines of one scenario are not independent, so scenarios are resampled, not lines (percentile bootstrap, 95 %).

Estimates over training runs, and bootstrap intervals that resample what was independent: the runs.

One shape for everything: `scores_RC`, float[R, C], one row for each training run (in the order of its seeds) and one column for each
cell it was judged on (a family at a strictness, say). One number a run is float[R, 1]. NaN is refused: leave out a run or a cell, and
say so.

Source: Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice (the estimators; reimplemented, because
one training run produces all cells of its row and because intervals must follow from their seed).

Two arms compared on the same seeds: differences, exact tests, and corrections for looking often.

Everything starts from one number a run. `a_R` and `b_R`, float[R], hold those of two arms in the same order of seeds, so that element r
of both shared everything but the arm; `differences_R` is a_R - b_R. NaN is refused, except by `complete_pairs`, which drops such pairs
and counts them.

What a comparison could have found: the power of the sign-flip test that decides, and the least difference it finds so often.

Differences between arms are taken to be normal, and told in their standard deviation. A t test of so few pairs would find smaller ones, but
it is not what decides: five pairs can give it any p, and the sign-flip test none below .0625.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypedDict

import numpy as np
from scipy import optimize, stats

NUM_CLUSTER_RESAMPLES = 1000
NUM_RESAMPLES_OF_MEANS = 2000
LOW, HIGH = 0.025, 0.975
ALIKE = 1e-9
"""Means of clusters that differ by less are alike."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with its 95 % interval; NaN for what there was nothing to take it from."""

    value: float
    low: float
    high: float

    @classmethod
    def alone(cls, value: float) -> Estimate:
        """A figure of which no interval is known."""
        return cls(value=value, low=float("nan"), high=float("nan"))

    def to_dict(self) -> dict[str, float | None]:
        """JSON-able; None for NaN."""
        return {name: None if np.isnan(value) else float(value) for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, float | None]) -> Estimate:
        """The estimate that `to_dict` wrote."""
        return cls(**{name: float("nan") if value is None else value for name, value in record.items()})

    def text(self, digits: int) -> str:
        """`.98 [.96, .99]`; a dash for NaN."""
        if np.isnan(self.value):
            return "–"
        bounds = "" if np.isnan(self.low) else f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        return f"{self.value:.{digits}f}{bounds}".replace(f"-{0:.{digits}f}", f"{0:.{digits}f}")


NOTHING = Estimate.alone(float("nan"))


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One measurement each, N of them: `part` of `whole` at a turn of a dialogue."""

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
        names = {name: number for number, name in enumerate(sorted({row[0] for row in kept}))}
        numbers = [np.array([row[i] for row in kept], dtype=float) for i in range(1, 6)]
        cluster = np.array([names[row[0]] for row in kept], dtype=int)
        return cls(cluster=cluster, dialogue=numbers[0].astype(int), turn=numbers[1], level=numbers[2], part=numbers[3], whole=numbers[4])

    def where(self, chosen: np.ndarray) -> Sample:
        """The measurements that a mask, bool[N], chooses, their scenarios numbered anew."""
        _, cluster = np.unique(self.cluster[chosen], return_inverse=True)
        rest = {name: getattr(self, name)[chosen] for name in ("dialogue", "turn", "level", "part", "whole")}
        return Sample(cluster=cluster, **rest)


def where_nothing_varies(value: float, num: int, *, within: tuple[float, float]) -> tuple[float, float]:
    """The 95 % interval of a mean of `num` things that were all alike, of which resampling shows nothing.

    So many without an exception still bound how many exceptions there are, 1 - .025^(1/num), and each could have been at either end.

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
        within: the least and the greatest value that there could be, which bound the mean where all clusters are alike.
    """
    names, place = np.unique(np.array(clusters, dtype=str), return_inverse=True)
    if names.size < 2:
        return float("nan"), float("nan")
    sums_N, counts_N = np.bincount(place, np.array(values, dtype=float)), np.bincount(place)
    if within is not None and np.ptp(sums_N / counts_N) < ALIKE:
        return where_nothing_varies(float(sums_N.sum() / counts_N.sum()), names.size, within=within)
    picks_RN = rng.integers(0, names.size, size=(NUM_RESAMPLES_OF_MEANS, names.size))
    low, high = np.quantile(sums_N[picks_RN].sum(axis=1) / counts_N[picks_RN].sum(axis=1), [LOW, HIGH])
    return float(low), float(high)


def share(sample: Sample, *, rng: np.random.Generator) -> Estimate:
    """Sum of the parts over the sum of the wholes, [0, 1]."""
    return _ratio(sample, sample.part, sample.whole, rng=rng, is_share=True)


def drift(sample: Sample, *, rng: np.random.Generator) -> Estimate:
    """Slope of part / whole over turns within dialogues, a turn: dialogues that end early do not pass for a trend."""
    if not sample.turn.size:
        return NOTHING
    centred = _within(sample.turn, sample)
    return _ratio(sample, centred * sample.part, centred**2 * sample.whole, rng=rng, is_share=False)


def slope_over_levels(sample: Sample, *, rng: np.random.Generator) -> Estimate:
    """Slope of part / whole from strictness 0 to 1, over all measurements: least squares weighted by `whole`, centred anew in each draw."""
    if np.unique(sample.level).size < 2:
        return NOTHING
    x, y, w = sample.level, sample.part, sample.whole  # y is the rate times w
    sums = np.stack([np.bincount(sample.cluster, column) for column in (w, w * x, y, w * x * x, x * y)], axis=1)
    value = float(_slope(sums.sum(axis=0)))
    if len(sums) < 2:
        return Estimate.alone(value)
    picks = rng.integers(0, len(sums), size=(NUM_CLUSTER_RESAMPLES, len(sums)))
    low, high = np.nanquantile(_slope(sums[picks].sum(axis=1)), [LOW, HIGH])
    return Estimate(value=value, low=float(low), high=float(high))


def _slope(sums: np.ndarray) -> np.ndarray:
    """Slopes from sums [..., 5] of the weights and of weight times x, y, x squared and xy; NaN where x does not vary."""
    w, wx, wy, wxx, wxy = np.moveaxis(sums, -1, 0)
    spread = w * wxx - wx**2
    return np.where(spread > 1e-9, w * wxy - wx * wy, np.nan) / np.where(spread > 1e-9, spread, 1.0)


def _within(values: np.ndarray, sample: Sample) -> np.ndarray:
    """float[N]: values less their dialogue's mean, weighted by `whole`."""
    _, place = np.unique(sample.dialogue, return_inverse=True)
    means = np.bincount(place, values * sample.whole) / np.bincount(place, sample.whole)
    return values - means[place]


def _ratio(sample: Sample, above: np.ndarray, below: np.ndarray, *, rng: np.random.Generator, is_share: bool) -> Estimate:
    if not below.size or below.sum() <= 0:
        return NOTHING
    a, b = np.bincount(sample.cluster, above), np.bincount(sample.cluster, below)
    value = float(a.sum() / b.sum())
    if is_share and (value in (0.0, 1.0) or (a.size > 1 and np.ptp(a / b) < ALIKE)):
        low, high = where_nothing_varies(value, a.size, within=(0.0, 1.0))
        return Estimate(value=value, low=low, high=high)
    if a.size < 2:
        return Estimate.alone(value)
    picks = rng.integers(0, a.size, size=(NUM_CLUSTER_RESAMPLES, a.size))
    sums = b[picks].sum(axis=1)
    values = a[picks].sum(axis=1)[sums > 0] / sums[sums > 0]
    low, high = np.quantile(values, [LOW, HIGH])
    return Estimate(value=value, low=float(low), high=float(high))


def rank_correlation(clusters: Sequence[str], xs: Sequence[float], ys: Sequence[float], *, rng: np.random.Generator) -> Estimate:
    """Spearman's rank correlation of pairs, [-1, 1]; ties share their mean rank."""
    from scipy.stats import rankdata

    # Means that are equal by algebra may differ in their last bit.
    x, y = np.round(np.array(xs, dtype=float), 9), np.round(np.array(ys, dtype=float), 9)

    def of(places: np.ndarray) -> float:
        a, b = rankdata(x[places]), rankdata(y[places])
        spread = a.std() * b.std()
        return float(((a - a.mean()) * (b - b.mean())).mean() / spread) if spread else float("nan")

    return _resampled(of, clusters, rng=rng) if len(xs) > 2 else NOTHING


def _resampled(statistic: Callable[[np.ndarray], float], clusters: Sequence[str], *, rng: np.random.Generator) -> Estimate:
    members: dict[str, list[int]] = {}
    for place, name in enumerate(clusters):
        members.setdefault(name, []).append(place)
    groups = [np.array(group) for _, group in sorted(members.items())]
    value = statistic(np.arange(len(clusters)))
    if np.isnan(value):
        return NOTHING
    if len(groups) < 2:
        return Estimate.alone(value)
    draws = rng.integers(0, len(groups), size=(NUM_CLUSTER_RESAMPLES // 2, len(groups)))
    values = [statistic(np.concatenate([groups[i] for i in draw])) for draw in draws]
    low, high = np.nanquantile(values, [LOW, HIGH])
    return Estimate(value=value, low=float(low), high=float(high))


NUM_RESAMPLES = 2000
LEVEL = 0.95
Statistic = Callable[[np.ndarray], float | np.ndarray]
"""From scores of the shape that is resampled to a number, or to float[K]."""


class Resampling(TypedDict):
    """How an interval is resampled, to be handed on whole."""

    seed: int
    num_resamples: int


class Band(NamedTuple):
    """A figure at each of K places with its interval there; every place has its level of its own (pointwise, not simultaneous)."""

    value: np.ndarray
    """float[K]."""
    low: np.ndarray
    """float[K]; NaN from a single run."""
    high: np.ndarray


def check_scores(scores: np.ndarray, name: str = "scores", *, axes: int = 2) -> np.ndarray:
    """The scores as float64, if they can be computed with.

    Args:
        axes: how many they must have.

    Raises:
        ValueError: another number of axes, nothing in them, or a value that is NaN or infinite.
    """
    array = np.asarray(scores, dtype=float)
    if array.ndim != axes or not array.size:
        raise ValueError(f"{name} must have {axes} axes and at least one value, got shape {array.shape}")
    if not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, got {array[place]} at {place}; leave out that run or that cell, and say so")
    return array


def check_level(level: float) -> None:
    """Refuses what is no level of an interval.

    Raises:
        ValueError: it is not in (0, 1).
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level!r}")


def mean(scores_RC: np.ndarray) -> float:
    """1 / (R C) sum of all scores."""
    return float(check_scores(scores_RC).mean())


def median(scores_RC: np.ndarray) -> float:
    """Median over cells of the mean over runs, as in the source; for one cell that is the mean over runs."""
    return float(np.median(check_scores(scores_RC).mean(axis=0)))


def iqm(scores_RC: np.ndarray) -> float:
    """Interquartile mean: of all R C scores, sorted, floor(R C / 4) are cut off at each end and the rest averaged.

    With fewer than four scores nothing is cut off, and it is the mean.
    """
    ordered = np.sort(check_scores(scores_RC), axis=None)
    cut = ordered.size // 4
    return float(ordered[cut : ordered.size - cut].mean())


def optimality_gap(scores_RC: np.ndarray, *, target: float) -> float:
    """target - mean of min(score, target): how far scores fall short of the target; what lies beyond it makes up for nothing.

    Raises:
        ValueError: the target is no finite number.
    """
    if not np.isfinite(target):
        raise ValueError(f"target must be finite, got {target!r}")
    return float(target - np.minimum(check_scores(scores_RC), target).mean())


def performance_profile(scores_RC: np.ndarray, thresholds_K: np.ndarray) -> np.ndarray:
    """float[K], the share of all R C scores above each threshold; falls from 1 to 0."""
    above_RCK = check_scores(scores_RC)[..., None] > check_scores(thresholds_K, "thresholds", axes=1)
    return above_RCK.mean(axis=(0, 1))


def profile_over_strictness(scores_RC: np.ndarray, strictness_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The strictnesses of the cells, sorted, float[K], and the mean score of the cells at each, float[K].

    Raises:
        ValueError: there is not one strictness for each cell.
    """
    scores, at = check_scores(scores_RC), check_scores(strictness_C, "strictness", axes=1)
    if at.size != scores.shape[1]:
        raise ValueError(f"strictness must have one value for each of the {scores.shape[1]} cells, got {at.size}")
    levels_K, place_C = np.unique(at, return_inverse=True)
    return levels_K, np.bincount(place_C, scores.mean(axis=0)) / np.bincount(place_C)


def joint_draws(statistic: Statistic, scores: np.ndarray, *, seed: int, num_resamples: int = NUM_RESAMPLES) -> np.ndarray:
    """The statistic of resampled runs: R whole runs are drawn with replacement, each with all that it produced.

    Right for training runs, whose cells rise and fall together, and for pairs: put two arms side by side and rows stay together.

    Args:
        scores: float[R, ...]; rows are what is drawn.
        seed: the same seed gives the same draws.

    Returns:
        float[num_resamples] or, for a statistic with K values, float[num_resamples, K].
    """
    rng = np.random.default_rng(seed)
    picks_BR = rng.integers(0, len(scores), size=(num_resamples, len(scores)))
    return np.array([statistic(scores[picks_R]) for picks_R in picks_BR])


def stratified_draws(statistic: Statistic, scores_RC: np.ndarray, *, seed: int, num_resamples: int = NUM_RESAMPLES) -> np.ndarray:
    """The statistic of runs resampled within each cell by itself, as the source does it.

    Right where every score of a column came from a training run of its own (one run for each task). Where one run produced its whole row
    the interval comes out too narrow, because the luck of a run is then averaged away: use `joint_draws`.

    Args:
        seed: the same seed gives the same draws.

    Returns:
        float[num_resamples] or, for a statistic with K values, float[num_resamples, K].
    """
    rng = np.random.default_rng(seed)
    picks_BRC = rng.integers(0, len(scores_RC), size=(num_resamples, *scores_RC.shape))
    return np.array([statistic(np.take_along_axis(scores_RC, picks_RC, axis=0)) for picks_RC in picks_BRC])


Draws = Callable[..., np.ndarray]
"""`joint_draws` or `stratified_draws`."""


def estimate(
    statistic: Statistic,
    scores_RC: np.ndarray,
    *,
    seed: int,
    draws: Draws = joint_draws,
    level: float = LEVEL,
    num_resamples: int = NUM_RESAMPLES,
) -> Estimate:
    """The statistic with its percentile interval: the (1 - level) / 2 quantiles of the draws at both ends.

    From few runs the interval is too narrow: 95 % intervals of the mean of a normal variable covered it in 74, 85, 89 and 93 % of 1,500
    trials with 3, 5, 10 and 20 runs. From one run there is none, and its bounds are NaN.
    """
    found = band(lambda scores: np.array([statistic(scores)]), scores_RC, seed=seed, draws=draws, level=level, num_resamples=num_resamples)
    return Estimate(value=float(found.value[0]), low=float(found.low[0]), high=float(found.high[0]))


def band(
    statistic: Statistic,
    scores_RC: np.ndarray,
    *,
    seed: int,
    draws: Draws = joint_draws,
    level: float = LEVEL,
    num_resamples: int = NUM_RESAMPLES,
) -> Band:
    """A statistic of K values with its percentile interval at each; see `estimate`."""
    scores = check_scores(scores_RC)
    check_level(level)
    if num_resamples < 1:
        raise ValueError(f"num_resamples must be at least 1, got {num_resamples!r}")
    value = np.asarray(statistic(scores), dtype=float)
    if len(scores) < 2:
        return Band(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(draws(statistic, scores, seed=seed, num_resamples=num_resamples), [tail, 1.0 - tail], axis=0)
    return Band(value, low, high)


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
