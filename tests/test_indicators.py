"""Indicators of collapse, each worked out by hand or against a slow implementation."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from scipy import stats

from curriculum.collapse.indicators import (
    at_bounds_share,
    chi_square,
    compression_ratio,
    distinct,
    effective_share,
    entropy,
    fall_within,
    fit_entropy_law,
    forking_entropy,
    k1,
    k3,
    largest_fall,
    logprob_advantage_covariance,
    longest_common_subsequence,
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

# Tokens


def test_entropy_of_even_certain_and_impossible_tokens():
    assert entropy(np.array([[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0]])) == pytest.approx([math.log(4), 0.0], abs=1e-12)
    assert entropy(np.array([[0.0, 0.0, -np.inf]])) == pytest.approx([math.log(2)])
    # Odds of 3 to 1; at temperature 1/2 they are 9 to 1.
    odds = np.array([[math.log(3.0), 0.0]])
    assert entropy(odds) == pytest.approx([-0.75 * math.log(0.75) - 0.25 * math.log(0.25)])
    assert entropy(odds, temperature=0.5) == pytest.approx([-0.9 * math.log(0.9) - 0.1 * math.log(0.1)])


def test_forking_entropy_is_the_mean_of_the_top_fifth():
    assert forking_entropy(np.array([0.0, 1.0, 0.0, 3.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0])) == 2.5
    assert forking_entropy(np.array([0.4, 0.2])) == 0.4 and math.isnan(forking_entropy(np.array([])))


def test_a_policy_gradient_step_changes_entropy_by_minus_the_covariance():
    # Deviations (1, -1) and (1, -1): mean product 1.
    assert logprob_advantage_covariance(np.array([-1.0, -3.0]), np.array([1.0, -1.0])) == 1.0
    assert logprob_advantage_covariance(np.array([-1.0, -3.0]), np.array([-2.0, 2.0])) == -2.0
    logits_V, rewards_V, step = np.array([0.5, 0.0, -1.0]), np.array([1.0, 0.2, 0.0]), 1e-4
    p_V = np.exp(logits_V) / np.exp(logits_V).sum()
    advantages_V = rewards_V - p_V @ rewards_V
    # Natural gradient: every logit moves by its advantage, and the expectation is over the policy's own tokens.
    change = float(entropy((logits_V + step * advantages_V)[None])[0] - entropy(logits_V[None])[0])
    tokens = np.repeat(np.arange(3), np.round(p_V * 1_000_000).astype(int))
    assert change / -step == pytest.approx(logprob_advantage_covariance(np.log(p_V)[tokens], advantages_V[tokens]), rel=1e-3)


def test_divergences_and_importance_weights_by_hand_in_expectation_and_far_apart():
    mu_N, pi_N = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    # Ratios 1/2 and 3/2.
    assert k1(mu_N, pi_N) == pytest.approx(-(math.log(0.5) + math.log(1.5)) / 2)
    assert k3(mu_N, pi_N) == pytest.approx(((-0.5 - math.log(0.5)) + (0.5 - math.log(1.5))) / 2)
    assert chi_square(mu_N, pi_N) == pytest.approx((0.25 + 2.25) / 2 - 1) and effective_share(mu_N, pi_N) == pytest.approx(1 / 1.25)
    assert k1(mu_N, mu_N) == k3(mu_N, mu_N) == chi_square(mu_N, mu_N) == 0.0 and effective_share(mu_N, mu_N) == 1.0
    mu_V, pi_V = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.3, 0.2])
    tokens = np.random.default_rng(1).choice(3, size=200_000, p=mu_V)
    sampled, exact = (np.log(mu_V)[tokens], np.log(pi_V)[tokens]), float((mu_V * np.log(mu_V / pi_V)).sum())
    assert k1(*sampled) == pytest.approx(exact, abs=0.003) and k3(*sampled) == pytest.approx(exact, abs=0.001)
    assert chi_square(*sampled) == pytest.approx(float((pi_V**2 / mu_V).sum()) - 1, abs=0.005)
    far = np.array([-1.0]), np.array([-500.0])
    assert all(math.isfinite(estimate(*far)) for estimate in (k3, chi_square, effective_share))


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


def slow_longest_common_subsequence(a: list[str], b: list[str]) -> int:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def test_own_overlap_takes_the_nearest_earlier_reply_by_common_subsequence():
    rng = random.Random(0)
    for _ in range(100):
        a, b = ([rng.choice("abcd") for _ in range(rng.randint(1, 90))] for _ in range(2))
        assert longest_common_subsequence(a, b) == slow_longest_common_subsequence(a, b)
    # The third shares "a c" with the first, F1 2 * 2 / (3 + 2), and nothing with the second; the second shares nothing.
    assert own_overlap(["a b c", "x y", "a c"]) == pytest.approx((0.0 + 0.8) / 2) and own_overlap(["the same", "The same!"]) == 1.0
    assert math.isnan(own_overlap(["only one"])) and math.isnan(own_overlap(["one", "..."]))


def slow_self_bleu(replies: list[list[str]], max_n: int = 4) -> float:
    scores = []
    for i, own in enumerate(replies):
        others = [other for j, other in enumerate(replies) if j != i]
        logs = []
        for n in range(1, min(max_n, len(own)) + 1):
            grams = [tuple(own[k : k + n]) for k in range(len(own) - n + 1)]
            most = {g: max(sum(tuple(o[k : k + n]) == g for k in range(len(o) - n + 1)) for o in others) for g in grams}
            matched = sum(min(grams.count(g), most[g]) for g in set(grams))
            smooth = int(n > 1)
            logs.append(math.log((matched + smooth) / (len(grams) + smooth)) if matched + smooth else -math.inf)
        closest = min((len(o) for o in others), key=lambda length: (abs(length - len(own)), length))
        scores.append(math.exp(sum(logs) / len(logs) + min(0.0, 1 - closest / len(own))))
    return sum(scores) / len(scores)


def test_self_bleu_by_hand_and_against_a_slow_one():
    assert self_bleu(["a b c d", "a b c d"]) == 1.0 and self_bleu(["a b c d", "e f g h"]) == 0.0
    # p1 = 2/3, p2 = (1 + 1) / (2 + 1), p3 = (0 + 1) / (1 + 1), no penalty.
    assert self_bleu(["a b c", "a b d"]) == pytest.approx((2 / 3 * 2 / 3 * 1 / 2) ** (1 / 3))
    assert math.isnan(self_bleu(["alone", "..."]))
    rng = random.Random(0)
    for _ in range(40):
        replies = [[rng.choice("abcde") for _ in range(rng.randint(1, 12))] for _ in range(rng.randint(2, 6))]
        assert self_bleu([" ".join(reply) for reply in replies]) == pytest.approx(slow_self_bleu(replies))


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


def test_largest_fall_bounds_and_rank_correlation_by_hand():
    assert largest_fall([0.8, 0.5, 0.2], [0.7, 0.2, 0.2]) == pytest.approx(0.3)
    assert largest_fall([0.8, math.nan], [0.7, 0.1]) == pytest.approx(0.1) and math.isnan(largest_fall([], []))
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
