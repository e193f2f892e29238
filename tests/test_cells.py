"""Cells and scores: which cell a task is in, how probable it was, and what a group says about it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tiny_student import make_outcome, make_task, make_teacher, practise

from curriculum import TEACHERS
from curriculum.bandits import (
    CellConfig,
    CellTeacher,
    Scope,
    advantages,
    draw,
    effective_number,
    learnability,
    max_minus_mean,
    mean_abs_advantage,
    mean_over_rollouts,
    normalised_variance,
    positive_advantage,
    softmax,
)
from curriculum.task import Mode, Status
from simulator.scenario import Difficulty

CELL_KINDS = [kind for kind, (_, teacher) in TEACHERS.items() if issubclass(teacher, CellTeacher)]
every_cell_teacher = pytest.mark.parametrize("kind", CELL_KINDS)
FAMILIES = ("a", "b", "c")


def propose_one(teacher):
    return teacher.propose(1, policy_version=teacher.policy_version)[0]


def test_seven_teachers_work_on_cells():
    assert set(CELL_KINDS) >= {"sec", "dump", "vcrl", "sfl", "plr", "tscl", "progress"}


def test_cell_of_a_task_is_that_of_the_difficulty_issued():
    teacher = make_teacher("sec", num_bins=4)
    assert [teacher.cell(make_task(teacher, d)) for d in (0.0, 0.24, 0.25, 0.99, 1.0)] == [0, 0, 1, 3, 3]
    teacher = make_teacher("sec", families=FAMILIES, num_bins=4, scope=Scope.FLAT)
    assert [teacher.cell(make_task(teacher, 0.3, family=family)) for family in FAMILIES] == [1, 5, 9]
    teacher = make_teacher("sec", num_bins=2, axes=3)
    corner = Difficulty(strictness=0.6, reserve=0.1, impatience=0.9)
    assert teacher.cell(make_task(teacher, 0.5, difficulty=corner)) == 0b101


@every_cell_teacher
@pytest.mark.parametrize("settings", [{}, {"scope": Scope.OWN}, {"scope": Scope.FLAT}, {"axes": 3, "num_bins": 3}])
def test_every_task_lies_in_the_cell_that_its_propensity_is_of(kind, settings):
    teacher = make_teacher(kind, families=FAMILIES, **{"num_bins": 5, **settings})
    practise(teacher, 0.4, num_steps=15, num_groups=6)
    tasks = teacher.propose(60, policy_version=teacher.policy_version)
    dealt = 1.0 if teacher.config.scope is Scope.FLAT else 1.0 / len(FAMILIES)
    for task in tasks:
        shares_B, _ = teacher.shares(task.family)
        assert task.propensity == pytest.approx(shares_B[teacher.cell(task) % teacher.num_boxes] * dealt)
        axes = list(task.difficulty.to_dict().values())
        if teacher.config.axes == 3:
            assert task.strictness == pytest.approx(np.mean(axes))
        else:
            assert task.difficulty == Difficulty.along(task.strictness)
    total = sum(teacher.shares(family)[0].sum() for family in FAMILIES)
    assert total == pytest.approx(1.0 if teacher.config.scope is Scope.FLAT else len(FAMILIES))


@every_cell_teacher
@pytest.mark.parametrize("scope", list(Scope))
def test_cells_come_as_often_as_their_propensity_says(kind, scope):
    teacher = make_teacher(kind, families=FAMILIES, num_bins=4, scope=scope)
    practise(teacher, 0.4, num_steps=20, num_groups=6)
    tasks = teacher.propose(2000, policy_version=teacher.policy_version)
    drawn = Counter((task.family, int(task.strictness * 4)) for task in tasks)
    says = {(task.family, int(task.strictness * 4)): task.propensity for task in tasks}
    for cell, propensity in says.items():
        # Four standard errors of a binomial share.
        assert drawn[cell] / 2000 == pytest.approx(propensity, abs=4.0 * np.sqrt(propensity / 2000))


def test_families_are_dealt_by_the_allocation_unless_they_have_cells_of_their_own():
    shared = make_teacher("sec", families=FAMILIES, scope=Scope.SHARED).propose(300, policy_version=0)
    assert Counter(task.family for task in shared) == {"a": 100, "b": 100, "c": 100}
    teacher = make_teacher("sec", families=FAMILIES, scope=Scope.FLAT, temperature=0.05)
    teacher.observe([make_outcome(make_task(teacher, 0.55, family="b"), 4)])
    assert Counter(task.family for task in teacher.propose(300, policy_version=teacher.policy_version))["b"] > 250


@every_cell_teacher
def test_strictness_is_even_inside_a_cell(kind):
    tasks = make_teacher(kind, num_bins=2).propose(2000, policy_version=0)
    inside = np.array([task.strictness * 2 % 1.0 for task in tasks])
    assert abs(inside.mean() - 0.5) < 0.03 and abs(inside.std() - 12**-0.5) < 0.02


@every_cell_teacher
def test_late_outcome_is_credited_to_the_cell_that_was_issued(kind):
    late = make_teacher(kind, num_bins=5)
    outcome = make_outcome(make_task(late, 0.7, mode=Mode.UNIFORM), 4)
    practise(late, 0.7, num_steps=1, num_groups=40)
    before = late.state_dict()["learned"]
    late.observe([outcome])
    after = late.state_dict()["learned"]
    if kind == "sfl":
        assert after["candidates"][0][1] == 3
        return
    by_cell = [name for name, values in after.items() if isinstance(values, list)]
    assert {i for name in by_cell for i in range(5) if after[name][i] != before[name][i]} == {3}


@every_cell_teacher
@pytest.mark.parametrize("settings", [{"scope": Scope.OWN}, {"scope": Scope.FLAT}, {"axes": 3, "num_bins": 3}])
def test_resume_is_exact_with_cells_of_any_kind(kind, settings):
    whole, resumed = (make_teacher(kind, families=FAMILIES, seed=seed, **settings) for seed in (0, 9))
    practise(whole, 0.4, num_steps=12)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert practise(whole, 0.5, num_steps=12) == practise(resumed, 0.5, num_steps=12)
    assert whole.state_dict() == resumed.state_dict()


@pytest.mark.parametrize("kind", [kind for kind in CELL_KINDS if kind != "sfl"])
def test_state_with_other_bins_is_refused(kind):
    state = make_teacher(kind, num_bins=5).state_dict()
    teacher = make_teacher(kind, num_bins=6)
    before = teacher.state_dict()
    with pytest.raises(ValueError, match=r"settings\.num_bins must be 6, got 5"):
        teacher.load_state_dict(state)
    assert teacher.state_dict() == before


def test_cell_settings_out_of_range_are_one_sentence():
    with pytest.raises(ValueError, match=r"teacher\.axes must be 1 or 3, got 2"):
        CellConfig(axes=2)
    with pytest.raises(ValueError, match=r"teacher.num_bins must be in \[2, 10\], got 20"):
        CellConfig(axes=3, num_bins=20)


def test_draw_never_takes_what_has_no_share():
    rng = np.random.default_rng(0)
    drawn = Counter(draw(np.array([0.0, 0.3, 0.0, 0.1, 0.0]), rng) for _ in range(4000))
    assert set(drawn) == {1, 3} and drawn[1] / 4000 == pytest.approx(0.75, abs=0.03)


def test_families_with_cells_of_their_own_are_dealt_evenly_and_learn_apart():
    teacher = make_teacher("sec", families=FAMILIES, scope=Scope.OWN, num_bins=4, temperature=0.01)
    for family, d in zip(FAMILIES, (0.1, 0.6, 0.9), strict=True):
        teacher.observe([make_outcome(make_task(teacher, d, family=family), 4)])
    tasks = teacher.propose(300, policy_version=teacher.policy_version)
    assert Counter((task.family, int(task.strictness * 4)) for task in tasks) == {("a", 0): 100, ("b", 2): 100, ("c", 3): 100}


def test_effective_number_by_hand():
    assert effective_number(np.array([0.0, 3.0])) == 1.0 and effective_number(np.ones(5)) == pytest.approx(5.0)


def test_softmax_by_hand():
    assert softmax(np.array([0.0, 2.0 * np.log(3.0)]), 2.0) == pytest.approx([0.25, 0.75])
    assert softmax(np.array([0.0, 1e6]), 1e-3) == pytest.approx([0.0, 1.0])


def test_scores_of_a_group_by_hand():
    """Two of four succeed: deviations of .5, unbiased variance 1/3, sample deviation .5774."""
    task = propose_one(make_teacher("sec", group_size=4))
    half = make_outcome(task, 2)
    assert advantages(half, normalise=False).tolist() == [0.5, 0.5, -0.5, -0.5]
    assert mean_abs_advantage(half, normalise=True) == pytest.approx(0.5 / 3**-0.5, abs=1e-5)
    assert mean_abs_advantage(half, normalise=False) == positive_advantage(half) * 2 == max_minus_mean(half) == 0.5
    assert learnability(half) == pytest.approx(1 / 3) and normalised_variance(half) == 1.0
    one = make_outcome(task, 1)
    assert max_minus_mean(one) == 0.75 and positive_advantage(one) == pytest.approx(3 / 16)
    assert learnability(one) == pytest.approx(1 / 4) and normalised_variance(one) == 0.75
    for alike in (make_outcome(task, 0), make_outcome(task, 4)):
        assert advantages(alike, normalise=True).tolist() == [0.0] * 4
        assert learnability(alike) == normalised_variance(alike) == max_minus_mean(alike) == positive_advantage(alike) == 0.0


def test_normalised_variance_of_odd_groups_reaches_one():
    task = propose_one(make_teacher("sec", group_size=5))
    # 2 * 3 / (5 * 4) over the greatest, (5 + 1) / (4 * 5).
    assert [normalised_variance(make_outcome(task, k)) for k in range(6)] == pytest.approx([0, 4 / 6, 1, 1, 4 / 6, 0])


def test_scores_leave_broken_rollouts_out():
    outcome = make_outcome(propose_one(make_teacher("sec", group_size=4)), 2, rewards=(0.9, float("nan"), 0.3, 0.8))
    outcome = replace(outcome, statuses=(Status.OK, Status.OK, Status.OK, Status.SIMULATOR_ERROR))
    assert advantages(outcome, normalise=False) == pytest.approx([0.3, -0.3])
    assert normalised_variance(outcome) == 1.0
    whole = make_outcome(outcome.task, 0)
    assert mean_over_rollouts([outcome, whole], lambda group: float(group is outcome)) == pytest.approx(2 / 6)
