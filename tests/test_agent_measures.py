"""What is read off an evaluation's dialogues, on cases worked out by hand and against brute force."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from analysis.leaderboard import score_at, score_within
from experiments.agents.judge import read_grades
from experiments.agents.players import Played, Reply, read_reply
from experiments.agents.scores import (
    Answered,
    answered,
    best_of_k,
    capabilities,
    core_insight,
    creativity,
    dialogue_guidance,
    empathic_depth,
    empathy_to_solution,
    errors,
    jackknifed,
    length_control,
    mean,
    own_overlaps,
    plane,
    resampled,
    scores,
    solution_crafting,
    strategy_shares,
    style_flexibility,
)
from experiments.tasks import EvaluationTask, grid_tasks
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.listener import Register
from simulator.llm.prompts import Unusable
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, HiddenIntention, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

USER = RuleUser(RuleUserConfig(register=Register.WORLD))


def scenarios(*wishes: HiddenIntention, num: int = 1) -> list[Scenario]:
    everyone = load_bank().scenarios(Split.HELDOUT)
    return [scenario for wish in wishes for scenario in [s for s in everyone if s.family.intention is wish][:num]]


def said(scenario: Scenario, *replies: str, strictness: float = 0.5, sibling: int = 0) -> Played:
    """These replies, answered by the embedded user."""
    dialogue = USER.begin(scenario, Difficulty.along(strictness), seed=1)
    for reply in replies:
        reaction = USER.answer(dialogue, reply)
        dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=reply), reaction.turn)
    return Played(task=task_of(scenario, strictness), sibling=sibling, dialogue=dialogue.then(outcome=Outcome.MAX_TURNS))


def ended(
    scenario: Scenario, emotion: int, *, words: int = 4, sibling: int = 0, strictness: float = 0.5, outcome=Outcome.MAX_TURNS
) -> Played:
    """One reply of so many words, after which the user felt so."""
    turns = (
        Turn(speaker=Speaker.USER, text=scenario.opening, emotion=40),
        Turn(speaker=Speaker.AGENT, text=" ".join(["word"] * words)),
        Turn(speaker=Speaker.USER, text="Hm.", emotion=emotion, change=emotion - 40),
    )
    error = "Traceback\nRuntimeError: it broke" if outcome is Outcome.ERROR else ""
    dialogue = Dialogue(scenario=scenario, difficulty=Difficulty.along(strictness), seed=1, turns=turns, outcome=outcome, error=error)
    return Played(task=task_of(scenario, strictness), sibling=sibling, dialogue=dialogue)


def task_of(scenario: Scenario, strictness: float) -> EvaluationTask:
    return grid_tasks([scenario], [strictness])[0]


def replies_to(*played: Played) -> list[Answered]:
    return answered(played, Register.WORLD)


def thing(scenario: Scenario) -> str:
    """What the opening tells of."""
    return scenario.facts[0].cue


def test_empathy_about_something_told_is_worth_twice_that_about_nothing():
    (who,) = scenarios(HiddenIntention.EMPATHY)
    tied, general, other = replies_to(
        said(who, f"I can hear how hurt you are about {thing(who)}."),
        said(who, "It sounds like you feel hurt."),
        said(who, "Everything will be fine."),
    )
    assert [empathic_depth(reply) for reply in (tied, general, other)] == [(1.0, 1.0), (0.5, 1.0), (0.0, 1.0)]
    assert solution_crafting(tied) == (0.0, 0.0), "nobody asked for a solution"


def test_any_empathic_move_is_depth_but_only_the_wished_one_is_insight():
    (who,) = scenarios(HiddenIntention.PRAISE)
    (reply,) = replies_to(said(who, "It sounds like you feel hurt.", strictness=0.0))
    assert empathic_depth(reply) == (0.5, 1.0)
    assert core_insight(replace(reply, was_hinted=True)) == (0.0, 1.0)


def test_a_suggestion_is_a_solution_for_who_wants_one():
    (who,) = scenarios(HiddenIntention.ADVICE)
    tied, general = replies_to(
        said(who, f"Maybe you should write down what you want to say about {thing(who)}."), said(who, "You should set clear limits.")
    )
    assert solution_crafting(tied) == (1.0, 1.0) and solution_crafting(general) == (0.5, 1.0)
    assert empathic_depth(tied) == (0.0, 0.0)


def test_trying_everything_shows_no_insight():
    (who,) = scenarios(HiddenIntention.PRAISE)
    one, both = replies_to(
        said(who, "I really admire how you handled this.", strictness=0.0),
        said(who, "I really admire how you handled this. It sounds like you feel hurt.", strictness=0.0),
    )
    assert one.was_hinted and core_insight(one) == (1.0, 1.0)
    assert core_insight(both) == (0.0, 1.0)


def test_a_wish_that_only_shone_through_counts_twice():
    (who,) = scenarios(HiddenIntention.PRAISE)
    played = said(who, "What happened then?", "I really admire how you handled this.", strictness=1.0)
    _, reply = replies_to(played)
    assert reply.was_hinted and reply.only_veiled and core_insight(reply) == (2.0, 2.0)


def test_first_questions_prepare_depth_and_are_not_held_against_it():
    (who,) = scenarios(HiddenIntention.EMPATHY)
    first, second, third = replies_to(said(who, "What happened then?", "What happened then?", "What happened then?"))
    assert empathic_depth(first) == empathic_depth(second) == (0.0, 0.0) and empathic_depth(third) == (0.0, 1.0)


def test_repeating_oneself_is_no_depth():
    (who,) = scenarios(HiddenIntention.EMPATHY)
    *_, last = replies_to(said(who, "It sounds like you feel hurt.", "It sounds like you feel hurt."))
    assert empathic_depth(last) == (0.0, 1.0)


def test_guidance_counts_asking_early_and_coming_back_later():
    (who,) = scenarios(HiddenIntention.LISTENED)
    first, second, third = replies_to(said(who, "What happened then?", "You should set clear limits.", "Many people go through this."))
    assert first.appraisal.shown["repair"] is None and dialogue_guidance(first) == (1.0, 1.0)
    missed_listening = 1.0 + (second.appraisal.shown["repair"] is not None)
    assert dialogue_guidance(second) == (0.0, missed_listening)
    assert dialogue_guidance(third)[0] == 0.0 and dialogue_guidance(third)[1] >= 1.0


def played_by(agent: str, *, num: int = 3) -> list[Played]:
    who = scenarios(*HiddenIntention, num=num)
    tasks = grid_tasks(who, [0.5, 0.9])
    by_id = {scenario.scenario_id: scenario for scenario in who}
    return [
        Played(task=t, sibling=0, dialogue=play(AGENTS[agent], by_id[t.scenario_id], t.difficulty, seed=t.seed, user=USER)) for t in tasks
    ]


@pytest.fixture(scope="module")
def ladder() -> dict[str, list[Answered]]:
    return {agent: replies_to(*played_by(agent)) for agent in ("L0", "L1", "L4", "L6", "praise")}


def test_capabilities_follow_the_skills_of_the_scripted_agents(ladder):
    found = {agent: {name: cell.value for name, cell in capabilities(replies, seed=0).items()} for agent, replies in ladder.items()}
    assert found["L0"]["core_insight"] < found["L1"]["core_insight"] < found["L6"]["core_insight"]
    assert found["L0"]["empathic_depth"] == 0.0 < found["L1"]["empathic_depth"] < found["L6"]["empathic_depth"]
    assert found["L0"]["dialogue_guidance"] < found["L4"]["dialogue_guidance"] < found["L6"]["dialogue_guidance"]
    assert found["praise"]["solution_crafting"] == 0.0 and found["L6"]["solution_crafting"] > 0.5
    assert found["L6"]["style_flexibility"] > found["L0"]["style_flexibility"]


def test_who_treats_all_alike_is_not_flexible(ladder):
    # always praise: no move ever changes, after a hurt or with another person
    assert style_flexibility(ladder["praise"], seed=0).value == pytest.approx(0.0, abs=1e-12)


def test_capabilities_are_the_same_for_the_same_seed(ladder):
    assert capabilities(ladder["L4"], seed=3) == capabilities(ladder["L4"], seed=3)


def test_an_agent_of_advice_stands_at_the_end_of_solutions(ladder):
    assert empathy_to_solution(ladder["L0"]) == 1.0 and empathy_to_solution(ladder["praise"]) == -1.0
    assert -1.0 < plane(ladder["L6"], seed=0)["empathy_to_solution"].value < 1.0


def test_bounds_on_the_plane_end_where_its_axes_do():
    advised, tried, felt = scenarios(HiddenIntention.ADVICE, num=3)
    heard = replies_to(
        said(advised, "You should set clear limits."),
        said(tried, "You should set clear limits."),
        said(felt, "It sounds like you feel hurt."),
    )
    # without each in turn: 0, 0 and 1, whose jackknife error is sqrt(2/3 (1/9 + 1/9 + 4/9)) = 2/3
    found = plane(heard, seed=0)["empathy_to_solution"]
    assert found.value == pytest.approx(1 / 3) and found.low == pytest.approx(1 / 3 - 1.959964 * 2 / 3) and found.high == 1.0


def test_more_wordings_and_moves_are_more_creative(ladder):
    praise, skilled = (creativity(ladder[agent], own_overlaps(ladder[agent])) for agent in ("praise", "L6"))
    assert praise["strategies"] < 0.1 < skilled["strategies"] and praise["within_dialogues"] < skilled["within_dialogues"]


def test_shares_of_strategies_are_of_replies(ladder):
    shares = strategy_shares(ladder["praise"], seed=0)
    assert shares["praise"].value == 1.0 and shares["suggestion"].value == 0.0 and shares["none"].value == 0.0


def test_jackknife_of_a_mean_is_its_standard_error():
    values = np.arange(20, dtype=float)
    found = jackknifed(lambda chosen: float(values[chosen].mean()), 20, seed=0)
    assert found.value == 9.5 and found.high - found.value == pytest.approx(1.959964 * values.std(ddof=1) / np.sqrt(20))


def test_intervals_repeat_with_their_seed_and_need_two_scenarios():
    values = np.random.default_rng(0).normal(size=9)

    def of(chosen):
        return float(values[chosen].mean())

    assert resampled(of, 9, seed=1) == resampled(of, 9, seed=1) != resampled(of, 9, seed=2)
    assert np.isnan(resampled(of, 1, seed=0).low) and resampled(of, 1, seed=0).value == values[0]


def test_a_mean_of_values_that_are_all_alike_is_bounded_by_how_many_exceptions_so_many_leave_room_for():
    exceptions = 1.0 - 0.025 ** (1 / 10)
    never = mean(np.zeros(10), seed=0, within=(0.0, 1.0))
    assert (never.value, never.low) == (0.0, 0.0) and never.high == pytest.approx(exceptions)
    unchanged = mean(np.zeros(10), seed=0, within=(-1.0, 1.0))
    assert (unchanged.low, unchanged.high) == pytest.approx((-exceptions, exceptions))
    always = mean(np.ones(10), seed=0, within=(0.0, 1.0))
    assert (always.low, always.high) == pytest.approx((1.0 - exceptions, 1.0))
    mixed = np.array([0.0, 1.0, 1.0, 0.0])
    assert mean(mixed, seed=0, within=(0.0, 1.0)) == mean(mixed, seed=0)


def test_length_control_finds_a_line_and_what_is_left_without_it():
    who = scenarios(HiddenIntention.PRAISE, num=6)
    played = [ended(s, 30 + 5 * power, words=2**power, sibling=i) for s in who for i, power in enumerate((1, 2, 3))]
    found = length_control(played, seed=0, register=Register.WORLD)
    assert found["words_per_reply"] == pytest.approx(4.0)
    assert found["points_per_doubling"]["value"] == pytest.approx(5.0)
    assert score_at(found["line"], 16.0)["value"] == pytest.approx(50.0)


def test_length_that_only_differs_between_users_explains_nothing():
    # long replies to one user, who feels well whatever is said
    short, long = scenarios(HiddenIntention.PRAISE, num=2)
    played = [ended(short, 20, words=2, sibling=i) for i in (0, 1)] + [ended(long, 90, words=32, sibling=i) for i in (0, 1)]
    found = length_control(played, seed=0, register=Register.WORLD)
    assert found["points_per_doubling"] is None and found["line"] is None and found["words_per_reply"] == pytest.approx(8.0)


def moved(scenario: Scenario, changes: list[int], lengths: list[int], *, sibling: int = 0) -> Played:
    """A dialogue of replies so long that moved the user by so much."""
    turns = [Turn(speaker=Speaker.USER, text=scenario.opening, emotion=40)]
    for i, (change, words) in enumerate(zip(changes, lengths, strict=True)):
        turns.append(Turn(speaker=Speaker.AGENT, text=" ".join(["word"] * words)))
        turns.append(Turn(speaker=Speaker.USER, text="Hm.", emotion=40 + sum(changes[: i + 1]), change=change))
    dialogue = Dialogue(scenario=scenario, difficulty=Difficulty.along(0.5), seed=1, turns=tuple(turns), outcome=Outcome.MAX_TURNS)
    return Played(task=task_of(scenario, 0.5), sibling=sibling, dialogue=dialogue)


def test_a_failing_agent_that_talks_is_not_taken_for_one_that_fails_by_talking():
    # Luck moves users up or down; once one is down, replies are four times as long, and nothing hangs on that.
    rng = np.random.default_rng(0)
    played = []
    for scenario in scenarios(HiddenIntention.PRAISE, num=12):
        for sibling in range(40):
            changes, lengths = [], []
            for _ in range(6):
                lengths.append((4 if sum(changes) >= 0 else 16) + int(rng.integers(0, 4)))
                changes.append(int(rng.choice([-5, 5])))
            played.append(moved(scenario, changes, lengths, sibling=sibling))
    by_dialogue = np.polyfit(
        [np.log2(np.mean([len(reply.split()) for reply in one.dialogue.replies()])) for one in played],
        [one.dialogue.emotion for one in played],
        1,
    )
    assert by_dialogue[0] < -8.0
    found = length_control(played, seed=0, register=Register.WORLD)
    slope = found["points_per_doubling"]
    assert slope["low"] < 0.0 < slope["high"] and abs(slope["value"]) < 3.0


def test_what_each_reply_gains_by_its_length_adds_up_over_the_dialogue():
    # Three replies, 4 points per doubling each, beside 1 point for every 8 that the user already felt worse.
    rng = np.random.default_rng(1)
    played = []
    for scenario in scenarios(HiddenIntention.PRAISE, num=10):
        for sibling in range(6):
            powers = rng.integers(1, 4, size=3)
            changes: list[int] = []
            for power in powers:
                changes.append(int(4 * power - sum(changes) // 8 - 8))
            played.append(moved(scenario, changes, [2**power for power in powers], sibling=sibling))
    found = length_control(played, seed=0, register=Register.WORLD)
    assert found["points_per_doubling"]["value"] == pytest.approx(12.0, abs=0.5)
    assert found["range"] == [2.0, 8.0]
    score = np.mean([one.dialogue.emotion for one in played])
    assert score_at(found["line"], found["words_per_reply"])["value"] == pytest.approx(score)
    assert score_within(found, 8.0) == score_at(found["line"], 8.0) and score_within(found, 10.0) is None
    assert found["score_at_reference"] is None, "the agent never speaks at ten words"


def test_a_slope_that_few_users_cannot_tell_is_not_told():
    # Of two users with a dialogue each every second redrawn set holds one alone, which is compared with nothing.
    two = [
        moved(who, [change], [words]) for who, change, words in zip(scenarios(HiddenIntention.PRAISE, num=2), (3, 9), (4, 8), strict=True)
    ]
    assert length_control(two, seed=0, register=Register.WORLD)["points_per_doubling"] is None
    # Here length hangs on nothing but what was felt before.
    alike = [moved(who, [first, 0], [4, words]) for who in scenarios(HiddenIntention.PRAISE, num=8) for first, words in ((-8, 16), (8, 4))]
    found = length_control([replace(one, sibling=i % 2) for i, one in enumerate(alike)], seed=0, register=Register.WORLD)
    assert found["points_per_doubling"] is None and found["score_at_reference"] is None and found["words_per_reply"] > 4.0


def test_a_reply_that_runs_away_does_not_turn_the_line():
    who = scenarios(HiddenIntention.PRAISE, num=8)
    played = [moved(s, [change], [words], sibling=i) for s in who for i, (change, words) in enumerate(((0, 8), (4, 16)) * 2)]
    told = length_control(played, seed=0, register=Register.WORLD)
    runaway = moved(who[0], [-30], [2000], sibling=4)
    found = length_control([*played, runaway], seed=0, register=Register.WORLD)
    assert told["points_per_doubling"]["value"] == pytest.approx(4.0) and told["score_at_reference"]["words"] == 10.0
    assert found["range"] == [8.0, 16.0] and abs(found["points_per_doubling"]["value"] - 4.0) < 4.0


def test_best_of_k_without_bias_equals_all_choices():
    who = scenarios(HiddenIntention.PRAISE, num=3)
    emotions = [[10, 50, 30, 90], [20, 20, 20, 20], [70, 0, 40, 55]]
    played = [ended(s, value, sibling=i) for s, values in zip(who, emotions, strict=True) for i, value in enumerate(values)]
    found = best_of_k(played, samples=4, seed=0)
    for j in range(1, 5):
        brute = np.mean([np.mean([max(choice) for choice in itertools.combinations(values, j)]) for values in emotions])
        assert found["by_k"][str(j)] == found["expected"][str(j)]["best"]["value"] == pytest.approx(brute)
        assert found["expected"][str(j)]["gain"]["value"] == pytest.approx(brute - np.mean(emotions))
    assert found["expected"]["4"] == {"best": found["best"], "gain": found["gain"]}
    assert found["best"]["value"] == 60.0 and found["gain"]["value"] == pytest.approx(60.0 - np.mean(emotions))


def test_users_of_whom_a_try_is_missing_are_left_out_of_best_of_k():
    one, other = scenarios(HiddenIntention.PRAISE, num=2)
    played = [ended(one, 10, sibling=0), ended(one, 30, sibling=1), ended(other, 90, sibling=0)]
    assert best_of_k(played, samples=2, seed=0)["best"]["value"] == 30.0 and best_of_k(played, samples=1, seed=0) is None


def test_broken_dialogues_count_in_no_score_and_are_told_by_reason():
    one, other = scenarios(HiddenIntention.PRAISE, HiddenIntention.ADVICE)
    played = [
        ended(one, 100, outcome=Outcome.DELIGHTED),
        ended(other, 5, outcome=Outcome.LEFT),
        ended(one, 0, sibling=1, outcome=Outcome.ERROR),
    ]
    found = scores(played, seed=0)
    assert found["score"] == 52.5 and found["intervals"]["success_rate"]["value"] == 0.5 == found["intervals"]["failure_rate"]["value"]
    assert found["intention"]["praise"].items() >= {"value": 100.0, "low": pytest.approx(2.5), "high": 100.0, "n": 1}.items()
    assert found["per_scenario"] == {one.scenario_id: 100.0, other.scenario_id: 5.0}
    assert errors(played, planned=4) == {
        "planned": 4,
        "not_played": 1,
        "excluded_dialogues": 1,
        "reasons": {"RuntimeError: it broke": 1},
        "cut_short": 0,
    }


def test_every_group_has_its_own_success_and_failure():
    one, other = scenarios(HiddenIntention.PRAISE, HiddenIntention.ADVICE)
    played = [
        ended(one, 100, strictness=0.1),
        ended(one, 5, strictness=0.9),
        ended(other, 9, strictness=0.9),
        ended(other, 10, strictness=0.9, sibling=1),
    ]
    found = scores(played, seed=0)

    def rates(group: str, name: str) -> tuple[float, float]:
        return tuple(found[group][name][rate]["value"] for rate in ("success_rate", "failure_rate"))

    assert rates("strictness", "0.1") == (1.0, 0.0) and rates("strictness", "0.9") == (0.0, pytest.approx(2 / 3))
    assert found["strictness"]["0.9"]["failure_rate"]["low"] == 0.5 and found["strictness"]["0.9"]["failure_rate"]["high"] == 1.0
    assert rates("intention", "praise") == rates("family", str(one.family)) == (0.5, 0.5)
    assert rates("intention", "advice") == rates("family", str(other.family)) == (0.0, 0.5)
    assert all({"success_rate", "failure_rate"} <= set(cell) for cell in found["persona"].values())


def test_a_judge_must_grade_everything_in_range():
    grades = {
        "why": "w",
        **dict.fromkeys(("empathic_depth", "core_insight", "solution_crafting", "dialogue_guidance", "style_flexibility"), 2),
    }
    assert set(read_grades(json.dumps(grades)).values()) == {0.25}
    with pytest.raises(Unusable, match="core_insight must be a whole number from 1 to 5, got 6"):
        read_grades(json.dumps({**grades, "core_insight": 6}))


def test_a_reply_that_is_all_thought_has_no_words():
    assert read_reply("<think>hm</think> Yes.").words == "Yes." and read_reply("Yes.").thought == ""
    assert read_reply("<think>hm</think>  ") == read_reply("<think>hm") == Reply(words="", thought="hm")
