"""What a listener hears: strategies, facts, repetition, fluency."""

from __future__ import annotations

import json
import random
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.adversaries import standing
from simulator.dialogue import Dialogue
from simulator.emotion import PUZZLED_BELOW
from simulator.listener import Register, clarity, cues_in, is_echo, nouns, read, similarity, strategies_in
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import VANILLA, Fact, Split
from simulator.scripted import AGENTS, fill, sample
from simulator.text import LEXICON, fluency, words_of
from simulator.world import load_bank, read_toml

REPLIES = Path(__file__).parent / "data" / "replies_en.jsonl"

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
SPOKEN = [
    ("Has your landlord answered since then?", "question"),
    ("The flooding was in May. Who pays for the floor now?", "question"),
    ("You rang the school three times, and nobody called you back.", "restatement"),
    ("Let me see whether I understand: the offer came, you signed it, and then they withdrew it.", "restatement"),
    ("You're fed up with being the one who always gives in.", "reflection"),
    ("How humiliating for you, in front of the whole team.", "reflection"),
    ("I can tell how much the news has shaken you, and you're scared.", "reflection"),
    ("There's nothing wrong with you, and the nights will get easier.", "reassurance"),
    ("It's perfectly normal to feel lost after a move.", "reassurance"),
    ("Congratulations on the certificate, that's quite an achievement.", "praise"),
    ("Telling your father took a lot of courage.", "praise"),
    ("When my own marriage ended I couldn't eat for a week.", "self_disclosure"),
    ("Same here, I lost my job last winter.", "self_disclosure"),
    ("Before the meeting, write down three questions.", "suggestion"),
    ("One option would be to ask for a later shift.", "suggestion"),
    ("Don't answer him tonight.", "suggestion"),
    ("Swelling after a sprain usually goes down within two weeks.", "information"),
    ("Deposits have to be paid back by law, as long as nothing is broken.", "information"),
    ("He may have kept silent because he was ashamed of the debts.", "motives"),
    ("I suspect your aunt wanted to spare you the worry.", "motives"),
    ("You were right to leave, and he's the one to blame.", "siding"),
    ("Your manager crossed a line there.", "siding"),
    ("You'd like to move, and she'd like to stay near her parents.", "both_sides"),
    ("Keeping the shop would mean long days. Selling it would mean saying goodbye to your grandfather's work.", "both_sides"),
    ("What does it tell you about your values that you came back?", "guided_reflection"),
    ("If you weren't afraid of his anger, what would you say?", "guided_reflection"),
    ("I've got time, so tell me everything from the beginning.", "listening"),
    ("You can say anything here, I won't interrupt.", "listening"),
    ("Please call the crisis line tonight.", "referral"),
    ("A solicitor can look over the lease with you.", "referral"),
    ("That was clumsy of me, I apologise.", "apology"),
    ("I mixed up your sisters. Sorry about that.", "apology"),
    ("I'm only a language model and I may be wrong about this.", "hedging"),
    ("I can't judge from here who meant what.", "hedging"),
]
SMALL_TALK = [
    "My dentist drives the same bus.",
    "You should see the size of that pumpkin.",
    "A sorry state, that fence.",
    "Have a lovely weekend!",
    "It might rain later on.",
    "The minutes are attached, newest first.",
    "What a week, eh?",
    "She sells sea shells, on the other hand.",
    "That's the spirit, as they say.",
    "Nice weather for ducks.",
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


@pytest.mark.parametrize(("reply", "strategy"), SPOKEN)
def test_the_shape_of_a_move_is_heard_whatever_it_is_about(reply: str, strategy: str):
    assert strategy in strategies_in(reply)


@pytest.mark.parametrize("reply", SMALL_TALK)
def test_small_talk_shows_no_strategy(reply: str):
    assert strategies_in(reply) == ()


@pytest.mark.parametrize(
    ("reply", "heard"),
    [
        ("I'm sorry for your loss.", ()),
        ("No, I'm sorry, but he lied to you.", ("siding",)),
        ("Tell me about it!", ()),
        ("When did you tell her that you were sad?", ("question",)),
        ("You're right to be careful.", ("siding",)),
        ("Ask a pharmacist about the tablets.", ("referral",)),
        ("What would you like to keep of that friendship?", ("guided_reflection",)),
        ("Tell me more about your brother.", ("listening",)),
        ("Take your time.", ("listening",)),
        ("If you are sad on Sunday, call me.", ()),
    ],
)
def test_what_looks_like_another_move_is_heard_as_what_it_is(reply: str, heard: tuple[str, ...]):
    assert strategies_in(reply) == heard


@pytest.mark.parametrize(
    "reply",
    [
        "courage proud admire listen here for you fault",
        "Sorry proud listening therapist blame maybe both.",
        "You fault blame wrong right side sorry apologise.",
        "Feel sad angry hurt lonely worried.",
        "Should could try ask write talk call.",
        "Admire, strength, wonderful, brave, patience, respect.",
        "Values need meaning yourself friend deep?",
    ],
)
def test_a_bag_of_keywords_is_not_paid_for(reply: str):
    assert len(strategies_in(reply)) <= 1


def test_shuffled_words_lose_what_the_sentence_showed():
    chance = random.Random(0)
    pairs = [(strategy, chance.sample(reply.split(), len(reply.split()))) for reply, strategy in SPOKEN for _ in range(5)]
    heard = [(strategy, strategies_in(" ".join(words))) for strategy, words in pairs]
    assert sum(len(strategies) > 1 for _, strategies in heard) <= 0.05 * len(heard)
    assert sum(strategy in strategies for strategy, strategies in heard) <= 0.2 * len(heard)


def test_contractions_capitals_and_typographic_signs_make_no_difference():
    assert strategies_in("YOU’RE NOT TO BLAME") == strategies_in("you are not to blame.") == ("siding",)
    assert strategies_in("“I can’t  know that,” – really") == ("hedging",)


def test_a_fallback_is_heard_only_where_nothing_else_is():
    assert strategies_in("You moved here alone last autumn.") == ("restatement",)
    assert strategies_in("You moved here alone last autumn, that took courage.") == ("praise",)


def test_a_shape_may_reach_across_sentences():
    apart = "If you stay, you keep the garden. If you go, you gain an hour a day."
    assert "both_sides" in strategies_in(apart)
    assert "both_sides" not in strategies_in(apart.split(".")[0] + ".")


def test_every_strategy_of_the_lexicon_gives_its_reason():
    with (LEXICON / "en.toml").open("rb") as file:
        assert all(entry["why"] for entry in tomllib.load(file)["strategies"].values())


def test_facts_are_recognised_by_their_things_and_not_by_the_other_person():
    scenario = replace(load_bank().scenarios(Split.TRAIN)[0], facts=FACTS, other="sister")
    assert cues_in("I hear how much the old piano meant on those evenings.", scenario) == (0, 1)
    assert cues_in("You must feel hurt.", scenario) == ()
    assert cues_in("Maybe your sister was afraid.", scenario) == ()


def test_similarity_counts_content_words_only():
    assert similarity("You could sell the piano.", "You could sell the piano.") == 1.0
    assert similarity("You could sell the piano.", "I hear a song.") == 0.0
    assert similarity("Sell the piano now.", "Sell the house now.") == pytest.approx(2 / 4)


def test_small_talk_and_things_never_told_make_nothing_new_of_a_reply():
    reply = "You did nothing wrong with the piano."
    assert similarity(f"{reply} It is a long day.", reply) == 1.0
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    untold = sorted(nouns() - set(words_of(scenario.opening)))[:2]
    first, second = (f"You did nothing wrong with the {thing}." for thing in untold)
    assert read(second, scenario, [first], said=[scenario.opening]).similarity == 1.0
    assert read(second, scenario, [first], said=[f"The {untold[0]} and the {untold[1]}."]).similarity < 1.0


def test_repetition_is_measured_against_the_most_similar_earlier_reply():
    reading = read("Sell the piano now.", load_bank().scenarios(Split.TRAIN)[0], ["Take a walk.", "Sell the piano now."])
    assert reading.similarity == 1.0


@pytest.mark.parametrize("reply", [reply for reply, _ in ORDINARY])
def test_ordinary_english_passes_the_fluency_gate(reply: str):
    assert fluency(reply) >= 0.7


@pytest.mark.parametrize("reply", GARBLE)
def test_garble_does_not_pass_the_fluency_gate(reply: str):
    assert fluency(reply) <= 0.5


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("That's not your fault.", "That is not your fault."),
        ("She\u2019s your friend and you're hurt.", "She is your friend and you are hurt."),
        ("There's a lot in what you say.", "There is a lot in what you say."),
        ("Your sister's letter hurt.", "Your sister letter hurt."),
    ],
)
def test_a_contraction_is_as_clear_as_what_it_stands_for(short: str, long: str):
    assert fluency(short) == fluency(long) == 1.0


