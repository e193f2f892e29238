"""Which shape a file of ours has, so that one which somebody edited is refused in a sentence and not in the middle of a page.

A shape is `NUMBER`, `POINTS`, `SHARE`, `SET`, `INTEGER`, `TEXT`, `ANYTHING`, a list of one shape for all its items, a tuple of the shape of
each, or names with the shape of each. Null is let be by name, and where a number is expected (a `SET` one apart): so one that is none is
written; NaN is let be, too. Names that a shape does not know are let be as well; those of a `Complete` one must all be there, but for a
`Perhaps`, and what a `Filled` one has is never null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NUMBER, POINTS, INTEGER, TEXT, ANYTHING = "a number", "a number in [0, 100]", "a whole number", "a text", "anything"
SHARE = "a number in [0, 1]"
SET = "a number, not null"
KINDS: Mapping[Any, tuple[type, ...]] = {
    NUMBER: (int, float, type(None)),
    POINTS: (int, float, type(None)),
    SHARE: (int, float, type(None)),
    SET: (int, float),
    INTEGER: (int,),
    TEXT: (str,),
}
HIGHEST: Mapping[Any, float] = {POINTS: 100, SHARE: 1}
"""Of numbers that begin at 0."""
EACH, EACH_NUMBER = "*", "*number"
"""As a name: all that are not named; all that are not, and are numbers."""


@dataclass(frozen=True)
class Perhaps:
    """Of a `Complete` one: may be lacking or null."""

    shape: Any


Shape = str | list[Any] | tuple[Any, ...] | Mapping[str, Any] | Perhaps


class Complete(dict[str, Any]):
    """All of these names must be there, and none null, but those that are `Perhaps`."""


class Filled(dict[str, Any]):
    """Whatever is named must not be null."""


def misfit(value: Any, shape: Shape, name: str = "") -> str:
    """What is wrong with a value read from JSON or YAML, as `<where> must be <what>, got <value>`; empty where it fits.

    Args:
        name: where it stands; empty for the file as a whole.
    """
    if shape == ANYTHING:
        return ""
    if isinstance(shape, Mapping):
        return misfit_of_names(value, shape, name)
    if isinstance(shape, Perhaps):
        return misfit(value, shape.shape, name)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return says(name, "a list", value)
        return first(misfit(item, shape[0], f"{name}[{i}]") for i, item in enumerate(value))
    if isinstance(shape, tuple):
        if not isinstance(value, list) or len(value) != len(shape):
            return says(name, f"a list of {len(shape)}", value)
        return first(misfit(item, each, f"{name}[{i}]") for i, (item, each) in enumerate(zip(value, shape, strict=True)))
    fits = isinstance(value, KINDS[shape]) and not isinstance(value, bool)
    if fits and shape in HIGHEST and value is not None and not math.isnan(value):
        fits = 0 <= value <= HIGHEST[shape]
    return "" if fits else says(name, shape, value)


def misfit_of_names(value: Any, shape: Mapping[str, Any], name: str) -> str:
    """As `misfit`, of an object."""
    if not isinstance(value, Mapping):
        return says(name, "an object with names", value)
    prefix = f"{name}." if name else ""
    if isinstance(shape, Complete) and (
        lacking := [key for key in shape if value.get(key) is None and not isinstance(shape[key], Perhaps)]
    ):
        return f"{prefix}{lacking[0]} must be there"
    if isinstance(shape, Filled) and (empty := [key for key, item in value.items() if item is None]):
        return f"{prefix}{empty[0]} must not be null"
    if EACH_NUMBER in shape and (strays := [key for key in value if not is_number(key)]):
        return says(name, "named by numbers", strays[0])
    others = shape.get(EACH, shape.get(EACH_NUMBER, ANYTHING))
    return first(misfit(item, shape.get(key, others), f"{prefix}{key}") for key, item in value.items() if item is not None)


def is_number(text: Any) -> bool:
    """Whether a name is a number."""
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def first(found: Any) -> str:
    """The first text that is not empty."""
    return next(filter(None, found), "")


def says(name: str, what: str, value: Any) -> str:
    """The complaint; a long value is cut."""
    shown = f"{value!r}"
    return f"{name or 'it'} must be {what}, got {shown if len(shown) <= 60 else shown[:57] + '...'}"


INTERVAL = (NUMBER, NUMBER)
SCORES: Shape = {
    **dict.fromkeys(("score", "worst_cell", "cvar20", "auc"), POINTS),
    **dict.fromkeys(("success_rate", "failure_rate", "cut_short", "n_dialogues"), NUMBER),
    "score_ci95": INTERVAL,
    "by_strictness": {EACH_NUMBER: POINTS},
}
CHANGE: Shape = {"before": NUMBER, "after": NUMBER, "change": NUMBER, "change_ci95": INTERVAL}
ENDS: Mapping[str, Any] = {"start": NUMBER, "end": NUMBER}
SUMMARY_SHAPE: Shape = {
    **dict.fromkeys(("seed", "steps", "wall_s", "cpu_s", "policy_tokens", "simulator_calls", "simulator_cost", "cut_short"), NUMBER),
    "errors": {EACH: NUMBER},
    "heldout": SCORES,
    "start": SCORES,
    "reference": {EACH: {"score": NUMBER}},
    "entropy": ENDS,
    "reward_density": ENDS,
    "strictness": {**ENDS, "trace": [NUMBER]},
    "collapse": {"alarms": [Complete(name=TEXT, step=NUMBER, message=TEXT)]},
    "mismatch": {EACH: NUMBER},
    "versions": {EACH: TEXT},
    "reliability": {
        "n": NUMBER,
        "errors": {EACH: CHANGE},
        "emotional_cost": CHANGE,
        "sycophancy": CHANGE,
        "margin_nats": {EACH: CHANGE},
    },
}
"""Of `summary.json`, as far as comparisons and pages read it."""
CELL: Shape = dict.fromkeys(("value", "low", "high"), NUMBER)
GRADED: Mapping[str, Any] = {**dict.fromkeys(("value", "low", "high"), POINTS), "success_rate": CELL, "failure_rate": CELL}
BY_USER: Shape = Filled({EACH: GRADED})
WHO = Complete(name=TEXT, **dict.fromkeys(("kind", "source", "model", "fingerprint"), Perhaps(TEXT)))
"""An agent: what it is called, and what tells it from another."""
AGENT_SHAPE: Shape = {
    "agent": WHO,
    "setting": Complete(user=Complete(kind=TEXT), bank=TEXT, bank_hash=TEXT, num_scenarios=INTEGER, strictness=[SET], max_turns=INTEGER),
    "setting_id": TEXT,
    "n_dialogues": INTEGER,
    "score": POINTS,
    "score_ci95": (POINTS, POINTS),
    "per_scenario": Filled({EACH: POINTS}),
    "intervals": Complete(success_rate=CELL, failure_rate=CELL, worst_cell=GRADED, cvar20=GRADED),
    "strictness": Filled({EACH_NUMBER: GRADED}),
    **dict.fromkeys(("intention", "persona", "family"), BY_USER),
    "errors": Complete(planned=INTEGER, not_played=INTEGER, excluded_dialogues=INTEGER, cut_short=Perhaps(INTEGER)),
    "capabilities": {
        **dict.fromkeys(("by", "judge", "why_not", "complaint"), TEXT),
        **dict.fromkeys(("num_errors", "num_not_sent"), INTEGER),
        EACH: CELL,
    },
    "strategies": {EACH: CELL},
    "social_cognition": {"empathy_to_solution": CELL, "structured_to_creative": CELL},
    "length": {
        "words_per_reply": NUMBER,
        "points_per_doubling": CELL,
        "range": INTERVAL,
        "line": {"intercept": NUMBER, "slope": NUMBER, "covariance": (INTERVAL, INTERVAL)},
    },
    "best_of_k": {"k": INTEGER, "best": CELL, "gain": CELL, "mean": CELL, "by_k": {EACH: NUMBER}},
}
"""Of `agent.json`, as far as the leaderboard reads it."""
ASKED: Shape = Complete(errors=dict.fromkeys(("value", "low", "high"), SHARE))
PROBE_SHAPE: Shape = {
    "agent": WHO,
    "probe": Complete(kind=TEXT, hash=TEXT, temperature=Perhaps(NUMBER), system=Perhaps(TEXT)),
    "conditions": Complete(plain=ASKED, emotional=ASKED, false_belief=ASKED),
    "emotional_cost": CELL,
    "sycophancy": CELL,
}
"""Of `reliability.json`, likewise."""
PROVENANCE_SHAPE: Shape = {"git_commit": TEXT, "earlier_git_commits": [TEXT], "versions": {EACH: ANYTHING}, "overrides": [ANYTHING]}
