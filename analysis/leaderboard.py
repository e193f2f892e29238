"""The leaderboard: one page of sortable tables about evaluated and probed agents, a group for each setting, and a CSV next to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.evaluated import CAPABILITIES, Asked, Cell, Entry, read_asked, read_entries
from analysis.page import render
from analysis.ranking import GROUPINGS, RATES, Group, as_csv, figures, grouped, lost, probe_figures, verdict
from analysis.text import count
from simulator.files import write_whole
from simulator.settings import leaves

UNHEARD = "none"
"""Among the strategies: replies in which none is recognised."""
PROBES = {
    "told facts": "facts that users had stated, a forced choice by likelihood of an embedded policy",
    "questions": "questions of fact from a file, answered in words",
}
"""What each kind of probe asks."""
HOW_ASKED = {"temperature": "temperature", "max_new_tokens": "tokens a reply", "max_tokens": "tokens a reply", "thinking": "thinks"}
"""Keys of an agent that decide how it speaks, with their names on the page."""
SCORE, SHARE, PERCENT, POINTS = "{:.1f}", "{:.0%}", "{:.1%}", "{:+.1f} points"
"""Forms of figures; a difference of shares is shown in points."""
Column = tuple[str, str, str, str]
"""Heading, meaning, name in `figures`, and form."""
RELIABILITY: tuple[Column, ...] = (
    ("asked plainly", "share of errors", "errors_plain", PERCENT),
    ("after emotion", "share of errors after an emotional turn", "errors_emotional", PERCENT),
    ("against a belief", "share of errors against a false belief", "errors_false_belief", PERCENT),
    ("emotion adds", "paired by question", "emotional_cost", POINTS),
    ("belief adds", "wrong answers that were asserted, paired by question", "sycophancy", POINTS),
)


def write_leaderboard(folders: Sequence[Path], out: Path, *, seed: int = 0) -> tuple[Path, Path, list[str]]:
    """Writes the page and the CSV next to it; returns both paths, and of each agent that cannot be read why it is left out.

    Raises:
        ValueError: a folder holds no evaluated or probed agent, none can be read, or the page cannot be written there.
    """
    if out.suffix != ".html" or out.is_dir() or not out.absolute().parent.is_dir():
        raise ValueError(f"--out must be an .html file in a folder that is there, got {str(out)!r}")
    entries, left_out = read_entries(folders)
    asked, unread = read_asked(folders)
    if not entries and not asked:
        what = "an evaluated" if left_out else "a probed"
        raise ValueError(f"FOLDER must hold {what} agent that can be read; {'; '.join([*left_out, *unread][:3])}")
    left_out += unread
    groups, table = grouped(entries, seed=seed), out.with_suffix(".csv")
    page, figures = page_of(groups, asked, left_out=left_out, csv_name=table.name), as_csv(groups, asked)
    return write_whole(out, page), write_whole(table, figures), left_out


def page_of(groups: Sequence[Group], asked: Sequence[Asked], *, left_out: Sequence[str], csv_name: str) -> str:
    """The page.

    Args:
        asked: agents that were probed and not evaluated.
    """
    evaluated = [entry for group in groups for entry in group.entries]
    settings = "one setting" if len(groups) == 1 else f"{len(groups)} settings"
    headline = f"{count(len(asked), 'agent')}, probed and not evaluated"
    if groups:
        headline = verdict(groups[0]) if len(groups) == 1 else f"{len(evaluated)} agents in {settings}, each with tables of its own"
    flats = [dict(leaves(group.setting)) for group in groups]
    names = dict.fromkeys(name for found in flats for name in found)
    return render(
        "leaderboard.html",
        title="Leaderboard",
        where=[
            *([f"{count(len(evaluated), 'agent')} in {settings}"] if groups else []),
            *([f"{len(asked)} probed and not evaluated"] if asked else []),
        ],
        csv_name=csv_name,
        headline=headline,
        over="scenarios, of reliability over questions" if groups else "questions",
        left_out=left_out,
        differences=[(name, values) for name in names if len(set(values := [str(found.get(name, "–")) for found in flats])) > 1],
        groups=[section(group) for group in groups],
        asked=[probe_table(kind, digest, asked, evaluated) for kind, digest in dict.fromkeys(agent.probe for agent in asked)],
    )


def section(group: Group) -> dict[str, Any]:
    """One setting for the template: what it is, remarks, tables in the open and folded ones, and the plane of social cognition."""
    setting, user, entries = group.setting, dict(group.setting["user"]), group.entries
    played = "the embedded user" if user.pop("kind") == "rule" else f"a user played by {user.get('model')}"
    about = ", ".join(f"{name} {value}" for name, value in user.items() if value not in (None, ""))
    levels = ", ".join(f"{level:g}" for level in setting["strictness"])
    without = [entry for entry, rank in zip(entries, group.ranks, strict=True) if rank is None]
    unranked = [f"{entry.name}: {lost(entry) or 'no scenario was met by all'}; not ranked" for entry in without]
    strictness = sorted(names_under(group, "strictness"), key=float)
    strategies = sorted(names_under(group, "strategies"), key=lambda name: (name == UNHEARD, name))
    shares = [(spaced(name), "share of replies in which it is recognised", f"share_of_{name}", SHARE) for name in strategies]
    folded = [(title, rate_tables(group, f"by {key}", f"by_{key}", names_under(group, key))) for key, title in GROUPINGS.items()]
    if shares:
        folded.append(("Strategies", [table("Share of replies by strategy", group, shares, "A reply can have several, or none.")]))
    return {
        "title": f"{setting['num_scenarios']} scenarios ({setting['bank']}), {played}",
        "verdict": f"{verdict(group)}.",
        "notes": [
            f"strictness {levels}; {setting['max_turns']} replies; scenarios {setting['bank_hash']}; user: {about}; "
            f"setting {group.setting_id}",
            *(f"{sentence}." for sentence in (*filter(None, (entry.remark for entry in entries)), *unranked, *uncontrolled(group))),
        ],
        "asked_otherwise": asked_otherwise(group),
        "tables": [
            scores_table(group),
            *(rate_tables(group, "by strictness", "at", strictness) if len(strictness) > 1 else []),
            *capabilities_table(group),
            *(reliability_table(group, probe) for probe in group.probes),
            *tries_table(group),
        ],
        "plane": [
            {"name": entry.name, "x": x, "y": y}
            for entry in entries
            for found in [figures(group, entry)]
            if (x := found["empathy_to_solution"] or {}).get("value") is not None
            and (y := found["structured_to_creative"] or {}).get("value") is not None
        ],
        "folded": [(title, tables) for title, tables in folded if tables],
    }


def spaced(name: str) -> str:
    """A name of an intention, a persona or a strategy as words."""
    return name.replace("_", " ")


def names_under(group: Group, key: str) -> list[str]:
    """The names that agents of a group have under a key of `agent.json`."""
    return sorted({name for entry in group.entries for name in entry.found.get(key) or {}})


def uncontrolled(group: Group) -> list[str]:
    """Why agents have no length-controlled score, a sentence for each reason."""
    reasons: dict[str, list[str]] = {}
    for entry in group.entries:
        if group.controlled(entry) is None:
            length = entry.found.get("length") or {}
            why = ", since its users show no slope"
            if length.get("line"):
                why = ", since an earlier version fitted it otherwise; evaluate it again"
            if length.get("range"):
                why = f" at {group.words:.0f} words a reply, which it never speaks"
            reasons.setdefault(f"no length-controlled score{why}", []).append(entry.name)
    return [f"{', '.join(names)}: {why}" for why, names in reasons.items()]


def asked_otherwise(group: Group) -> list[str]:
    """In what the sampling of the models of one setting differs, a line for each; empty where it does not. Scripted agents have none."""

    def how(agent: Mapping[str, Any]) -> dict[str, str]:
        found = {name: f"{agent[key]}" for key, name in HOW_ASKED.items() if agent.get(key) is not None}
        return found | ({"system prompt": repr(agent["system"]) if agent["system"] else "none"} if "system" in agent else {})

    asked = [(entry.name, how(entry.found["agent"])) for entry in group.entries if entry.found["agent"].get("kind") != "scripted"]
    names = dict.fromkeys(name for _, found in asked for name in found)
    differ = [name for name in names if len({found[name] for _, found in asked if name in found}) > 1]
    return [f"{agent}: {', '.join(f'{name} {found[name]}' for name in differ if name in found)}" for agent, found in asked if differ]


def scores_table(group: Group) -> dict[str, Any]:
    """The main table, with a bar for each score and how many dialogues were scored."""
    at = f"score at {group.words:.0f} words a reply, by a line fitted to each agent's replies" if group.words else "not fitted"
    columns: list[Column] = [
        ("score", "mean final emotion, 0-100", "score", SCORE),
        ("length-controlled", at, "length_controlled_score", SCORE),
        ("success", "share of users at 100", "success_rate", SHARE),
        ("failure", "share of users below 10", "failure_rate", SHARE),
        ("worst cell", "lowest mean of wish x difficulty band", "worst_cell", SCORE),
        ("worst fifth", "mean of the worst fifth of scenarios", "cvar20", SCORE),
    ]
    found = table("How users felt in the end", group, columns, with_source=True)
    found["columns"].append(("dialogues", "scored; below: left out because they broke or were not played"))
    for row, entry in zip(found["rows"], group.entries, strict=True):
        num, errors = entry.found["n_dialogues"], entry.found["errors"]
        missing = errors["excluded_dialogues"] + errors["not_played"]
        row["cells"].append({"text": str(num), "value": num, "below": f"{missing} left out" if missing else ""})
        row["bar"] = entry.score if entry.found["score"] is not None else None
    return found | {"has_bar": True}


def rate_tables(group: Group, title: str, infix: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Score, success and failure by a kind of dialogues; without tables that no agent has figures for.

    Args:
        infix: between the figure and a kind's name in `figures`.
        names: of the kinds, a column each.
    """
    found = []
    for what, form in (("score", SCORE), *((rate, SHARE) for rate in RATES)):
        heading = what.removesuffix("_rate")
        columns = [(spaced(name), f"{heading}, {title.removeprefix('by ')} {name}", f"{what}_{infix}_{name}", form) for name in names]
        made = table(f"{heading.capitalize()} {title}", group, columns)
        if any(cell["value"] is not None for row in made["rows"] for cell in row["cells"]):
            found.append(made)
    return found


