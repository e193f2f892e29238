"""Signals of a batch of groups, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from curriculum.signals import (
    alike_excess,
    best_of_k_gain,
    effective_group_size,
    effective_groups,
    expected_best,
    neighbours_success,
    reward_density,
    within_group_std,
    zero_variance_share,
)

NAN = math.nan
SPLIT = [0.0, 0.0, 1.0, 1.0]
"""Unbiased variance 4 * 0.25 / 3 = 1/3."""
EQUAL = [0.2, 0.2, 0.2, 0.2]


def test_reward_density_is_four_times_the_mean_unbiased_variance():
    assert reward_density([SPLIT]) == pytest.approx(4 / 3) and reward_density([SPLIT, EQUAL]) == pytest.approx(2 / 3)
    assert reward_density([[0.3, 0.5]]) == pytest.approx(4 * 0.02)
    assert within_group_std([SPLIT, EQUAL]) == pytest.approx(math.sqrt(1 / 3) / 2)


def test_broken_rollouts_are_dropped_and_groups_of_one_do_not_count():
    assert reward_density([[0.0, NAN, 1.0, NAN], [1.0, NAN, NAN, NAN]]) == pytest.approx(2.0)
    assert zero_variance_share([[1.0, NAN, 1.0, NAN], [1.0, NAN, NAN, NAN]]).all_high == 1.0
    for signal in (reward_density, within_group_std, effective_group_size, effective_groups, best_of_k_gain):
        assert math.isnan(signal([])) and math.isnan(signal([[NAN, 1.0]]))
    assert math.isnan(zero_variance_share([]).total) and math.isnan(effective_group_size([EQUAL]))


def test_zero_variance_separates_too_hard_from_too_easy():
    share = zero_variance_share([SPLIT, EQUAL, [1.0, 1.0], [0.5, 0.5]])
    assert (share.all_low, share.all_high, share.total) == (0.25, 0.5, 0.75)
    assert zero_variance_share([[0.2, 0.2 + 1e-9]]).total == 0.0


def test_siblings_that_act_as_one_exceed_chance_and_odds_that_differ_among_neighbours_look_like_them():
    # Two of three groups are constant; by chance each is with 0.5 for two and 0.125 for four survivors.
    groups = [[1.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0]]
    assert alike_excess(groups, [0.5] * 3) == pytest.approx((0.5 + 0.875 - 0.125) / 3)
    assert alike_excess(groups, [0.5, NAN, 0.5]) == pytest.approx((0.5 - 0.125) / 2) and math.isnan(alike_excess(groups, [NAN] * 3))
    rng = np.random.default_rng(0)
    # Odds from Beta(2, 2): constant in 2 B(10, 2) / B(2, 2) = 6 / 55 of the groups, 2 / 256 at even odds.
    groups = rng.random((20_000, 8)) < rng.beta(2.0, 2.0, size=(20_000, 1))
    assert alike_excess(groups, [0.5] * len(groups)) == pytest.approx(6 / 55 - 2 / 256, abs=0.01)
    assert 0.05 < alike_excess(groups[:2000], neighbours_success(rng.random(2000), groups[:2000])) < 0.23


def test_a_groups_expected_success_is_that_of_its_neighbours_in_strictness():
    successes = [[1, 1], [1, 0], [0, 0], [NAN, 1]]
    assert neighbours_success([0.1, 0.2, 0.9, 0.1], successes, num_neighbours=1) == [0.5, 1.0, 0.5, 1.0]
    assert math.isnan(neighbours_success([0.5], [[1, 0]])[0])


def test_effective_numbers_count_the_groups_and_rollouts_that_carry_the_step():
    # Variances 1/4 and 0; then 1/4 and 1/8.
    quarter = [0.5 - math.sqrt(1 / 8), 0.5 + math.sqrt(1 / 8)]
    assert effective_groups([SPLIT, EQUAL]) == 1.0 and math.isnan(effective_groups([EQUAL]))
    assert effective_groups([SPLIT, quarter]) == pytest.approx((3 / 8) ** 2 / (1 / 16 + 1 / 64))
    # One of four: |A| = 0.75, 0.25, 0.25, 0.25, so 1.5^2 / 0.75.
    assert effective_group_size([SPLIT, EQUAL]) == pytest.approx(4.0) and effective_group_size([[1.0, 0.0, 0.0, 0.0]]) == pytest.approx(3.0)
    assert effective_group_size([[0.0, 0.5, 0.5, 0.5, 1.0]]) == pytest.approx(2.0)


def test_best_of_k_is_the_unbiased_pass_at_k_and_works_on_dense_rewards():
    # c = 2 of n = 4: pass@2 = 1 - C(2, 2) / C(4, 2) = 5/6, less 1/2.
    assert best_of_k_gain([SPLIT], k=2) == pytest.approx(5 / 6 - 1 / 2) and best_of_k_gain([EQUAL]) == pytest.approx(0.0)
    # Pairs of 0.1 0.2 0.4: best 0.2, 0.4, 0.4; a group of two has too few for four.
    assert best_of_k_gain([[0.4, 0.1, 0.2]], k=2) == pytest.approx(1.0 / 3 - 0.7 / 3)
    assert best_of_k_gain([SPLIT, [0.0, 1.0]], k=4) == pytest.approx(0.5)
    assert expected_best(np.array([SPLIT, [0.1, 0.2, 0.4, 0.4]]), 4) == pytest.approx([1.0, 0.4])
