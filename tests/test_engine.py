"""Both engines against transformers: the same contract, the same numbers. vLLM runs for real, in this process and in its own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import chisquare
from transformers import AutoTokenizer

from policy.config import EngineConfig, EngineKind
from policy.engine.engine import Completion, Engine, EngineError, Request, Sampling
from policy.engine.factory import make_engine
from policy.engine.weights import PackedWeights, check_acks, pack_weights
from policy.model import load_tokenizer
from tests.tiny_policy import load, logprobs_of, save_tiny_policy

PROMPT = list(range(40, 75))
SAMPLING = Sampling(max_tokens=12, temperature=1.0)
ENDS = [0, 7]
"""Ids that end a reply: <|end|>, and another that the folder names."""
ENGINES = [pytest.param("hf", id="hf"), pytest.param("vllm", id="vllm", marks=pytest.mark.engine)]
OWN_PROCESS = pytest.param("own process", id="vllm in another process", marks=pytest.mark.engine)
NEEDS_VLLM = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Of a model with an untied head that ends replies by two tokens."""
    folder = save_tiny_policy(tmp_path_factory.mktemp("policy"), hidden=64, layers=1)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "eos_token_id": ENDS}), encoding="utf-8")
    return folder


@pytest.fixture(scope="session", params=[*ENGINES, OWN_PROCESS])
def engine(request, folder):
    """Holds the folder's weights at the start of each test, as version 0."""
    own_process = request.param == "own process"
    config = EngineConfig(engine=EngineKind.VLLM if own_process else EngineKind(request.param), engine_process=own_process)
    engine = make_engine(config, folder, max_context=256)
    yield engine
    engine.close()


def apart(logprobs, expected):
    return (torch.tensor(logprobs) - expected).abs().max().item()


def sample(engine, *, seeds, prompt_ids=PROMPT, sampling=SAMPLING):
    async def all_of_them():
        return await asyncio.gather(*(engine.generate(prompt_ids, sampling=sampling, seed=seed) for seed in seeds))

    return asyncio.run(all_of_them())


def send(engine, model, version):
    """Loads the model's weights and checks the acknowledgement."""
    weights = pack_weights(model.named_parameters(), version=version)
    check_acks([asyncio.run(engine.load_weights(weights))], weights)


# Sampling --------------------------------------------------------------------------------------------------------------------------


def test_logprobs_are_those_of_the_full_vocabulary_at_the_temperature(engine, folder):
    model = load(folder)
    for temperature in (1.0, 0.7):
        for completion in sample(engine, seeds=range(4), sampling=Sampling(max_tokens=12, temperature=temperature)):
            assert apart(completion.logprobs, logprobs_of(model, PROMPT, completion.token_ids, temperature=temperature)) < 1e-5


def test_prompts_of_different_length_share_a_batch_and_one_that_does_not_fit_fails_alone(engine, folder):
    model = load(folder)
    requests = [Request(prompt_ids=PROMPT[:length], sampling=SAMPLING, seed=length) for length in (1, 7, 35)]
    for request, completion in zip(requests, asyncio.run(engine.generate_all(requests)), strict=True):
        assert apart(completion.logprobs, logprobs_of(model, request.prompt_ids, completion.token_ids)) < 1e-5

    async def both():
        asked = [engine.generate(prompt_ids, sampling=SAMPLING, seed=0) for prompt_ids in (PROMPT * 9, PROMPT)]
        return await asyncio.gather(*asked, return_exceptions=True)

    too_long, fine = asyncio.run(both())
    assert isinstance(too_long, ValueError) and len(fine.token_ids) == 12


def test_a_seed_samples_the_same_in_any_batch_and_another_differently(engine):
    [alone] = sample(engine, seeds=[3])
    in_company = sample(engine, seeds=range(6))
    assert in_company[3].token_ids == alone.token_ids and len({completion.token_ids for completion in in_company}) == 6


def test_sampling_follows_the_distribution_and_greedy_takes_the_likeliest(engine, folder):
    """2000 draws of one token: the 20 likeliest come up as often as they should."""
    expected_V = load(folder)(torch.tensor([PROMPT[:4]])).logits[0, -1].softmax(dim=-1)
    requests = [Request(prompt_ids=PROMPT[:4], sampling=Sampling(max_tokens=1), seed=seed) for seed in range(2000)]
    drawn = torch.tensor([completion.token_ids[0] for completion in asyncio.run(engine.generate_all(requests))])
    top = expected_V.topk(20)
    observed = [int((drawn == token).sum()) for token in top.indices]
    expected = [2000 * float(share) for share in top.values]
    assert chisquare([*observed, 2000 - sum(observed)], [*expected, 2000 - sum(expected)]).pvalue > 2e-4
    [greedy] = sample(engine, seeds=[0], prompt_ids=PROMPT[:4], sampling=Sampling(max_tokens=1, temperature=0.0))
    assert greedy.token_ids == (int(expected_V.argmax()),)


