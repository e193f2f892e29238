"""Evaluated agents of one setting: the ranks that their users leave open, and every figure of an agent by name, as the CSV has them.

A setting is everything but the agent: scenarios, strictness, user, world, length. Scores of different settings are not comparable.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.evaluated import CAPABILITIES, Asked, Cell, Entry
from analysis.stats import HIGH, LOW

Z = 1.959964
"""Half the width of a 95 % interval in standard errors."""
NUM_DRAWS = 2000
"""Sets of scenarios drawn for the ranks."""
MOST_BROKEN = 0.05
"""Share of dialogues that may break or run out of context in an evaluation that still counts as whole."""
RATES = ("success_rate", "failure_rate")
GROUPINGS = {"intention": "By hidden intention", "persona": "By persona", "family": "By family: hidden intention and persona"}
"""Keys of `agent.json` that group dialogues by user, with their titles."""
PAGE_ALONE = ("tries", "mean_of_tries", "gain_of_common_k", "emotional_cost")
"""Figures that the CSV does not have."""
Rank = tuple[int, int] | None
"""First and last place, from 1, in 95 % of redrawn sets of scenarios; None for an agent that cannot be ranked."""


def score_within(found: Mapping[str, Any], words: float) -> dict[str, float] | None:
    """`score_at`, but None where the agent does not speak at such length.

    Args:
        found: `length` of an `agent.json`; one without `range` fitted dialogues instead of replies and is not used.
    """
    line, spoken = found.get("line"), found.get("range")
    return score_at(line, words) if line and spoken and spoken[0] <= words <= spoken[1] else None


def score_at(line: Mapping[str, Any], words: float) -> dict[str, float]:
    """The length-controlled score at so many words a reply, 0-100, with its 95 % interval.

    Args:
        line: `intercept` and `slope` of final emotion over log2 of the words, and their `covariance`, [2, 2].
    """
    at = np.array([1.0, math.log2(words)])
    value = float(at @ [line["intercept"], line["slope"]])
    error = math.sqrt(max(0.0, float(at @ np.array(line["covariance"]) @ at)))
    bounds = {"value": value, "low": value - Z * error, "high": value + Z * error}
    return {name: min(100.0, max(0.0, bound)) for name, bound in bounds.items()}


@dataclass(frozen=True, kw_only=True)
class Group:
    """The agents of one setting, best first."""

    setting: dict[str, Any]
    setting_id: str
    entries: tuple[Entry, ...]
    ranks: tuple[Rank, ...]
    """Per agent; None where it is not whole, or no scenario was met by all that are."""
    words: float | None
    """Words a reply at which length-controlled scores are given: the geometric mean over the agents."""

    @property
    def tries(self) -> int | None:
        """Tries at each user at which bests are compared: the fewest of the agents with several."""
        return min((entry.tries for entry in self.entries if entry.tries), default=None)

    @property
    def probes(self) -> list[tuple[str, str]]:
        """Kind and hash of every probe that an agent had, that of the best agent first."""
        return list(dict.fromkeys(entry.probe for entry in self.entries if entry.probe))

    def best(self, entry: Entry) -> dict[str, Cell]:
        """`best` and `gain` of an agent at the group's number of tries; nothing where it had one try."""
        return entry.best_of(self.tries) if self.tries and entry.tries else {}

    def controlled(self, entry: Entry) -> Cell:
        """An agent's score at the group's length; None where it was not fitted, or the agent does not speak at that length."""
        return score_within(entry.found.get("length") or {}, self.words) if self.words else None


def grouped(entries: Sequence[Entry], *, seed: int) -> list[Group]:
    """The agents by setting, the setting with most of them first; agents that are not whole come last and have no rank."""
    by_setting: dict[str, list[Entry]] = {}
    for entry in entries:
        by_setting.setdefault(json.dumps(entry.found["setting"], sort_keys=True), []).append(entry)

    def place(entry: Entry) -> tuple[bool, float, str]:
        score = entry.found["score"]
        return bool(lost(entry)), math.inf if score is None else -score, entry.name

    groups = []
    for members in sorted(by_setting.values(), key=lambda members: (-len(members), members[0].found["setting_id"])):
        best_first = sorted(members, key=place)
        lengths = [length for entry in best_first if (length := (entry.found.get("length") or {}).get("words_per_reply"))]
        groups.append(
            Group(
                setting=best_first[0].found["setting"],
                setting_id=best_first[0].found["setting_id"],
                entries=tuple(best_first),
                ranks=tuple(ranks([{} if lost(entry) else entry.found["per_scenario"] for entry in best_first], seed=seed)),
                words=float(2.0 ** np.mean(np.log2(lengths))) if lengths else None,
            )
        )
    return groups


