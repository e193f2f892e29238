"""The simulated users there are, by kind, and the scenarios that they bring."""

from __future__ import annotations

from typing import Any

from simulator.bank import Bank, load_bank
from simulator.endpoints import check_endpoints
from simulator.llm_user import LLMUser, LLMUserConfig
from simulator.moody_user import MoodyUser, MoodyUserConfig
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.sage import profile_bank
from simulator.user import UserSimulator

USERS: dict[str, tuple[type, Any]] = {
    "rule": (RuleUserConfig, RuleUser),
    "moody": (MoodyUserConfig, MoodyUser),
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
    """The scenarios that a user of this config brings: its files of profiles, or the built-in world.

    Raises:
        ValueError: a file of profiles cannot be read.
    """
    if isinstance(config, LLMUserConfig) and config.profiles:
        return profile_bank(train=config.profiles, heldout=config.heldout_profiles)
    return load_bank()


def check_user(config: Any) -> None:
    """Refuses what a user needs and does not get, before anything is started.

    Raises:
        ValueError: one sentence that says what is missing.
    """
    if isinstance(config, LLMUserConfig):
        make_bank(config)
        check_endpoints(config)
