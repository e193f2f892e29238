"""Both engines against transformers: the same contract, the same numbers. vLLM runs for real, in this process and beside it."""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import sys
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from policy.config import EngineConfig, EngineDtype, EngineKind
from policy.engine.engine import EngineError, Request, Sampling
from policy.engine.factory import make_engine, vllm_remedy
from policy.engine.vllm import import_vllm, too_little_memory
from policy.engine.weights import pack_weights
from policy.model import load_tokenizer
from tests.tiny_policy import save_tiny_policy

PROMPT = list(range(40, 75))
SAMPLING = Sampling(max_tokens=12, temperature=1.0)
ENGINES = [pytest.param("hf", id="hf"), pytest.param("vllm", id="vllm", marks=pytest.mark.engine)]
OWN_PROCESS = pytest.param("own process", id="vllm in a process of its own", marks=pytest.mark.engine)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module", params=[*ENGINES, OWN_PROCESS])
def engine(request, folder):
    own_process = request.param == "own process"
    config = EngineConfig(engine=EngineKind.VLLM if own_process else EngineKind(request.param), engine_process=own_process)
    engine = make_engine(config, folder, max_context=256)
    yield engine
    engine.close()


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)


def logprobs_of(model, prompt_ids, token_ids, *, temperature=1.0):
    ids = torch.tensor([*prompt_ids, *token_ids])
    logprobs_TV = (model(ids[None]).logits[0] / temperature).log_softmax(dim=-1)
    return logprobs_TV[len(prompt_ids) - 1 : -1].gather(1, ids[len(prompt_ids) :, None])[:, 0]


def apart(logprobs, expected):
    return (torch.tensor(logprobs) - expected).abs().max().item()


def sample(engine, *, seeds, prompt_ids=PROMPT, sampling=SAMPLING):
    async def all_of_them():
        return await asyncio.gather(*(engine.generate(prompt_ids, sampling=sampling, seed=seed) for seed in seeds))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_full_vocabulary_at_the_temperature(engine, folder, temperature):
    model = load(folder)
    for completion in sample(engine, seeds=range(8), sampling=Sampling(max_tokens=12, temperature=temperature)):
        assert apart(completion.logprobs, logprobs_of(model, PROMPT, completion.token_ids, temperature=temperature)) < 1e-5


def test_an_engine_splits_words_as_the_learner_does(engine, folder):
    """The folder names the generic class, in whose place AutoTokenizer puts Qwen2's own, which splits otherwise and composes accents."""
    text = "Thank you for the cafe\u0301"
    expected = load_tokenizer(folder)(text).input_ids
    assert engine.tokenizer(text).input_ids == expected
    assert AutoTokenizer.from_pretrained(folder)(text).input_ids != expected


def test_prompts_of_different_length_share_a_batch(engine, folder):
    model = load(folder)
    requests = [Request(prompt_ids=PROMPT[:length], sampling=SAMPLING, seed=length) for length in (1, 7, 35)]
    completions = asyncio.run(engine.generate_all(requests))
    for request, completion in zip(requests, completions, strict=True):
        assert apart(completion.logprobs, logprobs_of(model, request.prompt_ids, completion.token_ids)) < 1e-5


def test_a_seed_samples_the_same_whoever_shares_the_batch(engine):
    [alone] = sample(engine, seeds=[3])
    _, in_company, _ = sample(engine, seeds=[2, 3, 4])
    assert alone.token_ids == in_company.token_ids


def test_seeds_sample_differently(engine):
    assert len({completion.token_ids for completion in sample(engine, seeds=range(6))}) == 6


def test_greedy_takes_the_likeliest(engine, folder):
    [completion] = sample(engine, seeds=[0], sampling=Sampling(max_tokens=1, temperature=0.0))
    assert completion.token_ids == (int(load(folder)(torch.tensor([PROMPT])).logits[0, -1].argmax()),)


