"""Models of Qwen2.5's published shapes with random weights, and the arithmetic and memory that training them takes.

Source: Qwen2.5 technical report, arXiv:2412.15115, and the models' config.json; counting of arithmetic: PaLM, arXiv:2204.02311, appendix B.

What `make bench-gpu` measures: an optimiser step, and engines that sample, each with its memory beside what it cannot do without.
"""

from __future__ import annotations

import asyncio
import platform
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from experiments.benchmarks.figures import figure
from experiments.run_folder import git_commit, versions
from policy.algorithms.algorithms import Grpo
from policy.batch import Batch, pack
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


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a decoder."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool

    def config(self, *, positions: int) -> Qwen2Config:
        """As transformers wants it."""
        return Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=positions,
            tie_word_embeddings=self.tied,
        )

    @property
    def num_in_layers(self) -> int:
        """Parameters of all layers' matrices, each of which meets every token."""
        kv = self.hidden * self.kv_heads // self.heads
        return self.layers * (2 * self.hidden * (self.hidden + kv) + 3 * self.hidden * self.intermediate)

    @property
    def num_parameters(self) -> int:
        """All of them but norms and biases, which are below a thousandth."""
        return self.num_in_layers + (1 if self.tied else 2) * self.vocabulary * self.hidden

    def update_flops(self, lengths: Sequence[int], num_trained: int) -> float:
        """Floating-point operations of one forward and backward pass: 6 for each matrix element a token meets.

        The output head counts for trained tokens alone, attention for the half that a causal mask leaves; what is computed a second time
        to save memory does not count.

        Args:
            lengths: tokens of each sequence.
        """
        matrices = 6.0 * self.num_in_layers * sum(lengths)
        head = 6.0 * self.vocabulary * self.hidden * num_trained
        attention = 6.0 * self.layers * self.hidden * sum(length * length for length in lengths)
        return matrices + head + attention

    @property
    def state_bytes(self) -> int:
        """What training cannot do without: float32 weights, their gradients and AdamW's two moments, 16 bytes a parameter."""
        return 16 * self.num_parameters


SHAPES = {
    "tiny": Shape(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=128, vocabulary=4096, tied=True),
    "0.5b": Shape(hidden=896, layers=24, heads=14, kv_heads=2, intermediate=4864, vocabulary=151_936, tied=True),
    "1.5b": Shape(hidden=1536, layers=28, heads=12, kv_heads=2, intermediate=8960, vocabulary=151_936, tied=True),
    "3b": Shape(hidden=2048, layers=36, heads=16, kv_heads=2, intermediate=11_008, vocabulary=151_936, tied=True),
    "7b": Shape(hidden=3584, layers=28, heads=28, kv_heads=4, intermediate=18_944, vocabulary=152_064, tied=False),
}
PEAK_FLOPS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bf16 operations per second by a part of the card's name, from the makers' data sheets; the first that fits is meant."""


def peak_flops(card: str) -> float | None:
    """Of a card by its name; None for one that is not in the list."""
    return next((flops for name, flops in PEAK_FLOPS.items() if all(word in card for word in name.split())), None)


def random_model(shape: Shape, *, positions: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Qwen2ForCausalLM:
    """Built where it is to be, always the same for a device."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            return Qwen2ForCausalLM(shape.config(positions=positions)).eval()
    finally:
        torch.set_default_dtype(before)


def save_random_policy(shape: Shape, folder: Path, *, positions: int, device: torch.device, dtype: torch.dtype) -> Path:
    """A Hugging Face folder for engines, with a small tokenizer of the built-in world in place of Qwen's."""
    tokenizer = build_tokenizer(PriorConfig(), (scenario.background for scenario in load_bank().scenarios(Split.TRAIN)))
    model = random_model(shape, positions=positions, device=device, dtype=dtype)
    assert len(tokenizer) <= shape.vocabulary, f"the vocabulary must hold the tokenizer's {len(tokenizer)} tokens, got {shape.vocabulary}"
    model.config.eos_token_id, model.config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


GIB = 2**30
GROUP_SIZE = 8
ENGINE_SHARE = 0.8
"""Of the card, for an engine that has it alone."""


