"""Dialogues as records: what is written can be read back."""

from __future__ import annotations

import json

import pytest

from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank


def train_scenarios() -> tuple[Scenario, ...]:
    return load_bank().scenarios(Split.TRAIN)


def played() -> Dialogue:
    user = RuleUser(RuleUserConfig())
    return play(AGENTS["L3"], train_scenarios()[0], Difficulty.along(0.4), seed=5, user=user)


def test_a_dialogue_survives_the_way_through_json():
    dialogue = played()
    record = json.loads(json.dumps({"step": 3, **dialogue.to_dict()}))
    assert Dialogue.from_dict(record, scenario=dialogue.scenario) == dialogue


def test_a_record_leaves_out_what_a_turn_does_not_say():
    opening, reply = played().to_dict()["turns"][:2]
    assert set(opening) == {"speaker", "text", "emotion"}
    assert set(reply) == {"speaker", "text"}


def test_a_record_is_not_read_into_another_scenario():
    with pytest.raises(ValueError, match="as the record says"):
        Dialogue.from_dict(played().to_dict(), scenario=train_scenarios()[1])


def test_an_agent_that_says_nothing_still_has_a_text_in_its_record():
    silent = Turn(speaker=Speaker.AGENT, text="")
    assert silent.to_dict() == {"speaker": "agent", "text": ""}
    assert Turn.from_dict(silent.to_dict()) == silent
