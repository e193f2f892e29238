"""Numbers and tables as a reader wants them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

SPECIAL = frozenset('"$`\\')
"""What a shell reads within double quotes, or make does."""


def text(value: Any, form: str) -> str:
    """The value in its form, a dash where there is none."""
    return "–" if value is None else form.format(value)


def with_interval(scores: Mapping[str, Any]) -> str:
    """A score with its 95 % interval; without one where there is none (None or NaN)."""
    bounds = scores.get("score_ci95") or (None, None)
    value = text(scores.get("score"), "{:.1f}")
    return value if any(bound is None or math.isnan(bound) for bound in bounds) else f"{value} [{bounds[0]:.1f}, {bounds[1]:.1f}]"


def way_covered(start: float, end: float, goal: float | None) -> str:
    """Which part of the distance to a better score was covered; empty where there is no such distance, or nothing of it was covered."""
    return f"{(end - start) / (goal - start):.0%}" if goal is not None and goal > start and end > start else ""


def duration(seconds: float | None) -> str:
    """Hours, minutes or seconds, as fits; a dash where there is none."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def count(number: int, noun: str) -> str:
    """The number with its noun in the plural where it needs one."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def finite(value: float | None) -> float | None:
    """The value, None where it is not defined."""
    return None if value is None or not math.isfinite(value) else float(value)


def signed(value: float, digits: int) -> str:
    """The value with its sign; what rounds to nothing has a plus."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def make_experiment(experiment: str, words: Sequence[str]) -> str:
    """The command that runs an experiment with these words, each of which is quoted already, so that it can be pasted into a shell."""
    given = " ".join(words)
    quoted = shlex.quote(given.replace("$", "$$")) if set(given) & SPECIAL else f'"{given}"'
    return f"make experiment EXP={experiment} ARGS={quoted}"


def two_columns(rows: Sequence[tuple[str, Any]]) -> str:
    """A table of names and values."""
    return "<table>" + "".join(f"<tr><th>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>" for name, value in rows) + "</table>"


def grid_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, is_list: bool = False) -> str:
    """A table whose first column is words and whose others are numbers.

    Args:
        is_list: the last column holds several numbers, which may stand in several lines.
    """
    classes = ["num"] * (len(header) - 2) + ["list" if is_list else "num"]
    head = "".join(f'<th class="{kind}">{escape(name)}</th>' for kind, name in zip(["", *classes], header, strict=True))
    body = "".join(
        f"<tr><th>{escape(row[0])}</th>"
        + "".join(f'<td class="{kind}">{escape(value)}</td>' for kind, value in zip(classes, row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def facts_strip(facts: Iterable[tuple[str, str, str]]) -> str:
    """Numbers that one asks for first, in a row: what each is called, the number, and a remark."""
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd><small>{note}</small></div>" for name, value, note in facts)
    return f'<dl class="facts">{cells}</dl>'


def nth(num: int) -> str:
    """`every`, or `every 2nd`, `every 3rd` and so on."""
    if num == 1:
        return "every"
    ending = "th" if num % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(num % 10, "th")
    return f"every {num}{ending}"


def in_points(share: float | None) -> float | None:
    """A share, or a difference of shares, in hundredths."""
    return None if share is None else 100.0 * share


def anew(sweep: str) -> str:
    """A name for the sweep that repeats another one: under its own name what is finished or kept would be taken as it is."""
    return "again" if sweep != "again" else "again_2"
