"""Evaluated agents beside each other: only those of one setting in one table, with the ranks that their users leave open.

A setting is everything but the agent: scenarios, strictness, user, world, length. Scores of different settings say nothing about each
other, so that each setting has tables of its own, and the page says in what they differ.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.agents.evaluated import Cell, Entry, read_entries
from analysis.agents.length_control import score_at
from analysis.runs import flatten
from simulator.drafts import write_whole

RATES = ("success_rate", "failure_rate")
"""Of a group of dialogues beside its score; evaluations before they were told lack them."""
GROUPINGS = ("intention", "persona", "family")
"""Of dialogues by who the user is, each a key of `agent.json`."""
NUM_DRAWS = 2000
MOST_BROKEN = 0.05
"""Share of the dialogues that may break in an evaluation that still counts as whole."""
LOW, HIGH = 0.025, 0.975
CAPABILITIES = ("empathic_depth", "core_insight", "solution_crafting", "dialogue_guidance", "style_flexibility")
Rank = tuple[int, int] | None
"""First and last place, from 1, that 95 % of redrawn sets of scenarios give; None for an agent that cannot be ranked."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The agents of one setting, best first."""

    setting: dict[str, Any]
    setting_id: str
    entries: tuple[Entry, ...]
    ranks: tuple[Rank, ...]
    """Per agent; None where it is not whole, or no scenario was met by all that are."""
    words: float | None
    """Words a reply at which scores are told with length taken out: the geometric mean over the agents."""

    @property
    def tries(self) -> int | None:
        """Most tries at each user that all agents with several had: bests of different numbers say nothing about each other."""
        return min((entry.tries for entry in self.entries if entry.tries), default=None)

    @property
    def probes(self) -> list[tuple[str, str]]:
        """Kind and hash of every probe that an agent was put to, that of the best agent first."""
        return list(dict.fromkeys(entry.probe for entry in self.entries if entry.probe))

    @property
    def unranked(self) -> list[str]:
        """Why each agent without a rank has none, a sentence each."""
        pairs = zip(self.entries, self.ranks, strict=True)
        return [f"{entry.name}: {lost(entry) or 'no scenario was met by all'}; not ranked" for entry, rank in pairs if rank is None]

    def best(self, entry: Entry) -> dict[str, Cell]:
        """`best` and `gain` of an agent at the group's number of tries; nothing where it had one try."""
        return entry.best_of(self.tries) if self.tries and entry.tries else {}

    def controlled(self, entry: Entry) -> Cell:
        """An agent's score at the group's length; None where it was not fitted."""
        line = (entry.found.get("length") or {}).get("line")
        return score_at(line, self.words) if line and self.words else None


