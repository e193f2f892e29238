"""The parts of a report below its head, each a piece of HTML from what a run recorded.

Endpoints on the page of a sweep as tables: the mean of each arm, and beneath it the contrasts.

What training cost, on the page of a run and on that of a sweep: the reliability probe, where a run was told to take it.

What callbacks left in a run's summary under their own names, on its page: a table each.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from analysis.after_alarm import OF_WHICH_GRID, aftermaths, alarm_steps, told
from analysis.compare import interval
from analysis.endpoints import ERRORS, FORGOTTEN, IN_WORDS, MARGINS, digits_of
from analysis.plots import (
    FOLDER,
    Figure,
)
from analysis.runs import (
    CONFIG,
    EVALUATION,
    METRICS,
    TEACHER,
    TRANSCRIPTS,
    Decision,
    Run,
    in_words,
    leaves,
    setting,
)
from analysis.stats import Estimate
from analysis.sweeps import (
    run_folders,
    seed_of,
)
from analysis.text import (
    anew,
    duration,
    grid_table,
    in_points,
    make_experiment,
    text,
    two_columns,
    with_interval,
)
from analysis.transcripts import BeforeAfter, about, folded, side_by_side, typical
from simulator.version import recorded_world

SHARE = (0.0, 1.0)
FELT = "felt"
"""A line that most runs need not draw: they are paid for it."""


class Curve(NamedTuple):
    """A figure over steps."""

    name: str
    title: str
    keys: dict[str, str]
    """Metric by the name of its line."""
    y_range: tuple[float, float] | None
    caption: str


CURVES = (
    Curve(
        "reward",
        "Reward",
        {"mean": "reward/mean", "success rate": "reward/success_rate", FELT: "reward/emotion"},
        SHARE,
        "What the run is paid for, and the share of users who were pleased. If it is not paid the users' final emotion / 100, that is "
        "drawn too (felt): the further below the mean, the more the reward is gamed. An adaptive teacher holds both near a target by "
        "asking for more.",
    ),
    Curve(
        "reward_density",
        "Reward density",
        {"density": "curriculum/reward_density"},
        None,
        "How differently the rollouts of a group fare. Near 0 there is nothing to learn from.",
    ),
    Curve(
        "entropy",
        "Policy entropy",
        {"entropy": "actor/entropy"},
        None,
        "Nats per token. A slow fall is learning; near 0 the policy has stopped exploring.",
    ),
    Curve(
        "difficulty", "Difficulty", {"strictness": "curriculum/strictness"}, SHARE, "Mean strictness of the users that the teacher chose."
    ),
    Curve(
        "zero_variance",
        "Zero-variance share",
        {"all": "curriculum/zero_variance_share", "too hard": "curriculum/all_low_share", "too easy": "curriculum/all_high_share"},
        SHARE,
        "Groups whose rollouts all fared alike, at a low or at a high reward.",
    ),
    Curve(
        "repetition",
        "Repetition",
        {"repetition": "dialogue/repetition"},
        SHARE,
        "Share of the agent's four-word runs that it said before in the same dialogue.",
    ),
)


Figures = Mapping[str, Figure]
"""By name."""
MAX_DECISIONS = 200
SCORES = (
    ("worst cell: intention and difficulty", "worst_cell", "{:.1f}"),
    ("worst fifth of the scenarios", "cvar20", "{:.1f}"),
    ("delighted users", "success_rate", "{:.0%}"),
    ("users who left", "failure_rate", "{:.0%}"),
    ("dialogues cut short, as their context was full", "cut_short", "{:.0%}"),
)
"""Rows of the held-out table: label, key in the summary, form."""
TIMINGS = {"rolling out": "timing_s/gen", "updating": "timing_s/update_actor", "sending weights": "timing_s/update_weights"}


def unread(title: str, file: str) -> str:
    """A part that a torn file would have filled."""
    return f'<h2>{title}</h2><p class="none">{file} cannot be used.</p>'


def training(run: Run, figures: Figures) -> str:
    """What every step measured."""
    if METRICS in run.torn:
        return unread("How training went", METRICS)
    note = "Pale: every step. Strong: the running mean." + (" Triangles: alarms." if alarm_steps(run) else "")
    drawn = "".join(figures[curve.name].html() for curve in CURVES)
    return f'<h2>How training went</h2><p class="note">{note}</p><div class="grid-3">{drawn}</div>'


def evaluation(run: Run, figures: Figures) -> str:
    """The held-out score in the course of training, by strictness, and as a table."""
    drawn = "".join(figures[name].html() for name in ("score_over_tokens", "score_by_strictness") if name in figures)
    return f'<h2>Held-out users</h2><div class="grid-2">{drawn}</div>{table_of_scores(run)}'


def teaching(run: Run, decisions: Sequence[Decision], figures: Figures) -> str:
    """What the teacher issued over time, and what it decided beyond that."""
    if TEACHER in run.torn:
        return unread("What the teacher did", TEACHER)
    drawn = "".join(figures[name].html() for name in ("issued", "aim", "strictness_by_intention") if name in figures)
    return f"<h2>What the teacher did</h2>{drawn}{decided(decisions)}"


def decided(decisions: Sequence[Decision]) -> str:
    """Decisions in the teacher's own log, the first of each kind open and all of them folded in."""
    if not decisions:
        return '<p class="note">It noted no decision beyond the tasks it issued.</p>'
    by_name = Counter(decision.name for decision in decisions)
    counts = ", ".join(f"{name.replace('_', ' ')} {num}" for name, num in by_name.most_common())
    lines = [
        f"step {decision.step}: {decision.name.replace('_', ' ')} ({in_words(decision.inputs)})" for decision in decisions[:MAX_DECISIONS]
    ]
    cut = [f"... and {len(decisions) - MAX_DECISIONS} more in teacher.jsonl"] if len(decisions) > MAX_DECISIONS else []
    body = "".join(f"<li>{escape(line)}</li>" for line in [*lines, *cut])
    return f'<p class="note">Decisions in its log: {escape(counts)}.</p><details><summary>Each of them</summary><ul>{body}</ul></details>'


