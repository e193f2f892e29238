"""The leaderboard: one page of sortable tables about evaluated and probed agents, a group for each setting, and a CSV next to it.

A setting is everything but the agent: scenarios, strictness, user, world, length. Scores of different settings are not comparable.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.evaluated import CAPABILITIES, Cell, Entry, score_within
from analysis.page import render
from analysis.stats import HIGH, LOW
from analysis.text import count
from simulator.files import write_whole
from simulator.settings import leaves

RATES = ("success_rate", "failure_rate")
GROUPINGS = {"intention": "By hidden intention", "persona": "By persona", "family": "By family: hidden intention and persona"}
"""Keys of `agent.json` that group dialogues by user, with their titles."""
PROBES = {
    "told facts": "facts that users had stated, a forced choice by likelihood of an embedded policy",
    "questions": "questions of fact from a file, answered in words",
}
"""What each kind of probe asks."""
Column = tuple[str, str, str, str]
"""Heading, meaning, name in `Group.figures`, and form; a difference of shares is shown in points."""
PROBE_COLUMNS: tuple[Column, ...] = (
    ("asked plainly", "share of errors", "errors_plain", "{:.1%}"),
    ("after emotion", "share of errors after an emotional turn", "errors_emotional", "{:.1%}"),
    ("against a belief", "share of errors against a false belief", "errors_false_belief", "{:.1%}"),
    ("emotion adds", "paired by question", "emotional_cost", "{:+.1f} points"),
    ("belief adds", "wrong answers that were asserted, paired by question", "sycophancy", "{:+.1f} points"),
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The agents of one setting, best first."""

    setting: dict[str, Any]
    setting_id: str
    entries: tuple[Entry, ...]
    ranks: tuple[tuple[int, int] | None, ...]
    """First and last place of each agent, from 1, in 95 % of redrawn sets of scenarios; None where it is not whole, or no scenario was met
    by all that are."""
    words: float | None
    """Words a reply at which length-controlled scores are given: the geometric mean over the agents."""

    @classmethod
    def by_setting(cls, entries: Sequence[Entry], *, seed: int) -> list[Group]:
        """The agents by setting, the setting with most of them first; agents that are not whole come last and have no rank."""
        found: dict[str, list[Entry]] = {}
        for entry in entries:
            found.setdefault(json.dumps(entry.found["setting"], sort_keys=True), []).append(entry)

        def place(entry: Entry) -> tuple[bool, float, str]:
            score = entry.found["score"]
            return bool(entry.lost), math.inf if score is None else -score, entry.name

        groups = []
        for members in sorted(found.values(), key=lambda members: (-len(members), members[0].found["setting_id"])):
            best_first = sorted(members, key=place)
            lengths = [length for entry in best_first if (length := (entry.found.get("length") or {}).get("words_per_reply"))]
            groups.append(
                cls(
                    setting=best_first[0].found["setting"],
                    setting_id=best_first[0].found["setting_id"],
                    entries=tuple(best_first),
                    ranks=tuple(ranks([{} if entry.lost else entry.found["per_scenario"] for entry in best_first], seed=seed)),
                    words=float(2.0 ** np.mean(np.log2(lengths))) if lengths else None,
                )
            )
        return groups

    @property
    def tries(self) -> int | None:
        """Tries at each user at which bests are compared: the fewest of the agents with several."""
        return min((entry.tries for entry in self.entries if entry.tries), default=None)

    def names(self, key: str) -> list[str]:
        """The names that agents have under a key of `agent.json`."""
        return sorted({name for entry in self.entries for name in entry.found.get(key) or {}})

    def verdict(self) -> str:
        """The headline: the leader among ranked agents, and who is not ranked."""
        first = self.entries[0]
        if all(entry.found["score"] is None for entry in self.entries):
            return "No agent could be scored"
        if first.lost:
            return "No agent can be ranked: dialogues broke, ran out of context or were not played"
        others = [entry.name for entry in self.entries if entry.lost]
        rivals = [entry.name for entry, rank in zip(self.entries[1:], self.ranks[1:], strict=True) if rank and rank[0] == 1]
        if len(others) == len(self.entries) - 1:
            lead = ""
        elif rivals:
            lead = f"; with other users {', '.join(rivals)} could lead"
        elif self.ranks[0] == (1, 1):
            lead = " and leads in at least 39 of 40 draws of the users"
        else:
            # No rival leads in one draw of forty by itself, or no two agents met the same users.
            lead = "; whether others would lead with other users is open"
        end = f"; {', '.join(others)} {'is' if len(others) == 1 else 'are'} not ranked" if others else ""
        return f"{first.name} scores {first.found['score']:.1f}{lead}{end}"

    def figures(self, entry: Entry) -> dict[str, Cell]:
        """Every figure of an agent by name, as its columns in the CSV."""
        found, length = entry.found, entry.found.get("length") or {}
        low, high = found["score_ci95"]
        capable, social, best = (found.get(key) or {} for key in ("capabilities", "social_cognition", "best_of_k"))
        common: dict[str, Any] = {}
        if best and (k := self.tries) == best["k"]:
            common = best
        elif best:
            # Of fewer tries the expectation over all choices of so many, without an interval in older evaluations.
            value = best["by_k"][str(k)]
            common = best.get("expected", {}).get(str(k)) or {"best": {"value": value}, "gain": {"value": value - best["mean"]["value"]}}
        by_user: dict[str, Cell] = {}
        for key in GROUPINGS:
            for name, cell in (found.get(key) or {}).items():
                by_user |= {f"score_by_{key}_{name}": cell, **{f"{rate}_by_{key}_{name}": cell.get(rate) for rate in RATES}}
        return {
            "score": {"value": found["score"], "low": low, "high": high},
            "length_controlled_score": score_within(length, self.words) if self.words else None,
            **{name: found["intervals"][name] for name in (*RATES, "worst_cell", "cvar20")},
            **{f"score_at_{level}": cell for level, cell in found["strictness"].items()},
            **{f"{rate}_at_{level}": cell.get(rate) for rate in RATES for level, cell in found["strictness"].items()},
            **{name: capable.get(name) for name in CAPABILITIES},
            **{name: social.get(name) for name in ("empathy_to_solution", "structured_to_creative")},
            # Without a range it was fitted to dialogues by an earlier version.
            "points_per_doubling": length.get("points_per_doubling") if length.get("range") else None,
            "tries": {"value": entry.tries},
            "mean_of_tries": best.get("mean"),
            "best_of_k": best.get("best"),
            "best_of_common_k": common.get("best"),
            "gain_of_common_k": common.get("gain"),
            **entry.errors,
            **by_user,
            **{f"share_of_{name}": share for name, share in (found.get("strategies") or {}).items()},
        }

    def section(self) -> dict[str, Any]:
        """One setting for the template: its remarks, tables in the open and folded ones, and the plane of social cognition."""
        setting, user, entries = self.setting, dict(self.setting["user"]), self.entries
        played = "the embedded user" if user.pop("kind") == "rule" else f"a user played by {user.get('model')}"
        about = ", ".join(f"{name} {value}" for name, value in user.items() if value not in (None, ""))
        levels = ", ".join(f"{level:g}" for level in setting["strictness"])
        figures = [self.figures(entry) for entry in entries]
        unranked = [
            f"{entry.name}: {entry.lost or 'no scenario was met by all'}; not ranked"
            for entry, rank in zip(entries, self.ranks, strict=True)
            if rank is None
        ]
        uncontrolled: dict[str, list[str]] = {}
        for entry, found in zip(entries, figures, strict=True):
            if found["length_controlled_score"] is None:
                length = entry.found.get("length") or {}
                is_fitted = length.get("line") and length.get("range")
                why = f" at {self.words:.0f} words a reply, which it never speaks" if is_fitted else ", since no line fits its replies"
                uncontrolled.setdefault(f"no length-controlled score{why}", []).append(entry.name)
        remarks = [
            *filter(None, (entry.remark for entry in entries)),
            *unranked,
            *(f"{', '.join(names)}: {why}" for why, names in uncontrolled.items()),
        ]
        strictness = sorted(self.names("strictness"), key=float)
        folded = [(title, self.rate_tables(f"by {key}", f"by_{key}", self.names(key))) for key, title in GROUPINGS.items()]
        # `none` are replies in which no strategy is recognised.
        if strategies := sorted(self.names("strategies"), key=lambda name: (name == "none", name)):
            shares = [
                (name.replace("_", " "), "share of replies in which it is recognised", f"share_of_{name}", "{:.0%}") for name in strategies
            ]
            folded.append(("Strategies", [self.table("Share of replies by strategy", shares, "A reply can have several, or none.")]))
        plane = [
            {"name": entry.name, "x": found["empathy_to_solution"], "y": found["structured_to_creative"]}
            for entry, found in zip(entries, figures, strict=True)
            if all((found[axis] or {}).get("value") is not None for axis in ("empathy_to_solution", "structured_to_creative"))
        ]
        return {
            "title": f"{setting['num_scenarios']} scenarios ({setting['bank']}), {played}",
            "verdict": f"{self.verdict()}.",
            "notes": [
                f"strictness {levels}; {setting['max_turns']} replies; scenarios {setting['bank_hash']}; user: {about}; "
                f"setting {self.setting_id}",
                *(f"{sentence}." for sentence in remarks),
            ],
            "asked_otherwise": self.asked_otherwise(),
            "tables": [
                self.scores_table(),
                *(self.rate_tables("by strictness", "at", strictness) if len(strictness) > 1 else []),
                *self.other_tables(),
            ],
            "plane": plane,
            "folded": [(title, tables) for title, tables in folded if tables],
        }

    def asked_otherwise(self) -> list[str]:
        """In what the sampling of the models differs, a line for each; empty where it does not. Scripted agents have none."""
        keys = {"temperature": "temperature", "max_new_tokens": "tokens a reply", "max_tokens": "tokens a reply", "thinking": "thinks"}
        asked = list[tuple[str, dict[str, str]]]()
        for entry in self.entries:
            if (agent := entry.agent).get("kind") != "scripted":
                how = {name: f"{agent[key]}" for key, name in keys.items() if agent.get(key) is not None}
                if "system" in agent:
                    how["system prompt"] = repr(agent["system"]) if agent["system"] else "none"
                asked.append((entry.name, how))
        names = dict.fromkeys(name for _, how in asked for name in how)
        differ = [name for name in names if len({how[name] for _, how in asked if name in how}) > 1]
        return [f"{agent}: {', '.join(f'{name} {how[name]}' for name in differ if name in how)}" for agent, how in asked if differ]

    def scores_table(self) -> dict[str, Any]:
        """The main table, with a bar for each score and how many dialogues were scored."""
        at = f"score at {self.words:.0f} words a reply, by a line fitted to each agent's replies" if self.words else "not fitted"
        columns: list[Column] = [
            ("score", "mean final emotion, 0-100", "score", "{:.1f}"),
            ("length-controlled", at, "length_controlled_score", "{:.1f}"),
            ("success", "share of users at 100", "success_rate", "{:.0%}"),
            ("failure", "share of users below 10", "failure_rate", "{:.0%}"),
            ("worst cell", "lowest mean of wish x difficulty band", "worst_cell", "{:.1f}"),
            ("worst fifth", "mean of the worst fifth of scenarios", "cvar20", "{:.1f}"),
        ]
        found = self.table("How users felt in the end", columns, with_source=True)
        found["columns"].append(("dialogues", "scored; below: left out because they broke or were not played"))
        for row, entry in zip(found["rows"], self.entries, strict=True):
            num, errors = entry.found["n_dialogues"], entry.found["errors"]
            missing = errors["excluded_dialogues"] + errors["not_played"]
            row["cells"].append({"text": str(num), "value": num, "below": f"{missing} left out" if missing else ""})
            row["bar"] = self.figures(entry)["score"] if entry.found["score"] is not None else None
        return found | {"has_bar": True}

    def rate_tables(self, title: str, infix: str, names: Sequence[str]) -> list[dict[str, Any]]:
        """Score, success and failure by a kind of dialogues; without tables that no agent has figures for.

        Args:
            infix: between the figure and a kind's name in `Group.figures`.
            names: of the kinds, a column each.
        """
        found = []
        for what, form in (("score", "{:.1f}"), *((rate, "{:.0%}") for rate in RATES)):
            heading = what.removesuffix("_rate")
            columns = [
                (name.replace("_", " "), f"{heading}, {title.removeprefix('by ')} {name}", f"{what}_{infix}_{name}", form) for name in names
            ]
            made = self.table(f"{heading.capitalize()} {title}", columns)
            if any(cell["value"] is not None for row in made["rows"] for cell in row["cells"]):
                found.append(made)
        return found

    def other_tables(self) -> list[dict[str, Any]]:
        """The five capabilities if any agent has them, each probe of reliability, and several tries at each user if any had them."""
        tables = []
        found = [entry.found.get("capabilities") or {} for entry in self.entries]
        if judges := {
            "rules" if capable.get("by") == "rule" else str(capable.get("judge") or "") for capable in found if capable.get("by")
        }:
            partly = [
                f"{entry.name} {entry.found['n_dialogues'] - missing} of {entry.found['n_dialogues']} dialogues"
                for entry, capable in zip(self.entries, found, strict=True)
                if (missing := capable.get("num_errors"))
            ]
            note = f"0 to 1, by {', '.join(sorted(judges))}."
            note += " Different judges: compare only agents with the same." if len(judges) > 1 else ""
            note += f" Graded in part: {', '.join(partly)}." if partly else ""
            tables.append(self.table("Five capabilities", [(name.replace("_", " "), name, name, "{:.2f}") for name in CAPABILITIES], note))
        probes = list(dict.fromkeys(entry.probe for entry in self.entries if entry.probe))
        for kind, digest in probes:
            title = f"Reliability: {kind}" + (f", probe {digest}" if [name for name, _ in probes].count(kind) > 1 else "")
            note = f"Share of errors, and what emotion and a false belief add. Asked: {PROBES.get(kind, kind)}; probe {digest}."
            note += " Others were asked something else: compare only agents of this table." if len(probes) > 1 else ""
            made = self.table(title, PROBE_COLUMNS, note)
            had = [row for row, entry in zip(made["rows"], self.entries, strict=True) if entry.probe == (kind, digest)]
            tables.append(made | {"rows": had})
        if k := self.tries:
            columns: list[Column] = [
                ("tries", "dialogues with each user", "tries", "{:.0f}"),
                ("mean", "of all tries", "mean_of_tries", "{:.1f}"),
                (f"best of {k}", f"of {k} tries at each user", "best_of_common_k", "{:.1f}"),
                ("gain", f"best of {k} less mean", "gain_of_common_k", "{:+.1f}"),
            ]
            is_mixed = any(entry.tries not in (None, k) for entry in self.entries)
            note = f"Best of {k}, the most that all had; of agents with more tries the mean over all choices of {k}." if is_mixed else ""
            tables.append(self.table("Several tries at each user", columns, note))
        return tables

    def table(self, title: str, columns: Sequence[Column], note: str = "", *, with_source: bool = False) -> dict[str, Any]:
        """A sortable table for the template, an agent a row.

        Args:
            with_source: with where each agent is from.
        """
        rows = []
        for place, (entry, rank) in enumerate(zip(self.entries, self.ranks, strict=True)):
            row = row_of(entry, self.figures(entry), columns)
            text = "\u2013" if rank is None else "\u2013".join(map(str, dict.fromkeys(rank)))
            row["rank"] = {"text": text, "value": None if rank is None else place}
            row["is_best"] = place == 0 and rank is not None and len(self.entries) > 1
            rows.append(row if with_source else row | {"source": ""})
        return {"title": title, "note": note, "columns": [column[:2] for column in columns], "rows": rows, "has_bar": False}


