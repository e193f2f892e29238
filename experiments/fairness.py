"""What makes arms comparable: they spend alike, start alike and are judged alike, unless the experiment is about just that."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence

from analysis.runs import leaves
from experiments.config import ExperimentConfig, to_plain
from experiments.keys import ConfigError

ALWAYS_EQUAL = ("budget.", "evaluation.")
"""What is spent and how arms are judged: no experiment is about these, and no comparison reads runs that differ in them."""
EQUAL = (
    *(*ALWAYS_EQUAL, "policy.", "probe.", "group_size", "rollout.max_turns", "rollout.max_new_tokens", "rollout.max_context"),
    *("simulator.kind", "simulator.start_emotion", "simulator.momentum", "simulator.register"),
)
"""Settings that arms must share, by the beginnings of their names: those above, who starts, how much it may say, and whom it talks to."""


def require_alike(configs: Mapping[str, ExperimentConfig], *, differ: Sequence[str]) -> None:
    """Raises on the first setting that arms must share and do not.

    Args:
        configs: by arm.
        differ: settings, or beginnings of their names, that the experiment is about.

    Raises:
        ConfigError: arms differ in one, or `differ` names what need not be or must not be excepted.
    """
    shared = {arm: shared_settings(config) for arm, config in configs.items()}
    known = set().union(*shared.values())
    for about in differ:
        if any(name.startswith(about) for name in known if name.startswith(ALWAYS_EQUAL)) or about.startswith(ALWAYS_EQUAL):
            raise ConfigError(f"differ must name no part of budget or evaluation, got {about!r}; arms have equal cost and one measure")
        if not any(name.startswith(about) for name in known):
            raise ConfigError(f"differ must name what arms have to share otherwise ({', '.join(EQUAL)}), got {about!r}")
    (first, wanted), *others = shared.items()
    for arm, settings in others:
        # A setting that one of them lacks goes with its kind, which is compared itself.
        for name in (name for name in wanted if name in settings):
            if settings[name] != wanted[name] and not name.startswith((*differ, *following(differ))):
                values = f"{wanted[name]!r} in {first} and {settings[name]!r} in {arm}"
                or_else = "" if name.startswith(ALWAYS_EQUAL) else ", or name it in differ"
                raise ConfigError(f"{name} must be the same in all arms, got {values}; set it for the whole sweep{or_else}")


def following(differ: Sequence[str]) -> tuple[str, ...]:
    """Settings that are others by themselves where arms differ on purpose: the language in which a model of another kind is heard."""
    return ("simulator.register",) if "policy.model".startswith(tuple(differ)) else ()


def shared_settings(config: ExperimentConfig) -> dict[str, object]:
    """The settings of an arm that all arms must have alike, by dotted name."""
    return {name: value for name, value in leaves(to_plain(config)) if name.startswith(EQUAL)}


def require_tuning(tuning: Mapping[str, str], arms: Sequence[str]) -> None:
    """Raises when the tuning of some arms is told and that of others is not.

    Raises:
        ConfigError: names the arm that is left out, or the pattern that fits none.
    """
    if not tuning:
        return
    for pattern in tuning:
        if not fnmatch.filter(arms, pattern):
            raise ConfigError(f"tuning must be told of the arms {', '.join(arms)}, got {pattern!r}")
    for arm in arms:
        if not any(fnmatch.fnmatch(arm, pattern) for pattern in tuning):
            raise ConfigError(f"tuning must be told of every arm, got none of {arm}; say what was tried before its settings were fixed")
