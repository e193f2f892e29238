"""Shares, slopes and correlations over clusters: worked out by hand, and the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.stats import NOTHING, Estimate, Sample, drift, mean_interval, rank_correlation, share, slope_over_levels


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def row(part: float, whole: float = 1.0, *, who: str = "a", dialogue: int = 0, turn: int = 1, level: float = 0.5):
    return who, dialogue, turn, level, part, whole


def test_a_share_is_the_parts_over_the_wholes_and_not_a_mean_of_shares():
    found = share(Sample.of([row(1, 4, who="a"), row(1, 1, who="b"), row(0, 0, who="c")]), rng=rng())
    assert found.value == pytest.approx(2 / 5)
    assert found.low == pytest.approx(1 / 4) and found.high == pytest.approx(1.0)


def test_the_same_seed_gives_the_same_interval():
    sample = Sample.of([row(i % 2, who=str(i % 7)) for i in range(40)])
    assert share(sample, rng=rng()) == share(sample, rng=rng())


def test_where_nothing_varies_the_number_of_scenarios_bounds_what_was_not_seen():
    ones = [row(1, who=str(i)) for i in range(100)]
    found = share(Sample.of(ones), rng=rng())
    assert (found.value, found.high) == (1.0, 1.0) and found.low == pytest.approx(0.025 ** (1 / 100))
    none = share(Sample.of([row(0, who=str(i)) for i in range(100)]), rng=rng())
    assert (none.value, none.low) == (0.0, 0.0) and none.high == pytest.approx(1 - 0.025 ** (1 / 100))
    exceptions = 1 - 0.025 ** (1 / 100)
    half = share(Sample.of([row(1, 2, who=str(i)) for i in range(100)]), rng=rng())
    assert (half.low, half.high) == pytest.approx((0.5 - 0.5 * exceptions, 0.5 + 0.5 * exceptions))
    low, high = mean_interval([30.0] * 100, [str(i) for i in range(100)], rng=rng(), within=(0.0, 100.0))
    assert (low, high) == pytest.approx((30 - 30 * exceptions, 30 + 70 * exceptions))


def test_an_interval_is_wider_when_lines_of_a_scenario_go_together():
    apart = Sample.of([row(i % 2, who=str(i)) for i in range(60)])
    together = Sample.of([row(i // 10 % 2, who=str(i // 10)) for i in range(60)])
    spans = [found.high - found.low for found in (share(apart, rng=rng()), share(together, rng=rng()))]
    assert spans[1] > 1.5 * spans[0]


def test_drift_is_taken_within_dialogues():
    """A dialogue that is worse and longer than another makes no trend; a fall of .1 a turn in both is one."""
    level = [row(1.0, dialogue=0, turn=turn, who="a") for turn in (1, 2)] + [
        row(0.0, dialogue=1, turn=turn, who="b") for turn in (1, 2, 3, 4, 5)
    ]
    assert drift(Sample.of(level), rng=rng()).value == pytest.approx(0.0)
    falling = [row(1.0 - 0.1 * turn, dialogue=d, turn=turn, who=str(d)) for d in (0, 1, 2) for turn in range(1, 4 + d)]
    found = drift(Sample.of(falling), rng=rng())
    assert (found.value, found.low, found.high) == pytest.approx((-0.1, -0.1, -0.1))


def test_the_slope_over_strictness_is_that_of_a_straight_line():
    rows = [row(0.9 - 0.4 * d, dialogue=i, who=str(i), level=d) for i, d in enumerate((0.0, 0.25, 0.5, 0.75, 1.0))]
    assert slope_over_levels(Sample.of(rows), rng=rng()).value == pytest.approx(-0.4)
    assert np.isnan(slope_over_levels(Sample.of(rows[:1]), rng=rng()).value)


def test_what_is_the_same_everywhere_has_no_slope_in_any_resample():
    flat = slope_over_levels(Sample.of([row(1.0, dialogue=i, who=str(i), level=i % 5 / 4) for i in range(40)]), rng=rng())
    assert (flat.value, flat.low, flat.high) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)


def test_one_scenario_has_no_interval():
    one = share(Sample.of([row(part, dialogue=0, who="a") for part in (1.0, 0.0)]), rng=rng())
    assert one.value == 0.5 and np.isnan(one.low) and np.isnan(one.high)


def test_nothing_measured_is_nothing_and_is_written_as_null():
    assert np.isnan(share(Sample.of([]), rng=rng()).value)
    assert NOTHING.to_dict() == {"value": None, "low": None, "high": None}
    assert NOTHING.text(2) == "–" and Estimate(value=0.5, low=0.25, high=1.0).text(2) == "0.50 [0.25, 1.00]"


def test_a_rank_correlation_knows_order_only_and_shares_ranks_in_ties():
    names = [str(i) for i in range(6)]
    assert rank_correlation(names, [1, 2, 3, 4, 5, 6], [1, 10, 11, 12, 13, 1000], rng=rng()).value == pytest.approx(1.0)
    assert rank_correlation(names, [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1], rng=rng()).value == pytest.approx(-1.0)
    # ranks 1.5 1.5 3 against 1 2 3: covariance 1/2, spreads sqrt(1/2) and sqrt(2/3)
    assert rank_correlation(names[:3], [1, 1, 2], [1, 2, 3], rng=rng()).value == pytest.approx(0.5 / np.sqrt(1 / 3))
    assert np.isnan(rank_correlation(names, [1] * 6, [1, 2, 3, 4, 5, 6], rng=rng()).value)


def test_interval_of_a_mean_is_seeded_and_brackets_it():
    values, names = np.arange(101, dtype=float), [f"{i:03}" for i in range(101)]
    low, high = mean_interval(values, names, rng=np.random.default_rng(1))
    assert (low, high) == mean_interval(values, names, rng=np.random.default_rng(1))
    # standard error of the mean of 0..100 is 29.15 / sqrt(101) = 2.90
    assert low == pytest.approx(50 - 1.96 * 2.9, abs=0.6) and high == pytest.approx(50 + 1.96 * 2.9, abs=0.6)


def test_interval_of_a_mean_is_that_of_the_mean_over_all_values_and_not_over_clusters():
    # Half of the clusters have one value of 100, the others four of 0: the mean of all is 20, that of the clusters' means 50.
    values, names = [100.0] * 20 + [0.0] * 80, [f"one {i}" for i in range(20)] + [f"four {i // 4}" for i in range(80)]
    low, high = mean_interval(values, names, rng=np.random.default_rng(0))
    assert low < 20.0 < high < 45.0
    assert np.isnan(mean_interval([1.0, 2.0], ["a", "a"], rng=np.random.default_rng(0))).all()
