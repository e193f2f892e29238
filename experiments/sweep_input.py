"""What a sweep's file and the words of a call may say, looked at before a plan is made of them (`experiments.sweep_plan`)."""

from __future__ import annotations

import fnmatch
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from analysis.__main__ import seeds as seeds_from
from analysis.endpoints import ENDPOINTS
from analysis.runs import leaves, setting
from experiments.config import SEEDS_BELOW, laid_over
from experiments.keys import ConfigError

KEYS = ("base", "settings", "arms", "seeds", "parallel", "contrasts", "primary", "read", "threshold", "differ", "tuning")
NEEDED, OF_NAMES, LISTS = ("base", "arms", "seeds"), ("settings", "arms", "tuning"), ("contrasts", "read", "differ")
OWN = ("arms", "seeds", "parallel", "name", "runs")
"""Overrides that are the sweep's; every other one goes to all arms."""
NOT_OF_A_SWEEP = {
    "seed": "its runs have seeds=..., and --cell ARM SEED makes one of them",
    "resume": "the same command again goes on with what was broken off, and --cell ARM SEED with one run",
}
OF_A_RUN = ("experiment", "name", "runs", "resume", "seed")
"""Settings that the sweep gives each of its runs, and that its file therefore cannot."""


def require_shape(tree: Mapping[str, Any], file: str) -> None:
    """Refuses a sweep's file whose keys are others, lacking, or of another shape.

    Raises:
        ConfigError: names the key and the file.
    """
    if unknown := sorted(set(tree) - set(KEYS)):
        raise ConfigError(f"a sweep has the keys {', '.join(KEYS)}, got {unknown[0]!r} in {file}")
    if lacking := [name for name in NEEDED if tree.get(name) in (None, "", [], {})]:
        raise ConfigError(f"a sweep must have {', '.join(NEEDED)}, got no {lacking[0]} in {file}")
    for name in (name for name in OF_NAMES if tree.get(name) is not None and not isinstance(tree[name], Mapping)):
        raise ConfigError(f"{name} must be a table of names and what belongs to them, got {tree[name]!r} in {file}")
    for name in (name for name in LISTS if tree.get(name) is not None and not isinstance(tree[name], list)):
        raise ConfigError(f"{name} must be a list, got {tree[name]!r} in {file}")
    for name in (name for name in LISTS if not all(isinstance(item, str) for item in tree.get(name) or ())):
        raise ConfigError(f"{name} must be a list of text, got {tree[name]!r} in {file}; put each in quotes, without a space after a colon")
    # A study's own numbers of summary.json stand under names of their own.
    heads = {name.partition(".")[0] for name in ENDPOINTS}
    for name in (name for name in tree.get("read") or () if name not in ENDPOINTS and name.partition(".")[0] in heads):
        raise ConfigError(f"read must name endpoints ({', '.join(ENDPOINTS)}), got {name!r} in {file}")
    if isinstance(tree.get("threshold", 0), bool) or not isinstance(tree.get("threshold", 0), int | float):
        raise ConfigError(f"threshold must be a number, got {tree['threshold']!r} in {file}")
    for arm, settings in tree["arms"].items():
        if not isinstance(arm, str) or not re.fullmatch(r"[\w.+-]+", arm) or arm.startswith("."):
            raise ConfigError(f"an arm's name becomes a folder and must consist of letters, digits and . _ + -, got {arm!r} in {file}")
        if not isinstance(settings or {}, Mapping):
            raise ConfigError(f"arm {arm} must be a table of settings, got {settings!r} in {file}")
    for where, settings in (("settings", tree.get("settings")), *((f"arm {arm}", settings) for arm, settings in tree["arms"].items())):
        if own := [name for name in OF_A_RUN if name in (settings or {})]:
            raise ConfigError(f"{where} must not set {own[0]}, which the sweep gives each of its runs, got {settings[own[0]]!r} in {file}")