def measure(options: Namespace) -> dict[str, Any]:
    """Everything that was asked for; figures are medians with their range, memory in GiB."""
    shape, device = SHAPES[options.size], torch.device(options.device)
    card = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    peak = 1e12 * options.peak_tflops if options.peak_tflops else peak_flops(card)
    found: dict[str, Any] = {
        "commit": git_commit(),
        "versions": versions(),
        "card": card,
        "card_gib": torch.cuda.get_device_properties(device).total_memory / GIB if device.type == "cuda" else None,
        "peak_tflops": peak / 1e12 if peak else None,
        "model": {"size": options.size, "parameters": shape.num_parameters},
        "settings": {name: value for name, value in vars(options).items() if isinstance(value, int | float | str | bool)},
    }
    if not options.no_update:
        found["update"] = measure_update(options, shape, device, peak)
    for kind in options.engine or ("hf", "vllm"):
        found[f"rollouts_{kind}"] = measure_rollouts(options, shape, device, EngineKind(kind))
    return found


def measure_update(options: Namespace, shape: Shape, device: torch.device, peak: float | None) -> dict[str, Any]:
    """Optimiser steps on whole batches; a first one, which allocates and tunes, does not count."""
    batch = made_up_batch(rows=options.rows, tokens=options.tokens, vocabulary=shape.vocabulary)
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
    targets = algorithm.targets(batch)
    with peak_gib(device) as highest:
        learner = Learner(config, algorithm, random_model(shape, positions=options.tokens, device=device))
        learner.update(batch, targets)
        seconds = [timed(lambda: learner.update(batch, targets), device) for _ in range(options.repeats)]
    lengths = batch.needed_B.tolist()
    flops = shape.update_flops(lengths, batch.num_trained)
    needed = shape.state_bytes / GIB
    return {
        "tokens_per_s": asdict(figure(sum(lengths) / each for each in seconds)),
        "model_flop_utilisation": asdict(figure(flops / each / peak for each in seconds)) if peak else None,
        "tflops_per_s": asdict(figure(flops / each / 1e12 for each in seconds)),
        "peak_gib": highest[0] if highest else None,
        "needed_gib": needed,
        "peak_over_needed": highest[0] / needed if highest else None,
    }


def measure_rollouts(options: Namespace, shape: Shape, device: torch.device, kind: EngineKind) -> dict[str, Any]:
    """Replies of one length to prompts of another, all at once; sampled tokens per second."""
    new, prompt = options.new_tokens, max(2, options.tokens - options.new_tokens)
    dtype = EngineDtype.BFLOAT16
    with tempfile.TemporaryDirectory(prefix="attune-bench-") as place, peak_gib(device) as highest:
        folder = save_random_policy(shape, Path(place), positions=prompt + new, device=device, dtype=torch.bfloat16)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        config = EngineConfig(engine=kind, dtype=dtype, max_running=options.rows, gpu_memory_share=ENGINE_SHARE)
        engine = make_engine(config, folder, max_context=prompt + new)
        try:
            speeds = []
            for repeat in range(options.repeats + 1):
                requests = made_up_requests(options.rows, prompt=prompt, new=new, seed=repeat)
                asyncio.run(engine.reset_cache())
                started = time.perf_counter()
                completions = asyncio.run(engine.generate_all(requests))
                speeds.append(sum(len(completion.token_ids) for completion in completions) / (time.perf_counter() - started))
        finally:
            engine.close()
    # vLLM fills its share with a cache, whatever is needed: what it holds says nothing.
    gib = highest[0] if highest and kind is EngineKind.HF else None
    return {"tokens_per_s": asdict(figure(speeds[1:])), "peak_gib": gib, "needed_gib": 2 * shape.num_parameters / GIB}


@contextmanager
def peak_gib(device: torch.device) -> Iterator[list[float]]:
    """The most that torch held meanwhile, in the list at the end; nothing on a CPU."""
    found: list[float] = []
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    yield found
    if device.type == "cuda":
        found.append(torch.cuda.max_memory_allocated(device) / GIB)
        torch.cuda.empty_cache()


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of a call, until the device has done it."""
    started = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def made_up_requests(num: int, *, prompt: int, new: int, seed: int) -> list[Request]:
    """Prompts of random tokens."""
    chance, sampling = np.random.default_rng(seed), Sampling(max_tokens=new)
    return [Request(prompt_ids=chance.integers(10, 500, prompt).tolist(), sampling=sampling, seed=1000 * seed + i) for i in range(num)]


def made_up_batch(*, rows: int, tokens: int, vocabulary: int, seed: int = 0) -> Batch:
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
    return pack([RolloutGroup(task=task, rollouts=tuple(group)) for task, group in zip(tasks, groups, strict=True)])
