"""Held-out evaluation: its grid and seeds, when it is played, its numbers, and the curve of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from policy_factories import group, rollout

from analysis.endpoints import grades_of, looks
from analysis.runs import EVALUATION, read_lines
from curriculum.frontier import FrontierConfig, FrontierTeacher
from curriculum.task import GroupOutcome
from experiments.callbacks import Callback
from experiments.config import EvaluationConfig, load
from experiments.evaluation import (
    Graded,
    HeldOutEvaluation,
    seconds_of_run,
    start_and_end,
    summarise,
    worst_mean,
)
from experiments.metrics import measure
from experiments.recorder import Recorder
from experiments.run_state import RunState
from experiments.tasks import EvaluationTask, grid_tasks, probe_tasks, spread
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Outcome
from simulator.reward import final_emotion
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import HiddenIntention, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

BANK = load_bank()
CONFIG = EvaluationConfig(strictness=[0.1, 0.5], num_scenarios=4, during_scenarios=2)
USER = RuleUser(RuleUserConfig())
SCENARIO = BANK.scenarios(Split.HELDOUT)[0]


class ScriptedPool:
    """A pool whose policy is a scripted agent, so that its score is known.

    Args:
        num_broken: dialogues that break, from the first.
    """

    def __init__(self, agent: str, *, num_broken: int = 0) -> None:
        self.agent, self.num_broken = agent, num_broken
        self.temperatures: list[float | None] = []
        self._tasks: list[EvaluationTask] = []

    def submit(self, tasks: Sequence[EvaluationTask], *, temperature: float | None = None) -> None:
        self._tasks.extend(tasks)
        self.temperatures.append(temperature)

    def ready(self, num_groups: int) -> list[RolloutGroup]:
        now, self._tasks = self._tasks[:num_groups], self._tasks[num_groups:]
        return [RolloutGroup(task=task, rollouts=self.rollouts(task, i)) for i, task in enumerate(now)]

    def rollouts(self, task: EvaluationTask, number: int) -> tuple[Rollout, ...]:
        played = scripted(self.agent, task)
        if number < self.num_broken:
            played = replace(played, dialogue=replace(played.dialogue, outcome=Outcome.ERROR, error="ConnectionError: gone"))
        return (played,) * task.group_size


def scripted(agent: str, task: EvaluationTask) -> Rollout:
    dialogue = play(AGENTS[agent], BANK.scenario(task.scenario_id), task.difficulty, seed=task.seed, user=USER)
    return replace(rollout([], []), dialogue=dialogue, reward=final_emotion(dialogue))


@pytest.fixture
def recorder(tmp_path):
    """Of a run's folder."""
    recorder = Recorder(tmp_path)
    yield recorder
    recorder.close()


def lines_of(recorder: Recorder) -> list[dict]:
    return list(read_lines(recorder.folder / EVALUATION))


# Tasks --------------------------------------------------------------------------------------------------------------------------


def test_the_grid_holds_every_scenario_at_every_strictness_once():
    scenarios = BANK.scenarios(Split.HELDOUT)[:2]
    tasks = grid_tasks(scenarios, [0.1, 0.9])
    a, b = (scenario.scenario_id for scenario in scenarios)
    assert [(task.scenario_id, task.strictness) for task in tasks] == [(a, 0.1), (a, 0.9), (b, 0.1), (b, 0.9)]
    assert len({task.uid for task in tasks}) == 4
    assert all(task.difficulty.strictness == pytest.approx(task.strictness) for task in tasks)
    with pytest.raises(TypeError, match="evaluation never reaches a teacher"):
        GroupOutcome(task=tasks[0], rewards=(), successes=(), num_tokens=(), statuses=())


def test_the_seed_depends_on_scenario_and_strictness_alone():
    seeds = [task.seed for task in grid_tasks([replace(SCENARIO, scenario_id=name) for name in "ab"], [0.1, 0.3])]
    assert seeds[0] == 1762483104 and len(set(seeds)) == 4


