"""Agents, users and judges, ready to speak: whatever they need is looked at before the first dialogue."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.persona_judge import FLAGS, flag_settings, in_options, model_settings
from experiments.agents.judge import CapabilityJudge
from experiments.agents.options import refuse_given
from experiments.agents.players import Player, Scripted, ServerAgent, WordsPlayer, agent_config, server_config
from experiments.agents.setting import Setting
from experiments.agents.speech import MODEL_TOKENS, speech_of
from experiments.agents.who import PRIOR, Agent, Kind
from experiments.keys import ConfigError
from simulator.llm.client import Endpoints, check_endpoints
from simulator.llm.config import EndpointConfig, TokenLimit
from simulator.llm.prompts import HALF
from simulator.llm.user import LLMUserConfig
from simulator.scripted import AGENTS
from simulator.user import Counts, UserSimulator

ANSWERS = "answers"
"""Folder, in an evaluation's own, of what the agent's server answered: a server may serve another agent under the same name tomorrow."""
DIALOGUES_AT_ONCE, AT_A_SERVER = 64, 16


def make_player(options: argparse.Namespace, agent: Agent, setting: Setting, user: UserSimulator, folder: Path) -> Player:
    """Whoever plays the agent, ready to speak.

    Raises:
        ValueError: its server or its model cannot be worked with.
        RuntimeError: its engine did not start.
    """
    if agent.kind is Kind.MODEL:
        from experiments.agents.model_player import ModelPlayer

        return ModelPlayer(weights_folder(agent), speech_of(options, agent, max_turns=setting.max_turns), user, seed=options.seed)
    if agent.kind is Kind.SCRIPTED:
        return WordsPlayer(Scripted(AGENTS[agent.source]), user, max_turns=setting.max_turns, seed=options.seed)
    config = server_config(server_settings(options, agent, answers=folder / ANSWERS))
    return WordsPlayer(ServerAgent(config, system=agent.told(options.system)), user, max_turns=setting.max_turns, seed=options.seed)


def server_settings(options: argparse.Namespace, agent: Agent, *, answers: Path) -> dict[str, Any]:
    """The settings of an agent's server.

    Args:
        answers: folder in which its answers are kept.
    """
    return {
        "urls": [agent.source],
        "model": options.model,
        "api_key_env": options.key_env,
        "temperature": options.temperature,
        "send_seed": not options.no_seed,
        "max_tokens": options.max_tokens or MODEL_TOKENS,
        "token_limit": TokenLimit(options.token_limit),
        "extra_body": options.extra_body,
        "concurrency": options.concurrency or AT_A_SERVER,
        "timeout_s": options.timeout,
        "retries": options.retries,
        "max_wait_s": options.max_wait,
        "cache": str(answers),
    }


def weights_folder(agent: Agent) -> Path:
    """Where an agent's weights lie; the prior is built and a model of the hub fetched where they are not here."""
    if agent.folder is not None:
        return agent.folder
    if agent.source == PRIOR:
        from policy.config import PriorConfig
        from policy.prior.prior import build_prior

        return build_prior(PriorConfig())
    from policy.model import find_model

    return find_model(agent.source)


def reached_user(setting: Setting) -> UserSimulator:
    """The simulated user, its servers asked for a few tokens where a model plays it."""
    if not isinstance(setting.user_config, LLMUserConfig):
        return setting.user()
    try:
        check_endpoints(setting.user_config)
        return setting.user()
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--user-")) from error


def reached_judge(options: argparse.Namespace) -> CapabilityJudge | None:
    """The judge, its servers asked for a few tokens; None where none is named."""
    config = judge_config(options)
    if config is None:
        return None
    try:
        check_endpoints(config)
        return CapabilityJudge(Endpoints(config))
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--judge-")) from error


def judge_config(options: argparse.Namespace) -> EndpointConfig | None:
    """The settings of the judge's server; None where none is named.

    Raises:
        ConfigError: one of them means nothing.
    """
    if not options.judge_model:
        if options.judge_url:
            raise ConfigError(f"--judge-model must name the model at --judge-url, got none with {', '.join(options.judge_url)}")
        refuse_given(options, [f"judge_{flag}" for flag in FLAGS], "goes with --judge-model")
        return None
    try:
        return EndpointConfig(**model_settings(flag_settings(options, "judge")))
    except ValueError as error:
        raise ConfigError(in_options(str(error), "--judge-")) from error


def lacking_keys(configs: Mapping[str, Any]) -> Iterator[str]:
    """Which environment variables hold no key although they should, a sentence each.

    Args:
        configs: by beginning of its options, settings of a server; others ask nobody.
    """
    for prefix, config in configs.items():
        try:
            if isinstance(config, EndpointConfig):
                config.key()
        except ValueError as error:
            yield in_options(str(error), prefix)


def usage(user: UserSimulator, player: Player | None, judge: CapabilityJudge | None) -> dict[str, dict[str, float]]:
    """What was used up in this sitting, by whom; without zeros."""
    counts = {
        "agent": player.counts() if player else {},
        "user": user.counts() if isinstance(user, Counts) else {},
        "judge": dict(judge.endpoints.counts) if judge else {},
    }
    return {who: {name: value for name, value in found.items() if value} for who, found in counts.items() if any(found.values())}


def check_speaking(options: argparse.Namespace, agent: Agent) -> None:
    """Refuses a way of speaking that is out of range, and settings of a server that mean nothing.

    Raises:
        ConfigError: says which option.
    """
    if not options.temperature >= 0.0:
        raise ConfigError(f"--temperature must be at least 0, got {options.temperature:g}; 0 is greedy")
    for name in ("max_tokens", "max_context", "kv_cache_mb", "concurrency"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if HALF.search(options.system or ""):
        raise ConfigError(f"--system must be text that can be written, got {options.system!r}")
    refuse_idle(options, agent)
    if agent.kind is Kind.SERVER:
        agent_config(server_settings(options, agent, answers=Path(ANSWERS)))


OF_A_SERVER = ("key_env", "retries", "timeout", "max_wait", "token_limit", "no_seed", "extra_body")
OF_WEIGHTS = ("engine", "dtype", "max_context", "kv_cache_mb", "gpu_memory_share", "thinking")
OF_SPEAKING = ("temperature", "system", "max_tokens")


def refuse_idle(options: argparse.Namespace, agent: Agent) -> None:
    """Refuses options that this kind of agent has no use for: an evaluation would name them as if they had been heeded.

    Raises:
        ConfigError: names the first.
    """
    idle: dict[Kind, list[tuple[tuple[str, ...], str]]] = {
        Kind.SERVER: [(OF_WEIGHTS, "goes with an agent whose weights are here")],
        Kind.MODEL: [(OF_A_SERVER, "goes with an agent behind a server")],
        Kind.SCRIPTED: [((*OF_A_SERVER, *OF_WEIGHTS, *OF_SPEAKING), "goes with an agent that is a model")],
    }
    for names, why in idle[agent.kind]:
        refuse_given(options, names, why, where=repr(agent.source))
