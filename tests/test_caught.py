"""Runs with a fault planted between trainer and engine, on real engines: what the run itself measures gives each of them away."""

from __future__ import annotations

import asyncio

import pytest
import torch

from curriculum.collapse.monitor import CollapseMonitor
from experiments.build import Components, make_teacher
from experiments.checks import TOLERANCE, ErrorBudget, require_agreement
from experiments.config import load
from experiments.run_state import RunState
from experiments.train import TrainingRun
from policy.algorithms.algorithms import make_algorithm
from policy.engine.weights import check_receipts, pack_weights
from policy.learner import Learner
from policy.model import load_model
from policy.rollout.dialogue import Conduct
from policy.rollout.worker import RolloutWorker
from simulator.dialogue import Speaker, Turn
from simulator.scenario import Split
from simulator.user import Reaction
from simulator.users import make_bank
from tests.test_training_step import SMALL, Kept
from tests.tiny_policy import NumberingUser, save_tiny_policy

ENGINES = [pytest.param("hf", id="hf"), pytest.param("vllm", id="vllm", marks=pytest.mark.engine)]


class CountingUser(NumberingUser):
    """Likes some lengths of replies better than others, so that siblings of a random policy fare differently."""

    async def react(self, dialogue, reply):
        change = len(reply) % 7 - 3
        return Reaction(turn=Turn(speaker=Speaker.USER, text="and then?", emotion=dialogue.emotion + change, change=change))


class OneScenario:
    """Whoever is asked for, the same: so prompts of one step begin like those of the step before."""

    def __init__(self, bank):
        self._scenario = bank.scenarios(Split.TRAIN)[0]

    def scenario(self, scenario_id):
        return self._scenario


class EnginePool:
    """A real worker with a real engine, in this process."""

    def __init__(self, config, folder, bank):
        self.loop, self.done = asyncio.new_event_loop(), []
        self.worker = RolloutWorker(
            config.rollout,
            config.policy,
            model_folder=folder,
            user_factory=CountingUser,
            scenarios=lambda: OneScenario(bank),
            seed=0,
            system_prompt="",
        )
        self.ask(self.worker.start())
        self.engine = self.worker._engine

    def ask(self, question):
        return self.loop.run_until_complete(question)

    def submit(self, tasks, *, lane=""):
        self.done += self.ask(self.worker.roll_out(list(tasks), Conduct()))

    def ready(self, num_groups, *, lane=""):
        taken, self.done = self.done[:num_groups], self.done[num_groups:]
        return taken

    def load_weights(self, weights, version):
        packed = pack_weights(weights, version=version)
        check_receipts([self.ask(self.worker.load_weights(packed))], packed)

    def score(self, token_ids):
        return [self.ask(self.worker.score(token_ids))]

    def stats(self):
        counts = ("tokens", "restarts", "dispatched", "lost", "retried", "in_flight")
        return dict.fromkeys((*(f"num_{name}" for name in counts), "rollout_s", "engine_busy_s"), 0.0)

    def user_counts(self, *, timeout_s=None):
        return {}


@pytest.fixture(params=ENGINES)
def training(request, tmp_path):
    """A run of a tiny policy, after its first step: nothing is wrong with it yet."""
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    config = load("smoke", [f"policy.model={folder}", f"policy.engine={request.param}", *SMALL, "learner.lr=0.005", "group_size=4"])
    model, tokenizer = load_model(folder)
    algorithm, bank = make_algorithm(config.algorithm), make_bank(config.simulator)
    parts = Components(
        bank=bank,
        user=CountingUser(),
        teacher=make_teacher(config, bank),
        algorithm=algorithm,
        learner=Learner(config.learner, algorithm, model),
        tokenizer=tokenizer,
        pool=EnginePool(config, folder, bank),
        collapse=CollapseMonitor(config.collapse),
        faults=ErrorBudget(config.rollout.max_error_share),
    )
    run = TrainingRun(config, parts, Kept(), RunState())
    try:
        metrics, _ = run.step()
        assert metrics["rollout/arrival_logprob_diff"] < 1e-4 and metrics["training/rollout_logprob_abs_diff_max"] < 1e-4
        assert parts.learner.policy_version == 1
        yield run
    finally:
        parts.pool.worker.close()
        parts.pool.loop.close()


def test_a_run_without_a_fault_goes_on(training):
    metrics, _ = training.step()
    assert metrics["rollout/arrival_logprob_diff"] < 1e-4 and metrics["training/rollout_logprob_abs_diff_max"] < 1e-4


def test_a_cache_that_outlives_its_weights_stops_the_run(training):
    engine = training.parts.pool.engine
    if engine.name == "hf":
        pytest.skip("the transformers engine remembers nothing between batches")
    engine._reset_cache = lambda: None
    training.step()  # samples by version 1 throughout; its update leaves version 2 with the prefixes of version 1
    with pytest.raises(RuntimeError, match=r"engines must sample by the learner's weights .* got logprobs .* nats apart on average"):
        training.step()


def test_a_skipped_update_stops_the_run_although_the_engine_acknowledges_it(training):
    training.parts.pool.engine._load = lambda weights: weights.digest()
    with pytest.raises(RuntimeError, match="weights of version 2 must reach every engine, got logprobs that differ from the learner's by"):
        training.step()


def test_an_update_that_nobody_acknowledges_stops_the_run(training):
    engine = training.parts.pool.engine
    version, taken = engine.policy_version, engine._load

    def load_and_forget(weights):
        engine._load = taken
        return 0

    engine._load = load_and_forget
    new = version + 1
    with pytest.raises(RuntimeError, match=rf"must hold policy version {new} with checksum \d+, got version {new} with 0; resume the run"):
        training.step()


def test_one_parameter_left_behind_on_the_way_is_in_the_checksum(training):
    """Each in turn stays as it was: an engine that is handed the old one acknowledges another checksum."""
    pool, learner = training.parts.pool, training.parts.learner
    before = pack_weights(learner.live_weights(), version=1)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(1.001)
    sent = pack_weights(learner.live_weights(), version=2)
    for name in sent.names:
        behind = pack_weights(((each, tensor) for each, tensor in sent.tensors()), version=2)
        behind.arrays[name] = before.arrays[name]
        with pytest.raises(RuntimeError, match=r"with checksum \d+, got version 2 with \d+"):
            check_receipts([pool.ask(pool.worker.load_weights(behind))], sent)


def test_one_matrix_that_the_loader_drops_after_its_checksum_stops_the_run(training):
    """The checksum is of what the loader was handed; what it really uses shows in the logprobs of the step's own dialogues."""
    engine = training.parts.pool.engine
    load_all = engine._load
    old = pack_weights(training.parts.learner.live_weights(), version=1)

    def drop_one(weights):
        checksum = load_all(weights)
        behind = pack_weights(weights.tensors(), version=weights.version)
        behind.arrays["lm_head.weight"] = old.arrays["lm_head.weight"]
        load_all(behind)
        return checksum

    engine._load = drop_one
    with pytest.raises(RuntimeError, match="weights of version 2 must reach every engine"):
        training.step()


def test_agreement_is_asked_for_where_both_sides_compute_exactly_and_in_turn():
    require_agreement(TOLERANCE / 2, policy_version=3, is_exact=True)
    require_agreement(float("nan"), policy_version=3, is_exact=True)
    require_agreement(1.0, policy_version=3, is_exact=False)
    with pytest.raises(RuntimeError, match=r"engines must sample by the learner's weights of version 3, got logprobs 0\.02 nats apart"):
        require_agreement(0.02, policy_version=3, is_exact=True)