def refuse_kinds(given: Mapping[str, Any], arms: Mapping[str, Any]) -> None:
    """Refuses a kind for all arms where some choose theirs.

    Raises:
        ConfigError: names the setting.
    """
    for group, what in (("teacher", "teachers"), ("algorithm", "algorithms"), ("simulator", "users")):
        kind = setting(given, f"{group}.kind")
        if kind and any("kind" in ((arm or {}).get(group) or {}) for arm in arms.values()):
            raise ConfigError(
                f"{group}.kind must not be set for a sweep whose arms have {what} of their own, got {kind!r}; the others "
                "would be called what they are not: write an arm of that kind into the file"
            )


def refuse_without_effect(base: Mapping[str, Any], arms: Mapping[str, dict[str, Any]], given: Mapping[str, Any]) -> None:
    """Refuses an override that no arm takes.

    Raises:
        ConfigError: names it.
    """
    for name, lacking in unreached(base, arms, given).items():
        if len(lacking) == len(arms):
            raise ConfigError(
                f"{name} must reach an arm, got {setting(given, name)!r} for {', '.join(arms)}: each of these sets it itself, or has a "
                "kind of its own for which it means nothing or something else; write it into the file, into the arm that it is for"
            )


def unreached(base: Mapping[str, Any], arms: Mapping[str, dict[str, Any]], given: Mapping[str, Any]) -> dict[str, list[str]]:
    """By override, the arms that do not take it: they set it themselves, or chose a kind of their own."""
    taken = {arm: dict(leaves(laid_over(base, settings))) for arm, settings in arms.items()}
    lacking = {name: [arm for arm in arms if name not in taken[arm] or taken[arm][name] != value] for name, value in leaves(given)}
    return {name: found for name, found in lacking.items() if found}


def chosen_arms(arms: Mapping[str, Any], names: Any) -> list[str]:
    """The arms that were asked for, each once, as YAML or as text between commas.

    Raises:
        ConfigError: there is no such arm, or none was named.
    """
    if names in (None, "", []):
        raise ConfigError(f"arms must be among {', '.join(arms)}, got none; leave it out for all of them")
    asked = [str(name) for name in names] if isinstance(names, list) else str(names).split(",")
    for name in asked:
        if name not in arms:
            raise ConfigError(f"arms must be among {', '.join(arms)}, got {name!r}")
    return list(dict.fromkeys(asked))


def whole_numbers(name: str, value: Any, *, least: int) -> tuple[int, ...]:
    """One or several whole numbers, as YAML or as text between commas, in which `0-4` means all from the first to the last.

    Raises:
        ConfigError: they are none, below `least` or too large for a seed, one stands twice, or there are none.
    """
    items = value if isinstance(value, list) else str(value).split(",")
    try:
        if unfit := [item for item in items if isinstance(item, bool) or not isinstance(item, int | str)]:
            raise ValueError(f"{unfit[0]!r} is none")
        numbers = tuple(number for item in items for number in (seeds_from(item) if "-" in str(item).strip("-") else (int(item),)))
    except (ValueError, ArgumentTypeError) as error:
        raise ConfigError(f"{name} must be whole numbers such as 0,1,2 or 0-2, got {value!r}") from error
    if not numbers or min(numbers) < least or max(numbers) >= SEEDS_BELOW or len(set(numbers)) < len(numbers):
        raise ConfigError(f"{name} must be different whole numbers of at least {least} and below 2**63, got {value!r}")
    return numbers


def num_parallel(value: Any) -> int:
    """How many runs go side by side.

    Raises:
        ConfigError: it is no whole number of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"parallel must be a whole number of at least 1, got {value!r}")
    return value


def parse_contrast(text: str, arms: Mapping[str, Any]) -> tuple[str, str]:
    """Two arms from `first:second`; the second may be a pattern such as `fixed_*`, which means the best arm that fits it.

    Raises:
        ConfigError: there is no such arm, or none that fits.
    """
    first, _, second = text.partition(":")
    if first not in arms or not fnmatch.filter(arms, second):
        raise ConfigError(f"contrasts must look like first:second, of the arms {', '.join(arms)}, got {text!r}")
    if second != first and fnmatch.filter(arms, second) == [first]:
        raise ConfigError(f"contrasts must set {first} against another arm, got {text!r}, which fits {first} alone")
    return first, second
