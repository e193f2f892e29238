"""The rollout pool: faults with scripted workers on a real Ray, and dialogues with real engines."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray
import torch
from policy_factories import group, rollout
from ray.cluster_utils import Cluster
from transformers import AutoModelForCausalLM

from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig, WeightTransport
from policy.engine.weights import PackedWeights
from policy.model import load_tokenizer
from policy.rollout.dialogue import SamplingOverrides
from policy.rollout.pool import DialogueCounts, RolloutPool, check_pool
from policy.rollout.ray_cluster import start_ray, stop_ray
from policy.rollout.worker import RolloutWorker
from policy.rollout.worker_group import WorkerGroup
from simulator.dialogue import Outcome
from simulator.scenario import VANILLA, Difficulty
from tests.scripted_worker import ScriptedWorker
from tests.tiny_policy import FakeScenarios, NumberingUser, save_tiny_policy

CONFIG = RolloutConfig(num_engines=2, max_turns=3, max_new_tokens=16, max_context=256, retry_backoff_s=0.0, outage_s=0.0)
PROMPT = list(range(40, 75))
WEIGHTS = [("w", torch.ones(4))]
HAS_VLLM = importlib.util.find_spec("vllm") is not None


@dataclass(frozen=True, kw_only=True)
class FakeTask:
    uid: str
    scenario_id: str = "plain"
    difficulty: Difficulty = VANILLA
    group_size: int = 8
    seed: int = 11


def tasks_of(*scenario_ids, group_size=8, seed=0):
    return [FakeTask(uid=f"t{i}", scenario_id=s, group_size=group_size, seed=seed + i) for i, s in enumerate(scenario_ids)]


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
        engine = EngineConfig(engine=EngineKind.HF)
        parts = {"model_folder": folder, "user_factory": str(tmp_path), "scenarios": FakeScenarios, "seed": 0}
        return RolloutPool(config, engine, cluster=cluster, **parts)

    return make


@pytest.fixture(scope="module")
def local_ray(tmp_path_factory):
    folder = Path("/tmp") / f"attune-test-{os.getpid()}"
    assert start_ray(ClusterConfig(), num_cpus=3, folder=folder)
    yield
    stop_ray()


def is_worker(process):
    return any(name in " ".join(process.cmdline()) for name in ("ScriptedWorker", "RolloutWorker"))


def reached(folder):
    """The processes whose dialogues wait, once there are some."""
    patience = time.monotonic() + 60.0
    while not (found := [int(path.name.split("-")[1]) for path in folder.glob("reached-*")]):
        assert time.monotonic() < patience
        time.sleep(0.02)
    return found


@pytest.mark.engine
def test_killed_hung_and_broken_workers_lose_no_dialogue_and_come_back_with_the_newest_weights(scripted, local_ray, tmp_path):
    with scripted() as pool:
        pool.load_weights(WEIGHTS, 4)
        tasks = tasks_of("slow", "slow", "plain", "plain", group_size=2)
        pool.submit(tasks)
        os.kill(reached(tmp_path)[0], signal.SIGKILL)
        (tmp_path / "go").touch()
        groups = pool.ready(4)
        assert [group.task for group in groups] == tasks and all(group.task is task for group, task in zip(groups, tasks, strict=True))
        assert versions(groups) == {(4, 4)}
        found = counted(pool)
        assert found["done"] == 8 and found["lost"] in (2, 4) and found["dispatched"] == 8 + found["lost"] and found["restarts"] == 1

        for number, order in enumerate(("hang", "break"), start=2):
            (tmp_path / order).touch()
            assert versions(roll_out(pool, tasks_of("plain", "plain", group_size=2))) == {(4, 4)}
            assert not (tmp_path / order).exists() and counted(pool)["restarts"] == number

        # A stopped process, between dialogues, is noticed by the next question.
        next(each for each in psutil.Process().children(recursive=True) if is_worker(each)).suspend()
        pool.load_weights(WEIGHTS, 5)
        assert {score for scores in pool.score([1, 2]) for score in scores} == {5.0}
        assert versions(roll_out(pool, tasks_of("plain", "plain", group_size=2))) == {(5, 5)}
        assert counted(pool)["restarts"] in (3, 4) and "in_flight" not in counted(pool)


@pytest.mark.engine
def test_a_worker_may_be_restarted_so_often_in_a_while_and_its_counts_outlive_it(scripted, local_ray, tmp_path):
    with scripted(num_engines=1, max_restarts=2, restart_window_s=3600.0) as pool:
        roll_out(pool, tasks_of("plain", group_size=3))
        assert pool.user_counts() == {"calls": 3.0} and pool.stats()["engine_busy_s"] == 1.0
        (tmp_path / "break").touch()
        roll_out(pool, tasks_of("plain", group_size=1))
        # Of the broken worker those 3 are left, which it had counted when it was asked last.
        assert pool.user_counts(timeout_s=30.0) == {"calls": 4.0} and pool.stats()["engine_busy_s"] == 2.0
        (tmp_path / "break").touch()
        roll_out(pool, tasks_of("plain", group_size=1))
        (tmp_path / "break").touch()
        with pytest.raises(RuntimeError, match=r"rollout\.max_restarts=2 times in rollout\.restart_window_s=3600 s.*engine .* broke"):
            roll_out(pool, tasks_of("plain", group_size=1))


def test_a_restart_is_forgotten_after_its_window_and_each_worker_has_its_own(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("policy.rollout.worker_group.time.monotonic", lambda: now[0])
    workers = object.__new__(WorkerGroup)
    workers._config = RolloutConfig(max_restarts=2, restart_window_s=100.0)
    workers._restarts = [deque(), deque()]
    workers._spend_restart(0, "killed")
    now[0] = 60.0
    workers._spend_restart(0, "killed")
    workers._spend_restart(1, "another worker")
    with pytest.raises(RuntimeError, match=r"rollout worker 0 .* got one more: it hung"):
        workers._spend_restart(0, "it hung")
    now[0] = 101.0
    workers._spend_restart(0, "killed")


@pytest.mark.engine
def test_groups_come_in_order_lane_by_lane_and_an_abandoned_lane_is_counted(scripted, local_ray, tmp_path):
    with scripted() as pool:
        pool.submit(tasks_of("slow", "slow", group_size=2), lane="evaluation")
        tasks = tasks_of("plain", "plain", "plain", group_size=2)
        pool.submit(tasks)
        pool.abandon("evaluation")
        (tmp_path / "go").touch()
        assert [group.task.uid for group in pool.ready(2) + pool.ready(1)] == ["t0", "t1", "t2"]
        assert counted(pool) == {"dispatched": 10, "done": 6, "abandoned": 4}


@pytest.mark.engine
def test_weights_are_put_once_for_all_workers_and_a_file_is_deleted_when_the_next_arrived(scripted, local_ray, monkeypatch, tmp_path):
    put, kept = ray.put, []
    monkeypatch.setattr("policy.rollout.worker_group.ray.put", lambda value: kept.append(put(value)) or kept[-1])
    with scripted() as pool:
        pool.load_weights(WEIGHTS, 1)
        assert len(kept) == 1 and isinstance(ray.get(kept[0]), PackedWeights)
        place = tmp_path / "shared"
        pool._sync._config = EngineConfig(weight_transport=WeightTransport.FILE, weight_folder=str(place))
        pool._sync._folder = place
        for version in (2, 3):
            pool.load_weights(WEIGHTS, version)
            assert [path.name.rpartition("-")[2] for path in place.iterdir()] == [f"v{version:08d}.safetensors"]
        assert versions(roll_out(pool, tasks_of("plain", "plain", group_size=1))) == {(3, 3)}
    assert list(place.iterdir()) == []


@pytest.mark.engine
def test_a_worker_that_cannot_restart_stops_a_run_in_one_sentence(scripted, local_ray, tmp_path):
    with scripted(num_engines=1) as pool:
        (tmp_path / "never").touch()
        (tmp_path / "break").touch()
        with pytest.raises(RuntimeError, match=r"^rollout worker 0 must restart .*, got policy\.model must be") as caught:
            roll_out(pool, tasks_of("plain", group_size=1))
    assert "\n" not in str(caught.value)


def test_weights_that_find_no_room_anywhere_stop_a_run_with_the_remedy(monkeypatch):
    def refuse(packed):
        raise ray.exceptions.OutOfDiskError("no space left on the device")

    monkeypatch.setattr("policy.rollout.worker_group.ray.put", refuse)
    with pytest.raises(RuntimeError, match=r"weights of 8 MiB, got no space left .*raise cluster\.object_store_mb"):
        object.__new__(WorkerGroup).load_weights(PackedWeights(version=1, arrays={"w": np.zeros(1 << 20)}, dtypes={"w": "float64"}))


def test_every_dispatch_is_counted_once():
    broken = rollout([1, 2], [0, 1], outcome=Outcome.ERROR)
    by_engine = replace(broken, dialogue=replace(broken.dialogue, error="EngineError: gone"), num_attempts=2)
    counts = DialogueCounts(num_dispatched=8, num_lost=2, num_abandoned=1)
    counts.settle([group(rollout([1, 2], [0, 1]), broken), group(by_engine)])
    assert (counts.num_done, counts.num_simulator_errors, counts.num_engine_errors, counts.num_retried) == (1, 1, 1, 1)
    assert counts.totals()["num_dialogues"] == 3 and counts.totals()["num_in_flight"] == 2


def test_a_part_that_fails_to_close_keeps_no_other_from_it():
    closed = []

    def fail():
        closed.append("first")
        raise RuntimeError("cannot be closed")

    pool = object.__new__(RolloutPool)
    pool._opened = ExitStack()
    pool._opened.callback(closed.append, "last")
    pool._opened.callback(fail)
    with pytest.raises(RuntimeError, match="cannot be closed"):
        pool.close()
    pool.close()
    assert closed == ["first", "last"]


@pytest.mark.engine
def test_a_lost_machine_is_replaced_and_engines_that_share_a_gpu_start_one_after_another(scripted, tmp_path):
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
            tasks = tasks_of("slow", "slow", group_size=2)
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


# Real engines ----------------------------------------------------------------------------------------------------------------------


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)


def logprobs_of(model, ids):
    ids_T = torch.tensor(np.asarray(ids), dtype=torch.int64)
    return model(ids_T[None]).logits[0].log_softmax(dim=-1)[:-1].gather(1, ids_T[1:, None])[:, 0].numpy()


def mismatch(model, groups):
    """Mean absolute difference between the logprobs of engines and model over the sampled tokens, nats."""
    apart = [
        np.abs(logprobs_of(model, rollout.token_ids)[rollout.loss_mask[1:]] - rollout.rollout_logprobs[rollout.loss_mask])
        for group in groups
        for rollout in group.rollouts
    ]
    return float(np.concatenate(apart).mean())


def real_pool(folder, config=CONFIG, **settings):
    parts = {"model_folder": folder, "user_factory": NumberingUser, "scenarios": FakeScenarios, "seed": 0}
    return RolloutPool(config, EngineConfig(engine=EngineKind.VLLM if HAS_VLLM else EngineKind.HF, **settings), **parts)


@pytest.mark.engine
def test_a_pool_of_real_engines(folder):
    """Agreement with the model, order, errors as data, evaluation, new weights, and a listener on loopback only."""
    with real_pool(folder) as pool:
        tasks = tasks_of(*["plain"] * 8)
        groups = roll_out(pool, tasks)
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        assert [group.task for group in groups] == tasks and {rollout.dialogue.outcome for rollout in rollouts} == {Outcome.MAX_TURNS}
        assert len({tuple(rollout.token_ids) for rollout in rollouts}) == 64 and mismatch(load(folder), groups) < 1e-5
        assert [group.task.uid for group in roll_out(pool, tasks_of("slow", "plain", group_size=2))] == ["t0", "t1"]

        [broken, fine] = roll_out(pool, tasks_of("broken", "plain", group_size=2))
        assert [rollout.dialogue.outcome for rollout in broken.rollouts] == [Outcome.ERROR] * 2
        assert "ConnectionError: nobody there" in broken.rollouts[0].dialogue.error
        assert [rollout.dialogue.outcome for rollout in fine.rollouts] == [Outcome.MAX_TURNS] * 2
        assert counted(pool)["simulator_errors"] == 2 and "engine_errors" not in counted(pool)

        [one, other] = roll_out(pool, tasks_of("plain", "plain", group_size=2), temperature=0.0, max_turns=4)
        assert {rollout.dialogue.num_replies for rollout in one.rollouts + other.rollouts} == {4}
        assert len({tuple(rollout.token_ids) for rollout in one.rollouts + other.rollouts}) == 1

        with pytest.raises(ValueError, match=r"^policy weights must name every parameter of the model"):
            pool.load_weights(list(load(folder).named_parameters())[1:], 9)
        model = load(folder)
        for parameter in model.parameters():
            parameter.mul_(1.01)
        pool.load_weights(model.named_parameters(), 3)
        assert all(np.abs(np.subtract(scores, logprobs_of(model, PROMPT))).max() < 1e-5 for scores in pool.score(PROMPT))
        groups = roll_out(pool, tasks_of("plain", "plain", group_size=2))
        assert versions(groups) == {(3, 3)} and mismatch(model, groups) < 1e-5

        this = psutil.Process()
        connections = [each for process in (this, *this.children(recursive=True)) for each in process.net_connections(kind="tcp")]
        listeners = {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
        assert listeners and listeners <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.engine
@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed")
def test_an_engine_in_a_process_of_its_own_may_die_before_its_worker_or_after_it(folder):
    def engines():
        workers = [each for each in psutil.Process().children(recursive=True) if is_worker(each)]
        return [child for worker in workers for child in worker.children() if "EngineCore" in child.name()], workers

    with real_pool(folder, replace(CONFIG, num_engines=1, hang_timeout_s=10.0), engine_process=True) as pool:
        model = load(folder)
        model.lm_head.weight.mul_(1.5)
        pool.load_weights(model.named_parameters(), 4)
        [first], _ = engines()
        first.kill()
        groups = roll_out(pool, tasks_of("plain", "plain", group_size=2))
        assert versions(groups) == {(4, 4)} and mismatch(model, groups) < 1e-5 and pool.stats()["num_restarts"] == 1
        [second], [worker] = engines()
        worker.kill()
        assert not psutil.wait_procs([second], timeout=30)[1]
        assert mismatch(model, roll_out(pool, tasks_of("plain", group_size=2))) < 1e-5 and pool.stats()["num_restarts"] == 2
        [third], _ = engines()
    assert not psutil.wait_procs([third], timeout=30)[1]


def deterministic_tokens(folder, kind, *, seed=0, system_prompt=""):
    async def run():
        worker = RolloutWorker(
            replace(CONFIG, num_engines=1, deterministic=True),
            EngineConfig(engine=EngineKind(kind)),
            model_folder=folder,
            user_factory=NumberingUser,
            scenarios=FakeScenarios,
            seed=seed,
            system_prompt=system_prompt,
        )
        await worker.start()
        tasks = tasks_of("plain", "slow", "plain", group_size=3)
        played = [await worker.roll_out(tasks, SamplingOverrides()) for _ in range(2)]
        worker.close()
        return [[rollout.token_ids.tolist() for group in groups for rollout in group.rollouts] for groups in played]

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["hf", pytest.param("vllm", marks=pytest.mark.engine)])
def test_deterministic_rollouts_repeat_in_a_fresh_engine_and_in_a_used_one_and_differ_by_seed(kind, folder):
    first, used = deterministic_tokens(folder, kind)
    fresh, _ = deterministic_tokens(folder, kind)
    assert first == used == fresh
    assert deterministic_tokens(folder, kind, seed=1)[0] != first


def test_every_dialogue_begins_with_the_system_prompt(folder):
    prompt = load_tokenizer(folder)("<|system|>listen.<|end|>", add_special_tokens=False).input_ids
    dialogues, _ = deterministic_tokens(folder, "hf", system_prompt="listen.")
    assert len(dialogues) == 9 and all(ids[: len(prompt)] == prompt for ids in dialogues)


def test_a_pool_that_cannot_work_is_refused_before_anything_starts(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("policy.rollout.pool.start_ray", lambda *_, **__: pytest.fail("Ray was started"))
    with pytest.raises(ValueError, match=r"rollout\.num_engines"):
        check_pool(RolloutConfig(num_engines=100_000), EngineConfig(), ClusterConfig(), folder)
    with pytest.raises(ValueError, match=r"policy\.model"):
        real_pool(tmp_path / "nowhere")
