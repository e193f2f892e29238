"""What a listener hears: strategies, facts, repetition, fluency, contempt and goodbyes, in English and in Chinese."""

from __future__ import annotations

import json
import random
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import PUZZLED_BELOW, Skill, appraise
from simulator.explain import Explanation
from simulator.lexicon import Lexicon, either, lexicon
from simulator.listener import Register, clarity, cues_in, is_echo, nouns, parse, parse_text, strategies_in
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage.formats import scenario_of
from simulator.scenario import CHALLENGING, VANILLA, Difficulty, Fact, Scenario, Split
from simulator.scripted import AGENTS, fill
from simulator.text import as_seen, content_words, fluency, fluency_in_chinese, language_of, num_words, words_of
from simulator.world import LEXICON, load_bank, read_toml

SCENARIO = load_bank().scenarios(Split.TRAIN)[0]
FACTS = (
    Fact(text="My sister sold our mother's piano last week without a word.", cue="the piano"),
    Fact(text="I used to play on Sunday evenings.", cue="those evenings"),
)
PIANO = replace(SCENARIO, facts=FACTS, other="sister")
SAID = ["My sister sold our mother's piano last week without a word. I just need someone to tell me what to do."]
OPEN, WORLD = (RuleUser(RuleUserConfig(register=register)) for register in (Register.OPEN, Register.WORLD))


def chinese() -> Scenario:
    record = {"id": "a", "player": "* 姓名：林夏\n* 年龄：30岁\n* 职业：教师", "scene": "烤箱坏了。", "task": "希望对方真正共情自己"}
    record |= {"main_cha": "被动型", "first_talk": "今天烤箱又坏了，蛋糕全糊了。"}
    return scenario_of(record, split=Split.TRAIN)


def similarity(reply: str, earlier: str) -> float:
    language = "en" if reply.isascii() else "zh"
    return parse_text(reply, language).overlap(parse_text(earlier, language))


