"""AdaRFT's target, RLVE's ladder and ADR's box, by hand and with a student."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_schedules import observe_all
from tiny_student import make_outcome, make_teacher, practise

from curriculum.task import Mode


def adarft_step(reward: float, *, eta: float = 0.1) -> float:
    return eta * math.tanh(2.0 * (reward - 0.5))


def test_adarft_moves_its_target_by_the_published_rule_within_bounds_and_by_reward():
    teacher = make_teacher("adarft", start=0.2, eta=0.1)
    observe_all(teacher, 4, 6)
    assert teacher.targets == {"all": pytest.approx(0.2 + adarft_step(0.75))}
    graded = make_teacher("adarft", start=0.2, eta=0.1, group_size=2)
    graded.observe([make_outcome(graded.propose(1, policy_version=0)[0], 0, rewards=(0.7, 0.5))])
    assert graded.targets["all"] == pytest.approx(0.2 + adarft_step(0.6))
    bounded = make_teacher("adarft", eta=1.0)
    for num_successes, expected in ((0, 0.0), (8, math.tanh(1.0)), (8, 1.0), (0, 1.0 - math.tanh(1.0))):
        observe_all(bounded, 2, num_successes)
        assert bounded.targets["all"] == pytest.approx(expected)


@pytest.mark.parametrize(("tagged", "base"), [(False, 0.5), (True, 0.2)])
def test_a_late_batch_moves_the_present_target_as_published_and_the_issued_one_when_tagged(tagged, base):
    teacher = make_teacher("adarft", start=0.2, eta=0.1, tagged=tagged)
    late = teacher.propose(4, policy_version=0)
    teacher.targets["all"] = 0.5
    teacher.observe([make_outcome(task, 8) for task in late])
    assert teacher.targets["all"] == pytest.approx(base + adarft_step(1.0))


def test_each_family_can_have_its_own_target():
    teacher = make_teacher("adarft", families=("able", "weak"), per_family=True, eta=0.1)
    practise(teacher, lambda task: 0.8 if task.family == "able" else 0.3, num_steps=60)
    assert teacher.targets == {"able": pytest.approx(0.8, abs=0.08), "weak": pytest.approx(0.3, abs=0.08)}


def test_a_level_opens_when_nine_in_ten_succeed_at_the_highest():
    teacher = make_teacher("rlve", group_size=10)
    observe_all(teacher, 8, 8)
    assert teacher.highest == {"one": 0} and teacher.success_rates == {"one": []}  # evaluated, not raised, and restarted
    observe_all(teacher, 7, 9)
    assert teacher.highest == {"one": 0} and len(teacher.success_rates["one"]) == 7
    observe_all(teacher, 1, 9)
    assert teacher.highest == {"one": 1}
    decision = teacher.decisions()[0]
    assert (decision["before"], decision["after"], decision["num_groups"]) == (0, 1, 8) and decision["success"] == pytest.approx(0.9)


def test_levels_are_drawn_evenly_from_the_four_highest_up_to_strictness_one():
    teacher = make_teacher("rlve")
    teacher.highest["one"] = 7
    tasks = teacher.propose(800, policy_version=0)
    levels, counts = np.unique([task.strictness for task in tasks], return_counts=True)
    assert levels == pytest.approx([0.2, 0.25, 0.3, 0.35]) and counts.min() > 150 and {task.propensity for task in tasks} == {0.25}
    assert all((task.mode is Mode.FRONTIER) == (task.strictness == 0.35) for task in tasks)
    short = make_teacher("rlve", num_levels=2, window=1)
    assert [{task.strictness for task in observe_all(short, 8, 8)} for _ in range(4)] == [{0.0}, {0.5}, {1.0}, {1.0}]


def test_late_groups_of_a_lower_level_do_not_count_and_levels_are_taken_back_only_where_allowed():
    teacher = make_teacher("rlve", prompts=4)
    late = teacher.propose(4, policy_version=0)
    observe_all(teacher, 4, 8)
    teacher.observe([make_outcome(task, 8) for task in late])
    assert teacher.highest == {"one": 1} and teacher.success_rates == {"one": []}
    for reversible, reached in ((False, 5), (True, 0)):
        teacher = make_teacher("rlve", reversible=reversible)
        teacher.highest["one"] = 5
        for _ in range(40):
            observe_all(teacher, 8, 0)
        assert teacher.highest == {"one": reached}


def test_a_wall_moves_out_on_success_in_on_failure_and_never_inside_the_start():
    teacher = make_teacher("adr", start=0.5, step=0.1, queue=4, boundary_share=1.0, lower_at=0.25, raise_at=0.5)
    boxes = []
    # At first both walls are one point, so each queue gets all eight; 0.375 is neither.
    for num_groups, num_successes in ((8, 4), (40, 3), (40, 2), (40, 0)):
        observe_all(teacher, num_groups, num_successes)
        boxes.append(list(teacher.box[0]))
    assert boxes == [[0.4, 0.6], [0.4, 0.6], [0.5, 0.5], [0.5, 0.5]]
    assert [decision["after"] for decision in teacher.decisions()] == [0.4, 0.6, 0.5, 0.5]


def test_a_wall_waits_for_its_queue_and_counts_neither_groups_within_the_box_nor_late_ones():
    teacher = make_teacher("adr", start=0.5, queue=6, boundary_share=1.0, step=0.1)
    observe_all(teacher, 5, 8)
    assert teacher.box == [[0.5, 0.5]] and teacher.queues == [[[1.0] * 5, [1.0] * 5]]
    within = make_teacher("adr", start=0.5, queue=6, boundary_share=0.0)
    observe_all(within, 50, 8)
    assert within.queues == [[[], []]]
    moved = make_teacher("adr", queue=4, boundary_share=1.0, step=0.1)
    late = moved.propose(4, policy_version=0)
    observe_all(moved, 4, 8)
    moved.observe([make_outcome(task, 0) for task in late])
    assert moved.box == [[0.0, 0.1]] and moved.queues == [[[], []]]


def test_half_the_groups_test_walls_that_can_move_and_the_others_lie_evenly_between():
    teacher = make_teacher("adr", start=0.5)
    teacher.box = [[0.2, 0.8]]
    tasks = teacher.propose(2000, policy_version=0)
    at_wall = [task for task in tasks if task.mode is Mode.FRONTIER]
    assert {(task.strictness, task.propensity) for task in at_wall} == {(0.2, 0.25), (0.8, 0.25)}
    assert len(at_wall) == pytest.approx(1000, abs=70)
    assert np.mean([task.strictness for task in tasks if task.mode is Mode.UNIFORM]) == pytest.approx(0.5, abs=0.03)
    low = make_teacher("adr")
    low.box = [[0.0, 0.6]]
    assert {task.strictness for task in low.propose(100, policy_version=0) if task.mode is Mode.FRONTIER} == {0.6}


def test_three_axes_test_one_wall_at_a_time_and_entropy_is_the_mean_log_width():
    teacher = make_teacher("adr", axes=3, start=0.5, queue=4, step=0.1, boundary_share=1.0)
    teacher.box = [[0.4, 0.6], [0.4, 0.6], [0.4, 0.6]]
    tasks = teacher.propose(200, policy_version=0)
    on_walls = [sum(value in (0.4, 0.6) for value in task.difficulty.to_dict().values()) for task in tasks]
    assert set(on_walls) == {1} and {task.propensity for task in tasks} == {1 / 6}
    # The learner copes with anything but reserve.
    teacher.observe([make_outcome(task, 0 if task.difficulty.reserve == 0.6 else 8) for task in tasks])
    assert np.array(teacher.box) == pytest.approx(np.array([[0.3, 0.7], [0.3, 0.5], [0.3, 0.7]]))
    teacher.box = [[0.0, 1.0], [0.25, 0.75], [0.5, 0.5]]
    metrics = teacher.metrics()
    assert metrics["curriculum/adr/entropy"] == pytest.approx((0.0 + math.log(0.5) + math.log(1e-3)) / 3)
    assert (metrics["curriculum/adr/low"], metrics["curriculum/adr/high"]) == (0.25, 0.75)
