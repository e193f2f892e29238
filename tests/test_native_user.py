"""The embedded user as somebody out of a native profile: the rule's feelings, in the profile's language, without hints."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import hint_in
from simulator.explain import replay
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import profile_of, scenario_of
from simulator.sage.user import NativeUser
from simulator.scenario import VANILLA, Difficulty, PersonaType, Scenario, Split
from simulator.world import load_bank

CHINESE = (
    "听起来你真的很累，也很委屈。",
    "后来怎么样了？",
    "你应该早点睡。",
    "我懂你的感受，你已经做得很好了。",
    "哦。",
    "那你现在最担心的是什么？",
)
ENGLISH = (
    "That sounds exhausting.",
    "What happened then?",
    "You should sleep more.",
    "I hear you, you did well.",
    "Oh.",
    "What worries you?",
)


def native(*, persona: PersonaType = PersonaType.PASSIVE, language: str = "zh") -> Scenario:
    kinds = {PersonaType.NEGATIVE: "负面型", PersonaType.PASSIVE: "被动型", PersonaType.AVOIDANT: "回避型"}
    record = {
        "id": "p1",
        "player": "* 姓名：林小雨\n* 年龄：26岁\n* 职业：护士",
        "scene": "林小雨连续三周值夜班，昨天又被护士长批评了。" if language == "zh" else "She has worked nights for three weeks.",
        "main_cha": kinds[persona],
        "task": "你希望对方真正共情自己",
        "first_talk": "我今天又值了夜班，真的很累。" if language == "zh" else "I had the night shift again, I am so tired.",
    }
    return scenario_of(record, split=Split.HELDOUT)


def conversation(user: RuleUser, scenario: Scenario, replies: tuple[str, ...], *, seed: int, difficulty: Difficulty = VANILLA) -> Dialogue:
    dialogue = user.begin(scenario, difficulty, seed=seed)
    for reply in replies:
        reaction = user.answer(dialogue, reply)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), reaction.turn, outcome=reaction.outcome)
        if dialogue.outcome is not None:
            break
    return dialogue


def said_by(dialogue: Dialogue) -> list[str]:
    return [turn.text for turn in dialogue.turns if turn.speaker is Speaker.USER]


@pytest.mark.parametrize("preset", Preset)
@pytest.mark.parametrize("persona", PersonaType)
def test_somebody_from_a_chinese_profile_says_nothing_in_english(persona, preset):
    user = NativeUser(RuleUserConfig(preset=preset))
    for strictness in (0.1, 0.5, 0.9):
        for seed in range(10):
            played = conversation(user, native(persona=persona), CHINESE, seed=seed, difficulty=Difficulty.along(strictness))
            assert not [text for text in said_by(played) if re.search("[A-Za-z]", text) or not text]
            assert len(set(said_by(played)[1:])) > len(played.replies()) / 2


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_opening_is_the_profiles_and_nothing_hints_at_the_wish(language):
    user, scenario = NativeUser(RuleUserConfig()), native(language=language)
    replies = CHINESE if language == "zh" else ENGLISH
    for seed in range(20):
        played = conversation(user, scenario, replies, seed=seed, difficulty=Difficulty.along(0.1))
        assert said_by(played)[0] == scenario.opening
        assert not [text for text in said_by(played) if hint_in(text)]


@pytest.mark.parametrize("preset", Preset)
def test_what_it_feels_is_the_rules_and_the_words_alone_are_its_own(preset):
    config, scenario = RuleUserConfig(preset=preset), native()
    native_one = conversation(NativeUser(config), scenario, CHINESE, seed=3)
    for index, turn in enumerate(native_one.turns[:-1]):
        if turn.speaker is Speaker.AGENT:
            plain = RuleUser(config).answer(replace(native_one, turns=native_one.turns[:index], outcome=None), turn.text)
            answer = native_one.turns[index + 1]
            assert (answer.emotion, answer.change, answer.thought) == (plain.turn.emotion, plain.turn.change, plain.turn.thought)
            assert answer.text != plain.turn.text


def test_somebody_of_the_built_in_world_speaks_as_ever():
    scenario = load_bank().scenarios(Split.HELDOUT)[5]
    one, other = (conversation(kind(RuleUserConfig()), scenario, ENGLISH, seed=2) for kind in (NativeUser, RuleUser))
    assert one == other


def test_whoever_asks_is_pointed_at_the_story():
    user, scenario = NativeUser(RuleUserConfig()), native()
    answer = said_by(conversation(user, scenario, ("后来怎么样了？",), seed=0))[1]
    assert "那件事" in answer


def test_a_dialogue_is_recomputed_word_for_word():
    config = RuleUserConfig(preset=Preset.SAGE)
    played = conversation(NativeUser(config), native(), CHINESE, seed=4)
    steps = list(replay(played, config))
    assert len(steps) > 3 and [step.recomputed for step in steps] == [step.recorded for step in steps]


def test_a_profile_with_blank_first_words_has_none():
    record = {**profile_of(native()), "first_talk": " \n"}
    assert scenario_of(record, split=Split.HELDOUT).opening == ""
    assert scenario_of({**record, "first_talk": None}, split=Split.HELDOUT).opening == ""