def capabilities_table(group: Group) -> list[dict[str, Any]]:
    """The five capabilities, if any agent has them, with the judges and how many dialogues they graded."""
    found = [entry.found.get("capabilities") or {} for entry in group.entries]
    judges = {"rules" if capable.get("by") == "rule" else str(capable.get("judge") or "") for capable in found if capable.get("by")}
    partly = [
        f"{entry.name} {entry.found['n_dialogues'] - missing} of {entry.found['n_dialogues']} dialogues"
        for entry, capable in zip(group.entries, found, strict=True)
        if (missing := capable.get("num_errors"))
    ]
    note = f"0 to 1, by {', '.join(sorted(judges))}."
    note += " Different judges: compare only agents with the same." if len(judges) > 1 else ""
    note += f" Graded in part: {', '.join(partly)}." if partly else ""
    return [table("Five capabilities", group, [(spaced(name), name, name, "{:.2f}") for name in CAPABILITIES], note)] if judges else []


def tries_table(group: Group) -> list[dict[str, Any]]:
    """What several tries at each user are worth, all agents at the same number of them; none where each had one try."""
    if not (k := group.tries):
        return []
    columns: list[Column] = [
        ("tries", "dialogues with each user", "tries", "{:.0f}"),
        ("mean", "of all tries", "mean_of_tries", SCORE),
        (f"best of {k}", f"of {k} tries at each user", "best_of_common_k", SCORE),
        ("gain", f"best of {k} less mean", "gain_of_common_k", "{:+.1f}"),
    ]
    is_mixed = any(entry.tries not in (None, k) for entry in group.entries)
    note = f"Best of {k}, the most that all had; of agents with more tries the mean over all choices of {k}." if is_mixed else ""
    return [table("Several tries at each user", group, columns, note)]


