"""Held-out scores over a run: when they are taken, how they are played, and the curve they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from analysis.endpoints import Look, area_of, grades_of, looks
from analysis.runs import EVALUATION, read_lines
from experiments.callbacks import Callback
from experiments.config import EvaluationConfig
from experiments.evaluation import HeldOutEvaluation, budget_decile, is_due, start_and_end
from experiments.recorder import Recorder
from experiments.tasks import EvaluationTask
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Outcome
from simulator.reward import final_emotion
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

CONFIG = EvaluationConfig(strictness=[0.1, 0.5], num_scenarios=4, during_scenarios=2)
USER = RuleUser(RuleUserConfig())


@dataclass
class Standing:
    """Where a run stands."""

    step: int = 0
    policy_tokens: int = 0
    num_looks: int = 0


class ScriptedPool:
    """A pool whose policy is a scripted agent, so that what it should score is known."""

    def __init__(self, agent: str) -> None:
        self.agent = AGENTS[agent]
        self.temperatures: list[float | None] = []
        self._tasks: list[EvaluationTask] = []

    def submit(self, tasks: Sequence[EvaluationTask], *, temperature: float | None = None) -> None:
        self._tasks.extend(tasks)
        self.temperatures.append(temperature)

    def ready(self, num_groups: int) -> list[RolloutGroup]:
        now, self._tasks = self._tasks[:num_groups], self._tasks[num_groups:]
        return [RolloutGroup(task=task, rollouts=(self._rollout(task),)) for task in now]

    def _rollout(self, task: EvaluationTask) -> Rollout:
        scenario = load_bank().scenario(task.scenario_id)
        dialogue = play(self.agent, scenario, task.difficulty, seed=task.seed, user=USER)
        nothing = np.zeros(0, dtype=np.int32)
        return Rollout(
            dialogue=dialogue,
            token_ids=nothing,
            role_ids=nothing,
            turn_ids=nothing,
            loss_mask=nothing,
            rollout_logprobs=nothing,
            reward=final_emotion(dialogue),
            turn_rewards=(),
            policy_versions=(0, 0),
        )


def test_a_look_is_taken_before_training_and_once_in_every_tenth():
    assert is_due(0.0, latest=-1) and not is_due(0.0, latest=0)
    assert not is_due(0.09, latest=0) and is_due(0.1, latest=0)
    assert is_due(0.35, latest=1) and not is_due(0.35, latest=3)
    assert not is_due(1.0, latest=9)


def test_a_tenth_is_reached_in_spite_of_rounding():
    assert [budget_decile(step / 10) for step in range(11)] == list(range(11))
    assert budget_decile(1.7) == 10


def test_the_policy_is_judged_on_the_same_grid_and_seeds_as_the_scripted_agents(tmp_path):
    heldout = HeldOutEvaluation(CONFIG, load_bank())
    pool, recorder = ScriptedPool("L6"), Recorder(tmp_path)
    summary = heldout.play(pool, recorder, tally=Standing(), full=True)
    recorder.close()
    assert summary["n_dialogues"] == 8
    assert summary["score"] == pytest.approx(heldout.reference(USER, max_turns=8)["L6"])
    assert pool.temperatures == [1.0]


def test_the_smaller_grid_is_part_of_the_full_one_and_marked_there(tmp_path):
    heldout = HeldOutEvaluation(CONFIG, load_bank())
    recorder = Recorder(tmp_path)
    heldout.play(ScriptedPool("L0"), recorder, tally=Standing(), full=True)
    heldout.play(ScriptedPool("L0"), recorder, tally=Standing(step=3, policy_tokens=50, num_looks=1), full=False)
    recorder.close()
    lines = list(read_lines(tmp_path / EVALUATION))
    full, during = lines[:8], lines[8:]
    assert [line["uid"] for line in full if line["in_during"]] == [line["uid"] for line in during]
    assert {(line["step"], line["look"], line["policy_tokens"], line["grid"]) for line in during} == {(3, 1, 50, "during")}


class Thrice(Callback):
    """Three dialogues with each user of the smaller grid."""

    def evaluation_tasks(self, full, small):
        return [replace(task, group_size=3) if task in small else task for task in full]


class SeveralPool(ScriptedPool):
    """Of whose siblings the first one is the pool's agent, and the others L6, the last of which breaks with the first user."""

    def ready(self, num_groups: int) -> list[RolloutGroup]:
        is_first = len(self._tasks) == 8
        return [self._with_others(group, breaks=is_first and i == 0) for i, group in enumerate(super().ready(num_groups))]

    def _with_others(self, group: RolloutGroup, *, breaks: bool) -> RolloutGroup:
        others = [ScriptedPool("L6")._rollout(group.task) for _ in range(group.task.group_size - 1)]
        if breaks and others:
            others[-1] = replace(others[-1], dialogue=replace(others[-1].dialogue, outcome=Outcome.ERROR))
        return replace(group, rollouts=(*group.rollouts, *others))


