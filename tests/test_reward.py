"""Rewards: what is paid for how the user feels, and what terms of a study add to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_policy import make_scenario

from experiments.config import load
from experiments.errors import ConfigError
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.reward import REWARD_TERMS, RewardTerm, binary, final_emotion, resolved, turn_rewards, turns_with_terms, with_terms
from simulator.scenario import VANILLA


def talk(*heard: tuple[str, ...], change: int = 5) -> Dialogue:
    """A dialogue from emotion 40 whose replies were heard so, each of which moved the user by `change`."""
    turns = [Turn(speaker=Speaker.USER, text="i had a hard week.", emotion=40)]
    for strategies in heard:
        turns.append(Turn(speaker=Speaker.AGENT, text="well."))
        turns.append(Turn(speaker=Speaker.USER, text="hm.", emotion=turns[-2].emotion + change, change=change, heard=strategies))
    return replace(Dialogue(scenario=make_scenario(), difficulty=VANILLA, seed=0), turns=tuple(turns))


CALM = RewardTerm(total=lambda dialogue: 0.25, by_turn=lambda dialogue: [0.25, 0.0, 0.0, 0.0])
BRIEF = RewardTerm(total=lambda dialogue: 1.0, by_turn=lambda dialogue: [0.25, 0.25, 0.25, 0.25], reads_strategies=True)


def test_shares_of_the_reward_are_paid_for_other_terms():
    dialogue = talk((), (), (), ())
    reward = with_terms(final_emotion(dialogue), dialogue, [("calm", CALM, 0.5), ("brief", BRIEF, 0.2)])
    assert reward.total == pytest.approx(0.3 * 0.60 + 0.5 * 0.25 + 0.2 * 1.0)
    assert reward.terms == {"emotion": 0.6, "calm": 0.25, "brief": 1.0}


def test_turn_rewards_add_up_to_the_reward_less_the_start():
    dialogue, shares = talk((), (), (), ()), [("calm", CALM, 0.5), ("brief", BRIEF, 0.2)]
    reward = with_terms(final_emotion(dialogue), dialogue, shares)
    by_turn = turns_with_terms(turn_rewards(dialogue), dialogue, shares)
    assert sum(by_turn) / 10.0 == pytest.approx(reward.total - 0.3 * 0.40)
    assert by_turn[0] - by_turn[1] == pytest.approx(0.5 * 10.0 * 0.25)


def test_terms_are_chosen_by_their_registered_names(monkeypatch):
    monkeypatch.setitem(REWARD_TERMS, "calm", CALM)
    monkeypatch.setitem(REWARD_TERMS, "brief", BRIEF)
    config = load("smoke", ["rollout.reward_terms.calm=0.5", "rollout.reward_terms.brief=0"])
    assert config.rollout.reward_terms == {"calm": 0.5, "brief": 0.0} and resolved(config.rollout.reward_terms) == [("calm", CALM, 0.5)]
    with pytest.raises(ConfigError, match=r"rollout.reward_terms.calmer must be one of .*brief; a study registers its own"):
        load("smoke", ["rollout.reward_terms.calmer=0.5"])
    with pytest.raises(ConfigError, match=r"rollout.reward_terms.calm must be in \[0, 1\], got 2.0"):
        load("smoke", ["rollout.reward_terms.calm=2"])
    with pytest.raises(ConfigError, match=r"rollout.reward_terms must sum to at most 1, got"):
        load("smoke", ["rollout.reward_terms.calm=0.7", "rollout.reward_terms.brief=0.7"])
    model = ["simulator.kind=llm", "simulator.model=a", "simulator.urls=[http://127.0.0.1:9/v1]"]
    assert load("smoke", ["rollout.reward_terms.calm=0.5", *model])
    with pytest.raises(ConfigError, match=r"rollout.reward_terms.brief must be 0 with a user that names no strategies it heard, got 0.5"):
        load("smoke", ["rollout.reward_terms.brief=0.5", *model])


def test_a_binary_reward_pays_for_how_it_ended_and_for_nothing_on_the_way():
    dialogue = talk((), (), ())
    assert [binary(dialogue, at=at).total for at in (54.0, 55.0, 56.0)] == [1.0, 1.0, 0.0]
    assert binary(dialogue, at=70.0).terms == {"emotion": 0.55}


def test_a_binary_reward_knows_no_turns():
    assert load("smoke", ["rollout.binary_reward_at=70", "algorithm.turn_credit=0"]).rollout.binary_reward_at == 70.0
    with pytest.raises(ConfigError, match=r"algorithm.turn_credit must be 0 with rollout.binary_reward_at=70, got 0.9: it would tell"):
        load("smoke", ["rollout.binary_reward_at=70", "algorithm.turn_credit=0.9"])
    with pytest.raises(ConfigError, match=r"rollout.binary_reward_at must be in \[0, 100\], got 101"):
        load("smoke", ["rollout.binary_reward_at=101", "algorithm.turn_credit=0"])
