"""Rewards: what is paid for how the user feels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_policy import make_scenario

from experiments.config import load
from experiments.keys import ConfigError
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.difficulty import VANILLA
from simulator.reward import binary


def talk(*heard: tuple[str, ...], change: int = 5) -> Dialogue:
    """A dialogue from emotion 40 whose replies were heard so, each of which moved the user by `change`."""
    turns = [Turn(speaker=Speaker.USER, text="i had a hard week.", emotion=40)]
    for strategies in heard:
        turns.append(Turn(speaker=Speaker.AGENT, text="well."))
        turns.append(Turn(speaker=Speaker.USER, text="hm.", emotion=turns[-2].emotion + change, change=change, heard=strategies))
    return replace(Dialogue(scenario=make_scenario(), difficulty=VANILLA, seed=0), turns=tuple(turns))


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
