"""GPU benchmark: an optimiser step and sampling engines, on models of Qwen2.5's published shapes with random weights.

Source: Qwen2.5 technical report, arXiv:2412.15115, and the models' config.json; counting of arithmetic: PaLM, arXiv:2204.02311, appendix B.
"""

from __future__ import annotations

import asyncio
import copy
import platform
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from experiments.benchmarks.figures import figure, repeated
from experiments.run_folder import git_commit, versions
from policy.algorithms.algorithms import Grpo
from policy.batch import Batch, collate
from policy.config import EngineConfig, EngineDtype, EngineKind, GrpoConfig, LearnerConfig, PriorConfig
from policy.engine.engine import Request, Sampling
from policy.engine.factory import make_engine
from policy.learner import Learner
from policy.prior.prior import build_tokenizer
from policy.rollout.dialogue import PlainTask, Rollout, RolloutGroup
from simulator.dialogue import Dialogue, Outcome
from simulator.reward import Reward
from simulator.scenario import VANILLA, Split
from simulator.world import load_bank


def shape(
    hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocabulary: int = 151_936, *, tied: bool = True
) -> Qwen2Config:
    """Sizes of a decoder."""
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
    )


SHAPES = {
    "tiny": shape(64, 2, 2, 1, 128, 4096),
    "0.5b": shape(896, 24, 14, 2, 4864),
    "1.5b": shape(1536, 28, 12, 2, 8960),
    "3b": shape(2048, 36, 16, 2, 11_008),
    "7b": shape(3584, 28, 28, 4, 18_944, 152_064, tied=False),
}


def num_in_layers(config: Qwen2Config) -> int:
    """Parameters of all layers' matrices, each of which is multiplied with every token."""
    hidden = config.hidden_size
    kv = hidden * config.num_key_value_heads // config.num_attention_heads
    return int(config.num_hidden_layers * (2 * hidden * (hidden + kv) + 3 * hidden * config.intermediate_size))


def num_parameters(config: Qwen2Config) -> int:
    """All of them but norms and biases, which are below a thousandth."""
    return num_in_layers(config) + (1 if config.tie_word_embeddings else 2) * config.vocab_size * config.hidden_size


def update_flops(config: Qwen2Config, lengths: Sequence[int], num_trained: int) -> float:
    """Floating-point operations of one forward and backward pass: 6 for each matrix element and token.

    The output head counts for trained tokens alone, attention for the half that a causal mask leaves, recomputation not at all.

    Args:
        lengths: tokens of each sequence.
    """
    matrices = 6.0 * num_in_layers(config) * sum(lengths)
    head = 6.0 * config.vocab_size * config.hidden_size * num_trained
    attention = 6.0 * config.num_hidden_layers * config.hidden_size * sum(length * length for length in lengths)
    return matrices + head + attention