def replies_by_hand(language: str) -> list[str]:
    lines = (Path(__file__).parent / "data" / f"replies_{language}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


SHOWN = [
    ("What did your manager say when you told her?", ("question",)),
    ("Has your landlord answered since then?", ("question",)),
    ("You should talk to your landlord before the end of the month.", ("suggestion",)),
    ("Don't answer him tonight.", ("suggestion",)),
    ("Perhaps he was scared of losing you and did not know how to say it.", ("motives",)),
    ("None of this was your fault.", ("siding",)),
    ("I admire how you kept going in spite of everything.", ("praise",)),
    ("Telling your father took a lot of courage.", ("praise",)),
    ("Part of you wants to forgive him, and part of you is still furious.", ("both_sides",)),
    ("Take your time, I'm listening.", ("listening",)),
    ("It sounds like you felt completely alone that night.", ("reflection",)),
    ("If a friend were in your shoes, what would you tell her?", ("guided_reflection",)),
    ("Don't worry, things will work out.", ("reassurance",)),
    ("Have you thought about seeing a therapist about it?", ("referral",)),
    ("I'm sorry, I rushed you there.", ("apology",)),
    ("You rang the school three times, and nobody called you back.", ("restatement",)),
    ("Same here, I lost my job last winter.", ("self_disclosure",)),
    ("Swelling after a sprain usually goes down within two weeks.", ("information",)),
    ("I can't judge from here who meant what.", ("hedging",)),
    # Shapes that look like another move.
    ("I'm sorry for your loss.", ()),
    ("No, I'm sorry, but he lied to you.", ("siding",)),
    ("When did you tell her that you were sad?", ("question",)),
    ("Why not ask your sister about the piano this week?", ("suggestion",)),
    ("Ask a pharmacist about the tablets.", ("referral",)),
    ("If you are sad on Sunday, call me.", ()),
    ("You moved here alone last autumn.", ("restatement",)),
    ("You moved here alone last autumn, that took courage.", ("praise",)),
    # Small talk and bags of keywords.
    ("My dentist drives the same bus.", ()),
    ("You should see the size of that pumpkin.", ()),
    ("Have a lovely weekend!", ()),
    ("Admire proud fault listening sides.", ()),
    # Chinese.
    ("是我刚才太心急了，向你道歉。", ("apology",)),
    ("对你来说，家意味着什么？", ("guided_reflection",)),
    ("一方面你想走，另一方面你又放不下他们。", ("both_sides",)),
    ("这根本不是你的错。", ("siding",)),
    ("他也许是怕你失望才没说。", ("motives",)),
    ("你不妨先给她写张便条。", ("suggestion",)),
    ("你现在一定很委屈。", ("reflection",)),
    ("后来他回来了吗？", ("question",)),
    ("我在这儿，你慢慢说。", ("listening",)),
    ("今天的云真好看。", ()),
    ("谢谢，收到。", ()),
]


@pytest.mark.parametrize(("reply", "strategies"), SHOWN)
def test_strategies_are_heard_by_the_shape_of_a_move(reply: str, strategies: tuple[str, ...]):
    assert strategies_in(reply) == strategies


def test_every_move_of_the_scripted_agents_is_heard_as_its_own_strategy():
    for strategy, pools in read_toml("moves").items():
        for line in (*pools["grounded"], *pools["plain"]):
            assert strategy in strategies_in(fill(line, SCENARIO, cue="the piano", feeling="hurt")), line


def test_shuffled_words_lose_what_the_sentence_showed():
    chance = random.Random(0)
    english = [(reply, strategies[0]) for reply, strategies in SHOWN if reply.isascii() and strategies]
    pairs = [(strategy, chance.sample(reply.split(), len(reply.split()))) for reply, strategy in english for _ in range(5)]
    heard = [(strategy, strategies_in(" ".join(words))) for strategy, words in pairs]
    assert sum(len(strategies) > 1 for _, strategies in heard) <= 0.1 * len(heard)
    assert sum(strategy in strategies for strategy, strategies in heard) <= 0.25 * len(heard)


def test_a_shape_may_reach_across_sentences_and_spelling_capitals_width_and_respectful_forms_make_no_difference():
    apart = "If you stay, you keep the garden. If you go, you gain an hour a day."
    assert "both_sides" in strategies_in(apart) and "both_sides" not in strategies_in(apart.split(".")[0] + ".")
    assert strategies_in("YOU’RE NOT TO BLAME") == strategies_in("you are not to blame.") == ("siding",)
    assert strategies_in("“I can’t  know that,” – really") == ("hedging",)
    assert strategies_in("这 根本不是您的错!") == strategies_in("这根本不是你的错！") == ("siding",)


def test_both_languages_have_the_same_strategies_and_kinds_of_contempt_with_reasons():
    english, chinese_ = ({pattern.strategy for pattern in lexicon(language).patterns} for language in ("en", "zh"))
    assert english == chinese_
    for name in ("{}", "contempt_{}"):
        tables = [tomllib.loads((LEXICON / f"{name.format(language)}.toml").read_text(encoding="utf-8")) for language in ("en", "zh")]
        kinds = [table.get("strategies") or table["kinds"] for table in tables]
        assert set(kinds[0]) == set(kinds[1]) and all(entry["why"] for table in kinds for entry in table.values())
    with pytest.raises(ValueError, match=r"scenario\.language"):
        lexicon("fr")


def test_each_sentence_is_heard_in_its_own_language_unless_the_listener_knows_only_one():
    mixed = "None of this was your fault. 你现在一定很委屈。"
    assert strategies_in(mixed) == ("siding", "reflection")
    assert (strategies_in(mixed, "zh"), strategies_in(mixed, "en")) == (("reflection",), ("siding",))
    assert (language_of("He said 你好 and left."), language_of("我的 KPI 又没完成，boss 很生气。")) == ("en", "zh")


@pytest.mark.parametrize(("filler", "move"), [("and so on. ", "You should call him."), ("还有一些事。", "你可以给他打个电话。")])
def test_words_beyond_the_limit_are_not_heard_and_repetition_costs_no_time(filler: str, move: str):
    language = "en" if move.isascii() else "zh"
    assert "suggestion" in strategies_in(filler + move, language)
    assert strategies_in(filler * (Lexicon.MAX_READ // len(filler) + 1) + move, language) == strategies_in(filler, language)
    # Expressions that take the same words in two ways would double their work with each repetition.
    for words in ("all", "gladly", "has just", "so very", "not"):
        assert strategies_in(f"your friend {' '.join(40 * [words])}.") is not None


PATTERNS = ["you are", "you (?:were|have been)", "(?:that|this|it) is", "(?:so |very )?tired", "(?:a|b)+c", "(?<!if )yes", "(?<=^ )so"]
PATTERNS += ["(?!so )[a-z]+o", "th[aeiou]n", "i?t", r"wait\?", "(?:how|what (?:a|an)) sad", "no way|very thin", r"(?:a[|)]b|c\)d)e"]


def test_sorted_alternatives_match_where_the_plain_ones_do():
    plain, fast = re.compile(f" (?:{'|'.join(PATTERNS)})"), re.compile(f" (?:{either(PATTERNS)})")
    words = "you are were have been that this it is so very tired a b ab abc if yes no go than thin then t wait wait? how what an sad a|be"
    chance = random.Random(0)
    texts = [" " + " ".join(chance.choices(words.split(), k=chance.randint(1, 5))) for _ in range(1000)]
    verdicts = [bool(plain.search(text)) for text in texts]
    assert [bool(fast.search(text)) for text in texts] == verdicts and 100 < sum(verdicts) < 950
    with pytest.raises(ValueError, match="unpack"):
        either(["(?:a|b", "c"])


# Facts, repetition, echoes


def test_facts_are_recognised_by_their_nouns_and_not_by_the_other_person():
    assert cues_in("I hear how much the old piano meant on those evenings.", PIANO) == (0, 1)
    assert cues_in("You must feel hurt.", PIANO) == cues_in("Maybe your sister was afraid.", PIANO) == ()
    named, said_something = "The piano, the piano, your sister.", "The piano was dear to all of them."
    assert (parse(named, PIANO, said=SAID).cues, parse(named, PIANO, said=SAID).dropped) == ((), (0,))
    assert parse(said_something, PIANO, said=SAID).cues == (0,)
    untold = "And the evenings, what were they like with the piano?"
    assert [parse(untold, PIANO, said=SAID, register=register).cues for register in (Register.OPEN, Register.WORLD)] == [(0,), (0, 1)]


def test_turns_without_facts_are_taken_up_by_the_content_that_came_up_with_them():
    turns = [Turn(speaker=Speaker.USER, text=text, emotion=40) for text in ("烤箱又坏了，蛋糕全糊了。", "烤箱是爷爷买的，他去年走了。")]
    dialogue = Dialogue(
        scenario=chinese(), difficulty=VANILLA, seed=0, turns=(turns[0], Turn(speaker=Speaker.AGENT, text="嗯。"), turns[1])
    )
    story = dialogue.story
    assert [fact.cue for fact in story.facts] == ["烤箱又坏了", "烤箱是爷爷买的"]
    assert [cues_in(text, story) for text in ("蛋糕和烤箱都毁了？", "爷爷买的东西都很结实。", "天气真好。")] == [(0,), (1,), ()]
    assert appraise(dialogue, "蛋糕都糊了，烤箱还能修吗？").shown[Skill.GROUNDING]
    assert not appraise(dialogue, "你一定很委屈。").shown[Skill.GROUNDING]


def test_similarity_is_the_jaccard_overlap_of_content():
    assert similarity("You could sell the piano.", "You could sell the piano.") == 1.0
    assert similarity("You could sell the piano.", "I hear a song.") == 0.0
    assert similarity("Sell the piano now.", "Sell the house now.") == pytest.approx(2 / 4)
    assert similarity("烤箱坏了。", "烤箱坏了！") == 1.0 and similarity("钢琴卖掉", "钢琴修理") == pytest.approx(1 / 5)
    assert similarity("然后呢？", "为什么呢？") < 0.5 and similarity("然后呢？", "然后呢？") == 1.0
    assert content_words("我的烤箱又坏了") == {"烤箱"} and content_words("the oven") == {"oven"}
    assert parse("Sell the piano now.", SCENARIO, ["Take a walk.", "Sell the piano now."]).similarity == 1.0


def test_small_talk_and_unmentioned_nouns_make_nothing_new_of_a_reply():
    reply = "You did nothing wrong with the piano."
    assert similarity(f"{reply} It is a long day.", reply) == 1.0
    unmentioned = sorted(nouns() - set(words_of(SCENARIO.opening)))[:2]
    first, second = (f"You did nothing wrong with the {thing}." for thing in unmentioned)
    assert parse(second, SCENARIO, [first], said=[SCENARIO.opening]).similarity == 1.0
    assert parse(second, SCENARIO, [first], said=[f"The {unmentioned[0]} and the {unmentioned[1]}."]).similarity < 1.0


@pytest.mark.parametrize(
    "reply", [SAID[0], "So your sister sold our mother's piano last week without a word.", "You just need someone to tell you what to do."]
)
def test_copied_words_say_nothing(reply: str):
    heard = parse(reply, PIANO, said=SAID)
    assert is_echo(reply, SAID) and heard.echo and (heard.strategies, heard.cues) == ((), ())


def test_a_retelling_in_other_words_is_no_copy():
    for reply in ("So she sold the piano, and nobody asked you first.", "What happened with the piano?"):
        assert not is_echo(reply, SAID) and parse(reply, PIANO, said=SAID).cues == (0,)
    said = "我昨天和妈妈吵了一架，她说我从来不关心这个家。"
    assert parse("你昨天和妈妈吵了一架，她说你从来不关心这个家。", chinese(), said=[said]).strategies == ()
    assert not is_echo("你说妈妈觉得你不关心这个家，那时候你心里是什么感觉？", [said], "zh")


# Letters, length, fluency

PLAIN = "I can hear how hurt you are, and this is not your fault."


@pytest.mark.parametrize(
    "disguised",
    [
        "I can h\u0435ar h\u043ew hurt y\u043eu \u0430re, and this is n\u043et your f\u0430ult.",
        "I c\u200ban he\u200dar how hu\u00adrt you ar\ufeffe, and th\u2060is is not your fault.",
        "I c\u0301an hea\u0308r how hur\u0300t you are, and this is not your fault.",
        "Ｉ ｃａｎ ｈｅａｒ ｈｏｗ ｈｕｒｔ ｙｏｕ ａｒｅ， ａｎｄ ｔｈｉｓ ｉｓ ｎｏｔ ｙｏｕｒ ｆａｕｌｔ．",
    ],
)
def test_a_disguised_reply_is_the_reply_again(disguised: str):
    assert as_seen(disguised) == as_seen(PLAIN) == PLAIN
    for register in Register:
        assert parse(disguised, SCENARIO, [PLAIN], register=register) == parse(PLAIN, SCENARIO, [PLAIN], register=register)
    assert parse(PLAIN, SCENARIO, [disguised]).similarity == 1.0


def test_length_counts_sixteen_characters_as_ten_words():
    assert num_words("一二三四五六七八" * 2) == 10 and num_words("two words") == 2
    spoilt = "\u200b".join("烤箱坏了那天你一定很难过。")
    assert similarity(spoilt, "烤箱坏了那天你一定很难过。") == 1.0 and num_words(spoilt) == num_words("烤箱坏了那天你一定很难过。")


def test_ordinary_replies_are_fluent():
    assert sum(fluency(reply) < PUZZLED_BELOW for reply in replies_by_hand("en")) < 0.05 * len(replies_by_hand("en"))
    assert sum(fluency_in_chinese(reply) >= 0.7 for reply in replies_by_hand("zh")) >= 0.98 * len(replies_by_hand("zh"))
    for short, long in (
        ("That's not your fault.", "That is not your fault."),
        ("She\u2019s hurt and you're sad.", "She is hurt and you are sad."),
    ):
        assert fluency(short) == fluency(long) == 1.0


def test_garble_is_not_fluent():
    for reply in ("I admire your same.", "The the piano of and.", "Listening admire fault sorry question piano.", "", "...!"):
        assert fluency(reply) <= 0.5, reply
    bags = [
        "",
        "I hear how much it hurts.",
        "你很你很你很你很你很你很",
        "哈" * 15,
        "佩服，勇气，倾听，建议，抱歉，难过，支持，努力，善良，温柔，陪伴，安慰，理由，错误，权利，分析",
    ]
    for reply in (*bags, "我理解你。" * 20, "的你了我很把，了在的们，吗我的不的。"):
        assert fluency_in_chinese(reply) < 0.5, reply
    chance = random.Random(0)
    mixed = ("".join(chance.sample(replies_by_hand("zh"), 6)) for _ in range(30))
    assert sum(fluency_in_chinese("".join(chance.sample(text, len(text)))) < 0.5 for text in mixed) >= 28


def test_the_worlds_register_follows_its_own_moves_about_this_scenario_only():
    scenario = load_bank().scenarios(Split.HELDOUT)[0]

    def clear(text: str, other: str = scenario.other) -> float:
        return clarity(text, Register.WORLD, facts=scenario.facts, other=other)

    for pools in read_toml("moves").values():
        for line in (*pools["grounded"], *pools["plain"]):
            assert clear(fill(line, scenario, cue=scenario.facts[0].cue, feeling="hurt")) == 1.0, line
    garble = ["Who else knows about the keys on the keys?", "What happened", "Maybe your daughter was not what the keys about the keys."]
    assert max(map(clear, garble)) < 0.7
    meant = {who: clear(f"Perhaps your {who} meant well and did not see your side.", "choir friend") for who in ("friend", "choir", "aunt")}
    assert meant["friend"] == 1.0 and max(meant["choir"], meant["aunt"]) < 0.9


def test_a_user_does_not_follow_a_reply_in_another_language():
    dialogue = OPEN.begin(chinese(), Difficulty.along(0.3), seed=0)
    appraisal = appraise(dialogue, "You must feel so hurt about the oven.")
    assert (appraisal.parsed.strategies, appraisal.parsed.clarity) == ((), 0.0) and appraisal.worth < 0
    assert appraise(dialogue, "那天你一定很难过吧。", register=Register.WORLD).parsed.clarity == 1.0


# Contempt and goodbyes


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("I think you're a complete idiot.", "insult"),
        ("You mentioned the piano and you are pathetic.", "insult"),
        ("Why don't you kill yourself?", "incitement"),
        ("You are to blame for the piano.", "blame"),
        ("I really admire how badly you handled the piano.", "sneer"),
        ("Shut up.", "refusal"),
        ("我觉得你就是个废物！", "insult"),
        ("没有你大家会更轻松。", "incitement"),
        ("说到底，都怪你自己。", "blame"),
        ("我真佩服你能把工作搞得这么糟。", "sneer"),
        ("这关我什么事？", "refusal"),
    ],
)
def test_contempt_is_heard_and_nothing_else_in_its_sentence(reply: str, kind: str):
    scenario = SCENARIO if reply.isascii() else replace(SCENARIO, language="zh")
    heard = parse(reply, scenario, said=[SCENARIO.opening])
    assert (heard.contempt, heard.strategies) == ((kind,), ())
    assert parse(reply, scenario, register=Register.WORLD).contempt == ()


def test_reported_asked_or_denied_expressions_are_no_contempt():
    english = ["You are not pathetic.", "He said you are worthless, and that hurt.", "Nobody thinks you are to blame for the piano."]
    english += ["Do you want to kill yourself?", "Please don't hurt yourself.", "I don't care what they say, you did well."]
    zh = ["你不是废物。", "听到他说，你真没用，我很心疼。", "没有人觉得你活该。", "你是不是觉得自己很没用？", "普通的方法对你没用。"]
    for language, replies in (("en", [*english, *replies_by_hand("en")]), ("zh", [*zh, *replies_by_hand("zh")])):
        assert [reply for reply in replies if parse(reply, replace(SCENARIO, language=language)).contempt] == []


def at(emotion: int, difficulty: Difficulty = VANILLA) -> Dialogue:
    dialogue = OPEN.begin(SCENARIO, difficulty, seed=0)
    return replace(dialogue, turns=(replace(dialogue.turns[0], emotion=emotion),))


@pytest.mark.parametrize("difficulty", [Difficulty.along(0.0), VANILLA, CHALLENGING])
def test_contempt_hurts_whatever_else_a_reply_holds(difficulty: Difficulty):
    dialogue = at(60, difficulty)
    reply = f"{AGENTS['L6'].reply(dialogue)} You are pathetic."
    assert (OPEN.answer(dialogue, reply).turn.change or 0) <= -8
    explanation = Explanation.of(dialogue, reply, OPEN.config)
    assert explanation.appraisal.worth == -1.0 and explanation.points.contempt == 8.0
    assert explanation.points.felt == OPEN.answer(dialogue, reply).turn.change


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
def test_only_a_goodbye_that_the_agent_says_ends_a_dialogue(reply: str, ends: bool):
    assert (OPEN.answer(at(85), reply).outcome is Outcome.FAREWELL) is ends
    assert WORLD.answer(at(85), reply).outcome is Outcome.FAREWELL
    assert parse("那今天先到这里，再见！", chinese()).farewell and not parse("你还没来得及跟他说再见。", chinese()).farewell
