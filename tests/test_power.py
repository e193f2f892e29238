"""What a comparison could have found: powers against trials played here, and a least difference that has the power it was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from analysis.stats import minimal_detectable_effect, power_of_sign_flip_test, power_of_t_test, sign_flip_test


def test_power_without_an_effect_is_alpha():
    assert power_of_t_test(0.0, num_pairs=7, alpha=0.05) == pytest.approx(0.05)
    # Of 64 pairs of patterns 3 lie at or below .05.
    assert power_of_sign_flip_test(0.0, num_pairs=7, alpha=0.05) == pytest.approx(3 / 64, abs=0.012)


def test_power_is_the_share_of_trials_that_reject():
    trials = np.random.default_rng(1).normal(1.2, 1.0, size=(1000, 7))
    rejected = np.mean([sign_flip_test(trial).p <= 0.05 for trial in trials])
    assert power_of_sign_flip_test(1.2, num_pairs=7, alpha=0.05) == pytest.approx(rejected, abs=0.05)
    ts = trials.mean(axis=1) / (trials.std(axis=1, ddof=1) / math.sqrt(7))
    assert power_of_t_test(1.2, num_pairs=7, alpha=0.05) == pytest.approx(np.mean(np.abs(ts) > scipy.stats.t.ppf(0.975, 6)), abs=0.05)


@pytest.mark.parametrize(("num_pairs", "alpha"), [(6, 0.05), (8, 0.0125), (10, 0.0125), (50, 0.05)])
def test_the_minimal_detectable_effect_has_the_power_it_was_asked_for(num_pairs, alpha):
    effect = minimal_detectable_effect(num_pairs=num_pairs, sd=3.0, alpha=alpha, power=0.8)
    power = power_of_sign_flip_test if num_pairs <= 10 else power_of_t_test
    assert power(effect / 3.0, num_pairs=num_pairs, alpha=alpha) == pytest.approx(0.8, abs=2e-3)


def test_the_test_that_decides_finds_less_than_a_t_test_of_as_few_pairs():
    effect = minimal_detectable_effect(num_pairs=8, sd=1.0, alpha=0.0125)
    assert power_of_t_test(effect, num_pairs=8, alpha=0.0125) > 0.9


@pytest.mark.parametrize(("num_pairs", "alpha"), [(3, 0.05), (5, 0.05), (7, 0.0125)])
def test_pairs_that_could_never_decide_detect_nothing(num_pairs, alpha):
    assert math.isinf(minimal_detectable_effect(num_pairs=num_pairs, sd=0.0, alpha=alpha))


def test_the_minimal_detectable_effect_nears_that_of_known_sd():
    # With many pairs t becomes normal: (z(.975) + z(.8)) / sqrt(n).
    normal = (scipy.stats.norm.ppf(0.975) + scipy.stats.norm.ppf(0.8)) / math.sqrt(2000)
    assert minimal_detectable_effect(num_pairs=2000, sd=1.0) == pytest.approx(normal, rel=0.02)


def test_without_spread_any_effect_is_detectable():
    assert minimal_detectable_effect(num_pairs=6, sd=0.0) == 0.0


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [({"num_pairs": 1}, "num_pairs must be at least 2"), ({"sd": math.nan}, "sd at least 0"), ({"alpha": 0.9}, "0 < alpha < power < 1")],
)
def test_a_design_that_is_none_is_refused(wrong, complaint):
    with pytest.raises(ValueError, match=complaint):
        minimal_detectable_effect(**{"num_pairs": 5, "sd": 1.0, **wrong})
