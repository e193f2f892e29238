"""How the rule listener hears ordinary language, where the lexicon knows no pattern."""

from __future__ import annotations

import math
from configparser import ConfigParser
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from quoted import NO_ENGLISH, QUOTED, user_who_wishes

from simulator.dialogue import Speaker, Turn
from simulator.emotion import appraise
from simulator.hear import TellsInOrder
from simulator.listener import Register, read_by_rule
from simulator.ngrams import (
    SHIFT,
    SLOPE,
    WANTED,
    NgramClassifier,
    WordFeatures,
    WordVectors,
    margins,
    reading_from,
    shipped,
    sincerity,
    split_moves,
    told,
    told_and_wished,
)
from simulator.reading import Reading
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.scenario import VANILLA, Difficulty, Split
from simulator.world import LEXICON, load_bank

SCENARIO = load_bank().scenario("train/drum_practice_letter/empathy-passive")
USER = RuleUser(RuleUserConfig())
OPENED = USER.begin(SCENARIO, VANILLA, seed=1)
misheard = pytest.mark.xfail(reason="heard as empathy, and doubted", strict=True)


def heard(reply: str):
    return USER.reading(OPENED, reply)


@pytest.mark.parametrize(
    ("reply", "strategy"),
    [
        ("It hurts when somebody goes over your head and never says a word.", "reflection"),
        ("Why not knock on her door tomorrow with the new times on a card?", "suggestion"),
        ("And what did the landlord say then?", "question"),
        ("None of this is on you, and she should have come to you first.", "siding"),
        ("None of this is on you, she should have come to you first.", "siding"),
    ],
)
def test_ordinary_sentences_are_heard(reply: str, strategy: str):
    reading = heard(reply)
    assert strategy in reading.strategies and reading.clarity == 1.0 and not reading.contempt and 0 in reading.cues


@pytest.mark.parametrize(
    ("reply", "strategy"),
    [
        ("把花养得那么好，是你一早一晚伺候出来的，旁人学不来。", "praise"),
        pytest.param("花养成这样，得费多少个早晨啊，你真舍得下功夫。", "praise", marks=misheard),
        ("你种了这么久，一下子全没了，心里空落落的吧。", "restatement"),
    ],
)
def test_ordinary_chinese_is_heard(reply: str, strategy: str):
    scenario = replace(SCENARIO, language="zh", facts=(), other="", opening="邻居把我的花全拔了，一句话也没说。")
    dialogue = USER.begin(scenario, VANILLA, seed=1)
    assert strategy in USER.reading(dialogue, reply).strategies
    assert strategy not in read_by_rule(reply, dialogue.story, said=dialogue.said()).strategies


@pytest.mark.parametrize(
    "reply", ["Oh, how tragic, a whole letter. Shall I call the newspapers?", "Grow up, nobody cares about your silly drums."]
)
def test_mockery_and_contempt_show_no_strategy(reply: str):
    assert heard(reply).contempt and not heard(reply).strategies


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "🙂🙂",
        "Hm day, ink yes care of sorry the what.",
        "a" * 50_000,
        "ok " * 20_000,
        "Gracias por contarme todo esto.",
        "?!" * 20_000,
        "I am so sorry, that letter must have hurt. " + "a" * 50_000,
        "Wat vreselijk dat je dat moest meemaken, ik kan me voorstellen hoe alleen je je voelde.",
    ],
)
def test_what_makes_no_sense_never_pleases(reply: str):
    assert USER.answer(OPENED, reply).turn.change <= 0


@pytest.mark.parametrize(
    "words", ["Green ladders borrow the seven oceans while my spoon was singing", "I am so sorry, that sounds really hard"]
)
def test_many_marks_say_no_more_than_one(words: str):
    for one, *more in (("?", "???", "?!?!", "!?", " ? ? ? ?", "?" * 2900), ("!", "!!!!!!", "! ! !", "!" * 2900)):
        assert {heard(words + marks) for marks in more} == {heard(words + one)}


def test_marks_that_are_spread_count_three_times_at_most():
    three, many = (shipped("en").words([SCENARIO.opening], " ".join(["why?", "no!"] * num)) for num in (3, 30))
    marks = slice(-WordFeatures.NUM_NUMBERS + 3, -WordFeatures.NUM_NUMBERS + 5)
    assert three[marks].tolist() == many[marks].tolist() == [1.5, 1.5]


def test_moves_of_the_world_are_heard_by_the_lexicon_also_beside_other_sentences():
    move = f"How did it start with {SCENARIO.facts[0].cue}?"
    assert split_moves(OPENED, move) == (move, "") and heard(move).strategies == ("question",)
    both = f"{move} I will be here tomorrow as well."
    assert split_moves(OPENED, both) == (move, "I will be here tomorrow as well.") and "question" in heard(both).strategies


