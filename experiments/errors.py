"""Dotted names of settings: saying in one sentence which one is wrong."""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from pydantic import ValidationError

BIASED = {"top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "penalties"}
"""Sampling settings that change the distribution after the logprobs are taken; the simulated user's sampling is not trained on."""
SAME_SECTION = 0.1
"""What it is worth, in likeness, that a setting stands in the section that was named."""
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}


class ConfigError(ValueError):
    """What the user asked for cannot be run; the message is one sentence that says what, where and what to do."""


@contextlib.contextmanager
def refusing(errors: type[Exception] | tuple[type[Exception], ...] = ValueError) -> Iterator[None]:
    """While entered, what shows that the request cannot be run becomes a ConfigError with the same words.

    Args:
        errors: which kinds of error show that.

    Raises:
        ConfigError: one of them was raised.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValidationError as error:
        raise ConfigError(sentence(error)) from error
    except errors as error:
        raise ConfigError(str(error)) from error


def sentence(error: ValidationError, group: str = "") -> str:
    """The first thing that settings were refused for, with the setting's dotted name.

    Args:
        group: of the settings, such as `teacher`.
    """
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    name = ".".join(filter(None, (group, *map(str, first["loc"]))))
    return f"{name} {first['msg'].replace('Input should', 'must')}, got {first['input']!r}"


def refuse_unknown(names: Sequence[str], known: Mapping[str, Any]) -> None:
    """Raises on the first name that is no setting.

    Args:
        known: every setting by dotted name.

    Raises:
        ConfigError: names the setting and the nearest one there is.
    """
    for name in names:
        if name in known:
            continue
        if name.rpartition(".")[2] in BIASED and not name.startswith("simulator."):
            raise ConfigError(f"{name} must not be set: it would bias the importance ratio; training samples from the full distribution")
        parts = [key for key in known if key.startswith(f"{name}.")]
        if parts:
            raise ConfigError(f"{name} must be set by its parts: {', '.join(parts)}")
        raise ConfigError(f"{name} is not a setting; did you mean {nearest(name, list(known))}?")


def refuse_of_other_kinds(given: Mapping[str, Any], known: Mapping[str, Any], kinds: Mapping[str, Sequence[str]]) -> None:
    """Raises on the first setting that only another kind of its group has.

    Args:
        given: values by dotted name.
        known: every setting of the chosen kinds, with its default, by dotted name.
        kinds: by dotted name of a setting, the kinds of its group that have it.

    Raises:
        ConfigError: names the setting, the kind that was chosen and those that have it.
    """
    for name, value in given.items():
        if name in known or name not in kinds:
            continue
        kind = f"{name.partition('.')[0]}.kind"
        chosen = given.get(kind, known[kind])
        raise ConfigError(
            f"{name} is not a setting of {kind}={chosen}, got {value!r}; leave it out or choose {kind}={' or '.join(kinds[name])}"
        )


def nearest(name: str, known: Sequence[str]) -> str:
    """The known setting most like `name`: in its own section if one there is close, else by the last part, else as a whole."""
    section, _, last = name.rpartition(".")
    siblings = [key for key in known if key.rpartition(".")[0] == section]
    for candidates, cutoff in ((siblings, 0.7), (known, 0.85)):
        lasts = {key.rpartition(".")[2] for key in candidates}
        if close := difflib.get_close_matches(last, lasts, n=1, cutoff=cutoff):
            known = [key for key in candidates if key.rpartition(".")[2] == close[0]]
            break
    return max(known, key=lambda key: difflib.SequenceMatcher(None, name, key).ratio() + SAME_SECTION * (key in siblings))


def refuse_non_finite(settings: Mapping[str, Any]) -> None:
    """Raises on a number that is NaN or infinite: no setting means anything by it."""
    for name, value in settings.items():
        numbers = value if isinstance(value, list) else [value]
        if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
            raise ConfigError(f"{name} must be finite, got {value!r}")


def wanted(default: Any) -> str:
    """What a setting with this default may be, in words."""
    if isinstance(default, Enum):
        return f"one of {', '.join(str(member.value) for member in type(default))}"
    return WORDS.get(type(default), "of its default's type")


def checked_name(name: str) -> str:
    """The name of a sweep or run, which becomes a folder.

    Raises:
        ConfigError: it is no plain name.
    """
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise ConfigError(f"name must consist of letters, digits and . _ + -, got {name!r}")
    return name
