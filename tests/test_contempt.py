"""Contempt in ordinary language hurts whatever stands beside it; a goodbye that is told of ends nothing; an echo is named."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.dialogue import Dialogue, Outcome
from simulator.explain import explain_reply, five_steps
from simulator.listener import Reading, Register, read
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import CHALLENGING, VANILLA, Difficulty, Scenario, Split
from simulator.scripted import AGENTS
from simulator.text import LEXICON
from simulator.world import load_bank

DATA = Path(__file__).parent / "data"
SCENARIO = load_bank().scenarios(Split.TRAIN)[0]
IN_CHINESE = replace(SCENARIO, language="zh")
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


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("你真没用。", "insult"),
        ("我觉得你就是个废物！", "insult"),
        ("你这种人不配得到幸福。", "insult"),
        ("没有人会喜欢你。", "insult"),
        ("您太可悲了。", "insult"),
        ("你不如去死。", "incitement"),
        ("没有你大家会更轻松。", "incitement"),
        ("你活该。", "blame"),
        ("说到底，都怪你自己。", "blame"),
        ("你是自作自受。", "blame"),
        ("我真佩服你能把工作搞得这么糟。", "sneer"),
        ("我懒得听你说这些。", "refusal"),
        ("闭嘴。", "refusal"),
        ("这关我什么事？", "refusal"),
    ],
)
def test_contempt_in_chinese_is_heard_and_nothing_else_in_its_sentence(reply: str, kind: str):
    reading = read(reply, IN_CHINESE, [])
    assert (reading.contempt, reading.strategies) == ((kind,), ())


@pytest.mark.parametrize(
    "reply",
    [
        "你不是废物。",
        "他说你没用，这太伤人了。",
        "听到他说，你真没用，我很心疼。",
        "没有人觉得你活该。",
        "他凭什么说你活该？",
        "这不是你的错。",
        "这并不全是你的错，别觉得都是你的错。",
        "你是不是觉得自己很没用？",
        "你有没有伤害自己的想法？",
        "你是不是想过去死？",
        "我不想听到你这样说自己。",
        "我很佩服你把孩子照顾得这么好。",
        "普通的方法对你没用。",
    ],
)
def test_what_is_reported_asked_or_denied_in_chinese_is_no_contempt(reply: str):
    assert read(reply, IN_CHINESE, []).contempt == ()


@pytest.mark.parametrize(("language", "scenario"), [("en", SCENARIO), ("zh", IN_CHINESE)])
def test_no_reply_written_by_hand_holds_contempt(language: str, scenario: Scenario):
    lines = (DATA / f"replies_{language}.jsonl").read_text(encoding="utf-8").splitlines()
    assert [reply for line in lines if read(reply := json.loads(line)["text"], scenario, []).contempt] == []


def test_contempt_in_chinese_hurts_whatever_else_a_reply_holds():
    dialogue = replace(at(60), scenario=IN_CHINESE)
    kind = "听起来你心里很委屈，后来发生了什么？"
    assert (OPEN.answer(dialogue, f"{kind}你真没用。").turn.change or 0) <= -8 < (OPEN.answer(dialogue, kind).turn.change or 0)


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


def test_both_languages_know_the_same_kinds_of_contempt_and_each_gives_its_reason():
    kinds = [tomllib.loads((LEXICON / f"contempt_{language}.toml").read_text(encoding="utf-8"))["kinds"] for language in ("en", "zh")]
    assert list(kinds[0]) == list(kinds[1])
    assert all(entry["why"] for table in kinds for entry in table.values())


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