def test_the_reading_is_in_the_record_and_other_registers_keep_the_lexicon():
    assert USER.answer(OPENED, "And then?").turn.reading == heard("And then?")
    for config in (RuleUserConfig(register=Register.WORLD), RuleUserConfig(preset=Preset.SAGE)):
        assert RuleUser(config).answer(OPENED, "And then?").turn.reading is None


def test_users_from_profiles_are_heard_too():
    profile = replace(SCENARIO, facts=(), other="", opening="My neighbour wrote to the landlord about me.")
    opened = USER.begin(profile, VANILLA, seed=1)
    assert "reflection" in USER.reading(opened, "It hurts when somebody goes over your head and never says a word.").strategies


def test_what_stands_behind_the_words_changes_nothing_and_the_weights_are_packaged():
    reply = "Bless you, I would be livid, and I'd want to shout it down the stairs."
    for behind in (" 🙂", '"', " )"):
        assert heard(reply + behind).strategies == heard(reply).strategies
    assert split_moves(OPENED, reply + " 🙂") == ("", reply + " 🙂")
    setup = ConfigParser()
    setup.read(Path(__file__).parent.parent / "setup.cfg")
    assert "lexicon/*.npz" in setup["options.package_data"]["simulator"].split()


@pytest.mark.parametrize("reply", ["Ok.", "Yes.", "Hi.", "No.", "x."])
def test_a_word_or_two_are_neither_contempt_nor_about_anything(reply: str):
    assert not heard(reply).contempt and not heard(reply).cues


def test_a_fact_that_is_only_named_is_known_as_such():
    thing = SCENARIO.facts[0].cue
    assert heard(f"{thing}, {thing}.").dropped


def test_the_weights_survive_their_file(tmp_path):
    shipped("en").save(tmp_path / "ngrams.npz")
    again = NgramClassifier.load(tmp_path / "ngrams.npz")
    for reply in ("That must hurt.", "It hurts when somebody goes over your head and never says a word."):
        assert again.read(OPENED, reply) == heard(reply)
    assert again.regressions.thresholds == shipped("en").regressions.thresholds and again.short is not None


def test_damaged_weights_are_refused(tmp_path):
    whole = (LEXICON / "ngrams_en.npz").read_bytes()
    (tmp_path / "flipped.npz").write_bytes(whole[:900_000] + bytes([whole[900_000] ^ 1]) + whole[900_001:])
    for name in ("flipped.npz", "missing.npz"):
        with pytest.raises(ValueError, match=r"must be the rule listener's weights, got .*; reinstall Attune"):
            NgramClassifier.load(tmp_path / name)


def test_what_a_reply_answers_is_what_was_told_however_strict_the_user_is():
    def after(strictness: float) -> list[str]:
        dialogue = USER.begin(SCENARIO, Difficulty.along(strictness), seed=1)
        answer = TellsInOrder(RuleUserConfig()).answer(dialogue, "And what did the landlord say then?")
        return told_and_wished(dialogue.then(Turn(speaker=Speaker.AGENT, text="And what did the landlord say then?"), answer.turn))

    mild, strict = after(0.1), after(0.9)
    assert mild == strict and len(mild) == 2 and mild[0].startswith(SCENARIO.opening)
    # Users from profiles have no list of facts: what they said stays, once.
    profile = replace(SCENARIO, facts=(), other="", opening="Okay. I do not want to be cheered up.")
    assert told(USER.begin(profile, VANILLA, seed=1))[0].startswith("I do not want to be cheered up.")


def test_what_may_not_be_meant_counts_less():
    def worth(p: float) -> float:
        reading = reading_from({"praise", "takes_up"}, [0], sincerity=1.0 - p)
        return appraise(OPENED, "Well done.", reading=reading).worth

    assert worth(0.4) == pytest.approx(0.6 * worth(0.0) - 0.4) and worth(0.9) < 0.0
    by_curve = sincerity({"irony": 0.0, "contempt": 0.5, "senseless": 0.5, "praise": 1.0}, {SLOPE: 1.0, SHIFT: math.log(2.0)})
    assert by_curve == pytest.approx(1.0 / 7.0, abs=0.005)  # the odds are 3 to 1, and twice that with the shift
    # What is heard for sure is not also improbable.
    assert reading_from({"irony"}, [], sincerity=0.1).sincerity == 1.0


@pytest.mark.parametrize(("part", "sincere", "insincere"), [("dev", 0.75, 0.3), ("dev_2", 0.65, 0.4)])
def test_mockery_is_believed_less_than_kindness(part: str, sincere: float, insincere: float):
    train = pytest.importorskip("simulator.encoder.train")
    believed: dict[bool, list[float]] = {True: [], False: []}
    for row in train.read(train.REPLIES / f"{part}.jsonl"):
        asked = shipped("en").asked(row.dialogue, row.reply)
        if asked.logits:
            probabilities = {name: 1.0 / (1.0 + np.exp(-logit)) for name, logit in asked.logits.items()}
            believed[row.label["tone"] == "plain" and row.label["coherence"] == 2].append(sincerity(probabilities, asked.by.thresholds))
    assert np.median(believed[True]) > sincere and np.median(believed[False]) < insincere


