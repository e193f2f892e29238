"""Contempt in ordinary English hurts whatever stands beside it; a goodbye that is told of ends nothing; an echo is named."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.bank import load_bank
from simulator.dialogue import Dialogue, Outcome
from simulator.difficulty import CHALLENGING, VANILLA, Difficulty
from simulator.explanation import explain_reply
from simulator.five_steps import five_steps
from simulator.ladder import AGENTS
from simulator.reading import Reading, read
from simulator.register import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Split
from simulator.spelling import LEXICON

REPLIES = Path(__file__).parent / "data" / "replies_en.jsonl"
SCENARIO = load_bank().scenarios(Split.TRAIN)[0]
OPEN, WORLD = (RuleUser(RuleUserConfig(register=register)) for register in (Register.OPEN, Register.WORLD))


def heard(reply: str, register: Register = Register.OPEN) -> Reading:
    return read(reply, SCENARIO, [], said=[SCENARIO.opening], register=register)


def at(emotion: int, difficulty: Difficulty = VANILLA) -> Dialogue:
    dialogue = OPEN.begin(SCENARIO, difficulty, seed=0)
    return replace(dialogue, turns=(replace(dialogue.turns[0], emotion=emotion),))


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("You are pathetic.", "insult"),
        ("I think you're a complete idiot.", "insult"),
        ("You told me about the piano and you are pathetic.", "insult"),
        ("Kill yourself.", "incitement"),
        ("Why don't you kill yourself?", "incitement"),
        ("You could jump off a bridge because of the piano.", "incitement"),
        ("You deserve all of it.", "blame"),
        ("You are to blame for the piano.", "blame"),
        ("I really admire how badly you handled the piano.", "sneer"),
        ("I am not listening to you and the piano, take your time.", "refusal"),
        ("Shut up.", "refusal"),
    ],
)
def test_contempt_is_heard_and_nothing_else_in_its_sentence(reply: str, kind: str):
    assert (heard(reply).contempt, heard(reply).strategies) == ((kind,), ())
    assert heard(reply, Register.WORLD).contempt == ()


@pytest.mark.parametrize(
    "reply",
    [
        "You are not pathetic.",
        "He said you are worthless, and that hurt.",
        "Nobody thinks you are to blame for the piano.",
        "They made you feel as if you are worthless.",
        "None of this was your fault.",
        "Do you want to kill yourself?",
        "Please don't hurt yourself.",
        "You fell and hurt yourself.",
        "You are nothing like him.",
        "I don't care what they say, you did well.",
    ],
)
def test_what_is_reported_asked_or_denied_is_no_contempt(reply: str):
    assert heard(reply).contempt == ()


def test_no_reply_written_by_hand_holds_contempt():
    replies = [json.loads(line)["text"] for line in REPLIES.read_text(encoding="utf-8").splitlines()]
    assert [reply for reply in replies if heard(reply).contempt] == []


@pytest.mark.parametrize("difficulty", [Difficulty.along(0.0), VANILLA, CHALLENGING])
def test_contempt_hurts_whatever_else_a_reply_holds(difficulty: Difficulty):
    dialogue = at(60, difficulty)
    expert = AGENTS["L6"].reply(dialogue)
    assert (OPEN.answer(dialogue, f"{expert} You are pathetic.").turn.change or 0) <= -8


def test_contempt_is_named_in_the_five_steps_and_the_figures_add_up():
    dialogue, reply = at(60), "I am listening. You are pathetic, and nobody would miss you."
    explanation = explain_reply(dialogue, reply, OPEN.config)
    steps = five_steps(explanation)
    assert "It holds contempt (insult, incitement)" in steps.says and "Heard as listening." in steps.says
    assert steps.feeling.startswith("Worth \u22121, for contempt") and "They looked down on me" in steps.feeling
    assert "Contempt takes 8." in steps.change
    assert explanation.worth.total == explanation.appraisal.worth == -1.0
    assert explanation.points.felt == OPEN.answer(dialogue, reply).turn.change


def test_every_kind_of_contempt_gives_its_reason():
    with (LEXICON / "contempt_en.toml").open("rb") as file:
        assert all(entry["why"] for entry in tomllib.load(file)["kinds"].values())


@pytest.mark.parametrize(
    ("reply", "ends"),
    [
        ("How did you say goodbye to her on that day?", False),
        ("Her last goodbye must still hurt.", False),
        ("Goodbye.", True),
        ("I have to say goodbye now.", True),
        ("Bye for now, and think of your last goodbye.", True),
    ],
)
def test_only_a_goodbye_that_is_said_ends_a_dialogue(reply: str, ends: bool):
    assert (OPEN.answer(at(85), reply).outcome is Outcome.FAREWELL) is ends
    assert WORLD.answer(at(85), reply).outcome is Outcome.FAREWELL


def test_an_echo_and_what_it_names_stand_in_the_first_step():
    dialogue = at(40)
    says = five_steps(explain_reply(dialogue, SCENARIO.opening, OPEN.config)).says
    assert "It is mostly the user's own words, an echo" in says
    assert f"Not counted, as it is an echo: {SCENARIO.facts[0].cue}" in says
