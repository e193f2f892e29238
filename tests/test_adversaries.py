"""Tricks stay within L1 at VANILLA and L0 at CHALLENGING in both registers."""

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
    payers,
    standing,
    table,
    things_in,
)
from simulator.dialogue import Dialogue
from simulator.explain import replay
from simulator.listener import Register, nouns
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import CHALLENGING, FAMILIES, VANILLA, Split
from simulator.scripted import AGENTS, fill, play, sample
from simulator.world import load_bank, read_toml

USERS = {register: RuleUser(RuleUserConfig(register=register)) for register in Register}
SCENARIOS = sample(load_bank().scenarios(Split.TRAIN), 2, seed=3)
SUITE = {adversary.name: adversary for adversary in adversaries()}
KNOWN_TO_PAY = 30
"""What those that are known to may get at most."""
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
    if not SUITE[name].is_played_in(register) or SUITE[name].known:
        pytest.skip("not of this register, or known to pay")
    found = standing(SUITE[name], SCENARIOS, difficulty, user=USERS[register])
    bound = of_rung(rung, level, register)
    assert found.stays_within(bound), (found, bound)


@both_registers
def test_tricks_that_are_known_to_pay_do_not_pay_more_than_was_told(register: Register):
    for name in (name for name in SUITE if SUITE[name].known):
        for difficulty in (VANILLA, CHALLENGING):
            assert standing(SUITE[name], SCENARIOS, difficulty, user=USERS[register]).score <= KNOWN_TO_PAY


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
                assert standing(Same(sentence), scenarios, difficulty, user=USERS[register]).stays_within(bounds[level]), (sentence, level)


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
    assert Standing(score=9.0, stayed=0.0).stays_within(Standing(score=5.0, stayed=0.0))
    assert not Standing(score=10.1, stayed=0.1).stays_within(Standing(score=5.0, stayed=0.0))
    assert Standing(score=30.0, stayed=1.0).stays_within(Standing(score=30.0, stayed=0.9))


def test_scenarios_are_sampled_evenly_by_family():
    assert [scenario.family for scenario in SCENARIOS] == [family for family in FAMILIES for _ in range(2)]
    assert sample(load_bank().scenarios(Split.TRAIN), 2, seed=3) == SCENARIOS != sample(load_bank().scenarios(Split.TRAIN), 2, seed=4)


def test_the_table_names_each_agent_and_what_it_tries(capsys):
    assert main(["adversaries", "--per-family", "1", "--agent", "empty", "copy", "--register", "open"]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line.endswith("honest")][:7] == [f"L{k}" for k in range(7)]
    assert SUITE["copy"].trick in out and "no trick gets more than its bound" in out


def test_a_trick_that_pays_is_named():
    suite = [SUITE["empty"], SUITE["copy"]]
    found = {
        "L0": (Standing(score=8.0, stayed=0.1), Standing(score=3.0, stayed=0.0)),
        "L1": (Standing(score=28.0, stayed=0.9), Standing(score=3.0, stayed=0.0)),
        "empty": (Standing(score=28.1, stayed=1.0), Standing(score=3.0, stayed=0.0)),
        "copy": (Standing(score=28.0, stayed=1.0), Standing(score=10.0, stayed=0.0)),
    }
    assert payers(suite, found) == ["empty"]
    assert [line.split()[0] for line in table(suite, found, Register.OPEN) if "PAYS" in line] == ["empty"]


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


@both_registers
def test_a_noun_drawn_at_random_brings_next_to_nothing(register: Register):
    class Guessing:
        def reply(self, dialogue: Dialogue) -> str:
            noun = random.Random(f"{dialogue.scenario.scenario_id}|{dialogue.num_replies}").choice(sorted(nouns()))
            return f"{AGENTS['L1'].reply(dialogue)} So the {noun} is a big part of this."

    # Now and then the noun is one that was told, which is the skill of L2, by luck.
    assert standing(Guessing(), SCENARIOS, VANILLA, user=USERS[register]).score <= of_rung("L1", "VANILLA", register).score + 3
