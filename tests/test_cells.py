"""Cells of difficulty: which cell a task is in, how probable it was, and scores of groups."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from tiny_student import make_outcome, make_task, make_teacher, practise

from curriculum import TEACHERS
from curriculum.cells import CellTeacher
from simulator.scenario import Difficulty

KINDS = [kind for kind, (_, teacher) in TEACHERS.items() if issubclass(teacher, CellTeacher)]
every_cell_teacher = pytest.mark.parametrize("kind", KINDS)
every_layout = pytest.mark.parametrize("layout", [{}, {"scope": "flat"}, {"axes": 3, "num_bins": 3}])
FAMILIES = ("a", "b", "c")


def test_the_cell_of_a_task_is_that_of_the_difficulty_issued():
    assert set(KINDS) == {"sec", "dump", "vcrl", "sfl", "plr", "tscl", "progress"}
    teacher = make_teacher("sec", num_bins=4)
    assert [teacher.cell(make_task(teacher, d)) for d in (0.0, 0.24, 0.25, 0.99, 1.0)] == [0, 0, 1, 3, 3]
    for scope, cells in (("shared", [1, 1, 1]), ("own", [1, 5, 9]), ("flat", [1, 5, 9])):
        teacher = make_teacher("sec", families=FAMILIES, num_bins=4, scope=scope)
        assert [teacher.cell(make_task(teacher, 0.3, family=family)) for family in FAMILIES] == cells
    teacher = make_teacher("sec", num_bins=2, axes=3)
    assert teacher.cell(make_task(teacher, 0.5, difficulty=Difficulty(strictness=0.6, reserve=0.1, impatience=0.9))) == 0b101


@every_cell_teacher
@every_layout
def test_the_propensity_of_a_task_is_the_probability_of_its_family_and_cell_and_a_state_is_exact(kind, layout):
    teacher, resumed = (make_teacher(kind, families=FAMILIES, seed=seed, **{"num_bins": 5, **layout}) for seed in (0, 9))
    practise(teacher, 0.4, num_steps=15, num_groups=6)
    resumed.load_state_dict(json.loads(json.dumps(teacher.state_dict())))
    tasks = teacher.propose(60, policy_version=15)
    assert resumed.propose(60, policy_version=15) == tasks and resumed.state_dict() == teacher.state_dict()
    flat = teacher.config.scope == "flat"
    for task in tasks:
        shares_B, _ = teacher.shares(task.family)
        assert task.propensity == pytest.approx(shares_B[teacher.cell(task) % teacher.num_boxes] * (1.0 if flat else 1 / 3))
        axes = list(task.difficulty.to_dict().values())
        assert task.strictness == pytest.approx(np.mean(axes)) if "axes" in layout else task.difficulty == Difficulty.along(task.strictness)
    assert sum(teacher.shares(family)[0].sum() for family in FAMILIES) == pytest.approx(1.0 if flat else 3.0)


@pytest.mark.parametrize("scope", ["own", "flat"])
def test_cells_come_as_often_as_their_propensity_says_and_strictness_is_even_inside(scope):
    teacher = make_teacher("plr", families=FAMILIES, num_bins=4, scope=scope)
    practise(teacher, 0.4, num_steps=20, num_groups=6)
    tasks = teacher.propose(2000, policy_version=teacher.policy_version)
    drawn = Counter((task.family, int(task.strictness * 4)) for task in tasks)
    for cell, propensity in {(task.family, int(task.strictness * 4)): task.propensity for task in tasks}.items():
        # Four standard errors of a binomial share.
        assert drawn[cell] / 2000 == pytest.approx(propensity, abs=4.0 * np.sqrt(propensity / 2000))
    inside = np.array([task.strictness * 4 % 1.0 for task in tasks])
    assert abs(inside.mean() - 0.5) < 0.03 and abs(inside.std() - 12**-0.5) < 0.02


def test_families_are_dealt_by_the_allocation_unless_drawn_together_with_cells():
    own = make_teacher("sec", families=FAMILIES, num_bins=4, temperature=0.01)
    for family, d in zip(FAMILIES, (0.1, 0.6, 0.9), strict=True):
        own.observe([make_outcome(make_task(own, d, family=family), 4)])
    tasks = own.propose(300, policy_version=own.policy_version)
    assert Counter((task.family, int(task.strictness * 4)) for task in tasks) == {("a", 0): 100, ("b", 2): 100, ("c", 3): 100}
    flat = make_teacher("sec", families=FAMILIES, scope="flat", temperature=0.05)
    flat.observe([make_outcome(make_task(flat, 0.55, family="b"), 4)])
    assert Counter(task.family for task in flat.propose(300, policy_version=flat.policy_version))["b"] > 250
