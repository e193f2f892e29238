"""Moods read from words alone, and whether the embedded user's words fit how it feels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.valence import contradicts_emotion, mood_of
from simulator.bank import load_bank
from simulator.dialogue import Speaker, Turn
from simulator.scenario import Split

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
    assert mood_of(line).valence == -1


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
    assert mood_of(line).valence == 1


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
    assert mood_of(line).valence == 0


def test_the_story_is_no_mood():
    fact = replace(SCENARIO.facts[1], text="She said that it was pointless and that I am useless.")
    scenario = replace(SCENARIO, facts=(SCENARIO.facts[0], fact))
    assert mood_of(f"Right. {fact.text}").low and not mood_of(f"Right. {fact.text}", scenario).low


def test_words_contradict_an_emotion_only_at_its_ends():
    assert contradicts_emotion(says("This is pointless.", 85), SCENARIO) == ("pointless",)
    assert contradicts_emotion(says("I feel lighter.", 15), SCENARIO) == ("lighter",)
    for text, emotion in (("This is pointless.", 15), ("This is pointless.", 55), ("I feel lighter.", 85), ("I feel lighter.", 30)):
        assert contradicts_emotion(says(text, emotion), SCENARIO) == ()