def test_a_smaller_grid_visits_the_families_in_turn_and_is_always_the_same():
    scenarios = BANK.scenarios(Split.HELDOUT)
    families = {str(scenario.family) for scenario in scenarios}
    chosen = spread(scenarios, len(families) + 1)
    assert {str(scenario.family) for scenario in chosen[:-1]} == families
    assert chosen == spread(list(reversed(scenarios)), len(families) + 1)
    assert len(spread(scenarios, 0)) == len(spread(scenarios, 10**6)) == len(scenarios)


def test_the_panel_spreads_over_families_and_strictness_and_never_changes():
    scenarios = BANK.by_family(Split.TRAIN)
    tasks = probe_tasks(25, scenarios, seed=0)
    assert tasks == probe_tasks(25, scenarios, seed=0) != probe_tasks(25, scenarios, seed=1)
    assert sorted(task.strictness for task in tasks) == pytest.approx([(i + 0.5) / 25 for i in range(25)])
    assert len({BANK.scenario(task.scenario_id).family for task in tasks}) == 24


def test_a_teacher_observes_the_panel_as_probes_that_it_did_not_issue():
    scenarios = BANK.by_family(Split.TRAIN)
    tasks = probe_tasks(2, scenarios, seed=0)
    played = [replace(group(rollout([1, 2], [0, 1])), task=task) for task in tasks]
    probes = [replace(each, task=each.task.as_observed(step=5, policy_version=4)) for each in played]
    outcomes = [measure(each, success_emotion=70.0) for each in probes]
    assert [outcome.task.uid for outcome in outcomes] == ["step0000005-probe000", "step0000005-probe001"]
    assert [(outcome.task.strictness, outcome.task.policy_version) for outcome in outcomes] == [(task.strictness, 4) for task in tasks]
    teacher = FrontierTeacher(FrontierConfig(), scenarios=scenarios, group_size=8, seed=0)
    teacher.observe(outcomes)
    counted = {name: teacher.metrics()[f"curriculum/outcomes_{name}"] for name in ("probes", "ignored", "observed")}
    assert counted == {"probes": 2, "ignored": 0, "observed": 0}


# When ---------------------------------------------------------------------------------------------------------------------------


GRID = ["evaluation.num_scenarios=8", "evaluation.during_scenarios=3", "evaluation.strictness=[0.1,0.9]"]
STEP = {"timing_s/step": 10.0, "timing_s/gen": 6.4}


def test_a_run_takes_its_steps_and_its_evaluations():
    # The full grid twice, the smaller one at nine tenths.
    assert HeldOutEvaluation(load("adaptive_curriculum", GRID).evaluation, BANK).num_dialogues == (2 * 8 + 9 * 3) * 2
    assert HeldOutEvaluation(load("adaptive_curriculum").evaluation, BANK).num_dialogues == 2 * 540 + 9 * 120
    # 100,000 tokens are 50 steps of 2,000; 128 dialogues took 6.4 s, so the 86 held-out ones take 4.3 s.
    config = load("adaptive_curriculum", [*GRID, "budget.policy_tokens=100000"])
    assert seconds_of_run(config, STEP, num_tokens=2000.0) == pytest.approx(500.0 + 4.3)
    limited = load("adaptive_curriculum", [*GRID, "budget.steps=3"])
    assert seconds_of_run(limited, STEP, num_tokens=2000.0) == pytest.approx(30.0 + 4.3)


# Played -------------------------------------------------------------------------------------------------------------------------


def test_the_policy_plays_the_same_grid_and_seeds_as_the_scripted_agents(recorder):
    heldout, pool = HeldOutEvaluation(CONFIG, BANK), ScriptedPool("L6")
    summary = heldout.play(pool, recorder, state=RunState(), full=True)
    assert summary["n_dialogues"] == 8 and pool.temperatures == [1.0]
    assert summary["score"] == pytest.approx(heldout.reference(USER, max_turns=8)["L6"])
    assert heldout.reference(object(), max_turns=8) == {}


