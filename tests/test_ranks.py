"""Several ranks against one process: gradients, weights, metrics, checkpoints, and what happens when a rank is lost. Gloo on CPUs."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch
from parts_in_process import InProcessPool
from policy_factories import random_batch, tiny_model, tiny_tokenizer, update, weights_of

from experiments.__main__ import main
from policy.algorithms.algorithms import ALGORITHMS
from policy.algorithms.critic import Critic
from policy.batch import Batch
from policy.checkpoint import load_checkpoint, save_checkpoint
from policy.config import ALGORITHM_CONFIGS, ClusterConfig, CriticKind, LearnerConfig, LoraConfig
from policy.files import OwnFolder
from policy.learner import Learner
from policy.learner_group import LearnerGroup
from policy.lora import add_adapters
from policy.model import load_model
from policy.ranks import Ranks
from policy.rollout.session import ray_session
from policy.shards import whole
from simulator.files import ExitCode, read_lines
from tests.tiny_policy import save_tiny_policy

SEVERAL_STEPS = {"num_minibatches": 2, "epochs": 2}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "token mean": ("grpo", {}, {}),
    "dialogue mean, KL and entropy": (
        "grpo",
        {"policy_loss": "gspo", "loss_aggregation": "dialogue_mean", "kl_coef": 0.1, "entropy_coef": 0.02},
        SEVERAL_STEPS,
    ),
    "constant, recomputed layers": (
        "grpo",
        {"policy_loss": "kl_cov", "loss_aggregation": "constant", "loss_length": 40},
        {**SEVERAL_STEPS, "gradient_checkpointing": True},
    ),
    "Clip-Cov": ("rloo", {"policy_loss": "clip_cov"}, SEVERAL_STEPS),
    "critic": ("ppo", {"critic_warmup_steps": 1}, SEVERAL_STEPS),
    "shared critic": ("ppo", {"critic": "shared", "critic_warmup_steps": 0}, {}),
    "adapters": ("grpo", {"kl_coef": 0.1}, SEVERAL_STEPS),
    "bfloat16": ("grpo", {"kl_coef": 0.1}, {**SEVERAL_STEPS, "autocast": True}),
}
"""Kind and settings of the algorithm, and settings of the learner."""
OF_ONE = "dialogue mean, KL and entropy"
"""The case in which ranks go on from a checkpoint of one process."""
SHARDED = [case for case in CASES if case != "shared critic"]
SIZES = (3, 2)
TIMED = ("timing_s/", "perf/")


def build(case: str, ranks: Ranks, weights: torch.Tensor | None = None) -> Learner:
    kind, settings, of_learner = CASES[case]
    algorithm = ALGORITHMS[kind](ALGORITHM_CONFIGS[kind](**settings))
    own = LearnerConfig(lr=1e-3, micro_batch_rows=2, max_grad_norm=0.7, recompute_logprobs=True, ranks=ranks.size, **of_learner)
    model, critic = tiny_model(tied=case == "token mean"), None
    if weights is not None:
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
    if case == "adapters":
        model = add_adapters(model, LoraConfig(rank=3), seed=2)
    if algorithm.needs_critic:
        is_shared = algorithm.config.critic is CriticKind.SHARED
        critic = Critic(algorithm.config, own, model if is_shared else tiny_model(), ranks)
    reference = tiny_model(seed=1) if algorithm.needs_reference else None
    return Learner(own, algorithm, model, reference=reference, critic=critic, temperature=0.9, seed=7, ranks=ranks)


def few_rows() -> Batch:
    """Two rows: fewer than three ranks, and with `micro_batch_rows=2` all on the first."""
    return random_batch(seed=5, num_groups=1, size=2)


def nothing_to_train() -> Batch:
    batch = random_batch(seed=6, num_groups=1, size=2)
    return replace(batch, loss_mask_BT=torch.zeros_like(batch.loss_mask_BT))


def not_finite() -> Batch:
    batch = random_batch(seed=4)
    batch.rewards_B[1] = math.nan
    return batch


def play(case: str, ranks: Ranks) -> dict[str, Any]:
    """Everything that is compared, of one rank."""
    learner = build(case, ranks)
    metrics = [update(learner, random_batch(seed=0))]
    # During a critic's warm-up the policy has none.
    grads = [parameter.grad for parameter in learner.model.parameters() if parameter.requires_grad]
    gradient = torch.cat([whole(each).flatten() for each in grads]) if learner.num_steps else torch.zeros(1)
    metrics += [update(learner, batch) for batch in (random_batch(seed=1), few_rows(), nothing_to_train())]
    found = {"metrics": metrics, "gradient": gradient, "weights": weights_of(learner), "state": deepcopy(learner.state_dict())}
    if learner.critic is not None:
        own = [*learner.critic._own.parameters()]
        found["critic"] = torch.cat([whole(each.detach()).flatten() for each in own] + [whole(each.grad).flatten() for each in own])
    again = build(case, ranks)
    load(again, learner, found["state"])
    if case == OF_ONE and ranks.size > 1:
        update(one := build(case, Ranks()), random_batch(seed=0))
        many = build(case, ranks, weights_of(one))
        many.load_state_dict(deepcopy(one.state_dict()))
        for each in (one, many):
            update(each, random_batch(seed=1))
        found |= {"of one": weights_of(one), "of many": weights_of(many)}
    for each in (learner, again):
        update(each, random_batch(seed=2))
    found |= {"third": weights_of(learner), "resumed": weights_of(again)}
    if case == "token mean":
        found["score"] = learner.score([4, 9, 2, 33])
        update(learner, not_finite())
        found |= {"skipped": (learner.why_skipped, learner.num_skipped), "after": weights_of(learner)}
    return found


def load(learner: Learner, other: Learner, state: dict[str, Any]) -> None:
    with torch.no_grad():
        for ours, theirs in zip(learner.model.parameters(), other.model.parameters(), strict=True):
            ours.copy_(theirs)
    learner.load_state_dict(deepcopy(state))


def follow(rank: int, folder: Path) -> None:
    """One rank after the first, in a process of its own."""
    torch.set_num_threads(1)
    for size in SIZES:
        if rank < size:
            torch.save(play_all(rank, size, folder), folder / f"{size}_{rank}.pt")


def play_all(rank: int, size: int, folder: Path) -> dict[str, dict[str, Any]]:
    """By case; those of sharded models have `sharded ` before their name."""
    ranks = Ranks.join(rank, size, folder / f"meeting_{size}")
    found = {case: play(case, ranks) for case in CASES}
    found |= {f"sharded {case}": play(case, replace(ranks, sharded=True)) for case in SHARDED}
    ranks.leave()
    return found


@pytest.fixture(scope="module", autouse=True)
def own_process_group() -> None:
    """An engine of other tests may have left vLLM's in this process."""
    if torch.distributed.is_initialized():
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """By number of ranks, what each of them found; the first is this process."""
    folder, found = tmp_path_factory.mktemp("ranks"), {}
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=follow, args=(rank, folder)) for rank in range(1, max(SIZES))]
    for process in others:
        process.start()
    for size in SIZES:
        found[size] = [play_all(0, size, folder)]
    for process in others:
        process.join()
        assert process.exitcode == 0
    for size in SIZES:
        found[size] += [torch.load(folder / f"{size}_{rank}.pt", weights_only=False) for rank in range(1, size)]
    return found


