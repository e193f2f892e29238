"""Evaluated agents beside each other: only those of one setting in one table, with the ranks that their users leave open.

A setting is everything but the agent: scenarios, strictness, user, world, length. Scores of different settings say nothing about each
other, so that each setting has tables of its own, and the page says in what they differ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.agents.evaluated import Cell, Entry
from analysis.agents.length_control import score_within
from analysis.clusters import HIGH, LOW
from analysis.runs import leaves

RATES = ("success_rate", "failure_rate")
"""Of a group of dialogues beside its score; evaluations before they were told lack them."""
GROUPINGS = ("intention", "persona", "family")
"""Of dialogues by who the user is, each a key of `agent.json`."""
NUM_DRAWS = 2000
MOST_BROKEN = 0.05
"""Share of the dialogues that may break or run out of context in an evaluation that still counts as whole."""
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

    @property
    def uncontrolled(self) -> list[str]:
        """Why agents have no length-controlled score, a sentence for each reason that there is."""
        lacking = {entry.name: entry.found.get("length") or {} for entry in self.entries if self.controlled(entry) is None}
        reasons: dict[str, list[str]] = {}
        for name, length in lacking.items():
            if length.get("range"):
                why = f"at {self.words:.0f} words a reply, which it never speaks"
            elif length.get("line"):
                why = "since an earlier version fitted it otherwise; evaluate anew"
            else:
                why = "since its users do not tell a slope"
            reasons.setdefault(f"no length-controlled score{' ' if why.startswith('at') else ', '}{why}", []).append(name)
        return [f"{', '.join(names)}: {why}" for why, names in reasons.items()]

    def best(self, entry: Entry) -> dict[str, Cell]:
        """`best` and `gain` of an agent at the group's number of tries; nothing where it had one try."""
        return entry.best_of(self.tries) if self.tries and entry.tries else {}

    def controlled(self, entry: Entry) -> Cell:
        """An agent's score at the group's length; None where it was not fitted, or the agent does not speak at that length."""
        return score_within(entry.found.get("length") or {}, self.words) if self.words else None


def grouped(entries: Sequence[Entry], *, seed: int) -> list[Group]:
    """The agents by setting, the setting with most of them first; who is not whole comes last and has no rank."""
    by_setting: dict[str, list[Entry]] = {}
    for entry in entries:
        # Not by its id, which an edited file may have kept.
        by_setting.setdefault(json.dumps(entry.found["setting"], sort_keys=True), []).append(entry)
    groups = []
    for members in sorted(by_setting.values(), key=lambda members: (-len(members), members[0].found["setting_id"])):
        best_first = sorted(members, key=place)
        lengths = [entry.found["length"]["words_per_reply"] for entry in best_first if entry.found.get("length")]
        known = [length for length in lengths if length]
        groups.append(
            Group(
                setting=best_first[0].found["setting"],
                setting_id=best_first[0].found["setting_id"],
                entries=tuple(best_first),
                ranks=tuple(ranks([entry.found["per_scenario"] if is_whole(entry) else {} for entry in best_first], seed=seed)),
                words=float(2.0 ** np.mean(np.log2(known))) if known else None,
            )
        )
    return groups


def is_whole(entry: Entry) -> bool:
    """Whether an agent was played to the end with few dialogues broken: a score over users who happened to answer is none over all."""
    errors = entry.found["errors"]
    num_broken = errors["excluded_dialogues"] + (errors.get("cut_short") or 0)
    return not errors["not_played"] and num_broken <= MOST_BROKEN * errors["planned"]


def lost(entry: Entry) -> str:
    """Which dialogues an agent that is not whole lacks; empty for one that is."""
    errors = entry.found["errors"]
    counts = {
        "broke": errors["excluded_dialogues"],
        "ran out of context": errors.get("cut_short") or 0,
        "not played": errors["not_played"],
    }
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
    flats = [dict(leaves(group.setting)) for group in groups]
    names = list(dict.fromkeys(name for found in flats for name in found))
    return [(name, [str(found.get(name, "–")) for found in flats]) for name in names if len({str(found.get(name)) for found in flats}) > 1]
