"""SFL and PLR: buffers, ranks and staleness by hand, and what is marked as not to be learned from."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_student import make_outcome, make_task, make_teacher, mean_distance, practise, teach

from curriculum.bandits import Score, positive_advantage, ranks
from curriculum.task import Mode


def observe_random(teacher, results: dict[float, int]) -> None:
    tasks = [(make_task(teacher, d, mode=Mode.UNIFORM), k) for d, k in results.items()]
    teacher.observe([make_outcome(task, k) for task, k in tasks])


def test_sfl_keeps_the_cells_nearest_to_even_odds_and_draws_half_from_them():
    teacher = make_teacher("sfl", num_bins=4, buffer_size=3, refresh_steps=5)
    assert not teacher.preferences(slice(None)).any()
    observe_random(teacher, {0.1: 8, 0.3: 5, 0.4: 3, 0.6: 1, 0.9: 0})
    assert sorted(teacher.buffer) == [1, 1, 2]
    assert teacher.preferences(slice(None)) == pytest.approx([0.0, 2 / 3, 1 / 3, 0.0]) and teacher.explore_share() == 0.5
    tasks = teacher.propose(4000, policy_version=teacher.policy_version)
    assert np.mean([task.mode is Mode.REPLAY for task in tasks]) == pytest.approx(0.5, abs=0.03)
    (decision,) = teacher.decisions()
    assert decision["decision"] == "refresh" and decision["size"] == 3


def test_sfl_scores_random_groups_only_and_forgets_them_at_a_refresh():
    teacher = make_teacher("sfl", num_bins=4, buffer_size=8, refresh_steps=3)
    observe_random(teacher, {0.1: 4, 0.4: 4, 0.6: 0})
    assert sorted(teacher.buffer) == [0, 1] and teacher.candidates == []
    replayed = [make_outcome(make_task(teacher, 0.9, mode=Mode.REPLAY), 4) for _ in range(3)]
    teacher.observe(replayed)
    assert sorted(teacher.buffer) == [0, 1]  # nothing new was random, so the old buffer stays


def test_sfl_scans_before_a_refresh_when_asked():
    teacher = make_teacher("sfl", refresh_steps=5, scan_steps=2)
    issued = practise(teacher, 0.4, num_steps=15)
    all_random = [all(task.mode is Mode.UNIFORM for task in tasks) for tasks in issued]
    assert all_random == [True] * 5 + [False] * 3 + [True] * 2 + [False] * 3 + [True] * 2


def test_sfl_state_with_a_cell_that_is_not_there_is_refused():
    teacher = make_teacher("sfl", num_bins=10, refresh_steps=1)
    observe_random(teacher, {0.95: 4})
    smaller = make_teacher("sfl", num_bins=5)
    with pytest.raises(ValueError, match=r"settings\.num_bins must be 5, got 10"):
        smaller.load_state_dict(teacher.state_dict())


def test_plr_ranks_ages_and_mixes_by_hand():
    teacher = make_teacher("plr", num_bins=4, staleness=0.3, beta=0.5, replay=0.8, fill=0.5)
    teach(teacher, 0.1, 4)
    assert not teacher.preferences(slice(None)).any()  # one cell of four
    teach(teacher, 0.3, 1)
    # Scores p (1 - p): .25 and 7/64; ranks 1 and 2 weigh 1 and 1/4; ages 1 and 0.
    assert teacher.scores.values_C[:2] == pytest.approx([0.25, 7 / 64])
    assert teacher.preferences(slice(None)) == pytest.approx([0.7 * 0.8 + 0.3, 0.7 * 0.2, 0.0, 0.0])
    teach(teacher, 0.6, 4)
    # The first and the third share ranks 1 and 2; ages are 2, 1 and 0.
    even, last = 1.5**-2, 3.0**-2
    ranks = np.array([even, last, even]) / (2 * even + last)
    assert teacher.preferences(slice(None))[:3] == pytest.approx(0.7 * ranks + 0.3 * np.array([2, 1, 0]) / 3)


def test_equal_scores_share_their_ranks():
    assert ranks(np.array([0.1, 0.5, 0.1, 0.9, 0.1])).tolist() == [4.0, 2.0, 4.0, 1.0, 4.0]


@pytest.mark.parametrize("group_size", range(2, 17))
def test_k_successes_and_k_failures_share_a_rank(group_size):
    # Both score p (1 - p), whichever way round the sums are taken.
    teacher = make_teacher("plr", num_bins=2, group_size=group_size)
    for k in range(group_size + 1):
        task, other = make_task(teacher, 0.1), make_task(teacher, 0.9)
        scores = [positive_advantage(make_outcome(task, k)), positive_advantage(make_outcome(other, group_size - k))]
        assert scores == pytest.approx([k * (group_size - k) / group_size**2] * 2)
        assert ranks(np.array(scores)).tolist() == [1.5, 1.5]


def test_plr_keeps_the_newest_score_unless_told_to_average():
    newest, averaged = make_teacher("plr", num_bins=2), make_teacher("plr", num_bins=2, score_rate=0.25)
    for teacher in (newest, averaged):
        teach(teacher, 0.2, 4)
        teach(teacher, 0.2, 0)
    assert newest.scores.values_C[0] == 0.0 and averaged.scores.values_C[0] == pytest.approx(0.75 * 0.25)


@pytest.mark.parametrize(
    ("score", "value"), [(Score.POSITIVE_ADVANTAGE, 7 / 64), (Score.MAX_MINUS_MEAN, 7 / 8), (Score.LEARNABILITY, 1 / 8)]
)
def test_plr_scores_by_name(score, value):
    teacher = make_teacher("plr", num_bins=2, score=score)
    teach(teacher, 0.2, 1)
    assert teacher.scores.values_C[0] == pytest.approx(value)


def test_robust_plr_marks_what_the_policy_must_not_learn_from_and_scores_it():
    teacher = make_teacher("plr", robust=True, num_bins=5)
    issued = practise(teacher, 0.4, num_steps=60)
    assert {task.mode for task in issued[0]} == {Mode.UNLEARNED}
    late = [task.mode for tasks in issued[20:] for task in tasks]
    assert set(late) == {Mode.UNLEARNED, Mode.REPLAY} and late.count(Mode.UNLEARNED) / len(late) == pytest.approx(0.2, abs=0.06)
    before = teacher.scores.state_dict()
    teach(teacher, 0.5, 1, mode=Mode.UNLEARNED)
    assert teacher.scores.state_dict() != before
    assert Mode.UNLEARNED not in {task.mode for tasks in practise(make_teacher("plr"), 0.4, num_steps=20) for task in tasks}


@pytest.mark.parametrize(("kind", "distance"), [("sfl", 0.2), ("plr", 0.2)])
def test_practice_gathers_where_odds_are_even(kind, distance):
    issued = practise(make_teacher(kind), 0.4, num_steps=100)
    assert mean_distance(issued[50:], 0.4) < distance


@pytest.mark.parametrize("kind", ["sfl", "plr"])
def test_practice_follows_a_student_that_gets_better_and_worse(kind):
    issued = practise(make_teacher(kind), lambda step: 0.3 if step < 80 or step >= 160 else 0.7, num_steps=240)
    means = [np.mean([task.strictness for tasks in issued[i : i + 40] for task in tasks]) for i in (40, 120, 200)]
    assert means[1] > means[0] + 0.1 and means[2] < means[1] - 0.1
