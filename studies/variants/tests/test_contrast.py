"""Where rollouts of a group differ, measured: by hand, where scenarios are won or lost whole, and as evidence fades."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_target import PLAIN, make_teacher
from tiny_student import make_outcome, make_task, sigmoid

from curriculum.target import TargetTeacher
from curriculum.task import GroupOutcome, Mode
from simulator.scenario import FAMILIES
from studies.variants.contrast import ContrastConfig, ContrastCurve, FrontierByContrastConfig, FrontierByContrastTeacher


def group(teacher: TargetTeacher, strictness: float, num_successes: int) -> GroupOutcome:
    return make_outcome(make_task(teacher, strictness), num_successes)


def curve(**settings: float) -> ContrastCurve:
    return ContrastCurve(ContrastConfig(**settings))


def learn(found: ContrastCurve, groups: list[GroupOutcome], offset: float = 0.0) -> None:
    found.learn(groups, [[float(success) for success in outcome.successes] for outcome in groups], offsets=[offset] * len(groups))


def test_a_bin_has_the_mean_unbiased_variance_of_its_groups_and_a_little_of_all_others():
    teacher, found = make_teacher(), curve(num_bins=10, smoothing=0.001, prior=1.0)
    # Of 8 rollouts 4 and 2 succeed: 8/7 of .25 and of .1875; two groups elsewhere have none.
    groups = [group(teacher, 0.55, 4), group(teacher, 0.55, 2), group(teacher, 0.05, 8), group(teacher, 0.95, 0)]
    learn(found, groups)
    everywhere = 8 / 7 * (0.25 + 0.1875) / 4
    assert found.contrast()[5] == pytest.approx((8 / 7 * (0.25 + 0.1875) + everywhere) / 3)
    assert found.contrast()[0] == pytest.approx(everywhere / 2) and found.contrast()[3] == pytest.approx(everywhere)


def test_a_group_counts_relative_to_its_familys_offset():
    teacher, found = make_teacher(), curve(num_bins=10, smoothing=0.001)
    learn(found, [group(teacher, 0.55, 4), group(teacher, 0.15, 0)], 0.3)
    assert int(np.argmax(found.contrast())) == 2 and int(np.argmin(found.contrast())) == 0


def test_scenarios_that_are_won_or_lost_whole_are_no_place_to_learn_although_half_of_all_rollouts_succeed():
    teacher, found, rng = make_teacher(), curve(), np.random.default_rng(0)
    halves = [group(teacher, 0.3, successes) for successes in (8, 0, 8, 0, 8, 0)]
    mixed = [group(teacher, 0.7, successes) for successes in (2, 1, 3, 2, 1, 2)]
    elsewhere = [group(teacher, at, 0) for at in (0.05, 0.5, 0.9)]
    groups = halves + mixed + elsewhere
    learn(found, groups)
    drawn = np.array([found.draw(rng) for _ in range(2000)])
    near = [float(np.mean(np.abs(drawn - at) < 0.1)) for at in (0.3, 0.7)]
    assert near[1] > 0.5 and near[0] < 0.05


def test_before_anything_differed_and_with_no_sharpness_draws_are_even():
    rng, teacher = np.random.default_rng(0), make_teacher()
    same, blunt = curve(), curve(sharpness=0.0)
    learn(same, [group(teacher, 0.5, 8)])
    learn(blunt, [group(teacher, 0.5, 4)])
    for found in (curve(), same, blunt):
        drawn = np.array([found.draw(rng) for _ in range(4000)])
        assert np.histogram(drawn, bins=4, range=(0.0, 1.0))[0] / 4000 == pytest.approx([0.25] * 4, abs=0.03)


def test_what_nobody_visits_fades_to_what_is_true_everywhere():
    teacher, found = make_teacher(), curve(num_bins=10, smoothing=0.001, discount=0.5)
    learn(found, [group(teacher, 0.15, 0), group(teacher, 0.75, 4)])
    lost = found.contrast()[1]
    for version in range(1, 12):
        learn(found, [replace(group(teacher, 0.75, 4), task=replace(group(teacher, 0.75, 4).task, policy_version=version))])
    assert lost < 0.5 * found.contrast()[7] and found.contrast()[1] > 0.95 * found.contrast()[7]


def test_exploring_by_contrast_goes_where_rollouts_differ_and_follows_the_learner():
    rng = np.random.default_rng(0)
    scenarios = {family: [f"{family}-{i}" for i in range(20)] for family in FAMILIES}
    config = FrontierByContrastConfig(**PLAIN, explore=1.0)
    teacher = FrontierByContrastTeacher(config, scenarios=scenarios, group_size=8, seed=0)

    def practise(ability: float) -> list[float]:
        """The strictness issued in the last ten of forty steps to a student of fixed ability."""
        issued = []
        for step in range(40):
            tasks = teacher.propose(16, policy_version=teacher.step)
            teacher.observe([make_outcome(task, rng.binomial(8, sigmoid(16.0 * (ability - task.strictness)))) for task in tasks])
            assert {task.mode for task in tasks} == {Mode.UNIFORM}
            issued += [task.strictness for task in tasks] if step >= 30 else []
        return issued

    weak, able = practise(0.3), practise(0.7)
    # p (1 - p) of this student has 96 % of its mass within .25 of its ability; evenly spread groups would have half of theirs there.
    assert np.mean(np.abs(np.array(weak) - 0.3) < 0.25) > 0.75 and np.mean(weak) == pytest.approx(0.3, abs=0.1)
    assert np.mean(np.abs(np.array(able) - 0.7) < 0.25) > 0.75 and np.mean(able) == pytest.approx(0.7, abs=0.1)


def test_a_teacher_that_goes_on_has_its_curve():
    scenarios = {family: [f"{family}-{i}" for i in range(20)] for family in FAMILIES}
    teachers = [FrontierByContrastTeacher(FrontierByContrastConfig(explore=1.0), scenarios=scenarios, group_size=8, seed=0) for _ in "ab"]
    tasks = teachers[0].propose(16, policy_version=0)
    teachers[0].observe([make_outcome(task, 4 if task.strictness < 0.5 else 0) for task in tasks])
    teachers[1].load_state_dict(teachers[0].state_dict())
    assert teachers[1].contrast.contrast().tolist() == teachers[0].contrast.contrast().tolist()
    first, second = ([task.strictness for task in teacher.propose(16, policy_version=1)] for teacher in teachers)
    assert first == second