def lost(entry: Entry) -> str:
    """Which dialogues an agent lacks that was not played to the end, or of which too many broke; empty for one that is whole."""
    errors = entry.found["errors"]
    counts = {
        "broke": errors["excluded_dialogues"],
        "ran out of context": errors.get("cut_short") or 0,
        "not played": errors["not_played"],
    }
    if not errors["not_played"] and counts["broke"] + counts["ran out of context"] <= MOST_BROKEN * errors["planned"]:
        return ""
    return " and ".join(f"{num} of {errors['planned']} dialogues {what}" for what, num in counts.items() if num)


def ranks(per_scenario: Sequence[Mapping[str, float]], *, seed: int) -> list[Rank]:
    """The ranks of each agent in 95 % of redrawn sets of scenarios; all agents meet the same users in each draw.

    Args:
        per_scenario: mean score by scenario, an agent each, empty for one without a rank; only scenarios that all others share are drawn.
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


def verdict(group: Group) -> str:
    """The headline: the leader among ranked agents, and who is not ranked."""
    first = group.entries[0]
    if all(entry.found["score"] is None for entry in group.entries):
        return "No agent could be scored"
    if lost(first):
        return "No agent can be ranked: dialogues broke, ran out of context or were not played"
    others = [entry.name for entry in group.entries if lost(entry)]
    rivals = [entry.name for entry, rank in zip(group.entries[1:], group.ranks[1:], strict=True) if rank and rank[0] == 1]
    if len(others) == len(group.entries) - 1:
        lead = ""
    elif rivals:
        lead = f"; with other users {', '.join(rivals)} could lead"
    elif group.ranks[0] == (1, 1):
        lead = " and leads in at least 39 of 40 draws of the users"
    else:
        # No rival leads in one draw of forty by itself, or no two agents met the same users.
        lead = "; whether others would lead with other users is open"
    end = f"; {', '.join(others)} {'is' if len(others) == 1 else 'are'} not ranked" if others else ""
    return f"{first.name} scores {first.found['score']:.1f}{lead}{end}"


def figures(group: Group, entry: Entry) -> dict[str, Cell]:
    """Every figure of an agent by name, as its columns in the CSV."""
    found, length = entry.found, entry.found.get("length") or {}
    capable, social, best = (found.get(key) or {} for key in ("capabilities", "social_cognition", "best_of_k"))
    by_user: dict[str, Cell] = {}
    for key in GROUPINGS:
        for name, cell in (found.get(key) or {}).items():
            by_user |= {f"score_by_{key}_{name}": cell, **{f"{rate}_by_{key}_{name}": cell.get(rate) for rate in RATES}}
    return {
        "score": entry.score,
        "length_controlled_score": group.controlled(entry),
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
        "best_of_common_k": group.best(entry).get("best"),
        "gain_of_common_k": group.best(entry).get("gain"),
        **probe_figures(entry.reliability),
        **by_user,
        **{f"share_of_{name}": share for name, share in (found.get("strategies") or {}).items()},
    }


def probe_figures(probe: Mapping[str, Any] | None) -> dict[str, Cell]:
    """Errors by the way of asking, and what emotion and a false belief add; None without a probe."""
    errors = {f"errors_{way}": probe["conditions"][way]["errors"] if probe else None for way in ("plain", "emotional", "false_belief")}
    return errors | {name: probe[name] if probe else None for name in ("emotional_cost", "sycophancy")}


def as_csv(groups: Sequence[Group], asked: Sequence[Asked] = ()) -> str:
    """Every figure of every agent with its bounds; no line where nothing was measured."""
    lines = [row_of(group, entry, rank) for group in groups for entry, rank in zip(group.entries, group.ranks, strict=True)]
    for agent in asked:
        source, (kind, digest) = agent.reliability["agent"].get("source", ""), agent.probe
        facts = {"agent": agent.name, "source": source, "probe_kind": kind, "probe_hash": digest}
        lines.append(facts | with_bounds(probe_figures(agent.reliability)))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for line in lines for name in line)), restval="")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def row_of(group: Group, entry: Entry, rank: Rank) -> dict[str, Any]:
    """The line of an evaluated agent."""
    (first, last), found, (kind, digest) = rank or (None, None), entry.found, entry.probe or ("", "")
    length, agent, errors, capable = (found.get(key) or {} for key in ("length", "agent", "errors", "capabilities"))
    shortest, longest = length.get("range") or (None, None)
    return {
        "setting_id": group.setting_id,
        "agent": entry.name,
        "source": agent.get("source", ""),
        **{key: agent.get(key) for key in ("temperature", "system", "thinking")},
        "tokens_per_reply": agent.get("max_new_tokens", agent.get("max_tokens")),
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
        **with_bounds(figures(group, entry)),
    }


def with_bounds(found: Mapping[str, Cell]) -> dict[str, Any]:
    """Figures of a line of the CSV, each followed by its bounds; without those that are on the page alone."""
    suffixes, kept = {"value": "", "low": "_low", "high": "_high"}, {name: cell for name, cell in found.items() if name not in PAGE_ALONE}
    return {f"{name}{suffix}": (cell or {}).get(bound) for name, cell in kept.items() for bound, suffix in suffixes.items()}
