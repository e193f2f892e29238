"""A table of the leaderboard, an agent a row: sortable, every figure with its interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from analysis.agents.evaluated import Cell, Entry
from analysis.agents.leaderboard import Group, Rank

Column = tuple[str, str, Callable[[Entry], Cell], str]
"""Heading, what it means, the figure, and its form."""


def block(title: str, content: str, note: str = "") -> str:
    """A titled part."""
    remark = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section><h3>{escape(title)}</h3>{remark}<div class="scroll">{content}</div></section>'


def table(group: Group, columns: Sequence[Column], *, with_bar: bool = False, among: Sequence[Entry] | None = None) -> str:
    """A sortable table, an agent a row.

    Args:
        among: only these agents, with the ranks that they have in the group; None for all.
    """
    heads = [heading("rank", "places that 95 % of redrawn sets of scenarios give"), heading("agent", "", "agent")]
    heads += [heading(name, meaning) for name, meaning, _, _ in columns]
    if with_bar:
        heads += ["<th></th>", heading("dialogues", "scored; below: left out because they broke or were not played")]
    body = []
    for place, (entry, rank) in enumerate(zip(group.entries, group.ranks, strict=True)):
        if among is not None and entry not in among:
            continue
        cells = [rank_cell(rank, place), agent_cell(entry, with_source=with_bar)]
        cells += [figure_cell(figure(entry), form) for _, _, figure, form in columns]
        if with_bar:
            cells += [f"<td>{bar(entry.score)}</td>", dialogues_cell(entry)]
        leads = ' class="best"' if place == 0 and rank and len(group.entries) > 1 else ""
        body.append(f"<tr{leads}>{''.join(cells)}</tr>")
    return f'<table class="board"><thead><tr>{"".join(heads)}</tr></thead><tbody>{"".join(body)}</tbody></table>'


def heading(name: str, meaning: str, kind: str = "") -> str:
    """A heading that sorts."""
    return f'<th class="{kind}" title="{escape(meaning)}"><button type="button">{escape(name)}</button></th>'


def rank_cell(rank: Rank, place: int) -> str:
    """The places that an agent can have; a dash, which sorts last, for none."""
    if rank is None:
        return "<td>\u2013</td>"
    first, last = rank
    return f'<td data-v="{place}">{first}</td>' if first == last else f'<td data-v="{place}">{first}\u2013{last}</td>'


def agent_cell(entry: Entry, *, with_source: bool) -> str:
    """The agent's name, and in one of the tables where it is from."""
    return name_cell(entry.found["agent"], with_source=with_source)


def name_cell(agent: Mapping[str, Any], *, with_source: bool) -> str:
    """The same, of an agent as its file has it."""
    name, source = str(agent["name"]), agent.get("model") or agent.get("source") or ""
    below = f"<small>{escape(str(source))}</small>" if with_source and source and source != name else ""
    return f'<td class="agent" data-v="{escape(name)}">{escape(name)}{below}</td>'


def figure_cell(cell: Cell, form: str) -> str:
    """A figure with its interval beneath, which has no unit of its own; a dash where there is none."""
    value, low, high = ((cell or {}).get(name) for name in ("value", "low", "high"))
    if value is None:
        return "<td>\u2013</td>"
    bare, _, _ = form.partition(" ")
    beneath = f"<small>{bare.format(low)} to {bare.format(high)}</small>" if low is not None and high is not None else ""
    return f'<td data-v="{value:.6g}">{form.format(value)}{beneath}</td>'


def dialogues_cell(entry: Entry) -> str:
    """How many dialogues were scored, and how many were not."""
    errors = entry.found["errors"]
    lost = errors["excluded_dialogues"] + errors["not_played"]
    beneath = f"<small>{lost} left out</small>" if lost else ""
    return f'<td data-v="{entry.found["n_dialogues"]}">{entry.found["n_dialogues"]}{beneath}</td>'


def bar(cell: Cell) -> str:
    """A score on the scale from 0 to 100."""
    value, low, high = ((cell or {}).get(name) for name in ("value", "low", "high"))
    if value is None:
        return ""
    span = (
        "" if low is None or high is None else f'<line class="interval" x1="{5 + 1.2 * low:.1f}" y1="7" x2="{5 + 1.2 * high:.1f}" y2="7"/>'
    )
    track = '<line class="track" x1="5" y1="7" x2="125" y2="7"/>'
    return (
        f'<svg viewBox="0 0 130 14" aria-hidden="true">{track}{span}<circle class="point" cx="{5 + 1.2 * value:.1f}" cy="7" r="3.5"/></svg>'
    )
