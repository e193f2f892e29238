"""Arms of a comparison: teachers with settings, from text to object."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import Any

from curriculum import TEACHERS
from curriculum.teacher import Teacher


@dataclass(frozen=True)
class Arm:
    """A teacher with settings, as text `kind` or `kind:setting=value,setting=value`."""

    name: str
    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Reads an arm and checks it against the teacher's settings.

        Raises:
            ValueError: no such teacher or setting, or a value that does not fit.
        """
        kind, _, rest = text.partition(":")
        if kind not in TEACHERS:
            raise ValueError(f"teacher.kind must be one of {', '.join(TEACHERS)}, got {kind!r}")
        pairs = [item.partition("=") for item in rest.split(",")] if rest else []
        if any(not equals for _, equals, _ in pairs):
            raise ValueError(f"an arm must look like fixed:strictness=0.2, got {text!r}")
        settings = {name: value for name, _, value in pairs}
        configure(TEACHERS[kind][0](), settings)
        return cls(text, kind, settings)


def build_teacher(kind: str, settings: Mapping[str, Any], *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> Teacher:
    """A teacher of `kind` with `settings` by dotted name over the defaults."""
    config, teacher = TEACHERS[kind]
    return teacher(configure(config(), settings), scenarios=scenarios, group_size=group_size, seed=seed)


def configure(defaults: Any, settings: Mapping[str, Any]) -> Any:
    """A copy of the config `defaults` with `settings` (dotted names; text or values) changed, checked as a whole.

    Raises:
        ValueError: no such setting, a value of another type, or one out of range.
    """
    known = {item.name: getattr(defaults, item.name) for item in fields(defaults)}
    nested: dict[str, dict[str, Any]] = {}
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        head, _, rest = name.partition(".")
        if head not in known or bool(rest) != is_dataclass(known[head]):
            raise ValueError(f"teacher.{name} is no setting of {type(defaults).__name__}; it has {', '.join(known)}")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            changed[head] = _read(f"teacher.{name}", value, known[head])
    changed |= {head: configure(known[head], inner) for head, inner in nested.items()}
    return replace(defaults, **changed)


def _read(name: str, value: Any, default: Any) -> Any:
    """`value`, parsed if it is text and the default is none."""
    if isinstance(default, Enum):
        return type(default)(value)
    if not isinstance(value, str) or isinstance(default, str):
        return value
    words = {"true": True, "false": False, "none": None}
    try:
        parsed = words[value.lower()] if value.lower() in words else ast.literal_eval(value)
    except (ValueError, SyntaxError):
        raise ValueError(f"{name} must be like its default {default!r}, got {value!r}") from None
    if isinstance(default, float) and isinstance(parsed, int) and not isinstance(parsed, bool):
        return float(parsed)
    if default is not None and type(parsed) is not type(default):
        raise ValueError(f"{name} must be like its default {default!r}, got {value!r}")
    return parsed
