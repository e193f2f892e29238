"""The parts of a report below its head, each a piece of HTML from what a run recorded."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from analysis.comparisons.sweep import run_folders, seed_of
from analysis.drawing.figures import FOLDER, Figure
from analysis.pages.aftermath import OF_WHICH_GRID, aftermaths, alarm_steps, told
from analysis.pages.before_after import BeforeAfter, typical
from analysis.pages.examples import about, folded
from analysis.pages.run_figures import CURVES
from analysis.pages.transcripts import side_by_side
from analysis.runs import CONFIG, EVALUATION, METRICS, TEACHER, TRANSCRIPTS, Run, leaves, setting
from analysis.teaching import Decision, in_words
from analysis.wording import anew, duration, make_experiment, text, two_columns, with_interval
from simulator.version import recorded_world

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
