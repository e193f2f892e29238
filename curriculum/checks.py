"""One sentence for every setting out of range and every saved state that does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from numbers import Integral, Real
from typing import Any


def settle_types(config: Any, prefix: str) -> None:
    """Gives every setting of a dataclass the type of its default: text becomes the choice that it names, a whole number a float.

    A setting whose default is none of a choice, a number, a text, a truth value or a list is left as it is.

    Raises:
        ValueError: a setting is of another type.
    """
    for item in fields(config):
        default = item.default if item.default is not MISSING else item.default_factory() if item.default_factory is not MISSING else None
        setattr(config, item.name, _as_typed(f"{prefix}.{item.name}", getattr(config, item.name), default))


def _as_typed(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, Enum):
        choices = type(default)
        require_one_of(name, value, tuple(choices))
        return choices(value)
    if isinstance(default, list):
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, got {value!r}")
        return list(value)
    if type(default) is int and isinstance(value, float) and value.is_integer():
        return int(value)
    for kind, accepted, wanted in (
        (bool, bool, "true or false"),
        (int, Integral, "a whole number"),
        (float, Real, "a number"),
        (str, str, "text"),
    ):
        if type(default) is kind:
            if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
                raise ValueError(f"{name} must be {wanted}, got {value!r}")
            return kind(value)
    return value


def require_between(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless `low <= value <= high`; NaN never is."""
    if not isinstance(value, Real) or not low <= value <= high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value!r}")


def require_whole(name: str, value: Any, least: int) -> int:
    """The value as an int; raises ValueError unless it is a whole number, numpy's included, of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def require_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raises ValueError unless `value` is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be in {{{', '.join(map(str, allowed))}}}, got {value!r}")


def require_fields(name: str, state: Mapping[str, Any], expected: Iterable[str]) -> None:
    """Raises ValueError unless `state` has exactly the `expected` keys."""
    if not isinstance(state, Mapping):
        raise ValueError(f"{name} must be a mapping, got {type(state).__name__}")
    wanted = set(expected)
    missing, unknown = sorted(wanted - set(state)), sorted(set(state) - wanted)
    if missing or unknown:
        raise ValueError(f"{name} must have exactly the fields this version writes, got missing {missing} and unknown {unknown}")


def require_equal(name: str, value: object, expected: object) -> None:
    """Raises ValueError unless a saved `value` is what this teacher writes."""
    if value != expected:
        raise ValueError(f"{name} must be {expected!r}, got {value!r}; resume with the settings and the version that wrote it")


def require_alike(name: str, saved: Any, own: Any, *, may_lack: bool = False) -> None:
    """Raises ValueError unless what was saved is made like what this teacher would save: numbers where it has numbers, and so on.

    Keys and lengths are not compared: lists grow, and who restores them knows how long they must be.

    Args:
        may_lack: None may stand for what was not known when it was saved, such as a cell that nobody had seen.
    """
    if saved is None and may_lack:
        return
    if isinstance(own, Mapping):
        if not isinstance(saved, Mapping):
            raise ValueError(f"{name} must be a mapping, got {saved!r}")
        for key in own.keys() & saved.keys():
            require_alike(f"{name}.{key}", saved[key], own[key], may_lack=may_lack)
    elif isinstance(own, list | tuple):
        if not isinstance(saved, list | tuple):
            raise ValueError(f"{name} must be a list, got {saved!r}")
        for i, item in enumerate(saved if own else ()):
            require_alike(f"{name}[{i}]", item, own[min(i, len(own) - 1)], may_lack=may_lack)
    elif isinstance(own, Real) and not isinstance(own, bool):
        if not isinstance(saved, Real) or isinstance(saved, bool) or (math.isfinite(own) and not math.isfinite(saved)):
            raise ValueError(f"{name} must be a number, got {saved!r}")
        if isinstance(own, Integral) and not float(saved).is_integer():
            raise ValueError(f"{name} must be a whole number, got {saved!r}")
    elif own is not None and not isinstance(saved, type(own)):
        raise ValueError(f"{name} must be {type(own).__name__}, got {saved!r}")
