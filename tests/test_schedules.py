"""Teachers that follow a plan: fixed, uniform, linear and staged strictness."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_student import make_outcome, make_teacher

from simulator.scenario import Difficulty


def observe_all(teacher, num_groups: int, num_successes: int):
    """One step in which every group has so many successes."""
    tasks = teacher.propose(num_groups, policy_version=0)
    teacher.observe([make_outcome(task, num_successes) for task in tasks])
    return tasks


def issued(teacher, num_steps: int) -> list[float]:
    return [teacher.propose(1, policy_version=0)[0].strictness for _ in range(num_steps)]


def test_fixed_is_one_point_on_the_line_or_off_it():
    assert issued(make_teacher("fixed", strictness=0.3), 3) == [0.3, 0.3, 0.3]
    task = make_teacher("fixed", strictness=0.35, reserve=0.9).propose(1, policy_version=0)[0]
    assert task.difficulty == Difficulty(strictness=0.35, reserve=0.9, impatience=0.3)  # impatience as at 0.35 on the line
    assert task.strictness == pytest.approx((0.35 + 0.9 + 0.3) / 3) and task.propensity == 1.0


def test_uniform_covers_its_range_and_draws_three_axes_independently():
    tasks = make_teacher("uniform", low=0.2, high=0.6).propose(800, policy_version=0)
    counts, _ = np.histogram([task.strictness for task in tasks], bins=4, range=(0.2, 0.6))
    assert counts.sum() == 800 and counts.min() > 160
    tasks = make_teacher("uniform", low=0.2, axes=3).propose(600, policy_version=0)
    points = np.array([list(task.difficulty.to_dict().values()) for task in tasks])
    assert points.min() >= 0.2 and points.mean(axis=0) == pytest.approx([0.6, 0.6, 0.6], abs=0.03)
    assert np.abs(np.corrcoef(points.T) - np.eye(3)).max() < 0.12


def test_linear_moves_with_proposals_from_start_to_end_and_stays():
    assert issued(make_teacher("linear", start=0.2, end=0.8, num_steps=3), 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert issued(make_teacher("linear", start=1.0, end=0.0, num_steps=2), 3) == [1.0, 0.5, 0.0]


def stages(num_successes: int, length: int, **settings) -> list[float]:
    teacher = make_teacher("staged", **settings)
    return [observe_all(teacher, 4, num_successes)[0].strictness for _ in range(length)]


def test_a_stage_is_left_by_time_by_success_by_either_or_by_both():
    two = {"strictness": [0.1, 0.9], "window": 4, "num_steps": 3}
    assert stages(0, 8, strictness=[0.1, 0.5, 0.3], gate="steps", num_steps=2) == [0.1, 0.1, 0.5, 0.5, 0.3, 0.3, 0.3, 0.3]
    assert stages(8, 3, gate="success", **two) == [0.1, 0.9, 0.9] and stages(2, 20, gate="success", **two)[-1] == 0.1
    assert stages(2, 4, gate="either", **two) == [0.1, 0.1, 0.1, 0.9] and stages(8, 2, gate="either", **two) == [0.1, 0.9]
    assert stages(8, 4, gate="both", **two) == [0.1, 0.1, 0.1, 0.9] and stages(2, 8, gate="both", **two)[-1] == 0.1


def test_a_stage_is_mastered_when_a_full_window_succeeds_and_the_decision_is_recorded():
    teacher = make_teacher("staged", strictness=[0.1, 0.9], gate="success", window=8, threshold=0.75)
    assert [task.strictness for _ in range(2) for task in observe_all(teacher, 4, 6)] == [0.1] * 8
    assert teacher.success == 0.75 and issued(teacher, 1) == [0.9]
    assert teacher.decisions() == [{"decision": "next_stage", "teacher_step": 3, "left": 0, "lasted": 2, "success": 0.75}]


def test_late_groups_of_the_stage_before_open_nothing():
    teacher = make_teacher("staged", strictness=[0.1, 0.5, 0.9], gate="success", window=4)
    late = teacher.propose(4, policy_version=0)
    observe_all(teacher, 4, 8)
    assert issued(teacher, 1) == [0.5]
    teacher.observe([make_outcome(task, 8) for task in late])
    assert teacher.success_rates == [] and issued(teacher, 1) == [0.5]
