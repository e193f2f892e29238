"""Checks of what trainers and checkpoints give to a teacher or a monitor."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any


def require_whole(name: str, value: Any, least: int) -> int:
    """The value as an int; raises ValueError unless it is a whole number, numpy's included, of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def require_same(name: str, saved: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises ValueError unless a saved state belongs to the object that is to be restored.

    Args:
        expected: values by name (kind, version, settings); mappings are compared entry by entry, so that the message names one setting.
    """
    for key, value in expected.items():
        found = saved.get(key) if isinstance(saved, Mapping) else None
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            require_same(f"{name}.{key}", found, value)
        elif found != value:
            raise ValueError(f"{name}.{key} must be {value!r}, got {found!r}; resume with the settings and the version that saved it")
