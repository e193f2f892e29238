"""Lines that were said before, counted by hand."""

from __future__ import annotations

from tiny_policy import make_scenario

from analysis.sameness import sameness
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.difficulty import Difficulty


def said(*texts: str, outcome: Outcome = Outcome.MAX_TURNS) -> Dialogue:
    dialogue = Dialogue(scenario=make_scenario(), difficulty=Difficulty.along(0.5), seed=0)
    for number, text in enumerate(texts):
        turns = [Turn(speaker=Speaker.AGENT, text="well.")] if number else []
        dialogue = dialogue.then(*turns, Turn(speaker=Speaker.USER, text=text, emotion=40))
    return dialogue.then(outcome=outcome)


def test_lines_openings_and_farewells_are_counted_apart():
    found = sameness(
        [
            said("a", "b", "c"),
            said("a", "b", "d", "bye", outcome=Outcome.LEFT),
            said("e", "d", "bye", outcome=Outcome.DELIGHTED),
        ]
    )
    assert (found.num_lines, found.num_said_before) == (5, 2)
    assert (found.num_openings, found.num_openings_before) == (3, 1)
    assert (found.num_farewells, found.num_farewells_before) == (2, 1)
    assert found.share == 0.4


def test_a_line_said_twice_in_one_dialogue_is_its_own_kind_of_repetition():
    found = sameness([said("a", "b", "b", "b")])
    assert (found.num_said_before, found.num_repeated) == (0, 2)


def test_every_repetition_counts_but_the_first_of_its_kind():
    assert sameness([said("a", "x"), said("b", "x"), said("c", "x")]).num_said_before == 2