def table_of_scores(run: Run) -> str:
    """Every held-out number before and after; nothing while there is no summary."""
    if run.summary is None:
        return ""
    before, after = (setting(run.summary, when, {}) for when in ("start", "heldout"))
    rows = [("score, with its 95% interval", with_interval(before), with_interval(after))]
    rows += [(name, text(before.get(key), form), text(after.get(key), form)) for name, key, form in SCORES]
    body = "".join(f'<tr><th>{name}</th><td class="num">{old}</td><td class="num">{new}</td></tr>' for name, old, new in rows)
    return f'<table><tr><th></th><th class="num">before</th><th class="num">after</th></tr>{body}</table>'


def alarms(run: Run, held_out: BeforeAfter) -> str:
    """What the collapse monitor reported, and what happened after."""
    if METRICS in run.torn and run.summary is None:
        return unread("Alarms, and what happened after", METRICS)
    after = "What followed stands in metrics.jsonl, which cannot be used." if METRICS in run.torn else ""
    fired = [
        f"<b>{escape(item.name)}</b> at step {item.step}: {escape(item.message)}<br>{escape(after or told(item))}"
        for item in aftermaths(run, held_out.looks)
    ]
    quiet = '<p class="alarm quiet">None went off.</p>'
    lines = "".join(f'<p class="alarm">{line}</p>' for line in fired)
    return "<h2>Alarms, and what happened after</h2>" + (f'<p class="note">{OF_WHICH_GRID}</p>{lines}' if fired else quiet)


