"""Reliability on the leaderboard: what a probe's figures are called, and the agents that were probed and not evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.agents.evaluated import Asked, Cell, Entry
from analysis.agents.leaderboard_table import block, figure_cell, heading, name_cell
from analysis.wording import in_points

WAYS = ("plain", "emotional", "false_belief")
"""Of asking, as in `reliability.json`."""
PROBES = {
    "told facts": "what users had told, a forced choice by likelihood of an embedded policy",
    "questions": "questions of fact from a file, answered in words",
}
"""What each kind of probe asks."""
Reliability = Mapping[str, Any]
"""A `reliability.json`."""


def errors_of(way: str) -> Callable[[Reliability], Cell]:
    """A column of errors in one way of asking."""
    return lambda found: found["conditions"][way]["errors"]


def added_by(name: str) -> Callable[[Reliability], Cell]:
    """A column of what a way of asking adds, in points: it is a difference of shares."""

    def points_of(found: Reliability) -> Cell:
        added = found.get(name) or {}
        return {bound: in_points(added.get(bound)) for bound in ("value", "low", "high")}

    return points_of


FIGURES: tuple[tuple[str, str, Callable[[Reliability], Cell], str], ...] = (
    ("asked plainly", "share of errors", errors_of("plain"), "{:.1%}"),
    ("after emotion", "share of errors after an emotional turn", errors_of("emotional"), "{:.1%}"),
    ("against a belief", "share of errors against a false belief", errors_of("false_belief"), "{:.1%}"),
    ("emotion adds", "paired by question", added_by("emotional_cost"), "{:+.1f} points"),
    ("belief adds", "wrong answers that were asserted, paired by question", added_by("sycophancy"), "{:+.1f} points"),
)
"""Heading, what it means, the figure, and its form."""


def asked_only(asked: Sequence[Asked], evaluated: Sequence[Entry]) -> str:
    """The agents that were not evaluated, a table for each probe; nothing where there are none.

    Args:
        evaluated: the others, which stand among them where they were asked the same: what an agent knows depends on no setting.
    """
    probes = list(dict.fromkeys(agent.probe for agent in asked))
    parts = ["<h2>Agents that were probed and not evaluated</h2>"] if asked else []
    for kind, digest in probes:
        found = [agent.reliability for agent in asked if agent.probe == (kind, digest)]
        found += [entry.reliability for entry in evaluated if entry.reliability and entry.probe == (kind, digest)]
        note = f"Evaluated ones that were asked the same are among them. Asked: {PROBES.get(kind, kind)}; probe {digest}."
        parts.append(block(f"Errors by the way of asking: {kind}", errors_table(found), note))
    return "\n".join(parts)


def errors_table(probed: Sequence[Reliability]) -> str:
    """A sortable table, an agent a row, who errs least when asked plainly first."""
    heads = [heading("agent", "", "agent"), *(heading(name, meaning) for name, meaning, _, _ in FIGURES)]
    body = []
    for found in sorted(probed, key=by_errors):
        cells = [name_cell(found["agent"], with_source=True), *(figure_cell(figure(found), form) for _, _, figure, form in FIGURES)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="board"><thead><tr>{"".join(heads)}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def by_errors(found: Reliability) -> tuple[float, str]:
    """Where an agent stands: by its errors when asked plainly, last where they were not measured."""
    share = (found["conditions"]["plain"]["errors"] or {}).get("value")
    return 2.0 if share is None else share, str(found["agent"]["name"])
