"""Registry of simulated users by kind, and the scenarios of each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from simulator.dialogue import START_EMOTION, Dialogue, Speaker, Turn, UserSimulator
from simulator.listener import ListenerKind
from simulator.llm.client import Question, check_client, check_endpoints
from simulator.llm.config import EndpointConfig, ServedConfig
from simulator.llm.listener import ModelListener
from simulator.llm.prompts import prompts_hash
from simulator.llm.user import LLMUser, LLMUserConfig
from simulator.preset import SageNumbers
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import read_profiles
from simulator.scenario import VANILLA, Scenario, Split
from simulator.world import Bank, load_bank

USERS: dict[str, tuple[type, Any]] = {
    "rule": (RuleUserConfig, RuleUser),
    "llm": (LLMUserConfig, LLMUser),
}


def make_user(kind: str, config: Any) -> UserSimulator:
    """The simulator of a kind, from its own config.

    Raises:
        ValueError: no such kind, or the key of an endpoint is not in the environment.
    """
    if kind not in USERS:
        raise ValueError(f"simulator.kind must be one of {', '.join(USERS)}, got {kind!r}")
    return USERS[kind][1](config)


def make_bank(config: Any) -> Bank:
    """The scenarios of a user's config: its files of profiles, or the built-in world.

    Raises:
        ValueError: a file of profiles cannot be read, is empty, or both have a profile in common.
    """
    if not isinstance(config, LLMUserConfig) or not config.profiles:
        return load_bank()
    by_id: dict[str, Scenario] = {}
    for path, split in ((config.profiles, Split.TRAIN), (config.heldout_profiles, Split.HELDOUT)):
        scenarios = read_profiles(path, split=split)
        if not scenarios:
            raise ValueError(f"{path} must hold at least one profile, got none")
        if shared := by_id.keys() & scenarios.keys():
            raise ValueError(f"{path} must share no profile with {config.profiles}, got {min(shared)!r} in both")
        by_id |= scenarios
    return Bank(by_id=by_id)


def endpoint_of(config: Any) -> EndpointConfig | None:
    """The servers that a user's config asks, for its words or to hear for it; None for neither."""
    endpoint = config if isinstance(config, EndpointConfig) else getattr(config, "server", None)
    return endpoint if isinstance(endpoint, EndpointConfig) else None


def served_by_run(config: Any) -> ServedConfig | None:
    """The servers that a run starts itself, for a user's words (`simulator.serve`) or to hear for it; None for any other user."""
    endpoint = endpoint_of(config)
    return endpoint if isinstance(endpoint, ServedConfig) and endpoint.serve else None


def first_question(endpoint: EndpointConfig) -> tuple[Question, Callable[[str], Any]]:
    """What the work will ask a model that plays the user or hears for it, about one reply of a scenario, and how its answer is read."""
    scenario, reply = load_bank().scenarios(Split.TRAIN)[0], "That sounds hard. What happened then?"
    opening = Turn(speaker=Speaker.USER, text=scenario.opening, emotion=START_EMOTION)
    dialogue = Dialogue(scenario=scenario, difficulty=VANILLA, seed=0, turns=(opening,))
    if isinstance(endpoint, LLMUserConfig):
        return LLMUser(endpoint).judging(dialogue, reply)
    return ModelListener(endpoint).question(dialogue, reply)


def check_servers(config: Any, group: str = "simulator") -> None:
    """Refuses a user or an evaluation whose servers or encoder cannot be used; it asks each server.

    Args:
        group: of the settings.

    Raises:
        ValueError: with the name of the setting.
    """
    if getattr(config, "listener", None) is ListenerKind.ENCODER:
        import_module("simulator.encoder").make()
    if (endpoint := endpoint_of(config)) is None:
        return
    if served_by_run(config):  # asked once it is there
        check_client()
        return
    try:
        check_endpoints(endpoint, *first_question(endpoint))
    except ValueError as error:
        raise ValueError(str(error) if endpoint is config else str(error).replace("simulator.", f"{group}.server.")) from None


def contents_of(config: Any) -> dict[str, str]:
    """First 16 hex digits of the SHA-256 of each file that decides, besides the world, who the users are and what they say.

    Returns:
        By name: `profiles_hash` and `heldout_profiles_hash` of a config with files of profiles, "" for an unreadable one;
        `prompts_hash` of a model as user; `numbers_hash` of the preset SAGE; `listener_hash` of a model or encoder that listens.
    """
    files: dict[str, str | Path] = {}
    if isinstance(config, LLMUserConfig) and config.profiles:
        files = {"profiles_hash": config.profiles, "heldout_profiles_hash": config.heldout_profiles}
    elif getattr(config, "preset", None) is Preset.SAGE:
        files = {"numbers_hash": SageNumbers.FILE}
    elif getattr(config, "listener", None) is ListenerKind.MODEL:
        files = {"listener_hash": Path(__file__).parent / "llm" / "listener.toml"}
    elif getattr(config, "listener", None) is ListenerKind.ENCODER:
        files = {"listener_hash": Path(__file__).parent / "encoder" / "weights.sha256"}
    read = {name: Path(path).read_bytes() if Path(path).is_file() else None for name, path in files.items()}
    hashes = {name: "" if content is None else hashlib.sha256(content).hexdigest()[:16] for name, content in read.items()}
    return hashes | ({"prompts_hash": prompts_hash()} if isinstance(config, LLMUserConfig) else {})
