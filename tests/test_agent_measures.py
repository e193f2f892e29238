"""Measures of an evaluation: capabilities, plane, length control, best of k and intervals, by hand or by brute force."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from analysis.evaluated import score_within
from experiments.agents.capabilities import (
    ReplyFeatures,
    capabilities,
    plane,
    read_grades,
    reply_features,
    strategy_shares,
    style_flexibility,
)
from experiments.agents.players import AgentDialogue
from experiments.agents.scores import best_of_k, count_errors, jackknifed, length_control, mean, ratio, resampled, scores
from experiments.tasks import EvaluationTask, grid_tasks
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.listener import Register
from simulator.llm.prompts import Unusable
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, HiddenIntention, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

USER = RuleUser(RuleUserConfig(register=Register.WORLD))
Z = 1.959964


def scenarios(*wishes: HiddenIntention, num: int = 1) -> list[Scenario]:
    everyone = load_bank().scenarios(Split.HELDOUT)
    return [scenario for wish in wishes for scenario in [s for s in everyone if s.family.intention is wish][:num]]


def task_of(scenario: Scenario, strictness: float = 0.5) -> EvaluationTask:
    return grid_tasks([scenario], [strictness])[0]


def answered(scenario: Scenario, *replies: str, strictness: float = 0.5) -> list[ReplyFeatures]:
    """These replies, answered by the embedded user."""
    dialogue = USER.begin(scenario, Difficulty.along(strictness), seed=1)
    for reply in replies:
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), USER.answer(dialogue, reply).turn)
    played = AgentDialogue(task=task_of(scenario, strictness), sibling=0, dialogue=dialogue.then(outcome=Outcome.MAX_TURNS))
    return reply_features([played], Register.WORLD)


def moved(scenario: Scenario, changes: list[int], lengths: list[int], *, sibling: int = 0, strictness: float = 0.5, **end) -> AgentDialogue:
    """A dialogue of replies of these numbers of words that moved the user, at 40 before, by these points."""
    turns = [Turn(speaker=Speaker.USER, text=scenario.opening, emotion=40)]
    for i, (change, words) in enumerate(zip(changes, lengths, strict=True)):
        turns.append(Turn(speaker=Speaker.AGENT, text=" ".join(["word"] * words)))
        turns.append(Turn(speaker=Speaker.USER, text="Hm.", emotion=40 + sum(changes[: i + 1]), change=change))
    end = {"outcome": Outcome.MAX_TURNS, **end}
    dialogue = Dialogue(scenario=scenario, difficulty=Difficulty.along(strictness), seed=1, turns=tuple(turns), **end)
    return AgentDialogue(task=task_of(scenario, strictness), sibling=sibling, dialogue=dialogue)


def ended(scenario: Scenario, emotion: int, *, words: int = 4, **more) -> AgentDialogue:
    return moved(scenario, [emotion - 40], [words], **more)


def test_moves_about_something_the_user_said_count_twice():
    (sad,), (stuck,) = scenarios(HiddenIntention.EMPATHY), scenarios(HiddenIntention.ADVICE)
    felt = [f"I can hear how hurt you are about {sad.facts[0].cue}.", "It sounds like you feel hurt.", "Everything will be fine."]
    assert [answered(sad, reply)[0].empathic_depth() for reply in felt] == [(1.0, 1.0), (0.5, 1.0), (0.0, 1.0)]
    advised = [f"Maybe you should write down what you want to say about {stuck.facts[0].cue}.", "You should set clear limits."]
    assert [answered(stuck, reply)[0].solution_crafting() for reply in advised] == [(1.0, 1.0), (0.5, 1.0)]
    (reply_to_sad,), (reply_to_stuck,) = answered(sad, felt[0]), answered(stuck, advised[0])
    assert reply_to_sad.solution_crafting() == reply_to_stuck.empathic_depth() == (0.0, 0.0), "not asked for"


def test_insight_is_the_wished_move_alone_and_twice_after_a_veiled_hint():
    (proud,) = scenarios(HiddenIntention.PRAISE)
    praise, empathy = "I really admire how you handled this.", "It sounds like you feel hurt."
    (one,), (both,), (other,) = (answered(proud, said, strictness=0.0) for said in (praise, f"{praise} {empathy}", empathy))
    assert one.was_hinted and one.core_insight() == (1.0, 1.0) and both.core_insight() == (0.0, 1.0)
    assert other.empathic_depth() == (0.5, 1.0) and replace(other, was_hinted=True).core_insight() == (0.0, 1.0)
    assert replace(one, was_hinted=False).core_insight() == (0.0, 0.0)
    _, veiled = answered(proud, "What happened then?", praise, strictness=1.0)
    assert veiled.was_hinted and veiled.core_insight() == (2.0, 2.0)


def test_first_questions_are_not_counted_and_repetition_is_no_depth():
    (sad,) = scenarios(HiddenIntention.EMPATHY)
    asked = [reply.empathic_depth() for reply in answered(sad, *["What happened then?"] * 3)]
    assert asked == [(0.0, 0.0), (0.0, 0.0), (0.0, 1.0)]
    *_, again = answered(sad, *["It sounds like you feel hurt."] * 2)
    assert again.empathic_depth() == (0.0, 1.0)


def test_guidance_is_to_ask_early_and_to_come_back_later():
    (who,) = scenarios(HiddenIntention.LISTENED)
    first, second, third = answered(who, "What happened then?", "You should set clear limits.", "Many people go through this.")
    assert first.appraisal.shown["repair"] is None and first.dialogue_guidance() == (1.0, 1.0)
    assert second.dialogue_guidance() == (0.0, 1.0 + (second.appraisal.shown["repair"] is not None))
    assert third.dialogue_guidance()[0] == 0.0 and third.dialogue_guidance()[1] >= 1.0


@pytest.fixture(scope="module")
def ladder() -> dict[str, list[ReplyFeatures]]:
    """Replies of scripted agents to two users of each wish."""
    by_id = {scenario.scenario_id: scenario for scenario in scenarios(*HiddenIntention, num=2)}
    tasks = grid_tasks(by_id.values(), [0.5, 0.9])

    def replies(name: str) -> list[ReplyFeatures]:
        dialogues = [play(AGENTS[name], by_id[task.scenario_id], task.difficulty, seed=task.seed, user=USER) for task in tasks]
        return reply_features([AgentDialogue(task=t, sibling=0, dialogue=d) for t, d in zip(tasks, dialogues, strict=True)], Register.WORLD)

    return {name: replies(name) for name in ("L0", "L1", "L4", "L6", "praise")}


def test_capabilities_follow_the_skills_of_scripted_agents(ladder):
    found = {agent: {name: cell.value for name, cell in capabilities(replies, seed=0).items()} for agent, replies in ladder.items()}
    assert found["L0"]["core_insight"] < found["L1"]["core_insight"] < found["L6"]["core_insight"]
    assert found["L0"]["empathic_depth"] == 0.0 < found["L1"]["empathic_depth"] < found["L6"]["empathic_depth"]
    assert found["L0"]["dialogue_guidance"] < found["L4"]["dialogue_guidance"] < found["L6"]["dialogue_guidance"]
    assert found["praise"]["solution_crafting"] == 0.0 and found["L6"]["solution_crafting"] > 0.5
    assert found["L6"]["style_flexibility"] > found["L0"]["style_flexibility"]
    assert found["praise"]["style_flexibility"] == pytest.approx(0.0, abs=1e-12), "no move ever changes"
    assert style_flexibility([], seed=0).value != style_flexibility([], seed=0).value
    assert capabilities(ladder["L4"], seed=3) == capabilities(ladder["L4"], seed=3)


def test_changes_of_course_are_counted_within_dialogues():
    advice, empathy = "You should set clear limits.", "It sounds like you feel hurt."
    who = scenarios(HiddenIntention.PRAISE, HiddenIntention.NOT_AT_FAULT, num=2)
    played = [answered(scenario, advice, empathy, empathy)[0].played for scenario in who]
    replies = [replace(reply, change=-1) for reply in reply_features(played, Register.WORLD)]
    assert not any(reply.fits for reply in replies)
    # All manners are equal, so none follows the person: 0. Of two changes in each dialogue one is complete, one is none: 1/2.
    assert style_flexibility(replies, seed=0).value == pytest.approx((0.0 + 0.5) / 2.0)


def test_the_plane_separates_advice_from_praise_and_variety_from_repetition(ladder):
    advice, praise, skilled = (plane(ladder[agent], seed=0) for agent in ("L0", "praise", "L6"))
    towards = [found["empathy_to_solution"]["value"] for found in (praise, skilled, advice)]
    assert towards == sorted(towards) and (towards[0], towards[2]) == (-1.0, 1.0)
    assert praise["parts"]["strategies"] < 0.1 < skilled["parts"]["strategies"]
    assert praise["parts"]["within_dialogues"] < skilled["parts"]["within_dialogues"]
    shares = strategy_shares(ladder["praise"], seed=0)
    assert shares["praise"].value == 1.0 and shares["suggestion"].value == 0.0 and shares["none"].value == 0.0


def test_intervals_by_hand():
    values = np.arange(20, dtype=float)
    found = jackknifed(lambda chosen: float(values[chosen].mean()), 20, seed=0)
    assert found.value == 9.5 and found.high - found.value == pytest.approx(Z * values.std(ddof=1) / np.sqrt(20))
    assert mean(values, seed=1) == mean(values, seed=1) != mean(values, seed=2)
    alone = resampled(lambda chosen: 3.0, 1, seed=0)
    assert alone.value == 3.0 and np.isnan(alone.low) and np.isnan(mean(np.array([]), seed=0).value)
    assert ratio([("a", 1.0, 2.0), ("b", 0.0, 2.0)], seed=0, scale=100.0).value == 25.0
    # Ten equal values leave room for a share of exceptions.
    exceptions = 1.0 - 0.025 ** (1 / 10)
    for value, within, bounds in ((0.0, (-1, 1), (-exceptions, exceptions)), (1.0, (0, 1), (1 - exceptions, 1))):
        equal = mean(np.full(10, value), seed=0, within=within)
        assert equal.value == value and (equal.low, equal.high) == pytest.approx(bounds)


def control(played: list[AgentDialogue]) -> dict:
    return length_control(played, seed=0, register=Register.WORLD)


def test_length_control_finds_a_line_within_users_and_none_between_them():
    six, powers = scenarios(HiddenIntention.PRAISE, num=6), (1, 2, 3)
    found = control([ended(who, 30 + 5 * p, words=2**p, sibling=i) for who in six for i, p in enumerate(powers)])
    assert found["words_per_reply"] == pytest.approx(4.0) and found["points_per_doubling"]["value"] == pytest.approx(5.0)
    assert score_within(found, 8.0)["value"] == pytest.approx(45.0)
    # Long replies to one user, who feels well after any reply.
    ends = ((six[0], 20, 2), (six[1], 90, 32))
    found = control([ended(who, emotion, words=words, sibling=i) for who, emotion, words in ends for i in (0, 1)])
    assert found["points_per_doubling"] is None and found["line"] is None and found["words_per_reply"] == pytest.approx(8.0)


def test_gains_by_length_add_up_over_the_dialogue():
    # Three replies, 4 points per doubling each, and 1 point for every 8 that the user felt worse before.
    rng, played = np.random.default_rng(1), []
    for scenario, sibling in itertools.product(scenarios(HiddenIntention.PRAISE, num=10), range(6)):
        powers, changes = rng.integers(1, 4, size=3), []
        for power in powers:
            changes.append(int(4 * power - sum(changes) // 8 - 8))
        played.append(moved(scenario, changes, [2**power for power in powers], sibling=sibling))
    found = control(played)
    assert found["points_per_doubling"]["value"] == pytest.approx(12.0, abs=0.5) and found["range"] == [2.0, 8.0]
    score = np.mean([one.dialogue.emotion for one in played])
    assert score_within(found, found["words_per_reply"])["value"] == pytest.approx(score)
    assert score_within(found, 8.0) is not None and score_within(found, 10.0) is None
    assert found["score_at_reference"] is None, "the agent never speaks at ten words"


def test_a_slope_needs_enough_users_and_lengths_and_is_robust_to_a_runaway_reply():
    # Of two users with a dialogue each, every second resampled set holds one alone.
    pairs = zip(scenarios(HiddenIntention.PRAISE, num=2), (3, 9), (4, 8), strict=True)
    two = [moved(who, [change], [words]) for who, change, words in pairs]
    assert control(two)["points_per_doubling"] is None
    # Here length follows the emotion before alone.
    eight = scenarios(HiddenIntention.PRAISE, num=8)
    confounded = [moved(who, [first, 0], [4, words], sibling=i) for who in eight for i, (first, words) in enumerate(((-8, 16), (8, 4)))]
    assert control(confounded)["points_per_doubling"] is None
    played = [moved(s, [change], [words], sibling=i) for s in eight for i, (change, words) in enumerate(((0, 8), (4, 16)) * 2)]
    clean = control(played)
    found = control([*played, moved(eight[0], [-30], [2000], sibling=4)])
    assert clean["points_per_doubling"]["value"] == pytest.approx(4.0) and clean["score_at_reference"]["words"] == 10.0
    assert found["range"] == [8.0, 16.0] and abs(found["points_per_doubling"]["value"] - 4.0) < 4.0


def test_best_of_k_equals_all_choices_and_leaves_incomplete_users_out():
    emotions = [[10, 50, 30, 90], [20, 20, 20, 20], [70, 0, 40, 55]]
    who = scenarios(HiddenIntention.PRAISE, num=4)
    played = [ended(s, value, sibling=i) for s, values in zip(who, emotions, strict=False) for i, value in enumerate(values)]
    found = best_of_k([*played, ended(who[3], 99)], samples=4, seed=0)
    assert (found["k"], found["users"]) == (4, 3)
    for j in range(1, 5):
        brute = np.mean([np.mean([max(choice) for choice in itertools.combinations(values, j)]) for values in emotions])
        assert found["by_k"][str(j)] == found["expected"][str(j)]["best"]["value"] == pytest.approx(brute)
        assert found["expected"][str(j)]["gain"]["value"] == pytest.approx(brute - np.mean(emotions))
    assert found["expected"]["4"] == {"best": found["best"], "gain": found["gain"]}
    assert found["best"]["value"] == 60.0 and found["gain"]["value"] == pytest.approx(60.0 - np.mean(emotions))
    assert best_of_k(played, samples=1, seed=0) is None


def test_scores_by_group_and_errors_by_reason():
    one, other = scenarios(HiddenIntention.PRAISE, HiddenIntention.ADVICE)
    played = [ended(one, 100, strictness=0.1), ended(one, 5, strictness=0.9)]
    played += [ended(other, 9, strictness=0.9), ended(other, 10, strictness=0.9, sibling=1)]
    found = scores(played, seed=0)
    rates = {
        name: (cell["success_rate"]["value"], cell["failure_rate"]["value"])
        for group in ("strictness", "intention", "family", "persona")
        for name, cell in found[group].items()
    }
    assert rates["0.1"] == (1.0, 0.0) and rates["0.9"] == (0.0, pytest.approx(2 / 3))
    assert rates["praise"] == rates[str(one.family)] == (0.5, 0.5) and rates["advice"] == rates[str(other.family)] == (0.0, 0.5)
    assert found["score"] == 31.0 and found["intervals"]["success_rate"]["value"] == 0.25
    assert found["intention"]["praise"].items() >= {"value": 52.5, "n": 2}.items()
    assert found["per_scenario"] == {one.scenario_id: 52.5, other.scenario_id: 9.5}
    broken = ended(one, 0, sibling=1, outcome=Outcome.ERROR, error="Traceback\nRuntimeError: it broke")
    counts = {"planned": 6, "not_played": 1, "excluded_dialogues": 1, "reasons": {"RuntimeError: it broke": 1}, "cut_short": 0}
    counts["excluded_share_by_last_emotion"] = {"below_40": 0.25, "from_70": 0.0}
    assert count_errors([*played, broken], num_planned=6) == counts


def test_a_judge_must_grade_everything_in_range():
    names = ("empathic_depth", "core_insight", "solution_crafting", "dialogue_guidance", "style_flexibility")
    grades = {"why": "w", **dict.fromkeys(names, 2)}
    assert set(read_grades(json.dumps(grades)).values()) == {0.25}
    assert read_grades(json.dumps({**grades, "core_insight": "4"}))["core_insight"] == 0.75
    for wrong in (6, True, 1.5, None, "four or five"):
        with pytest.raises(Unusable, match="core_insight"):
            read_grades(json.dumps({**grades, "core_insight": wrong}))
