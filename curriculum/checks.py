"""One sentence for every setting out of range and every saved state that does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def require_between(name: str, value: float, low: float, high: float) -> None:
    """Raises ValueError unless `low <= value <= high`; NaN never is."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value!r}")


def require_one_of(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raises ValueError unless `value` is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} must be in {{{', '.join(map(str, allowed))}}}, got {value!r}")


def require_fields(name: str, state: Mapping[str, Any], expected: Iterable[str]) -> None:
    """Raises ValueError unless `state` has exactly the `expected` keys."""
    wanted = set(expected)
    missing, unknown = sorted(wanted - set(state)), sorted(set(state) - wanted)
    if missing or unknown:
        raise ValueError(f"{name} must have exactly the fields this version writes, got missing {missing} and unknown {unknown}")


def require_equal(name: str, value: object, expected: object) -> None:
    """Raises ValueError unless a saved `value` is what this teacher writes."""
    if value != expected:
        raise ValueError(f"{name} must be {expected!r}, got {value!r}; resume with the teacher and the version that wrote the state")