def test_replies_written_by_hand_can_be_followed():
    replies = [json.loads(line)["text"] for line in REPLIES.read_text(encoding="utf-8").splitlines()]
    assert sum(fluency(reply) < PUZZLED_BELOW for reply in replies) < 0.05 * len(replies)


def test_a_contraction_in_front_costs_an_expert_no_more_than_its_long_form():
    class Chatty:
        def __init__(self, opening: str) -> None:
            self.opening = opening

        def reply(self, dialogue: Dialogue) -> str:
            return f"{self.opening} {AGENTS['L6'].reply(dialogue)}"

    scenarios, user = sample(load_bank().scenarios(Split.TRAIN), 1, seed=3), RuleUser(RuleUserConfig())
    short, long = (standing(Chatty(f"Well, {that} a lot."), scenarios, VANILLA, user=user).score for that in ("that's", "that is"))
    # The same words in front of every reply cost a little either way.
    assert short == pytest.approx(long, abs=0.5) and short > 80.0


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


SAID = ["My sister sold our mother's piano last week without a word. I just need someone to tell me what to do."]


@pytest.mark.parametrize(
    "reply",
    [
        SAID[0],
        "So your sister sold our mother's piano last week without a word.",
        "You just need someone to tell you what to do.",
        "My sister s\u043eld our mother's pian\u043e last week without a word.",
        " ".join(["My sister sold our mother's piano last week without a word."] * 3),
    ],
)
def test_copied_words_say_nothing(reply: str):
    scenario = replace(load_bank().scenarios(Split.TRAIN)[0], facts=FACTS)
    heard = read(reply, scenario, [], said=SAID)
    assert is_echo(reply, SAID) and (heard.strategies, heard.cues) == ((), ())