def ranks(per_scenario: Sequence[Mapping[str, float]], *, seed: int) -> list[tuple[int, int] | None]:
    """The ranks of each agent in 95 % of 2,000 redrawn sets of scenarios; all agents meet the same users in each draw.

    Args:
        per_scenario: mean score by scenario, an agent each, empty for one without a rank; only scenarios that all others share are drawn.
    """
    scored = [i for i, scores in enumerate(per_scenario) if scores]
    shared = sorted(set.intersection(*(set(per_scenario[i]) for i in scored))) if scored else []
    found: list[tuple[int, int] | None] = [None] * len(per_scenario)
    if not shared:
        return found
    scores_SA = np.array([[per_scenario[i][name] for i in scored] for name in shared])
    picks_RS = np.random.default_rng(seed).integers(0, len(shared), size=(2000, len(shared)))
    means_RA = scores_SA[picks_RS].mean(axis=1)
    better_RAA = means_RA[:, None, :] > means_RA[:, :, None] + 1e-9
    low_A, high_A = np.quantile(1 + better_RAA.sum(axis=2), [LOW, HIGH], axis=0, method="nearest")
    for place, i in enumerate(scored):
        found[i] = (int(low_A[place]), int(high_A[place]))
    return found


def as_csv(groups: Sequence[Group], asked: Sequence[Entry] = ()) -> str:
    """Every figure of every agent, each followed by its bounds; no line where nothing was measured.

    Args:
        asked: agents that were probed and not evaluated.
    """
    rows: list[tuple[dict[str, Any], dict[str, Cell]]] = []
    for group in groups:
        for entry, rank in zip(group.entries, group.ranks, strict=True):
            (first, last), found, (kind, digest) = rank or (None, None), entry.found, entry.probe or ("", "")
            length, errors, capable = (found.get(key) or {} for key in ("length", "errors", "capabilities"))
            shortest, longest = length.get("range") or (None, None)
            facts = {
                "setting_id": group.setting_id,
                "agent": entry.name,
                "source": entry.agent.get("source", ""),
                **{key: entry.agent.get(key) for key in ("temperature", "system", "thinking")},
                "tokens_per_reply": entry.agent.get("max_new_tokens", entry.agent.get("max_tokens")),
                "rank_from": first,
                "rank_to": last,
                "dialogues": found["n_dialogues"],
                "excluded_dialogues": errors["excluded_dialogues"],
                "cut_short": errors.get("cut_short", 0),
                "not_played": errors["not_played"],
                "samples": found.get("samples", 1),
                "k": entry.tries,
                "common_k": group.tries if entry.tries else None,
                "probe_kind": kind,
                "probe_hash": digest,
                "words_per_reply": length.get("words_per_reply"),
                "words_of_shortest": shortest,
                "words_of_longest": longest,
                "capabilities_by": capable.get("by"),
                "dialogues_without_grades": capable.get("num_errors"),
            }
            rows.append((facts, group.figures(entry)))
    for entry in asked:
        kind, digest = entry.probe or ("", "")
        facts = {"agent": entry.name, "source": entry.agent.get("source", ""), "probe_kind": kind, "probe_hash": digest}
        rows.append((facts, entry.errors))
    lines, bounds = [], {"value": "", "low": "_low", "high": "_high"}
    for facts, figures in rows:
        # Some figures are on the page alone.
        kept = [name for name in figures if name not in ("tries", "mean_of_tries", "gain_of_common_k", "emotional_cost")]
        lines.append(facts | {f"{name}{end}": (figures[name] or {}).get(bound) for name in kept for bound, end in bounds.items()})
    return pd.DataFrame(lines, dtype=object).to_csv(index=False, lineterminator="\r\n")


