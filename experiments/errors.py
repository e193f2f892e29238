"""One sentence for a request that cannot be run: which setting, its rule, what it got."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Collection, Iterator

from pydantic import ValidationError

from simulator.settings import dotted, message


class ConfigError(ValueError):
    """The request cannot be run; the message is one sentence that names the setting, the rule and the remedy."""


@contextlib.contextmanager
def refusing(errors: type[Exception] | tuple[type[Exception], ...] = ValueError) -> Iterator[None]:
    """Turns errors of these types into a ConfigError with the same words.

    Raises:
        ConfigError: one of them was raised.
    """
    try:
        yield
    except ConfigError:
        raise
    except ValidationError as error:
        raise ConfigError(message(error)) from error
    except errors as error:
        raise ConfigError(str(error)) from error


def unknown_names(error: ValidationError, group: str = "") -> list[str]:
    """Dotted names of settings that do not exist."""
    return [dotted(group, item["loc"]) for item in error.errors(include_url=False) if item["type"] == "unexpected_keyword_argument"]


def nearest(name: str, known: Collection[str]) -> str:
    """The known setting most similar to `name`: one of its own section if any is close, else by its last part, else as a whole."""
    section, _, last = name.rpartition(".")
    candidates = [key for key in known if key.rpartition(".")[0] == section]
    for names, cutoff in ((candidates, 0.7), (list(known), 0.85)):
        if close := difflib.get_close_matches(last, {key.rpartition(".")[2] for key in names}, n=1, cutoff=cutoff):
            return max((key for key in names if key.rpartition(".")[2] == close[0]), key=lambda key: similarity(name, key))
    return max(known, key=lambda key: similarity(name, key) + 0.1 * (key in candidates))


def similarity(a: str, b: str) -> float:
    """Of two names, in [0, 1]."""
    return difflib.SequenceMatcher(None, a, b).ratio()


def checked_name(name: str) -> str:
    """The name of a sweep or run, which becomes a folder.

    Raises:
        ConfigError: it is not a plain name.
    """
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise ConfigError(f"name must consist of letters, digits and . _ + -, got {name!r}")
    return name
