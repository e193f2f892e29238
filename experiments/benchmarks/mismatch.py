"""How far the engine's logprobs are from the trainer's on what it sampled: the same weights, in float32 and in bfloat16."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import torch

from experiments.benchmarks.figures import Figures, Settings, dialogues, embedded_user, figure
from policy.config import EngineConfig, EngineDtype
from policy.engine.engine import Completion, Request, Sampling
from policy.engine.factory import make_engine
from policy.model import load_model, token_logprobs_and_entropy
from policy.rollout.chat import Chat

NUM_PROMPTS, MAX_TOKENS, MAX_CONTEXT = 64, 40, 512
KEYS = {EngineDtype.FLOAT32: "mismatch.fp32_mean_abs", EngineDtype.BFLOAT16: "mismatch.bf16_mean_abs"}


def measure(settings: Settings) -> Figures:
    """Mean absolute difference in nats over all sampled tokens, against a float32 trainer; other prompts and seeds in every repeat."""
    folder = settings.folder()
    model, tokenizer = load_model(folder)
    model.requires_grad_(False)
    found: Figures = {}
    for dtype, key in KEYS.items():
        settings.progress(f"an engine in {dtype}")
        engine = make_engine(EngineConfig(engine=settings.engine, dtype=dtype), folder, max_context=MAX_CONTEXT)
        try:
            found[key] = figure(_mean_difference(engine, model, tokenizer, seed=seed) for seed in range(settings.repeats))
        finally:
            engine.close()
    return found


def _mean_difference(engine: Any, model: Any, tokenizer: Any, *, seed: int) -> float:
    sampling = Sampling(max_tokens=MAX_TOKENS, temperature=1.0)
    prompts = _prompts(tokenizer, seed=seed)
    requests = [Request(prompt_ids=ids, sampling=sampling, seed=1000 * seed + i) for i, ids in enumerate(prompts)]
    completions = asyncio.run(engine.generate_all(requests))
    pairs = zip(prompts, completions, strict=True)
    return float(torch.cat([_differences(model, ids, completion) for ids, completion in pairs]).mean())


def _prompts(tokenizer: Any, *, seed: int) -> list[list[int]]:
    """Openings of dialogues, half of them after a first exchange."""
    chat = Chat(tokenizer)
    cut = [
        replace(dialogue, turns=dialogue.turns[: 1 + 2 * (i % 2)])
        for group in dialogues(NUM_PROMPTS // 4, 4, seed=seed, user=embedded_user())
        for i, dialogue in enumerate(group)
    ]
    return [chat.opening_ids(dialogue.messages()) for dialogue in cut]


def _differences(model: Any, prompt_ids: list[int], completion: Completion) -> torch.Tensor:
    token_ids_BT = torch.tensor([[*prompt_ids, *completion.token_ids]])
    scored_BT = torch.arange(token_ids_BT.shape[1])[None] >= len(prompt_ids)
    logprobs_N, _ = token_logprobs_and_entropy(model, token_ids_BT, torch.ones_like(scored_BT), scored_BT)
    return (logprobs_N - torch.tensor(completion.logprobs)).abs()
