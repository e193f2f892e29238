"""Where rollouts of a group differ, measured: by hand, where scenarios are won or lost whole, and as evidence fades."""

from __future__ import annotations

import numpy as np
import pytest
from test_frontier import make_task, make_teacher
from tiny_student import make_outcome

from curriculum.contrast import ContrastConfig, ContrastCurve
from curriculum.frontier import FrontierTeacher
from curriculum.teacher import GroupOutcome


def group(teacher: FrontierTeacher, strictness: float, num_successes: int) -> GroupOutcome:
    return make_outcome(make_task(teacher, strictness), num_successes)


def curve(**settings: float) -> ContrastCurve:
    return ContrastCurve(ContrastConfig(**settings), values=lambda outcome: [float(outcome.successes[i]) for i in outcome.surviving])


def test_a_bin_has_the_mean_unbiased_variance_of_its_groups_and_a_little_of_all_others():
    teacher, found = make_teacher(), curve(num_bins=10, smoothing=0.001, prior=1.0)
    # Of 8 rollouts 4 and 2 succeed: 8/7 of .25 and of .1875; two groups elsewhere have none.
    groups = [group(teacher, 0.55, 4), group(teacher, 0.55, 2), group(teacher, 0.05, 8), group(teacher, 0.95, 0)]
    found.learn(groups, offsets=[0.0] * 4)
    everywhere = 8 / 7 * (0.25 + 0.1875) / 4
    assert found.contrast()[5] == pytest.approx((8 / 7 * (0.25 + 0.1875) + everywhere) / 3)
    assert found.contrast()[0] == pytest.approx(everywhere / 2) and found.contrast()[3] == pytest.approx(everywhere)


def test_a_group_counts_relative_to_its_familys_offset():
    teacher, found = make_teacher(), curve(num_bins=10, smoothing=0.001)
    found.learn([group(teacher, 0.55, 4), group(teacher, 0.15, 0)], offsets=[0.3, 0.3])
    assert int(np.argmax(found.contrast())) == 2 and int(np.argmin(found.contrast())) == 0


def test_scenarios_that_are_won_or_lost_whole_are_no_place_to_learn_although_half_of_all_rollouts_succeed():
    teacher, found, rng = make_teacher(), curve(), np.random.default_rng(0)
    halves = [group(teacher, 0.3, successes) for successes in (8, 0, 8, 0, 8, 0)]
    mixed = [group(teacher, 0.7, successes) for successes in (2, 1, 3, 2, 1, 2)]
    elsewhere = [group(teacher, at, 0) for at in (0.05, 0.5, 0.9)]
    groups = halves + mixed + elsewhere
    found.learn(groups, offsets=[0.0] * len(groups))
    drawn = np.array([found.draw(rng) for _ in range(2000)])
    near = [float(np.mean(np.abs(drawn - at) < 0.1)) for at in (0.3, 0.7)]
    assert near[1] > 0.5 and near[0] < 0.05


def test_before_anything_differed_and_with_no_sharpness_draws_are_even():
    rng, teacher = np.random.default_rng(0), make_teacher()
    same, blunt = curve(), curve(sharpness=0.0)
    same.learn([group(teacher, 0.5, 8)], offsets=[0.0])
    blunt.learn([group(teacher, 0.5, 4)], offsets=[0.0])
    for found in (curve(), same, blunt):
        drawn = np.array([found.draw(rng) for _ in range(4000)])
        assert np.histogram(drawn, bins=4, range=(0.0, 1.0))[0] / 4000 == pytest.approx([0.25] * 4, abs=0.03)


def test_what_nobody_visits_fades_to_what_is_true_everywhere():
    teacher, found = make_teacher(), curve(num_bins=10, smoothing=0.001, discount=0.5)
    found.learn([group(teacher, 0.15, 0), group(teacher, 0.75, 4)], offsets=[0.0, 0.0])
    lost = found.contrast()[1]
    for version in range(1, 12):
        teacher.propose(1, policy_version=version)
        task = teacher._outstanding[max(teacher._outstanding)]
        found.learn([make_outcome(type(task)(**{**vars(task), "strictness": 0.75}), 4)], offsets=[0.0])
    assert lost < 0.5 * found.contrast()[7] and found.contrast()[1] > 0.95 * found.contrast()[7]


def test_a_state_of_another_grid_is_refused():
    with pytest.raises(ValueError, match=r"contrast.num must have shape \(10,\), got \(20,\); resume with the same settings"):
        curve(num_bins=10).load_state_dict(curve().state_dict())