def dialogues(run: Run, held_out: BeforeAfter) -> str:
    """The same held-out user before and after training: a typical one, and folded in those who lost and gained most."""
    if EVALUATION in run.torn:
        return unread("One held-out user, before and after", EVALUATION)
    title = "<h2>One held-out user, before and after</h2>"
    if not held_out.pairs or held_out.gain is None:
        ended = f"{EVALUATION} holds no dialogue of before and after training."
        return f'{title}<p class="none">{ended if run.summary is not None else "The evaluation after training is still to come."}</p>'
    pair = typical(held_out.pairs)
    return f"{title}{about(pair, held_out.pairs)}{side_by_side(pair)}{folded(held_out.pairs)}"


def all_transcripts(run: Run) -> str:
    """Where the other dialogues are to be read."""
    if (run.folder / TRANSCRIPTS).is_file():
        return f'<p class="note"><a href="{TRANSCRIPTS}">All transcripts of this run</a>, to filter and search.</p>'
    command = f"python -m analysis transcripts {run.folder}"
    return f'<p class="note">All transcripts of this run, to filter and search: <code>{escape(command)}</code></p>'


def cost(run: Run) -> str:
    """What it took, and where the time went."""
    summary = run.summary
    if summary is None:
        return ""
    seconds, tokens = setting(summary, "wall_s", 0.0), setting(summary, "policy_tokens", 0)
    errors = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting(summary, "errors", {}).items())
    rows = [
        ("wall time", duration(seconds)),
        ("CPU time", duration(setting(summary, "cpu_s"))),
        ("policy tokens", f"{tokens:,}" + (f", {tokens / seconds:,.0f} a second (the time holds the evaluations too)" if seconds else "")),
        ("calls of the simulator", text(setting(summary, "simulator_calls"), "{:,}")),
        *([("cost of the simulator", f"{paid:,.2f}")] if (paid := setting(summary, "simulator_cost")) else []),
        ("a step", shares_of_time(run)),
        ("errors", errors or "none"),
        ("dialogues cut short", f"{text(setting(summary, 'cut_short'), '{:.1%}')} in training, mean over steps"),
        ("trainer against engine", f"{text(setting(summary, 'mismatch.mean_abs_logprob'), '{:.1e}')} nats, mean difference of logprobs"),
    ]
    return f"<h2>Cost</h2>{two_columns(rows)}"


def shares_of_time(run: Run) -> str:
    """Mean seconds of a step, and on what."""
    if METRICS in run.torn:
        return f"{METRICS} cannot be used"
    steps = run.series("timing_s/step").values
    if not steps:
        return "not recorded"
    spent = {name: sum(run.series(key).values) / sum(steps) for name, key in TIMINGS.items()}
    parts = ", ".join(f"{share:.0%} {name}" for name, share in spent.items())
    return f"{sum(steps) / len(steps):.2f} s on average: {parts}"


def repeat(run: Run) -> str:
    """Which code, which world, which settings, which packages."""
    if CONFIG in run.torn:
        return unread("How to repeat it", CONFIG)
    commit = str(run.provenance.get("git_commit") or "")
    lines = [f"git checkout {commit.removesuffix('+')}"] if commit else []
    lines.append(make_experiment(run.experiment, overrides(run)))
    notes = ["The working tree had changes that no commit holds."] if commit.endswith("+") else []
    if len(run.commits) > 1:
        notes.append("It was resumed on other code than it began with; all states of it stand below.")
    notes.append(f"Every figure lies in {FOLDER}/ as SVG, PNG and CSV.")
    if run.provenance.get("overrides") is None or run.arm:
        notes.append("If other settings were given too, they are in the list below.")
    settings = "\n".join(f"{name}: {value}" for name, value in leaves(run.config))
    versions = setting(run.summary, "versions") or run.provenance.get("versions") or {}
    world = recorded_world(run.summary or run.provenance, run.config) or "not recorded"
    code = ", ".join(run.commits) or "not recorded"
    rows = [("code", code), ("world", world), *versions.items()]
    return (
        f'<h2>How to repeat it</h2><pre>{escape(chr(10).join(lines))}</pre><p class="note">{" ".join(notes)}</p>'
        f"<details><summary>All settings of this run</summary><pre>{escape(settings)}</pre></details><h2>Versions</h2>{two_columns(rows)}"
    )


