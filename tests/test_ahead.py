"""Steps rolled out ahead of their turn: in which order they are trained on, how old their tokens may be, and what a stop leaves of them."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from curriculum.task import TaskSpec
from experiments.build import make_teacher
from experiments.checks import ErrorBudget
from experiments.config import load
from experiments.errors import ConfigError
from experiments.prefetch import LANE, RolloutPrefetcher
from experiments.run_state import RunState
from experiments.train import TrainingRun
from policy.rollout.dialogue import Rollout, RolloutGroup
from policy.rollout.pool import is_fresh, off_policy_metrics, staleness
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.reward import Reward
from simulator.world import load_bank

BANK = load_bank()
MASK = np.array([0, 1, 1, 0, 1, 0, 1], dtype=bool)
TURNS = np.array([0, 0, 0, 1, 1, 2, 2], dtype=np.int16)


def played(task: Any, reply_versions: tuple[int, int, int], *, emotion: int = 50, outcome: Outcome = Outcome.MAX_TURNS) -> Rollout:
    """A dialogue of three replies, of two, one and one sampled tokens, each by weights of its own."""
    opening = Turn(speaker=Speaker.USER, text="my week", emotion=40)
    turns = [Turn(speaker=Speaker.AGENT, text="tell me more"), Turn(speaker=Speaker.USER, text="well", emotion=emotion, change=2)]
    dialogue = Dialogue(scenario=BANK.scenario(task.scenario_id), difficulty=task.difficulty, seed=task.seed)
    return Rollout(
        dialogue=dialogue.then(opening, *turns, *turns, *turns, outcome=outcome),
        token_ids=np.arange(7, dtype=np.int32),
        role_ids=MASK.astype(np.int8),
        turn_ids=TURNS,
        loss_mask=MASK,
        rollout_logprobs=-MASK.astype(np.float32),
        reward=Reward(total=emotion / 100),
        turn_rewards=(0.2, 0.2, 0.2),
        policy_versions=(min(reply_versions), max(reply_versions)),
        reply_versions=reply_versions,
    )


class FakePool:
    """Plays a dialogue's replies with the weights of the moment when it was submitted, of any moment since, and of now.

    Args:
        seed: decides when, and so how fast each dialogue is.
        delay: versions by which engines lag behind what they were sent.
    """

    def __init__(self, *, seed: int = 0, delay: int = 0) -> None:
        self.rng, self.delay = random.Random(seed), delay
        self.version = 0
        self.submitted: list[str] = []
        self.most_in_flight = 0
        self._lanes: dict[str, list[tuple[Any, int]]] = {}

    def submit(self, tasks, *, lane=""):
        self.submitted += [task.uid for task in tasks]
        self._lanes.setdefault(lane, []).extend((task, self.version) for task in tasks)
        self.most_in_flight = max(self.most_in_flight, len(self._lanes[lane]))

    def ready(self, num_groups, *, lane=""):
        taken, self._lanes[lane] = self._lanes[lane][:num_groups], self._lanes[lane][num_groups:]
        return [RolloutGroup(task=task, rollouts=self._play(task, since)) for task, since in taken]

    def _play(self, task, since):
        versions = [(since, self.rng.randint(since, self.version), self.version) for _ in range(task.group_size)]
        return tuple(played(task, tuple(v - self.delay for v in each), emotion=50 + i) for i, each in enumerate(versions))

    def load_weights(self, weights, version):
        self.version = version

    def score(self, token_ids):
        return [[-1.0] * (len(token_ids) - 1)]

    def stats(self):
        return dict.fromkeys(
            ("rollout_s", "num_tokens", "engine_busy_s", "num_restarts", "num_dispatched", "num_lost", "num_retried", "num_in_flight"), 0.0
        )

    def user_counts(self, *, timeout_s=None):
        return {}


class PaidPool(FakePool):
    """Its users cost something."""

    cost = 0.0

    def user_counts(self, *, timeout_s=None):
        return {"cost": self.cost}


class FakeLearner:
    """Counts its updates."""

    def __init__(self, version: int) -> None:
        self.policy_version = version

    def with_reference(self, batch):
        return batch

    def values(self, batch):
        return None

    def update(self, batch, targets, *, spent):
        self.policy_version += 1
        told = dict.fromkeys(("actor/entropy", "actor/kl_loss", "training/mismatch_kl", "actor/grad_norm"), 0.5)
        return {**told, "training/rollout_logprob_abs_diff_mean": 1e-7}

    def live_weights(self):
        return []

    def score(self, token_ids):
        return [-1.0] * (len(token_ids) - 1)


class FakeRecorder:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.taught: list[dict[str, Any]] = []
        self.said: list[dict[str, Any]] = []
        self.measured: list[dict[str, float]] = []

    def teacher(self, step, records):
        self.taught += records

    def dialogues(self, step, records, *, num_as_text=0):
        self.said += [{"step": step, **record} for record in records]

    def metrics(self, step, values):
        self.measured.append(dict(values))

    def of(self, event: str, key: str) -> list[str]:
        return [record[key] for record in self.taught if record["event"] == event]


class Run:
    """A training run of eight steps of two groups, with a real teacher; engines and learner are fakes."""

    def __init__(self, max_staleness: int, *, pool: FakePool | None = None, saved: dict[str, Any] | None = None) -> None:
        config = load("smoke", [f"rollout.max_staleness={max_staleness}", "budget.steps=8"])
        tally = RunState(**saved["run"]) if saved else RunState()
        self.teacher, self.pool, self.recorder = make_teacher(config, BANK), pool or FakePool(), FakeRecorder()
        self.pool.version = tally.step
        if saved:
            self.teacher.load_state_dict(saved["teacher"])
        parts = SimpleNamespace(
            bank=BANK,
            teacher=self.teacher,
            pool=self.pool,
            learner=FakeLearner(tally.step),
            algorithm=SimpleNamespace(compares_siblings=True, targets=lambda batch, values: None),
            faults=ErrorBudget(0.05),
            collapse=SimpleNamespace(observe=lambda step, values: [], metrics=dict),
        )
        self.training = TrainingRun(config, parts, self.recorder, tally)

    def go(self, num_steps: int) -> Run:
        for _ in range(num_steps):
            self.training.step()
        return self

    def saved(self) -> dict[str, Any]:
        """What a checkpoint would keep, through JSON."""
        tally = {**asdict(self.training.tally), "in_flight": self.training.ahead.records()}
        return json.loads(json.dumps({"run": tally, "teacher": self.teacher.state_dict()}))

    def trained_on(self) -> list[tuple[int, str, int]]:
        return [(line["step"], line["uid"], line["sibling"]) for line in self.recorder.said if line["kind"] == "train"]


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    """Rows are of no interest to the fakes."""
    monkeypatch.setattr("experiments.train.by_segment", lambda batch, targets: (batch, targets))


@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_no_token_is_older_than_the_bound_and_every_task_is_answered_once(max_staleness):
    run = Run(max_staleness).go(8)
    ages = [line["off_policy/max"] for line in run.recorder.measured]
    assert max(ages) == max_staleness and ages[0] == 0
    assert [line["off_policy/dropped"] for line in run.recorder.measured] == [0] * 8
    assert run.recorder.of("task", "uid") == run.recorder.of("outcome", "task") and len(run.recorder.of("task", "uid")) == 16
    assert run.teacher.metrics()["curriculum/outstanding"] == 0
    assert run.pool.most_in_flight <= (max_staleness + 1) * 2 + 4 * (max_staleness + 1)
    assert sum(line["num_tokens"] for line in run.recorder.said) == run.training.tally.policy_tokens
    assert sorted({line["step"] for line in run.recorder.said if line["kind"] == "probe"}) == [2, 4, 6, 8]


def test_what_users_cost_in_an_evaluation_goes_into_the_checkpoint():
    before, after = PaidPool(), PaidPool()
    run = Run(0, pool=before)
    before.cost = 5.0
    run.training.count_cost()
    resumed = Run(0, saved=run.saved(), pool=after)
    after.cost = 1.0
    assert resumed.go(1).recorder.measured[-1]["simulator/cost"] == 6.0


def test_which_dialogues_are_trained_on_and_when_depends_on_nobodys_speed():
    one, other = Run(2, pool=FakePool(seed=1)).go(8), Run(2, pool=FakePool(seed=2)).go(8)
    assert [line["off_policy/mean"] for line in one.recorder.measured] != [line["off_policy/mean"] for line in other.recorder.measured]
    assert one.trained_on() == other.trained_on()
    assert one.trained_on() == [
        (step, f"step{step:07d}-group{group:04d}", i) for step in range(1, 9) for group in range(2) for i in range(4)
    ]


def test_steps_under_way_survive_a_stop_and_are_rolled_out_billed_and_heard_of_once():
    before = Run(2).go(3)
    saved = before.saved()
    assert [record["step"] for record in saved["run"]["in_flight"]] == [4, 5]
    assert before.teacher.metrics()["curriculum/outstanding"] == 4
    after = Run(2, saved=saved)
    assert after.pool.submitted == []  # not before the engines have the checkpoint's weights
    after.go(5)
    issued = before.recorder.of("task", "uid") + after.recorder.of("task", "uid")
    heard = before.recorder.of("outcome", "task") + after.recorder.of("outcome", "task")
    assert issued == heard and len(set(issued)) == 16
    assert after.recorder.measured[0]["off_policy/max"] == 0
    assert after.teacher.metrics()["curriculum/outcomes_ignored"] == 0
    assert after.training.tally.policy_tokens == Run(2).go(8).training.tally.policy_tokens


def test_groups_that_are_too_old_are_billed_recorded_and_expire_and_ten_such_steps_stop_the_run():
    run = Run(1, pool=FakePool(delay=5))
    with pytest.raises(RuntimeError, match=r"10 steps in a row must not come back empty; .*no dialogue broke: all groups expired"):
        run.go(10)
    assert [line["off_policy/dropped"] for line in run.recorder.measured] == [2] * 9
    assert run.trained_on() == [] and run.recorder.of("outcome", "task") == []
    expired = [record for record in run.recorder.taught if record["event"] == "decision" and record["decision"] == "expire"]
    assert [record["uid"] for record in expired] == run.recorder.of("task", "uid")[: len(expired)] and len(expired) == 18
    assert {record["reason"] for record in expired} == {"older than rollout.max_staleness=1"}
    assert {line["kind"] for line in run.recorder.said} == {"stale", "probe"}


def test_nothing_is_begun_that_the_budget_of_steps_will_not_take():
    run = Run(3).go(8)
    assert len(run.recorder.of("task", "uid")) == 16
    assert run.training.ahead.records() == []


def test_the_age_of_a_token_is_that_of_the_reply_it_is_in():
    task = next(iter(Run(0).teacher.propose(1, policy_version=0)))
    rollout = played(task, (3, 5, 6))
    assert rollout.token_versions.tolist() == [3, 3, 5, 6]
    group = RolloutGroup(task=task, rollouts=(rollout,))
    assert off_policy_metrics([group], policy_version=7, num_dropped=1) == {
        "off_policy/mean": (4 + 4 + 2 + 1) / 4,
        "off_policy/max": 4,
        "off_policy/dropped": 1,
    }
    assert staleness(rollout, policy_version=7) == 4
    assert is_fresh(group, policy_version=7, max_staleness=4) and not is_fresh(group, policy_version=7, max_staleness=3)


def test_a_dialogue_that_broke_makes_no_group_too_old():
    task = next(iter(Run(0).teacher.propose(1, policy_version=0)))
    broken = played(task, (0, 0, 0), outcome=Outcome.ERROR)
    silent = replace(broken, loss_mask=np.zeros(7, dtype=bool), reply_versions=())
    group = RolloutGroup(task=task, rollouts=(broken, played(task, (7, 7, 7))))
    assert is_fresh(group, policy_version=7, max_staleness=0)
    assert off_policy_metrics([group], policy_version=7, num_dropped=0)["off_policy/max"] == 0
    assert staleness(silent, policy_version=7) == 0


def test_evaluation_in_between_gets_its_own_groups():
    pool = FakePool()
    tasks: dict[int, list[TaskSpec]] = {}
    teacher = Run(0).teacher
    ahead = RolloutPrefetcher(
        pool,
        max_staleness=1,
        last_step=0,
        propose=lambda: tasks.setdefault(len(tasks), teacher.propose(2, policy_version=0)),
        panel=lambda step: [],
    )
    ahead.top_up(1)
    pool.submit(tasks[0])
    assert [group.task for group in pool.ready(2)] == tasks[0]
    assert [group.task for group in ahead.take()[1]] == tasks[0]
    assert [group.task for group in pool.ready(2, lane=LANE)] == tasks[1]


@pytest.mark.parametrize("settings", [["learner.recompute_logprobs=true"], ["policy.dtype=bfloat16"], ["learner.autocast=true"]])
def test_tokens_of_older_weights_are_never_taken_for_the_learners_own(settings):
    with pytest.raises(ConfigError, match=r"algorithm\.importance_correction must be token where .*rollout\.max_staleness=2, got none"):
        load("smoke", [*settings, "rollout.max_staleness=2"])
    load("smoke", settings)
    assert load("smoke", [*settings, "rollout.max_staleness=2", "algorithm.importance_correction=token"]).learner.recompute_logprobs
    assert load("smoke", ["rollout.max_staleness=2"]).learner.recompute_logprobs is False
