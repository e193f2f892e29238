"""Chinese: strategies, overlap, length, fluency, and a dialogue about a Chinese profile."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import Skill, appraise
from simulator.explain import explain_reply, five_steps
from simulator.lexicon import MAX_READ, lexicon
from simulator.listener import Register, cues_in, is_echo, read, similarity, strategies_in
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage.formats import scenario_of
from simulator.scenario import Difficulty, Scenario, Split
from simulator.text import LEXICON, by_language, content_grams, fluency_in_chinese, language_of, num_words

ROOT = Path(__file__).resolve().parent.parent
REPLIES = Path(__file__).parent / "data" / "replies_zh.jsonl"
SPOKEN = [
    ("是我刚才太心急了，向你道歉。", ("apology",)),
    ("这种情况最好去医院看看。", ("referral",)),
    ("对你来说，家意味着什么？", ("guided_reflection",)),
    ("一方面你想走，另一方面你又放不下他们。", ("both_sides",)),
    ("这根本不是你的错。", ("siding",)),
    ("他也许是怕你失望才没说。", ("motives",)),
    ("你不妨先给她写张便条。", ("suggestion",)),
    ("你真的很有担当。", ("praise",)),
    ("你现在一定很委屈。", ("reflection",)),
    ("也就是说，他们答应了又反悔。", ("restatement",)),
    ("后来他回来了吗？", ("question",)),
    ("我在这儿，你慢慢说。", ("listening",)),
    ("别担心，会好起来的。", ("reassurance",)),
    ("我小时候也搬过很多次家。", ("self_disclosure",)),
    ("研究表明，睡前看屏幕会推迟入睡。", ("information",)),
    ("我不是专家，说不准。", ("hedging",)),
]
SMALL_TALK = ["今天的云真好看。", "会议室在三楼。", "谢谢，收到。", "他家养了两只猫。", "晚饭吃面条。"]


def scenario(**changes: object) -> Scenario:
    record = {"id": "a", "player": "* 姓名：林夏\n* 年龄：30岁\n* 职业：教师", "scene": "烤箱坏了。", "task": "希望对方真正共情自己"}
    record |= {"main_cha": "被动型", "first_talk": "今天烤箱又坏了，蛋糕全糊了。"}
    return replace(scenario_of(record, split=Split.TRAIN), **changes)


@pytest.mark.parametrize(("reply", "heard"), SPOKEN)
def test_each_strategy_is_heard_in_chinese(reply: str, heard: tuple[str, ...]):
    assert strategies_in(reply) == heard


@pytest.mark.parametrize("reply", SMALL_TALK)
def test_small_talk_in_chinese_shows_no_strategy(reply: str):
    assert strategies_in(reply) == ()


def test_both_languages_know_the_same_strategies_and_give_their_reasons():
    assert {ear.strategy for ear in lexicon("zh").ears} == {ear.strategy for ear in lexicon("en").ears}
    with (LEXICON / "zh.toml").open("rb") as file:
        assert all(entry["why"] for entry in tomllib.load(file)["strategies"].values())


def test_a_lexicon_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="must be one of en, zh to be read, got 'fr'"):
        lexicon("fr")


def test_signs_of_either_width_spaces_and_respectful_forms_make_no_difference():
    assert strategies_in("这 根本不是您的错!") == strategies_in("这根本不是你的错！") == ("siding",)


def test_a_text_is_in_the_language_of_most_of_its_words():
    assert language_of("He said 你好 and left.") == "en"
    assert language_of("我的 KPI 又没完成，boss 很生气。") == "zh"
    assert by_language("I hear you. 你一定很委屈。真的。") == [("en", "I hear you."), ("zh", " 你一定很委屈。真的。")]


def test_each_sentence_is_heard_in_its_own_language_unless_the_listener_knows_only_one():
    mixed = "None of this was your fault. 你现在一定很委屈。"
    assert strategies_in(mixed) == ("siding", "reflection")
    assert strategies_in(mixed, "zh") == ("reflection",)
    assert strategies_in(mixed, "en") == ("siding",)


def test_english_alone_never_compiles_the_chinese_lexicon():
    imports = "from simulator.lexicon import lexicon; from simulator.listener import strategies_in"
    code = f"{imports}; strategies_in('What happened?'); print(lexicon.cache_info().currsize)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout == "1\n"


def test_what_carries_meaning_are_pairs_of_characters_between_function_words():
    assert content_grams("我的烤箱又坏了") == {"烤箱"}
    assert content_grams("oven") == frozenset()
    assert similarity("烤箱坏了。", "烤箱坏了！") == 1.0
    assert similarity("烤箱修理", "钢琴卖掉") == 0.0
    assert similarity("钢琴卖掉", "钢琴修理") == pytest.approx(1 / 5)


def test_length_counts_sixteen_characters_as_ten_words():
    assert num_words("一二三四五六七八" * 2) == 10
    assert num_words("two words") == 2


def test_what_was_told_is_taken_up_by_what_came_up_with_it():
    dialogue = Dialogue(scenario=scenario(), difficulty=Difficulty.along(0.5), seed=0)
    story = dialogue.then(told("烤箱又坏了，蛋糕全糊了。"), said("嗯。"), told("烤箱是爷爷买的，他去年走了。")).story
    assert [fact.cue for fact in story.facts] == ["烤箱又坏了", "烤箱是爷爷买的"]
    assert cues_in("蛋糕和烤箱都毁了？", story) == (0,)
    assert cues_in("爷爷买的东西都很结实。", story) == (1,)
    assert cues_in("蛋糕糊了，烤箱也坏了，爷爷一定会心疼。", story) == (0, 1)
    assert cues_in("天气真好。", story) == ()


def test_a_copy_of_what_the_user_said_says_nothing():
    said = "我昨天和妈妈吵了一架，她说我从来不关心这个家。"
    assert read("你昨天和妈妈吵了一架，她说你从来不关心这个家。", scenario(), [], said=[said]).strategies == ()
    assert not is_echo("你说妈妈觉得你不关心这个家，那时候你心里是什么感觉？", [said], "zh")


def test_goodbye_is_heard_but_not_talk_of_one():
    assert read("那今天先到这里，再见！", scenario(), []).farewell
    assert not read("你还没来得及跟他说再见。", scenario(), []).farewell


def labelled() -> list[str]:
    return [json.loads(line)["text"] for line in REPLIES.open(encoding="utf-8")]


def test_ordinary_chinese_passes_the_fluency_gate():
    replies = labelled()
    assert sum(fluency_in_chinese(reply) >= 0.7 for reply in replies) >= 0.98 * len(replies)


def test_characters_in_disorder_do_not_pass_the_fluency_gate():
    chance = random.Random(0)
    replies = ["".join(chance.sample(text, len(text))) for text in ("".join(chance.sample(labelled(), 6)) for _ in range(100))]
    assert sum(fluency_in_chinese(reply) < 0.5 for reply in replies) >= 0.95 * len(replies)


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "。。。",
        "I hear how much it hurts.",
        "你很你很你很你很你很你很",
        "哈哈哈哈哈哈哈哈哈哈哈哈哈哈哈",
        "佩服，勇气，倾听，建议，抱歉，难过，支持，努力，善良，温柔，陪伴，安慰，理由，错误，权利，分析",
        "我理解你。" * 20,
        "的你了我很把，了在的们，吗我的不的。",
        "你 feel very sad because 的 nobody listened to you at home yesterday evening 了",
    ],
)
def test_garble_and_what_repeats_itself_do_not_pass_the_fluency_gate(reply: str):
    assert fluency_in_chinese(reply) < 0.5


def told(text: str) -> Turn:
    return Turn(speaker=Speaker.USER, text=text, emotion=40)


def said(text: str) -> Turn:
    return Turn(speaker=Speaker.AGENT, text=text)


def test_the_embedded_user_converses_about_a_chinese_profile_and_explains_itself():
    user = RuleUser(RuleUserConfig())
    dialogue = user.begin(scenario(), Difficulty.along(0.3), seed=0)
    for reply in ("后来烤箱修好了吗？", "蛋糕全糊了，你一定很委屈。", "别担心，会好起来的。", "…", "What a pity.", "嗯" * 500):
        explanation = explain_reply(dialogue, reply, user.config)
        reaction = user.answer(dialogue, reply)
        assert explanation.points.after == reaction.turn.emotion
        assert all(text for _, text in five_steps(explanation).named())
        dialogue = dialogue.then(said(reply), reaction.turn)
    assert [turn.heard for turn in dialogue.turns[2::2]][:3] == [("question",), ("reflection",), ("reassurance",)]


def test_grounding_is_read_in_chinese():
    dialogue = RuleUser(RuleUserConfig()).begin(scenario(), Difficulty.along(0.3), seed=0)
    assert appraise(dialogue, "蛋糕都糊了，烤箱还能修吗？").shown[Skill.GROUNDING]
    assert not appraise(dialogue, "你一定很委屈。").shown[Skill.GROUNDING]


def test_a_user_does_not_follow_a_reply_in_another_language():
    dialogue = RuleUser(RuleUserConfig()).begin(scenario(), Difficulty.along(0.3), seed=0)
    appraisal = appraise(dialogue, "You must feel so hurt about the oven.")
    assert (appraisal.reading.strategies, appraisal.reading.clarity) == ((), 0.0) and appraisal.worth < 0


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_comes_after_the_end_of_reading_is_not_heard(language: str):
    filler, move = {"en": ("and so on. ", "You should call him."), "zh": ("还有一些事。", "你可以给他打个电话。")}[language]
    long = filler * (MAX_READ // len(filler) + 1)
    assert "suggestion" in strategies_in(filler + move, language)
    assert strategies_in(long + move, language) == strategies_in(filler, language)


def test_function_words_are_told_apart_by_their_characters():
    assert similarity("然后呢？", "为什么呢？") < 0.5
    assert similarity("然后呢？", "然后呢？") == 1.0


def test_what_cannot_be_seen_does_not_part_characters():
    plain = "烤箱坏了那天你一定很难过。"
    spoilt = "\u200b".join(plain)
    assert similarity(plain, spoilt) == 1.0
    assert strategies_in(plain) == strategies_in(spoilt)
    assert num_words(plain) == num_words(spoilt)


def test_a_profile_in_chinese_is_read_in_either_register():
    dialogue = RuleUser(RuleUserConfig(register=Register.WORLD)).begin(scenario(), Difficulty.along(0.3), seed=0)
    assert appraise(dialogue, "那天你一定很难过吧。", register=Register.WORLD).reading.clarity == 1.0
