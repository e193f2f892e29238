"""Settings: dataclasses checked by pydantic, each field declared once with its type, range and meaning.

@dataclass(config=SETTINGS)
class BudgetConfig:
steps: int = Field(0, ge=0)
\"\"\"Optimiser steps; 0 sets no limit.\"\"\"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, ValidationError

SETTINGS = ConfigDict(extra="forbid", allow_inf_nan=False)
"""Unknown names, NaN and infinite numbers are refused."""
USER_SETTINGS = ConfigDict(**SETTINGS, title="simulator", hide_input_in_errors=True)
"""The same for users (`simulator.*`), whose settings may hold a key by mistake: errors do not print them."""


def message(error: Exception, group: str = "") -> str:
    """One sentence for an error; for refused settings the first rule that they break, with the setting's dotted name.

    Args:
        group: dotted name of the settings, such as `simulator`; unset, the title of the settings if that is a group.
    """
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        said, inner = str(first["ctx"]["error"]), ".".join(map(str, first["loc"]))
        # The settings of servers say `simulator.`, also as the part `simulator.server` of another user.
        if inner == "evaluation.server":
            return said.replace("simulator.", f"{inner}.")
        return said.replace("simulator.", f"simulator.{inner}.") if inner and (group or error.title) == "simulator" else said
    rule = re.sub("^[A-Z][a-z]+ should", "must", first["msg"])
    rule = rule.replace("a dictionary or an instance of", "set by its parts, those of")
    name = ".".join(filter(None, (group or (error.title if error.title.islower() else ""), *map(str, first["loc"]))))
    return f"{name} {rule}, got {first['input']!r}"


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
