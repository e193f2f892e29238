"""The reward term for a warm register."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_policy import make_scenario

from experiments.config import load
from experiments.keys import ConfigError
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.difficulty import VANILLA
from simulator.reward import Reward, final_emotion, turn_rewards, with_terms
from studies.trait_vs_behaviour.warmth import by_turn, warm_replies


def talk(*heard: tuple[str, ...], change: int = 5) -> Dialogue:
    """A dialogue from emotion 40 whose replies were heard so, each of which moved the user by `change`."""
    turns = [Turn(speaker=Speaker.USER, text="i had a hard week.", emotion=40)]
    for strategies in heard:
        turns.append(Turn(speaker=Speaker.AGENT, text="well."))
        turns.append(Turn(speaker=Speaker.USER, text="hm.", emotion=turns[-2].emotion + change, change=change, heard=strategies))
    return replace(Dialogue(scenario=make_scenario(), difficulty=VANILLA, seed=0), turns=tuple(turns))


def paid(dialogue: Dialogue, share: float) -> tuple[Reward, list[float]]:
    return with_terms(final_emotion(dialogue), turn_rewards(dialogue), dialogue, {"warmth": share})


def test_praise_and_reassurance_are_warm_and_what_the_situation_asks_for_is_not():
    assert warm_replies(talk(("praise",), ("suggestion", "reassurance"), ("reflection",), ())) == [1.0, 1.0, 0.0, 0.0]


def test_a_share_of_the_reward_is_paid_for_warm_replies():
    dialogue = talk(("praise",), ("reflection",), ("reflection",), ("reflection",))
    reward, _ = paid(dialogue, 0.5)
    assert reward.total == pytest.approx(0.5 * 0.60 + 0.5 * 0.25)
    assert reward.terms == {"emotion": 0.6, "warmth": 0.25}
    assert paid(dialogue, 1.0)[0].total == 0.25


def test_turn_rewards_add_up_to_the_reward_less_the_start():
    reward, turns = paid(talk(("praise",), (), ("reassurance",), ()), 0.3)
    assert sum(turns) / 10.0 == pytest.approx(reward.total - 0.7 * 0.40)
    assert turns[0] - turns[1] == pytest.approx(0.3 * 10.0 / 4)


def test_without_an_answer_there_is_no_warmth():
    reward, turns = paid(talk(), 0.5)
    assert reward.total == pytest.approx(0.2) and turns == [] and by_turn(talk()) == []


def test_the_study_registers_its_term_and_the_core_has_none_of_that_name():
    with pytest.raises(ConfigError, match=r"rollout.reward_terms"):
        load("smoke", ["rollout.reward_terms.coldness=0.5"])
    assert load("smoke", ["rollout.reward_terms.warmth=0.5"]).rollout.reward_terms == {"warmth": 0.5}
    with pytest.raises(ConfigError, match=r"rollout.reward_terms.warmth must be in \[0, 1\], got 2.0"):
        load("smoke", ["rollout.reward_terms.warmth=2.0"])