def write_leaderboard(folders: Sequence[Path], out: Path, *, seed: int = 0) -> tuple[Path, Path, list[str]]:
    """Writes the page and the CSV next to it; returns both paths, and of each agent that cannot be read why it is left out.

    Raises:
        ValueError: a folder holds no evaluated or probed agent, none can be read, or the page cannot be written there.
    """
    if out.suffix != ".html" or out.is_dir() or not out.absolute().parent.is_dir():
        raise ValueError(f"--out must be an .html file in a folder that is there, got {str(out)!r}")
    entries, left_out = Entry.read_all(folders)
    if not entries:
        raise ValueError(f"FOLDER must hold an evaluated or probed agent that can be read; {'; '.join(left_out[:3])}")
    asked = [entry for entry in entries if not entry.found]
    groups, table = Group.by_setting([entry for entry in entries if entry.found], seed=seed), out.with_suffix(".csv")
    evaluated = [entry for group in groups for entry in group.entries]
    settings = "one setting" if len(groups) == 1 else f"{len(groups)} settings"
    headline = f"{count(len(asked), 'agent')}, probed and not evaluated"
    if groups:
        headline = groups[0].verdict() if len(groups) == 1 else f"{len(evaluated)} agents in {settings}, each with its tables"
    flats = [dict(leaves(group.setting)) for group in groups]
    names = dict.fromkeys(name for found in flats for name in found)
    page = render(
        "leaderboard.html",
        title="Leaderboard",
        where=[
            *([f"{count(len(evaluated), 'agent')} in {settings}"] if groups else []),
            *([f"{len(asked)} probed and not evaluated"] if asked else []),
        ],
        csv_name=table.name,
        headline=headline,
        over="scenarios, of reliability over questions" if groups else "questions",
        left_out=left_out,
        differences=[(name, values) for name in names if len(set(values := [str(found.get(name, "–")) for found in flats])) > 1],
        groups=[group.section() for group in groups],
        asked=[probe_table(probe, asked, evaluated) for probe in dict.fromkeys(entry.probe for entry in asked) if probe],
    )
    return write_whole(out, page), write_whole(table, as_csv(groups, asked)), left_out


