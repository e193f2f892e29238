"""Teachers that follow a plan or a simple rule: fixed, uniform, linear, staged, domain randomisation that adapts, AdaRFT and RLVE."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from tiny_student import make_outcome, make_teacher
from toy_student import mean_strictness, practise

from curriculum.task import Mode
from simulator.scenario import Difficulty


def observe_all(teacher, num_groups: int, num_successes: int):
    """One step in which every group has so many successes."""
    tasks = teacher.propose(num_groups, policy_version=0)
    teacher.observe([make_outcome(task, num_successes) for task in tasks])
    return tasks


# fixed and uniform


def test_fixed_may_set_reserve_apart_from_the_line():
    task = make_teacher("fixed", strictness=0.35, reserve=0.9).propose(1, policy_version=0)[0]
    assert task.difficulty == Difficulty(strictness=0.35, reserve=0.9, impatience=0.3)  # impatience as at .35 on the line
    assert task.strictness == pytest.approx((0.35 + 0.9 + 0.3) / 3)


def test_fixed_with_all_axes_set_is_that_point():
    task = make_teacher("fixed", strictness=0.0, reserve=1.0, impatience=0.5).propose(1, policy_version=0)[0]
    assert task.difficulty == Difficulty(strictness=0.0, reserve=1.0, impatience=0.5) and task.strictness == 0.5


@pytest.mark.parametrize("name", ["reserve", "impatience"])
def test_fixed_refuses_an_axis_out_of_range(name):
    with pytest.raises(ValueError, match=rf"teacher.{name} must be in \[0, 1\], got 1.5"):
        make_teacher("fixed", **{name: 1.5})


def test_uniform_with_three_axes_draws_each_on_its_own():
    tasks = make_teacher("uniform", low=0.2, axes=3).propose(600, policy_version=0)
    points = np.array([list(task.difficulty.to_dict().values()) for task in tasks])
    assert points.min() >= 0.2 and points.max() <= 1.0
    assert points.mean(axis=0) == pytest.approx([0.6, 0.6, 0.6], abs=0.03)
    assert np.abs(np.corrcoef(points.T) - np.eye(3)).max() < 0.12
    assert [task.strictness for task in tasks] == pytest.approx(points.mean(axis=1).tolist())


@pytest.mark.parametrize("kind", ["uniform", "adr"])
def test_axes_are_one_or_three(kind):
    with pytest.raises(ValueError, match=r"teacher.axes must be in \{1, 3\}, got 2"):
        make_teacher(kind, axes=2)


# linear


def test_linear_goes_from_start_to_end_in_num_steps_and_stays():
    teacher = make_teacher("linear", start=0.2, end=0.8, num_steps=3)
    steps = [teacher.propose(2, policy_version=0) for _ in range(6)]
    assert mean_strictness(steps) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_linear_moves_with_proposals_even_when_no_update_comes():
    teacher = make_teacher("linear", num_steps=10)
    assert [teacher.propose(1, policy_version=0)[0].strictness for _ in range(4)] == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_linear_may_run_backwards():
    teacher = make_teacher("linear", start=1.0, end=0.0, num_steps=2)
    assert [teacher.propose(1, policy_version=0)[0].strictness for _ in range(3)] == [1.0, 0.5, 0.0]


# staged


def stages(teacher, num_steps: int, num_successes: int, *, num_groups: int = 4) -> list[float]:
    return [observe_all(teacher, num_groups, num_successes)[0].strictness for _ in range(num_steps)]


def test_stages_are_left_when_their_time_is_up_and_the_last_one_never():
    teacher = make_teacher("staged", strictness=[0.1, 0.5, 0.3], gate="steps", num_steps=2)
    assert stages(teacher, 8, 0) == [0.1, 0.1, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3]


def test_a_stage_is_mastered_when_a_full_window_succeeds():
    teacher = make_teacher("staged", strictness=[0.1, 0.9], gate="success", window=8, threshold=0.75)
    assert stages(teacher, 1, 6) == [0.1]  # four groups of eight needed
    assert not teacher.is_open()
    assert stages(teacher, 1, 6) == [0.1]
    assert teacher.is_open() and teacher.success == 0.75
    assert stages(teacher, 1, 6) == [0.9]
    assert teacher.decisions() == [{"decision": "next_stage", "teacher_step": 3, "left": 0, "lasted": 2, "success": 0.75}]


def test_a_stage_that_is_never_mastered_waits_for_ever_unless_its_time_may_end_it():
    waits = make_teacher("staged", strictness=[0.1, 0.9], gate="success", window=4, num_steps=3)
    moves = make_teacher("staged", strictness=[0.1, 0.9], gate="either", window=4, num_steps=3)
    assert stages(waits, 20, 2)[-1] == 0.1 and stages(moves, 4, 2) == [0.1, 0.1, 0.1, 0.9]


def test_both_gates_keep_a_least_time_on_a_mastered_stage():
    teacher = make_teacher("staged", strictness=[0.1, 0.9], gate="both", window=4, num_steps=3)
    assert stages(teacher, 4, 8) == [0.1, 0.1, 0.1, 0.9]


def test_late_groups_of_the_stage_before_open_nothing():
    teacher = make_teacher("staged", strictness=[0.1, 0.5, 0.9], gate="success", window=4)
    late = teacher.propose(4, policy_version=0)
    observe_all(teacher, 4, 8)
    assert teacher.propose(1, policy_version=0)[0].strictness == 0.5
    teacher.observe([make_outcome(task, 8) for task in late])
    assert teacher.shares == [] and teacher.propose(1, policy_version=0)[0].strictness == 0.5


def test_staged_refuses_no_stages_and_a_stage_out_of_range():
    with pytest.raises(ValueError, match=r"teacher.strictness must hold at least one stage, got \[\]"):
        make_teacher("staged", strictness=[])
    with pytest.raises(ValueError, match=r"teacher.strictness must be in \[0, 1\], got 1.2"):
        make_teacher("staged", strictness=[0.1, 1.2])


def test_staged_refuses_a_gate_that_there_is_not():
    with pytest.raises(ValueError, match=r"teacher.gate must be in \{steps, success, either, both\}, got 'mood'"):
        make_teacher("staged", gate="mood")


def test_staged_student_walks_through_stages_as_it_learns():
    teacher = make_teacher("staged", gate="success", threshold=0.7, window=16)
    issued = practise(teacher, lambda task: 0.3 + 0.01 * task.teacher_step, num_steps=80)
    # Success .7 lies at d = ability - .106: .9 is reached when ability is about .8, at step 50, and the window's noise is a few steps.
    reached = next(step for step, d in enumerate(mean_strictness(issued)) if d == 0.9)
    assert 40 <= reached <= 55


# adr


def test_the_wall_of_the_box_moves_out_on_success_in_on_failure_and_stays_between():
    teacher = make_teacher("adr", start=0.5, step=0.1, queue=4, boundary_share=1.0, lower_at=0.25, raise_at=0.5)
    observe_all(teacher, 8, 4)  # at first both walls are one point, so each queue gets all eight: mean .5
    assert teacher.boxes == {"all": [[0.4, 0.6]]}
    observe_all(teacher, 40, 3)  # .375 is neither
    assert teacher.boxes == {"all": [[0.4, 0.6]]}
    observe_all(teacher, 40, 2)
    assert teacher.boxes == {"all": [[0.5, 0.5]]}
    observe_all(teacher, 40, 0)  # never inside the start
    assert teacher.boxes == {"all": [[0.5, 0.5]]}
    assert [decision["after"] for decision in teacher.decisions()] == [0.4, 0.6, 0.5, 0.5]


def test_a_wall_waits_for_its_queue_and_groups_within_the_box_do_not_count():
    teacher = make_teacher("adr", start=0.5, queue=6, boundary_share=1.0, step=0.1)
    observe_all(teacher, 5, 8)
    assert teacher.boxes == {"all": [[0.5, 0.5]]} and teacher.queues == {"all": [[[1.0] * 5, [1.0] * 5]]}
    within = make_teacher("adr", start=0.5, queue=6, boundary_share=0.0, step=0.1)
    observe_all(within, 50, 8)
    assert within.boxes == {"all": [[0.5, 0.5]]} and within.queues == {"all": [[[], []]]}


def test_groups_at_a_wall_that_has_moved_since_fall_away():
    teacher = make_teacher("adr", start=0.0, queue=4, boundary_share=1.0, step=0.1)
    late = teacher.propose(4, policy_version=0)
    observe_all(teacher, 4, 8)
    assert teacher.boxes == {"all": [[0.0, 0.1]]}
    teacher.observe([make_outcome(task, 0) for task in late])
    assert teacher.boxes == {"all": [[0.0, 0.1]]} and teacher.queues == {"all": [[[], []]]}


def test_a_wall_that_can_never_move_is_not_tested():
    for start, wall in ((0.0, 0.6), (1.0, 0.4)):
        teacher = make_teacher("adr", start=start)
        teacher.boxes = {"all": [[0.4, 0.6]]}
        at_wall = [task for task in teacher.propose(100, policy_version=0) if task.mode is Mode.FRONTIER]
        assert {(task.strictness, task.propensity) for task in at_wall} == {(wall, 0.5)}


def test_half_the_groups_are_at_a_wall_and_the_others_even_between():
    teacher = make_teacher("adr", start=0.5)
    teacher.boxes = {"all": [[0.2, 0.8]]}
    tasks = teacher.propose(2000, policy_version=0)
    at_wall = [task for task in tasks if task.mode is Mode.FRONTIER]
    within = [task.strictness for task in tasks if task.mode is Mode.UNIFORM]
    assert {task.strictness for task in at_wall} == {0.2, 0.8} and {task.propensity for task in at_wall} == {0.25}
    assert len(at_wall) == pytest.approx(1000, abs=70) and np.mean(within) == pytest.approx(0.5, abs=0.03)


def test_three_axes_test_one_wall_at_a_time_and_move_on_their_own():
    teacher = make_teacher("adr", axes=3, start=0.5, queue=4, step=0.1, boundary_share=1.0)
    teacher.boxes = {"all": [[0.4, 0.6], [0.4, 0.6], [0.4, 0.6]]}
    tasks = teacher.propose(200, policy_version=0)
    on_walls = [sum(value in (0.4, 0.6) for value in task.difficulty.to_dict().values()) for task in tasks]
    assert set(on_walls) == {1} and {task.propensity for task in tasks} == {1 / 6}
    # The learner copes with anything but reserve.
    teacher.observe([make_outcome(task, 0 if task.difficulty.reserve == 0.6 else 8) for task in tasks])
    for axis, expected in enumerate(([0.3, 0.7], [0.3, 0.5], [0.3, 0.7])):
        assert teacher.boxes["all"][axis] == pytest.approx(expected)


def test_adr_entropy_is_the_mean_log_width():
    teacher = make_teacher("adr", axes=3)
    teacher.boxes = {"all": [[0.0, 1.0], [0.25, 0.75], [0.5, 0.5]]}
    teacher.propose(1, policy_version=0)
    metrics = teacher.metrics()
    assert metrics["curriculum/adr/entropy"] == pytest.approx((0.0 + math.log(0.5) + math.log(1e-3)) / 3)
    assert metrics["curriculum/adr/low"] == 0.25 and metrics["curriculum/adr/high"] == 0.75


def test_each_family_may_have_its_own_box():
    teacher = make_teacher("adr", families=("able", "weak"), per_family=True, queue=2)
    practise(teacher, lambda task: 0.9 if task.family == "able" else 0.2, num_steps=60)
    assert teacher.boxes["able"][0][1] > 0.6 > 0.4 > teacher.boxes["weak"][0][1]


def test_the_box_ends_where_the_learner_fails_and_follows_it_back():
    teacher = make_teacher("adr", queue=4)
    practise(teacher, lambda task: 0.5, num_steps=150)
    # Success .7 lies at .39, .3 at .61; then at .09 and .31.
    assert 0.39 <= teacher.boxes["all"][0][1] <= 0.61
    practise(teacher, lambda task: 0.2, num_steps=150, seed=1)
    assert 0.09 <= teacher.boxes["all"][0][1] <= 0.31


def test_adr_refuses_thresholds_that_cross():
    with pytest.raises(ValueError, match=r"teacher.lower_at must be below teacher.raise_at=0.2, got 0.3"):
        make_teacher("adr", lower_at=0.3, raise_at=0.2)


# adarft


def test_adarft_moves_its_target_by_the_published_rule():
    teacher = make_teacher("adarft", start=0.2, eta=0.1)
    observe_all(teacher, 4, 6)
    assert teacher.targets == {"all": pytest.approx(0.2 + 0.1 * math.tanh(2.0 * 0.25))}


def test_adarft_reads_rewards_and_not_successes():
    teacher = make_teacher("adarft", start=0.2, eta=0.1, group_size=2)
    task = teacher.propose(1, policy_version=0)[0]
    teacher.observe([make_outcome(task, 0, rewards=(0.7, 0.5))])
    assert teacher.targets["all"] == pytest.approx(0.2 + 0.1 * math.tanh(0.2))


def test_adarft_stays_within_bounds():
    teacher = make_teacher("adarft", eta=1.0)
    for num_successes, expected in ((0, 0.0), (8, math.tanh(1.0)), (8, 1.0), (8, 1.0), (0, 1.0 - math.tanh(1.0))):
        observe_all(teacher, 2, num_successes)
        assert teacher.targets["all"] == pytest.approx(expected)


def test_a_late_batch_moves_the_present_target_as_published_and_the_issued_one_when_tagged():
    for tagged, expected in ((False, 0.5 + 0.1 * math.tanh(1.0)), (True, 0.2 + 0.1 * math.tanh(1.0))):
        teacher = make_teacher("adarft", start=0.2, eta=0.1, tagged=tagged)
        late = teacher.propose(4, policy_version=0)
        teacher.targets["all"] = 0.5
        teacher.observe([make_outcome(task, 8) for task in late])
        assert teacher.targets["all"] == pytest.approx(expected)


def test_without_delay_tagged_is_the_published_rule():
    traces = [mean_strictness(practise(make_teacher("adarft", tagged=tagged), lambda task: 0.5, num_steps=40)) for tagged in (False, True)]
    assert traces[0] == pytest.approx(traces[1])


def test_each_family_may_have_its_own_target():
    teacher = make_teacher("adarft", families=("able", "weak"), per_family=True, eta=0.1)
    practise(teacher, lambda task: 0.8 if task.family == "able" else 0.3, num_steps=60)
    assert teacher.targets == {"able": pytest.approx(0.8, abs=0.06), "weak": pytest.approx(0.3, abs=0.06)}


def test_published_gain_swings_from_bound_to_bound_at_a_delay_of_sixteen_and_tagged_does_not():
    published, tagged = (
        mean_strictness(practise(make_teacher("adarft", tagged=tagged), lambda task: 0.5, num_steps=200, num_groups=8, delay=16))[70:]
        for tagged in (False, True)
    )
    assert published.min() == 0.0 and published.max() == 1.0
    assert np.sqrt(np.mean((published - 0.5) ** 2)) > 0.4 and np.sqrt(np.mean((tagged - 0.5) ** 2)) < 0.15


def test_adarft_goes_on_from_its_target_after_a_resume():
    teacher = make_teacher("adarft")
    practise(teacher, lambda task: 0.5, num_steps=20)
    resumed = make_teacher("adarft")
    resumed.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    assert resumed.targets == teacher.targets and resumed.targets["all"] > 0.3


# rlve


def test_a_level_opens_when_nine_in_ten_succeed_at_the_highest():
    teacher = make_teacher("rlve", group_size=10)
    observe_all(teacher, 8, 8)
    assert teacher.highest == {"one": 0} and teacher.shares == {"one": []}  # looked at, not raised, counted anew
    observe_all(teacher, 7, 9)
    assert teacher.highest == {"one": 0} and len(teacher.shares["one"]) == 7
    observe_all(teacher, 1, 9)
    assert teacher.highest == {"one": 1}
    decision = teacher.decisions()[0]
    assert (decision["before"], decision["after"], decision["num_groups"]) == (0, 1, 8) and decision["success"] == pytest.approx(0.9)


def test_levels_are_drawn_evenly_from_the_four_highest():
    teacher = make_teacher("rlve")
    teacher.highest["one"] = 7
    tasks = teacher.propose(800, policy_version=0)
    levels, counts = np.unique([task.strictness for task in tasks], return_counts=True)
    assert levels == pytest.approx([0.2, 0.25, 0.3, 0.35]) and counts.min() > 150
    assert {task.propensity for task in tasks} == {0.25}
    assert all((task.mode is Mode.FRONTIER) == (task.strictness == 0.35) for task in tasks)
    teacher.highest["one"] = 1
    assert {task.strictness for task in teacher.propose(50, policy_version=0)} == {0.0, 0.05}


def test_groups_below_the_highest_level_do_not_count_nor_do_late_ones():
    teacher = make_teacher("rlve", prompts=4)
    late = teacher.propose(4, policy_version=0)
    observe_all(teacher, 4, 8)
    teacher.observe([make_outcome(task, 8) for task in late])
    assert teacher.highest == {"one": 1} and teacher.shares == {"one": []}


def test_a_level_is_not_taken_back_unless_that_is_allowed():
    published, reversible = make_teacher("rlve"), make_teacher("rlve", reversible=True)
    for teacher in (published, reversible):
        teacher.highest["one"] = 5
        for _ in range(40):
            observe_all(teacher, 8, 0)
    assert published.highest == {"one": 5} and reversible.highest == {"one": 0}


def test_the_highest_level_is_strictness_one():
    teacher = make_teacher("rlve", num_levels=2, window=1)
    for expected in (0.0, 0.5, 1.0, 1.0):
        assert {task.strictness for task in observe_all(teacher, 8, 8)} == {expected}


def test_each_family_climbs_its_own_ladder():
    teacher = make_teacher("rlve", families=("able", "weak"), threshold=0.6, num_levels=10)
    practise(teacher, lambda task: 0.8 if task.family == "able" else 0.3, num_steps=150)
    # Success .6 lies .05 below ability: .7 and .2 are the last levels that lie below it, and noise may win one more.
    assert teacher.highest["able"] in (8, 9) and teacher.highest["weak"] in (3, 4)


def test_a_ceiling_below_the_threshold_stops_the_ladder():
    teacher = make_teacher("rlve")
    rng = np.random.default_rng(0)
    for _ in range(100):
        tasks = teacher.propose(8, policy_version=0)
        teacher.observe([make_outcome(task, rng.binomial(8, 0.7)) for task in tasks])
    assert teacher.highest == {"one": 0}


def test_rlve_refuses_thresholds_that_cross():
    with pytest.raises(ValueError, match=r"teacher.lower_threshold must be below teacher.threshold=0.2, got 0.3"):
        make_teacher("rlve", reversible=True, threshold=0.2)
