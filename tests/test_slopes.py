"""TSCL and learning progress: slopes and averages by hand, and that they go where something changes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit
from tiny_student import make_outcome, make_task, make_teacher, teach

from curriculum.bandits import Scope, Variant, chances_of_greatest, reweigh, slope


def practise_two(teacher, prob_of_first, *, num_steps: int, num_groups: int = 16, seed: int = 0) -> list[float]:
    """By step, the share of the lower of two cells; a student succeeds there by chance as given and never in the other."""
    rng = np.random.default_rng(seed)
    shares = []
    for step in range(num_steps):
        tasks = teacher.propose(num_groups, policy_version=step)
        lower = [task.strictness < 0.5 for task in tasks]
        teacher.observe([make_outcome(task, rng.binomial(8, prob_of_first(step) * low)) for task, low in zip(tasks, lower, strict=True)])
        shares.append(float(np.mean(lower)))
    return shares


def test_online_slope_is_the_running_change_since_the_last_visit():
    teacher = make_teacher("tscl", num_bins=2, rate=0.1, temperature=0.01)
    teach(teacher, 0.2, 2)
    assert teacher.q.values_C.tolist() == [0.0, 0.0]
    teach(teacher, 0.2, 6)
    assert teacher.q.values_C[0] == pytest.approx(0.1 * 0.5)
    teach(teacher, 0.2, 0)
    assert teacher.q.values_C[0] == pytest.approx(0.9 * 0.05 - 0.1 * 0.75)
    # A fall is followed like a rise.
    size = abs(0.045 - 0.075)
    assert teacher.preferences(slice(None))[0] == pytest.approx(expit(size / teacher.config.temperature))


def test_window_slope_is_least_squares_in_reward_a_step():
    teacher = make_teacher("tscl", num_bins=2, variant=Variant.WINDOW, window=3)
    assert teacher.q.values_C.tolist() == [1.0, 1.0]
    for num_successes in (8, 0, 2, 4):
        teach(teacher, 0.2, num_successes)
    # The last three: 0, .25, .5 at successive steps.
    assert teacher.q.values_C == pytest.approx([0.25, 1.0])


def test_slope_by_hand_and_without_any_spread():
    assert slope(np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]), unknown=9.0) == pytest.approx(0.5)
    assert slope(np.array([[3.0, 1.0], [3.0, 0.0]]), unknown=9.0) == 9.0


def test_late_outcomes_do_not_turn_a_slope_round():
    teacher = make_teacher("tscl", num_bins=2, variant=Variant.WINDOW)
    early, late = make_task(teacher, 0.2), make_task(teacher, 0.2)
    teacher.observe([make_outcome(late, 8)])
    teacher.observe([make_outcome(early, 0)])
    assert teacher.q.values_C[0] == pytest.approx(1.0)


def test_greedy_tscl_takes_the_greatest_beside_epsilon():
    teacher = make_teacher("tscl", num_bins=4, temperature=0.0, epsilon=0.2)
    assert teacher.preferences(slice(None)).tolist() == [0.25] * 4
    teach(teacher, 0.3, 2)
    teach(teacher, 0.3, 6)
    assert teacher.preferences(slice(None)).tolist() == [0.0, 1.0, 0.0, 0.0]
    teacher.propose(1, policy_version=0)
    assert teacher.shares("one")[0] == pytest.approx([0.05, 0.85, 0.05, 0.05])


def test_naive_tscl_takes_in_slopes_after_each_block_of_steps():
    teacher = make_teacher("tscl", num_bins=2, variant=Variant.NAIVE, window=2, rate=0.1)
    teach(teacher, 0.2, 4)
    teach(teacher, 0.2, 8)
    assert teacher.q.values_C.tolist() == [0.0, 0.0]
    teach(teacher, 0.2, 8)
    # Steps 1 and 2: from .5 to 1 in the first cell; nobody went to the second, which counts as a slope of 1.
    assert teacher.q.values_C == pytest.approx([0.1 * 0.5, 0.1 * 1.0])
    teach(teacher, 0.2, 8)
    teach(teacher, 0.2, 8)
    assert teacher.q.values_C == pytest.approx([0.9 * 0.05, 0.9 * 0.1 + 0.1])


def test_sampling_tscl_draws_by_the_chance_that_a_recent_change_is_the_greatest():
    teacher = make_teacher("tscl", num_bins=2, variant=Variant.SAMPLING, window=2)
    assert teacher.preferences(slice(None)).tolist() == [0.5, 0.5]
    for num_successes in (8, 4, 0, 8):
        teach(teacher, 0.2, num_successes)
    # The first cell's last two changes are -.5 and 1; the second's is 1 as long as it was not seen twice.
    assert teacher.preferences(slice(None)) == pytest.approx([0.25, 0.75])
    assert teacher.q.values_C[0] == pytest.approx(0.25)


def test_the_chance_of_being_greatest_by_hand_and_by_drawing():
    assert chances_of_greatest([np.array([1.0]), np.array([0.5, 2.0])]).tolist() == pytest.approx([0.5, 0.5])
    assert chances_of_greatest([np.array([1.0]), np.array([1.0]), np.array([0.0])]).tolist() == pytest.approx([0.5, 0.5, 0.0])
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 6, size=5) / 5 for _ in range(7)]
    drawn_NC = np.stack([rng.choice(each, size=40_000) for each in values], axis=1) + 1e-6 * rng.random((40_000, 7))
    shares = np.bincount(drawn_NC.argmax(axis=1), minlength=7) / 40_000
    assert chances_of_greatest(values) == pytest.approx(shares, abs=0.01)


@pytest.mark.parametrize("settings", [{}, {"variant": Variant.WINDOW}, {"variant": Variant.NAIVE}, {"variant": Variant.SAMPLING}])
def test_tscl_goes_where_reward_changes(settings):
    # A step response, so that change can be told from the noise of eight coins: 0 until step 20, then up by .05 a step.
    shares = practise_two(make_teacher("tscl", num_bins=2, **settings), lambda step: min(max(step - 20, 0) * 0.05, 1.0), num_steps=40)
    assert np.mean(shares[25:40]) > 0.6


def test_reweighing_by_hand():
    # p = .1, theta = .1: .09 / (.1 + .08) = .5.
    assert reweigh(np.array([0.0, 0.1, 1.0]), 0.1) == pytest.approx([0.0, 0.5, 1.0])
    assert reweigh(np.array([0.3]), 0.5) == pytest.approx([0.3])


def test_fast_and_slow_averages_by_hand():
    teacher = make_teacher("progress", num_bins=2, rate=0.5, theta=0.5)
    teach(teacher, 0.2, 0)
    teach(teacher, 0.2, 8)
    # fast: 0, then .5; slow: 0, then .25.
    assert teacher.progress(slice(None)) == pytest.approx([0.25, 0.0])
    # z = +1 and -1.
    assert teacher.preferences(slice(None)) == pytest.approx([expit(1.0), expit(-1.0)])
    teacher.propose(1, policy_version=0)
    assert teacher.shares("one")[0] == pytest.approx([0.125 + 0.75 * expit(1.0), 0.125 + 0.75 * expit(-1.0)])


def test_falling_success_is_progress_too():
    teacher = make_teacher("progress", num_bins=2, rate=0.5, theta=0.5)
    teach(teacher, 0.2, 8)
    teach(teacher, 0.2, 0)
    assert teacher.progress(slice(None))[0] == pytest.approx(0.25)


def test_baseline_is_taken_first_and_success_counts_above_it():
    teacher = make_teacher("progress", num_bins=2, baseline_groups=2)
    for num_successes in (2, 6):
        teach(teacher, 0.2, num_successes)
    assert teacher.baseline.values_C[0] == pytest.approx(0.5) and np.isnan(teacher.fast.values_C[0])
    teach(teacher, 0.2, 6)
    assert teacher.fast.values_C[0] == pytest.approx(0.5)  # (.75 - .5) / .5
    teach(teacher, 0.2, 2)
    assert teacher.fast.values_C[0] == pytest.approx(0.45)  # below the baseline is 0


def test_baseline_is_capped():
    teacher = make_teacher("progress", num_bins=2, baseline_groups=1)
    teach(teacher, 0.2, 8)
    teach(teacher, 0.2, 8)
    assert teacher.fast.values_C[0] == pytest.approx(1.0)


def test_noise_and_what_stands_still_keep_little_above_the_even_share():
    """Four families: one learns, one tosses coins, one is impossible, one mastered."""
    rng = np.random.default_rng(0)
    families = ("coin", "learns", "mastered", "never")
    teacher = make_teacher("progress", families=families, scope=Scope.FLAT, num_bins=2)
    counts = dict.fromkeys(families, 0)
    for step in range(100):
        prob = {"coin": 0.5, "learns": 0.05 + 0.009 * step, "mastered": 0.99, "never": 0.0}
        tasks = teacher.propose(32, policy_version=step)
        teacher.observe([make_outcome(task, rng.binomial(8, prob[task.family])) for task in tasks])
        for task in tasks:
            counts[task.family] += step >= 10
    assert counts["learns"] > 1.3 * max(counts[family] for family in families if family != "learns")