def overrides(run: Run) -> Sequence[str]:
    """What makes its settings of the experiment's file; the seed where that was not kept, for a run of a sweep its place in a new one."""
    seed = run.config.get("seed", 0)
    if run.arm:
        sweep = run.folder.absolute().parents[1]
        seeds = sorted({seed_of(place) for place in run_folders(sweep)})
        # Under the sweep's own name the run is there, and done.
        return [f"seeds={','.join(map(str, seeds))}", f"name={anew(sweep.name)}", "--cell", run.arm, str(seed)]
    kept = run.provenance.get("overrides")
    return [f"seed={seed}"] if kept is None else [shlex.quote(str(word)) for word in kept]


def remarks(notes: Sequence[str]) -> str:
    """What limits the verdict, as a list."""
    if not notes:
        return ""
    return f'<div class="know"><h3>To know before reading on</h3>{some_items(notes)}</div>'


MEAN, DIFFERENCE = "mean over seeds", "paired difference over seeds"
NOTES = {
    FORGOTTEN: "What was forgotten: for the held-out users of each strictness the best look on the small grid less the last one, mean over "
    "these, in points of emotion. The best of noisy looks lies above the last one even where nothing is forgotten: read the differences.",
}
"""What must be known to read an endpoint."""


def read_by(found: Mapping[str, Any], arms: Sequence[str]) -> str:
    """The endpoints that the sweep's plan names besides the primary one; empty where it names none, or no run measured them."""
    names = found["plan"]["read"]
    tables = endpoint_tables(found, arms, {name: IN_WORDS.get(name, name) for name in names})
    if not tables:
        return ""
    notes = [NOTES[name] for name in names if name in NOTES]
    said = escape(" ".join([*notes, "Described, with 95% intervals; the verdict is on the primary endpoint alone."]))
    return f'<h2>What this experiment is read by</h2><p class="note">{said}</p>{tables}'


def endpoint_tables(found: Mapping[str, Any], arms: Sequence[str], headings: Mapping[str, str], *, mean: str = MEAN) -> str:
    """A row for each arm that measured one of the endpoints, and one for each contrast if any pair did; empty where no run did.

    Args:
        headings: of the columns, by endpoint.
        mean: what the arms' figures are.
    """
    averaged = {arm: (found["arms"].get(arm) or {}).get("endpoints") or {} for arm in arms}
    measured = [arm for arm in arms if any(averaged[arm].get(name) for name in headings)]
    if not measured:
        return ""
    rows = [[arm, *(shown((averaged[arm].get(name) or {}).get("mean"), name) for name in headings)] for arm in measured]
    tables = grid_table((mean, *headings.values()), rows)
    contrasts = [
        [
            f"{contrast['a']} less {contrast['b']}",
            *(shown((contrast["endpoints"].get(name) or {}).get("difference"), name, sign="+") for name in headings),
        ]
        for contrast in found["contrasts"]
    ]
    if any(cell != "–" for row in contrasts for cell in row[1:]):
        tables += grid_table((DIFFERENCE, *headings.values()), contrasts)
    return tables


def shown(estimate: Mapping[str, float | None] | None, name: str, *, sign: str = "") -> str:
    """A figure with its interval; changes with their sign, shares of errors in percentage points."""
    if estimate is None:
        return "–"
    found, digits = Estimate.from_dict(estimate), digits_of(name)
    sign = "+" if name.endswith(".change") else sign
    if name in ERRORS:
        found, digits = Estimate(value=100 * found.value, low=100 * found.low, high=100 * found.high), 1
    return f"{found.value:{sign}.{digits}f} {interval(found, digits)}".strip()


