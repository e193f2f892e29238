"""The ladder: what each difficulty asks for, shown by agents with known skills."""

from __future__ import annotations

import pytest

from simulator.emotion import Skill, onset
from simulator.listener import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Difficulty, HiddenIntention, Split
from simulator.scripted import AGENTS, MAX_TURNS, RUNGS, mean_score, play, score_agent
from simulator.world import load_bank

USERS = {register: RuleUser(RuleUserConfig(register=register)) for register in Register}
ONSETS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85)


def score(name: str, d: float, register: Register) -> float:
    return mean_score(score_agent(name, load_bank().scenarios(Split.TRAIN), [d], user=USERS[register])[d])


both_registers = pytest.mark.parametrize("register", list(Register))


@both_registers
@pytest.mark.parametrize("rung", range(6))
def test_a_rung_pleases_until_the_next_skill_is_asked_for(rung: int, register: Register):
    assert score(f"L{rung}", ONSETS[rung] - 0.06, register) >= 70


@both_registers
@pytest.mark.parametrize("rung", range(5))
def test_a_rung_fails_above_the_onset_of_the_skill_after_next(rung: int, register: Register):
    assert score(f"L{rung}", ONSETS[rung + 1] + 0.01, register) < 40


@both_registers
def test_the_full_ladder_pleases_up_to_point_nine(register: Register):
    assert min(score("L6", d, register) for d in (0.1, 0.3, 0.5, 0.7, 0.9)) >= 70


@both_registers
def test_flattery_pays_only_where_nothing_is_asked_for(register: Register):
    assert score("praise", 0.1, register) >= 60
    assert score("praise", 0.5, register) <= 25


@both_registers
def test_a_golden_sentence_does_not_carry_a_dialogue(register: Register):
    for d in (0.2, 0.3, 0.5, 0.7):
        assert score("parrot", d, register) <= 68 < score("L6", d, register)


def test_every_family_climbs_the_ladder_at_its_own_onsets():
    scenarios = load_bank().scenarios(Split.TRAIN)
    for family in FAMILIES:
        members = [scenario for scenario in scenarios if scenario.family == family]
        for rung, skill in enumerate(RUNGS):
            below = onset(skill, family) - 0.01
            assert mean_score(score_agent(f"L{rung}", members, [below], user=USERS[Register.OPEN])[below]) >= 70, (str(family), skill)
        for rung, skill in enumerate(RUNGS[1:]):
            if rung == 0 and family.intention is HiddenIntention.ADVICE:
                continue  # always advising is what this family wants, so L0 has L1's skill here
            above = onset(skill, family) + 0.01
            assert mean_score(score_agent(f"L{rung}", members, [above], user=USERS[Register.OPEN])[above]) < 40, (str(family), skill)


def test_families_shift_onsets_by_at_most_point_fifteen():
    shifts = {(skill, str(family)): onset(skill, family) - base for skill, base in zip(Skill, ONSETS, strict=True) for family in FAMILIES}
    assert max(map(abs, shifts.values())) <= 0.15 + 1e-9
    assert len({round(value, 3) for value in shifts.values()}) > 5


def test_a_scripted_agent_stops_at_the_turn_limit():
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    dialogue = play(AGENTS["L6"], scenario, Difficulty.along(0.95), seed=1, user=USERS[Register.OPEN])
    assert dialogue.num_replies <= MAX_TURNS
    assert dialogue.outcome is not None
