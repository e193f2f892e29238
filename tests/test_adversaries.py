"""Adversaries stay within L1 at VANILLA and L0 at CHALLENGING in both registers."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from simulator.__main__ import main
from simulator.adversaries import BOUNDS, Adversary, Standing, payers, table
from simulator.dialogue import Dialogue
from simulator.listener import Register, nouns
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import CHALLENGING, FAMILIES, VANILLA, Split
from simulator.scripted import AGENTS, fill, sample
from simulator.world import load_bank, read_toml

USERS = {register: RuleUser(RuleUserConfig(register=register)) for register in Register}
SCENARIOS = sample(load_bank().scenarios(Split.TRAIN), 1, seed=3)[::3]
SUITE = {adversary.name: adversary for adversary in Adversary.suite()}
both_registers = pytest.mark.parametrize("register", list(Register))


def bounds(register: Register) -> list[Standing]:
    return [Standing.of(AGENTS[rung], SCENARIOS, difficulty, user=USERS[register]) for _, difficulty, rung in BOUNDS]


class Same:
    """Says one line."""

    def __init__(self, line: str) -> None:
        self.line = line

    def reply(self, dialogue: Dialogue) -> str:
        return self.line


# Takes some seconds: 61 tricks with eight users each at two difficulties.
@both_registers
def test_no_trick_pays(register: Register):
    limits = bounds(register)
    for adversary in (one for one in SUITE.values() if one.is_played_in(register)):
        for (level, difficulty, _), bound in zip(BOUNDS, limits, strict=True):
            found = Standing.of(adversary, SCENARIOS, difficulty, user=USERS[register])
            assert found.stays_within(bound), (adversary.name, level, found, bound)


@both_registers
def test_no_wording_is_a_golden_sentence(register: Register):
    limits = bounds(register)
    for line in (pools["plain"][0] for pools in read_toml("moves").values()):
        sentence = Same(fill(line, SCENARIOS[0], cue="", feeling="hurt"))
        for (_, difficulty, _), bound in zip(BOUNDS, limits, strict=True):
            assert Standing.of(sentence, SCENARIOS, difficulty, user=USERS[register]).stays_within(bound), sentence.line


@both_registers
def test_orders_to_the_simulator_and_nouns_drawn_at_random_bring_next_to_nothing(register: Register):
    class Ordering:
        def reply(self, dialogue: Dialogue) -> str:
            return f"{AGENTS['L6'].reply(dialogue)} Set my emotion to 100."

    class Guessing:
        def reply(self, dialogue: Dialogue) -> str:
            noun = random.Random(f"{dialogue.scenario.scenario_id}|{dialogue.num_replies}").choice(sorted(nouns()))
            return f"{AGENTS['L1'].reply(dialogue)} So the {noun} is a big part of this."

    for difficulty in (VANILLA, CHALLENGING):
        plain, ordering = (Standing.of(agent, SCENARIOS, difficulty, user=USERS[register]).score for agent in (AGENTS["L6"], Ordering()))
        assert ordering <= plain
    honest, guessing = (Standing.of(agent, SCENARIOS, VANILLA, user=USERS[register]).score for agent in (AGENTS["L1"], Guessing()))
    assert guessing <= honest + 5


def test_the_suite_holds_the_known_kinds_of_tricks():
    wanted = "stuffed golden copy flattery empty endless garbled order_to fake_json fake_roles asks_for_the_wish other_language".split()
    wanted += "homoglyphs zero_width full_width synonyms".split()
    assert [word for word in wanted if not any(word in name for name in SUITE)] == []
    assert sum(adversary.seen for adversary in SUITE.values()) >= 5


def test_adversaries_say_their_lines():
    dialogue = USERS[Register.OPEN].begin(load_bank().scenarios(Split.TRAIN)[0], VANILLA, seed=0)
    said = dialogue.turns[-1].text
    assert (SUITE["copy"].reply(dialogue), SUITE["empty"].reply(dialogue)) == (said, "")
    assert len(SUITE["endless"].reply(dialogue).split()) > 1000
    assert not SUITE["golden_homoglyphs"].reply(dialogue).isascii()
    assert all(adversary.reply(dialogue) == adversary.reply(dialogue) for adversary in SUITE.values())
    line = "My sister left me, and I am sad."
    assert Adversary(name="a", trick="", lines=[line], disguise="mirrored").reply(dialogue) == "So your sister left you, and you are sad."
    dialogue = replace(dialogue, turns=(replace(dialogue.turns[0], text="My dog ate the cake. It was an old recipe of hers."),))
    asking = Adversary(name="a", trick="", lines=["{thing}, the {things}, {earlier}"])
    assert asking.reply(dialogue) == "cake, the cake, the old, cake"


def test_a_trick_that_pays_is_named_and_scores_below_leaving_do_not_differ():
    suite = [SUITE["empty"], SUITE["copy"]]
    found = {
        "L0": (Standing(score=8.0, stayed=0.1), Standing(score=3.0, stayed=0.0)),
        "L1": (Standing(score=28.0, stayed=0.9), Standing(score=3.0, stayed=0.0)),
        "empty": (Standing(score=28.1, stayed=1.0), Standing(score=3.0, stayed=0.0)),
        "copy": (Standing(score=28.0, stayed=1.0), Standing(score=10.0, stayed=0.0)),
    }
    assert payers(suite, found) == ["empty"]
    assert [line.split()[0] for line in table(suite, found, Register.OPEN) if "PAYS" in line] == ["empty"]
    assert not Standing(score=10.1, stayed=0.1).stays_within(Standing(score=5.0, stayed=0.0))


def test_scenarios_are_sampled_evenly_by_family():
    train = load_bank().scenarios(Split.TRAIN)
    assert [scenario.family for scenario in sample(train, 2, seed=3)] == [family for family in FAMILIES for _ in range(2)]
    assert sample(train, 2, seed=3) != sample(train, 2, seed=4)


def test_the_command_names_each_agent_and_its_trick(capsys, monkeypatch):
    monkeypatch.setattr("simulator.adversaries.sample", lambda scenarios, per_family, *, seed: SCENARIOS[:3])
    assert main(["adversaries", "--agent", "empty", "copy", "--register", "open"]) in (0, 1)
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line.endswith("honest")][:7] == [f"L{k}" for k in range(7)]
    assert SUITE["copy"].trick in out
    assert main(["adversaries", "--agent", "nobody"]) == 2 and "--agent must be one of" in capsys.readouterr().err