def test_further_tries_are_taken_of_the_smaller_grid_at_full_looks_and_count_in_no_score(tmp_path):
    recorder, heldout = Recorder(tmp_path), HeldOutEvaluation(CONFIG, load_bank(), callbacks=[Thrice()])
    summary = heldout.play(SeveralPool("L0"), recorder, tally=Standing(), full=True)
    heldout.play(SeveralPool("L0"), recorder, tally=Standing(step=3, policy_tokens=50, num_looks=1), full=False)
    recorder.close()
    once = HeldOutEvaluation(CONFIG, load_bank()).play(ScriptedPool("L0"), Recorder(tmp_path / "once"), tally=Standing(), full=True)
    assert summary == once
    full, during = (lines := list(read_lines(tmp_path / EVALUATION)))[:8], lines[8:]
    assert [line["uid"] for line in full if "tries" in line] == [line["uid"] for line in during]
    assert not any("tries" in line for line in during)
    tried = [line["tries"] for line in full if "tries" in line]
    assert [tries[0] for tries in tried] == [line["emotion"] for line in during] and all(len(tries) == 3 for tries in tried)
    assert tried[0][2] is None and min(tries[1] for tries in tried) > 80


def test_an_abandoned_evaluation_leaves_no_trace(tmp_path):
    recorder = Recorder(tmp_path)
    heldout = HeldOutEvaluation(CONFIG, load_bank(), should_stop=lambda: True)
    assert heldout.play(ScriptedPool("L0"), recorder, tally=Standing(), full=True) is None
    recorder.close()
    assert not (tmp_path / EVALUATION).read_text()


class BrokenPool(ScriptedPool):
    """Of whose dialogues the first few break."""

    def __init__(self, agent: str, *, num_broken: int) -> None:
        super().__init__(agent)
        self.num_broken = num_broken

    def ready(self, num_groups: int) -> list[RolloutGroup]:
        return [self._broken(group) if i < self.num_broken else group for i, group in enumerate(super().ready(num_groups))]

    def _broken(self, group: RolloutGroup) -> RolloutGroup:
        *whole, rollout = group.rollouts
        dialogue = replace(rollout.dialogue, outcome=Outcome.ERROR, error="ConnectionError: gone")
        return replace(group, rollouts=(*whole, replace(rollout, dialogue=dialogue)))


def test_an_evaluation_of_which_too_much_breaks_stops_the_run_and_leaves_no_trace(tmp_path):
    recorder = Recorder(tmp_path)
    heldout = HeldOutEvaluation(CONFIG, load_bank(), max_error_share=0.25)
    with pytest.raises(
        RuntimeError, match=r"(?s)at most 2 of 8 held-out dialogues may break, got 3; .*; the first:\nConnectionError: gone"
    ):
        heldout.play(BrokenPool("L0", num_broken=3), recorder, tally=Standing(), full=True)
    assert not (tmp_path / EVALUATION).read_text()
    assert heldout.play(BrokenPool("L0", num_broken=2), recorder, tally=Standing(), full=True)["n_dialogues"] == 6
    recorder.close()


def test_every_try_counts_among_those_that_may_break(tmp_path):
    class Twice(BrokenPool):
        def ready(self, num_groups):
            groups = ScriptedPool.ready(self, num_groups)
            return [self._broken(replace(group, rollouts=group.rollouts * 2)) for group in groups]

    with pytest.raises(RuntimeError, match=r"at most 4 of 16 held-out dialogues may break, got 8"):
        HeldOutEvaluation(CONFIG, load_bank(), max_error_share=0.25).play(
            Twice("L0", num_broken=8), Recorder(tmp_path), tally=Standing(), full=True
        )


def play_course(folder: Path, agents: Sequence[str]) -> None:
    """A run whose policy is a better agent at every look, 100 tokens apart; the first and last looks are full."""
    heldout, recorder = HeldOutEvaluation(CONFIG, load_bank()), Recorder(folder)
    for look, agent in enumerate(agents):
        standing = Standing(step=look, policy_tokens=100 * look, num_looks=look)
        heldout.play(ScriptedPool(agent), recorder, tally=standing, full=look in (0, len(agents) - 1))
    recorder.close()


def test_start_and_end_are_the_full_grids_and_the_area_is_that_of_the_smaller_one(tmp_path):
    play_course(tmp_path, ["L0", "L3", "L6"])
    points = looks(grades_of(read_lines(tmp_path / EVALUATION)))
    assert [point.policy_tokens for point in points] == [0, 100, 200]
    start, end = start_and_end(tmp_path)
    assert (start["n_dialogues"], end["n_dialogues"]) == (8, 8)
    assert start["auc"] == points[0].score
    scores = [point.score for point in points]
    assert end["auc"] == pytest.approx((scores[0] + 2 * scores[1] + scores[2]) / 4)
    assert end["score"] > start["score"]


def test_the_area_weighs_by_tokens():
    seen = [Look(0, 0, 20.0), Look(3, 30, 40.0), Look(4, 40, 40.0)]
    assert area_of(seen) == pytest.approx((30 * 30 + 40 * 10) / 40)
    assert area_of(seen[:1]) == 20.0
    assert area_of([Look(0, 0, 20.0), Look(1, 0, 30.0)]) == 30.0
    assert np.isnan(area_of([]))


def test_a_run_that_did_not_end_has_no_final_score(tmp_path):
    play_course(tmp_path, ["L0"])
    start, end = start_and_end(tmp_path)
    assert start["n_dialogues"] == 8 and end["n_dialogues"] == 0 and np.isnan(end["score"])
