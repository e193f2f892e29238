"""How an agent whose weights are here is asked: as its run asked it where it comes from one."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.agents.who import Agent
from experiments.keys import ConfigError
from policy.config import EngineConfig, EngineDtype, EngineKind
from policy.engine.capacity import free_bytes
from policy.engine.engine import Engine
from policy.engine.factory import make_engine
from policy.model import cache_bytes, num_positions
from policy.rollout.chat import Chat, learnt_to_think
from policy.rollout.dialogue import RolloutConfig

EMBEDDED_TOKENS, EMBEDDED_CONTEXT = 40, 512
MODEL_TOKENS, MODEL_CONTEXT = 800, 4096
"""Of a model that is not ours, wherever it runs: agents whose replies are cut at different lengths are not the same test."""
WHOLE_DIALOGUES = 4
"""For so many vLLM's cache has room on a CPU where nothing was said and memory allows: most end long before their context does."""
MOST_OF_CONTEXT = 4
"""A reply is at most one of so many parts of a context that is short."""
OPTIONS = {
    "rollout.max_new_tokens": "--max-tokens",
    "rollout.max_context": "--max-context",
    "policy.kv_cache_mb": "--kv-cache-mb",
    "policy.gpu_memory_share": "--gpu-memory-share",
    "policy.thinking must be true": "--thinking must be given",
    "policy.thinking must be false": "--thinking must be left out",
    "policy.keep_thoughts": "keep_thoughts of its run",
}
"""By setting of a run, or what is said of it, the option that takes its place here."""
LONGEST_S = 3600.0
"""Of a dialogue: a slow engine's many dialogues at once each take long."""


@dataclass(frozen=True, kw_only=True)
class Speech:
    """How a model is asked."""

    engine: EngineConfig
    has_default_cache: bool
    """Whether nobody said how large vLLM's cache is on a CPU, so that it follows from the model."""
    rollout: RolloutConfig
    """`max_turns`, `max_new_tokens` and `max_context` of it."""
    temperature: float
    """>= 0; 0 is greedy."""
    system: str
    """A prompt before the dialogue; empty for none."""


def speech_of(options: argparse.Namespace, agent: Agent, *, max_turns: int) -> Speech:
    """The options, else what the agent's run was set to, else what suits the embedded policy or any other.

    Raises:
        ConfigError: a value is out of range, or a context too short for a reply.
    """
    tokens, context = (EMBEDDED_TOKENS, EMBEDDED_CONTEXT) if agent.is_embedded else (MODEL_TOKENS, MODEL_CONTEXT)
    if agent.folder is not None:
        context = min(context, num_positions(agent.folder, otherwise=context))
    context = options.max_context or int(agent.recorded("rollout.max_context", context))
    learnt = learnt_to_think(agent.folder) if agent.folder is not None else False
    cache_mb = options.kv_cache_mb or agent.recorded("policy.kv_cache_mb", None)
    try:
        return Speech(
            has_default_cache=cache_mb is None,
            engine=EngineConfig(
                engine=EngineKind(options.engine),
                dtype=EngineDtype(options.dtype),
                kv_cache_mb=int(cache_mb or EngineConfig.kv_cache_mb),
                gpu_memory_share=options.gpu_memory_share
                if options.gpu_memory_share is not None
                else float(agent.recorded("policy.gpu_memory_share", EngineConfig.gpu_memory_share)),
                thinking=options.thinking or bool(agent.recorded("policy.thinking", learnt)),
                keep_thoughts=agent.recorded("policy.keep_thoughts", None),
            ),
            rollout=RolloutConfig(
                max_turns=max_turns,
                max_new_tokens=options.max_tokens or int(agent.recorded("rollout.max_new_tokens", min(tokens, context // MOST_OF_CONTEXT))),
                max_context=context,
                dialogue_timeout_s=LONGEST_S,
            ),
            temperature=options.temperature,
            system=agent.told(options.system),
        )
    except ValueError as error:
        raise ConfigError(as_options(str(error))) from error


def engine_for(speech: Speech, folder: Path) -> Engine:
    """An engine in this process that samples by the weights in a folder.

    Raises:
        ConfigError: the model cannot be loaded, or has no room.
        RuntimeError: it did not start.
    """
    engine, context = speech.engine, speech.rollout.max_context
    if speech.has_default_cache:
        engine = replace(engine, kv_cache_mb=max(engine.kv_cache_mb, default_cache_mb(folder, engine, context=context)))
    try:
        return make_engine(engine, folder, max_context=context)
    except ValueError as error:
        raise ConfigError(as_options(str(error))) from error


def default_cache_mb(folder: Path, engine: EngineConfig, *, context: int) -> int:
    """MiB of vLLM's cache on a CPU: room for `WHOLE_DIALOGUES`, for fewer where these take a quarter of the free memory, at least one."""
    # As vLLM counts: one token more, and whole blocks.
    each = cache_bytes(folder, num_tokens=context + 1 + engine.block_size, dtype=engine.dtype)
    num = min(WHOLE_DIALOGUES, max(1, free_bytes() // 4 // each)) if each else 0
    return -(-num * each >> 20)


def chat_for(speech: Speech, tokenizer: Any) -> Chat:
    """The chat template by which the model is asked.

    Raises:
        ConfigError: it cannot be used, or not so.
    """
    try:
        return Chat(tokenizer, speech.system, thinking=speech.engine.thinking, keep_thoughts=speech.engine.keep_thoughts)
    except ValueError as error:
        raise ConfigError(as_options(str(error))) from error


def as_options(message: str) -> str:
    """The message with options in the place of a run's settings."""
    for setting, option in OPTIONS.items():
        message = message.replace(setting, option)
    return message
