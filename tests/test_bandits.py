"""SEC, DUMP and VCRL: their equations by hand, and that they find where a tiny student has something to learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiny_student import make_outcome, make_task, make_teacher, mean_distance, practise, teach

from curriculum.bandits import Scope
from curriculum.task import Mode

FULL = 0.5 / math.sqrt(2 / 7)
"""|advantage| of each of 8 rollouts of which 4 succeed: deviations .5 over the unbiased deviation sqrt(8/7 / 4)."""


@pytest.mark.parametrize("kind", ["sec", "dump", "vcrl", "sfl", "plr", "tscl", "progress"])
def test_all_share_one_grid_or_one_for_each_family(kind):
    families = ("a", "b")
    assert make_teacher(kind, families=families, num_bins=6, scope=Scope.SHARED).num_cells == 6
    assert {make_teacher(kind, families=families, num_bins=6, scope=scope).num_cells for scope in (Scope.OWN, Scope.FLAT)} == {12}


def test_sec_value_moves_by_its_rate_and_draws_by_softmax():
    teacher = make_teacher("sec", num_bins=2, rate=0.5, temperature=0.5)
    teach(teacher, 0.2, 4)
    assert teacher.q.values_C == pytest.approx([FULL / 2, 0.0], abs=1e-5)
    teach(teacher, 0.2, 8)
    assert teacher.q.values_C == pytest.approx([FULL / 4, 0.0], abs=1e-5)
    odds = math.exp(FULL / 4 / 0.5)
    assert teacher.preferences(slice(None)) == pytest.approx([odds / (1 + odds), 1 / (1 + odds)], abs=1e-5)


def test_sec_takes_groups_of_a_cell_that_come_together_as_one_reward():
    teacher = make_teacher("sec", num_bins=2, rate=0.5)
    teacher.observe([make_outcome(make_task(teacher, 0.1), 4), make_outcome(make_task(teacher, 0.3), 0)])
    assert teacher.q.values_C == pytest.approx([FULL / 4, 0.0], abs=1e-5)


def test_dense_rewards_look_alike_to_normalised_advantages_and_not_to_others():
    wide, narrow = (0.1, 0.9) * 4, (0.49, 0.51) * 4
    published, plain = make_teacher("sec", num_bins=2, rate=1.0), make_teacher("sec", num_bins=2, rate=1.0, normalise=False)
    for teacher in (published, plain):
        teacher.observe([make_outcome(make_task(teacher, d), 4, rewards=rewards) for d, rewards in ((0.2, wide), (0.8, narrow))])
    assert published.q.values_C == pytest.approx([FULL, FULL], abs=1e-3)
    assert plain.q.values_C == pytest.approx([0.4, 0.01])


def test_dump_score_by_hand():
    teacher = make_teacher("dump", num_bins=2, temperature=1.0)
    assert teacher.preferences(slice(None)).tolist() == [0.5, 0.5]
    teach(teacher, 0.2, 4)
    bonus = [math.sqrt(2 * math.log(9) / 9), math.sqrt(2 * math.log(9))]
    difference = FULL + bonus[0] - bonus[1]
    assert teacher.preferences(slice(None))[0] == pytest.approx(1 / (1 + math.exp(-difference)), abs=1e-5)


def test_dump_window_holds_the_groups_that_make_up_its_rollouts():
    teacher = make_teacher("dump", num_bins=2, window=16)
    for num_successes in (4, 4, 0):
        teach(teacher, 0.2, num_successes)
    # The last 16 of 24 rollouts: one group of FULL, one of nothing.
    assert teacher.learnability.values_C[0] == pytest.approx(FULL / 2, abs=1e-5)
    assert teacher.counts.values_C.tolist() == [24.0, 0.0]


def test_dump_counts_fade_only_when_asked():
    fading = make_teacher("dump", num_bins=2, count_decay=0.5)
    teach(fading, 0.2, 4)
    teach(fading, 0.8, 4)
    assert fading.counts.values_C.tolist() == [4.0, 8.0]


def test_dump_with_fading_counts_goes_on_visiting_what_teaches_nothing():
    rare = {}
    for decay in (1.0, 0.97):
        issued = practise(make_teacher("dump", count_decay=decay), 0.2, num_steps=150, num_groups=8)
        rare[decay] = np.mean([task.strictness > 0.8 for tasks in issued[-50:] for task in tasks])
    assert rare[0.97] > 2 * rare[1.0]


def test_vcrl_bank_takes_in_keeps_and_drops_by_kappa():
    teacher = make_teacher("vcrl", num_bins=4, kappa_first=0.3, kappa=0.8, strict_step=3, momentum=0.9)
    teach(teacher, 0.1, 1)  # 1 * 7 / 16 of the greatest
    teach(teacher, 0.4, 0)
    assert teacher.bank.state_dict() == [7 / 16, None, None, None]
    teach(teacher, 0.1, 4)
    assert teacher.bank.values_C[0] == pytest.approx(0.9 * 7 / 16 + 0.1)
    teach(teacher, 0.6, 3)  # 15/16 passes the threshold of step 4; .49375 no longer does
    assert teacher.bank.state_dict() == [None, None, 15 / 16, None]


def test_vcrl_draws_from_its_bank_what_it_would_have_dropped():
    teacher = make_teacher("vcrl", num_bins=4)
    assert {task.mode for task in teacher.propose(50, policy_version=0)} == {Mode.UNIFORM}
    teach(teacher, 0.1, 1)
    teach(teacher, 0.4, 4)
    teach(teacher, 0.9, 0)
    assert teacher.dropped_share == pytest.approx(0.05) and teacher.explore_share() == pytest.approx(0.95)
    assert teacher.preferences(slice(None)) == pytest.approx([7 / 23, 16 / 23, 0.0, 0.0])
    modes = [task.mode for task in teacher.propose(2000, policy_version=0)]
    assert set(modes) == {Mode.REPLAY, Mode.UNIFORM} and modes.count(Mode.REPLAY) / 2000 == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(("kind", "distance"), [("sec", 0.14), ("dump", 0.11), ("vcrl", 0.20)])
def test_practice_gathers_where_odds_are_even(kind, distance):
    """Evenly drawn strictness would be .25 away from .4 + .02 on average (.256)."""
    issued = practise(make_teacher(kind), 0.4, num_steps=100)
    assert mean_distance(issued[50:], 0.4) < distance


@pytest.mark.parametrize("kind", ["sec", "dump", "vcrl"])
def test_practice_follows_a_student_that_gets_better_and_worse(kind):
    teacher = make_teacher(kind, **({"window": 64} if kind == "dump" else {}))
    issued = practise(teacher, lambda step: 0.3 if step < 100 or step >= 250 else 0.7, num_steps=400)
    means = [np.mean([task.strictness for tasks in issued[i : i + 50] for task in tasks]) for i in (50, 200, 350)]
    assert means[1] > means[0] + 0.1 and means[2] < means[1] - 0.1


@pytest.mark.parametrize("kind", ["sec", "dump"])
def test_a_family_that_tosses_coins_eats_the_budget_of_a_flat_bandit(kind):
    """The published fault, kept and measured: four families, one of them noise."""
    rng = np.random.default_rng(0)
    teacher = make_teacher(kind, families=("a", "b", "c", "noise"), scope=Scope.FLAT, num_bins=5)
    noise = 0
    for step in range(150):
        tasks = teacher.propose(16, policy_version=step)
        prob = {"a": 0.02, "b": 0.98, "c": 0.9, "noise": 0.5}
        teacher.observe([make_outcome(task, rng.binomial(8, prob[task.family])) for task in tasks])
        noise += sum(task.family == "noise" for task in tasks)
    assert noise / (150 * 16) > 0.5
