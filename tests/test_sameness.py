"""Lines that were said before, counted by hand."""

from __future__ import annotations

import re

import pytest
from tiny_policy import make_scenario

from analysis.persona import sameness
from analysis.persona_judge import played
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.listener import facts_told
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty
from simulator.world import read_toml


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


@pytest.mark.parametrize("reserve", [None, 0.0, 1.0])
def test_of_a_thousand_dialogues_hardly_two_users_say_the_same(reserve):
    """Agents of mixed skill at five strictnesses; users as reserved as that makes them, or all as open or as reserved as can be."""
    grid = {"strictness": (0.1, 0.35, 0.55, 0.75, 0.95), "reserve": None if reserve is None else (reserve,)}
    found = sameness(played(1000, **grid, user=RuleUser(RuleUserConfig())))
    assert found.num_lines > 5000 and found.share < 0.05
    assert found.num_repeated <= 2


def test_a_remark_is_about_what_was_told_and_comes_instead_of_something_new():
    heads = {line.split("{")[0] for lines in read_toml("phrases")["remarks"].values() for line in lines}
    remark = re.compile(rf"(?:{'|'.join(map(re.escape, heads))})((?:[a-z']+ )*[a-z']+)")
    num = 0
    for dialogue in played(60, strictness=(0.55, 0.95), user=RuleUser(RuleUserConfig())):
        facts, told = dialogue.scenario.facts, set()
        for turn in (turn for turn in dialogue.turns if turn.speaker is Speaker.USER):
            found, now = remark.search(turn.text), facts_told(turn.text, facts)
            if found and not now:
                num += 1
                assert any(found[1].startswith(facts[index].cue.replace("your ", "my ")) for index in told), turn.text
            told |= set(now)
    assert num > 50
