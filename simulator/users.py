"""The simulated users there are, by kind."""

from __future__ import annotations

from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.user import UserSimulator

USERS = {"rule": (RuleUserConfig, RuleUser)}


def make_user(kind: str, config: RuleUserConfig) -> UserSimulator:
    """The simulator of a kind, from its own config.

    Raises:
        ValueError: no such kind.
    """
    if kind not in USERS:
        raise ValueError(f"simulator.kind must be one of {', '.join(USERS)}, got {kind!r}")
    return USERS[kind][1](config)