def test_the_shortest_replies_are_read_by_the_lexicon_and_so_are_short_chinese_ones():
    assert shipped("en").asked(OPENED, "That hurts.") == (heard("That hurts."), "", {}, None)
    assert shipped("zh").short is None


def test_three_moves_are_all_heard():
    reply = "It hurts when somebody goes over your head. And what did the landlord say then? None of this is on you."
    assert set(heard(reply).strategies) >= {"reflection", "question", "siding"}


def test_a_user_hears_sooner_what_it_wishes_for():
    thresholds = {"praise": 2.0, "siding": 2.0, WANTED: 0.5}
    over = margins({"praise": 1.0, "siding": 1.0}, thresholds, wanted={"praise"})
    assert over == {"praise": 0.5, "siding": -1.0}
    for one in (shipped("en").regressions, shipped("en").short):
        assert one is not None and one.thresholds[WANTED] < one.thresholds["praise"]


def test_word_vectors_put_like_words_together():
    sad, grief, bus = map(WordVectors.shipped().mean, ("sad", "grief", "bus"))
    assert np.linalg.norm(sad) == pytest.approx(1.0, abs=0.02) and sad @ grief > sad @ bus + 0.2
    assert not WordVectors.shipped().mean("the qzxv").any()


@pytest.mark.parametrize(("language", "parts"), [("en", ("dev", "dev_2")), ("zh", ("dev_zh",))])
def test_the_curves_of_sincerity_are_those_that_training_fits(language: str, parts: tuple[str, ...]):
    train = pytest.importorskip("simulator.encoder.train")
    rows = [row for part in parts for row in train.read(train.REPLIES / f"{part}.jsonl")]
    made = shipped(language)
    for one in filter(None, (made.regressions, made.short)):
        kept = {name: one.thresholds[name] for name in (SLOPE, SHIFT)}
        assert train.curve_of_rule(made, rows, one) == pytest.approx(kept, abs=0.01)


@pytest.mark.parametrize(
    "reply",
    [
        "So, you have no Hugging Face?",
        "Do you ever stop whining about that coffee?",
        "Are you always this dramatic?",
        "What is wrong with you?",
        "Why do you always cry about this?",
        "Well done, genius.",
        "Well, those drums won't pay for themselves, will they? Poor you, having to practise all those evenings.",
        "Your landlord is sure of the drums, and the letter stopped going as you were afraid that the neighbour felt it.",
    ],
)
@pytest.mark.parametrize("strictness", [0.1, 0.2, 0.35])
def test_mockery_and_babble_please_no_user(reply: str, strictness: float):
    for scenario in load_bank().scenarios(Split.TRAIN)[:240:10]:
        opened = USER.begin(scenario, Difficulty.along(strictness), seed=1)
        assert (USER.answer(opened, reply).turn.change or 0) <= 0, scenario.scenario_id


@pytest.mark.parametrize("reply", NO_ENGLISH)
def test_what_is_no_english_makes_no_sense_and_is_not_held_for_contempt(reply: str):
    assert heard(reply) == Reading(clarity=0.0)
    for strictness in (0.0, 0.2):
        opened = USER.begin(SCENARIO, Difficulty.along(strictness), seed=1)
        assert -10 < (USER.answer(opened, reply).turn.change or 0) <= 0


@pytest.mark.parametrize(
    ("intention", "reply", "pleases"),
    [
        pytest.param(*one, marks=pytest.mark.xfail(reason="doubted", strict=True)) if one[1][:4] in ("Poor", "Ugh.") else one
        for one in QUOTED
    ],
)
def test_quoted_sentences_please_whom_they_should(intention: str, reply: str, pleases: bool):
    opened = USER.begin(user_who_wishes(intention), VANILLA, seed=1)
    assert ((USER.answer(opened, reply).turn.change or 0) > 0) == pleases


def test_a_short_restatement_has_to_take_up_something():
    assert "restatement" in heard("So the drums go quiet now.").strategies
    assert heard("So, you have no velvet printer.").strategies == ()


doubted = pytest.mark.xfail(reason="doubted, or without sense to it", strict=True)


@pytest.mark.parametrize(
    ("reply", "strategy"),
    [
        ("I am proud of you.", "praise"),
        ("You can be proud of that.", "praise"),
        ("You could write down what you want to say first.", "suggestion"),
        ("That was not your fault.", "siding"),
        ("That must hurt.", "reflection"),
        pytest.param("You did so well.", "praise", marks=doubted),
        ("Ten years of baking. Well done.", "praise"),
        pytest.param("You could talk to them openly.", "suggestion", marks=doubted),
        pytest.param("So she wrote to the landlord.", "restatement", marks=doubted),
    ],
)
def test_plain_kindness_in_few_words_is_heard_and_believed(reply: str, strategy: str):
    assert strategy in heard(reply).strategies and not heard(reply).is_doubted
