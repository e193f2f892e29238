"""Shares, slopes and rank correlations of things that come in clusters, with intervals over the clusters.

Lines of one scenario are not independent, so scenarios are resampled, not lines (percentile bootstrap, 95 %).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES = 1000
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
    picks = rng.integers(0, len(sums), size=(NUM_RESAMPLES, len(sums)))
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
    picks = rng.integers(0, a.size, size=(NUM_RESAMPLES, a.size))
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
    draws = rng.integers(0, len(groups), size=(NUM_RESAMPLES // 2, len(groups)))
    values = [statistic(np.concatenate([groups[i] for i in draw])) for draw in draws]
    low, high = np.nanquantile(values, [LOW, HIGH])
    return Estimate(value=value, low=float(low), high=float(high))
