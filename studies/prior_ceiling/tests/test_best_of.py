"""The best of several tries with a user, before and after, against values worked out by hand and against all choices."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from analysis.report import callback_tables
from analysis.runs import Run
from curriculum.signals import expected_best
from experiments.config import load
from experiments.errors import ConfigError
from experiments.evaluation import HeldOutEvaluation
from experiments.tasks import grid_tasks
from simulator.scenario import Split
from simulator.world import load_bank
from studies.prior_ceiling.best_of import BestOf, before_and_after, told


def line(look: int, uid: str, *tries: int | None) -> dict:
    return {"look": look, "uid": uid, "tries": list(tries)}


def test_the_expected_best_is_the_mean_over_all_choices():
    emotions_UK = np.random.default_rng(0).integers(0, 101, size=(3, 5)).astype(float)
    for j in range(1, 6):
        naive = [np.mean([max(choice) for choice in combinations(user, j)]) for user in emotions_UK.tolist()]
        assert expected_best(emotions_UK, j).tolist() == pytest.approx(naive)


def test_one_try_the_best_of_two_and_of_three():
    # Of 0, 30 and 90 the mean is 40; pairs have 30, 90 and 90 as their best.
    found = told(np.array([[30.0, 90.0, 0.0]]))
    assert found["by_k"] == pytest.approx([40.0, 70.0, 90.0])
    assert (found["mean"], found["best"], found["gain"]) == pytest.approx((40.0, 90.0, 50.0))


def test_training_is_held_against_the_best_that_the_beginning_reached():
    lines = [line(0, "a", 20, 60), line(0, "b", 0, 20), {"look": 5, "uid": "a"}, line(10, "a", 80, 80), line(10, "b", 20, 40)]
    found = before_and_after(lines)
    assert (found["k"], found["users"]) == (2, 2)
    # Before: means 40 and 10, best 60 and 20. After: means 80 and 30, best 80 and 40.
    assert (found["start"]["mean"], found["start"]["best"], found["start"]["gain"]) == (25.0, 40.0, 15.0)
    assert (found["end"]["mean"], found["end"]["best"], found["end"]["gain"]) == (55.0, 60.0, 5.0)
    assert found["beyond"] == 15.0


def test_a_user_of_whom_a_try_broke_at_either_look_is_left_out_of_both():
    lines = [line(0, "a", 20, 60), line(0, "b", 0, 20), line(9, "a", 80, None), line(9, "b", 20, 40)]
    assert before_and_after(lines)["users"] == 1 and before_and_after(lines)["start"]["mean"] == 10.0


@pytest.mark.parametrize("lines", [[], [line(0, "a", 1, 2)], [{"look": 0, "uid": "a"}, {"look": 9, "uid": "a"}]])
def test_without_tries_at_two_looks_nothing_is_told(lines):
    assert before_and_after(lines) is None


def test_a_runs_page_has_the_best_of_each_number_of_tries_where_they_were_taken():
    lines = [line(0, "a", 20, 60), line(9, "a", 80, 90)]
    found = before_and_after(lines)
    run = Run(folder=Path("run"), config={"callbacks": {"best_of": {"tries": 2}}}, provenance={}, metrics=[], summary={"best_of": found})
    ((name, rows),) = callback_tables(run)
    assert name == "best_of" and {("beyond", "25"), ("start.by_k", "40, 60"), ("end.by_k", "85, 90")} <= set(rows)
    assert callback_tables(replace(run, summary={})) == callback_tables(replace(run, config={})) == []


def test_the_users_of_the_smaller_grid_are_tried_several_times():
    full = grid_tasks(load_bank().scenarios(Split.HELDOUT)[:4], [0.1, 0.9])
    tasks = BestOf(tries=3).evaluation_tasks(full, full[2:4])
    assert [task.group_size for task in tasks] == [1, 1, 3, 3, 1, 1, 1, 1] and [task.uid for task in tasks] == [task.uid for task in full]


def test_further_tries_take_their_time():
    grid = ["evaluation.num_scenarios=8", "evaluation.during_scenarios=3", "evaluation.strictness=[0.1,0.9]"]
    config = load("adaptive_curriculum", [*grid, "callbacks.best_of.tries=4"])
    heldout = HeldOutEvaluation(config.evaluation, load_bank(), callbacks=config.callbacks.values())
    assert heldout.num_dialogues == (2 * 8 + 9 * 3 + 2 * 3 * 3) * 2


def test_tries_must_be_able_to_differ():
    with pytest.raises(ConfigError, match=r"callbacks\.best_of\.tries must be >= 1, got 0"):
        load("smoke", ["callbacks.best_of.tries=0"])
    config = load("smoke", ["callbacks.best_of.tries=4", "evaluation.temperature=0"])
    with pytest.raises(ValueError, match=r"callbacks\.best_of\.tries must be 1 with evaluation\.temperature=0, got 4; greedy"):
        config.callbacks["best_of"].check(config)
