"""The best of several tries with a user, before and after, against values worked out by hand and against all choices."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from analysis.best_of import before_and_after, expected_best, told
from analysis.pages.best_of_section import best_of
from analysis.runs import Run


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
    run = Run(folder=Path("run"), config={}, provenance={}, metrics=[], summary={"best_of": before_and_after(lines)})
    page = best_of(run)
    assert "less the best of 2 before it: +25.0" in page
    assert '<th>before</th><td class="num">40.0</td><td class="num">60.0</td>' in page
    assert '<th>after</th><td class="num">85.0</td><td class="num">90.0</td>' in page
    assert best_of(replace(run, summary={})) == ""
