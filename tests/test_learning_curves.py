"""Areas under curves and times to a threshold: cases drawn by hand, and scipy's Kaplan-Meier."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from analysis.endpoints import (
    Curve,
    area_under_curves,
    common_curves,
    hold_last,
    kaplan_meier,
    median_time,
    restricted_mean_time,
    tokens_to_threshold,
)
from analysis.stats import band, estimate, mean


def test_curves_share_an_axis_that_keeps_every_corner():
    tokens, curves = common_curves([Curve([0, 10, 40], [0, 10, 40]), Curve([0, 20], [0, 40])], end=30)
    assert tokens.tolist() == [0, 10, 20, 30]
    assert curves[0].tolist() == [0, 10, 20, 30]
    np.testing.assert_array_equal(curves[1], [0, 20, 40, np.nan])


def test_the_axis_begins_where_the_last_run_began():
    tokens, curves = common_curves([Curve([0, 10], [0, 10]), Curve([4, 10], [1, 7])], end=10)
    assert tokens.tolist() == [4, 10]
    assert curves.tolist() == [[4, 10], [1, 7]]


@pytest.mark.parametrize(
    ("curves", "complaint"),
    [
        ([], "curves must be at least one"),
        ([Curve([0, 5], [1])], r"curves\[0\] must have a score for each of its looks"),
        ([Curve([0, 1], [1, 2]), Curve([0, 0], [1, 2])], r"curves\[1\] must have increasing tokens"),
        ([Curve([0, 1], [1, math.nan])], r"curves\[0\] must be finite"),
        ([Curve([9, 10], [1, 2])], "end must lie after the first look of every run"),
    ],
)
def test_what_is_no_curve_is_refused(curves, complaint):
    with pytest.raises(ValueError, match=complaint):
        common_curves(curves, end=9)


def test_the_area_is_the_mean_height():
    # A ramp from 0 to 40 and a constant; then a ramp to 10 that stays there: 10 * 5 and 30 * 10.
    tokens = np.array([0.0, 10.0, 40.0])
    assert area_under_curves(tokens, np.array([[0.0, 10.0, 40.0], [7.0, 7.0, 7.0]])).tolist() == [20.0, 7.0]
    assert area_under_curves(tokens, np.array([[0.0, 10.0, 10.0]])).tolist() == [(50 + 300) / 40]


def test_the_area_is_over_the_tokens_that_there_are():
    assert area_under_curves(np.array([10.0, 20.0, 40.0]), np.array([[6.0, 6.0, 6.0]])).tolist() == [6.0]


def test_the_area_does_not_depend_on_when_others_looked():
    alone = area_under_curves(*common_curves([Curve([0, 13, 57, 90], [3, 30, 20, 50])], end=80))
    beside = area_under_curves(*common_curves([Curve([0, 13, 57, 90], [3, 30, 20, 50]), Curve([0, 7, 29, 80], [1, 1, 9, 2])], end=80))
    assert beside[0] == pytest.approx(alone[0], rel=1e-12)


def test_a_curve_that_ends_early_is_refused_unless_held():
    tokens, curves = common_curves([Curve([0, 40], [0, 40]), Curve([0, 10], [0, 10])], end=40)
    with pytest.raises(ValueError, match=r"curves must reach 40 tokens, got one \(run 1\) that ends at 10; hold it or leave it out"):
        area_under_curves(tokens, curves)
    assert area_under_curves(tokens, hold_last(curves)).tolist() == [20.0, (50 + 300) / 40]


def test_gaps_are_no_censoring():
    with pytest.raises(ValueError, match="NaN nowhere but after a run's last look"):
        area_under_curves(np.arange(3.0), hold_last(np.array([[1.0, np.nan, 2.0]])))
    with pytest.raises(ValueError, match="NaN nowhere but after a run's last look"):
        area_under_curves(np.arange(3.0), np.array([[1.0, np.nan, 2.0]]))


def test_resampling_points_of_a_curve_by_themselves_would_flatter():
    # Runs that differ by a constant: the interval of the area is as wide as that of any point, and not narrower for having ten looks.
    heights = np.random.default_rng(0).normal(50.0, 5.0, size=(8, 1)) + np.arange(10.0)
    areas = area_under_curves(np.arange(10.0), heights)
    of_area = estimate(mean, areas[:, None], seed=0)
    at_points = band(lambda scores: scores.mean(axis=0), heights, seed=0)
    assert of_area.high - of_area.low == pytest.approx((at_points.high - at_points.low)[0])


def test_the_threshold_is_reached_between_looks():
    tokens = np.array([0.0, 10.0, 20.0, 30.0])
    curves = np.array([[0.0, 40.0, 80.0, 20.0], [70.0, 0.0, 0.0, 0.0], [0.0, 10.0, 59.0, np.nan], [0.0, 0.0, 0.0, 60.0]])
    times, reached = tokens_to_threshold(tokens, curves, 60.0)
    # Halfway from 40 to 80; at once; never, and watched until 20; just at the end.
    assert times.tolist() == [15.0, 0.0, 20.0, 30.0]
    assert reached.tolist() == [True, True, False, True]


def test_kaplan_and_meier_by_hand():
    # Five runs: at 2 one of five, at 3 (another one is censored there) one of four, at 5 one of two; one is censored at 8.
    survival = kaplan_meier(np.array([2.0, 3.0, 3.0, 5.0, 8.0]), np.array([True, True, False, True, False]))
    assert survival.times_K.tolist() == [2.0, 3.0, 5.0]
    assert survival.share_K == pytest.approx([4 / 5, 4 / 5 * 3 / 4, 4 / 5 * 3 / 4 * 1 / 2])
    assert survival.followed == 8.0
    assert median_time(survival) == 5.0
    # 2 * 1 + 1 * .8 + 2 * .6 + 3 * .3
    assert restricted_mean_time(survival, horizon=8.0) == pytest.approx(4.9)
    assert restricted_mean_time(survival, horizon=4.0) == pytest.approx(2 + 0.8 + 0.6)


def test_kaplan_and_meier_agree_with_scipy():
    rng = np.random.default_rng(0)
    times, reached = rng.integers(1, 12, size=40).astype(float), rng.random(40) < 0.6
    theirs = scipy.stats.ecdf(scipy.stats.CensoredData.right_censored(times, ~reached)).sf
    survival = kaplan_meier(times, reached)
    assert survival.share_K == pytest.approx(theirs.evaluate(survival.times_K))


def test_without_censoring_the_restricted_mean_is_the_mean():
    times = np.array([3.0, 1.0, 8.0])
    survival = kaplan_meier(times, np.ones(3, dtype=bool))
    assert restricted_mean_time(survival, horizon=20.0) == pytest.approx(4.0)
    assert restricted_mean_time(survival, horizon=2.0) == pytest.approx(np.minimum(times, 2.0).mean())
    assert median_time(survival) == 3.0


def test_where_none_got_there_the_median_is_infinite_and_the_mean_restricted():
    survival = kaplan_meier(np.array([5.0, 9.0]), np.array([False, False]))
    assert median_time(survival) == math.inf
    assert restricted_mean_time(survival, horizon=9.0) == 9.0
    with pytest.raises(ValueError, match="horizon must be at most 9, until when runs were watched, got 10"):
        restricted_mean_time(survival, horizon=10.0)


def test_times_that_are_none_are_refused():
    with pytest.raises(ValueError, match="times must be finite"):
        kaplan_meier(np.array([math.nan]), np.array([True]))


def test_an_area_over_no_tokens_and_a_threshold_that_is_none_are_refused():
    for tokens_T in (np.array([5.0]), np.array([5.0, 5.0])):
        with pytest.raises(ValueError, match="tokens must be at least two, increasing, for an area"):
            area_under_curves(tokens_T, np.ones((1, tokens_T.size)))
    with pytest.raises(ValueError, match="threshold must be a number, got nan"):
        tokens_to_threshold(np.array([0.0, 1.0]), np.ones((1, 2)), float("nan"))