def test_sampling_follows_the_distribution(engine, folder):
    """2000 draws of one token: the 20 likeliest come up as often as they should (chi-square of 20 degrees of freedom; 50 has p = 2e-4)."""
    expected_V = load(folder)(torch.tensor([PROMPT[:4]])).logits[0, -1].softmax(dim=-1)
    requests = [Request(prompt_ids=PROMPT[:4], sampling=Sampling(max_tokens=1), seed=seed) for seed in range(2000)]
    drawn = torch.tensor([completion.token_ids[0] for completion in asyncio.run(engine.generate_all(requests))])
    top = expected_V.topk(20)
    observed = torch.tensor([float((drawn == token).sum()) for token in top.indices])
    counts = torch.cat([observed, 2000 - observed.sum(0, keepdim=True)])
    wanted = 2000 * torch.cat([top.values, 1 - top.values.sum(0, keepdim=True)])
    assert ((counts - wanted) ** 2 / wanted).sum().item() < 50


def test_reply_stops_at_its_end_of_turn_and_says_so(engine, folder):
    model = load(folder)
    model.lm_head.weight[:] = 0
    model.model.norm.weight[:] = 0
    asyncio.run(engine.load_weights(pack_weights(model.named_parameters(), version=1)))
    try:
        completions = sample(engine, seeds=range(200), sampling=Sampling(max_tokens=40))
    finally:
        asyncio.run(engine.load_weights(pack_weights(load(folder).named_parameters(), version=0)))
    end = 0
    stopped = [completion for completion in completions if completion.finish_reason == "stop"]
    assert stopped
    assert all(completion.token_ids[-1] == end and end not in completion.token_ids[:-1] for completion in stopped)
    assert all(len(c.token_ids) == 40 and end not in c.token_ids for c in completions if c.finish_reason == "length")
    assert all("<|end|>" not in completion.text for completion in completions)
    assert stopped[0].logprobs[0] == pytest.approx(-math.log(1000), abs=1e-5)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_reply_also_ends_where_the_folder_says(kind, tmp_path):
    folder = save_tiny_policy(tmp_path / "policy")
    path = folder / "generation_config.json"
    other = 7
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "eos_token_id": [0, other]}), encoding="utf-8")
    model = load(folder)
    model.lm_head.weight[:] = 0
    model.model.norm.weight[:] = 0
    engine = make_engine(EngineConfig(engine=EngineKind(kind)), folder, max_context=256)
    try:
        asyncio.run(engine.load_weights(pack_weights(model.named_parameters(), version=1)))
        completions = sample(engine, seeds=range(200), sampling=Sampling(max_tokens=40))
    finally:
        engine.close()
    ends = [completion.token_ids[-1] for completion in completions if completion.finish_reason == "stop"]
    assert {0, other} == set(ends)
    assert all(not {0, other} & set(completion.token_ids[:-1]) for completion in completions)


def test_reply_cut_by_length_says_so(engine):
    [completion] = sample(engine, seeds=[1], sampling=Sampling(max_tokens=3))
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == len(completion.logprobs) == 3


def follow_every_parameter(engine, folder):
    """Changes one parameter after the other and yields how far the engine's logprobs are from the model's, and how far they moved."""
    model, generator = load(folder), torch.Generator().manual_seed(0)
    before = asyncio.run(engine.score(PROMPT))
    for version, (_, parameter) in enumerate(model.named_parameters(), start=1):
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
        weights = pack_weights(model.named_parameters(), version=version)
        receipt = asyncio.run(engine.load_weights(weights))
        assert (receipt.version, receipt.checksum) == (version, weights.digest())
        after = asyncio.run(engine.score(PROMPT))
        yield apart(after, logprobs_of(model, PROMPT[:1], PROMPT[1:])), apart(after, torch.tensor(before))
        before = after


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("head", ["untied", "tied", "tied and stored"])
def test_every_parameter_arrives(kind, head, tmp_path):
    folder = save_tiny_policy(tmp_path, tied=head != "untied", layers=2)
    if head == "tied and stored":
        tensors = load_file(folder / "model.safetensors")
        head_too = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
        save_file(head_too, folder / "model.safetensors", metadata={"format": "pt"})
    engine = make_engine(EngineConfig(engine=EngineKind(kind)), folder, max_context=64)
    try:
        for error, moved in follow_every_parameter(engine, folder):
            assert error < 1e-5
            assert moved > 1e-5
    finally:
        engine.close()


def test_cached_prefixes_do_not_survive_new_weights(engine, folder):
    sample(engine, seeds=[0], prompt_ids=PROMPT * 3)
    model = load(folder)
    model.model.layers[0].self_attn.v_proj.weight.mul_(-1)
    asyncio.run(engine.load_weights(pack_weights(model.named_parameters(), version=5)))
    [completion] = sample(engine, seeds=[0], prompt_ids=PROMPT * 3)
    asyncio.run(engine.load_weights(pack_weights(load(folder).named_parameters(), version=0)))
    assert completion.policy_version == 5
    assert apart(completion.logprobs, logprobs_of(model, PROMPT * 3, completion.token_ids)) < 1e-5


