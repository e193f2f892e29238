"""What lines claim, and when claims disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.persona_judge import card_of, claims_in, conflicts, number_of
from simulator.scenario import Scenario, Split
from simulator.world import load_bank, read_toml

ADA = load_bank().scenario("train/burned_bread/motives-negative")


def kinds(line: str, scenario: Scenario = ADA) -> tuple[str, ...]:
    return conflicts(claims_in(line), [card_of(scenario)])


@pytest.mark.parametrize(
    ("text", "number"), [("27", 27), ("twenty-seven", 27), ("forty", 40), ("nineteen", 19), ("the", None), ("sixty nine", 69)]
)
def test_numbers_are_read_in_figures_and_words(text, number):
    assert number_of(text) == number


@pytest.mark.parametrize(
    "line",
    [
        "I am Ada.",
        "I am 27 years old.",
        "I'm twenty-seven, you know.",
        "I am a bakery assistant and I get up at three.",
        "I forgot to set the timer because I was serving at the front.",
        "If you say so. Why would somebody act like that?",
        "My boss was twenty-eight when he began, and his name is Bruno.",
        "I have covered the early shift alone for three weeks.",
        "Hm.",
    ],
)
def test_what_agrees_with_the_card_or_says_nothing_of_it_is_no_contradiction(line):
    assert kinds(line) == ()


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("My name is Carmen.", "name"),
        ("I am 55 years old.", "age"),
        ("I'm fifty-five.", "age"),
        ("I am a bus driver.", "occupation"),
        ("I work as a nurse at the hospital.", "occupation"),
        ("Hm, maybe. His mother wrote a long letter to the company.", "event"),
        ("I only want someone to listen to me.", "wish"),
        ("The nights are longer than they used to be.", "wish"),
        ("Thank you, that is kind.", "manner"),
        ("I have baked for forty years.", "years"),
        ("I showed it to my grandson.", "years"),
    ],
)
def test_what_cannot_be_true_of_the_card_is_told_by_its_kind(line, kind):
    assert kinds(line) == (kind,)


def test_lines_disagree_with_each_other_in_the_same_way():
    assert conflicts(claims_in("I am 55 years old."), claims_in("I'm sixty.")) == ("age",)
    assert conflicts(claims_in("I am 20 years old."), claims_in("I have baked for forty years.")) == ("years",)
    assert conflicts(claims_in("I am a nurse."), claims_in("I am 55 years old.")) == ()


def test_a_reaction_that_two_persona_types_share_speaks_for_none_of_them_alone():
    pools = read_toml("phrases")["reactions"]
    shared = set(pools["negative"]["muted"]) & set(pools["avoidant"]["muted"])
    assert shared and all(kinds(line) == () for line in shared)


def test_no_card_of_the_built_in_world_contradicts_what_its_user_can_tell():
    wrong = [
        (scenario.scenario_id, fact.text, found)
        for scenario in load_bank().by_id.values()
        for fact in scenario.facts
        if (found := kinds(fact.text, scenario))
    ]
    assert not wrong


def test_another_persons_card_is_contradicted_by_a_users_lines():
    other = replace(load_bank().scenarios(Split.TRAIN)[40], scenario_id="train/elsewhere/x-y")
    assert "event" in kinds(ADA.facts[3].text, other)
