"""Faults that are really done to a real pool: processes killed and stopped, engines that hang, simulators that go away."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import signal
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig
from policy.engine.weights import PackedWeights
from policy.rollout.pool import Accounts, RolloutPool
from policy.rollout.worker_group import Crew, LastingCounts, RestartBudget
from simulator.dialogue import Outcome
from simulator.llm.user import LLMUserConfig
from simulator.scenario import Split
from simulator.users import make_user
from simulator.world import load_bank
from tests.fake_endpoint import FakeEndpoint, cut_off, garbage, serving, slow, status, text
from tests.policy_factories import group, rollout
from tests.test_pool import load, mismatch, tasks_of
from tests.tiny_policy import FakeScenarios, HangingUser, NotedUser, NumberingUser, save_tiny_policy

CONFIG = RolloutConfig(num_engines=2, max_turns=3, max_new_tokens=8, max_context=256, hang_timeout_s=10.0, retry_backoff_s=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"), hidden=32, layers=1)


def make_pool(folder, user=NumberingUser, *, scenarios=FakeScenarios, cluster=None, **settings):
    return RolloutPool(
        replace(CONFIG, **settings),
        EngineConfig(engine=EngineKind.HF),
        model_folder=folder,
        user_factory=user,
        scenarios=scenarios,
        seed=0,
        cluster=cluster,
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
        victim, patience = workers_of_this_process()[0].pid, time.monotonic() + 120.0
        while not (tmp_path / f"reached-{victim}").exists() and time.monotonic() < patience:
            time.sleep(0.05)
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "go").touch()
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


def engine_processes():
    """Of the engines below the workers, which are below this process."""
    return [child for worker in workers_of_this_process() for child in worker.children() if "EngineCore" in child.name()]


@pytest.mark.engine
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_an_engine_in_a_process_of_its_own_may_die_before_its_worker_or_after_it(folder):
    config = replace(CONFIG, num_engines=1)
    engine = EngineConfig(engine=EngineKind.VLLM, engine_process=True)
    parts = {"model_folder": folder, "user_factory": NumberingUser, "scenarios": FakeScenarios, "seed": 0}
    with RolloutPool(config, engine, **parts) as pool:
        model = load(folder)
        model.lm_head.weight.mul_(1.5)
        pool.load_weights(model.named_parameters(), 4)
        [first] = engine_processes()
        first.kill()
        pool.submit(tasks_of("plain", "plain", group_size=2))
        groups = pool.ready(2)
        assert {rollout.policy_versions for group in groups for rollout in group.rollouts} == {(4, 4)}
        assert mismatch(model, groups) < 1e-5 and pool.stats()["num_restarts"] == 1

        [second] = engine_processes()
        os.kill(workers_of_this_process()[0].pid, signal.SIGKILL)
        assert not psutil.wait_procs([second], timeout=30)[1]
        pool.submit(tasks_of("plain", group_size=2))
        assert mismatch(model, pool.ready(1)) < 1e-5 and pool.stats()["num_restarts"] == 2
        [third] = engine_processes()
    assert not psutil.wait_procs([third], timeout=30)[1]


@pytest.mark.engine
def test_a_simulator_that_fails_in_every_way_for_a_while_costs_no_dialogue_and_a_full_object_store_none_either(tmp_path):
    """Answers too late, garbage, half a response and errors; then nothing but errors until a call has used up its own retries. Meanwhile
    the object store has no room for the weights until Ray has moved to the disk all that it held.
    """
    pytest.importorskip("openai")
    folder = save_tiny_policy(tmp_path, hidden=896, layers=1)  # 59 MB of weights
    misbehaves = [slow(5.0), garbage, cut_off, text("not JSON"), status(500), status(503)]
    tasks = tasks_of(*(scenario.scenario_id for scenario in load_bank().scenarios(Split.TRAIN)[:3]), group_size=2)
    with serving(FakeEndpoint(*misbehaves)) as server:
        quick = {"timeout_s": 4.0, "first_backoff_s": 0.05, "max_backoff_s": 0.1, "circuit_failures": 1000, "retries": 4, "cache": "off"}
        user = functools.partial(make_user, "llm", LLMUserConfig(urls=[server.url], model="m", **quick))
        small = ClusterConfig(object_store_mb=80)
        with make_pool(folder, user, scenarios=load_bank, num_engines=1, max_context=1024, cluster=small) as pool:
            held = [ray.put(np.full(5_000_000, i)) for i in range(3)]  # 40 MB each
            assert not ray.experimental.get_object_locations(held)[held[-1]]["did_spill"]
            pool.load_weights(load(folder).named_parameters(), 1)
            assert all(where["did_spill"] for where in ray.experimental.get_object_locations(held).values())
            pool.submit(tasks)
            first = pool.ready(3)
            assert not server.script
            server.script = [status(500)] * 31  # five for each of six dialogues, and one more
            pool.submit(tasks)
            then = pool.ready(3)
            assert [int(ray.get(ref)[0]) for ref in held] == [0, 1, 2]
            assert {rollout.dialogue.outcome for group in first + then for rollout in group.rollouts} == {Outcome.MAX_TURNS}
            assert accounts_of(pool) == {"dispatched": 12, "done": 12}
            assert pool.user_counts()["paused_s"] > 0.0


@pytest.mark.engine
def test_a_machine_that_is_lost_is_made_good_on_another(folder):
    machine = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    notices = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    cluster = Cluster(initialize_head=True, head_node_args={**machine, "_system_config": notices})
    try:
        lost = cluster.add_node(**machine)
        with make_pool(folder, cluster=ClusterConfig(address=cluster.address)) as pool:
            cluster.add_node(**machine)
            pool.load_weights(load(folder).named_parameters(), 2)
            tasks = tasks_of("slow", "slow", "slow", "slow", group_size=2)
            pool.submit(tasks)
            time.sleep(0.4)
            cluster.remove_node(lost, allow_graceful=False)
            groups, num_rounds, patience = pool.ready(4), 1, time.monotonic() + 120.0
            assert [group.task for group in groups] == tasks
            while pool.stats()["num_restarts"] == 0 and time.monotonic() < patience:
                # The machine's worker had ended its share before anybody noticed; the next ones meet the loss.
                pool.submit(tasks)
                groups, num_rounds = groups + pool.ready(4), num_rounds + 1
            assert {rollout.policy_versions for group in groups for rollout in group.rollouts} == {(2, 2)}
            stats = pool.stats()
            assert stats["num_restarts"] == 1 and stats["num_done"] == 8 * num_rounds
            assert stats["num_dispatched"] == 8 * num_rounds + stats["num_lost"]
    finally:
        cluster.shutdown()


@pytest.mark.engine
def test_engines_that_share_a_gpu_start_one_after_another(folder, tmp_path):
    machine = {"num_cpus": 2, "num_gpus": 1, "node_ip_address": "127.0.0.1", "include_dashboard": False}  # Ray lends what it is told of
    cluster = Cluster(initialize_head=True, head_node_args=machine)
    try:
        user = functools.partial(NotedUser, tmp_path)
        with make_pool(folder, user, cluster=ClusterConfig(address=cluster.address, gpus_per_engine=0.5)) as pool:
            pool.submit(tasks := tasks_of("plain", "plain", group_size=2))
            assert [group.task for group in pool.ready(2)] == tasks
    finally:
        cluster.shutdown()
    first, second = sorted(json.loads(notes.read_text()) for notes in tmp_path.iterdir())
    assert first[1] <= second[0]


@pytest.mark.engine
def test_an_engine_that_cannot_start_anew_stops_a_run_in_one_sentence(folder, tmp_path):
    gone = shutil.copytree(folder, tmp_path / "model")
    with make_pool(gone, num_engines=1) as pool:
        shutil.rmtree(gone)
        os.kill(workers_of_this_process()[0].pid, signal.SIGKILL)
        with pytest.raises(
            RuntimeError, match=r"^rollout worker 0 must start anew after it was lost \(.*\), got policy\.model must be"
        ) as caught:
            pool.score(list(range(40, 50)))
    assert "\n" not in str(caught.value)


def test_weights_that_find_no_room_anywhere_stop_a_run_with_the_remedy(monkeypatch):
    def refuse(packed):
        raise ray.exceptions.OutOfDiskError("no space left on the device")

    monkeypatch.setattr("policy.rollout.worker_group.ray.put", refuse)
    crew = object.__new__(Crew)
    with pytest.raises(RuntimeError, match=r"must have room for weights of 8 MiB, got no space left .*raise cluster\.object_store_mb"):
        crew.load_weights(PackedWeights(version=1, arrays={"w": np.zeros(1 << 20)}, dtypes={"w": "float64"}))


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
    by_engine = replace(broken, dialogue=replace(broken.dialogue, error="EngineError: gone"), num_attempts=2)
    accounts = Accounts(num_dispatched=8)
    accounts.settle([group(rollout([1, 2], [0, 1]), broken), group(by_engine)])
    accounts.num_lost += 2
    accounts.num_abandoned += 1
    accounts.check(num_in_flight=2)
    assert (accounts.num_done, accounts.num_simulator_errors, accounts.num_engine_errors) == (1, 1, 1)
    assert accounts.num_retried == 1
    assert accounts.totals()["num_dialogues"] == 3 and accounts.totals()["num_in_flight"] == 2
    with pytest.raises(AssertionError, match="accounted for once"):
        accounts.check(num_in_flight=1)
