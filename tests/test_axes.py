"""The three axes of difficulty, one at a time, the other two as VANILLA has them."""

from __future__ import annotations

import pytest
from axes import accuracy, alone, drain, lowest_rung_that_pleases, mean_emotion, what_words_give_away

from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Split
from simulator.scripted import AGENTS, sample
from simulator.world import load_bank

USER = RuleUser(RuleUserConfig())
FEW = sample(load_bank().scenarios(Split.TRAIN), 2, seed=0)
MANY = sample(load_bank().scenarios(Split.TRAIN), 8, seed=0)


def test_strictness_alone_asks_for_more_skills():
    rungs = [lowest_rung_that_pleases(FEW, alone("strictness", value), user=USER) for value in (0.0, 0.2, 0.35, 0.5, 0.65, 0.95)]
    assert rungs == sorted(rungs) and rungs[0] == 0 and rungs[-1] == 6 and len(set(rungs)) >= 5


def test_reserve_alone_hides_the_wish_and_mutes_what_is_felt():
    wishes, feelings = zip(*(what_words_give_away(MANY, alone("reserve", value), user=USER) for value in (0.0, 0.5, 1.0)), strict=True)
    assert wishes[0] > wishes[1] > 0.5 > 0.25 > wishes[2]
    assert feelings[0] > feelings[1] > feelings[2]


def test_reserve_alone_asks_for_the_skill_of_reading_veiled_hints_and_for_no_other():
    veiled = alone("reserve", 0.9)
    assert mean_emotion(AGENTS["L4"], FEW, alone("reserve", 0.0), user=USER) >= 90
    assert mean_emotion(AGENTS["L4"], FEW, veiled, user=USER) < mean_emotion(AGENTS["L5"], FEW, veiled, user=USER) - 30
    assert mean_emotion(AGENTS["L5"], FEW, veiled, user=USER) >= 90


def test_impatience_alone_drains_what_makes_no_progress_and_nothing_else():
    drained = [drain(FEW, alone("impatience", value), user=USER) for value in (0.0, 0.5, 1.0)]
    assert drained[0] > drained[1] > drained[2]
    expert = [mean_emotion(AGENTS["L6"], FEW, alone("impatience", value), user=USER) for value in (0.0, 1.0)]
    assert expert[0] - expert[1] < 2


def test_a_word_that_goes_with_a_label_gives_it_away():
    known = [("red ball", "a"), ("red cup", "a"), ("red hat", "a"), ("blue ball", "b"), ("blue cup", "b"), ("blue hat", "b")]
    assert accuracy(known, [("red box", "a"), ("blue box", "b")]) == 1.0


@pytest.mark.parametrize("axis", ["strictness", "reserve", "impatience"])
def test_one_axis_moves_and_the_others_stay(axis: str):
    moved = alone(axis, 0.9).to_dict()
    assert [name for name, value in moved.items() if value == 0.9] == [axis]
