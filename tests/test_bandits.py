"""SEC, DUMP, VCRL, SFL, PLR, TSCL and learning progress: equations by hand, and a student with something to learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit
from tiny_student import make_outcome, make_task, make_teacher, mean_distance, mean_strictness, practise, teach

from curriculum.bandits import Variant, chances_of_greatest, slope
from curriculum.cells import Scope
from curriculum.replay import SCORES, Score, ranks
from curriculum.task import Mode

FULL = 0.5 / math.sqrt(2 / 7)
"""|advantage| of each of 8 rollouts of which 4 succeed: deviations 0.5 over the unbiased deviation sqrt(8/7 / 4)."""
ALL = slice(None)


@pytest.mark.parametrize(
    ("kind", "settings", "distance"),
    [("sec", {}, 0.14), ("dump", {"window": 64}, 0.13), ("vcrl", {}, 0.2), ("sfl", {}, 0.2), ("plr", {}, 0.2)],
)
def test_practice_gathers_where_odds_are_even_and_follows_a_student_up_and_down(kind, settings, distance):
    """Evenly drawn strictness would be 0.256 away from 0.4 on average."""
    issued = practise(make_teacher(kind, **settings), lambda task: 0.4 if not 100 < task.teacher_step <= 220 else 0.8, num_steps=340)
    assert mean_distance(issued[50:100], 0.4) < distance
    first, second, third = (mean_strictness(issued[i : i + 40]).mean() for i in (60, 180, 300))
    assert second > first + 0.1 and third < second - 0.1


@pytest.mark.parametrize("kind", ["sec", "dump"])
def test_a_family_that_tosses_coins_eats_the_budget_of_a_flat_bandit(kind):
    """The published fault, kept and measured: four families, one of them noise."""
    prob = {"a": 0.02, "b": 0.98, "c": 0.9, "noise": 0.5}
    teacher = make_teacher(kind, families=tuple(prob), scope=Scope.FLAT, num_bins=5)
    issued = practise(teacher, 0.0, num_steps=100, success=lambda task: prob[task.family])
    assert np.mean([task.family == "noise" for tasks in issued for task in tasks]) > 0.5


# SEC


def test_sec_value_moves_by_its_rate_for_all_groups_of_a_cell_at_once_and_draws_by_softmax():
    teacher = make_teacher("sec", num_bins=2, rate=0.5, temperature=0.5)
    teach(teacher, 0.2, 4)
    assert teacher.table["q"] == pytest.approx([FULL / 2, 0.0], abs=1e-5)
    teacher.observe([make_outcome(make_task(teacher, 0.1), 4), make_outcome(make_task(teacher, 0.3), 0)])
    assert teacher.table["q"] == pytest.approx([FULL / 2, 0.0], abs=1e-5)
    assert teacher.preferences(ALL) == pytest.approx([expit(FULL), expit(-FULL)], abs=1e-5)


@pytest.mark.parametrize(("normalise", "values"), [(True, [FULL, FULL]), (False, [0.4, 0.01])])
def test_normalised_advantages_do_not_tell_wide_rewards_from_narrow_ones(normalise, values):
    teacher = make_teacher("sec", num_bins=2, rate=1.0, normalise=normalise)
    for d, rewards in ((0.2, (0.1, 0.9) * 4), (0.8, (0.49, 0.51) * 4)):
        teacher.observe([make_outcome(make_task(teacher, d), 4, rewards=rewards)])
    assert teacher.table["q"] == pytest.approx(values, abs=1e-3)


# DUMP


def test_dump_score_is_the_window_mean_plus_a_bonus_for_few_visits():
    teacher = make_teacher("dump", num_bins=2, temperature=1.0, window=16)
    assert teacher.preferences(ALL).tolist() == [0.5, 0.5]
    teach(teacher, 0.2, 4)
    difference = FULL + math.sqrt(2 * math.log(9) / 9) - math.sqrt(2 * math.log(9))
    assert teacher.preferences(ALL)[0] == pytest.approx(expit(difference), abs=1e-5)
    teach(teacher, 0.2, 4)
    teach(teacher, 0.2, 0)
    # The last 16 of 24 rollouts: one group of FULL, one of nothing.
    assert teacher.table["learnability"][0] == pytest.approx(FULL / 2, abs=1e-5) and teacher.table["count"].tolist() == [24.0, 0.0]


def test_dump_counts_fade_only_when_asked():
    fading = make_teacher("dump", num_bins=2, count_decay=0.5)
    teach(fading, 0.2, 4)
    teach(fading, 0.8, 4)
    assert fading.table["count"].tolist() == [4.0, 8.0]


# VCRL


def test_vcrl_bank_takes_in_keeps_and_drops_by_kappa():
    teacher = make_teacher("vcrl", num_bins=4, kappa_first=0.3, kappa=0.8, strict_step=3, momentum=0.9)
    teach(teacher, 0.1, 1)  # 1 * 7 / 16 of the greatest
    teach(teacher, 0.4, 0)
    assert teacher.state_dict()["learned"]["table"]["values"]["priority"] == [7 / 16, None, None, None]
    teach(teacher, 0.1, 4)
    assert teacher.table["priority"][0] == pytest.approx(0.9 * 7 / 16 + 0.1)
    teach(teacher, 0.6, 3)  # 15/16 passes the threshold of step 4; 0.49375 is below it
    assert teacher.state_dict()["learned"]["table"]["values"]["priority"] == [None, None, 15 / 16, None]


def test_vcrl_draws_from_its_bank_the_share_that_it_would_have_dropped():
    teacher = make_teacher("vcrl", num_bins=4)
    assert {task.mode for task in teacher.propose(50, policy_version=0)} == {Mode.UNIFORM}
    for d, num_successes in ((0.1, 1), (0.4, 4), (0.9, 0)):
        teach(teacher, d, num_successes)
    assert teacher.dropped_share == pytest.approx(0.05) and teacher.preferences(ALL) == pytest.approx([7 / 23, 16 / 23, 0.0, 0.0])
    modes = [task.mode for task in teacher.propose(2000, policy_version=0)]
    assert set(modes) == {Mode.REPLAY, Mode.UNIFORM} and modes.count(Mode.REPLAY) / 2000 == pytest.approx(0.05, abs=0.02)


# SFL


def observe_random(teacher, results: dict[float, int]) -> None:
    tasks = [(make_task(teacher, d, mode=Mode.UNIFORM), k) for d, k in results.items()]
    teacher.observe([make_outcome(task, k) for task, k in tasks])


def test_sfl_keeps_the_cells_nearest_to_even_odds_of_random_groups_and_draws_half_from_them():
    teacher = make_teacher("sfl", num_bins=4, buffer_size=3, refresh_steps=5)
    assert not teacher.preferences(ALL).any()
    observe_random(teacher, {0.1: 8, 0.3: 5, 0.4: 3, 0.6: 1, 0.9: 0})
    assert sorted(teacher.buffer) == [1, 1, 2] and teacher.preferences(ALL) == pytest.approx([0.0, 2 / 3, 1 / 3, 0.0])
    tasks = teacher.propose(4000, policy_version=teacher.policy_version)
    assert np.mean([task.mode is Mode.REPLAY for task in tasks]) == pytest.approx(0.5, abs=0.03)
    (decision,) = teacher.decisions()
    assert decision["decision"] == "refresh" and decision["size"] == 3 and teacher.candidates == []
    # Replayed groups are no candidates, so the old buffer stays.
    teacher.observe([make_outcome(make_task(teacher, 0.9, mode=Mode.REPLAY), 4) for _ in range(5)])
    assert sorted(teacher.buffer) == [1, 1, 2]


def test_sfl_scans_before_a_refresh_when_asked():
    issued = practise(make_teacher("sfl", refresh_steps=5, scan_steps=2), 0.4, num_steps=15)
    all_random = [all(task.mode is Mode.UNIFORM for task in tasks) for tasks in issued]
    assert all_random == [True] * 5 + [False] * 3 + [True] * 2 + [False] * 3 + [True] * 2


# PLR


def test_plr_mixes_ranks_and_ages_once_enough_cells_were_seen():
    teacher = make_teacher("plr", num_bins=4, staleness=0.3, beta=0.5, replay=0.8, fill=0.5)
    teach(teacher, 0.1, 4)
    assert not teacher.preferences(ALL).any()  # one cell of four
    teach(teacher, 0.3, 1)
    # Scores p (1 - p): 0.25 and 7/64; ranks 1 and 2 weigh 1 and 1/4; ages 1 and 0.
    assert teacher.table["score"][:2] == pytest.approx([0.25, 7 / 64])
    assert teacher.preferences(ALL) == pytest.approx([0.7 * 0.8 + 0.3, 0.7 * 0.2, 0.0, 0.0])
    teach(teacher, 0.6, 4)
    # The first and the third share ranks 1 and 2; ages are 2, 1 and 0.
    even, last = 1.5**-2, 3.0**-2
    by_rank = np.array([even, last, even]) / (2 * even + last)
    assert teacher.preferences(ALL)[:3] == pytest.approx(0.7 * by_rank + 0.3 * np.array([2, 1, 0]) / 3)


@pytest.mark.parametrize("group_size", [3, 7, 8, 16])
def test_equal_scores_share_their_ranks_also_where_their_sums_differ_in_the_last_bit(group_size):
    assert ranks(np.array([0.1, 0.5, 0.1, 0.9, 0.1])).tolist() == [4.0, 2.0, 4.0, 1.0, 4.0]
    task = make_task(make_teacher("plr", group_size=group_size), 0.1)
    for k in range(group_size + 1):
        scores = [SCORES[Score.POSITIVE_ADVANTAGE](make_outcome(task, num)) for num in (k, group_size - k)]
        assert scores == pytest.approx([k * (group_size - k) / group_size**2] * 2) and ranks(np.array(scores)).tolist() == [1.5, 1.5]


@pytest.mark.parametrize(("settings", "score"), [({}, 0.0), ({"score_rate": 0.25}, 0.1875), ({"score": "max_minus_mean"}, 0.0)])
def test_plr_keeps_the_newest_score_or_averages(settings, score):
    teacher = make_teacher("plr", num_bins=2, **settings)
    teach(teacher, 0.2, 4)
    assert teacher.table["score"][0] == (0.5 if "score" in settings else 0.25)
    teach(teacher, 0.2, 0)
    assert teacher.table["score"][0] == pytest.approx(score)


def test_robust_plr_marks_random_groups_as_unlearned_and_scores_them():
    teacher = make_teacher("plr", robust=True, num_bins=5)
    issued = practise(teacher, 0.4, num_steps=60)
    assert {task.mode for task in issued[0]} == {Mode.UNLEARNED}
    late = [task.mode for tasks in issued[20:] for task in tasks]
    assert set(late) == {Mode.UNLEARNED, Mode.REPLAY} and late.count(Mode.UNLEARNED) / len(late) == pytest.approx(0.2, abs=0.06)
    before = teacher.table["score"].copy()
    teach(teacher, 0.5, 1, mode=Mode.UNLEARNED)
    assert (teacher.table["score"] != before).any()


# TSCL


def test_online_tscl_follows_the_change_since_the_last_visit_up_or_down():
    teacher = make_teacher("tscl", num_bins=2, rate=0.1, temperature=0.01)
    for num_successes, q in ((2, 0.0), (6, 0.1 * 0.5), (0, 0.9 * 0.05 - 0.1 * 0.75)):
        teach(teacher, 0.2, num_successes)
        assert teacher.table["q"][0] == pytest.approx(q)
    assert teacher.preferences(ALL)[0] == pytest.approx(expit(abs(0.045 - 0.075) / 0.01))


def test_greedy_tscl_gives_the_greatest_all_but_epsilon():
    teacher = make_teacher("tscl", num_bins=4, temperature=0.0, epsilon=0.2)
    assert teacher.preferences(ALL).tolist() == [0.25] * 4
    teach(teacher, 0.3, 2)
    teach(teacher, 0.3, 6)
    teacher.propose(1, policy_version=0)
    assert teacher.shares("one")[0] == pytest.approx([0.05, 0.85, 0.05, 0.05])


def test_window_tscl_takes_the_slope_by_the_step_of_issue():
    teacher = make_teacher("tscl", num_bins=2, variant=Variant.WINDOW, window=3)
    for num_successes in (8, 0, 2, 4):
        teach(teacher, 0.2, num_successes)
    assert teacher.table["q"] == pytest.approx([0.25, 1.0])  # the last three: 0, 0.25, 0.5 at successive steps
    swapped = make_teacher("tscl", num_bins=2, variant=Variant.WINDOW)
    early, late = make_task(swapped, 0.2), make_task(swapped, 0.2)
    swapped.observe([make_outcome(late, 8)])
    swapped.observe([make_outcome(early, 0)])
    assert swapped.table["q"][0] == pytest.approx(1.0)
    assert slope(np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]), unknown=9.0) == pytest.approx(0.5)
    assert slope(np.array([[3.0, 1.0], [3.0, 0.0]]), unknown=9.0) == 9.0


def test_naive_tscl_takes_in_slopes_after_each_block_of_steps():
    teacher = make_teacher("tscl", num_bins=2, variant=Variant.NAIVE, window=2, rate=0.1)
    teach(teacher, 0.2, 4)
    teach(teacher, 0.2, 8)
    assert teacher.table["q"].tolist() == [0.0, 0.0]
    teach(teacher, 0.2, 8)
    # Steps 1 and 2: from 0.5 to 1 in the first cell; the second had no groups, which counts as a slope of 1.
    assert teacher.table["q"] == pytest.approx([0.1 * 0.5, 0.1 * 1.0])


def test_sampling_tscl_draws_by_the_chance_that_a_recent_change_is_the_greatest():
    teacher = make_teacher("tscl", num_bins=2, variant=Variant.SAMPLING, window=2)
    for num_successes in (8, 4, 0, 8):
        teach(teacher, 0.2, num_successes)
    # The first cell's last two changes are -0.5 and 1; the second's is 1 until it was seen twice.
    assert teacher.preferences(ALL) == pytest.approx([0.25, 0.75]) and teacher.table["q"][0] == pytest.approx(0.25)
    assert chances_of_greatest([np.array([1.0]), np.array([1.0]), np.array([0.0])]) == pytest.approx([0.5, 0.5, 0.0])
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 6, size=5) / 5 for _ in range(7)]
    drawn_NC = np.stack([rng.choice(each, size=40_000) for each in values], axis=1) + 1e-6 * rng.random((40_000, 7))
    assert chances_of_greatest(values) == pytest.approx(np.bincount(drawn_NC.argmax(axis=1), minlength=7) / 40_000, abs=0.01)


@pytest.mark.parametrize("variant", list(Variant))
def test_tscl_goes_where_reward_changes(variant):
    # The lower of two cells: 0 until step 20, then up by 0.05 a step, so that change exceeds the noise of eight coins.
    issued = practise(
        make_teacher("tscl", num_bins=2, variant=variant),
        0.0,
        num_steps=40,
        success=lambda task: min(max(task.teacher_step - 21, 0) * 0.05, 1.0) * (task.strictness < 0.5),
    )
    assert np.mean([task.strictness < 0.5 for tasks in issued[25:] for task in tasks]) > 0.6


# Learning progress


@pytest.mark.parametrize("successes", [(0, 8), (8, 0)])
def test_progress_is_the_distance_of_a_fast_and_a_slow_average_up_or_down(successes):
    teacher = make_teacher("progress", num_bins=2, rate=0.5, theta=0.5)
    for num_successes in successes:
        teach(teacher, 0.2, num_successes)
    # From 0: fast 0.5, slow 0.25. z = +1 and -1.
    assert teacher.progress(ALL) == pytest.approx([0.25, 0.0])
    teacher.propose(1, policy_version=0)
    assert teacher.shares("one")[0] == pytest.approx([0.125 + 0.75 * expit(1.0), 0.125 + 0.75 * expit(-1.0)])


def test_small_successes_are_told_apart_best():
    teacher = make_teacher("progress", num_bins=2, theta=0.1)
    teacher.table["fast"][:], teacher.table["slow"][:] = (0.1, 1.0), (0.0, 0.9)
    # w(0.1) = 0.09 / (0.1 + 0.08) = 0.5, w(0.9) = 0.81 / (0.9 - 0.08).
    assert teacher.progress(ALL) == pytest.approx([0.5, 1.0 - 0.81 / 0.82])


def test_a_baseline_is_measured_first_and_success_counts_above_it_up_to_a_cap():
    teacher = make_teacher("progress", num_bins=2, baseline_groups=2)
    for num_successes in (2, 6):
        teach(teacher, 0.2, num_successes)
    assert teacher.table["baseline"][0] == pytest.approx(0.5) and np.isnan(teacher.table["fast"][0])
    for num_successes, fast in ((6, 0.5), (2, 0.45)):  # (0.75 - 0.5) / 0.5; below the baseline is 0
        teach(teacher, 0.2, num_successes)
        assert teacher.table["fast"][0] == pytest.approx(fast)
    capped = make_teacher("progress", num_bins=2, baseline_groups=1)
    teach(capped, 0.2, 8)
    teach(capped, 0.2, 8)
    assert capped.table["fast"][0] == pytest.approx(1.0)


def test_noise_and_constant_success_keep_little_above_the_even_share():
    teacher = make_teacher("progress", families=("coin", "learns", "mastered", "never"), scope=Scope.FLAT, num_bins=2)

    def success(task) -> float:
        return {"coin": 0.5, "learns": 0.05 + 0.009 * task.teacher_step, "mastered": 0.99, "never": 0.0}[task.family]

    issued = [task.family for tasks in practise(teacher, 0.0, num_steps=100, num_groups=32, success=success)[10:] for task in tasks]
    assert issued.count("learns") > 1.3 * max(map(issued.count, ("coin", "mastered", "never")))
