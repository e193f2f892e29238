"""Arms of a comparison: which teachers, with which settings, from a word on the command line to an object."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib.util import find_spec
from typing import Any

from curriculum import NEEDS, TEACHERS
from curriculum.teacher import Teacher

LENGTHS = {"T": 1.0, "T/2": 0.5, "2T": 2.0}
"""Values of a setting that stand for a share of the student's number of updates."""
RECORDED = "run:"
"""A setting of this and a kind of teacher stands for the tasks that it issued in a run with the same student and another seed."""


@dataclass(frozen=True)
class Arm:
    """A teacher under comparison."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """By dotted name, as text or values; the others are at their defaults."""


SURVEY = (
    Arm("fixed_.2", "fixed", {"strictness": 0.2}),
    Arm("fixed_.5", "fixed", {"strictness": 0.5}),
    Arm("fixed_.9", "fixed", {"strictness": 0.9}),
    Arm("uniform", "uniform"),
    Arm("linear", "linear", {"num_steps": "T"}),
    Arm("linear_T/2", "linear", {"num_steps": "T/2"}),
    Arm("linear_2T", "linear", {"num_steps": "2T"}),
    Arm("linear_reverse", "linear", {"num_steps": "T", "start": 1.0, "end": 0.0}),
    Arm("staged", "staged"),
    Arm("adr", "adr"),
    Arm("adarft", "adarft"),
    Arm("adarft_.05", "adarft", {"eta": 0.05}),
    Arm("adarft_.05_per_family", "adarft", {"eta": 0.05, "per_family": True}),
    Arm("adarft_.05_tagged", "adarft", {"eta": 0.05, "tagged": True}),
    Arm("rlve", "rlve"),
    Arm("rlve_.6", "rlve", {"threshold": 0.6}),
    Arm("rlve_reversible", "rlve", {"reversible": True}),
    Arm("sec", "sec"),
    Arm("sec_flat", "sec", {"scope": "flat"}),
    Arm("dump", "dump"),
    Arm("dump_flat", "dump", {"scope": "flat"}),
    Arm("progress", "progress"),
    Arm("progress_flat", "progress", {"scope": "flat"}),
    Arm("plr", "plr"),
    Arm("plr_robust", "plr", {"robust": True}),
    Arm("beta_thompson", "beta_thompson"),
    Arm("beta_thompson_progress", "beta_thompson", {"allocation.uniform_floor": 0.25}),
    Arm("frontier", "frontier"),
    Arm("frontier_no_guard", "frontier", {"guard.enabled": False}),
    Arm("yoked", "yoked", {"trace": RECORDED + "frontier"}),
    Arm("shuffled", "shuffled", {"trace": RECORDED + "frontier"}),
)
"""Arms with settings of their own, as far as their teachers are registered; a kind that is not here runs at its defaults."""


def all_arms() -> dict[str, Arm]:
    """Every registered teacher at least once, by name; those whose packages are not installed are left out."""
    kinds = [kind for kind in TEACHERS if kind not in NEEDS or find_spec(NEEDS[kind])]
    arms = [arm for arm in SURVEY if arm.kind in kinds]
    arms += [Arm(kind, kind) for kind in kinds if kind not in {arm.kind for arm in arms}]
    return {arm.name: arm for arm in arms}


def parse_arms(words: Sequence[str]) -> list[Arm]:
    """The arms that `words` name: `all`, a name of `all_arms()`, a kind, or a kind with settings as in `fixed:strictness=.2`.

    Raises:
        ValueError: no such teacher or setting, or a setting out of range.
    """
    known = all_arms()
    if "all" in words:
        return list(known.values())
    arms = [known[word] if word in known else _parse(word) for word in dict.fromkeys(words)]
    for arm in arms:
        for name, value in arm.settings.items():
            if isinstance(value, str) and value.startswith(RECORDED) and value.removeprefix(RECORDED) not in TEACHERS:
                raise ValueError(f"teacher.{name} must name one of {', '.join(TEACHERS)} after {RECORDED}, got {value!r}")
        configure(TEACHERS[arm.kind][0](), resolve(arm.settings, num_updates=100))
    return arms


def _parse(word: str) -> Arm:
    kind, _, text = word.partition(":")
    if kind not in TEACHERS:
        names = ", ".join(dict.fromkeys([*TEACHERS, *all_arms()]))
        raise ValueError(f"--teachers must be all, one of {names}, or KIND:SETTING=VALUE,..., got {word!r}")
    settings = {}
    # A comma inside brackets belongs to a list.
    for pair in re.split(r",(?![^\[]*\])", text) if text else []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--teachers must set a teacher as in KIND:SETTING=VALUE,..., got {word!r}")
        settings[name.strip()] = value.strip()
    return Arm(word, kind, settings)


def resolve(settings: Mapping[str, Any], *, num_updates: int) -> dict[str, Any]:
    """`settings` with lengths such as "T/2" made numbers."""
    lengths = {name: LENGTHS[value] for name, value in settings.items() if isinstance(value, str) and value in LENGTHS}
    return {**settings, **{name: round(share * num_updates) for name, share in lengths.items()}}


def build_teacher(kind: str, settings: Mapping[str, Any], *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> Teacher:
    """A teacher of `kind` with `settings` by dotted name over the defaults."""
    config, teacher = TEACHERS[kind]
    return teacher(configure(config(), settings), scenarios=scenarios, group_size=group_size, seed=seed)


def configure(defaults: Any, settings: Mapping[str, Any], prefix: str = "teacher") -> Any:
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
            raise ValueError(f"{prefix}.{name} is no setting of {type(defaults).__name__}; it has {', '.join(known)}")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            changed[head] = _parsed(value) if isinstance(value, str) and not isinstance(known[head], str) else value
    changed |= {head: configure(known[head], inner, f"{prefix}.{head}") for head, inner in nested.items()}
    return replace(defaults, **changed)


def _parsed(text: str) -> Any:
    """What a text says in Python, `true` and `false` included; the text itself where it says nothing."""
    words = {"true": "True", "false": "False"}
    try:
        return ast.literal_eval(words.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text