PEAK_FLOPS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bf16 operations per second by words of the card's name, from the makers' data sheets; the first match counts."""


def peak_flops(card: str) -> float | None:
    """Of a card by its name; None for an unknown one."""
    return next((flops for name, flops in PEAK_FLOPS.items() if all(word in card for word in name.split())), None)


def random_model(config: Qwen2Config, *, positions: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Qwen2ForCausalLM:
    """A model built on its device, always the same for one device."""
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    config.max_position_embeddings = positions
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen2ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


GIB = 2**30
GROUP_SIZE = 8
ENGINE_SHARE = 0.8
"""Of the card, for an engine that has it alone."""


def measure(options: Namespace) -> dict[str, Any]:
    """The requested figures: medians with their range, memory in GiB."""
    model_config, device = SHAPES[options.size], torch.device(options.device)
    card = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    peak = 1e12 * options.peak_tflops if options.peak_tflops else peak_flops(card)
    found: dict[str, Any] = {
        "commit": git_commit(),
        "versions": versions(),
        "card": card,
        "card_gib": torch.cuda.get_device_properties(device).total_memory / GIB if device.type == "cuda" else None,
        "peak_tflops": peak / 1e12 if peak else None,
        "model": {"size": options.size, "parameters": num_parameters(model_config)},
        "settings": {name: value for name, value in vars(options).items() if isinstance(value, int | float | str | bool)},
    }
    if not options.no_update:
        found["update"] = measure_update(options, model_config, device, peak)
    for kind in options.engine or ("hf", "vllm"):
        found[f"rollouts_{kind}"] = measure_rollouts(options, model_config, device, EngineKind(kind))
    return found


def measure_update(options: Namespace, model_config: Qwen2Config, device: torch.device, peak: float | None) -> dict[str, Any]:
    """Optimiser steps on whole batches."""
    batch = random_batch(rows=options.rows, tokens=options.tokens, vocabulary=model_config.vocab_size)
    config = LearnerConfig(
        lr=1e-6,
        micro_batch_rows=options.rows,
        micro_batch_tokens=options.micro_tokens,
        logit_chunk_mb=options.logit_chunk_mb,
        gradient_checkpointing=options.checkpointing,
        autocast=True,
        recompute_logprobs=True,
        device=str(device),
    )
    algorithm = Grpo(GrpoConfig())
    batch = algorithm.add_advantages(batch)
    with peak_gib(device) as highest:
        learner = Learner(config, algorithm, random_model(model_config, positions=options.tokens, device=device))

        def seconds_of_step(number: int) -> float:
            started = time.perf_counter()
            learner.update(batch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return time.perf_counter() - started

        seconds = repeated(seconds_of_step, options.repeats)
    lengths = batch.needed_B.tolist()
    flops = update_flops(model_config, lengths, batch.num_trained)
    # float32 weights, their gradients and AdamW's two moments: 16 bytes a parameter.
    needed = 16 * num_parameters(model_config) / GIB
    return {
        "tokens_per_s": asdict(figure(sum(lengths) / each for each in seconds)),
        "model_flop_utilisation": asdict(figure(flops / each / peak for each in seconds)) if peak else None,
        "tflops_per_s": asdict(figure(flops / each / 1e12 for each in seconds)),
        "peak_gib": highest[0] if highest else None,
        "needed_gib": needed,
        "peak_over_needed": highest[0] / needed if highest else None,
    }


def measure_rollouts(options: Namespace, model_config: Qwen2Config, device: torch.device, kind: EngineKind) -> dict[str, Any]:
    """Replies of one length to prompts of another, all at once; sampled tokens per second."""
    new, prompt = options.new_tokens, max(2, options.tokens - options.new_tokens)
    dtype = EngineDtype.BFLOAT16
    with tempfile.TemporaryDirectory(prefix="attune-bench-") as place, peak_gib(device) as highest:
        # A small tokenizer of the built-in world in place of Qwen's.
        tokenizer = build_tokenizer(PriorConfig(), (scenario.background for scenario in load_bank().scenarios(Split.TRAIN)))
        model = random_model(model_config, positions=prompt + new, device=device, dtype=torch.bfloat16)
        model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
        folder = Path(place)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        del model
        if device.type == "cuda":
            torch.cuda.empty_cache()
        config = EngineConfig(engine=kind, dtype=dtype, max_running=options.rows, gpu_memory_share=ENGINE_SHARE)
        engine = make_engine(config, folder, max_context=prompt + new)

        def tokens_per_s(seed: int) -> float:
            chance, sampling = np.random.default_rng(seed), Sampling(max_tokens=new)
            requests = [
                Request(prompt_ids=chance.integers(10, 500, prompt).tolist(), sampling=sampling, seed=1000 * seed + i)
                for i in range(options.rows)
            ]
            asyncio.run(engine.reset_cache())
            started = time.perf_counter()
            completions = asyncio.run(engine.generate_all(requests))
            return sum(len(completion.token_ids) for completion in completions) / (time.perf_counter() - started)

        try:
            speeds = repeated(tokens_per_s, options.repeats)
        finally:
            engine.close()
    # vLLM fills its share of the card with a cache.
    gib = highest[0] if highest and kind is EngineKind.HF else None
    return {"tokens_per_s": asdict(figure(speeds)), "peak_gib": gib, "needed_gib": 2 * num_parameters(model_config) / GIB}


@contextmanager
def peak_gib(device: torch.device) -> Iterator[list[float]]:
    """Peak memory of torch within the context, in the list at its end; nothing on a CPU."""
    found: list[float] = []
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    yield found
    if device.type == "cuda":
        found.append(torch.cuda.max_memory_allocated(device) / GIB)
        torch.cuda.empty_cache()


def random_batch(*, rows: int, tokens: int, vocabulary: int, seed: int = 0) -> Batch:
    """Dialogues of random tokens, of which every other 32 were sampled, with rewards that differ."""
    chance = np.random.default_rng(seed)
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    mask_T = np.arange(tokens) // 32 % 2 == (1 if tokens > 32 else 0)
    mask_T[0] = False
    rollouts = [
        Rollout(
            dialogue=Dialogue(scenario=scenario, difficulty=VANILLA, seed=i, outcome=Outcome.MAX_TURNS),
            token_ids=chance.integers(0, vocabulary, tokens).astype(np.int32),
            role_ids=mask_T.astype(np.int8),
            turn_ids=np.zeros(tokens, dtype=np.int16),
            loss_mask=mask_T,
            rollout_logprobs=np.where(mask_T, -np.log(vocabulary), 0.0).astype(np.float32),
            reward=Reward(total=float(chance.random())),
            turn_rewards=(),
            policy_versions=(0, 0),
        )
        for i in range(rows)
    ]
    groups = [rollouts[first : first + GROUP_SIZE] for first in range(0, rows, GROUP_SIZE)]
    tasks = [
        PlainTask(uid=str(i), scenario_id=scenario.scenario_id, difficulty=VANILLA, group_size=len(group), seed=i)
        for i, group in enumerate(groups)
    ]
    return collate([RolloutGroup(task=task, rollouts=tuple(group)) for task, group in zip(tasks, groups, strict=True)])