def test_a_reply_ends_with_its_end_of_turn_or_where_the_folder_says_or_by_length(engine, folder):
    model = load(folder)
    model.lm_head.weight[:] = 0  # every token is as likely as any other
    send(engine, model, 1)
    completions = sample(engine, seeds=range(200), sampling=Sampling(max_tokens=40))
    send(engine, load(folder), 0)
    stopped = [completion for completion in completions if completion.finish_reason == "stop"]
    assert {completion.token_ids[-1] for completion in stopped} == set(ENDS)
    assert all(not set(ENDS) & set(completion.token_ids[:-1]) and "<|end|>" not in completion.text for completion in completions)
    assert all(len(completion.token_ids) == 40 for completion in completions if completion.finish_reason == "length")
    assert stopped[0].logprobs[0] == pytest.approx(-math.log(1000), abs=1e-5)


def test_an_engine_splits_words_as_the_learner_does(engine, folder):
    """The folder names the generic class, in whose place AutoTokenizer puts Qwen2's own, which splits otherwise and composes accents."""
    text = "Thank you for the cafe\u0301"
    expected = load_tokenizer(folder)(text).input_ids
    assert engine.tokenizer(text).input_ids == expected != AutoTokenizer.from_pretrained(folder)(text).input_ids


def test_a_cancelled_request_leaves_the_engine_usable_and_a_whole_dialogue_can_be_scored(engine, folder):
    async def cancel():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await engine.generate(PROMPT, sampling=Sampling(max_tokens=200), seed=0)
        return await engine.generate(PROMPT, sampling=SAMPLING, seed=0)

    assert len(asyncio.run(cancel()).token_ids) == 12
    ids = (PROMPT * 8)[:256]
    assert apart(asyncio.run(engine.score(ids)), logprobs_of(load(folder), ids[:1], ids[1:])) < 1e-5


# New weights -----------------------------------------------------------------------------------------------------------------------


def change_each_parameter(engine, model):
    generator, before = torch.Generator().manual_seed(0), asyncio.run(engine.score(PROMPT))
    for version, parameter in enumerate(model.parameters(), start=1):
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        send(engine, model, version)
        after = asyncio.run(engine.score(PROMPT))
        assert apart(after, logprobs_of(model, PROMPT[:1], PROMPT[1:])) < 1e-5 < apart(after, torch.tensor(before))
        before = after


def test_every_parameter_arrives(engine, folder):
    change_each_parameter(engine, load(folder))
    send(engine, load(folder), 0)


@pytest.mark.parametrize("kind", ENGINES)
def test_every_parameter_arrives_where_the_head_is_the_embedding_and_stored_too(kind, tmp_path):
    folder = save_tiny_policy(tmp_path, tied=True, hidden=32, layers=1)
    tensors = load_file(folder / "model.safetensors")
    head_too = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(head_too, folder / "model.safetensors", metadata={"format": "pt"})
    engine = make_engine(EngineConfig(engine=EngineKind(kind)), folder, max_context=64)
    try:
        change_each_parameter(engine, load(folder))
    finally:
        engine.close()


def test_a_reply_under_way_is_finished_with_the_weights_that_began_it_and_no_cached_prefix_survives(engine, folder):
    old, new = load(folder), load(folder)
    new.model.norm.weight.mul_(3)
    new.model.layers[0].self_attn.v_proj.weight.mul_(-1)

    async def overlap():
        first = asyncio.create_task(engine.generate(PROMPT * 3, sampling=Sampling(max_tokens=100), seed=0))
        await asyncio.sleep(0.02)
        ack = await engine.load_weights(pack_weights(new.named_parameters(), version=6))
        second = await engine.generate(PROMPT * 3, sampling=SAMPLING, seed=0)
        await engine.load_weights(pack_weights(old.named_parameters(), version=0))
        return await first, ack, second

    first, ack, second = asyncio.run(overlap())
    assert (first.policy_version, ack.version, second.policy_version) == (0, 6, 6)
    assert apart(first.logprobs, logprobs_of(old, PROMPT * 3, first.token_ids)) < 1e-5
    assert apart(second.logprobs, logprobs_of(new, PROMPT * 3, second.token_ids)) < 1e-5


def test_an_engine_that_slept_wakes_with_the_new_weights(engine, folder):
    model = load(folder)
    asyncio.run(engine.sleep())
    assert engine.name == "hf" or engine._engine.is_sleeping()
    model.model.norm.weight.mul_(3)
    send(engine, model, 1)
    (reply,) = sample(engine, seeds=[0])
    assert reply.policy_version == 1 and apart(reply.logprobs, logprobs_of(model, PROMPT, reply.token_ids)) < 1e-5
    send(engine, load(folder), 0)


def test_weights_that_miss_a_parameter_are_refused_and_nothing_changes(engine, folder):
    before, named = asyncio.run(engine.score(PROMPT)), list(load(folder).named_parameters())
    for missing in (named[0], named[-1]):
        with pytest.raises(ValueError, match="every parameter"):
            asyncio.run(engine.load_weights(pack_weights([each for each in named if each is not missing], version=9)))
    assert named[-1][0] == "lm_head.weight"
    assert asyncio.run(engine.score(PROMPT)) == pytest.approx(before, abs=1e-6) and engine.policy_version == 0


