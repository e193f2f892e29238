"""The leaderboard's files: the page and, beside it, every figure of every agent as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.agents.evaluated import CAPABILITIES, Asked, Cell, Entry, read_asked, read_entries
from analysis.agents.leaderboard import GROUPINGS, RATES, Group, grouped
from analysis.agents.leaderboard_page import page
from analysis.agents.probed import WAYS, errors_of
from simulator.files import write_whole


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
        # Of an older version it is of dialogues, and something else (`length_control`).
        "points_per_doubling": length.get("points_per_doubling") if length.get("range") else None,
        "best_of_k": best["best"] if best else None,
        "best_of_common_k": common.get("best"),
        **errors(probe),
        **by_user(entry),
        **{f"share_of_{name}": share for name, share in (found.get("strategies") or {}).items()},
    }


def errors(probe: Mapping[str, Any] | None) -> dict[str, Cell]:
    """What an agent errs in by the way it is asked, and what a false belief adds, by the name of their columns; None without a probe."""
    told: dict[str, Cell] = {f"errors_{way}": errors_of(way)(probe) if probe else None for way in WAYS}
    return told | {"sycophancy": probe["sycophancy"] if probe else None}


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
            length = found.get("length") or {}
            shortest, longest = length.get("range") or (None, None)
            row: dict[str, Any] = {
                "setting_id": group.setting_id,
                "agent": entry.name,
                "source": found["agent"].get("source", ""),
                **{key: found["agent"].get(key) for key in ("temperature", "system", "thinking")},
                "tokens_per_reply": found["agent"].get("max_new_tokens", found["agent"].get("max_tokens")),
                "rank_from": first,
                "rank_to": last,
                "dialogues": found["n_dialogues"],
                "excluded_dialogues": found["errors"]["excluded_dialogues"],
                "cut_short": found["errors"].get("cut_short", 0),
                "not_played": found["errors"]["not_played"],
                "samples": found.get("samples", 1),
                "k": entry.tries,
                "common_k": group.tries if entry.tries else None,
                "probe_kind": kind,
                "probe_hash": digest,
                "words_per_reply": length.get("words_per_reply"),
                "words_of_shortest": shortest,
                "words_of_longest": longest,
                "capabilities_by": (found.get("capabilities") or {}).get("by"),
                "dialogues_without_grades": (found.get("capabilities") or {}).get("num_errors"),
            }
            yield row | with_bounds(columns(group, entry))


def rows_of_asked(asked: Sequence[Asked]) -> Iterator[dict[str, Any]]:
    """The lines of agents that were probed and not evaluated: without a setting, a rank and a score."""
    for agent in asked:
        who, (kind, digest) = agent.reliability["agent"], agent.probe
        row = {"agent": agent.name, "source": who.get("source", ""), "probe_kind": kind, "probe_hash": digest}
        yield row | with_bounds(errors(agent.reliability))


def with_bounds(cells: Mapping[str, Cell]) -> dict[str, Any]:
    """Figures as they stand in a line: each followed by its bounds."""
    found: dict[str, Any] = {}
    for name, cell in cells.items():
        cell = cell or {}
        found |= {name: cell.get("value"), f"{name}_low": cell.get("low"), f"{name}_high": cell.get("high")}
    return found


def as_csv(groups: Sequence[Group], asked: Sequence[Asked] = ()) -> str:
    """All figures of all agents; no line where nothing was measured."""
    lines = [*rows(groups), *rows_of_asked(asked)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), restval="")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def write_leaderboard(folders: Sequence[Path], out: Path, *, seed: int = 0) -> tuple[Path, Path, list[str]]:
    """Writes the page and, beside it, the CSV; returns both paths, and of each agent that cannot be read why it is left out.

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
    groups = grouped(entries, seed=seed)
    table = out.with_suffix(".csv")
    # Both before either is written: a page that fails must not leave another page's table beside it.
    board, figures = page(groups, csv_name=table.name, left_out=left_out, asked=asked), as_csv(groups, asked)
    return write_whole(out, board), write_whole(table, figures), left_out
