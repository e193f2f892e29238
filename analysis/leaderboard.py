"""The score of an agent at a given length of its replies, from the line that its evaluation fitted.

Evaluated agents beside each other: only those of one setting in one table, with the ranks that their users leave open.

A setting is everything but the agent: scenarios, strictness, user, world, length. Scores of different settings say nothing about each
other, so that each setting has tables of its own, and the page says in what they differ.

A table of the leaderboard, an agent a row: sortable, every figure with its interval.

The leaderboard by kind of user and of reply: strictness in the open, hidden intention, persona, family and strategies folded up.

Reliability on the leaderboard: what a probe's figures are called, and the agents that were probed and not evaluated.

The leaderboard as one self-contained page: a table for each question, sortable, with intervals, plain on paper.

The leaderboard's files: the page and, beside it, every figure of every agent as CSV.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from analysis.evaluated import CAPABILITIES, Asked, Cell, Entry, read_asked, read_entries
from analysis.page import COLOURS, FIGURES, PAPER, WORDS, document
from analysis.runs import leaves
from analysis.stats import HIGH, LOW
from analysis.text import count, in_points
from simulator.files import write_whole

Z = 1.959964
"""Half the width of a 95 % interval in standard errors."""


def score_within(found: Mapping[str, Any], words: float) -> dict[str, float] | None:
    """`score_at`, but None where the agent does not speak at such length: nothing is known of what it would say.

    Args:
        found: `length` of an `agent.json`. One without `range` is of a version that fitted dialogues, where failing made replies long.
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
    return {
        name: min(100.0, max(0.0, bound)) for name, bound in (("value", value), ("low", value - Z * error), ("high", value + Z * error))
    }


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


SCRIPT = Path(__file__).with_name("leaderboard.js")
LOOK = """
table.board { width: 100%; margin: 10px 0 22px; }
.board th, .board td { padding: 5px 12px 5px 0; text-align: right; white-space: nowrap; }
.board th { vertical-align: bottom; }
.board .agent { text-align: left; white-space: normal; min-width: 9em; }
.board .agent small { overflow-wrap: anywhere; max-width: 22em; }
.board small { display: block; color: var(--soft); font-size: 11.5px; }
.board button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: inherit; }
.board button:focus-visible { outline: 2px solid var(--a); outline-offset: 2px; }
.board th[aria-sort=descending] button::after { content: " \\2193"; }
.board th[aria-sort=ascending] button::after { content: " \\2191"; }
.board tr.best td { font-weight: 600; }
.board tr.best small { font-weight: 400; }
.board svg { width: 130px; height: 14px; vertical-align: middle; }
.board svg .track { stroke: var(--rule); }
.board svg .interval { stroke: var(--a); stroke-width: 4; opacity: .4; stroke-linecap: round; }
.board svg .point { fill: var(--a); }
.scroll { overflow-x: auto; }
details .board .agent { position: sticky; left: 0; background: var(--ground); }
.warning { border-left: 4px solid var(--b); padding: 8px 14px; background: var(--panel); margin: 14px 0; }
.warning .scroll { --ground: var(--panel); }
svg.plane { max-width: 560px; }
svg.plane .axis { stroke: var(--soft); }
svg.plane .error { stroke: var(--a); opacity: .35; stroke-width: 3; }
svg.plane circle { fill: var(--a); stroke: var(--ground); stroke-width: 2; }
svg.plane .label { fill: var(--ink); font-size: 12px; }
@media print {
  @page { size: landscape; margin: 14mm; }
  .board { font-size: 9pt; }
  .board small { font-size: 7.5pt; }
  .board button::after { content: none !important; }
  section { break-inside: avoid; }
  .scroll { overflow: visible; }
}
"""


