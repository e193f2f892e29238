"""The best of several tries before and after training, on the page of a run that was told to take them."""

from __future__ import annotations

from html import escape

from analysis.runs import Run, setting
from analysis.wording import grid_table, text

TITLE = "<h2>One try against the best of several</h2>"


def best_of(run: Run) -> str:
    """Mean final emotion of single tries and of the best of 1 to k; empty where each user was met once, or a part of it lacks."""
    found = setting(run.summary, "best_of")
    if any(setting(found, name) is None for name in ("users", "beyond")):
        return ""
    if not len(setting(found, "start.by_k", [])) == len(setting(found, "end.by_k", [])) == setting(found, "k"):
        return ""
    header = (f"{found['users']} held-out users", *(f"best of {j}" for j in range(1, found["k"] + 1)))
    rows = [[when, *(text(value, "{:.1f}") for value in found[key]["by_k"])] for when, key in (("before", "start"), ("after", "end"))]
    note = (
        f"On the small grid, mean final emotion. One try after training less the best of {found['k']} before it: {found['beyond']:+.1f}; "
        "above 0 training found what choosing among the prior's tries does not."
    )
    return f'{TITLE}<p class="note">{escape(note)}</p>{grid_table(header, rows)}'
