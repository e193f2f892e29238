"""Which shape a file of ours has, so that one which somebody edited is refused in a sentence and not in the middle of a page.

A shape is `NUMBER`, `TEXT`, `ANYTHING`, a list of one shape for all its items, or names with the shape of each. Null is let be, which is
how a number that is none is written, and so are names that a shape does not know; those of a `Whole` one must all be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NUMBER, TEXT, ANYTHING = "a number", "a text", "anything"
EACH = "*"
"""As a name: all that are not named."""

Shape = str | list[Any] | Mapping[str, Any]


class Whole(dict[str, Any]):
    """Names of which none may lack."""


def misfit(value: Any, shape: Shape, name: str = "") -> str:
    """What is wrong with a value read from JSON or YAML, as `<where> must be <what>, got <value>`; empty where it fits.

    Args:
        name: where it stands; empty for the file as a whole.
    """
    if shape == ANYTHING:
        return ""
    if isinstance(shape, Mapping):
        return misfit_of_names(value, shape, name)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return says(name, "a list", value)
        return first(misfit(item, shape[0], f"{name}[{i}]") for i, item in enumerate(value) if item is not None)
    kinds = (int, float) if shape == NUMBER else str
    return "" if isinstance(value, kinds) and not isinstance(value, bool) else says(name, shape, value)


def misfit_of_names(value: Any, shape: Mapping[str, Any], name: str) -> str:
    """As `misfit`, of an object."""
    if not isinstance(value, Mapping):
        return says(name, "an object with names", value)
    is_whole, prefix = isinstance(shape, Whole), f"{name}." if name else ""
    if is_whole and (lacking := [key for key in shape if key not in value]):
        return says(f"{prefix}{lacking[0]}", "there", "nothing")
    told = {key: item for key, item in value.items() if is_whole or item is not None}
    return first(misfit(item, shape.get(key, shape.get(EACH, ANYTHING)), f"{prefix}{key}") for key, item in told.items())


def first(found: Any) -> str:
    """The first text that is not empty."""
    return next(filter(None, found), "")


def says(name: str, what: str, value: Any) -> str:
    """The complaint; a long value is cut."""
    shown = value if value == "nothing" else f"{value!r}"
    return f"{name or 'it'} must be {what}, got {shown if len(shown) <= 60 else shown[:57] + '...'}"


SCORES: Shape = {
    "score": NUMBER,
    "score_ci95": [NUMBER],
    "by_strictness": {EACH: NUMBER},
    "n_dialogues": NUMBER,
    "auc": NUMBER,
}
CHANGE: Shape = {"before": NUMBER, "after": NUMBER, "change": NUMBER, "change_ci95": [NUMBER]}
ENDS: Mapping[str, Any] = {"start": NUMBER, "end": NUMBER}
TRIED = Whole(by_k=[NUMBER])
SUMMARY_SHAPE: Shape = {
    **dict.fromkeys(("seed", "steps", "wall_s", "cpu_s", "policy_tokens", "simulator_calls"), NUMBER),
    "errors": {EACH: NUMBER},
    "heldout": SCORES,
    "start": SCORES,
    "reference": {EACH: {"score": NUMBER}},
    "entropy": ENDS,
    "reward_density": ENDS,
    "strictness": {**ENDS, "trace": [NUMBER]},
    "collapse": {"alarms": [{"name": TEXT, "step": NUMBER, "message": TEXT}]},
    "mismatch": {EACH: NUMBER},
    "versions": {EACH: TEXT},
    "best_of": Whole(k=NUMBER, users=NUMBER, start=TRIED, end=TRIED, beyond=NUMBER),
    "reliability": {
        "n": NUMBER,
        "errors": {EACH: CHANGE},
        "emotional_cost": CHANGE,
        "sycophancy": CHANGE,
        "margin_nats": {EACH: CHANGE},
    },
}
"""Of `summary.json`, as far as comparisons and pages read it."""
PROVENANCE_SHAPE: Shape = {"git_commit": TEXT, "earlier_git_commits": [TEXT], "versions": {EACH: ANYTHING}, "overrides": [ANYTHING]}
PLAN_SHAPE: Shape = {
    **{key: [TEXT] for key in ("read", "arms", "overrides")},
    "contrasts": [[TEXT]],
    "primary": TEXT,
    "tuning": {EACH: TEXT},
    "choose": {"best": [TEXT]},
    "seeds": [NUMBER],
    "threshold": NUMBER,
}
CHOSEN_SHAPE: Shape = {"picks": [Whole(pattern=TEXT, arm=TEXT, means={EACH: NUMBER})]}
KEPT_SHAPE: Shape = {"tasks": TEXT, "copied_tasks": TEXT}