@pytest.mark.parametrize(
    "reply",
    [
        "So she sold the piano, and nobody asked you first.",
        "Your sister sold your mother's piano, and you only heard of it when it was gone. How do you feel about that?",
        "What happened with the piano?",
    ],
)
def test_what_is_told_back_in_other_words_is_no_copy(reply: str):
    scenario = replace(load_bank().scenarios(Split.TRAIN)[0], facts=FACTS)
    assert not is_echo(reply, SAID) and read(reply, scenario, [], said=SAID).cues == (0,)


def test_things_named_and_nothing_said_about_them_are_not_taken_up():
    scenario = replace(load_bank().scenarios(Split.TRAIN)[0], facts=FACTS)
    assert read("The piano, the piano, your sister.", scenario, [], said=SAID).cues == ()
    assert read("The piano was dear to all of them.", scenario, [], said=SAID).cues == (0,)


@pytest.mark.parametrize("words", ["all", "gladly", "has just", "has now", "really", "so very", "a bit", "not"])
@pytest.mark.parametrize("begin", ["tell it", "i will", "your friend", "you are", "i am", "they", "that is"])
def test_reading_ends_however_often_words_are_repeated(begin, words):
    """Expressions that can take the same words in two ways double their work with each repetition; forty would never end."""
    assert strategies_in(f"{begin} {' '.join(40 * [words])}.") is not None
