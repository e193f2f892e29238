"""`make bench-gpu`: an update and rollouts of a Qwen2.5-shaped model with random weights, in bf16, on one GPU; bench_gpu.json.

Tokens per second, model FLOP utilisation and memory against the necessary. The update is `policy.learner`'s with `learner.autocast` and
float32 weights, the engines are those of rollouts. On a CPU it runs with --size tiny, as a test does.

Source: Qwen2.5 technical report, arXiv:2412.15115, and the models' config.json; counting of arithmetic: PaLM, arXiv:2204.02311, appendix B.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import json
import platform
import sys
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

from experiments.benchmarks.figures import Figure, make_task, repeated
from experiments.run_folder import git_commit
from policy.algorithms.algorithms import Grpo
from policy.batch import Batch, collate
from policy.config import EngineConfig, EngineDtype, EngineKind, GrpoConfig, LearnerConfig
from policy.engine.engine import Request, Sampling
from policy.engine.factory import make_engine
from policy.learner import Learner
from policy.prior import PriorConfig
from policy.prior.prior import build_tokenizer
from policy.rollout.dialogue import Rollout, RolloutGroup
from policy.versions import versions
from simulator.dialogue import Dialogue, Outcome
from simulator.files import ExitCode, write_whole
from simulator.options import at_least, finite
from simulator.reward import Reward
from simulator.scenario import VANILLA, Split
from simulator.world import load_bank

GIB = 2**30
SIZES = {
    # hidden, layers, heads, kv heads, intermediate, vocabulary, tied embeddings
    "tiny": (64, 2, 2, 1, 128, 4096, True),
    "0.5b": (896, 24, 14, 2, 4864, 151_936, True),
    "1.5b": (1536, 28, 12, 2, 8960, 151_936, True),
    "3b": (2048, 36, 16, 2, 11_008, 151_936, True),
    "7b": (3584, 28, 28, 4, 18_944, 152_064, False),
}
PEAK_FLOPS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bf16 operations per second by words of the card's name, from the makers' data sheets; the first match counts."""


def shape(size: str) -> Qwen2Config:
    """Sizes of a decoder, by Qwen2.5's names."""
    hidden, layers, heads, kv_heads, intermediate, vocabulary, tied = SIZES[size]
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
    )


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


def measure_update(options: Namespace, model_config: Qwen2Config, device: torch.device, peak: float | None) -> dict[str, Any]:
    """Optimiser steps on whole batches."""
    algorithm = Grpo(GrpoConfig())
    batch = algorithm.add_advantages(random_batch(rows=options.rows, tokens=options.tokens, vocabulary=model_config.vocab_size))
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
        "tokens_per_s": asdict(Figure.of(sum(lengths) / each for each in seconds)),
        "model_flop_utilisation": asdict(Figure.of(flops / each / peak for each in seconds)) if peak else None,
        "tflops_per_s": asdict(Figure.of(flops / each / 1e12 for each in seconds)),
        "peak_gib": highest[0] if highest else None,
        "needed_gib": needed,
        "peak_over_needed": highest[0] / needed if highest else None,
    }


def measure_rollouts(options: Namespace, model_config: Qwen2Config, device: torch.device, kind: EngineKind) -> dict[str, Any]:
    """Replies of one length to prompts of another, all at once; sampled tokens per second."""
    new, prompt = options.new_tokens, max(2, options.tokens - options.new_tokens)
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
        # The engine has the card alone.
        config = EngineConfig(engine=kind, dtype=EngineDtype.BFLOAT16, max_running=options.rows, gpu_memory_share=0.8)
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
    return {"tokens_per_s": asdict(Figure.of(speeds)), "peak_gib": gib, "needed_gib": 2 * num_parameters(model_config) / GIB}


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


def random_batch(*, rows: int, tokens: int, vocabulary: int) -> Batch:
    """Dialogues of random tokens, of which every other 32 were sampled, in groups of eight with rewards that differ."""
    chance = np.random.default_rng(0)
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    mask_T = np.arange(tokens) // 32 % 2 == (1 if tokens > 32 else 0)
    mask_T[0] = False
    rollouts = [
        Rollout(
            dialogue=Dialogue(scenario=scenario, difficulty=VANILLA, seed=i, outcome=Outcome.MAX_TURNS),
            token_ids=chance.integers(0, vocabulary, tokens).astype(np.int32),
            turn_ids=np.zeros(tokens, dtype=np.int16),
            loss_mask=mask_T,
            rollout_logprobs=np.where(mask_T, -np.log(vocabulary), 0.0).astype(np.float32),
            reward=Reward(total=float(chance.random())),
            turn_rewards=(),
            policy_versions=(0, 0),
        )
        for i in range(rows)
    ]
    groups = []
    for start in range(0, rows, 8):
        group = tuple(rollouts[start : start + 8])
        task = make_task(scenario, VANILLA, uid=str(start), group_size=len(group), seed=start)
        groups.append(RolloutGroup(task=task, rollouts=group))
    return collate(groups)


def main(arguments: list[str] | None = None) -> int:
    """Measures, prints and writes the file: medians with their range, memory in GiB."""
    parser = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    positive = at_least(1)
    parser.add_argument("--size", choices=SIZES, default="0.5b", help="of the model, by Qwen2.5's names")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu for --size tiny alone")
    parser.add_argument("--rows", type=positive, default=64, help="dialogues of an update, and replies sampled at once")
    parser.add_argument("--tokens", type=at_least(4), default=1024, help="of each dialogue; half of them are trained on")
    parser.add_argument("--micro-tokens", type=positive, default=16384, help="learner.micro_batch_tokens")
    parser.add_argument("--logit-chunk-mb", type=positive, default=256, help="learner.logit_chunk_mb")
    parser.add_argument("--checkpointing", action="store_true", help="learner.gradient_checkpointing")
    parser.add_argument("--new-tokens", type=positive, default=128, help="of each reply")
    parser.add_argument("--engine", action="append", choices=("hf", "vllm"), help="that rolls out; may be given again, default: both")
    parser.add_argument("--repeats", type=positive, default=5, help="of every figure")
    parser.add_argument("--peak-tflops", type=finite, help="of the card in dense bf16, where it is not known by its name")
    parser.add_argument("--out", type=Path, default=Path("bench_gpu.json"))
    options = parser.parse_args(arguments)
    if options.micro_tokens < options.tokens:
        parser.error(f"--tokens must be at most --micro-tokens={options.micro_tokens}, got {options.tokens}")
    if options.device == "cpu" and options.size != "tiny":
        parser.error(f"--size must be tiny on a CPU, got {options.size}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("bench-gpu must run on a machine with CUDA, got none here; the same code runs small with --device cpu --size tiny")
    model_config, device = shape(options.size), torch.device(options.device)
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
        "update": measure_update(options, model_config, device, peak),
    }
    for kind in options.engine or ("hf", "vllm"):
        found[f"rollouts_{kind}"] = measure_rollouts(options, model_config, device, EngineKind(kind))
    text = json.dumps(found, indent=1)
    write_whole(options.out, text + "\n")
    print(text)
    return ExitCode.FINISHED


if __name__ == "__main__":
    sys.exit(main())