def test_reply_under_way_is_finished_with_the_weights_that_began_it(engine, folder):
    old, new = load(folder), load(folder)
    new.model.norm.weight.mul_(3)

    async def overlap():
        first = asyncio.create_task(engine.generate(PROMPT, sampling=Sampling(max_tokens=100), seed=0))
        await asyncio.sleep(0.02)
        receipt = await engine.load_weights(pack_weights(new.named_parameters(), version=6))
        second = await engine.generate(PROMPT, sampling=SAMPLING, seed=0)
        await engine.load_weights(pack_weights(old.named_parameters(), version=0))
        return await first, receipt, second

    first, receipt, second = asyncio.run(overlap())
    assert (first.policy_version, receipt.version, second.policy_version) == (0, 6, 6)
    assert apart(first.logprobs, logprobs_of(old, PROMPT, first.token_ids)) < 1e-5
    assert apart(second.logprobs, logprobs_of(new, PROMPT, second.token_ids)) < 1e-5


def test_weights_that_miss_a_parameter_are_refused_and_nothing_changes(engine, folder):
    before = asyncio.run(engine.score(PROMPT))
    weights = pack_weights(list(load(folder).named_parameters())[1:], version=9)
    with pytest.raises(ValueError, match="every parameter"):
        asyncio.run(engine.load_weights(weights))
    assert asyncio.run(engine.score(PROMPT)) == pytest.approx(before, abs=1e-6)
    assert engine.policy_version == 0


def test_weights_with_nan_never_leave_the_trainer():
    with pytest.raises(ValueError, match="finite"):
        pack_weights([("w", torch.tensor([1.0, math.nan]))], version=1)


def test_checksum_sees_every_bit_and_the_name():
    def packed(name, values):
        return pack_weights([(name, torch.tensor(values))], version=1).digest()

    assert packed("w", [1.0, 2.0]) == packed("w", [1.0, 2.0])
    assert len({packed("w", [1.0, 2.0]), packed("v", [1.0, 2.0]), packed("w", [2.0, 1.0]), packed("w", [[1.0], [2.0]])}) == 4


def test_request_given_up_leaves_the_engine_usable(engine):
    async def give_up():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await engine.generate(PROMPT, sampling=Sampling(max_tokens=200), seed=0)
        return await engine.generate(PROMPT, sampling=SAMPLING, seed=0)

    assert len(asyncio.run(give_up()).token_ids) == 12


def test_prompt_that_does_not_fit_fails_alone(engine):
    async def both():
        asked = [engine.generate(prompt_ids, sampling=SAMPLING, seed=0) for prompt_ids in (PROMPT * 9, PROMPT)]
        return await asyncio.gather(*asked, return_exceptions=True)

    too_long, fine = asyncio.run(both())
    assert isinstance(too_long, ValueError)
    assert len(fine.token_ids) == 12


def test_whole_dialogue_can_be_scored(engine, folder):
    ids = (PROMPT * 8)[:256]
    assert apart(asyncio.run(engine.score(ids)), logprobs_of(load(folder), ids[:1], ids[1:])) < 1e-5


@pytest.mark.parametrize("kind", ENGINES)
def test_broken_engine_fails_everyone_who_waits_and_everyone_after(kind, folder, monkeypatch):
    engine = make_engine(EngineConfig(engine=EngineKind(kind)), folder, max_context=64)

    def burn():
        raise ZeroDivisionError("the step broke")

    monkeypatch.setattr(engine, "_step", burn)
    for _ in range(2):
        with pytest.raises(EngineError) as caught:
            sample(engine, seeds=[0], sampling=Sampling(max_tokens=4))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    engine.close()


def test_engine_that_breaks_while_taking_requests_up_leaves_nobody_waiting(folder, monkeypatch):
    engine = make_engine(EngineConfig(engine=EngineKind.HF), folder, max_context=64)

    def burn(request_id, request):
        raise ZeroDivisionError("the door broke")

    monkeypatch.setattr(engine, "_admit", burn)
    requests = [Request(prompt_ids=PROMPT, sampling=Sampling(max_tokens=4), seed=seed) for seed in range(3)]
    with pytest.raises(EngineError):
        asyncio.run(engine.generate_all(requests))
    assert engine.broken
    engine.close()


