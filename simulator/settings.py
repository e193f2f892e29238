"""Settings: dataclasses checked by pydantic, each field declared once with its type, range and meaning.

@dataclass(config=SETTINGS)
class BudgetConfig:
steps: int = Field(0, ge=0)
\"\"\"Optimiser steps; 0 sets no limit.\"\"\"
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict

SETTINGS = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Unknown names, NaN and infinite numbers are refused."""


def setting(tree: Mapping[str, Any] | None, dotted: str, default: Any = None) -> Any:
    """A nested value by its dotted name; `default` where a part is missing or the value is None."""
    value: Any = tree
    for part in dotted.split("."):
        if not isinstance(value, Mapping) or value.get(part) is None:
            return default
        value = value[part]
    return value


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every setting in a nested mapping, in its order; an empty mapping has none."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from leaves(value, f"{name}.")
        else:
            yield name, value
