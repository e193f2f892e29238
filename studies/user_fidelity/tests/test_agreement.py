"""Figures of agreement between a recorded and a predicting user, on dialogues small enough to count by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from studies.user_fidelity.agreement import Followed, figures, intervals, names_of_agents


def followed(true: list[int], predicted: list[int], **changes: Any) -> Followed:
    """A dialogue whose emotions follow from its changes, from 40."""

    def before(moves: list[int]) -> tuple[int, ...]:
        return tuple(40 + sum(moves[:index]) for index in range(len(moves)))

    record = {
        "simulator": "",
        "agent": "a",
        "profile": "p",
        "true_changes": tuple(true),
        "changes": tuple(predicted),
        "true_before": before(true),
        "before": before(predicted),
        "true_score": 40 + sum(true),
        "score": 40 + sum(predicted),
    }
    return Followed(**{**record, **changes})


def test_the_same_changes_agree_wholly():
    found = figures([followed([5, -5, 10], [5, -5, 10])])
    assert found["turn_pearson"] == pytest.approx(1.0)
    assert (found["sign_accuracy"], found["change_distribution_tv"], found["momentum_curve_mae"], found["score_mae"]) == (
        1.0,
        0.0,
        0.0,
        0.0,
    )
    assert math.isnan(found["first_turn_pearson"]) and math.isnan(found["pair_accuracy"])


def test_correlation_sign_and_distribution_are_counted_over_turns():
    found = figures([followed([5, 5, -5], [5, -5, -5]), followed([-5], [-5])])
    # deviations 5, 5, -5, -5 and 7.5, -2.5, -2.5, -2.5: 50 / sqrt(100 * 75)
    assert found["turn_pearson"] == pytest.approx(50 / math.sqrt(100 * 75))
    assert found["sign_accuracy"] == 0.75
    assert found["change_distribution_tv"] == pytest.approx(0.25)
    assert found["first_turn_pearson"] == pytest.approx(1.0)


def test_the_chance_of_a_rise_is_compared_by_emotion():
    # At 40 both rise once of twice; the recorded user then rises from 45, the other one falls there: one turn of three is off by 1.
    found = figures([followed([5, 5], [5, -5]), followed([-5], [-5])])
    assert found["momentum_curve_mae"] == pytest.approx(1 / 3)


def test_agents_are_paired_and_ranked_within_a_simulator_only():
    scores = {("x", "a"): (20, 30), ("x", "b"): (50, 60), ("x", "c"): (80, 50), ("y", "a"): (90, 10)}
    dialogues = [followed([5], [5], simulator=s, agent=n, true_score=t, score=p) for (s, n), (t, p) in scores.items()]
    found = figures(dialogues)
    assert found["pair_accuracy"] == pytest.approx(2 / 3)  # b and c are the wrong way round
    assert found["agent_spearman"] == pytest.approx(0.5)  # ranks 1 2 3 against 1 3 2
    assert found["score_mae"] == pytest.approx((10 + 10 + 30 + 80) / 4)
    assert names_of_agents(dialogues) == {("x", "a"): "x/a", ("x", "b"): "b", ("x", "c"): "c", ("y", "a"): "y/a"}


def test_agents_within_ten_points_are_no_pair_and_a_tie_counts_half():
    near = [followed([5], [5], agent="a", true_score=50, score=40), followed([5], [5], agent="b", true_score=60, score=30)]
    assert math.isnan(figures(near)["pair_accuracy"])
    tied = [followed([5], [5], agent="a", true_score=50, score=40), followed([5], [5], agent="b", true_score=61, score=40)]
    assert figures(tied)["pair_accuracy"] == 0.5


def test_a_dialogue_that_counts_twice_is_two_dialogues():
    one, other = followed([5, -5], [5, 5]), followed([-10], [5])
    assert figures([one, other], [2, 1]) == pytest.approx(figures([one, one, other]), nan_ok=True)


def test_intervals_come_from_whole_profiles_and_from_the_seed():
    agreeing = [followed([5, -5], [5, -5], profile=f"p{index}") for index in range(4)]
    assert intervals(agreeing, num_draws=20, seed=1)["sign_accuracy"] == (1.0, 1.0)
    mixed = [*agreeing, *(followed([5, 5], [5, -5], profile=f"q{index}") for index in range(4))]
    drawn = [intervals(mixed, num_draws=30, seed=seed)["turn_pearson"] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    low, high = intervals(mixed, num_draws=200, seed=1)["sign_accuracy"]
    assert 0.5 <= low < 0.75 < high <= 1.0
