"""Registry of simulated users by kind, and the scenarios of each."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from simulator.llm.client import check_endpoints
from simulator.llm.prompts import prompts_hash
from simulator.llm.user import LLMUser, LLMUserConfig
from simulator.preset import FITTED
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.formats import profile_bank
from simulator.user import UserSimulator
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
        ValueError: a file of profiles cannot be read.
    """
    if isinstance(config, LLMUserConfig) and config.profiles:
        return profile_bank(train=config.profiles, heldout=config.heldout_profiles)
    return load_bank()


def contents_of(config: Any) -> dict[str, str]:
    """First 16 hex digits of the SHA-256 of each file that decides, besides the world, who the users are and what they say.

    Returns:
        By name: `profiles_hash` and `heldout_profiles_hash` of a config with files of profiles, "" for an unreadable one;
        `prompts_hash` of a model as user; `numbers_hash` of the preset SAGE.
    """
    files: dict[str, str | Path] = {}
    if isinstance(config, LLMUserConfig) and config.profiles:
        files = {"profiles_hash": config.profiles, "heldout_profiles_hash": config.heldout_profiles}
    elif getattr(config, "preset", None) is Preset.SAGE:
        files = {"numbers_hash": FITTED}
    hashes = dict.fromkeys(files, "")
    for name, path in files.items():
        with suppress(OSError):
            hashes[name] = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    return hashes | ({"prompts_hash": prompts_hash()} if isinstance(config, LLMUserConfig) else {})


def check_user(config: Any) -> None:
    """Refuses a user that cannot be run, before anything is started.

    Raises:
        ValueError: one sentence about the missing part.
    """
    if isinstance(config, LLMUserConfig):
        make_bank(config)
        check_endpoints(config)
