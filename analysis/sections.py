"""The parts of a report below its head, each a piece of HTML from what a run recorded."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from analysis.axes import WIDE
from analysis.before_after import BeforeAfter, typical
from analysis.charts import Level, Line, bar_chart, line_chart
from analysis.runs import TRANSCRIPTS, Run, flatten, setting
from analysis.transcripts import side_by_side
from analysis.verdict import alarms_of
from analysis.wording import duration, text, two_columns, with_interval

SHARE = (0.0, 1.0)


class Curve(NamedTuple):
    """A figure over steps."""

    title: str
    keys: dict[str, str]
    """Metric by the name of its line."""
    y_range: tuple[float, float] | None
    caption: str


CURVES = (
    Curve(
        "Reward",
        {"mean": "reward/mean", "success rate": "reward/success_rate"},
        SHARE,
        "Final emotion / 100, and the share of successes. An adaptive teacher holds it near a target by asking for more.",
    ),
    Curve(
        "Reward density",
        {"density": "curriculum/reward_density"},
        None,
        "How differently the rollouts of a group fare. Near 0 there is nothing to learn from.",
    ),
    Curve(
        "Policy entropy",
        {"entropy": "actor/entropy"},
        None,
        "Nats per token. A slow fall is learning; near 0 the policy has stopped exploring.",
    ),
    Curve("Difficulty", {"strictness": "curriculum/strictness"}, SHARE, "Mean strictness of the users that the teacher chose."),
    Curve(
        "Zero-variance share",
        {"all": "curriculum/zero_variance_share", "too hard": "curriculum/all_low_share", "too easy": "curriculum/all_high_share"},
        SHARE,
        "Groups whose rollouts all fared alike, at a low or at a high reward.",
    ),
    Curve(
        "Repetition",
        {"repetition": "dialogue/repetition"},
        SHARE,
        "Share of the agent's four-word runs that it said before in the same dialogue.",
    ),
)
SCORES = (
    ("worst cell: intention and difficulty", "worst_cell", "{:.1f}"),
    ("worst fifth of the scenarios", "cvar20", "{:.1f}"),
    ("delighted users", "success_rate", "{:.0%}"),
    ("users who left", "failure_rate", "{:.0%}"),
)
"""Rows of the held-out table: label, key in the summary, form."""
TIMINGS = {"rolling out": "timing_s/gen", "updating": "timing_s/update_actor", "sending weights": "timing_s/update_weights"}


def training(run: Run) -> str:
    """What every step measured."""
    marks = alarm_steps(run)
    figures = []
    for curve in CURVES:
        lines = [Line(name=name, xs=series.steps, ys=series.values) for name, key in curve.keys.items() for series in [run.series(key)]]
        figures.append(figure(curve.title, line_chart(lines, x_label="step", y_range=curve.y_range, alarms=marks), curve.caption))
    note = "Pale: every step. Strong: the running mean." + (" Triangles: alarms." if marks else "")
    return f'<h2>How training went</h2><p class="note">{note}</p><div class="grid-3">{"".join(figures)}</div>'


def evaluation(run: Run, held_out: BeforeAfter) -> str:
    """The held-out score in the course of training, by strictness, and as a table."""
    line = Line(name="score", xs=[look.policy_tokens for look in held_out.looks], ys=[look.score for look in held_out.looks], noisy=False)
    references = [(name, setting(run.summary, f"reference.{name}.score")) for name in ("L0", "L6")]
    levels = [Level(name=name, y=value) for name, value in references if value is not None]
    chart = line_chart([line], x_label="policy tokens", y_range=(0.0, 100.0), levels=levels, width=WIDE)
    small_grid = "The same small grid at every look" + ("; L0 and L6 are scores on the full grid." if levels else ".")
    over_tokens = figure("Score over tokens", chart, small_grid)
    before, after = (setting(run.summary, f"{when}.by_strictness", {}) for when in ("start", "heldout"))
    groups = [(name, before.get(name), after.get(name)) for name in sorted({*before, *after}, key=float)]
    bars = bar_chart(groups, x_label="strictness of the user", width=WIDE) if groups else '<p class="none">A finished run has these.</p>'
    by_strictness = figure("Score by strictness", bars, "A stricter user asks for more skills at once.")
    return f'<h2>Held-out users</h2><div class="grid-2">{over_tokens}{by_strictness}</div>{table_of_scores(run)}'


def figure(title: str, drawing: str, caption: str) -> str:
    """A drawing with its words."""
    return f"<figure><h3>{escape(title)}</h3>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def table_of_scores(run: Run) -> str:
    """Every held-out number before and after; nothing while there is no summary."""
    if run.summary is None:
        return ""
    before, after = (setting(run.summary, when, {}) for when in ("start", "heldout"))
    rows = [("score, with its 95% interval", with_interval(before), with_interval(after))]
    rows += [(name, text(before.get(key), form), text(after.get(key), form)) for name, key, form in SCORES]
    body = "".join(f'<tr><th>{name}</th><td class="num">{old}</td><td class="num">{new}</td></tr>' for name, old, new in rows)
    return f'<table><tr><th></th><th class="num">before</th><th class="num">after</th></tr>{body}</table>'


def alarms(run: Run) -> str:
    """What the collapse monitor reported."""
    if run.summary is None:
        fired = [f"An alarm went off at step {step:g}; its words stand in the run's log." for step in alarm_steps(run)]
    else:
        fired = [f"<b>{escape(alarm['name'])}</b> at step {alarm['step']}: {escape(alarm['message'])}" for alarm in alarms_of(run)]
    quiet = '<p class="alarm quiet">None went off.</p>'
    return "<h2>Alarms</h2>" + ("".join(f'<p class="alarm">{line}</p>' for line in fired) or quiet)


def alarm_steps(run: Run) -> list[float]:
    """Steps at which alarms went off; before there is a summary, those at which more were on than the step before."""
    if run.summary is not None:
        return sorted({float(alarm["step"]) for alarm in alarms_of(run)})
    steps, num_on = run.series("collapse/alarms_on")
    return [float(step) for step, before, now in zip(steps, [0.0, *num_on], num_on, strict=False) if now > before]


def dialogues(held_out: BeforeAfter) -> str:
    """The same held-out user before and after training."""
    title = "<h2>One held-out user, before and after</h2>"
    if not held_out.pairs or held_out.gain is None:
        return f'{title}<p class="none">The evaluation after training is still to come.</p>'
    pair = typical(held_out.pairs)
    chosen = (
        f"{pair.before['scenario_id']} ({pair.before['family']}), strictness {pair.before['strictness']:g}. Not picked by hand: "
        f"of {held_out.gain.num_pairs} pairs, its change of {pair.gain:+.0f} is the closest to their mean, {held_out.gain.mean:+.1f}."
    )
    wish = f"<b>Hidden wish, which the agent is never shown:</b> {escape(pair.before['hidden_intention'])}"
    return f'{title}<p class="note">{escape(chosen)}</p><p>{wish}</p>{side_by_side(pair)}'


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
        ("a step", shares_of_time(run)),
        ("errors", errors or "none"),
        ("trainer against engine", f"{text(setting(summary, 'mismatch.mean_abs_logprob'), '{:.1e}')} nats, mean difference of logprobs"),
    ]
    return f"<h2>Cost</h2>{two_columns(rows)}"


def shares_of_time(run: Run) -> str:
    """Mean seconds of a step, and on what."""
    steps = run.series("timing_s/step").values
    if not steps:
        return "not recorded"
    spent = {name: sum(run.series(key).values) / sum(steps) for name, key in TIMINGS.items()}
    parts = ", ".join(f"{share:.0%} {name}" for name, share in spent.items())
    return f"{sum(steps) / len(steps):.2f} s on average: {parts}"


def repeat(run: Run) -> str:
    """Which code, which world, which settings, which packages."""
    commit = str(run.provenance.get("git_commit") or "")
    lines = [f"git checkout {commit.removesuffix('+')}"] if commit else []
    lines.append(f'make experiment EXP={run.experiment} ARGS="{" ".join(overrides(run))}"')
    notes = ["The working tree had changes that no commit holds."] if commit.endswith("+") else []
    notes += [] if run.provenance.get("overrides") else ["If other settings were given too, they are in the list below."]
    note = f'<p class="note">{" ".join(notes)}</p>' if notes else ""
    settings = "\n".join(f"{name}: {value}" for name, value in flatten(run.config))
    versions = setting(run.summary, "versions") or run.provenance.get("versions") or {}
    world = setting(run.summary, "world_hash") or run.provenance.get("world_hash") or "not recorded"
    rows = [("code", commit or "not recorded"), ("world", world), *versions.items()]
    return (
        f"<h2>How to repeat it</h2><pre>{escape(chr(10).join(lines))}</pre>{note}"
        f"<details><summary>All settings of this run</summary><pre>{escape(settings)}</pre></details><h2>Versions</h2>{two_columns(rows)}"
    )


def overrides(run: Run) -> Sequence[str]:
    """What was said on the command line; the seed where that was not kept."""
    return [str(word) for word in run.provenance.get("overrides") or [f"seed={run.config.get('seed', 0)}"]]
