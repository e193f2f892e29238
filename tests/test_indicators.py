"""Indicators of collapse, each worked out by hand or against a slow implementation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from curriculum.collapse.indicators import (
    at_bounds_share,
    compression_ratio,
    distinct,
    fall_within,
    fit_entropy_law,
    mutual_information,
    own_overlap,
    repetition,
    retrieval_accuracy,
    self_bleu,
    spearman,
    spike_score,
    strategy_entropy,
    theil_sen_slope,
    updates_until,
)

# Texts


def test_repetition_counts_only_the_words_of_earlier_turns():
    assert math.isnan(repetition(["one two three four five"]))
    assert repetition(["one two three four", "one two three four"]) == 1.0
    # Of the second reply's four-grams (abcd, bcde) the first was said before.
    assert repetition(["a b c d", "A b, c d e"]) == 0.5 and repetition(["a b c d a b c d", "e f g h"]) == 0.0
    assert repetition(["我很难过了", "我很难过吗"]) == 0.5


def test_distinct_is_a_share_within_a_fixed_budget_of_words():
    assert distinct(["a b a b"]) == pytest.approx(2 / 3) and distinct(["a b", "a b"]) == 0.5
    assert distinct(["a b c", "a b c d"], max_words=5) == pytest.approx(2 / 3) and math.isnan(distinct(["one", ""]))


def test_own_overlap_takes_the_nearest_earlier_reply_by_common_subsequence():
    rng = random.Random(0)
    for _ in range(10):
        a, b = ([rng.choice("abcd") for _ in range(rng.randint(1, 90))] for _ in range(2))
        lengths = [0] * (len(b) + 1)
        for x in a:
            before = lengths[:]
            for j, y in enumerate(b):
                lengths[j + 1] = before[j] + 1 if x == y else max(before[j + 1], lengths[j])
        assert own_overlap([" ".join(a), " ".join(b)]) == pytest.approx(2 * lengths[-1] / (len(a) + len(b)))
    # The third shares "a c" with the first, F1 2 * 2 / (3 + 2), and nothing with the second; the second shares nothing.
    assert own_overlap(["a b c", "x y", "a c"]) == pytest.approx((0.0 + 0.8) / 2) and own_overlap(["the same", "The same!"]) == 1.0
    assert math.isnan(own_overlap(["only one"])) and math.isnan(own_overlap(["one", "..."]))


def test_self_bleu_by_hand():
    assert self_bleu(["a b c d", "a b c d"]) == 1.0 and self_bleu(["a b c d", "e f g h"]) == 0.0
    # p1 = 2/3, p2 = (1 + 1) / (2 + 1), p3 = (0 + 1) / (1 + 1), no penalty.
    assert self_bleu(["a b c", "a b d"]) == pytest.approx((2 / 3 * 2 / 3 * 1 / 2) ** (1 / 3))
    assert math.isnan(self_bleu(["alone", "..."]))
    # The first is whole within the others; the second is one word shorter than the closest; the third is matched as often as one other has
    # each n-gram: p1 = 3/4, p2 = (2 + 1) / (3 + 1), p3 = (1 + 1) / (2 + 1), p4 = (0 + 1) / (1 + 1).
    third = (3 / 4 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert self_bleu(["a a b", "a b", "a a a b"]) == pytest.approx((1.0 + math.exp(1 - 3 / 2) + third) / 3)


def test_repeated_text_packs_small_and_too_little_text_has_no_ratio():
    rng = random.Random(0)
    varied = [" ".join(rng.choice(["rain", "sister", "work", "sorry", "music", "cat"]) for _ in range(20)) for _ in range(200)]
    assert compression_ratio([varied[0]] * 200) > 10 * compression_ratio(varied) > 10.0
    assert compression_ratio(varied * 2) == compression_ratio(varied) and math.isnan(compression_ratio(varied[:5]))


# Strategies


def test_strategy_entropy_has_miller_and_madows_correction():
    assert strategy_entropy(["praise"] * 9) == 0.0 and math.isnan(strategy_entropy([]))
    assert strategy_entropy(["a", "a", "b", "b"]) == pytest.approx(math.log(2) + 1 / 8)
    rng, p_V = np.random.default_rng(0), np.array([0.4, 0.3, 0.2, 0.1])
    few = np.mean([strategy_entropy(rng.choice(4, size=30, p=p_V).tolist()) for _ in range(500)])
    assert few == pytest.approx(float(-(p_V * np.log(p_V)).sum()), abs=0.01)


def test_mutual_information_is_all_or_about_nothing():
    strategies = ["a", "a", "b", "b"] * 100
    # Corrections: (2 - 1 + 2 - 1 - (2 - 1)) / 2N = 1 / 800.
    assert mutual_information(strategies, ["x", "x", "y", "y"] * 100) == pytest.approx(math.log(2) + 1 / 800)
    assert mutual_information(strategies, ["x", "y", "x", "y"] * 100) == pytest.approx(-1 / 800)
    rng = np.random.default_rng(0)
    draws = [mutual_information(rng.integers(0, 6, 300).tolist(), rng.integers(0, 8, 300).tolist()) for _ in range(200)]
    assert np.mean(draws) == pytest.approx(0.0, abs=0.005)  # uncorrected 5 * 7 / 600 = 0.058


def test_retrieval_accuracy_shares_ties():
    # The first is likeliest at home, the second in another context, the third as likely in two as in its own.
    crossed_NN = np.array([[-1.0, -2.0, -3.0], [-1.0, -2.0, -3.0], [-4.0, -4.0, -4.0]])
    assert retrieval_accuracy(crossed_NN) == pytest.approx((1 + 0 + 1 / 3) / 3)
    assert math.isnan(retrieval_accuracy(crossed_NN[:1, :1])) and math.isnan(retrieval_accuracy(np.zeros((0, 0))))


# Outcomes and trends


def test_bounds_and_rank_correlation_by_hand():
    assert at_bounds_share([0.0, 0.01, 0.5, 0.99]) == 0.75 and math.isnan(at_bounds_share([]))
    assert spearman([0.1, 0.5, 0.9], [9.0, 2.0, 1.0]) == pytest.approx(-1.0)
    # Ranks 1 2 3 4 and 4 3 1.5 1.5: sums of products -4.5, of squares 5 and 4.5.
    assert spearman([1, 2, 3, 4], [7, 5, 2, 2]) == pytest.approx(-4.5 / math.sqrt(5 * 4.5))
    assert math.isnan(spearman([1, 2, 3], [4, 4, 4])) and math.isnan(spearman([1, 2, math.nan], [1, 2, 3]))


def test_slopes_and_time_to_exhaustion():
    assert theil_sen_slope([0.0, 1.0, 2.0, 100.0, 4.0, 5.0, 6.0]) == pytest.approx(1.0)
    assert theil_sen_slope([3.0, 1.0]) == -2.0 and math.isnan(theil_sen_slope([1.0]))
    values = [math.exp(-0.1 * t) for t in range(11)]
    assert updates_until(values, 0.1) == pytest.approx((math.log(10) - 1.0) / 0.1)
    assert updates_until([1.0, 1.0, 1.0], 0.1) == math.inf and updates_until(values, 0.5) == 0.0
    assert math.isnan(updates_until([1.0, 0.9], 0.1)) and math.isnan(updates_until([1.0, 0.0, 0.5], 0.1))


def test_the_entropy_law_is_fitted_by_least_squares_with_its_errors():
    entropies = [0.2, 0.5, 1.0, 1.5]
    law = fit_entropy_law(entropies, [0.9 - 0.1 * math.exp(h) for h in entropies])
    assert (law.a, law.b, law.r_squared, law.ceiling, law.reward(0.0)) == pytest.approx((0.1, 0.9, 1.0, 0.8, 0.8))
    assert law.headroom(0.5) == pytest.approx(0.3)
    rewards = [0.8, 0.7, 0.65, 0.4]
    law, line = fit_entropy_law(np.log([1.0, 2.0, 3.0, 4.0]), rewards), stats.linregress([1.0, 2.0, 3.0, 4.0], rewards)
    assert (law.a, law.b, law.a_error, law.b_error) == pytest.approx((-line.slope, line.intercept, line.stderr, line.intercept_stderr))
    assert fit_entropy_law([1.0, 0.5], [0.1, 0.2]) is None and fit_entropy_law([1.0, 1.0, 1.0], [0.1, 0.2, 0.3]) is None


def test_spikes_in_robust_deviations_of_logs_and_cliffs_since_the_older_half():
    # Logs 0 1 2 3 4 (median 2, deviations 2 1 0 1 2, MAD 1), newest 10.
    earlier = [math.exp(x) for x in range(5)]
    assert spike_score(earlier, math.exp(10)) == pytest.approx(8 / 1.4826)
    assert math.isnan(spike_score(earlier[:4], 1.0)) and math.isnan(spike_score([1.0] * 5, 2.0))
    # Median of 0.2 0.4 0.3 is 0.3.
    assert fall_within([0.2, 0.4, 0.3, 0.2, 0.2, 0.06]) == pytest.approx(0.8)
    assert fall_within([0.1, 0.1, 0.3, 0.2]) == pytest.approx(-1.0)
    assert math.isnan(fall_within([0.0, 0.4, 0.0, 0.1, 0.0, 0.0])) and math.isnan(fall_within([0.4, 0.1]))