def probe_table(probe: tuple[str, str], asked: Sequence[Entry], evaluated: Sequence[Entry]) -> dict[str, Any]:
    """The agents that were probed and not evaluated, and evaluated ones with the same probe: knowledge depends on no setting."""
    found = [entry for entry in asked if entry.probe == probe]
    num, (kind, digest) = len(found), probe
    for entry in evaluated:
        # An agent that was evaluated in two settings may have its probe in both.
        if entry.probe == probe and entry.reliability not in [other.reliability for other in found]:
            found.append(entry)

    def place(entry: Entry) -> tuple[bool, float, str]:
        share = (entry.errors["errors_plain"] or {}).get("value")
        return share is None, share or 0.0, entry.name

    among = f"Among them {count(len(found) - num, 'agent')} above. " if len(found) > num else ""
    return {
        "title": f"Errors by the way of asking: {kind}",
        "note": f"{among}Asked: {PROBES.get(kind, kind)}; probe {digest}.",
        "columns": [column[:2] for column in PROBE_COLUMNS],
        "rows": [row_of(entry, entry.errors, PROBE_COLUMNS) for entry in sorted(found, key=place)],
        "has_bar": False,
    }


def row_of(entry: Entry, figures: Mapping[str, Cell], columns: Iterable[Column]) -> dict[str, Any]:
    """An agent for the template: its name, where it is from if that is something else, and figures with interval and value to sort by."""
    source = str(entry.agent.get("model") or entry.agent.get("source") or "")
    cells = []
    for _, _, name, form in columns:
        cell, scale = figures.get(name) or {}, 100.0 if form.endswith("points") else 1.0
        value, low, high = (None if (bound := cell.get(key)) is None else scale * bound for key in ("value", "low", "high"))
        bare = form.partition(" ")[0]
        below = f"{bare.format(low)} to {bare.format(high)}" if low is not None and high is not None else ""
        cells.append({"text": "\u2013" if value is None else form.format(value), "value": value, "below": below})
    return {"name": entry.name, "source": "" if source == entry.name else source, "cells": cells}