def page(groups: Sequence[Group], *, csv_name: str, left_out: Sequence[str] = (), asked: Sequence[Asked] = ()) -> str:
    """The whole page.

    Args:
        left_out: of each agent that could not be read, why.
        asked: agents that were probed and not evaluated.
    """
    num = sum(len(group.entries) for group in groups)
    settings = "one setting" if len(groups) == 1 else f"{len(groups)} settings"
    first = verdict(groups[0]) if len(groups) == 1 else f"{num} agents in {settings}, each with tables of its own"
    evaluated, only = f"{count(num, 'agent')} in {settings}", f"{len(asked)} probed and not evaluated"
    where = ", ".join(said for said, is_there in ((evaluated, groups), (only, asked)) if is_there)
    if not groups:
        first = f"{count(len(asked), 'agent')}, probed and not evaluated"
    over = "scenarios, of reliability over questions" if groups else "questions"
    parts = [
        f'<p class="where">{where} \u00b7 <a href="{escape(csv_name)}">CSV</a></p>',
        f"<h1>{escape(first)}</h1>",
        f'<p class="note">Intervals are 95 %, over {over}. A click on a heading sorts.</p>',
        missing(left_out),
        apart(groups),
        *(section(group, number, several=len(groups) > 1) for number, group in enumerate(groups, start=1)),
        asked_only(asked, [entry for group in groups for entry in group.entries]),
        f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>",
    ]
    return document("Leaderboard", "\n".join(parts), style=COLOURS + WORDS + FIGURES + PAPER + LOOK, has_script=True)


def verdict(group: Group) -> str:
    """The first sentence: who leads of those that are ranked, and who is not."""
    first = group.entries[0]
    if all(entry.found["score"] is None for entry in group.entries):
        return "No agent could be scored"
    if not is_whole(first):
        return "No agent can be ranked: dialogues broke, ran out of context or were not played"
    others = [entry.name for entry in group.entries if not is_whole(entry)]
    end = f"; {', '.join(others)} {'is' if len(others) == 1 else 'are'} not ranked" if others else ""
    return f"{first.name} scores {first.found['score']:.1f}{lead(group)}{end}"


def lead(group: Group) -> str:
    """Whether the first leads by more than luck with the users; nothing where no other is whole."""
    if sum(map(is_whole, group.entries)) == 1:
        return ""
    rivals = [entry.name for entry, rank in zip(group.entries[1:], group.ranks[1:], strict=True) if rank and rank[0] == 1]
    if rivals:
        return f"; with other users {', '.join(rivals)} could lead"
    if group.ranks[0] == (1, 1):
        return " and leads in at least 39 of 40 draws of the users"
    # No rival leads in one draw of forty by itself, or no two agents met the same users.
    return "; whether others would lead with other users is open"


def missing(left_out: Sequence[str]) -> str:
    """Says who is not on the page; nothing where everybody is."""
    return f'<div class="warning">{"".join(f"<p>{escape(sentence)}</p>" for sentence in left_out)}</div>' if left_out else ""


def apart(groups: Sequence[Group]) -> str:
    """Says that settings are not to be compared, and in what they differ; nothing where there is one."""
    if len(groups) < 2:
        return ""
    heads = "".join(f"<th>setting {number}</th>" for number in range(1, len(groups) + 1))
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(value)}</td>' for value in values)}</tr>"
        for name, values in differences(groups)
    )
    words = "These agents were evaluated in different settings. Their scores must not be compared across them: each has tables of its own."
    return f'<div class="warning"><p>{words}</p><div class="scroll"><table><tr><th></th>{heads}</tr>{body}</table></div></div>'


def section(group: Group, number: int, *, several: bool) -> str:
    """One setting: its tables and its figure.

    Args:
        several: it is not the only one.
    """
    parts = [
        f"<h2>{f'Setting {number}: ' if several else ''}{escape(in_words(group))}</h2>",
        f"<p>{escape(verdict(group))}.</p>" if several else "",
        f'<p class="note">{escape(details(group))}</p>',
        *(f'<p class="note">{escape(entry.remark)}.</p>' for entry in group.entries if entry.remark),
        *(f'<p class="note">{escape(sentence)}.</p>' for sentence in (*group.unranked, *group.uncontrolled)),
        asked_otherwise(group),
        block("How users felt in the end", scores_table(group)),
        *by_strictness(group),
    ]
    if any((entry.found.get("capabilities") or {}).get("by") for entry in group.entries):
        capable: list[Column] = [(name.replace("_", " "), name, capability_of(name), "{:.2f}") for name in CAPABILITIES]
        judges = sorted({judge_of(entry) for entry in group.entries} - {""})
        mixed = "" if len(judges) == 1 else " Different judges: compare only agents with the same."
        parts.append(block("Five capabilities", table(group, capable), f"0 to 1, by {', '.join(judges)}.{mixed}{partly_graded(group)}"))
    parts += [reliability(group, probe) for probe in group.probes]
    if group.tries:
        parts.append(tries(group, group.tries))
    parts.append(block("Social cognition", plane(group), "Formulas: experiments/agents/scores.py."))
    return "\n".join([*parts, *folded(group)])