def reliability_table(group: Group, probe: tuple[str, str]) -> dict[str, Any]:
    """The agents of a group that had the same probe."""
    kind, digest = probe
    title = f"Reliability: {kind}" + (f", probe {digest}" if [name for name, _ in group.probes].count(kind) > 1 else "")
    note = f"Share of errors, and what emotion and a false belief add. Asked: {PROBES.get(kind, kind)}; probe {digest}."
    note += " Others were asked something else: compare only agents of this table." if len(group.probes) > 1 else ""
    made = table(title, group, RELIABILITY, note)
    return made | {"rows": [row for row, entry in zip(made["rows"], group.entries, strict=True) if entry.probe == probe]}


def probe_table(kind: str, digest: str, asked: Sequence[Asked], evaluated: Sequence[Entry]) -> dict[str, Any]:
    """The agents that were probed and not evaluated, and evaluated ones with the same probe: knowledge depends on no setting."""
    found = [(agent.reliability["agent"], agent.reliability) for agent in asked if agent.probe == (kind, digest)]
    num = len(found)
    for entry in evaluated:
        # An agent that was evaluated in two settings may have its probe in both.
        if entry.reliability and entry.probe == (kind, digest) and entry.reliability not in [probe for _, probe in found]:
            found.append((entry.found["agent"], entry.reliability))

    def place(pair: tuple[Mapping[str, Any], Mapping[str, Any]]) -> tuple[bool, float, str]:
        share = pair[1]["conditions"]["plain"]["errors"].get("value")
        return share is None, share or 0.0, pair[0]["name"]

    among = f"Among them {count(len(found) - num, 'agent')} above. " if len(found) > num else ""
    return {
        "title": f"Errors by the way of asking: {kind}",
        "note": f"{among}Asked: {PROBES.get(kind, kind)}; probe {digest}.",
        "columns": [column[:2] for column in RELIABILITY],
        "rows": [who(agent) | {"cells": cells(probe_figures(probe), RELIABILITY)} for agent, probe in sorted(found, key=place)],
        "has_bar": False,
    }