def test_the_smaller_grid_is_part_of_the_full_one_and_marked_there(recorder):
    heldout = HeldOutEvaluation(CONFIG, BANK)
    heldout.play(ScriptedPool("L0"), recorder, state=RunState(), full=True)
    heldout.play(ScriptedPool("L0"), recorder, state=RunState(step=3, policy_tokens=50, num_evaluations=1), full=False)
    full, during = lines_of(recorder)[:8], lines_of(recorder)[8:]
    assert [line["uid"] for line in full if line["in_during"]] == [line["uid"] for line in during] and len(during) == 4
    assert {(line["step"], line["look"], line["policy_tokens"], line["grid"]) for line in during} == {(3, 1, 50, "during")}


class Thrice(Callback):
    """Three dialogues with each user of the smaller grid."""

    def evaluation_tasks(self, full, small):
        return [replace(task, group_size=3) if task in small else task for task in full]


class SeveralPool(ScriptedPool):
    """The first dialogue with a user is the agent's, the others are L6's; the last with the first user breaks."""

    def rollouts(self, task, number):
        others = [scripted("L6", task) for _ in range(task.group_size - 1)]
        if others and number == 0:
            others[-1] = replace(others[-1], dialogue=replace(others[-1].dialogue, outcome=Outcome.ERROR))
        return (scripted(self.agent, task), *others)


def test_further_dialogues_with_a_user_are_recorded_and_count_in_no_score(recorder, tmp_path):
    once = HeldOutEvaluation(CONFIG, BANK).play(ScriptedPool("L0"), recorder, state=RunState(), full=True)
    heldout = HeldOutEvaluation(CONFIG, BANK, callbacks=[Thrice()])
    assert heldout.play(SeveralPool("L0"), recorder, state=RunState(num_evaluations=1), full=True) == once
    plain, lines = lines_of(recorder)[:8], lines_of(recorder)[8:]
    tries = [line["tries"] for line in lines if "tries" in line]
    assert [line["uid"] for line in lines if "tries" in line] == [line["uid"] for line in plain if line["in_during"]]
    assert [each[0] for each in tries] == [line["emotion"] for line in plain if line["in_during"]]
    assert tries[0][2] is None and min(each[1] for each in tries) > 80 and not any("tries" in line for line in plain)


def test_an_evaluation_that_is_abandoned_or_of_which_too_much_breaks_leaves_no_trace(recorder):
    heldout = HeldOutEvaluation(CONFIG, BANK, should_stop=lambda: True)
    assert heldout.play(ScriptedPool("L0"), recorder, state=RunState(), full=True) is None and lines_of(recorder) == []
    heldout = HeldOutEvaluation(CONFIG, BANK, max_error_share=0.25)
    with pytest.raises(RuntimeError, match=r"(?s)at most 2 of 8 .* got 3; .*rollout\.max_error_share.*\nConnectionError: gone"):
        heldout.play(ScriptedPool("L0", num_broken=3), recorder, state=RunState(), full=True)
    assert lines_of(recorder) == []
    assert heldout.play(ScriptedPool("L0", num_broken=2), recorder, state=RunState(), full=True)["n_dialogues"] == 6
    thrice = HeldOutEvaluation(CONFIG, BANK, callbacks=[Thrice()], max_error_share=0.25)
    with pytest.raises(RuntimeError, match=r"at most 4 of 16 .* got 6"):  # every try counts
        thrice.play(ScriptedPool("L0", num_broken=2), recorder, state=RunState(), full=True)


# Numbers ------------------------------------------------------------------------------------------------------------------------


def grade(*, scenario_id="a", intention=HiddenIntention.ADVICE, strictness=0.5, emotion=50, outcome=Outcome.MAX_TURNS) -> Graded:
    return Graded(scenario_id=scenario_id, intention=intention, strictness=strictness, emotion=emotion, outcome=outcome)


