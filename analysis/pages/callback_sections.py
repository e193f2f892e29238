"""What callbacks left in a run's summary under their own names, on its page: a table each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from analysis.runs import Run, leaves, setting
from analysis.wording import grid_table, text


def left_by_callbacks(run: Run) -> str:
    """Every figure by its dotted name; empty where no callback left any."""
    found = {name: setting(run.summary, name) for name in setting(run.config, "callbacks", {})}
    return "".join(
        f"<h2>{escape(name)}</h2>{grid_table(('figure', 'value'), [[key, shown(value)] for key, value in leaves(left)])}"
        for name, left in found.items()
        if isinstance(left, Mapping)
    )


def shown(value: Any) -> str:
    """A number to four digits, a list of them with commas, anything else as it is."""
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return text(value, "{:.4g}") if isinstance(value, float) else str(value)
