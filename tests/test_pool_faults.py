"""Faults that are really done to a real pool: processes killed and stopped, engines that hang, simulators that go away."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from policy.accounts import Accounts
from policy.engine import EngineConfig, EngineKind
from policy.pool import RolloutPool
from policy.restarts import LastingCounts, RestartBudget
from policy.rollout import RolloutConfig
from simulator.dialogue import Outcome
from tests.policy_factories import group, rollout
from tests.test_pool import load, mismatch, tasks_of
from tests.tiny_policy import FakeScenarios, NumberingUser, save_tiny_policy

CONFIG = RolloutConfig(num_engines=2, max_turns=3, max_new_tokens=8, max_context=256, hang_timeout_s=4.0, retry_backoff_s=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"), hidden=32, layers=1)


class HangingUser(NumberingUser):
    """Makes the engine beside it hang in a step, once for each file that says so."""

    def __init__(self, order: Path) -> None:
        self._order = order

    async def react(self, dialogue, reply):
        try:
            self._order.unlink()
        except FileNotFoundError:
            return await super().react(dialogue, reply)
        from policy.hf_engine import HFEngine

        HFEngine._step = lambda engine: threading.Event().wait()
        return await super().react(dialogue, reply)


def make_pool(folder, user=NumberingUser, **settings):
    return RolloutPool(
        replace(CONFIG, **settings),
        EngineConfig(engine=EngineKind.HF),
        model_folder=folder,
        user_factory=user,
        scenarios=FakeScenarios,
        seed=0,
    )


def workers_of_this_process():
    return [child for child in psutil.Process().children(recursive=True) if "RolloutWorker" in " ".join(child.cmdline())]


def accounts_of(pool):
    """What is to be accounted for: dispatched, and each way in which a dispatch can end."""
    stats = pool.stats()
    names = ("dispatched", "done", "simulator_errors", "engine_errors", "lost", "abandoned", "in_flight")
    return {name: stats[f"num_{name}"] for name in names if stats[f"num_{name}"]}


@pytest.mark.engine
def test_workers_that_are_killed_stopped_or_hang_lose_no_dialogue(folder, tmp_path):
    order = tmp_path / "hang"
    with make_pool(folder, functools.partial(HangingUser, order)) as pool:
        model = load(folder)
        model.lm_head.weight.mul_(1.5)
        pool.load_weights(model.named_parameters(), 4)

        # Killed in mid-dialogue: the dialogues of its two groups are lost and played again, by weights of the newest version.
        tasks = tasks_of("slow", "slow", "plain", "plain", group_size=2)
        pool.submit(tasks)
        time.sleep(0.4)
        os.kill(workers_of_this_process()[0].pid, signal.SIGKILL)
        groups = pool.ready(4)
        assert [group.task for group in groups] == tasks
        assert {rollout.policy_versions for group in groups for rollout in group.rollouts} == {(4, 4)}
        assert {rollout.dialogue.outcome for group in groups for rollout in group.rollouts} == {Outcome.MAX_TURNS}
        assert mismatch(model, groups) < 1e-5
        killed = accounts_of(pool)
        assert killed["done"] == 8 and killed["lost"] in (2, 4) and killed["dispatched"] == 8 + killed["lost"]
        assert pool.stats()["num_restarts"] == 1

        # An engine whose step never returns.
        order.touch()
        pool.submit(tasks_of("slow", "slow", group_size=2))
        assert [len(group.rollouts) for group in pool.ready(2)] == [2, 2]
        assert not order.exists() and pool.stats()["num_restarts"] == 2

        # A process that stands still, between dialogues: whoever asks it something notices.
        os.kill(workers_of_this_process()[0].pid, signal.SIGSTOP)
        pool.load_weights(model.named_parameters(), 5)
        assert pool.stats()["num_restarts"] == 3
        pool.submit(tasks_of("plain", "plain", group_size=2))
        assert {rollout.policy_versions for group in pool.ready(2) for rollout in group.rollouts} == {(5, 5)}
        assert accounts_of(pool)["done"] == 16 and "in_flight" not in accounts_of(pool)


def test_a_worker_may_die_so_often_in_a_while_and_no_oftener():
    now = [0.0]
    budget = RestartBudget(most=2, window_s=100.0, clock=lambda: now[0])
    budget.spend(0, "killed")
    now[0] = 60.0
    budget.spend(0, "killed")
    budget.spend(1, "another worker has restarts of its own")
    allowed = r"rollout\.max_restarts=2 times in rollout\.restart_window_s=100 s"
    with pytest.raises(RuntimeError, match=rf"rollout worker 0 must not die or hang more than {allowed}, got one more: it hung"):
        budget.spend(0, "it hung")
    now[0] = 101.0  # the first is forgotten
    budget.spend(0, "killed")


def test_what_a_worker_counted_outlives_it():
    counts = LastingCounts(2)
    assert counts.observe([{"calls": 2.0}, {"calls": 3.0}]) == {"calls": 5.0}
    counts.bury(0)
    assert counts.observe([{"calls": 1.0}, {"calls": 4.0}]) == {"calls": 7.0}


def test_every_dispatch_is_accounted_for_once_and_a_gap_is_seen():
    broken = rollout([1, 2], [0, 1], outcome=Outcome.ERROR)
    by_engine = replace(broken, dialogue=replace(broken.dialogue, error="EngineError: gone"))
    accounts = Accounts(num_dispatched=8)
    accounts.settle([group(rollout([1, 2], [0, 1]), broken), group(by_engine)])
    accounts.num_lost += 2
    accounts.num_abandoned += 1
    accounts.check(num_in_flight=2)
    assert (accounts.num_done, accounts.num_simulator_errors, accounts.num_engine_errors) == (1, 1, 1)
    assert accounts.totals()["num_dialogues"] == 3 and accounts.totals()["num_in_flight"] == 2
    with pytest.raises(AssertionError, match="accounted for once"):
        accounts.check(num_in_flight=1)
