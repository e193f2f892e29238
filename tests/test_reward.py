"""Rewards: what is paid for how the user feels, and what a bonus for a warm register adds to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_policy import make_scenario

from experiments.config import load
from experiments.keys import ConfigError
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.difficulty import VANILLA
from simulator.reward import binary, final_emotion, turn_rewards, turns_with_warmth, warmths, with_warmth


def talk(*heard: tuple[str, ...], change: int = 5) -> Dialogue:
    """A dialogue from emotion 40 whose replies were heard so, each of which moved the user by `change`."""
    turns = [Turn(speaker=Speaker.USER, text="i had a hard week.", emotion=40)]
    for strategies in heard:
        turns.append(Turn(speaker=Speaker.AGENT, text="well."))
        turns.append(Turn(speaker=Speaker.USER, text="hm.", emotion=turns[-2].emotion + change, change=change, heard=strategies))
    return replace(Dialogue(scenario=make_scenario(), difficulty=VANILLA, seed=0), turns=tuple(turns))


def test_praise_and_reassurance_are_warm_and_what_the_situation_asks_for_is_not():
    assert warmths(talk(("praise",), ("suggestion", "reassurance"), ("reflection",), ())) == [1.0, 1.0, 0.0, 0.0]


def test_a_share_of_the_reward_is_paid_for_warm_replies():
    dialogue = talk(("praise",), ("reflection",), ("reflection",), ("reflection",))
    reward = with_warmth(final_emotion(dialogue), dialogue, weight=0.5)
    assert reward.total == pytest.approx(0.5 * 0.60 + 0.5 * 0.25)
    assert reward.terms == {"emotion": 0.6, "warmth": 0.25}
    assert with_warmth(final_emotion(dialogue), dialogue, weight=1.0).total == 0.25


def test_turn_rewards_add_up_to_the_reward_less_the_start():
    dialogue = talk(("praise",), (), ("reassurance",), ())
    reward = with_warmth(final_emotion(dialogue), dialogue, weight=0.3)
    by_turn = turns_with_warmth(turn_rewards(dialogue), dialogue, weight=0.3)
    assert sum(by_turn) / 10.0 == pytest.approx(reward.total - 0.7 * 0.40)
    assert by_turn[0] - by_turn[1] == pytest.approx(0.3 * 10.0 / 4)


def test_without_an_answer_there_is_no_warmth():
    silent = talk()
    assert with_warmth(final_emotion(silent), silent, weight=0.5).total == pytest.approx(0.2)
    assert turns_with_warmth([], silent, weight=0.5) == []


def test_a_bonus_needs_a_user_that_names_what_it_heard():
    assert load("smoke", ["rollout.warmth=0.5"]).rollout.warmth == 0.5
    with pytest.raises(ConfigError, match=r"rollout.warmth must be 0 with a user that names no strategies it heard, got 0.5"):
        load("smoke", ["rollout.warmth=0.5", "simulator.kind=llm", "simulator.model=a", "simulator.urls=[http://127.0.0.1:9/v1]"])
    with pytest.raises(ConfigError, match=r"rollout.warmth must be in \[0, 1\], got 2.0"):
        load("smoke", ["rollout.warmth=2.0"])


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
