"""The three axes of difficulty, one at a time, the other two as VANILLA has them."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from simulator.emotion import hint_in
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import VANILLA, Split
from simulator.scripted import AGENTS, Agent, ScriptedAgent, mean_score, play, sample
from simulator.world import load_bank, read_toml

USER = RuleUser(RuleUserConfig())
FEW = sample(load_bank().scenarios(Split.TRAIN), 1, seed=0)
DULL = ScriptedAgent(name="dull", skills=frozenset(), always="hedging")


def played(agent: Agent, axis: str, value: float):
    """Dialogues of an agent with users of VANILLA but for one axis."""
    difficulty = replace(VANILLA, **{axis: value})
    return [play(agent, scenario, difficulty, seed=i, user=USER) for i, scenario in enumerate(FEW)]


def score(name: str, axis: str, value: float) -> float:
    return mean_score(played(AGENTS[name], axis, value))


def test_strictness_alone_asks_for_more_skills():
    rungs = [next(k for k in range(7) if score(f"L{k}", "strictness", value) >= 70) for value in (0.0, 0.2, 0.35, 0.5, 0.65, 0.95)]
    assert rungs == sorted(rungs) and rungs[0] == 0 and rungs[-1] == 6 and len(set(rungs)) >= 5


def test_reserve_alone_hides_the_wish_and_mutes_what_is_felt():
    hinted, muted = [], []
    for value in (0.0, 0.5, 1.0):
        said = [(text, one.scenario.family.persona) for one in played(DULL, "reserve", value) for text in one.said()[1:]]
        hinted.append(fmean(hint_in(text, kinds=("overt",)) is not None for text, _ in said))
        pools = read_toml("phrases")["reactions"]
        muted.append(fmean(text.startswith(tuple(pools[persona]["muted"])) for text, persona in said))
    assert hinted[0] > hinted[1] > hinted[2] == 0 and muted[0] < muted[1] < muted[2]


def test_reserve_alone_asks_for_the_skill_of_reading_veiled_hints_and_for_no_other():
    assert score("L4", "reserve", 0.0) >= 90
    assert score("L4", "reserve", 0.9) < score("L5", "reserve", 0.9) - 30
    assert score("L5", "reserve", 0.9) >= 90


def test_impatience_alone_drains_what_makes_no_progress_and_nothing_else():
    dull = [[turn.change for one in played(DULL, "impatience", value) for turn in one.turns if turn.change] for value in (0.0, 0.5, 1.0)]
    drained = list(map(fmean, dull))
    assert drained[0] > drained[1] > drained[2]
    assert score("L6", "impatience", 0.0) - score("L6", "impatience", 1.0) < 2
