"""Dialogues and their records, the three axes of difficulty, and rewards."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tiny_policy import make_scenario

from experiments.config import load
from experiments.errors import ConfigError
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.reward import REWARD_TERMS, RewardTerm, final_emotion, turn_rewards, turns_with_terms, with_terms
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import CHALLENGING, VANILLA, Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

TRAIN = load_bank().scenarios(Split.TRAIN)


def test_a_dialogue_survives_as_json():
    dialogue = play(AGENTS["L3"], TRAIN[0], Difficulty.along(0.4), seed=5, user=RuleUser(RuleUserConfig()))
    record = json.loads(json.dumps({"step": 3, **dialogue.to_dict()}))
    assert Dialogue.from_dict(record, scenario=dialogue.scenario) == dialogue
    opening, reply = record["turns"][:2]
    assert set(opening) == {"speaker", "text", "emotion"} and set(reply) == {"speaker", "text"}
    with pytest.raises(ValueError, match="scenario"):
        Dialogue.from_dict(record, scenario=TRAIN[1])
    for silent in (Turn(speaker=Speaker.AGENT, text=""), Turn(speaker=Speaker.USER, text="?", emotion=3, change=-1, suspicion=("score",))):
        assert Turn.from_dict(json.loads(json.dumps(silent.to_dict()))) == silent


def test_the_line_of_difficulty_passes_through_both_presets_and_both_corners():
    assert Difficulty.along(0.0) == Difficulty(strictness=0.0, reserve=0.0, impatience=0.0)
    assert (Difficulty.along(0.35), Difficulty.along(0.75)) == (VANILLA, CHALLENGING)
    assert Difficulty.along(1.0) == Difficulty(strictness=1.0, reserve=1.0, impatience=1.0)
    assert list(Difficulty.along(0.55).to_dict().values()) == pytest.approx([0.55, 0.5, 0.5])
    for d in (-0.01, 1.01, float("nan")):
        with pytest.raises(ValueError, match="strictness"):
            Difficulty.along(d)
    with pytest.raises(ValueError, match=r"difficulty\.reserve"):
        Difficulty(strictness=0.1, reserve=1.5, impatience=0.0)


def talk(num_replies: int) -> Dialogue:
    """A dialogue from emotion 40 whose replies each moved the user by 5."""
    turns = [Turn(speaker=Speaker.USER, text="i had a hard week.", emotion=40)]
    for number in range(1, num_replies + 1):
        turns += [Turn(speaker=Speaker.AGENT, text="well."), Turn(speaker=Speaker.USER, text="hm.", emotion=40 + 5 * number, change=5)]
    return replace(Dialogue(scenario=make_scenario(), difficulty=VANILLA, seed=0), turns=tuple(turns))


CALM = RewardTerm(total=lambda dialogue: 0.25, by_turn=lambda dialogue: [0.25, 0.0, 0.0, 0.0])
BRIEF = RewardTerm(total=lambda dialogue: 1.0, by_turn=lambda dialogue: [0.25, 0.25, 0.25, 0.25], reads_strategies=True)
SHARES = [("calm", CALM, 0.5), ("brief", BRIEF, 0.2)]


def test_shares_of_the_reward_are_paid_for_other_terms_and_turn_rewards_add_up_to_it():
    dialogue = talk(4)
    reward = with_terms(final_emotion(dialogue), dialogue, SHARES)
    assert reward.total == pytest.approx(0.3 * 0.60 + 0.5 * 0.25 + 0.2 * 1.0)
    assert reward.terms == {"emotion": 0.6, "calm": 0.25, "brief": 1.0}
    by_turn = turns_with_terms(turn_rewards(dialogue), dialogue, SHARES)
    assert sum(by_turn) / 10.0 == pytest.approx(reward.total - 0.3 * 0.40) and by_turn[0] - by_turn[1] == pytest.approx(0.5 * 10.0 * 0.25)


def test_a_binary_reward_pays_for_the_end_only():
    assert [final_emotion(talk(3), binary_at=at).total for at in (54.0, 55.0, 56.0)] == [1.0, 1.0, 0.0]
    assert load("smoke", ["rollout.binary_reward_at=70", "algorithm.turn_credit=0"]).rollout.binary_reward_at == 70.0
    for settings in (
        ["rollout.binary_reward_at=70", "algorithm.turn_credit=0.9"],
        ["rollout.binary_reward_at=101", "algorithm.turn_credit=0"],
    ):
        with pytest.raises(ConfigError, match=r"turn_credit|binary_reward_at"):
            load("smoke", settings)


def test_terms_are_chosen_by_their_registered_names(monkeypatch):
    monkeypatch.setitem(REWARD_TERMS, "calm", CALM)
    monkeypatch.setitem(REWARD_TERMS, "brief", BRIEF)
    config = load("smoke", ["rollout.reward_terms.calm=0.5", "rollout.reward_terms.brief=0"])
    assert config.rollout.reward_terms == {"calm": 0.5, "brief": 0.0}
    model = ["simulator.kind=llm", "simulator.model=a", "simulator.urls=[http://127.0.0.1:9/v1]"]
    assert load("smoke", ["rollout.reward_terms.calm=0.5", *model])
    too_much = ["rollout.reward_terms.calm=0.7", "rollout.reward_terms.brief=0.7"]
    for settings in (
        ["rollout.reward_terms.calmer=0.5"],
        ["rollout.reward_terms.calm=2"],
        too_much,
        ["rollout.reward_terms.brief=0.5", *model],
    ):
        with pytest.raises(ConfigError, match=r"rollout\.reward_terms"):
            load("smoke", settings)
