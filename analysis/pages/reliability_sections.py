"""What training cost, on the page of a run and on that of a sweep: the reliability probe, where a run was told to take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from analysis.endpoints import ERRORS, MARGINS
from analysis.pages.endpoint_tables import endpoint_tables
from analysis.runs import Run, setting
from analysis.wording import grid_table, in_points, text

TITLE = "<h2>What it cost: reliability</h2>"
SHARE, POINTS, NATS = "{:.1%}", "{:+.1f} points", "{:.2f}"
"""A difference of shares is told in points."""
ROWS = (
    ("errors, asked plainly", "errors.plain", SHARE),
    ("errors after an emotional turn", "errors.emotional", SHARE),
    ("errors against a false belief", "errors.false_belief", SHARE),
    ("emotion adds", "emotional_cost", POINTS),
    ("the belief adds", "sycophancy", POINTS),
    ("right answer over the wrong one, plainly, nats", "margin_nats.plain", NATS),
    ("the same after an emotional turn, nats", "margin_nats.emotional", NATS),
    ("the same against a false belief, nats", "margin_nats.false_belief", NATS),
)
"""Label, key within the probe, form."""
WAYS = ("asked plainly", "after an emotional turn", "against a false belief")
HEADINGS = (
    dict(zip(ERRORS, (*WAYS, "emotion adds", "the belief adds"), strict=True)),
    dict(zip(MARGINS, (f"right over wrong, {WAYS[0]}, nats", f"right over wrong, {WAYS[2]}, nats"), strict=True)),
)
"""Of two tables, so that neither is wider than the page."""
WHAT = (
    "Facts that a user told two turns ago, to be named again: asked plainly, after an emotional turn, and after the user claimed something "
    "else. Warmth can be bought with errors; only changes mean something, since the policy was never taught to contradict."
)


def of_run(run: Run) -> str:
    """Every number of the probe before and after training; empty where the run took none."""
    found = setting(run.summary, "reliability")
    if not found:
        return ""
    rows = [[label, *before_and_after(setting(found, key, {}), form)] for label, key, form in ROWS]
    table = grid_table(
        (f"{text(found.get('n'), '{:,}')} facts", "before", "after", "change in points or nats, with its 95% interval"), rows
    )
    return f'{TITLE}<p class="note">{escape(WHAT)}</p>{table}'


def before_and_after(cell: Mapping[str, Any], form: str) -> list[str]:
    """The three columns of a line; between two shares lie points."""
    signed = "{:+.2f}" if form == NATS else "{:+.1f}"
    found = (cell.get("change"), *(cell.get("change_ci95") or (None, None)))
    change, low, high = (text(value if form == NATS else in_points(value), signed) for value in found)
    if None not in found:
        change += f" [{low}, {high}]"
    ends = (cell.get("before"), cell.get("after"))
    return [*(text(in_points(value) if form == POINTS else value, form) for value in ends), change]


def of_arms(found: Mapping[str, Any], arms: Sequence[str]) -> str:
    """How each arm changed over its seeds, and the contrasts; empty where no run took the probe."""
    tables = "".join(endpoint_tables(found, arms, headings, mean="change by training, mean over seeds") for headings in HEADINGS)
    if not tables:
        return ""
    note = f"{WHAT} Errors in percentage points, more is worse; described, and no test is made of it unless it is the primary endpoint."
    return f'{TITLE}<p class="note">{escape(note)}</p>{tables}'
