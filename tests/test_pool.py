"""The rollout pool: faults with scripted workers on a real Ray, and dialogues with real engines."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest
import ray
import torch
from policy_factories import group, rollout
from ray.cluster_utils import Cluster

from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig
from policy.engine.weights import PackedWeights
from policy.model import load_tokenizer
from policy.rollout.dialogue import SamplingOverrides
from policy.rollout.pool import DialogueCounts, RolloutPool, is_fresh, off_policy_metrics
from policy.rollout.session import ray_session
from policy.rollout.worker import RolloutWorker
from policy.rollout.worker_group import WorkerGroup
from simulator.dialogue import Outcome
from tests.scripted_worker import ScriptedWorker
from tests.tiny_policy import FakeScenarios, NumberingUser, load, logprobs_of, save_tiny_policy
from tests.tiny_scenario import AnyTask

CONFIG = RolloutConfig(num_engines=2, max_turns=3, max_new_tokens=16, max_context=256, retry_backoff_s=0.0, outage_s=0.0)
PROMPT = list(range(40, 75))
WEIGHTS = [("w", torch.ones(4))]


def tasks_of(*scenario_ids, group_size=2):
    return [AnyTask(uid=f"t{i}", scenario_id=scenario, group_size=group_size, seed=i) for i, scenario in enumerate(scenario_ids)]


def roll_out(pool, tasks, **settings):
    pool.submit(tasks, **settings)
    return pool.ready(len(tasks))


def versions(groups):
    return {rollout.policy_versions for group in groups for rollout in group.rollouts}


def counted(pool):
    """Dispatched dialogues, and each way in which a dispatch ended, where there were any."""
    stats = pool.stats()
    names = ("dispatched", "done", "simulator_errors", "engine_errors", "lost", "abandoned", "in_flight", "restarts")
    return {name: stats[f"num_{name}"] for name in names if stats[f"num_{name}"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"), hidden=32, layers=1)


# Faults, with scripted workers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def scripted(folder, tmp_path, monkeypatch):
    """Makes pools of scripted workers, which read their orders from `tmp_path`."""
    monkeypatch.setattr("policy.rollout.worker_group.RolloutWorker", ScriptedWorker)

    def make(*, cluster=None, **settings):
        config = replace(CONFIG, **{"hang_timeout_s": 2.0, **settings})
        parts = {"model_folder": folder, "user_factory": str(tmp_path), "scenarios": dict, "seed": 0}
        return RolloutPool(config, EngineConfig(engine=EngineKind.HF), cluster=cluster, **parts)

    return make


@pytest.fixture(scope="module")
def local_ray():
    with ray_session(ClusterConfig(), num_cpus=3, folder=Path("/tmp") / f"attune-test-{os.getpid()}"):
        yield


def reached(folder):
    """The processes whose dialogues wait, once there are some."""
    patience = time.monotonic() + 60.0
    while not (found := [int(path.name.split("-")[1]) for path in folder.glob("reached-*")]):
        assert time.monotonic() < patience
        time.sleep(0.02)
    return found


@pytest.mark.engine
def test_killed_and_hung_workers_lose_no_dialogue_and_come_back_with_the_newest_weights(scripted, local_ray, tmp_path):
    """Takes long because two workers are started again, each a new Python that imports torch."""
    with scripted() as pool:
        pool.load_weights(WEIGHTS, 4)
        tasks = tasks_of("slow", "slow", "plain", "plain")
        pool.submit(tasks)
        os.kill(reached(tmp_path)[0], signal.SIGKILL)
        (tmp_path / "go").touch()
        groups = pool.ready(4)
        assert [group.task for group in groups] == tasks and all(group.task is task for group, task in zip(groups, tasks, strict=True))
        assert versions(groups) == {(4, 4)}
        found = counted(pool)
        assert found["done"] == 8 and found["lost"] in (2, 4) and found["dispatched"] == 8 + found["lost"] and found["restarts"] == 1

        (tmp_path / "hang").touch()
        assert versions(roll_out(pool, tasks_of("plain", "plain"))) == {(4, 4)}
        assert not (tmp_path / "hang").exists() and counted(pool)["restarts"] == 2 and "in_flight" not in counted(pool)


@pytest.mark.engine
def test_a_worker_may_be_restarted_so_often_in_a_while_and_its_counts_outlive_it(scripted, local_ray, tmp_path):
    with scripted(num_engines=1, max_restarts=2, restart_window_s=3600.0) as pool:
        pool.load_weights(WEIGHTS, 4)
        roll_out(pool, tasks_of("plain", group_size=3))
        assert pool.user_counts() == {"calls": 3.0} and pool.stats()["engine_busy_s"] == 1.0
        (tmp_path / "break").touch()
        assert versions(roll_out(pool, tasks_of("plain", group_size=1))) == {(4, 4)}
        # Of the broken worker those 3 are left, which it had counted when it was asked last.
        assert pool.user_counts(timeout_s=30.0) == {"calls": 4.0} and pool.stats()["engine_busy_s"] == 2.0
        assert counted(pool) == {"dispatched": 5, "done": 4, "lost": 1, "restarts": 1}
        (tmp_path / "break").touch()
        (tmp_path / "never").touch()
        pool.submit(tasks_of("plain", group_size=1))
        with pytest.raises(RuntimeError, match=r"^rollout worker 0 must restart .*, got policy\.model must be") as caught:
            pool.ready(1)
        assert "\n" not in str(caught.value)
        with pytest.raises(RuntimeError, match=r"rollout\.max_restarts=2 times in rollout\.restart_window_s=3600 s"):
            pool.ready(1)


def test_a_restart_is_forgotten_after_its_window_and_each_worker_has_its_own(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("policy.rollout.worker_group.time.monotonic", lambda: now[0])
    monkeypatch.setattr("policy.rollout.worker_group.ray.kill", lambda worker: None)
    monkeypatch.setattr(WorkerGroup, "_create", MagicMock())
    monkeypatch.setattr(WorkerGroup, "_await_start", lambda workers, ref: "hf")
    config = RolloutConfig(num_engines=2, max_restarts=2, restart_window_s=100.0)
    workers = WorkerGroup(config, EngineConfig(), ClusterConfig(), build={}, on_restart=lambda worker: None)
    workers.restart(0, "killed")
    now[0] = 60.0
    workers.restart(0, "killed")
    workers.restart(1, "another worker")
    with pytest.raises(RuntimeError, match=r"rollout worker 0 .* got one more: it hung"):
        workers.restart(0, "it hung")
    now[0] = 101.0
    workers.restart(0, "killed")
    assert workers.num_restarts == 4


@pytest.mark.engine
def test_groups_come_in_order_lane_by_lane_and_weights_are_put_once_for_all_workers(scripted, local_ray, monkeypatch, tmp_path):
    put, kept = ray.put, []
    monkeypatch.setattr("policy.rollout.worker_group.ray.put", lambda value: kept.append(put(value)) or kept[-1])
    with scripted() as pool:
        pool.submit(tasks_of("slow", "slow"), lane="evaluation")
        tasks = tasks_of("plain", "plain", "plain")
        pool.submit(tasks)
        pool.abandon("evaluation")
        (tmp_path / "go").touch()
        assert [group.task.uid for group in pool.ready(2) + pool.ready(1)] == ["t0", "t1", "t2"]
        assert counted(pool) == {"dispatched": 10, "done": 6, "abandoned": 4}

        pool.load_weights(WEIGHTS, 1)
        assert len(kept) == 1 and isinstance(ray.get(kept[0]), PackedWeights)


def test_every_dispatch_is_counted_once():
    broken = rollout([1, 2], [0, 1], outcome=Outcome.ERROR)
    by_engine = replace(broken, dialogue=replace(broken.dialogue, error="EngineError: gone"), num_attempts=2)
    counts = DialogueCounts(num_dispatched=8, num_lost=2, num_abandoned=1)
    counts.settle([group(rollout([1, 2], [0, 1]), broken), group(by_engine)])
    assert (counts.num_done, counts.num_simulator_errors, counts.num_engine_errors, counts.num_retried) == (1, 1, 1, 1)
    assert counts.num_dialogues == 3 and counts.num_in_flight == 2


@pytest.mark.engine
def test_a_lost_machine_is_replaced_and_engines_that_share_a_gpu_start_one_after_another(scripted, tmp_path):
    """Takes long because two Rays start as two machines, and a lost one is noticed after two seconds."""
    if ray.is_initialized():
        ray.shutdown()
    machine = {"num_cpus": 1, "num_gpus": 0.5, "node_ip_address": "127.0.0.1", "include_dashboard": False}
    notices = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    cluster = Cluster(initialize_head=True, head_node_args={**machine, "num_gpus": 1, "_system_config": notices})
    (tmp_path / "starts").mkdir()
    try:
        lost = cluster.add_node(**{**machine, "num_gpus": 1})
        with scripted(cluster=ClusterConfig(address=cluster.address, gpus_per_engine=0.5)) as pool:
            first, second = sorted([float(word) for word in path.read_text().split()] for path in (tmp_path / "starts").iterdir())
            assert first[1] <= second[0]
            cluster.add_node(**{**machine, "num_gpus": 1})
            pool.load_weights(WEIGHTS, 2)
            tasks = tasks_of("slow", "slow")
            pool.submit(tasks)
            reached(tmp_path)
            cluster.remove_node(lost, allow_graceful=False)
            (tmp_path / "go").touch()
            groups, num_rounds, patience = pool.ready(2), 1, time.monotonic() + 120.0
            while pool.stats()["num_restarts"] == 0 and time.monotonic() < patience:
                # The machine's worker had ended its share before the loss was noticed; the next ones meet it.
                groups, num_rounds = groups + roll_out(pool, tasks), num_rounds + 1
            assert versions(groups) == {(2, 2)} and pool.stats()["num_done"] == 4 * num_rounds
    finally:
        cluster.shutdown()


HANG_UP = """
import os, signal, sys
from pathlib import Path
import numpy as np, ray
from experiments.run_lock import Interruption
from policy.config import ClusterConfig
from policy.rollout.session import ray_session
# The tests themselves may run under nohup.
signal.signal(signal.SIGHUP, before := signal.SIG_DFL)
with ray_session(ClusterConfig(), num_cpus=1, folder=Path(sys.argv[1])):
    assert signal.getsignal(signal.SIGHUP) == before
    with Interruption() as interruption:
        ray.get(ray.remote(lambda: 0).remote())
        os.killpg(0, signal.SIGHUP)
        weights = ray.put(np.ones(1_000_000))
        print(interruption.requested, ray.get(ray.remote(lambda array: array.sum()).remote(weights)))