@pytest.mark.engine
@NEEDS_VLLM
def test_an_engine_of_two_ranks_takes_weights_on_both(tmp_path):
    """Each rank is a process with half of every matrix; on a CPU vLLM joins them by gloo. Takes 15 s: both import vLLM."""
    folder = save_tiny_policy(tmp_path, hidden=64, layers=1)
    model = load(folder)
    engine = make_engine(EngineConfig(engine=EngineKind.VLLM, tensor_parallel=2), folder, max_context=128)
    try:
        for parameter in model.parameters():
            parameter.mul_(1.05)
        send(engine, model, 1)
        assert apart(asyncio.run(engine.score(PROMPT)), logprobs_of(model, PROMPT[:1], PROMPT[1:])) < 1e-5
    finally:
        engine.close()


@pytest.mark.engine
@NEEDS_VLLM
def test_a_cache_too_small_for_a_dialogue_is_refused(tmp_path):
    folder = save_tiny_policy(tmp_path, hidden=128, layers=3)  # 3 MiB for 1000 tokens
    with pytest.raises(ValueError, match=r"policy\.kv_cache_mb"):
        make_engine(EngineConfig(engine=EngineKind.VLLM, kv_cache_mb=1), folder, max_context=1000)


# The thread ------------------------------------------------------------------------------------------------------------------------


class Stoppable(Engine):
    """Answers every request in its next step, and stops where a test wants it."""

    name = "stoppable"

    def __init__(self, *, load_timeout_s: float = 5.0) -> None:
        self.may_step, self.may_load = threading.Event(), threading.Event()
        self.may_step.set()
        self.may_load.set()
        self._admitted: list[int] = []
        super().__init__(start_timeout_s=5.0, load_timeout_s=load_timeout_s)

    def _start(self):
        self.tokenizer = None

    def _admit(self, request_id, request):
        self._admitted.append(request_id)

    def _step(self):
        self.may_step.wait()
        done, self._admitted = self._admitted, []
        reply = Completion(token_ids=(1,), logprobs=(-1.0,), text="a", finish_reason="stop", policy_version=self.policy_version)
        return [(request_id, reply) for request_id in done]

    def _drop(self, request_ids):
        self._admitted = [request_id for request_id in self._admitted if request_id not in request_ids]

    def _expected_names(self):
        return []

    def _load(self, weights):
        self.may_load.wait()
        return 7

    def _score(self, token_ids):
        self.may_load.wait()
        return [-1.0] * (len(token_ids) - 1)

    def _reset_cache(self):
        """There is none."""

    _stop = _sleep = _reset_cache


NO_WEIGHTS = PackedWeights(version=3, arrays={}, dtypes={}, checksum=0)


def ask(engine):
    return engine.generate([1, 2], sampling=Sampling(max_tokens=1), seed=0)


def test_an_engine_in_an_endless_step_says_for_how_long_and_one_at_rest_is_not_stuck():
    engine = Stoppable()
    assert engine.stuck_s == 0.0
    engine.may_step.clear()

    async def run():
        reply = asyncio.create_task(ask(engine))
        while engine.stuck_s < 0.05:
            await asyncio.sleep(0.01)
        engine.may_step.set()
        return await reply

    assert asyncio.run(run()).text == "a" and engine.stuck_s == 0.0
    engine.close()


@pytest.mark.parametrize("broken", ["_step", "_admit"])
def test_a_broken_engine_fails_every_request_that_waits_and_every_later_one(broken, monkeypatch):
    engine = Stoppable()
    monkeypatch.setattr(engine, broken, lambda *_: 1 / 0)
    requests = [Request(prompt_ids=[1], sampling=SAMPLING, seed=seed) for seed in range(3)]
    for _ in range(2):
        with pytest.raises(EngineError) as caught:
            asyncio.run(engine.generate_all(requests))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert engine.broken and engine.stuck_s == 0.0
    engine.close()


def test_an_engine_that_fails_half_way_through_new_weights_samples_nothing_more(monkeypatch):
    engine = Stoppable()
    monkeypatch.setattr(engine, "_load", lambda weights: 1 / 0)
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        asyncio.run(engine.load_weights(NO_WEIGHTS))
    with pytest.raises(EngineError):
        asyncio.run(ask(engine))
    engine.close()


def test_a_call_that_takes_too_long_is_the_engines_failure_and_names_the_setting():
    engine = Stoppable(load_timeout_s=0.1)
    engine.may_load.clear()
    for call in (engine.load_weights(NO_WEIGHTS), engine.score([1, 2])):
        with pytest.raises(EngineError, match=r"policy\.load_timeout_s=0\.1 s"):
            asyncio.run(call)
    engine.may_load.set()
    engine.close()