HOW_ASKED = {"temperature": "temperature", "max_new_tokens": "tokens a reply", "max_tokens": "tokens a reply", "thinking": "thinks"}
"""What decides how an agent speaks besides what it is, by its key in `agent.json`: what it is called here."""


def asked_otherwise(group: Group) -> str:
    """Says in what the asking of models differed within a setting; nothing where it did not. A scripted agent is not asked so."""
    asked = [(entry.name, how_asked(entry)) for entry in group.entries if entry.found["agent"].get("kind") != "scripted"]
    named = dict.fromkeys(name for _, how in asked for name in how)
    unlike = [name for name in named if len({how[name] for _, how in asked if name in how}) > 1]
    if not unlike:
        return ""
    lines = [f"{agent}: {', '.join(f'{name} {how[name]}' for name in unlike if name in how)}" for agent, how in asked]
    words = "Models of this table were not asked alike, which moves scores by itself (a colder one is a little better)."
    return f'<div class="warning"><p>{words}</p><ul>{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul></div>'


def how_asked(entry: Entry) -> dict[str, str]:
    """Temperature, length, thinking and the prompt before the dialogue, as far as the evaluation recorded them."""
    agent = entry.found["agent"]
    told = {said: f"{agent[key]}" for key, said in HOW_ASKED.items() if agent.get(key) is not None}
    return told | ({"told before": repr(agent["system"]) if agent["system"] else "nothing"} if "system" in agent else {})


def reliability(group: Group, probe: tuple[str, str]) -> str:
    """The agents of a group that were asked the same, and what that was."""
    kind, digest = probe
    asked = f"{PROBES.get(kind, kind)}; probe {digest}."
    alone = "" if len(group.probes) == 1 else " Others were asked something else: compare only agents of this table."
    title = f"Reliability: {kind}" + (f", probe {digest}" if [one for one, _ in group.probes].count(kind) > 1 else "")
    found = table(group, RELIABILITY, among=[entry for entry in group.entries if entry.probe == probe])
    return block(title, found, f"Share of errors, and what emotion and a false belief add. Asked: {asked}{alone}")


def tries(group: Group, k: int) -> str:
    """What several tries at each user are worth, all agents at the same number of them."""
    columns: list[Column] = [
        ("tries", "dialogues with each user", lambda entry: {"value": entry.tries}, "{:.0f}"),
        ("mean", "of all tries", lambda entry: (entry.found.get("best_of_k") or {}).get("mean"), "{:.1f}"),
        (f"best of {k}", f"of {k} tries at each user", lambda entry: group.best(entry).get("best"), "{:.1f}"),
        ("gain", f"best of {k} less mean", lambda entry: group.best(entry).get("gain"), "{:+.1f}"),
    ]
    is_mixed = any(entry.tries not in (None, k) for entry in group.entries)
    note = f"Best of {k}, the most that all had; of agents with more tries the mean over all choices of {k}." if is_mixed else ""
    return block("Several tries at each user", table(group, columns), note)


def in_words(group: Group) -> str:
    """The setting in a line."""
    setting = group.setting
    user = setting["user"]
    who = "the embedded user" if user["kind"] == "rule" else f"a user played by {user.get('model')}"
    return f"{setting['num_scenarios']} scenarios ({setting['bank']}), {who}"


def details(group: Group) -> str:
    """What else makes two evaluations comparable."""
    setting = group.setting
    levels = ", ".join(f"{level:g}" for level in setting["strictness"])
    user = ", ".join(f"{name} {value}" for name, value in setting["user"].items() if name != "kind" and value not in (None, ""))
    return (
        f"strictness {levels}; {setting['max_turns']} replies; scenarios {setting['bank_hash']}; user: {user}; setting {group.setting_id}"
    )


