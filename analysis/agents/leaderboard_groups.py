"""The leaderboard by kind of user and of reply: strictness in the open, hidden intention, persona, family and strategies folded up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from analysis.agents.evaluated import Cell, Entry
from analysis.agents.leaderboard import GROUPINGS, RATES, Group
from analysis.agents.leaderboard_table import Column, block, table

TITLES = {"intention": "By hidden intention", "persona": "By persona", "family": "By family: hidden intention and persona"}
UNHEARD = "none"
"""Among the strategies: replies in which none is heard."""


def by_strictness(group: Group) -> list[str]:
    """Score, success and failure by strictness; nothing where there is one strictness."""
    levels = sorted(named(group, "strictness"), key=float)
    return tables(group, "strictness", levels) if len(levels) > 1 else []


def folded(group: Group) -> list[str]:
    """Figures by who the users were and by what the agents did, each part to be opened; nothing of what no agent was told."""
    parts = {TITLES[key]: tables(group, key, named(group, key)) for key in GROUPINGS}
    parts["Strategies"] = strategies(group)
    return [f"<details><summary>{escape(title)}</summary>{''.join(found)}</details>" for title, found in parts.items() if found]


def strategies(group: Group) -> list[str]:
    """In what share of its replies each agent uses each strategy."""
    names = sorted(named(group, "strategies"), key=lambda name: (name == UNHEARD, name))
    columns = [column("strategies", name, "share of replies in which it is heard", "{:.0%}") for name in names]
    return [block("Share of replies by strategy", table(group, columns), "A reply can have several, or none.")] if names else []


def tables(group: Group, key: str, names: Sequence[str]) -> list[str]:
    """Score, success and failure by group of dialogues; those that no agent was told are left out.

    Args:
        key: of `agent.json`.
        names: of the groups, a column each.
    """
    found = []
    for what, rate, form in (("score", None, "{:.1f}"), *((rate.removesuffix("_rate"), rate, "{:.0%}") for rate in RATES)):
        columns = [column(key, name, f"{what}, {key} {name}", form, rate) for name in names]
        if any(figure(entry) for entry in group.entries for _, _, figure, _ in columns):
            found.append(block(f"{what.capitalize()} by {key}", table(group, columns)))
    return found


def named(group: Group, key: str) -> list[str]:
    """What an agent of the group was told of under a key of `agent.json`."""
    return sorted({name for entry in group.entries for name in entry.found.get(key) or {}})


def column(key: str, name: str, meaning: str, form: str, rate: str | None = None) -> Column:
    """One group of dialogues, or one strategy.

    Args:
        rate: success or failure instead of the group's own figure.
    """
    return name.replace("_", " "), meaning, cell_of(key, name, rate), form


def cell_of(key: str, name: str, rate: str | None) -> Callable[[Entry], Cell]:
    """The figure of such a column."""

    def found(entry: Entry) -> Cell:
        cell = (entry.found.get(key) or {}).get(name)
        return cell.get(rate) if cell and rate else cell

    return found
