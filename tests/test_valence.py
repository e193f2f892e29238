"""Moods read from words alone, and whether the embedded user's words fit how it feels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.persona import AT_EASE_FROM, HURT_BELOW, Mood, contradicts_emotion, mood_of
from analysis.persona_judge import lines_of, played
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.listener import facts_told
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Split
from simulator.world import load_bank, read_toml

SCENARIO = load_bank().scenarios(Split.TRAIN)[0]


def says(text: str, emotion: int) -> Turn:
    return Turn(speaker=Speaker.USER, text=text, emotion=emotion, change=0)


@pytest.mark.parametrize(
    "line",
    [
        "I feel so alone with all this.",
        "Honestly, that makes me furious.",
        "What a waste of time.",
        "You don't understand a thing, forget it.",
        "It hurts every single day.",
        "I just can't... I cannot go on like this.",
        "Whatever you say.",
        "Nobody cares anyway.",
        "This talk is pointless.",
        "That was the wrong thing to say to me.",
    ],
)
def test_somebody_close_to_giving_up_is_heard(line):
    assert mood_of(line).low and not mood_of(line).high


@pytest.mark.parametrize(
    "line",
    [
        "I feel so much better now.",
        "That is a relief, really.",
        "I feel lighter than in weeks.",
        "It did me good to talk.",
        "I am glad I told you.",
        "You gave me what I needed.",
        "I think I can sleep again.",
        "I am grateful that you stayed with it.",
    ],
)
def test_somebody_at_ease_is_heard(line):
    assert mood_of(line).high and not mood_of(line).low


@pytest.mark.parametrize(
    "line",
    [
        "Right.",
        "My brother came by on Sunday.",
        "Yes, something like that.",
        "I was angry when it happened.",
        "It hurts less than it did.",
        "That is not as stupid as I feared.",
        "I will think about it.",
        "You may have a point there.",
        "In the morning I am angry, at night I am not.",
        "They all talk before I am done with my sentence.",
    ],
)
def test_what_tells_no_mood_of_now_is_not_taken_for_one(line):
    assert mood_of(line) == Mood(low=(), high=())


def test_the_story_is_no_mood():
    fact = replace(SCENARIO.facts[1], text="She said that it was pointless and that I am useless.")
    scenario = replace(SCENARIO, facts=(SCENARIO.facts[0], fact))
    assert mood_of(f"Right. {fact.text}").low and not mood_of(f"Right. {fact.text}", scenario).low


def test_words_contradict_an_emotion_only_at_its_ends():
    assert contradicts_emotion(says("This is pointless.", 85), SCENARIO) == ("pointless",)
    assert contradicts_emotion(says("I feel lighter.", 15), SCENARIO) == ("lighter",)
    for text, emotion in (("This is pointless.", 15), ("This is pointless.", 55), ("I feel lighter.", 85), ("I feel lighter.", 30)):
        assert contradicts_emotion(says(text, emotion), SCENARIO) == ()


def dialogues(num: int = 500) -> list[Dialogue]:
    """Agents of mixed skill, five strictness levels, users who say much and little."""
    return list(
        played(num, strictness=(0.1, 0.35, 0.55, 0.75, 0.95), reserve=(0.0, 0.3, 0.6, 1.0), user=RuleUser(RuleUserConfig()), seed=11)
    )


def test_emotion_never_contradicts_words():
    played_out = dialogues()
    assert {dialogue.scenario.family for dialogue in played_out} == set(FAMILIES)
    turns = [(turn, dialogue.scenario) for dialogue in played_out for _, turn in lines_of(dialogue)]
    ends = [turn for turn, _ in turns if turn.emotion >= AT_EASE_FROM or turn.emotion < HURT_BELOW]
    assert len(ends) > 800
    wrong = [(turn.emotion, turn.text, words) for turn, scenario in turns if (words := contradicts_emotion(turn, scenario))]
    assert not wrong


def test_the_same_words_would_contradict_the_opposite_emotion():
    """The reader is not blind: with the scale turned round, lines at its ends are caught, most of all those of users who say much."""
    turned = [
        (dialogue.difficulty.reserve, bool(contradicts_emotion(replace(turn, emotion=100 - turn.emotion), dialogue.scenario)))
        for dialogue in dialogues(200)
        for _, turn in lines_of(dialogue)
        if turn.emotion >= AT_EASE_FROM or turn.emotion < HURT_BELOW
    ]
    open_users = [caught for reserve, caught in turned if reserve == 0.0]
    reserved = [caught for reserve, caught in turned if reserve == 1.0]
    assert sum(open_users) / len(open_users) > 0.4 > sum(reserved) / len(reserved)


def test_who_wants_to_say_no_more_tells_no_more():
    closing = read_toml("phrases")["apart"]["telling"]
    said = [(turn.text, dialogue.scenario) for dialogue in dialogues(200) for _, turn in lines_of(dialogue)[1:]]
    refusing = [(text, scenario) for text, scenario in said if text.startswith(tuple(closing))]
    assert refusing and not any(facts_told(text, scenario.facts) for text, scenario in refusing)


def test_what_is_kept_apart_is_said_elsewhere():
    """A line that no pool holds would keep nothing apart, and a pool without a line left could not be drawn from."""
    phrases = read_toml("phrases")
    hints = [set(pool) for pools in phrases["hints"].values() for pool in pools.values()]
    reactions = [set(pool) for pools in phrases["reactions"].values() for pool in pools.values()]
    for pools, apart in ((hints, phrases["apart"]["at_ease"]), (reactions, phrases["apart"]["telling"])):
        assert set(apart) <= set().union(*pools) and all(pool - set(apart) for pool in pools)