"""


@pytest.mark.engine
def test_ray_outlives_a_terminal_that_is_closed():
    """The signal goes to the whole group of processes, as a terminal's does; so the test needs another group, and a Ray."""
    with tempfile.TemporaryDirectory(prefix="hup-", dir="/tmp") as folder:
        words = [sys.executable, "-c", HANG_UP, folder]
        done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, timeout=120, check=False)
    assert done.stdout.split() == ["True", "1000000.0"], done.stderr[-2000:]


# Staleness -------------------------------------------------------------------------------------------------------------------------


def sampled_by(*versions, outcome=Outcome.MAX_TURNS):
    """A dialogue of one-token replies, each sampled by another version of the weights."""
    played = rollout([1] + [2, 3] * len(versions), [0] + [1, 0] * len(versions), policy_versions=(min(versions), max(versions)))
    return replace(played, reply_versions=versions, dialogue=replace(played.dialogue, outcome=outcome))


def test_a_group_is_as_old_as_the_oldest_weights_behind_it_and_a_dialogue_that_broke_has_no_age():
    old = group(sampled_by(5), sampled_by(3, 5), sampled_by(0, outcome=Outcome.ERROR))
    assert not is_fresh(old, policy_version=5, max_staleness=1) and is_fresh(old, policy_version=5, max_staleness=2)
    assert is_fresh(group(rollout([1], [0])), policy_version=5, max_staleness=0)  # nothing of it was sampled
    ages = off_policy_metrics([old], policy_version=5, num_dropped=4)
    assert ages == {"off_policy/mean": pytest.approx(2 / 3), "off_policy/max": 2.0, "off_policy/dropped": 4.0}
    assert math.isnan(off_policy_metrics([], policy_version=5, num_dropped=0)["off_policy/max"])


