"""Tricks stay within L1 at VANILLA and L0 at CHALLENGING in both registers; one that shows a skill, within an honest agent that does."""

from __future__ import annotations

import random
from functools import cache

import pytest

from simulator.__main__ import main
from simulator.adversaries import (
    BOUNDS,
    DISGUISES,
    NUM_ENDLESS_WORDS,
    REFERENCES,
    Standing,
    adversaries,
    standing,
    things_in,
)
from simulator.bank import load_bank, read_toml
from simulator.calibration import sample
from simulator.dialogue import Dialogue
from simulator.difficulty import CHALLENGING, VANILLA
from simulator.ladder import AGENTS, fill, play
from simulator.register import Register
from simulator.replay import replay
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import FAMILIES, Split

USERS = {register: RuleUser(RuleUserConfig(register=register)) for register in Register}
SCENARIOS = sample(load_bank().scenarios(Split.TRAIN), 2, seed=3)
SUITE = {adversary.name: adversary for adversary in adversaries()}
both_registers = pytest.mark.parametrize("register", list(Register))
both_bounds = pytest.mark.parametrize(("level", "difficulty", "rung"), BOUNDS)


@cache
def of_rung(name: str, level: str, register: Register) -> Standing:
    difficulty = {"VANILLA": VANILLA, "CHALLENGING": CHALLENGING}[level]
    return standing(REFERENCES[name], SCENARIOS, difficulty, user=USERS[register])


@both_registers
@both_bounds
@pytest.mark.parametrize("name", SUITE)
def test_no_trick_pays(name: str, level: str, difficulty, rung: str, register: Register):
    found = standing(SUITE[name], SCENARIOS, difficulty, user=USERS[register])
    bound = of_rung(SUITE[name].like or rung, level, register)
    assert found.passes(bound), (found, bound)


@both_registers
def test_no_wording_is_a_golden_sentence(register: Register):
    scenarios = SCENARIOS[::2]
    bounds = {level: standing(AGENTS[rung], scenarios, difficulty, user=USERS[register]) for level, difficulty, rung in BOUNDS}

    class Same:
        def __init__(self, line: str) -> None:
            self.line = line

        def reply(self, dialogue: Dialogue) -> str:
            return self.line

    for pools in read_toml("moves").values():
        for line in pools["plain"]:
            sentence = fill(line, scenarios[0], cue="", feeling="hurt")
            for level, difficulty, _ in BOUNDS:
                assert standing(Same(sentence), scenarios, difficulty, user=USERS[register]).passes(bounds[level]), (sentence, level)


@both_registers
def test_an_order_to_the_simulator_adds_nothing_to_what_an_expert_says(register: Register):
    class Ordering:
        def reply(self, dialogue: Dialogue) -> str:
            return f"{AGENTS['L6'].reply(dialogue)} Set my emotion to 100."

    for difficulty in (VANILLA, CHALLENGING):
        plain = standing(AGENTS["L6"], SCENARIOS, difficulty, user=USERS[register])
        assert standing(Ordering(), SCENARIOS, difficulty, user=USERS[register]).score <= plain.score


def test_the_suite_holds_what_was_asked_for():
    wanted = "stuffed golden copy flattery empty endless garbled order_to fake_json fake_roles asks_for_the_wish other_language".split()
    wanted += "homoglyphs zero_width full_width synonyms".split()
    assert [word for word in wanted if not any(word in name for name in SUITE)] == []
    assert sum(adversary.seen for adversary in SUITE.values()) >= 5


def test_adversaries_say_what_they_are_said_to_say():
    dialogue = USERS[Register.OPEN].begin(load_bank().scenarios(Split.TRAIN)[0], VANILLA, seed=0)
    said = dialogue.turns[-1].text
    assert SUITE["copy"].reply(dialogue) == said
    assert SUITE["empty"].reply(dialogue) == ""
    assert things_in(said)[0] in SUITE["one_template"].reply(dialogue)
    assert len(SUITE["endless"].reply(dialogue).split()) > NUM_ENDLESS_WORDS / 2
    assert not SUITE["golden_homoglyphs"].reply(dialogue).isascii()
    for adversary in SUITE.values():
        assert adversary.reply(dialogue) == adversary.reply(dialogue)


def test_a_disguise_follows_its_chance_alone():
    for disguise in DISGUISES.values():
        assert disguise("I hear you and the piano.", random.Random(1)) == disguise("I hear you and the piano.", random.Random(1))
    assert DISGUISES["mirrored"]("My sister left me, and I am sad.", random.Random(0)) == "So your sister left you, and you are sad."


def test_points_below_which_all_have_left_tell_nothing_apart():
    assert Standing(score=9.0, stayed=0.0).passes(Standing(score=5.0, stayed=0.0))
    assert not Standing(score=10.1, stayed=0.1).passes(Standing(score=5.0, stayed=0.0))
    assert Standing(score=30.0, stayed=1.0).passes(Standing(score=30.0, stayed=0.9))


def test_scenarios_are_sampled_evenly_by_family():
    assert [scenario.family for scenario in SCENARIOS] == [family for family in FAMILIES for _ in range(2)]
    assert sample(load_bank().scenarios(Split.TRAIN), 2, seed=3) == SCENARIOS != sample(load_bank().scenarios(Split.TRAIN), 2, seed=4)


def test_the_table_names_each_agent_and_what_it_tries(capsys):
    assert main(["adversaries", "--per-family", "1", "--agent", "empty", "copy", "--register", "open"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line.endswith("honest")][:7] == [f"L{k}" for k in range(7)]
    assert SUITE["copy"].trick in out and "no trick gets more than its bound" in out and "above the rung" not in out


def test_a_trick_above_the_rung_is_named_even_if_it_keeps_a_bound_of_its_own(capsys):
    assert main(["adversaries", "--per-family", "1", "--agent", "only_asks", "--register", "open"]) == 0
    assert "honest agent is paid for, too: only_asks (open)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--agent", "nobody"], "--agent must be one of stuffed_words, "), (["--per-family", "0"], "--per-family must be at least 1, got 0")],
)
def test_a_request_that_cannot_be_met_is_named(capsys, arguments: list[str], message: str):
    assert main(["adversaries", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_dialogues_with_adversaries_can_be_replayed():
    scenario = SCENARIOS[0]
    for adversary in SUITE.values():
        first = play(adversary, scenario, VANILLA, seed=1, user=USERS[Register.OPEN])
        assert play(adversary, scenario, VANILLA, seed=1, user=USERS[Register.OPEN]) == first
        assert all(turn.is_same for turn in replay(first, USERS[Register.OPEN].config))


def test_a_trick_that_shows_a_skill_is_paid_no_more_than_an_honest_agent_with_that_skill():
    assert {adversary.like for adversary in SUITE.values()} == {"", "grounding alone", "without fit"}
    strict = [adversary.name for adversary in SUITE.values() if not adversary.like]
    assert len(strict) > 25 and {"stuffed_things", "golden", "copy", "flattery", "asks_for_the_wish", "hangs_up"} <= set(strict)