@cache
def alone(case: str) -> dict[str, Any]:
    return play(case, Ranks())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", [*CASES, *(f"sharded {case}" for case in SHARDED)])
def test_ranks_learn_what_one_process_learns(played, case: str, size: int) -> None:
    one, first = alone(case.removeprefix("sharded ")), played[size][0][case]
    # Not the weights alone: AdamW hides a factor of the gradient.
    torch.testing.assert_close(first["gradient"], one["gradient"], rtol=1e-4, atol=1e-6)
    # In bfloat16 a rounding may turn the sign of a tiny gradient, which AdamW takes for a whole step.
    torch.testing.assert_close(first["weights"], one["weights"], rtol=0, atol=5e-4 if "bfloat16" in case else 2e-5)
    if "critic" in one:
        torch.testing.assert_close(first["critic"], one["critic"], rtol=1e-3, atol=1e-4)
    for ours, theirs in zip(first["metrics"], one["metrics"], strict=True):
        for name, value in theirs.items():
            if not name.startswith(TIMED):
                assert ours[name] == pytest.approx(value, rel=1e-3, abs=1e-5, nan_ok=True), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", [*CASES, *(f"sharded {case}" for case in SHARDED)])
def test_all_ranks_end_with_the_same_bits_and_metrics(played, case: str, size: int) -> None:
    first, *others = (found[case] for found in played[size])
    for other in others:
        assert torch.equal(first["weights"], other["weights"]) and torch.equal(first["third"], other["third"])
        for ours, theirs in zip(first["metrics"], other["metrics"], strict=True):
            kept = [name for name in ours if not name.startswith(TIMED)]
            assert [repr(ours[name]) for name in kept] == [repr(theirs[name]) for name in kept]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", [*CASES, *(f"sharded {case}" for case in SHARDED)])