def test_the_summary_of_a_grid_worked_out_by_hand():
    praise = HiddenIntention.PRAISE
    summary = summarise(
        [
            grade(scenario_id="a", strictness=0.1, emotion=100, outcome=Outcome.DELIGHTED),
            grade(scenario_id="a", strictness=0.9, emotion=60),
            grade(scenario_id="b", strictness=0.1, emotion=40, intention=praise, outcome=Outcome.TRUNCATED),
            grade(scenario_id="b", strictness=0.9, emotion=0, intention=praise, outcome=Outcome.LEFT),
            grade(scenario_id="b", strictness=0.5, emotion=7, intention=praise, outcome=Outcome.ERROR),
        ]
    )
    low, high = summary.pop("score_ci95")
    assert 0 <= low <= 50 <= high <= 100
    assert summary == {
        "score": 50.0,
        "by_strictness": {"0.1": 70.0, "0.9": 30.0},
        "worst_cell": 0.0,
        "cvar20": 20.0,
        "success_rate": 0.25,
        "failure_rate": 0.25,
        "cut_short": 0.25,
        "n_dialogues": 4,
    }


def test_the_boundaries_of_success_failure_and_bands():
    assert summarise([grade(emotion=100), grade(emotion=99)])["success_rate"] == 0.5
    assert summarise([grade(emotion=10), grade(emotion=9)])["failure_rate"] == 0.5
    # A cell pools the strictnesses of a band.
    grades = [grade(strictness=d, emotion=e) for d, e in [(0.1, 90), (0.3, 50), (0.5, 65), (0.7, 80), (0.9, 40)]]
    assert summarise(grades)["worst_cell"] == 60.0
    # Bands are [0, 0.4), [0.4, 0.6) and [0.6, 1].
    for low, high, is_one in ((0.0, 0.39, True), (0.39, 0.4, False), (0.4, 0.59, True), (0.59, 0.6, False), (0.6, 1.0, True)):
        assert summarise([grade(strictness=low, emotion=20), grade(strictness=high, emotion=40)])["worst_cell"] == (30 if is_one else 20)


def test_the_worst_fifth_rounds_up_and_an_empty_grid_has_no_score():
    assert worst_mean(np.array([5.0, 1.0, 2.0, 3.0, 4.0])) == 1.0
    assert worst_mean(np.array([6.0, 5.0, 1.0, 2.0, 3.0, 4.0])) == 1.5
    assert worst_mean(np.array([8.0])) == 8.0
    empty = summarise([grade(outcome=Outcome.ERROR)])
    assert empty["n_dialogues"] == 0 and all(math.isnan(empty[name]) for name in ("score", "cvar20", "worst_cell", "success_rate"))


# The curve of a run -------------------------------------------------------------------------------------------------------------


def play_course(folder: Path, agents: Sequence[str]) -> None:
    """A run whose policy is another agent at every evaluation, 100 tokens apart; the first and the last grid are full."""
    heldout, recorder = HeldOutEvaluation(CONFIG, BANK), Recorder(folder)
    for i, agent in enumerate(agents):
        state = RunState(step=i, policy_tokens=100 * i, num_evaluations=i)
        heldout.play(ScriptedPool(agent), recorder, state=state, full=i in (0, len(agents) - 1))
    recorder.close()


def test_start_and_end_are_the_full_grids_and_the_area_is_that_of_the_smaller_one(tmp_path):
    play_course(tmp_path, ["L0", "L3", "L6"])
    points = looks(grades_of(read_lines(tmp_path / EVALUATION)))
    assert [point.policy_tokens for point in points] == [0, 100, 200]
    start, end = start_and_end(tmp_path)
    assert start["n_dialogues"] == end["n_dialogues"] == 8 and end["score"] > start["score"]
    scores = [point.score for point in points]
    assert start["auc"] == scores[0] and end["auc"] == pytest.approx((scores[0] + 2 * scores[1] + scores[2]) / 4)
    play_course(tmp_path / "unfinished", ["L0"])
    start, end = start_and_end(tmp_path / "unfinished")
    assert start["n_dialogues"] == 8 and end["n_dialogues"] == 0 and np.isnan(end["score"])
