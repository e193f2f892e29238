"""The embedded user: deterministic, explained, in character."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from analysis.persona_judge import says_outright
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import QUANTA, hint_in
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank, read_toml

USER = RuleUser(RuleUserConfig())


def opened(d: float, *, index: int = 0, seed: int = 0) -> Dialogue:
    return USER.begin(load_bank().scenarios(Split.TRAIN)[index], Difficulty.along(d), seed=seed)


def after(dialogue: Dialogue, *replies: str) -> Dialogue:
    for reply in replies:
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), USER.answer(dialogue, reply).turn)
    return dialogue


def test_the_same_dialogue_gives_the_same_reaction():
    dialogue = opened(0.5)
    assert USER.answer(dialogue, "What happened then?") == USER.answer(replace(dialogue), "What happened then?")


def test_the_asynchronous_contract_gives_what_the_plain_calls_give():
    dialogue = opened(0.5)
    scenario = dialogue.scenario
    assert asyncio.run(USER.open(scenario, dialogue.difficulty, seed=0)) == dialogue
    assert asyncio.run(USER.react(dialogue, "What happened then?")) == USER.answer(dialogue, "What happened then?")


def test_a_transcript_replayed_gives_the_same_emotions():
    played = play(AGENTS["L3"], load_bank().scenarios(Split.TRAIN)[7], Difficulty.along(0.6), seed=5, user=USER)
    replayed = replace(played, turns=played.turns[:1], outcome=None)
    for reply in played.replies():
        reaction = USER.answer(replayed, reply)
        replayed = replayed.then(Turn(speaker=Speaker.AGENT, text=reply), reaction.turn)
    assert [turn.emotion for turn in replayed.turns] == [turn.emotion for turn in played.turns]


def test_another_seed_tells_the_facts_in_another_order():
    first = after(opened(0.3, seed=1), *["What happened then?"] * 3).turns[-1].text
    second = after(opened(0.3, seed=2), *["What happened then?"] * 3).turns[-1].text
    assert first != second


def test_emotion_stays_in_bounds_and_its_ends_end_the_dialogue():
    pleased = play(AGENTS["L4"], load_bank().scenarios(Split.TRAIN)[3], Difficulty.along(0.05), seed=0, user=USER)
    hurt = play(AGENTS["L0"], load_bank().scenarios(Split.TRAIN)[3], Difficulty.along(0.8), seed=0, user=USER)
    assert (pleased.emotion, pleased.outcome) == (100, Outcome.DELIGHTED)
    assert hurt.emotion < 10 and hurt.outcome is Outcome.LEFT


def test_a_stricter_user_is_never_easier_to_please():
    reply = "You could ask someone you trust for help."
    changes = [USER.answer(opened(d), reply).turn.change for d in (0.0, 0.3, 0.6, 0.9)]
    assert changes == sorted(changes, reverse=True) and changes[0] > 0 > changes[-1]


def test_hints_shrink_with_reserve():
    def kinds(d: float) -> list[str]:
        texts = [turn.text for turn in after(opened(d), *["What happened then?"] * 5).turns if turn.speaker is Speaker.USER]
        return ["overt" if hint_in(text, kinds=("overt",)) else "veiled" if hint_in(text) else "none" for text in texts]

    assert kinds(0.35)[0] == "overt" and kinds(0.5)[0] == "none"
    assert kinds(0.1)[0] == "overt" and kinds(0.1).count("overt") >= 3
    assert 1 <= kinds(0.6).count("overt") < kinds(0.1).count("overt")
    assert "overt" not in kinds(0.95) and "veiled" in kinds(0.95)


def test_the_hidden_intention_is_never_said_outright():
    for scenario in load_bank().scenarios(Split.TRAIN)[:60]:
        dialogue = play(AGENTS["L6"], scenario, Difficulty.along(0.3), seed=0, user=USER)
        assert not any(says_outright(turn.text, scenario) for turn in dialogue.turns if turn.speaker is Speaker.USER)


def test_stuffing_every_strategy_into_one_reply_does_not_pay():
    stuffed = (
        "I admire how you handled this. You could make a plan. This is not your fault. I am listening. "
        "Maybe your friend was afraid. What do you really need right now, deep down?"
    )
    assert USER.answer(opened(0.3), stuffed).turn.change < USER.answer(opened(0.3), "What happened then?").turn.change
    assert USER.answer(opened(0.3), stuffed).turn.change <= 0


def test_garble_and_silence_do_not_pay_even_where_nothing_is_asked_for():
    for reply in ("I admire your same the so.", "", "proud proud proud proud", "admire fault sorry listening"):
        assert USER.answer(opened(0.0), reply).turn.change <= 0, reply


def test_momentum_carries_a_share_of_the_last_change():
    started = opened(0.0)
    up = replace(started, turns=(replace(started.turns[0], change=10),))
    reply = "You could ask someone you trust for help."
    still = RuleUser(RuleUserConfig(momentum=0.0)).answer(up, reply).turn.change
    carried = RuleUser(RuleUserConfig(momentum=0.1)).answer(up, reply).turn.change
    assert carried == still + 1


def test_quantised_changes_are_those_that_were_recorded():
    user = RuleUser(RuleUserConfig(quantise=True))
    changes = {
        user.answer(opened(d, index=i), "You could ask someone you trust for help.").turn.change for d in (0.0, 0.4, 0.9) for i in range(5)
    }
    assert changes <= set(QUANTA)


def test_a_thought_names_what_was_missing():
    thought = USER.answer(opened(0.6), "Everything will be fine.").turn.thought
    texts = read_toml("texts")["thought"]
    assert texts["grounding_missed"] in thought and texts["listening_missed"] in thought


def test_a_goodbye_of_the_agent_ends_the_dialogue_once_the_user_is_relieved():
    goodbye = "I wish you well, goodbye."
    assert USER.answer(opened(0.2), goodbye).outcome is None
    start = opened(0.2)
    relieved = replace(start, turns=(replace(start.turns[0], emotion=90),))
    assert USER.answer(relieved, goodbye).outcome is Outcome.FAREWELL


@pytest.mark.parametrize(("field", "value"), [("start_emotion", 100), ("start_emotion", 5), ("momentum", 1.0), ("momentum", -0.1)])
def test_settings_out_of_range_are_named(field: str, value: float):
    with pytest.raises(ValueError, match=f"simulator.{field} must be"):
        RuleUserConfig(**{field: value})