def test_missing_model_folder_is_refused_by_the_name_of_the_machine(tmp_path):
    message = (
        rf"policy\.model must .* got '.*nowhere', which is none on {re.escape(socket.gethostname())}; it must be at this path on every"
    )
    with pytest.raises(ValueError, match=message):
        make_engine(EngineConfig(engine=EngineKind.HF), tmp_path / "nowhere", max_context=64)


def test_dialogues_longer_than_the_model_is_made_for_are_refused(folder):
    with pytest.raises(ValueError, match=r"rollout\.max_context must be at most the 1024 tokens that the model is made for, got 2000"):
        make_engine(EngineConfig(engine=EngineKind.HF), folder, max_context=2000)


@pytest.mark.engine
def test_cache_too_small_for_a_dialogue_is_refused(folder):
    with pytest.raises(ValueError, match=r"policy\.kv_cache_mb must hold a whole dialogue"):
        make_engine(EngineConfig(engine=EngineKind.VLLM, kv_cache_mb=1), folder, max_context=1000)


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        (EngineDtype.FLOAT32, {}, "ieee"),
        (EngineDtype.FLOAT32, {"TRITON_F32_DEFAULT": "tf32x3"}, "tf32x3"),
        (EngineDtype.BFLOAT16, {}, None),
        (None, {}, None),
    ],
)
def test_triton_multiplies_float32_exactly_where_an_engine_computes_in_it(dtype, given, expected, monkeypatch):
    monkeypatch.setattr("os.environ", environment := dict(given))
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    import_vllm(dtype)
    assert environment.get("TRITON_F32_DEFAULT") == expected


@pytest.mark.parametrize(
    ("said", "on_cpu", "share", "expected"),
    [
        ("0.1 GiB KV cache is needed, which is larger than the available", True, 0.5, "policy.kv_cache_mb must hold a whole dialogue"),
        ("0.1 GiB KV cache is needed, which is larger than the available", False, 0.5, "policy.gpu_memory_share must be free"),
        ("0.1 GiB KV cache is needed, which is larger than the available", False, 0, "policy.kv_cache_mb must hold a whole dialogue"),
        ("No available memory for the cache blocks.", False, 0.5, "policy.gpu_memory_share must be free"),
        ("Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than", False, 0.5, "policy.gpu_memory_share must be free"),
        ("CUDA out of memory. Tried to allocate 9.00 GiB.", False, 0, "policy.kv_cache_mb must hold a whole dialogue"),
        ("block_size must be a power of two", False, 0.5, ""),
    ],
)
def test_too_little_memory_is_told_by_the_setting_that_holds_on_the_platform(said, on_cpu, share, expected):
    rule = too_little_memory(ValueError(said), EngineConfig(gpu_memory_share=share), on_cpu=on_cpu)
    assert rule.startswith(expected) and bool(rule) == bool(expected)


@pytest.mark.parametrize(("version", "expected"), [("2.13.0+cpu", "cpu"), ("2.13.0", "gpu"), ("2.13.0+cu130", "gpu")])
def test_vllm_is_to_be_installed_for_what_torch_is_built_for(version, expected, monkeypatch):
    monkeypatch.setattr("policy.engine.factory.metadata.version", {"torch": version}.__getitem__)
    assert vllm_remedy() == f"pip install -r requirements/{expected}.txt"


def test_missing_vllm_falls_back_in_auto_and_is_refused_when_asked_for(folder, monkeypatch, caplog):
    def missing(dtype):
        raise ImportError("No module named 'vllm'")

    monkeypatch.setattr("policy.engine.vllm.import_vllm", missing)
    with pytest.raises(ValueError, match=r"policy\.engine must .*; pip install -r requirements/(cpu|gpu)\.txt"):
        make_engine(EngineConfig(engine=EngineKind.VLLM), folder, max_context=64)
    engine = make_engine(EngineConfig(engine=EngineKind.AUTO), folder, max_context=64)
    engine.close()
    assert engine.name == "hf"
    assert [record.message for record in caplog.records].count(
        "vLLM cannot be imported (No module named 'vllm'): rolling out with the slower transformers engine"
    ) == 1
