"""What is read off the grades of held-out dialogues: what was forgotten since the best look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from analysis.endpoints import Grade, forgotten


def grades_at(emotions: Mapping[float, Sequence[float]], *, in_during: bool = True) -> list[Grade]:
    """A dialogue at each strictness and look."""
    facts = {"grid": "during", "in_during": in_during, "family": "praise/negative"}
    return [
        Grade(look=look, step=look, policy_tokens=10 * look, strictness=strictness, emotion=emotion, **facts)
        for strictness, scores in emotions.items()
        for look, emotion in enumerate(scores)
    ]


def test_forgotten_is_what_each_strictness_lost_since_its_own_best_look():
    # 80 - 50 before lenient users, 40 - 40 before strict ones; the mean curve, 35, 50, 50, 45, would say 5.
    assert forgotten(grades_at({0.1: [50, 80, 60, 50], 0.9: [20, 20, 40, 40]})) == 15.0


def test_who_only_gains_forgets_nothing_and_who_only_loses_forgets_what_it_began_with():
    assert forgotten(grades_at({0.1: [20, 40, 60]})) == 0.0
    assert forgotten(grades_at({0.1: [60, 40, 20]})) == 40.0


@pytest.mark.parametrize("grades", [[], grades_at({0.1: [50]}), grades_at({0.1: [50, 20]}, in_during=False)])
def test_before_two_looks_on_the_small_grid_nothing_is_known_to_be_forgotten(grades):
    assert forgotten(grades) is None
