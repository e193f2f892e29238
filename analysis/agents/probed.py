"""Reliability on the leaderboard: what a probe's figures are called, and the agents that were probed and not evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.agents.evaluated import Asked, Cell, Entry
from analysis.agents.leaderboard_table import block, figure_cell, heading, name_cell
from analysis.wording import count, in_points

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
    return lambda found: {bound: in_points(found[name].get(bound)) for bound in ("value", "low", "high")}


COLUMNS: tuple[tuple[str, str, Callable[[Reliability], Cell], str], ...] = (
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
    parts = ["<h2>Agents that were probed and not evaluated</h2>"] if asked else []
    for kind, digest in dict.fromkeys(agent.probe for agent in asked):
        found = [(agent.reliability["agent"], agent.reliability) for agent in asked if agent.probe == (kind, digest)]
        for entry in evaluated:
            # An agent that was evaluated in two settings may have its probe beside it in both.
            if entry.reliability and entry.probe == (kind, digest) and entry.reliability not in [probe for _, probe in found]:
                found.append((entry.found["agent"], entry.reliability))
        others = len(found) - sum(agent.probe == (kind, digest) for agent in asked)
        among = f"Among them {count(others, 'agent')} above. " if others else ""
        note = f"{among}Asked: {PROBES.get(kind, kind)}; probe {digest}."
        parts.append(block(f"Errors by the way of asking: {kind}", errors_table(found), note))
    return "\n".join(parts)


def errors_table(probed: Sequence[tuple[Mapping[str, Any], Reliability]]) -> str:
    """A sortable table, an agent a row, who errs least when asked plainly first.

    Args:
        probed: who was asked, and what came out.
    """
    heads = [heading("agent", "", "agent"), *(heading(name, meaning) for name, meaning, _, _ in COLUMNS)]
    body = []
    for agent, found in sorted(probed, key=lambda pair: (plain_errors(pair[1]), pair[0]["name"])):
        cells = [name_cell(agent, with_source=True), *(figure_cell(figure(found), form) for _, _, figure, form in COLUMNS)]
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table class="board"><thead><tr>{"".join(heads)}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def plain_errors(found: Reliability) -> float:
    """Share of errors when asked plainly; above all shares where it was not measured."""
    share = found["conditions"]["plain"]["errors"].get("value")
    return 2.0 if share is None else share
