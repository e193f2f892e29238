"""Arms compared on the same seeds: against scipy, closed forms, and cases counted by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from analysis.stats import (
    complete_pairs,
    holm,
    mean_difference,
    paired_probability,
    probability_of_improvement,
    sign_flip_interval,
    sign_flip_test,
    smallest_p,
)


def differences(seed: int, num: int, *, mean: float = 0.5) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, size=num)


def naive_p(d: np.ndarray) -> float:
    patterns = list(itertools.product((-1, 1), repeat=d.size))
    return sum(abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in patterns) / len(patterns)


def test_complete_pairs_drop_and_count_what_is_missing():
    a, b, dropped = complete_pairs(np.array([1.0, math.nan, 3.0, 4.0]), np.array([0.0, 1.0, math.nan, 2.0]))
    assert (a.tolist(), b.tolist(), dropped) == ([1.0, 4.0], [0.0, 2.0], 2)


def test_arms_with_unequal_numbers_of_runs_cannot_be_paired():
    with pytest.raises(ValueError, match=r"one value for each of the same seeds, got shapes \(3,\) and \(2,\)"):
        complete_pairs(np.zeros(3), np.zeros(2))


@pytest.mark.parametrize("num", [2, 5, 10])
def test_the_interval_of_the_mean_is_that_of_the_paired_t_test(num):
    a, b = differences(0, num), differences(1, num)
    theirs = scipy.stats.ttest_rel(a, b).confidence_interval(0.9)
    ours = mean_difference(a - b, level=0.9)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    assert ours.value == pytest.approx((a - b).mean())


def test_one_pair_has_a_difference_and_no_interval():
    found = mean_difference(np.array([2.0]))
    assert found.value == 2.0
    assert math.isnan(found.low) and math.isnan(found.high)


@pytest.mark.parametrize("function", [mean_difference, sign_flip_test, sign_flip_interval, paired_probability])
def test_nan_is_refused(function):
    with pytest.raises(ValueError, match=r"differences must be finite, got nan at \(1,\)"):
        function(np.array([1.0, math.nan]))


def test_three_differences_of_one_sign_give_a_quarter():
    # Of the eight patterns only + + + and - - - reach a sum of 6.
    assert sign_flip_test(np.array([1.0, 2.0, 3.0])).p == 2 / 8


def test_ties_count_as_extreme_whatever_their_rounding():
    # .1 + .2 - .3 is not 0 in floating point. Sums with +-.1 +-.2 +-.3: |T| = 0 for the observed pattern, so every pattern reaches it.
    assert sign_flip_test(np.array([0.1, 0.2, -0.3])).p == 1.0
    # |T| = .4 is reached by (+.1 +.3), of four patterns two, whether summed one way or the other.
    assert sign_flip_test(np.array([0.1, 0.3])).p == sign_flip_test(np.array([0.3, 0.1])).p == 0.5


def test_arms_that_are_the_same_do_not_differ():
    assert sign_flip_test(np.zeros(6)).p == 1.0


@pytest.mark.parametrize("num", [1, 2, 5, 9])
def test_the_exact_test_counts_all_patterns(num):
    d = differences(num, num)
    found = sign_flip_test(d)
    assert found.exact and found.p == naive_p(d)


def test_the_exact_test_agrees_with_scipy():
    d = differences(3, 8)
    theirs = scipy.stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=False)
    assert sign_flip_test(d).p == pytest.approx(theirs.pvalue)


def test_random_patterns_approximate_the_exact_test_and_follow_their_seed():
    d = differences(5, 12, mean=0.4)
    found = sign_flip_test(d, max_exact=5, seed=1)
    assert not found.exact
    assert found.p == pytest.approx(sign_flip_test(d).p, abs=0.01)
    assert sign_flip_test(d, max_exact=5, seed=1) == found
    assert sign_flip_test(d, max_exact=5, seed=2) != found


def test_random_patterns_never_give_a_p_of_zero():
    found = sign_flip_test(np.full(40, 3.0), num_patterns=999)
    assert found.p == 1 / 1000


def test_the_test_rejects_no_more_often_than_it_says():
    rejected = [sign_flip_test(differences(seed, 8, mean=0.0)).p <= 0.05 for seed in range(600)]
    # 600 trials: .05 +- 3 standard errors of .009; exact p come in steps of 1 / 128, so the level is 6 / 128 = .047.
    assert 0.02 < np.mean(rejected) < 0.074


def test_the_smallest_p_is_reached_by_agreement():
    assert smallest_p(5) == sign_flip_test(np.arange(1.0, 6.0)).p == 0.0625
    assert smallest_p(0) == 1.0


@pytest.mark.parametrize("num", [6, 7, 9])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_sign_flip_interval_holds_the_shifts_that_the_test_does_not_reject(num, level):
    d = differences(num, num)
    found = sign_flip_interval(d, level=level)
    inside, outside = 1e-6, -1e-6
    for bound, inwards in ((found.low, 1.0), (found.high, -1.0)):
        assert sign_flip_test(d - (bound + inwards * inside)).p > 1.0 - level
        assert sign_flip_test(d - (bound + inwards * outside)).p <= 1.0 - level + 1e-12


def test_five_pairs_exclude_nothing():
    found = sign_flip_interval(np.arange(1.0, 6.0))
    assert (found.value, found.low, found.high) == (3.0, -math.inf, math.inf)


def test_six_pairs_are_bounded_by_their_extremes():
    # k = floor(.025 * 64) = 1: the smallest and the largest mean of a subset are the smallest and the largest difference.
    found = sign_flip_interval(np.array([4.0, 1.0, 2.0, 9.0, 5.0, 3.0]))
    assert (found.low, found.high) == (1.0, 9.0)


def test_too_many_pairs_have_no_exact_interval():
    with pytest.raises(ValueError, match="at most 20 for an exact interval, got 21"):
        sign_flip_interval(np.ones(21))


def test_probability_of_improvement_counts_pairs_of_runs_and_halves_ties():
    # Cell 1: 3 > 1, 3 > 2, 2 > 1, 2 = 2: 3.5 of 4. Cell 2: 0 of 4.
    x, y = np.array([[3.0, 0.0], [2.0, 0.0]]), np.array([[1.0, 1.0], [2.0, 1.0]])
    assert probability_of_improvement(x, y) == (3.5 / 4 + 0) / 2
    assert probability_of_improvement(y, x) == 1 - (3.5 / 4 + 0) / 2


def test_probability_of_improvement_is_mann_and_whitneys_u_as_published():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, size=(7, 4)).astype(float), rng.integers(0, 6, size=(5, 4)).astype(float)
    us = [scipy.stats.mannwhitneyu(x[:, c], y[:, c]).statistic / (7 * 5) for c in range(4)]
    assert probability_of_improvement(x, y) == pytest.approx(np.mean(us))


def test_arms_judged_on_other_cells_have_no_probability_of_improvement():
    with pytest.raises(ValueError, match="the same cells, got 3 and 2 of them"):
        probability_of_improvement(np.zeros((2, 3)), np.zeros((2, 2)))


def test_paired_probability_has_clopper_and_pearsons_interval():
    found = paired_probability(np.array([1.0, 2.0, 3.0, -1.0, 5.0, 6.0, 0.5]))
    theirs = scipy.stats.binomtest(6, 7).proportion_ci(method="exact")
    assert found.value == 6 / 7
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))


def test_agreement_of_all_seeds_is_not_certainty():
    # The lower bound solves p ** 5 = .025.
    assert paired_probability(np.ones(5)).low == pytest.approx(0.025**0.2)
    assert paired_probability(-np.ones(5)).high == pytest.approx(1 - 0.025**0.2)


def test_a_tie_is_half_a_win():
    assert paired_probability(np.array([1.0, 0.0, -1.0, 1.0])).value == 2.5 / 4
    lonely = paired_probability(np.array([0.0]))
    assert lonely.low < 0.5 < lonely.high


def test_holm_steps_down():
    # Sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .04, then the running maximum.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])


def test_holm_of_one_or_of_large_ps():
    assert holm([0.03]) == [0.03]
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_what_is_no_p_is_refused(p):
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\]"):
        holm([0.5, p])


@pytest.mark.parametrize("interval", [mean_difference, sign_flip_interval, paired_probability])
@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, float("nan")])
def test_a_level_that_is_none_is_refused(interval, level):
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
        interval(np.array([1.0, 2.0, 3.0]), level=level)
