"""Estimates over runs and their intervals: against scipy, against cases worked out by hand, and by how often intervals cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from analysis.stats import (
    band,
    estimate,
    iqm,
    joint_draws,
    mean,
    median,
    optimality_gap,
    performance_profile,
    profile_over_strictness,
    stratified_draws,
)

TWO_BY_FOUR = np.array([[0.0, 1.0, 2.0, 9.0], [0.0, 1.0, 2.0, 5.0]])
"""Two runs, four cells."""


def correlated(rng: np.random.Generator, *, num_runs: int, num_cells: int, luck: float = 1.0, noise: float = 1.0) -> np.ndarray:
    """Scores with mean 0: the luck of a run is in all of its cells."""
    return luck * rng.normal(size=(num_runs, 1)) + noise * rng.normal(size=(num_runs, num_cells))


def test_estimates_of_a_small_table():
    assert mean(TWO_BY_FOUR) == 20 / 8
    # Means over runs: 0, 1, 2, 7.
    assert median(TWO_BY_FOUR) == 1.5
    # Sorted: 0 0 | 1 1 2 2 | 5 9.
    assert iqm(TWO_BY_FOUR) == 1.5
    # Cut at 4: 0 1 2 4 0 1 2 4.
    assert optimality_gap(TWO_BY_FOUR, target=4.0) == 4.0 - 14 / 8


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (5, 1), (5, 7), (10, 24)])
def test_iqm_is_the_mean_trimmed_by_a_quarter_as_published(shape):
    scores = np.random.default_rng(0).exponential(size=shape)
    assert iqm(scores) == pytest.approx(scipy.stats.trim_mean(scores, 0.25, axis=None), rel=1e-12)


def test_a_run_beyond_the_target_makes_up_for_nothing():
    assert optimality_gap(np.array([[50.0], [150.0]]), target=100.0) == 25.0


def test_a_profile_is_the_share_of_scores_strictly_above():
    shares = performance_profile(TWO_BY_FOUR, np.array([-1.0, 0.0, 1.0, 5.0, 9.0]))
    assert shares.tolist() == [1.0, 6 / 8, 4 / 8, 1 / 8, 0.0]


def test_a_profile_over_strictness_averages_runs_and_the_cells_of_a_strictness():
    levels, means = profile_over_strictness(TWO_BY_FOUR, np.array([0.9, 0.1, 0.9, 0.5]))
    assert levels.tolist() == [0.1, 0.5, 0.9]
    assert means.tolist() == [1.0, 7.0, 1.0]


def test_every_cell_needs_its_strictness():
    with pytest.raises(ValueError, match="one value for each of the 4 cells, got 2"):
        profile_over_strictness(TWO_BY_FOUR, np.array([0.1, 0.2]))


@pytest.mark.parametrize("statistic", [mean, median, iqm])
def test_nan_is_refused_with_its_place(statistic):
    with pytest.raises(ValueError, match=r"scores must be finite, got nan at \(1, 0\); leave out that run or that cell"):
        statistic(np.array([[1.0], [math.nan]]))


@pytest.mark.parametrize("scores", [np.zeros((0, 3)), np.zeros(3)])
def test_nothing_and_the_wrong_shape_are_refused(scores):
    with pytest.raises(ValueError, match="scores must have 2 axes and at least one value, got shape"):
        mean(scores)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_outside_the_unit_interval_is_refused(level):
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
        estimate(mean, TWO_BY_FOUR, seed=0, level=level)


@pytest.mark.parametrize("draws", [joint_draws, stratified_draws])
def test_an_interval_follows_from_its_seed(draws):
    scores = correlated(np.random.default_rng(0), num_runs=5, num_cells=6)
    first = estimate(iqm, scores, seed=7, draws=draws, num_resamples=200)
    np.random.default_rng(1).normal(size=100)
    np.random.seed(3)  # noqa: NPY002 - the global state must not matter
    assert estimate(iqm, scores, seed=7, draws=draws, num_resamples=200) == first
    assert estimate(iqm, scores, seed=8, draws=draws, num_resamples=200) != first


def test_one_run_has_no_interval():
    found = estimate(mean, np.array([[1.0, 3.0]]), seed=0)
    assert found.value == 2.0
    assert math.isnan(found.low) and math.isnan(found.high)


def test_joint_draws_keep_rows_whole():
    scores = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    draws = joint_draws(lambda drawn: drawn[:, 1] - 10.0 * drawn[:, 0], scores, seed=0, num_resamples=50)
    assert draws.shape == (50, 3)
    assert (draws == 0.0).all()


def test_stratified_draws_stay_in_their_cell_and_mix_rows():
    scores = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    draws = stratified_draws(lambda drawn: drawn.ravel(), scores, seed=0, num_resamples=200).reshape(200, 3, 2)
    assert set(np.unique(draws[:, :, 0])) == {1.0, 2.0, 3.0}
    assert set(np.unique(draws[:, :, 1])) == {10.0, 20.0, 30.0}
    assert (draws[:, :, 1] != 10.0 * draws[:, :, 0]).any()


def test_the_draws_of_two_runs_can_be_counted():
    # Of two runs at 0 and 1 a resample has mean 0, 1/2, 1 with chances 1/4, 1/2, 1/4.
    means, counts = np.unique(joint_draws(mean, np.array([[0.0], [1.0]]), seed=0, num_resamples=4000), return_counts=True)
    assert means.tolist() == [0.0, 0.5, 1.0]
    assert counts / 4000 == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_the_percentile_interval_agrees_with_scipy():
    values = np.random.default_rng(4).normal(10.0, 3.0, size=12)
    ours = estimate(mean, values[:, None], seed=0, num_resamples=9999)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0), n_resamples=9999)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.1)


def test_joint_intervals_cover_where_stratified_ones_do_not():
    rng, num_trials, covered = np.random.default_rng(0), 200, {joint_draws: 0, stratified_draws: 0}
    for trial in range(num_trials):
        scores = correlated(rng, num_runs=10, num_cells=12)
        for draws in covered:
            found = estimate(np.mean, scores, seed=trial, draws=draws, num_resamples=200)
            covered[draws] += found.low <= 0.0 <= found.high
    # 95 % intervals; with 10 runs a percentile bootstrap reaches about 90.
    assert 0.83 < covered[joint_draws] / num_trials < 0.96
    assert covered[stratified_draws] / num_trials < 0.60


def test_stratified_intervals_cover_where_cells_are_independent():
    rng, num_trials, covered = np.random.default_rng(1), 200, 0
    for trial in range(num_trials):
        found = estimate(
            np.mean, correlated(rng, num_runs=10, num_cells=12, luck=0.0), seed=trial, draws=stratified_draws, num_resamples=200
        )
        covered += found.low <= 0.0 <= found.high
    assert 0.86 < covered / num_trials < 0.98


def test_a_band_is_an_interval_at_every_place():
    scores = correlated(np.random.default_rng(2), num_runs=6, num_cells=3)
    found = band(lambda drawn: drawn.mean(axis=0), scores, seed=5, num_resamples=300)
    alone = estimate(lambda drawn: drawn[:, 1].mean(), scores, seed=5, num_resamples=300)
    assert (found.value[1], found.low[1], found.high[1]) == pytest.approx((alone.value, alone.low, alone.high))


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda: estimate(mean, np.ones((3, 1)), seed=0, num_resamples=0), "num_resamples must be at least 1, got 0"),
        (lambda: optimality_gap(np.ones((3, 1)), target=float("inf")), "target must be finite, got inf"),
        (lambda: performance_profile(np.ones((3, 1)), np.array([0.5, np.nan])), "thresholds must be finite, got nan"),
    ],
)
def test_what_gives_no_figure_is_refused_in_a_sentence(ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask()
