"""Numbers and commands as text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any


def text(value: Any, form: str) -> str:
    """The value in its form; a dash for None."""
    return "–" if value is None else form.format(value)


def with_interval(scores: Mapping[str, Any]) -> str:
    """A score with its 95 % interval, where there is one."""
    bounds = scores.get("score_ci95") or (None, None)
    value = text(scores.get("score"), "{:.1f}")
    return value if any(finite(bound) is None for bound in bounds) else f"{value} [{bounds[0]:.1f}, {bounds[1]:.1f}]"


def way_covered(start: float, end: float, goal: float | None) -> str:
    """The share of the distance to a better score that was covered; empty where there is no such distance, or nothing was covered."""
    return f"{(end - start) / (goal - start):.0%}" if goal is not None and goal > start and end > start else ""


def duration(seconds: float | None) -> str:
    """Hours, minutes or seconds, as fits; a dash for None or what is not finite."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def count(number: int, noun: str) -> str:
    """The number with its noun, in the plural where it needs one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def finite(value: float | None) -> float | None:
    """The value, None where it is not finite."""
    return None if value is None or not math.isfinite(value) else float(value)


def signed(value: float, digits: int) -> str:
    """The value with its sign; what rounds to 0 has a plus."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def nth(num: int) -> str:
    """`every`, `every 2nd`, `every 3rd` and so on."""
    ending = "th" if num % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(num % 10, "th")
    return "every" if num == 1 else f"every {num}{ending}"


def make_experiment(experiment: str, words: Sequence[str]) -> str:
    """The command that runs an experiment, to paste into a shell.

    Args:
        words: overrides, each quoted already.
    """
    given = " ".join(words)
    # Within double quotes the shell reads these, and make reads `$`.
    quoted = shlex.quote(given.replace("$", "$$")) if set(given) & set('"$`\\') else f'"{given}"'
    return f"make experiment EXP={experiment} ARGS={quoted}"
