"""Statistics against scipy, against cases worked out by hand, and by how often intervals cover."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from analysis import stats
from analysis.endpoints import Curve, Grade, area_of, area_to, forgotten, looks, tokens_to_threshold
from analysis.stats import NOTHING, Estimate, Sample

TWO_BY_FOUR = np.array([[0.0, 1.0, 2.0, 9.0], [0.0, 1.0, 2.0, 5.0]])
"""Two runs, four cells."""


def correlated(rng: np.random.Generator, *, luck: float = 1.0) -> np.ndarray:
    """Scores [10, 12] with mean 0: the luck of a run is in all of its cells."""
    return luck * rng.normal(size=(10, 1)) + rng.normal(size=(10, 12))


def differences(seed: int, num: int, *, mean: float = 0.5) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, size=num)


def test_estimates_of_a_small_table():
    assert stats.mean(TWO_BY_FOUR) == 20 / 8
    # Means over runs: 0, 1, 2, 7.
    assert stats.median(TWO_BY_FOUR) == 1.5
    # Sorted: 0 0 | 1 1 2 2 | 5 9.
    assert stats.iqm(TWO_BY_FOUR) == 1.5
    # Cut at 4: 0 1 2 4 0 1 2 4; what lies beyond the target makes up for nothing.
    assert stats.optimality_gap(TWO_BY_FOUR, target=4.0) == 4.0 - 14 / 8
    assert stats.performance_profile(TWO_BY_FOUR, np.array([-1.0, 0.0, 1.0, 5.0, 9.0])).tolist() == [1.0, 6 / 8, 4 / 8, 1 / 8, 0.0]
    levels, means = stats.profile_over_strictness(TWO_BY_FOUR, np.array([0.9, 0.1, 0.9, 0.5]))
    assert (levels.tolist(), means.tolist()) == ([0.1, 0.5, 0.9], [1.0, 7.0, 1.0])


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (5, 7)])
def test_iqm_is_the_mean_trimmed_by_a_quarter_as_published(shape):
    scores = np.random.default_rng(0).exponential(size=shape)
    assert stats.iqm(scores) == pytest.approx(scipy.stats.trim_mean(scores, 0.25, axis=None), rel=1e-12)


def test_statistics_of_resamples_are_those_of_each_resample():
    drawn_BRC = np.random.default_rng(0).normal(size=(5, 4, 3))
    for statistic in (stats.mean, stats.median, stats.iqm, lambda scores: stats.optimality_gap(scores, target=0.5)):
        assert statistic(drawn_BRC) == pytest.approx([statistic(scores) for scores in drawn_BRC])


def test_joint_draws_keep_rows_whole_and_stratified_ones_mix_them():
    scores = np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    assert (stats.joint_draws(lambda drawn: drawn[..., 1] - 10.0 * drawn[..., 0], scores, seed=0, num_resamples=50) == 0.0).all()
    mixed = stats.stratified_draws(lambda drawn: drawn, scores, seed=0, num_resamples=200)
    assert (mixed[..., 1] != 10.0 * mixed[..., 0]).any() and set(np.unique(mixed[..., 0])) == {1.0, 2.0, 3.0}
    # Of two runs at 0 and 1 a resample has mean 0, 1/2, 1 with chances 1/4, 1/2, 1/4.
    means, counts = np.unique(stats.joint_draws(stats.mean, np.array([[0.0], [1.0]]), seed=0, num_resamples=4000), return_counts=True)
    assert means.tolist() == [0.0, 0.5, 1.0] and counts / 4000 == pytest.approx([0.25, 0.5, 0.25], abs=0.03)


def test_intervals_follow_from_their_seed_and_agree_with_scipy():
    values = np.random.default_rng(4).normal(10.0, 3.0, size=12)
    ours = stats.estimate(stats.mean, values[:, None], seed=0, num_resamples=9999)
    theirs = scipy.stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(0), n_resamples=9999)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), abs=0.1)
    assert ours == stats.estimate(stats.mean, values[:, None], seed=0, num_resamples=9999)
    assert ours != stats.estimate(stats.mean, values[:, None], seed=1, num_resamples=9999)
    one = stats.estimate(stats.mean, np.array([[1.0, 3.0]]), seed=0)
    assert one.value == 2.0 and math.isnan(one.low) and math.isnan(one.high)
    with pytest.raises(ValueError, match="scores must be finite, got nan"):
        stats.band(stats.mean, np.array([[1.0], [math.nan]]), seed=0)


@pytest.mark.parametrize(
    ("draws", "luck", "at_least", "at_most"),
    # 95 % intervals; with 10 runs a percentile bootstrap reaches about 90, and cells drawn by themselves miss the luck of a run.
    [(stats.joint_draws, 1.0, 0.83, 0.96), (stats.stratified_draws, 1.0, 0.3, 0.6), (stats.stratified_draws, 0.0, 0.86, 0.98)],
)
def test_intervals_cover_where_what_is_drawn_is_independent(draws, luck, at_least, at_most):
    rng, covered = np.random.default_rng(0), 0
    for trial in range(200):
        found = stats.band(lambda s: stats.mean(s)[..., None], correlated(rng, luck=luck), seed=trial, draws=draws, num_resamples=200).at(0)
        covered += found.low <= 0.0 <= found.high
    assert at_least < covered / 200 < at_most


@pytest.mark.parametrize("num", [2, 5, 10])
def test_the_interval_of_the_mean_is_that_of_the_paired_t_test(num):
    a, b = differences(0, num), differences(1, num)
    theirs = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    ours = stats.mean_difference(a - b)
    assert (ours.value, ours.low, ours.high) == pytest.approx(((a - b).mean(), theirs.low, theirs.high))


def test_the_exact_test_counts_all_patterns():
    # Of the eight patterns only + + + and - - - reach a sum of 6.
    assert stats.sign_flip_test(np.array([1.0, 2.0, 3.0])).p == 2 / 8
    # 0.1 + 0.2 - 0.3 is not 0 in floating point; every pattern reaches a sum of 0.
    assert stats.sign_flip_test(np.array([0.1, 0.2, -0.3])).p == stats.sign_flip_test(np.zeros(6)).p == 1.0
    d = differences(9, 9)
    patterns = itertools.product((-1, 1), repeat=9)
    assert stats.sign_flip_test(d) == (sum(abs(np.dot(signs, d)) >= abs(d.sum()) - 1e-12 for signs in patterns) / 2**9, True)
    theirs = scipy.stats.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=False)
    assert stats.sign_flip_test(d).p == pytest.approx(theirs.pvalue)


def test_random_patterns_approximate_the_exact_test_follow_their_seed_and_never_give_zero():
    d = differences(5, 12, mean=0.4)
    found = stats.sign_flip_test(d, max_exact=5, seed=1)
    assert not found.exact and found.p == pytest.approx(stats.sign_flip_test(d).p, abs=0.01)
    assert found == stats.sign_flip_test(d, max_exact=5, seed=1) != stats.sign_flip_test(d, max_exact=5, seed=2)
    assert stats.sign_flip_test(np.full(40, 3.0), num_patterns=999).p == 1 / 1000


def test_the_test_rejects_no_more_often_than_it_says():
    rejected = [stats.sign_flip_test(differences(seed, 8, mean=0.0)).p <= 0.05 for seed in range(600)]
    # 600 trials: 0.05 +- 3 standard errors of 0.009; exact p come in steps of 1 / 128, so the level is 6 / 128 = 0.047.
    assert 0.02 < np.mean(rejected) < 0.074
    assert stats.smallest_p(5) == stats.sign_flip_test(np.arange(1.0, 6.0)).p == 0.0625


@pytest.mark.parametrize("num", [6, 7, 9])
def test_the_sign_flip_interval_holds_the_shifts_that_the_test_does_not_reject(num):
    d = differences(num, num)
    found = stats.sign_flip_interval(d)
    for bound, inwards in ((found.low, 1e-6), (found.high, -1e-6)):
        assert stats.sign_flip_test(d - (bound + inwards)).p > 0.05 >= stats.sign_flip_test(d - (bound - inwards)).p - 1e-12


def test_five_pairs_exclude_nothing_and_six_are_bounded_by_their_extremes():
    assert stats.sign_flip_interval(np.arange(1.0, 6.0)) == Estimate(value=3.0, low=-math.inf, high=math.inf)
    # k = floor(0.025 * 64) = 1: the smallest and the largest mean of a subset are the smallest and the largest difference.
    assert stats.sign_flip_interval(np.array([4.0, 1.0, 2.0, 9.0, 5.0, 3.0])) == Estimate(value=4.0, low=1.0, high=9.0)


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


def test_power_is_the_share_of_trials_that_reject():
    trials = np.random.default_rng(1).normal(1.2, 1.0, size=(1000, 7))
    rejected = np.mean([stats.sign_flip_test(trial).p <= 0.05 for trial in trials])
    assert stats.power_of_sign_flip_test(1.2, num_pairs=7, alpha=0.05) == pytest.approx(rejected, abs=0.05)
    ts = trials.mean(axis=1) / (trials.std(axis=1, ddof=1) / math.sqrt(7))
    assert stats.power_of_t_test(1.2, num_pairs=7, alpha=0.05) == pytest.approx(np.mean(np.abs(ts) > scipy.stats.t.ppf(0.975, 6)), abs=0.05)
    assert stats.power_of_t_test(0.0, num_pairs=7, alpha=0.05) == pytest.approx(0.05)


def test_the_minimal_detectable_effect_has_the_power_it_was_asked_for():
    for num_pairs, alpha in ((6, 0.05), (10, 0.0125), (50, 0.05)):
        effect = stats.minimal_detectable_effect(num_pairs=num_pairs, sd=3.0, alpha=alpha, power=0.8)
        power = stats.power_of_sign_flip_test if num_pairs <= 10 else stats.power_of_t_test
        assert power(effect / 3.0, num_pairs=num_pairs, alpha=alpha) == pytest.approx(0.8, abs=2e-3)
    assert math.isinf(stats.minimal_detectable_effect(num_pairs=5, sd=0.0)) and stats.minimal_detectable_effect(num_pairs=6, sd=0.0) == 0.0
    # With many pairs t becomes normal: (z(.975) + z(.8)) / sqrt(n).
    normal = (scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)) / math.sqrt(2000)
    assert stats.minimal_detectable_effect(num_pairs=2000, sd=1.0) == pytest.approx(normal, rel=0.02)


def test_survival_times_by_hand():
    # Five runs: at 2 one of five, at 3 (another one is censored there) one of four, at 5 one of two; one is censored at 8.
    times, reached = np.array([2.0, 3.0, 3.0, 5.0, 8.0]), np.array([True, True, False, True, False])
    # 2 * 1 + 1 * .8 + 2 * .6 + 3 * .3
    assert stats.survival_times(times, reached) == (5.0, pytest.approx(4.9))
    assert stats.survival_times(np.array([3.0, 1.0, 8.0]), np.ones(3, dtype=bool)) == (3.0, pytest.approx(4.0))
    assert stats.survival_times(np.array([5.0, 9.0]), np.zeros(2, dtype=bool)) == (math.inf, 9.0)


def test_an_area_is_the_mean_height_and_holds_the_last_score():
    assert area_to(Curve([0, 10, 40], [0, 10, 40]), 40) == 20.0
    assert area_to(Curve([0, 10], [0, 10]), 40) == (50 + 300) / 40
    # Cut at 25, between two evaluations.
    assert area_to(Curve([0, 50], [0, 100]), 25) == 25.0


def test_a_threshold_is_reached_between_evaluations_or_censored():
    tokens = [0, 10, 20, 30]
    # Halfway from 40 to 80; at once; never; just at the end; after the end.
    for scores, end, found in (
        ([0, 40, 80, 20], 30, (15.0, True)),
        ([70, 0, 0, 0], 30, (0.0, True)),
        ([0, 10, 59, 0], 30, (30.0, False)),
        ([0, 0, 0, 60], 30, (30.0, True)),
        ([0, 0, 0, 60], 25, (25.0, False)),
    ):
        assert tokens_to_threshold(Curve(tokens, scores), 60.0, end=end) == found


def grades_at(emotions, *, in_during: bool = True) -> list[Grade]:
    """A dialogue at each strictness and evaluation."""
    facts = {"grid": "during", "in_during": in_during, "family": "praise/negative"}
    return [
        Grade(look=look, step=look, policy_tokens=10 * look, strictness=strictness, emotion=emotion, **facts)
        for strictness, scores in emotions.items()
        for look, emotion in enumerate(scores)
    ]


def test_forgotten_is_what_each_strictness_lost_since_its_own_best_evaluation():
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
    found = stats.share(Sample.of([row(1, 4, who="a"), row(1, 1, who="b"), row(0, 0, who="c")]), rng=rng())
    assert (found.value, found.low, found.high) == pytest.approx((2 / 5, 1 / 4, 1.0))
    # One scenario has no interval, and nothing measured no value.
    alone = stats.share(Sample.of([row(1.0), row(0.0)]), rng=rng())
    assert alone.value == 0.5 and math.isnan(alone.low)
    assert math.isnan(stats.share(Sample.of([]), rng=rng()).value)


def test_where_nothing_varies_the_number_of_scenarios_bounds_the_exceptions():
    exceptions = 1 - 0.025 ** (1 / 100)
    for part, low, high in ((1, 1 - exceptions, 1.0), (0, 0.0, exceptions), (0.5, 0.5 - 0.5 * exceptions, 0.5 + 0.5 * exceptions)):
        found = stats.share(Sample.of([row(part, who=str(i)) for i in range(100)]), rng=rng())
        assert (found.value, found.low, found.high) == pytest.approx((part, low, high))
    found = stats.mean_interval([30.0] * 100, [str(i) for i in range(100)], rng=rng(), within=(0.0, 100.0))
    assert found == pytest.approx((30 - 30 * exceptions, 30 + 70 * exceptions))


def test_an_interval_is_wider_when_lines_of_a_scenario_go_together():
    apart = stats.share(Sample.of([row(i % 2, who=str(i)) for i in range(60)]), rng=rng())
    together = stats.share(Sample.of([row(i // 10 % 2, who=str(i // 10)) for i in range(60)]), rng=rng())
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_drift_is_taken_within_dialogues():
    # A dialogue that is worse and longer than another makes no trend; a fall of 0.1 a turn in each is one.
    level = [row(1.0, turn=turn) for turn in (1, 2)] + [row(0.0, dialogue=1, turn=turn, who="b") for turn in range(1, 6)]
    assert stats.drift(Sample.of(level), rng=rng()).value == pytest.approx(0.0)
    falling = [row(1.0 - 0.1 * turn, dialogue=d, turn=turn, who=str(d)) for d in (0, 1, 2) for turn in range(1, 4 + d)]
    found = stats.drift(Sample.of(falling), rng=rng())
    assert (found.value, found.low, found.high) == pytest.approx((-0.1, -0.1, -0.1))


def test_the_slope_over_strictness_is_that_of_a_straight_line():
    rows = [row(0.9 - 0.4 * d, dialogue=i, who=str(i), level=d) for i, d in enumerate((0.0, 0.25, 0.5, 0.75, 1.0))]
    assert stats.slope_over_levels(Sample.of(rows), rng=rng()).value == pytest.approx(-0.4)
    assert math.isnan(stats.slope_over_levels(Sample.of(rows[:1]), rng=rng()).value)


def test_a_rank_correlation_knows_order_only_and_shares_ranks_in_ties():
    names = [str(i) for i in range(6)]
    assert stats.rank_correlation(names, [1, 2, 3, 4, 5, 6], [1, 10, 11, 12, 13, 1000], rng=rng()).value == pytest.approx(1.0)
    # ranks 1.5 1.5 3 against 1 2 3: covariance 1/2, spreads sqrt(1/2) and sqrt(2/3)
    assert stats.rank_correlation(names[:3], [1, 1, 2], [1, 2, 3], rng=rng()).value == pytest.approx(0.5 / np.sqrt(1 / 3))
    assert math.isnan(stats.rank_correlation(names, [1] * 6, [1, 2, 3, 4, 5, 6], rng=rng()).value)


def test_the_interval_of_a_mean_is_over_all_values_with_clusters_drawn_whole():
    values, names = np.arange(101, dtype=float), [f"{i:03}" for i in range(101)]
    low, high = stats.mean_interval(values, names, rng=rng())
    assert (low, high) == stats.mean_interval(values, names, rng=rng())
    # standard error of the mean of 0..100 is 29.15 / sqrt(101) = 2.90
    assert (low, high) == pytest.approx((50 - 1.96 * 2.9, 50 + 1.96 * 2.9), abs=0.6)
    # Half of the clusters have one value of 100, the others four of 0: the mean of all is 20, that of the clusters' means 50.
    values, names = [100.0] * 20 + [0.0] * 80, [f"one {i}" for i in range(20)] + [f"four {i // 4}" for i in range(80)]
    low, high = stats.mean_interval(values, names, rng=rng())
    assert low < 20.0 < high < 45.0
    assert np.isnan(stats.mean_interval([1.0, 2.0], ["a", "a"], rng=rng())).all()


def test_an_estimate_is_written_with_null_for_nan():
    assert NOTHING.to_dict() == {"value": None, "low": None, "high": None} and NOTHING.text(2) == "–"
    assert Estimate(value=0.5, low=0.25, high=1.0).text(2) == "0.50 [0.25, 1.00]"
