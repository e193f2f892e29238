"""What a listener hears: strategies, facts, repetition, fluency."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.bank import load_bank, read_toml
from simulator.fluency import fluency
from simulator.ladder import fill
from simulator.reading import cues_in, read, similarity, strategies_in
from simulator.register import Register, clarity
from simulator.scenario import Fact, Split

FACTS = (
    Fact(text="My sister sold our mother's piano.", cue="the piano"),
    Fact(text="I used to play on Sunday evenings.", cue="those evenings"),
)

ORDINARY = [
    ("That sounds really painful, and I am so sorry for your loss.", None),
    ("What did your manager say when you told her?", "question"),
    ("You should talk to your landlord before the end of the month.", "suggestion"),
    ("Perhaps he was scared of losing you and did not know how to say it.", "motives"),
    ("None of this was your fault.", "siding"),
    ("I admire how you kept going in spite of everything.", "praise"),
    ("Part of you wants to forgive him, and part of you is still furious.", "both_sides"),
    ("Take your time, I'm listening.", "listening"),
    ("It sounds like you felt completely alone that night.", "reflection"),
    ("If a friend were in your shoes, what would you tell her?", "guided_reflection"),
    ("Don't worry, things will work out.", "reassurance"),
    ("Have you thought about seeing a therapist about it?", "referral"),
    ("I'm sorry, I rushed you there.", "apology"),
    ("So you waited for two hours and nobody came.", "restatement"),
]
GARBLE = [
    "I admire your same.",
    "The the piano of and.",
    "You your can proud the so.",
    "Listening admire fault sorry question piano.",
    "I am here your the with is.",
]


@pytest.mark.parametrize(("reply", "strategy"), [pair for pair in ORDINARY if pair[1]])
def test_a_strategy_is_heard_in_words_that_the_world_does_not_use(reply: str, strategy: str):
    assert strategy in strategies_in(reply)


def test_every_move_of_the_scripted_agents_is_heard_as_what_it_is():
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    missed = [
        (strategy, line)
        for strategy, pools in read_toml("moves").items()
        for line in (*pools["grounded"], *pools["plain"])
        if strategy not in strategies_in(fill(line, scenario, cue="the piano", feeling="hurt"))
    ]
    assert missed == []


def test_a_question_is_no_advice_and_guided_reflection_is_no_question_of_fact():
    assert strategies_in("What happened with the piano?") == ("question",)
    assert strategies_in("What do you really need when you think of the piano?") == ("guided_reflection",)
    assert strategies_in("Why not ask your sister about the piano this week?") == ("suggestion",)


def test_single_words_of_a_strategy_do_not_count():
    assert strategies_in("Admire proud fault listening sides.") == ()


def test_facts_are_recognised_by_their_things_and_not_by_the_other_person():
    scenario = replace(load_bank().scenarios(Split.TRAIN)[0], facts=FACTS, other="sister")
    assert cues_in("I hear how much the old piano meant on those evenings.", scenario) == (0, 1)
    assert cues_in("You must feel hurt.", scenario) == ()
    assert cues_in("Maybe your sister was afraid.", scenario) == ()


def test_similarity_counts_content_words_only():
    assert similarity("You could sell the piano.", "You could sell the piano.") == 1.0
    assert similarity("You could sell the piano.", "I hear a song.") == 0.0
    assert similarity("Sell the piano now.", "Sell the house now.") == pytest.approx(2 / 4)


def test_repetition_is_measured_against_the_most_similar_earlier_reply():
    reading = read("Sell the piano now.", load_bank().scenarios(Split.TRAIN)[0], ["Take a walk.", "Sell the piano now."])
    assert reading.similarity == 1.0


@pytest.mark.parametrize("reply", [reply for reply, _ in ORDINARY])
def test_ordinary_english_passes_the_fluency_gate(reply: str):
    assert fluency(reply) >= 0.7


@pytest.mark.parametrize("reply", GARBLE)
def test_garble_does_not_pass_the_fluency_gate(reply: str):
    assert fluency(reply) <= 0.5


def test_a_reply_without_words_is_not_fluent():
    assert fluency("") == 0.0
    assert fluency("...!") == 0.0


def test_the_worlds_register_follows_its_own_moves_about_this_scenario():
    scenario = load_bank().scenarios(Split.HELDOUT)[0]
    for pools in read_toml("moves").values():
        for line in (*pools["grounded"], *pools["plain"]):
            text = fill(line, scenario, cue=scenario.facts[0].cue, feeling="hurt")
            assert clarity(text, Register.WORLD, facts=scenario.facts, other=scenario.other) == 1.0, text


def test_who_was_named_in_full_may_be_spoken_of_in_brief_but_nobody_else():
    facts = load_bank().scenarios(Split.TRAIN)[0].facts

    def heard(person: str) -> float:
        return clarity(f"Perhaps your {person} meant well and did not see your side.", Register.WORLD, facts=facts, other="choir friend")

    assert heard("choir friend") == heard("friend") == 1.0
    assert max(heard("choir"), heard("aunt"), heard("school friend")) < 0.9


@pytest.mark.parametrize(
    "reply",
    [
        "You need to say about to make talk about the wedding about the wedding?",
        "Both you and your soup have suggest writing your twin brother you see the garage.",
        "Who else knows about the keys on the keys?",
        "What happened",
        "Maybe your daughter was not what the keys about the keys.",
    ],
)
def test_the_worlds_register_does_not_follow_garble_that_a_policy_once_found(reply: str):
    scenario = load_bank().scenarios(Split.HELDOUT)[0]
    assert clarity(reply, Register.WORLD, facts=scenario.facts, other=scenario.other) < 0.7
