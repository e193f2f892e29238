"""SEC, DUMP, VCRL, SFL, PLR, TSCL and learning progress: equations by hand, and a student with something to learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit
from tiny_student import make_outcome, make_task, make_teacher, mean_strictness, practise, teach

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
    assert np.mean([abs(task.strictness - 0.4) for tasks in issued[50:100] for task in tasks]) < distance
    first, second, third = (mean_strictness(issued[i : i + 40]).mean() for i in (60, 180, 300))
    assert second > first + 0.1 and third < second - 0.1


def test_sec_value_moves_by_its_rate_for_all_groups_of_a_cell_at_once_and_draws_by_softmax():
    teacher = make_teacher("sec", num_bins=2, rate=0.5, temperature=0.5)
    teach(teacher, 0.2, 4)
    assert teacher.table["q"] == pytest.approx([FULL / 2, 0.0], abs=1e-5)
    teacher.observe([make_outcome(make_task(teacher, 0.1), 4), make_outcome(make_task(teacher, 0.3), 0)])
    assert teacher.table["q"] == pytest.approx([FULL / 2, 0.0], abs=1e-5)
    assert teacher.preferences(ALL) == pytest.approx([expit(FULL), expit(-FULL)], abs=1e-5)


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


def test_plr_mixes_ranks_and_ages_once_enough_cells_were_seen():
    teacher = make_teacher("plr", num_bins=4, staleness=0.3, beta=0.5, replay=0.8, fill=0.5)
    teach(teacher, 0.1, 4)
    assert not teacher.preferences(ALL).any()  # one cell of four
    teach(teacher, 0.3, 1)
    teach(teacher, 0.1, 0)
    assert teacher.table["score"][0] == 0.0  # the newest score alone counts
    teach(teacher, 0.1, 4)
    teach(teacher, 0.3, 1)
    # Scores p (1 - p): 0.25 and 7/64; ranks 1 and 2 weigh 1 and 1/4; ages 1 and 0.
    assert teacher.table["score"][:2] == pytest.approx([0.25, 7 / 64])
    assert teacher.preferences(ALL) == pytest.approx([0.7 * 0.8 + 0.3, 0.7 * 0.2, 0.0, 0.0])
    teach(teacher, 0.6, 4)
    # The first and the third share ranks 1 and 2; ages are 2, 1 and 0.
    even, last = 1.5**-2, 3.0**-2
    by_rank = np.array([even, last, even]) / (2 * even + last)
    assert teacher.preferences(ALL)[:3] == pytest.approx(0.7 * by_rank + 0.3 * np.array([2, 1, 0]) / 3)


def test_equal_scores_share_their_ranks_also_where_their_sums_differ_in_the_last_bit():
    for k in range(8):
        teacher = make_teacher("plr", num_bins=2, staleness=0.0, group_size=7)
        teach(teacher, 0.2, k)
        teach(teacher, 0.8, 7 - k)
        assert teacher.preferences(ALL).tolist() == [0.5, 0.5]


def test_robust_plr_marks_random_groups_as_unlearned_and_scores_them():
    teacher = make_teacher("plr", robust=True, num_bins=5)
    issued = practise(teacher, 0.4, num_steps=60)
    assert {task.mode for task in issued[0]} == {Mode.UNLEARNED}
    late = [task.mode for tasks in issued[20:] for task in tasks]
    assert set(late) == {Mode.UNLEARNED, Mode.REPLAY} and late.count(Mode.UNLEARNED) / len(late) == pytest.approx(0.2, abs=0.06)
    before = teacher.table["score"].copy()
    teach(teacher, 0.5, 1, mode=Mode.UNLEARNED)
    assert (teacher.table["score"] != before).any()


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


@pytest.mark.parametrize("successes", [(0, 8), (8, 0)])
def test_progress_is_the_distance_of_a_fast_and_a_slow_average_up_or_down(successes):
    teacher = make_teacher("progress", num_bins=2, rate=0.5, theta=0.5)
    for num_successes in successes:
        teach(teacher, 0.2, num_successes)
    # From 0: fast 0.5, slow 0.25. z = +1 and -1.
    assert teacher.progress(ALL) == pytest.approx([0.25, 0.0])
    teacher.propose(1, policy_version=0)
    assert teacher.shares("one")[0] == pytest.approx([0.125 + 0.75 * expit(1.0), 0.125 + 0.75 * expit(-1.0)])


def test_small_successes_are_resolved_best():
    teacher = make_teacher("progress", num_bins=2, theta=0.1)
    teacher.table["fast"][:], teacher.table["slow"][:] = (0.1, 1.0), (0.0, 0.9)
    # w(0.1) = 0.09 / (0.1 + 0.08) = 0.5, w(0.9) = 0.81 / (0.9 - 0.08).
    assert teacher.progress(ALL) == pytest.approx([0.5, 1.0 - 0.81 / 0.82])
