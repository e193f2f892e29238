"""The leaderboard as one self-contained page: a table for each question, sortable, with intervals, plain on paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from analysis.agents.evaluated import CAPABILITIES, Asked, Cell, Entry
from analysis.agents.leaderboard import Group, differences, is_whole
from analysis.agents.leaderboard_groups import by_strictness, folded
from analysis.agents.leaderboard_table import Column, block, table
from analysis.agents.probed import COLUMNS, PROBES, asked_only
from analysis.drawing.page import document
from analysis.drawing.style import COLOURS, FIGURES, PAPER, WORDS
from analysis.wording import count

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
    parts.append(block("Social cognition", plane(group), "Formulas: experiments/agents/cognition.py."))
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