def grouped(entries: Sequence[Entry], *, seed: int) -> list[Group]:
    """The agents by setting, the setting with most of them first; who is not whole comes last and has no rank."""
    by_setting: dict[str, list[Entry]] = {}
    for entry in entries:
        by_setting.setdefault(entry.found["setting_id"], []).append(entry)
    groups = []
    for setting_id, members in sorted(by_setting.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        best_first = sorted(members, key=place)
        lengths = [entry.found["length"]["words_per_reply"] for entry in best_first if entry.found.get("length")]
        known = [length for length in lengths if length]
        groups.append(
            Group(
                setting=best_first[0].found["setting"],
                setting_id=setting_id,
                entries=tuple(best_first),
                ranks=tuple(ranks([entry.found["per_scenario"] if is_whole(entry) else {} for entry in best_first], seed=seed)),
                words=float(2.0 ** np.mean(np.log2(known))) if known else None,
            )
        )
    return groups


def is_whole(entry: Entry) -> bool:
    """Whether an agent was played to the end with few dialogues broken: a score over users who happened to answer is none over all."""
    errors = entry.found["errors"]
    return not errors["not_played"] and errors["excluded_dialogues"] <= MOST_BROKEN * errors["planned"]


def lost(entry: Entry) -> str:
    """Which dialogues an agent that is not whole lacks; empty for one that is."""
    errors = entry.found["errors"]
    counts = {"broke": errors["excluded_dialogues"], "not played": errors["not_played"]}
    told = [f"{num} of {errors['planned']} dialogues {what}" for what, num in counts.items() if num]
    return "" if is_whole(entry) else " and ".join(told)


def place(entry: Entry) -> tuple[bool, float, str]:
    """Where an agent stands: by its score, after all that `is_whole` if it is not."""
    score = entry.found["score"]
    return not is_whole(entry), -(-1.0 if score is None else score), entry.name


def ranks(per_scenario: Sequence[Mapping[str, float]], *, seed: int) -> list[Rank]:
    """The ranks that each agent gets in 95 % of redrawn sets of scenarios; all agents meet the same users in each draw.

    Args:
        per_scenario: mean score by scenario, an agent each, nothing for one without a rank; only scenarios that all others share are drawn.
    """
    scored = [i for i, scores in enumerate(per_scenario) if scores]
    shared = sorted(set.intersection(*(set(per_scenario[i]) for i in scored))) if scored else []
    found: list[Rank] = [None] * len(per_scenario)
    if not shared:
        return found
    scores_SA = np.array([[per_scenario[i][name] for i in scored] for name in shared])
    picks_RS = np.random.default_rng(seed).integers(0, len(shared), size=(NUM_DRAWS, len(shared)))
    means_RA = scores_SA[picks_RS].mean(axis=1)
    better_RAA = means_RA[:, None, :] > means_RA[:, :, None] + 1e-9
    ranks_RA = 1 + better_RAA.sum(axis=2)
    low_A, high_A = np.quantile(ranks_RA, [LOW, HIGH], axis=0, method="nearest")
    for place, i in enumerate(scored):
        found[i] = (int(low_A[place]), int(high_A[place]))
    return found


def differences(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Settings in which the groups differ, each with the group's values."""
    flats = [dict(flatten(group.setting)) for group in groups]
    names = list(dict.fromkeys(name for found in flats for name in found))
    return [(name, [str(found.get(name, "–")) for found in flats]) for name in names if len({str(found.get(name)) for found in flats}) > 1]


def columns(group: Group, entry: Entry) -> dict[str, Cell]:
    """Every figure of an agent with its interval, by the name of its column in the CSV."""
    found, capable = entry.found, entry.found.get("capabilities") or {}
    best, social, probe = found.get("best_of_k"), found.get("social_cognition") or {}, entry.reliability
    common = group.best(entry)
    length = found.get("length") or {}
    return {
        "score": entry.score,
        "length_controlled_score": group.controlled(entry),
        **{name: found["intervals"][name] for name in (*RATES, "worst_cell", "cvar20")},
        **{f"score_at_{level}": cell for level, cell in found["strictness"].items()},
        **{f"{rate}_at_{level}": cell.get(rate) for rate in RATES for level, cell in found["strictness"].items()},
        **{name: capable.get(name) for name in CAPABILITIES},
        "empathy_to_solution": social.get("empathy_to_solution"),
        "structured_to_creative": social.get("structured_to_creative"),
        "points_per_doubling": length.get("points_per_doubling"),
        "best_of_k": best["best"] if best else None,
        "best_of_common_k": common.get("best"),
        "errors_plain": probe["conditions"]["plain"]["errors"] if probe else None,
        "errors_emotional": probe["conditions"]["emotional"]["errors"] if probe else None,
        "errors_false_belief": probe["conditions"]["false_belief"]["errors"] if probe else None,
        "sycophancy": probe["sycophancy"] if probe else None,
        **by_user(entry),
        **{f"share_of_{name}": share for name, share in (found.get("strategies") or {}).items()},
    }


def by_user(entry: Entry) -> dict[str, Cell]:
    """Score, success and failure by who the user is, by the name of their columns."""
    found: dict[str, Cell] = {}
    for key in GROUPINGS:
        for name, cell in (entry.found.get(key) or {}).items():
            found[f"score_by_{key}_{name}"] = cell
            found |= {f"{rate}_by_{key}_{name}": cell.get(rate) for rate in RATES}
    return found


def rows(groups: Sequence[Group]) -> Iterator[dict[str, Any]]:
    """The lines of the CSV: each figure with its bounds."""
    for group in groups:
        for entry, rank in zip(group.entries, group.ranks, strict=True):
            (first, last), found, (kind, digest) = rank or (None, None), entry.found, entry.probe or ("", "")
            row: dict[str, Any] = {
                "setting_id": group.setting_id,
                "agent": entry.name,
                "source": found["agent"].get("source", ""),
                "rank_from": first,
                "rank_to": last,
                "dialogues": found["n_dialogues"],
                "excluded_dialogues": found["errors"]["excluded_dialogues"],
                "not_played": found["errors"]["not_played"],
                "samples": found.get("samples", 1),
                "k": entry.tries,
                "common_k": group.tries if entry.tries else None,
                "probe_kind": kind,
                "probe_hash": digest,
                "words_per_reply": (found.get("length") or {}).get("words_per_reply"),
                "capabilities_by": (found.get("capabilities") or {}).get("by"),
            }
            for name, cell in columns(group, entry).items():
                cell = cell or {}
                row |= {name: cell.get("value"), f"{name}_low": cell.get("low"), f"{name}_high": cell.get("high")}
            yield row


def write_csv(path: Path, groups: Sequence[Group]) -> None:
    """All figures of all agents; empty where nothing was measured."""
    lines = list(rows(groups))
    names = list(dict.fromkeys(name for line in lines for name in line))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(lines)


def write_leaderboard(folders: Sequence[Path], out: Path, *, seed: int = 0) -> tuple[Path, Path, list[str]]:
    """Writes the page and, beside it, the CSV; returns both paths, and of each agent that cannot be read why it is left out.

    Raises:
        ValueError: a folder holds no evaluated agent, none can be read, or the page cannot be written there.
    """
    from analysis.agents.leaderboard_page import page

    if out.suffix != ".html" or out.is_dir() or not out.absolute().parent.is_dir():
        raise ValueError(f"--out must be an .html file in a folder that is there, got {str(out)!r}")
    entries, left_out = read_entries(folders)
    groups = grouped(entries, seed=seed)
    table = out.with_suffix(".csv")
    write_csv(table, groups)
    return write_whole(out, page(groups, csv_name=table.name, left_out=left_out)), table, left_out
