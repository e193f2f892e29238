"""Statistics against scipy, against cases worked out by hand, and by how often intervals cover."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from analysis import stats
from analysis.endpoints import Curve, Grade, area_of, forgotten, looks
from analysis.stats import NOTHING, Estimate, Sample


def differences(seed: int, num: int, *, mean: float = 0.5) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, size=num)


def bootstrap_of(values, **options) -> Estimate:
    return Estimate(*stats.bootstrap(stats.mean, np.array(values, dtype=float), **options))


def test_iqm_cuts_a_quarter_off_at_each_end_and_resamples_are_taken_one_by_one():
    # Sorted: 0 0 | 1 1 2 2 | 5 9.
    assert stats.iqm(np.array([[0.0, 1.0, 2.0, 9.0], [0.0, 1.0, 2.0, 5.0]])) == 1.5
    drawn_BRC = np.random.default_rng(0).exponential(size=(5, 4, 3))
    for statistic, one in ((stats.mean, np.mean), (stats.iqm, lambda scores: scipy.stats.trim_mean(scores, 0.25, axis=None))):
        assert statistic(drawn_BRC) == pytest.approx([one(scores) for scores in drawn_BRC])


def test_whole_runs_are_resampled_by_the_seed_as_scipy_does():
    # A statistic that is 0 for every whole row, and K figures at once.
    rows = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    both = stats.bootstrap(lambda drawn: np.stack([(drawn[..., 1] - 10.0 * drawn[..., 0]).sum(-1), stats.mean(drawn)], -1), rows, seed=0)
    assert both.shape == (3, 2) and both[:, 0].tolist() == [0.0] * 3 and both[0, 1] == 11.0
    values = np.random.default_rng(4).normal(10.0, 3.0, size=12)
    ours = bootstrap_of(values[:, None], seed=0, num_resamples=9999)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0), n_resamples=9999)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.1)
    assert ours == bootstrap_of(values[:, None], seed=0, num_resamples=9999) != bootstrap_of(values[:, None], seed=1, num_resamples=9999)
    one = bootstrap_of([[1.0, 3.0]], seed=0)
    assert one.value == 2.0 and math.isnan(one.low) and math.isnan(one.high)


def test_intervals_over_runs_cover_where_the_luck_of_a_run_is_in_all_of_its_cells():
    rng, covered = np.random.default_rng(0), 0
    for trial in range(200):
        found = bootstrap_of(rng.normal(size=(10, 1)) + rng.normal(size=(10, 12)), seed=trial, num_resamples=200)
        covered += found.low <= 0.0 <= found.high
    # With 10 runs a percentile bootstrap reaches about 0.9; cells drawn by themselves would cover half.
    assert 0.83 < covered / 200 < 0.96


@pytest.mark.parametrize("num", [2, 10])
def test_the_interval_of_the_mean_is_that_of_the_paired_t_test(num):
    a, b = differences(0, num), differences(1, num)
    theirs = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    ours = stats.mean_difference(a - b)
    assert (ours.value, ours.low, ours.high) == pytest.approx(((a - b).mean(), theirs.low, theirs.high))


def test_the_exact_test_counts_all_patterns():
    # Of the eight patterns only + + + and - - - reach a sum of 6; of five pairs that agree 2 of 32.
    assert stats.sign_flip_test(np.array([1.0, 2.0, 3.0])) == 2 / 8 and stats.sign_flip_test(np.arange(1.0, 6.0)) == 0.0625
    # 0.1 + 0.2 - 0.3 is not 0 in floating point; every pattern of the four reaches a sum of 0.05.
    assert stats.sign_flip_test(np.array([0.1, 0.2, -0.3, 0.05])) == stats.sign_flip_test(np.zeros(6)) == 1.0
    d = differences(9, 9)
    patterns = itertools.product((-1, 1), repeat=9)
    assert stats.sign_flip_test(d) == sum(abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in patterns) / 2**9


def test_random_patterns_approximate_the_exact_test_follow_their_seed_and_never_give_zero():
    d = differences(5, 12, mean=0.4)
    found = stats.sign_flip_test(d, max_exact=5, seed=1)
    assert found == pytest.approx(stats.sign_flip_test(d), abs=0.01)
    assert found == stats.sign_flip_test(d, max_exact=5, seed=1) != stats.sign_flip_test(d, max_exact=5, seed=2)
    assert stats.sign_flip_test(np.full(40, 3.0), num_patterns=999) == 1 / 1000


def test_the_test_rejects_no_more_often_than_it_says():
    rejected = [stats.sign_flip_test(differences(seed, 8, mean=0.0)) <= 0.05 for seed in range(600)]
    # 600 trials: 0.05 +- 3 standard errors of 0.009; exact p come in steps of 1 / 128, so the level is 6 / 128 = 0.047.
    assert 0.02 < np.mean(rejected) < 0.074


@pytest.mark.parametrize("num", [6, 9])
def test_the_sign_flip_interval_holds_the_shifts_that_the_test_does_not_reject(num):
    d = differences(num, num)
    found = stats.sign_flip_interval(d)
    for bound, inwards in ((found.low, 1e-6), (found.high, -1e-6)):
        assert stats.sign_flip_test(d - (bound + inwards)) > 0.05 >= stats.sign_flip_test(d - (bound - inwards)) - 1e-12


def test_five_pairs_exclude_nothing_and_six_are_bounded_by_their_extremes():
    assert stats.sign_flip_interval(np.arange(1.0, 6.0)) == Estimate(3.0, -math.inf, math.inf)
    # k = floor(0.025 * 64) = 1: the smallest and the largest mean of a subset are the smallest and the largest difference.
    assert stats.sign_flip_interval(np.array([4.0, 1.0, 2.0, 9.0, 5.0, 3.0])) == Estimate(4.0, 1.0, 9.0)


def test_probability_of_improvement_is_mann_and_whitneys_u_with_ties_halved():
    # Cell 1: 3 > 1, 3 > 2, 2 > 1, 2 = 2: 3.5 of 4. Cell 2: 0 of 4.
    assert stats.probability_of_improvement(np.array([[3.0, 0.0], [2.0, 0.0]]), np.array([[1.0, 1.0], [2.0, 1.0]])) == 3.5 / 4 / 2
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 6, size=(7, 4)).astype(float), rng.integers(0, 6, size=(5, 4)).astype(float)
    us = [scipy.stats.mannwhitneyu(x[:, c], y[:, c]).statistic / (7 * 5) for c in range(4)]
    assert stats.probability_of_improvement(x, y) == pytest.approx(np.mean(us))


def test_paired_probability_has_clopper_and_pearsons_interval():
    found = stats.paired_probability(np.array([1.0, 2.0, 3.0, -1.0, 5.0, 6.0, 0.5]))
    theirs = scipy.stats.binomtest(6, 7).proportion_ci(method="exact")
    assert (found.value, found.low, found.high) == pytest.approx((6 / 7, theirs.low, theirs.high))
    # All agree: the lower bound solves p ** 5 = 0.025.
    assert stats.paired_probability(np.ones(5)).low == pytest.approx(0.025**0.2)
    assert stats.paired_probability(np.array([1.0, 0.0, -1.0, 1.0])).value == 2.5 / 4


def test_holm_steps_down():
    # Sorted .01 .02 .03 .04 times 4 3 2 1: .04 .06 .06 .04, then the running maximum.
    assert stats.holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert (stats.holm([0.03]), stats.holm([]), stats.holm([0.9, 0.8])) == ([0.03], [], [1.0, 1.0])


@pytest.mark.parametrize(("num_pairs", "alpha"), [(6, 0.05), (9, 0.0125)])
def test_the_detectable_effect_is_found_in_the_share_of_trials_that_was_asked_for(num_pairs, alpha):
    effect = stats.detectable(num_pairs, alpha, 0.8)
    trials = np.random.default_rng(1).normal(effect, 1.0, size=(800, num_pairs))
    # Two standard errors of 800 and of 4,000 trials are 0.028 and 0.013.
    assert np.mean([stats.sign_flip_test(trial) <= alpha for trial in trials]) == pytest.approx(0.8, abs=0.05)


def test_the_detectable_effect_of_many_pairs_is_the_t_tests_and_five_detect_nothing():
    effect = stats.detectable(20, 0.05, 0.8)
    trials = np.random.default_rng(1).normal(effect, 1.0, size=(4000, 20))
    assert np.mean(scipy.stats.ttest_1samp(trials, 0.0, axis=1).pvalue <= 0.05) == pytest.approx(0.8, abs=0.03)
    # With many pairs t becomes normal: (z(.975) + z(.8)) / sqrt(n).
    normal = (scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)) / math.sqrt(2000)
    assert stats.detectable(2000, 0.05, 0.8) == pytest.approx(normal, rel=0.02) and math.isinf(stats.detectable(5, 0.05, 0.8))


def test_survival_times_by_hand():
    # Five runs: at 2 one of five, at 3 (another one is censored there) one of four, at 5 one of two; one is censored at 8.
    times, reached = np.array([2.0, 3.0, 3.0, 5.0, 8.0]), np.array([True, True, False, True, False])
    # 2 * 1 + 1 * .8 + 2 * .6 + 3 * .3
    assert stats.survival_times(times, reached) == (5.0, pytest.approx(4.9))
    assert stats.survival_times(np.array([3.0, 1.0, 8.0]), np.ones(3, dtype=bool)) == (3.0, pytest.approx(4.0))
    assert stats.survival_times(np.array([5.0, 9.0]), np.zeros(2, dtype=bool)) == (math.inf, 9.0)


def test_an_area_is_the_mean_height_and_holds_the_last_score():
    assert Curve([0, 10, 40], [0, 10, 40]).area_to(40) == 20.0
    assert Curve([0, 10], [0, 10]).area_to(40) == (50 + 300) / 40
    # Cut at 25, between two evaluations.
    assert Curve([0, 50], [0, 100]).area_to(25) == 25.0


def test_a_threshold_is_reached_between_evaluations_or_censored():
    # Halfway from 40 to 80; at once; never; just at the end; after the end.
    for scores, end, found in (
        ([0, 40, 80, 20], 30, (15.0, True)),
        ([70, 0, 0, 0], 30, (0.0, True)),
        ([0, 10, 59, 0], 30, (30.0, False)),
        ([0, 0, 0, 60], 30, (30.0, True)),
        ([0, 0, 0, 60], 25, (25.0, False)),
    ):
        assert Curve([0, 10, 20, 30], scores).tokens_to(60.0, end=end) == found


def test_forgotten_is_what_each_strictness_lost_since_its_own_best_evaluation():
    def grades_at(emotions, *, in_during=True) -> list[Grade]:
        """A dialogue at each strictness and evaluation."""
        return [
            Grade(look, look, 10 * look, "during", in_during, "praise/negative", strictness, emotion)
            for strictness, scores in emotions.items()
            for look, emotion in enumerate(scores)
        ]

    # 80 - 50 before lenient users, 40 - 40 before strict ones; the mean curve, 35, 50, 50, 45, would say 5.
    grades = grades_at({0.1: [50, 80, 60, 50], 0.9: [20, 20, 40, 40]})
    assert forgotten(grades) == 15.0 and area_of(looks(grades)) == pytest.approx((42.5 + 50 + 47.5) / 3)
    assert (forgotten(grades_at({0.1: [20, 40, 60]})), forgotten(grades_at({0.1: [60, 40, 20]}))) == (0.0, 40.0)
    assert forgotten([]) is forgotten(grades_at({0.1: [50]})) is forgotten(grades_at({0.1: [50, 20]}, in_during=False)) is None


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def row(part: float, whole: float = 1.0, *, who: str = "a", dialogue: int = 0, turn: int = 1, level: float = 0.5):
    return who, dialogue, turn, level, part, whole


def test_a_share_is_the_parts_over_the_wholes_and_not_a_mean_of_shares():
    found = Sample.of([row(1, 4, who="a"), row(1, 1, who="b"), row(0, 0, who="c")]).share(rng=rng())
    assert (found.value, found.low, found.high) == pytest.approx((2 / 5, 1 / 4, 1.0))
    # One scenario has no interval, and nothing measured no value.
    alone = Sample.of([row(1.0), row(0.0)]).share(rng=rng())
    assert alone.value == 0.5 and math.isnan(alone.low)
    assert math.isnan(Sample.of([]).share(rng=rng()).value)
    # Lines of a scenario that go together make the interval wider.
    apart, together = (Sample.of([row(i // n % 2, who=str(i // n)) for i in range(60)]).share(rng=rng()) for n in (1, 10))
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_where_nothing_varies_the_number_of_scenarios_bounds_the_exceptions():
    exceptions, names = 1 - 0.025 ** (1 / 100), [str(i) for i in range(100)]
    for part, low, high in ((1, 1 - exceptions, 1.0), (0.5, 0.5 - 0.5 * exceptions, 0.5 + 0.5 * exceptions)):
        found = Sample.of([row(part, who=name) for name in names]).share(rng=rng())
        assert (found.value, found.low, found.high) == pytest.approx((part, low, high))
    found = stats.mean_interval([30.0] * 100, names, rng=rng(), within=(0.0, 100.0))
    assert found == pytest.approx((30 - 30 * exceptions, 30 + 70 * exceptions))


def test_drift_is_taken_within_dialogues_and_the_slope_over_all():
    # A dialogue that is worse and longer than another makes no trend; a fall of 0.1 a turn in each is one.
    level = [row(1.0, turn=turn) for turn in (1, 2)] + [row(0.0, dialogue=1, turn=turn, who="b") for turn in range(1, 6)]
    assert Sample.of(level).drift(rng=rng()).value == pytest.approx(0.0)
    falling = [row(1.0 - 0.1 * turn, dialogue=d, turn=turn, who=str(d)) for d in (0, 1, 2) for turn in range(1, 4 + d)]
    found = Sample.of(falling).drift(rng=rng())
    assert (found.value, found.low, found.high) == pytest.approx((-0.1, -0.1, -0.1))
    rows = [row(0.9 - 0.4 * d, dialogue=i, who=str(i), level=d) for i, d in enumerate((0.0, 0.25, 0.5, 0.75, 1.0))]
    assert Sample.of(rows).slope_over_levels(rng=rng()).value == pytest.approx(-0.4)
    assert math.isnan(Sample.of(rows[:1]).slope_over_levels(rng=rng()).value)


def test_a_rank_correlation_knows_order_only_and_shares_ranks_in_ties():
    names = [str(i) for i in range(6)]
    assert stats.rank_correlation(names, [1, 2, 3, 4, 5, 6], [1, 10, 11, 12, 13, 1000], rng=rng()).value == pytest.approx(1.0)
    # ranks 1.5 1.5 3 against 1 2 3: covariance 1/2, spreads sqrt(1/2) and sqrt(2/3)
    assert stats.rank_correlation(names[:3], [1, 1, 2], [1, 2, 3], rng=rng()).value == pytest.approx(0.5 / np.sqrt(1 / 3))
    assert math.isnan(stats.rank_correlation(names, [1] * 6, [1, 2, 3, 4, 5, 6], rng=rng()).value)


def test_the_interval_of_a_mean_is_over_all_values_with_clusters_drawn_whole():
    low, high = stats.mean_interval(np.arange(101.0), [str(i) for i in range(101)], rng=rng())
    # standard error of the mean of 0..100 is 29.15 / sqrt(101) = 2.90
    assert (low, high) == pytest.approx((50 - 1.96 * 2.9, 50 + 1.96 * 2.9), abs=0.6)
    # Half of the clusters have one value of 100, the others four of 0: the mean of all is 20, that of the clusters' means 50.
    values, names = [100.0] * 20 + [0.0] * 80, [f"one {i}" for i in range(20)] + [f"four {i // 4}" for i in range(80)]
    low, high = stats.mean_interval(values, names, rng=rng())
    assert low < 20.0 < high < 45.0
    assert np.isnan(stats.mean_interval([1.0, 2.0], ["a", "a"], rng=rng())).all()


def test_an_estimate_is_written_with_null_for_nan():
    assert NOTHING.to_dict() == {"value": None, "low": None, "high": None} and NOTHING.text(2) == "–"
    assert Estimate(0.5, 0.25, 1.0).text(2) == "0.50 [0.25, 1.00]"
