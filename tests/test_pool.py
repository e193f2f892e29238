"""The rollout pool with real engines: vLLM in Ray actors on this machine, and one worker without Ray."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import ray
import torch
from transformers import AutoModelForCausalLM

from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig
from policy.model import load_tokenizer
from policy.rollout.dialogue import Conduct
from policy.rollout.pool import RolloutPool, check_pool
from policy.rollout.worker import RolloutWorker
from policy.rollout.worker_group import summed
from simulator.dialogue import Outcome
from simulator.scenario import VANILLA, Difficulty
from tests.tiny_policy import FakeScenarios, NumberingUser, save_tiny_policy

CONFIG = RolloutConfig(num_engines=2, max_turns=3, max_new_tokens=16, max_context=256, retry_backoff_s=0.0, outage_s=0.0)
PROMPT = list(range(40, 75))


@dataclass(frozen=True, kw_only=True)
class FakeTask:
    uid: str
    scenario_id: str = "plain"
    difficulty: Difficulty = VANILLA
    group_size: int = 8
    seed: int = 11


def tasks_of(*scenario_ids, group_size=8, seed=0):
    return [FakeTask(uid=f"t{i}", scenario_id=s, group_size=group_size, seed=seed + i) for i, s in enumerate(scenario_ids)]


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)


def logprobs_of(model, ids):
    ids_T = torch.tensor(np.asarray(ids), dtype=torch.int64)
    return model(ids_T[None]).logits[0].log_softmax(dim=-1)[:-1].gather(1, ids_T[1:, None])[:, 0].numpy()


def mismatch(model, groups):
    """Mean absolute difference between what the engines and the model say about the sampled tokens, nats."""
    apart = [
        np.abs(logprobs_of(model, rollout.token_ids)[rollout.loss_mask[1:]] - rollout.rollout_logprobs[rollout.loss_mask])
        for group in groups
        for rollout in group.rollouts
    ]
    return float(np.concatenate(apart).mean())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def pool(folder):
    with RolloutPool(
        CONFIG, EngineConfig(engine=EngineKind.VLLM), model_folder=folder, user_factory=NumberingUser, scenarios=FakeScenarios, seed=0
    ) as pool:
        yield pool


def roll_out(pool, tasks, **conduct):
    pool.submit(tasks, **conduct)
    return pool.ready(len(tasks))


@pytest.mark.engine
def test_sixty_four_dialogues_at_once_agree_with_the_model(pool, folder):
    tasks = tasks_of(*["plain"] * 8)
    groups = roll_out(pool, tasks)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert [group.task for group in groups] == tasks
    assert all(group.task is task for group, task in zip(groups, tasks, strict=True))
    assert [len(group.rollouts) for group in groups] == [8] * 8
    assert {rollout.dialogue.outcome for rollout in rollouts} == {Outcome.MAX_TURNS}
    assert len({tuple(rollout.token_ids) for rollout in rollouts}) == 64
    assert mismatch(load(folder), groups) < 1e-5


@pytest.mark.engine
def test_groups_come_in_the_order_of_submission_whichever_is_quick(pool):
    pool.submit(tasks_of("slow", "plain", "plain", "slow", group_size=2))
    first = pool.ready(3)
    last = pool.ready(1)
    assert [group.task.uid for group in first + last] == ["t0", "t1", "t2", "t3"]


@pytest.mark.engine
def test_weights_that_the_engines_do_not_know_are_refused_in_a_sentence(pool, folder):
    with pytest.raises(ValueError, match=r"^policy weights must name every parameter of the model, got \[.*\] missing and none unknown$"):
        pool.load_weights(list(load(folder).named_parameters())[1:], 9)
    pool.load_weights(load(folder).named_parameters(), 1)


@pytest.mark.engine
def test_simulator_errors_are_data_and_counted(pool):
    before = pool.stats()
    [broken, fine] = roll_out(pool, tasks_of("broken", "plain", group_size=2))
    after = pool.stats()
    assert [rollout.dialogue.outcome for rollout in broken.rollouts] == [Outcome.ERROR] * 2
    assert "ConnectionError: nobody there" in broken.rollouts[0].dialogue.error
    assert [rollout.dialogue.outcome for rollout in fine.rollouts] == [Outcome.MAX_TURNS] * 2
    assert after["num_simulator_errors"] - before["num_simulator_errors"] == 2
    assert after["num_engine_errors"] == 0
    assert after["num_tokens"] - before["num_tokens"] == sum(rollout.num_sampled for group in (broken, fine) for rollout in group.rollouts)


@pytest.mark.engine
def test_evaluation_runs_colder_and_longer(pool):
    [one, other] = roll_out(pool, tasks_of("plain", "plain", group_size=2), temperature=0.0, max_turns=4)
    assert {rollout.dialogue.num_replies for rollout in one.rollouts + other.rollouts} == {4}
    assert len({tuple(rollout.token_ids) for rollout in one.rollouts + other.rollouts}) == 1


@pytest.mark.engine
def test_new_weights_reach_every_engine(pool, folder):
    model = load(folder)
    for parameter in model.parameters():
        parameter.mul_(1.01)
    pool.load_weights(model.named_parameters(), 3)
    assert [np.abs(np.subtract(scores, logprobs_of(model, PROMPT))).max() < 1e-5 for scores in pool.score(PROMPT)] == [True, True]
    groups = roll_out(pool, tasks_of("plain", "plain", group_size=2))
    assert {rollout.policy_versions for group in groups for rollout in group.rollouts} == {(3, 3)}
    assert mismatch(model, groups) < 1e-5


@pytest.mark.engine
def test_local_ray_listens_on_loopback_only(pool):
    this = psutil.Process()
    listeners = [
        connection.laddr.ip
        for process in [this, *this.children(recursive=True)]
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listeners
    assert set(listeners) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


@pytest.mark.engine
def test_dead_worker_is_replaced_with_the_newest_weights_and_loses_no_task(pool, folder):
    model = load(folder)
    model.lm_head.weight.mul_(1.5)
    pool.load_weights(model.named_parameters(), 4)
    tasks = tasks_of("slow", "slow", "plain", "plain", group_size=2)
    pool.submit(tasks)
    ray.kill(pool.crew.workers[0])
    groups = pool.ready(4)
    assert [group.task for group in groups] == tasks
    assert {rollout.policy_versions for group in groups for rollout in group.rollouts} == {(4, 4)}
    assert mismatch(model, groups) < 1e-5
    assert pool.stats()["num_restarts"] == 1


def deterministic_tokens(folder, kind, *, seed=0, system_prompt=""):
    async def run():
        config = RolloutConfig(num_engines=1, max_turns=3, max_new_tokens=16, max_context=256, deterministic=True)
        worker = RolloutWorker(
            config,
            EngineConfig(engine=EngineKind(kind)),
            model_folder=folder,
            user_factory=NumberingUser,
            scenarios=FakeScenarios,
            seed=seed,
            system_prompt=system_prompt,
        )
        await worker.start()
        groups = await worker.roll_out(tasks_of("plain", "slow", "plain", group_size=3), Conduct())
        again = await worker.roll_out(tasks_of("plain", "slow", "plain", group_size=3), Conduct())
        worker.close()
        return [[rollout.token_ids.tolist() for group in some for rollout in group.rollouts] for some in (groups, again)]

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["hf", pytest.param("vllm", marks=pytest.mark.engine)])
def test_deterministic_rollouts_repeat_in_a_fresh_engine_and_in_a_used_one(kind, folder):
    first, used = deterministic_tokens(folder, kind)
    fresh, _ = deterministic_tokens(folder, kind)
    assert first == used == fresh


def test_runs_with_different_seeds_sample_differently_on_the_same_tasks(folder):
    assert deterministic_tokens(folder, "hf", seed=0)[0] != deterministic_tokens(folder, "hf", seed=1)[0]


def test_every_dialogue_begins_with_what_the_agent_is_told(folder):
    told = load_tokenizer(folder)("<|system|>listen.<|end|>", add_special_tokens=False).input_ids
    dialogues, _ = deterministic_tokens(folder, "hf", system_prompt="listen.")
    assert len(dialogues) == 9 and all(ids[: len(told)] == told for ids in dialogues)


def test_pool_that_does_not_fit_into_memory_is_refused_before_anything_starts(folder):
    with pytest.raises(ValueError, match=r"rollout\.num_engines must fit into memory .*; lower one of them"):
        check_pool(RolloutConfig(num_engines=100_000), EngineConfig(), ClusterConfig(), folder)


def test_pool_without_a_model_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("policy.rollout.pool.start_ray", lambda *_, **__: pytest.fail("Ray was started"))
    build = functools.partial(RolloutPool, CONFIG, EngineConfig(), user_factory=NumberingUser, scenarios=FakeScenarios, seed=0)
    with pytest.raises(ValueError, match=r"policy\.model must be a folder"):
        build(model_folder=tmp_path / "nowhere")


class Part:
    """Notes that it was closed, and may fail at it."""

    def __init__(self, name: str, closed: list[str], *, fails: bool = False) -> None:
        self.name, self.closed, self.fails = name, closed, fails

    def close(self) -> None:
        self.closed.append(self.name)
        if self.fails:
            raise RuntimeError(f"{self.name} cannot be closed")

    cleanup = close


def test_a_part_that_fails_to_close_keeps_no_other_from_it(monkeypatch):
    closed: list[str] = []
    monkeypatch.setattr("policy.rollout.pool.stop_ray", Part("ray", closed).close)
    pool = object.__new__(RolloutPool)
    pool._transport, pool._crew = Part("transport", closed, fails=True), Part("crew", closed, fails=True)
    pool._started_ray, pool._folder = True, Part("folder", closed)
    with pytest.raises(RuntimeError, match="crew cannot be closed"):
        pool.close()
    assert closed == ["transport", "crew", "ray", "folder"]
    pool.close()
    assert closed[4:] == ["folder"]


def test_what_users_count_is_summed_by_name():
    assert summed([{"calls": 2.0, "cost": 0.5}, {}, {"calls": 3.0, "retries": 0.0}]) == {"calls": 5.0, "cost": 0.5, "retries": 0.0}