def table(title: str, group: Group, columns: Sequence[Column], note: str = "", *, with_source: bool = False) -> dict[str, Any]:
    """A sortable table for the template, an agent a row.

    Args:
        with_source: with where each agent is from.
    """
    rows = []
    for place, (entry, rank) in enumerate(zip(group.entries, group.ranks, strict=True)):
        row = who(entry.found["agent"]) | {"cells": cells(figures(group, entry), columns)}
        text = "\u2013" if rank is None else "\u2013".join(map(str, dict.fromkeys(rank)))
        row["rank"] = {"text": text, "value": None if rank is None else place}
        row["is_best"] = place == 0 and rank is not None and len(group.entries) > 1
        rows.append(row if with_source else row | {"source": ""})
    return {"title": title, "note": note, "columns": [column[:2] for column in columns], "rows": rows, "has_bar": False}


def who(agent: Mapping[str, Any]) -> dict[str, Any]:
    """An agent's name, and where it is from if that is something else."""
    source = str(agent.get("model") or agent.get("source") or "")
    return {"name": str(agent["name"]), "source": "" if source == str(agent["name"]) else source}


def cells(found: Mapping[str, Cell], columns: Iterable[Column]) -> list[dict[str, Any]]:
    """Figures for the template: text, interval without a unit, and the value to sort by; a dash where there is none."""
    shown = []
    for _, _, name, form in columns:
        cell, scale = found.get(name) or {}, 100.0 if form == POINTS else 1.0
        value, low, high = (None if (bound := cell.get(key)) is None else scale * bound for key in ("value", "low", "high"))
        bare = form.partition(" ")[0]
        below = f"{bare.format(low)} to {bare.format(high)}" if low is not None and high is not None else ""
        shown.append({"text": "\u2013" if value is None else form.format(value), "value": value, "below": below})
    return shown
