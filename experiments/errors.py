"""One sentence for a request that cannot be run: which setting, its rule, what it got."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from simulator.settings import message


class ConfigError(ValueError):
    """The request cannot be run; the message is one sentence that names the setting, the rule and the remedy."""


@contextlib.contextmanager
def refusing(errors: type[Exception] | tuple[type[Exception], ...] = ValueError) -> Iterator[None]:
    """Turns errors of these types into a ConfigError with the same words."""
    try:
        yield
    except ConfigError:
        raise
    except errors as error:
        raise ConfigError(message(error)) from error


def checked_name(name: str) -> str:
    """The name of a sweep or run, which becomes a folder; raises ConfigError where it is no plain name."""
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise ConfigError(f"name must consist of letters, digits and . _ + -, got {name!r}")
    return name