def scores_table(group: Group) -> str:
    """The main table, with a bar for each score."""
    at = f"score at {group.words:.0f} words a reply, by a line fitted to each agent's replies" if group.words else "not fitted"
    main: list[Column] = [
        ("score", "mean final emotion, 0-100", lambda entry: entry.score, "{:.1f}"),
        ("length-controlled", at, group.controlled, "{:.1f}"),
        ("success", "share of users at 100", interval_of("success_rate"), "{:.0%}"),
        ("failure", "share of users below 10", interval_of("failure_rate"), "{:.0%}"),
        ("worst cell", "lowest mean of wish x difficulty band", interval_of("worst_cell"), "{:.1f}"),
        ("worst fifth", "mean of the worst fifth of scenarios", interval_of("cvar20"), "{:.1f}"),
    ]
    return table(group, main, with_bar=True)


def plane(group: Group) -> str:
    """Where the agents stand between empathy and solution, structured and creative."""
    side, margin = 440.0, 60.0

    def place(value: float) -> float:
        return margin + (max(-1.0, min(1.0, value)) + 1.0) / 2.0 * side

    middle, far = place(0.0), margin + side
    marks = [
        f'<line class="axis" x1="{margin}" y1="{middle}" x2="{far}" y2="{middle}"/>',
        f'<line class="axis" x1="{middle}" y1="{margin}" x2="{middle}" y2="{far}"/>',
        f'<text x="{margin - 5}" y="{middle}" text-anchor="end">empathy</text><text x="{far + 5}" y="{middle}">solution</text>',
        f'<text x="{middle}" y="{margin - 8}" text-anchor="middle">creative</text>',
        f'<text x="{middle}" y="{far + 16}" text-anchor="middle">structured</text>',
    ]
    shown = 0
    for entry in group.entries:
        social = entry.found.get("social_cognition") or {}
        x, y = (social.get(axis) or {} for axis in ("empathy_to_solution", "structured_to_creative"))
        if x.get("value") is None or y.get("value") is None:
            continue
        shown += 1
        at_x, at_y = place(x["value"]), place(-y["value"])
        if x.get("low") is not None:
            marks.append(f'<line class="error" x1="{place(x["low"]):.1f}" y1="{at_y:.1f}" x2="{place(x["high"]):.1f}" y2="{at_y:.1f}"/>')
        if y.get("low") is not None:
            marks.append(f'<line class="error" x1="{at_x:.1f}" y1="{place(-y["low"]):.1f}" x2="{at_x:.1f}" y2="{place(-y["high"]):.1f}"/>')
        marks.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="6"/>')
        marks.append(f'<text class="label" x="{at_x + 9:.1f}" y="{at_y - 7:.1f}">{escape(entry.name)}</text>')
    if not shown:
        return '<p class="none">No agent said enough (1,000 words) to be placed.</p>'
    return f'<svg class="figure plane" viewBox="0 0 560 560" role="img" aria-label="social cognition">{"".join(marks)}</svg>'


def judge_of(entry: Entry) -> str:
    """Who judged an agent's capabilities; empty for nobody."""
    capable: Mapping[str, Any] = entry.found.get("capabilities") or {}
    return "rules" if capable.get("by") == "rule" else str(capable.get("judge") or "")


def partly_graded(group: Group) -> str:
    """Of how many dialogues the judge graded, for each agent where that is not all; empty where it is for everybody."""
    told = []
    for entry in group.entries:
        num, lost = entry.found["n_dialogues"], (entry.found.get("capabilities") or {}).get("num_errors")
        if lost:
            told.append(f"{entry.name} {num - lost} of {num} dialogues")
    return f" Graded in part: {', '.join(told)}." if told else ""


def capability_of(name: str) -> Callable[[Entry], Cell]:
    """A column of capabilities."""
    return lambda entry: (entry.found.get("capabilities") or {}).get(name)


def interval_of(name: str) -> Callable[[Entry], Cell]:
    """A column of the scores with intervals."""
    return lambda entry: entry.found["intervals"].get(name)


def probed(figure: Callable[[Mapping[str, Any]], Cell]) -> Callable[[Entry], Cell]:
    """A column of what an agent was asked."""
    return lambda entry: figure(entry.reliability) if entry.reliability else None


RELIABILITY: tuple[Column, ...] = tuple((name, meaning, probed(figure), form) for name, meaning, figure, form in COLUMNS)


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