def test_a_checkpoint_of_ranks_goes_on_with_as_many_bit_for_bit_and_with_one_process_nearly(played, case: str, size: int) -> None:
    first = played[size][0][case]
    assert torch.equal(first["resumed"], first["third"])
    one = build(case.removeprefix("sharded "), Ranks())
    at = 0
    with torch.no_grad():
        for _, parameter in one.live_weights():
            parameter.copy_(first["weights"][at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()
    one.load_state_dict(deepcopy(first["state"]))
    update(one, random_batch(seed=2))
    torch.testing.assert_close(weights_of(one), first["third"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", [OF_ONE, f"sharded {OF_ONE}"])
def test_ranks_go_on_from_a_checkpoint_of_one_process(played, case: str, size: int) -> None:
    first = played[size][0][case]
    torch.testing.assert_close(first["of many"], first["of one"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("size", SIZES)
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all_and_names_the_rollout(played, size: int) -> None:
    for found in played[size]:
        (reason,), num_skipped = found["token mean"]["skipped"]
        assert "the reward of rollout" in reason and num_skipped == 1
        assert torch.equal(found["token mean"]["after"], found["token mean"]["third"])


@pytest.mark.parametrize(("device", "number"), [("cuda", 0), ("cuda:3", 3)])
def test_a_rank_takes_the_card_of_its_device(device: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    Ranks.join(0, 1, tmp_path / "meeting", device=device)
    torch.distributed.destroy_process_group()
    assert taken == [number]


# In Ray -------------------------------------------------------------------------------------------------------------------------------


def of_rank(own: LearnerConfig, ranks: Ranks) -> Learner:
    return build("critic", ranks)


def broken_second(own: LearnerConfig, ranks: Ranks) -> Learner:
    if ranks.rank == 1:
        raise ValueError("the second has no model")
    return build("token mean", ranks)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    # The names of Ray's sockets leave no room for the long name of pytest's folder.
    with OwnFolder("attune-", parent=Path("/tmp")) as folder, ray_session(ClusterConfig(), num_cpus=2, folder=Path(folder)):
        yield


@pytest.fixture
def tests_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (folder, folder.parent))))


def test_a_group_of_ranks_is_a_learner_until_one_is_killed(local_ray: None, tests_on_path: None) -> None:
    ours = psutil.Process()
    group = LearnerGroup(of_rank, LearnerConfig(ranks=2), ClusterConfig())
    try:
        for seed in range(2):
            metrics = update(group, random_batch(seed=seed))  # type: ignore[arg-type]
        torch.testing.assert_close(weights_of(group), alone_after_two(), rtol=0, atol=2e-5)  # type: ignore[arg-type]
        assert metrics["training/policy_version"] == group.policy_version == 1.0 and group.state_dict()["num_steps"] == group.num_steps
        heard = [link for link in ours.net_connections() if link.status == psutil.CONN_LISTEN]
        assert all(link.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for link in heard)
        os.kill(pid_of_second(group), signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"rank 1 of learner\.ranks=2 was lost: .*; resume from the newest checkpoint"):
            update(group, random_batch(seed=3))  # type: ignore[arg-type]
    finally:
        group.close()


def pid_of_second(group: LearnerGroup) -> int:
    (pid,) = ray.get([follower.pid.remote() for follower in group._followers])
    return pid


def alone_after_two() -> torch.Tensor:
    one = build("critic", Ranks())
    for seed in range(2):
        update(one, random_batch(seed=seed))
    return weights_of(one)


def sharded_rank(own: LearnerConfig, ranks: Ranks) -> Learner:
    return build("token mean", ranks)


def test_a_sharded_group_scores_sends_and_saves_whole_weights(local_ray: None, tests_on_path: None, tmp_path: Path) -> None:
    one, batch = build("token mean", Ranks()), random_batch(seed=0)
    update(one, batch)
    with closing(LearnerGroup(sharded_rank, LearnerConfig(ranks=2, sharded=True), ClusterConfig())) as group:
        update(group, batch)  # type: ignore[arg-type]
        sent = dict(group.live_weights())
        assert group.score([4, 9, 2, 33]) == pytest.approx(one.score([4, 9, 2, 33]), abs=1e-4)
        saved = {"model": group.learner.model, "model_state": group.model_state(), "state": {"learner": group.state_dict()}}
        folder = save_checkpoint(tmp_path / "checkpoints" / "step_1", tokenizer=tiny_tokenizer(), **saved)
        second, meeting, threads = psutil.Process(pid_of_second(group)), group._folder.name, torch.get_num_threads()
    assert not psutil.wait_procs([second], timeout=10)[1] and not Path(meeting).exists()
    assert torch.get_num_threads() >= threads and not torch.distributed.is_initialized()
    for name, parameter in one.live_weights():
        torch.testing.assert_close(sent[name], parameter, rtol=0, atol=2e-5)
    model, _ = load_model(folder)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert all(torch.equal(parameter, sent[name]) for name, parameter in model.named_parameters())
    again = Learner(one.config, one.algorithm, model, temperature=0.9)
    again.load_state_dict(load_checkpoint(folder)["learner"])
    assert again.policy_version == one.policy_version


def test_a_run_that_loses_a_rank_stops_and_is_resumed_by_one(
    local_ray: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose_second(group: LearnerGroup, batch: Batch, **settings: float) -> dict[str, float]:
        if group.policy_version >= 1.0:
            os.kill(pid_of_second(group), signal.SIGKILL)
        return whole_update(group, batch, **settings)

    whole_update = LearnerGroup.update
    monkeypatch.setattr(LearnerGroup, "update", lose_second)
    monkeypatch.setattr("experiments.build.RolloutPool", InProcessPool)
    monkeypatch.setattr("experiments.run.write_report", lambda folder: folder)
    model = save_tiny_policy(tmp_path / "model")
    words = ["smoke", f"runs={tmp_path}", f"policy.model={model}", "policy.engine=hf", "learner.autocast=false", "rollout.num_engines=1"]
    small = ["evaluation.num_scenarios=2", "evaluation.during_scenarios=1", "probe.num_dialogues=2", "simulator.register=world"]
    ranks = ["learner.ranks=2", "learner.sharded=true", "checkpoint.every=1", "budget.steps=2"]
    assert main([*words, *small, "name=two", *ranks]) == ExitCode.FAILED
    said = "".join(capsys.readouterr())
    assert "stopped in step 2: rank 1 of learner.ranks=2 was lost" in said and "to resume: python -m experiments smoke resume=" in said
    assert main(["smoke", f"resume={tmp_path / 'smoke' / 'two'}", "learner.ranks=1", "learner.sharded=false"]) == ExitCode.FINISHED
    steps = list(read_lines(tmp_path / "smoke" / "two" / "metrics.jsonl"))
    assert [step["step"] for step in steps] == [1, 2] and steps[-1]["training/policy_version"] >= 1.0


def test_a_rank_that_cannot_start_says_why(local_ray: None, tests_on_path: None) -> None:
    with pytest.raises(RuntimeError, match="the second has no model"):
        LearnerGroup(broken_second, LearnerConfig(ranks=2), ClusterConfig())
