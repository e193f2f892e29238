"""Training runs with a fault between trainer and engine, on real engines: the run's own measurements stop it."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec

import pytest
import torch
from parts_in_process import InProcessPool, tiny_run
from policy_factories import group, rollout
from tiny_policy import NumberingUser, save_tiny_policy

from experiments.checks import arrival_difference, to_score
from policy.config import EngineConfig, EngineKind
from policy.engine.factory import make_engine
from policy.engine.weights import check_acks, pack_weights
from simulator.dialogue import Reaction, Speaker, Turn
from simulator.scenario import Split
from simulator.world import load_bank

ENGINES = ["hf", pytest.param("vllm", marks=pytest.mark.engine)]


class CountingUser(NumberingUser):
    """Prefers some lengths of replies, so that siblings of a random policy get different rewards."""

    async def react(self, dialogue, reply):
        change = len(reply) % 7 - 3
        return Reaction(turn=Turn(speaker=Speaker.USER, text="and then?", emotion=dialogue.emotion + change, change=change))


class OneScenario:
    """The same scenario for every id, so that prompts of one step begin like those of the step before."""

    def scenario(self, scenario_id):
        return load_bank().scenarios(Split.TRAIN)[0]


class CountingPool(InProcessPool):
    """With that user and that scenario."""

    def __init__(self, *configs, **facts):
        super().__init__(*configs, **{**facts, "user_factory": CountingUser, "scenarios": OneScenario})


@pytest.fixture(params=ENGINES)
def training(request, tmp_path):
    """A run of a tiny policy after its first step, without a fault so far."""
    run = tiny_run(tmp_path / "tiny", f"policy.engine={request.param}", "learner.lr=0.005", "group_size=4", pool=CountingPool)
    try:
        metrics, _ = run.step()
        assert metrics["rollout/arrival_logprob_diff"] < 1e-4 and metrics["training/rollout_logprob_abs_diff_max"] < 1e-4
        assert run.components.learner.policy_version == 1
        yield run
    finally:
        run.components.pool.close()


def test_a_run_without_a_fault_goes_on(training):
    metrics, _ = training.step()
    assert metrics["rollout/arrival_logprob_diff"] < 1e-4 and metrics["training/rollout_logprob_abs_diff_max"] < 1e-4


def test_a_cache_that_outlives_its_weights_stops_the_run(training):
    engine = training.components.pool.engine
    if engine.name == "hf":
        pytest.skip("the transformers engine has no prefix cache")
    engine._reset_cache = lambda: None
    training.step()  # samples by version 1 throughout; its update leaves version 2 with the prefixes of version 1
    with pytest.raises(RuntimeError, match=r"engines must sample by the learner's weights"):
        training.step()


def test_a_skipped_update_stops_the_run_although_the_engine_acknowledges_it(training):
    training.components.pool.engine._load = lambda weights: weights.checksum
    with pytest.raises(RuntimeError, match="weights of version 2 must reach every engine"):
        training.step()


def test_an_update_without_acknowledgement_stops_the_run(training):
    training.components.pool.engine._load = lambda weights: 0
    with pytest.raises(RuntimeError, match=r"version 2 with checksum \d+, got version 2 with 0"):
        training.step()


def test_one_parameter_left_behind_on_the_way_changes_the_checksum(training):
    pool, learner = training.components.pool, training.components.learner
    before = pack_weights(learner.live_weights(), version=1)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(1.001)
    sent = pack_weights(learner.live_weights(), version=2)
    for name in sent.names:
        behind = pack_weights(((each, tensor) for each, tensor in sent.tensors()), version=2)
        behind.arrays[name] = before.arrays[name]
        with pytest.raises(RuntimeError, match=r"with checksum \d+, got version 2 with \d+"):
            check_acks([pool.ask(pool.worker.load_weights(behind))], sent)


def test_one_matrix_that_the_loader_drops_after_its_checksum_stops_the_run(training):
    """The checksum is of the weights that reached the loader; those it really uses show in the logprobs of the step's dialogues."""
    engine = training.components.pool.engine
    load_all = engine._load
    old = pack_weights(training.components.learner.live_weights(), version=1)

    def drop_one(weights):
        checksum = load_all(weights)
        behind = pack_weights(weights.tensors(), version=weights.version)
        behind.arrays["lm_head.weight"] = old.arrays["lm_head.weight"]
        load_all(behind)
        return checksum

    engine._load = drop_one
    with pytest.raises(RuntimeError, match="weights of version 2 must reach every engine"):
        training.step()


@pytest.mark.engine
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_a_dialogue_that_fills_every_position_of_the_model_can_be_scored_by_vllm(tmp_path):
    """Starts vLLM, which takes 10 s."""
    longest = 64
    engine = make_engine(EngineConfig(engine=EngineKind.VLLM), save_tiny_policy(tmp_path, positions=longest), max_context=longest)
    try:
        groups, scores = [group(rollout([7] * longest, [0] * 60 + [1] * 4))], lambda ids: asyncio.run(engine.score(ids))
        chosen = to_score(groups, max_context=longest)
        assert arrival_difference([scores(ids) for ids in chosen], [[scores(ids)] for ids in chosen]) < 1e-4
    finally:
        engine.close()