# Real engines ----------------------------------------------------------------------------------------------------------------------


def mismatch(model, groups):
    """Mean absolute difference between the logprobs of engines and model over the sampled tokens, nats."""
    apart = []
    for played in (each for siblings in groups for each in siblings.rollouts):
        logprobs = logprobs_of(model, played.token_ids[:1], played.token_ids[1:]).numpy()
        apart.append(np.abs(logprobs[played.loss_mask[1:]] - played.rollout_logprobs[played.loss_mask]))
    return float(np.concatenate(apart).mean())


def real_pool(folder):
    kind = EngineKind.VLLM if importlib.util.find_spec("vllm") else EngineKind.HF
    parts = {"model_folder": folder, "user_factory": NumberingUser, "scenarios": FakeScenarios, "seed": 0}
    return RolloutPool(CONFIG, EngineConfig(engine=kind), **parts)


@pytest.mark.engine
def test_a_pool_of_real_engines(folder, monkeypatch):
    """Agreement with the model, order, errors as data, evaluation, new weights, and a listener on loopback only.

    Takes 20 s: Ray and two vLLM engines start.
    """
    with real_pool(folder) as pool:
        tasks = tasks_of(*["plain"] * 8, group_size=8)
        groups = roll_out(pool, tasks)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        assert [group.task for group in groups] == tasks and {rollout.dialogue.outcome for rollout in rollouts} == {Outcome.MAX_TURNS}
        assert len({tuple(rollout.token_ids) for rollout in rollouts}) == 64 and mismatch(load(folder), groups) < 1e-5
        assert [group.task.uid for group in roll_out(pool, tasks_of("slow", "plain"))] == ["t0", "t1"]

        [broken, fine] = roll_out(pool, tasks_of("broken", "plain"))
        assert [rollout.dialogue.outcome for rollout in broken.rollouts] == [Outcome.ERROR] * 2
        assert "ConnectionError: not there" in broken.rollouts[0].dialogue.error
        assert [rollout.dialogue.outcome for rollout in fine.rollouts] == [Outcome.MAX_TURNS] * 2
        assert counted(pool)["simulator_errors"] == 2 and "engine_errors" not in counted(pool)

        [one, other] = roll_out(pool, tasks_of("plain", "plain"), temperature=0.0, max_turns=4)
        assert {rollout.dialogue.num_replies for rollout in one.rollouts + other.rollouts} == {4}
        assert len({tuple(rollout.token_ids) for rollout in one.rollouts + other.rollouts}) == 1

        model = load(folder)
        for parameter in model.parameters():
            parameter.mul_(1.01)
        pool.load_weights(model.named_parameters(), 3)
        expected = logprobs_of(model, PROMPT[:1], PROMPT[1:]).numpy()
        assert all(np.abs(np.subtract(scores, expected)).max() < 1e-5 for scores in pool.score(PROMPT))
        groups = roll_out(pool, tasks_of("plain", "plain"))
        assert versions(groups) == {(3, 3)} and mismatch(model, groups) < 1e-5

        monkeypatch.setattr("policy.engine.weights.PIECE_BYTES", 4096)
        for parameter in model.parameters():
            parameter.mul_(1.01)
        pool.load_weights(model.named_parameters(), 4)
        expected = logprobs_of(model, PROMPT[:1], PROMPT[1:]).numpy()
        assert all(np.abs(np.subtract(scores, expected)).max() < 1e-5 for scores in pool.score(PROMPT))

        this = psutil.Process()
        connections = [each for process in (this, *this.children(recursive=True)) for each in process.net_connections(kind="tcp")]
        listeners = {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
        assert listeners and listeners <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def deterministic_tokens(folder, kind, *, seed=0):
    async def run():
        parts = {"model_folder": folder, "user_factory": NumberingUser, "scenarios": FakeScenarios, "system_prompt": "listen."}
        config = replace(CONFIG, num_engines=1, deterministic=True)
        worker = RolloutWorker(config, EngineConfig(engine=EngineKind(kind)), seed=seed, **parts)
        await worker.start()
        tasks = tasks_of("plain", "slow", "plain", group_size=3)
        played = [await worker.roll_out(tasks, SamplingOverrides()) for _ in range(2)]
        worker.close()
        return [[rollout.token_ids.tolist() for group in groups for rollout in group.rollouts] for groups in played]

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["hf", pytest.param("vllm", marks=pytest.mark.engine)])
def test_deterministic_rollouts_repeat_in_a_fresh_engine_and_in_a_used_one_and_differ_by_seed(kind, folder):
    """With vLLM it takes 13 s: three engines start."""
    first, used = deterministic_tokens(folder, kind)
    fresh, _ = deterministic_tokens(folder, kind)
    assert first == used == fresh
    assert deterministic_tokens(folder, kind, seed=1)[0] != first
    prompt = load_tokenizer(folder)("<|system|>listen.<|end|>", add_special_tokens=False).input_ids
    assert len(first) == 9 and all(ids[: len(prompt)] == prompt for ids in first)


def test_a_pool_that_cannot_work_is_refused_before_anything_starts(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("policy.rollout.pool.ray_session", lambda *_, **__: pytest.fail("Ray was started"))
    parts = {"user_factory": NumberingUser, "scenarios": FakeScenarios, "seed": 0}
    for setting, num_engines, place in ((r"rollout\.num_engines", 100_000, folder), (r"policy\.model", 1, tmp_path / "nowhere")):
        with pytest.raises(ValueError, match=setting):
            RolloutPool(RolloutConfig(num_engines=num_engines), EngineConfig(engine=EngineKind.HF), model_folder=place, **parts)
