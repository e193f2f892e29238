"""Player of a model whose weights are local: an engine in this process, with the limits and the chat template of a run's rollouts."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.agents.agent import MODEL_CONTEXT, MODEL_TOKENS, Agent
from experiments.agents.options import naming_options
from experiments.agents.players import AgentDialogue
from experiments.tasks import EvaluationTask
from policy.config import EngineConfig, EngineDtype, EngineKind, RolloutConfig
from policy.engine.capacity import free_bytes
from policy.engine.engine import Engine
from policy.engine.factory import make_engine
from policy.model import cache_bytes, no_progress_bars, num_positions
from policy.rollout.chat import Chat, learnt_to_think
from policy.rollout.dialogue import RolloutContext, SamplingOverrides, roll_out, sampling_seed
from simulator.scenario import Scenario
from simulator.user import UserSimulator

EMBEDDED_TOKENS, EMBEDDED_CONTEXT = 40, 512
MAX_REPLY_SHARE = 4
"""A reply is at most this fraction of a short context (1/4)."""
CACHED_DIALOGUES = 4
"""Whole dialogues that vLLM's cache holds on a CPU by default, where memory allows."""
DIALOGUE_TIMEOUT_S = 3600.0
"""Many dialogues at once on a slow engine each take long."""
OPTIONS = {
    "rollout.max_new_tokens": "--max-tokens",
    "rollout.max_context": "--max-context",
    "policy.kv_cache_mb": "--kv-cache-mb",
    "policy.gpu_memory_share": "--gpu-memory-share",
    "policy.thinking must be true": "--thinking must be given",
    "policy.thinking must be false": "--thinking must be left out",
    "policy.keep_thoughts": "keep_thoughts of its run",
}
"""Setting of a run, or a phrase about one -> the option that takes its place here."""


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """How a local model is sampled."""

    engine: EngineConfig
    has_default_cache: bool
    """vLLM's cache on a CPU follows from the model's size."""
    rollout: RolloutConfig
    """`max_turns`, `max_new_tokens` and `max_context` of it."""
    temperature: float
    """>= 0; 0 is greedy."""
    system: str
    """A prompt before the dialogue; empty for none."""


def model_settings_of(options: argparse.Namespace, agent: Agent, *, max_turns: int) -> ModelSettings:
    """The options, else the settings of the agent's run, else the defaults of the embedded policy or of any other model.

    Raises:
        ValueError: a value is out of range, or a context too short for a reply.
    """
    tokens, context = (EMBEDDED_TOKENS, EMBEDDED_CONTEXT) if agent.is_embedded else (MODEL_TOKENS, MODEL_CONTEXT)
    if agent.folder is not None:
        context = min(context, num_positions(agent.folder, otherwise=context))
    context = options.max_context or int(agent.run_setting("rollout.max_context", context))
    thinks = learnt_to_think(agent.folder) if agent.folder is not None else False
    given = {
        name: getattr(options, name) if getattr(options, name) is not None else agent.run_setting(f"policy.{name}", None)
        for name in ("kv_cache_mb", "gpu_memory_share")
    }
    with naming_options(_in_model_options, "policy"):
        return ModelSettings(
            has_default_cache=given["kv_cache_mb"] is None,
            engine=EngineConfig(
                engine=EngineKind(options.engine),
                dtype=EngineDtype(options.dtype),
                thinking=options.thinking or bool(agent.run_setting("policy.thinking", thinks)),
                keep_thoughts=agent.run_setting("policy.keep_thoughts", None),
                **{name: value for name, value in given.items() if value is not None},
            ),
            rollout=RolloutConfig(
                max_turns=max_turns,
                max_new_tokens=options.max_tokens
                or int(agent.run_setting("rollout.max_new_tokens", min(tokens, context // MAX_REPLY_SHARE))),
                max_context=context,
                dialogue_timeout_s=DIALOGUE_TIMEOUT_S,
            ),
            temperature=options.temperature,
            system=agent.system_prompt(options.system),
        )


def load_model_agent(settings: ModelSettings, folder: Path) -> tuple[Engine, Chat]:
    """An engine in this process that samples by the weights in a folder, and its chat template.

    Raises:
        ValueError: the model cannot be loaded, has no room, or its template cannot be used with these settings.
        RuntimeError: the engine did not start.
    """
    config, context = settings.engine, settings.rollout.max_context
    if settings.has_default_cache:
        # As vLLM counts: one token more, and whole blocks.
        each = cache_bytes(folder, num_tokens=context + 1 + config.block_size, dtype=config.dtype)
        num = min(CACHED_DIALOGUES, max(1, free_bytes() // 4 // each)) if each else 0
        config = replace(config, kv_cache_mb=max(config.kv_cache_mb, -(-num * each >> 20)))
    with naming_options(_in_model_options), no_progress_bars():
        engine: Engine = make_engine(config, folder, max_context=context)
        return engine, Chat(engine.tokenizer, settings.system, thinking=config.thinking, keep_thoughts=config.keep_thoughts)


def _in_model_options(message: str) -> str:
    for setting, option in OPTIONS.items():
        message = message.replace(setting, option)
    return message


class ModelPlayer:
    """Plays a local model by an engine in this process."""

    def __init__(self, folder: Path, settings: ModelSettings, user: UserSimulator, *, seed: int) -> None:
        self._settings, self._user, self._seed = settings, user, sampling_seed(seed, 0, 0)
        self.engine, self._chat = load_model_agent(settings, folder)
        self._num_tokens = 0

    async def play(self, scenario: Scenario, task: EvaluationTask, sibling: int) -> AgentDialogue:
        """One dialogue, as in a run's own evaluation."""
        context = RolloutContext(
            user=self._user,
            generate=self.engine.generate,
            chat=self._chat,
            config=self._settings.rollout,
            overrides=SamplingOverrides(temperature=self._settings.temperature),
        )
        # Sampling seeds derive from those of task, sibling and turn; the run's seed makes the sibling differ.
        rollout = await roll_out(context, scenario, task.difficulty, task.seed, sibling=self._seed % 2**31 + sibling)
        self._num_tokens += rollout.num_sampled
        thoughts = tuple(thought.text for thought in rollout.thoughts)
        return AgentDialogue(task=task, sibling=sibling, dialogue=rollout.dialogue, thoughts=thoughts)

    def counts(self) -> dict[str, float]:
        """Sampled tokens."""
        return {"completion_tokens": float(self._num_tokens)}

    async def close(self) -> None:
        """Stops the engine."""
        self.engine.close()