TITLE = "<h2>What it cost: reliability</h2>"
PERCENT, POINTS, NATS = "{:.1%}", "{:+.1f} points", "{:.2f}"
"""A difference of shares is told in points."""
ROWS = (
    ("errors, asked plainly", "errors.plain", PERCENT),
    ("errors after an emotional turn", "errors.emotional", PERCENT),
    ("errors against a false belief", "errors.false_belief", PERCENT),
    ("emotion adds", "emotional_cost", POINTS),
    ("the belief adds", "sycophancy", POINTS),
    ("right answer over the wrong one, plainly, nats", "margin_nats.plain", NATS),
    ("the same after an emotional turn, nats", "margin_nats.emotional", NATS),
    ("the same against a false belief, nats", "margin_nats.false_belief", NATS),
)
"""Label, key within the probe, form."""
WAYS = ("asked plainly", "after an emotional turn", "against a false belief")
HEADINGS = (
    dict(zip(ERRORS, (*WAYS, "emotion adds", "the belief adds"), strict=True)),
    dict(zip(MARGINS, (f"right over wrong, {WAYS[0]}, nats", f"right over wrong, {WAYS[2]}, nats"), strict=True)),
)
"""Of two tables, so that neither is wider than the page."""
WHAT = (
    "Facts that a user told two turns ago, to be named again: asked plainly, after an emotional turn, and after the user claimed something "
    "else. Warmth can be bought with errors; only changes mean something, since the policy was never taught to contradict."
)


def of_run(run: Run) -> str:
    """Every number of the probe before and after training; empty where the run took none."""
    found = setting(run.summary, "reliability")
    if not found:
        return ""
    rows = [[label, *before_and_after(setting(found, key, {}), form)] for label, key, form in ROWS]
    table = grid_table(
        (f"{text(found.get('n'), '{:,}')} facts", "before", "after", "change in points or nats, with its 95% interval"), rows
    )
    return f'{TITLE}<p class="note">{escape(WHAT)}</p>{table}'


def before_and_after(cell: Mapping[str, Any], form: str) -> list[str]:
    """The three columns of a line; between two shares lie points."""
    signed = "{:+.2f}" if form == NATS else "{:+.1f}"
    found = (cell.get("change"), *(cell.get("change_ci95") or (None, None)))
    change, low, high = (text(value if form == NATS else in_points(value), signed) for value in found)
    if None not in found:
        change += f" [{low}, {high}]"
    ends = (cell.get("before"), cell.get("after"))
    return [*(text(in_points(value) if form == POINTS else value, form) for value in ends), change]


def of_arms(found: Mapping[str, Any], arms: Sequence[str]) -> str:
    """How each arm changed over its seeds, and the contrasts; empty where no run took the probe."""
    tables = "".join(endpoint_tables(found, arms, headings, mean="change by training, mean over seeds") for headings in HEADINGS)
    if not tables:
        return ""
    note = f"{WHAT} Errors in percentage points, more is worse; described, and no test is made of it unless it is the primary endpoint."
    return f'{TITLE}<p class="note">{escape(note)}</p>{tables}'


def left_by_callbacks(run: Run) -> str:
    """Every figure by its dotted name; empty where no callback left any."""
    found = {name: setting(run.summary, name) for name in setting(run.config, "callbacks", {})}
    return "".join(
        f"<h2>{escape(name)}</h2>{grid_table(('figure', 'value'), [[key, as_figure(value)] for key, value in leaves(left)])}"
        for name, left in found.items()
        if isinstance(left, Mapping)
    )


def as_figure(value: Any) -> str:
    """A number to four digits, a list of them with commas, anything else as it is."""
    if isinstance(value, list):
        return ", ".join(map(as_figure, value))
    return text(value, "{:.4g}") if isinstance(value, float) else str(value)


NUM_NOTES = 8
"""Remarks that stand open; more are folded in."""


def some_items(sentences: Sequence[str]) -> str:
    """A list of which what is beyond the first ones is folded in."""
    first, rest = sentences[:NUM_NOTES], sentences[NUM_NOTES:]
    return items(first) + (f"<details><summary>{len(rest)} more</summary>{items(rest)}</details>" if rest else "")


def items(sentences: Sequence[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"
