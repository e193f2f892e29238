"""Signals, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from curriculum.signals import (
    alike_excess,
    best_of_k_gain,
    effective_group_size,
    effective_groups,
    neighbours_success,
    reward_density,
    within_group_std,
    zero_variance_share,
)

NAN = math.nan
SPLIT = [0.0, 0.0, 1.0, 1.0]
"""Unbiased variance 4 * .25 / 3 = 1/3."""
ALIKE = [0.2, 0.2, 0.2, 0.2]


def test_reward_density_is_four_times_the_mean_unbiased_variance():
    assert reward_density([SPLIT]) == pytest.approx(4 / 3)
    assert reward_density([SPLIT, ALIKE]) == pytest.approx(2 / 3)
    assert reward_density([[0.3, 0.5]]) == pytest.approx(4 * 0.02)


def test_reward_density_of_fair_coins_is_one_in_expectation():
    coins = np.random.default_rng(0).integers(0, 2, (20_000, 4))
    assert reward_density(coins) == pytest.approx(1.0, abs=0.01)


def test_broken_rollouts_are_dropped_and_broken_groups_do_not_count():
    assert reward_density([[0.0, NAN, 1.0, NAN], [1.0, NAN, NAN, NAN]]) == pytest.approx(2.0)
    assert zero_variance_share([[1.0, NAN, 1.0, NAN], [1.0, NAN, NAN, NAN]]).all_high == 1.0


def test_zero_variance_tells_too_hard_from_too_easy():
    share = zero_variance_share([SPLIT, ALIKE, [1.0, 1.0], [0.5, 0.5]])
    assert (share.all_low, share.all_high, share.total) == (0.25, 0.5, 0.75)
    assert zero_variance_share([[0.2, 0.2 + 1e-9]]).total == 0.0


def test_zero_variance_share_of_coins_is_that_of_chance():
    share = zero_variance_share(np.random.default_rng(0).random((20_000, 4)) < 0.3)
    assert share.all_low == pytest.approx(0.7**4, abs=0.01) and share.all_high == pytest.approx(0.3**4, abs=0.005)


def test_effective_group_size_counts_the_rollouts_that_pull():
    assert effective_group_size([SPLIT, ALIKE]) == pytest.approx(4.0)
    # One of four: |A| = .75, .25, .25, .25, so 1.5^2 / .75.
    assert effective_group_size([[1.0, 0.0, 0.0, 0.0]]) == pytest.approx(3.0)
    assert effective_group_size([[0.0, 0.5, 0.5, 0.5, 1.0]]) == pytest.approx(2.0)


def test_no_more_groups_are_alike_than_chance_makes_of_independent_coins():
    coins = np.random.default_rng(0).random((20_000, 4)) < 0.3
    assert alike_excess(coins, [0.3] * len(coins)) == pytest.approx(0.0, abs=0.01)


def test_odds_that_differ_among_neighbours_look_like_siblings_that_act_as_one():
    # Independent siblings with odds from Beta(2, 2): all alike in 2 B(10, 2) / B(2, 2) = 6 / 55 of the groups, 2 / 256 at even odds.
    rng = np.random.default_rng(0)
    groups = rng.random((20_000, 8)) < rng.beta(2.0, 2.0, size=(20_000, 1))
    assert alike_excess(groups, [0.5] * len(groups)) == pytest.approx(6 / 55 - 2 / 256, abs=0.01)
    some = groups[:2000]
    assert 0.05 < alike_excess(some, neighbours_success(rng.random(len(some)), some)) < 0.23


def test_siblings_that_act_as_one_exceed_chance():
    # Two of three groups alike; by chance each is with .5^2 + .5^2 = .5 for two and .125 for four survivors.
    groups = [[1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]]
    assert alike_excess(groups, [0.5] * 3) == pytest.approx((0.5 + 0.875 - 0.125) / 3)
    assert alike_excess(groups, [0.5, NAN, 0.5]) == pytest.approx((0.5 - 0.125) / 2)
    assert math.isnan(alike_excess(groups, [NAN] * 3))


def test_a_groups_expected_success_is_that_of_its_neighbours_in_strictness():
    successes = [[1, 1], [1, 0], [0, 0], [NAN, 1]]
    expected = neighbours_success([0.1, 0.2, 0.9, 0.1], successes, num_neighbours=1)
    assert expected == [0.5, 1.0, 0.5, 1.0]
    assert math.isnan(neighbours_success([0.5], [[1, 0]])[0])


def test_effective_groups_counts_those_that_carry_the_step():
    # Variances 1/4 and 0; then 1/4 and 1/8.
    assert effective_groups([SPLIT, ALIKE]) == 1.0
    quarter = [0.5 - math.sqrt(1 / 8), 0.5 + math.sqrt(1 / 8)]
    assert effective_groups([SPLIT, quarter]) == pytest.approx((3 / 8) ** 2 / (1 / 16 + 1 / 64))
    assert math.isnan(effective_groups([ALIKE]))


def test_best_of_k_is_the_unbiased_pass_at_k_and_works_on_dense_rewards():
    # c = 2 of n = 4: pass@2 = 1 - C(2, 2) / C(4, 2) = 5/6, less 1/2.
    assert best_of_k_gain([SPLIT], k=2) == pytest.approx(5 / 6 - 1 / 2)
    # Pairs of .1 .2 .4: best .2, .4, .4; the group of one pair has too few.
    assert best_of_k_gain([[0.4, 0.1, 0.2]], k=2) == pytest.approx(1.0 / 3 - 0.7 / 3)
    assert best_of_k_gain([SPLIT, [0.0, 1.0]], k=4) == pytest.approx(0.5)
    assert best_of_k_gain([ALIKE]) == pytest.approx(0.0)


def test_within_group_std_is_a_mean_over_groups():
    assert within_group_std([SPLIT, ALIKE]) == pytest.approx(math.sqrt(1 / 3) / 2)


def test_nothing_to_compute_is_nan():
    for signal in (reward_density, within_group_std, effective_group_size, effective_groups, best_of_k_gain):
        assert math.isnan(signal([])) and math.isnan(signal([[NAN, 1.0]]))
    assert math.isnan(zero_variance_share([]).total)
    assert math.isnan(effective_group_size([ALIKE]))
