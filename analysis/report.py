"""One self-contained HTML page about a run: the verdict first, then what it rests on."""

from __future__ import annotations

from html import escape
from pathlib import Path

from analysis.before_after import BeforeAfter, before_after
from analysis.charts import Row, number_line
from analysis.runs import REPORT, Run, read_run, setting
from analysis.sections import alarm_steps, alarms, all_transcripts, cost, dialogues, evaluation, repeat, training
from analysis.style import STYLE
from analysis.verdict import alarms_of, caveat, count, verdict
from analysis.wording import duration, text

ROWS = (
    ("L0, only gives advice", "reference.L0", "plain"),
    ("before training", "start", "before"),
    ("after training", "heldout", "after"),
    ("L6, uses all six skills", "reference.L6", "plain"),
)
"""Label, place in the summary and style of the scores that are compared."""


def write_report(run_folder: Path) -> Path:
    """Writes `report.html` into the folder of a run, finished or not, and returns its path.

    Raises:
        ValueError: the folder is no run's, or one of its files cannot be read.
    """
    run = read_run(run_folder)
    path = run.folder / REPORT
    draft = run.folder / f".{REPORT}.tmp"
    draft.write_text(page(run), encoding="utf-8")
    draft.replace(path)
    return path


def page(run: Run) -> str:
    """The whole page."""
    held_out = before_after(run.evaluation())
    parts = [
        head(run, held_out),
        training(run),
        evaluation(run, held_out),
        alarms(run),
        dialogues(held_out),
        all_transcripts(run),
        cost(run),
        repeat(run),
    ]
    title = f"<title>{escape(run.experiment)}/{escape(run.name)}</title>"
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    start = f'<!doctype html>\n<html lang="en"><head>{meta}{title}<style>{STYLE}</style></head>'
    return f"{start}\n<body><main>\n{chr(10).join(parts)}\n</main></body></html>\n"


def head(run: Run, held_out: BeforeAfter) -> str:
    """The verdict, where the score lies between the scripted agents, and the numbers one asks for first."""
    return (
        f'<p class="where">{escape(identity(run))}</p>'
        f"<h1>{escape(verdict(run, held_out))}</h1>"
        f'<p class="lead">{escape(caveat(run))}</p>{scores(run)}{facts(run)}'
    )


def identity(run: Run) -> str:
    """Which run this is."""
    kind, algorithm, model = (setting(run.config, key) for key in ("teacher.kind", "algorithm.kind", "policy.model"))
    made_by = [f"{kind} teacher" if kind else None, algorithm, f"{model} policy" if model else None]
    return " · ".join([f"{run.experiment} / {run.name}", f"seed {run.config.get('seed', '?')}", *filter(None, made_by)])


def scores(run: Run) -> str:
    """Before and after beside the scripted agents; nothing while there is no summary."""
    rows = []
    for name, place, style in ROWS:
        value = setting(run.summary, f"{place}.score")
        low, high = setting(run.summary, f"{place}.score_ci95", (None, None))
        if value is not None:
            rows.append(Row(name=name, value=value, low=low, high=high, style=style))
    if not rows:
        return ""
    num = setting(run.summary, "heldout.n_dialogues") or setting(run.summary, "start.n_dialogues", 0)
    caption = f"Held-out score: the user's mean final emotion, 0 to 100, over {count(num, 'dialogue')}. Bars: 95% intervals over scenarios."
    return f"<figure>{number_line(rows)}<figcaption>{caption}</figcaption></figure>"


def facts(run: Run) -> str:
    """A strip of numbers."""
    summary = run.summary
    tokens = setting(summary, "policy_tokens") or (run.series("perf/policy_tokens").values or [0])[-1]
    strictness = run.series("curriculum/strictness").values
    first, last = (setting(summary, f"strictness.{when}", value) for when, value in zip(("start", "end"), ends(strictness), strict=True))
    cpu_s = setting(summary, "cpu_s")
    shown = [
        ("steps", f"{run.num_steps:,}", ""),
        ("policy tokens", f"{tokens:,.0f}", ""),
        ("time", duration(setting(summary, "wall_s")), f"{duration(cpu_s)} of CPU" if cpu_s else ""),
        ("area under the curve", text(setting(summary, "heldout.auc"), "{:.1f}"), "held-out score over tokens"),
        ("difficulty practised", text(last, "{:.2f}"), f"strictness, {text(first, '{:.2f}')} at the start"),
        ("alarms", f"{len(alarms_of(run)) if summary else len(alarm_steps(run))}", ""),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd><small>{note}</small></div>" for name, value, note in shown)
    return f'<dl class="facts">{cells}</dl>'


def ends(values: list[float]) -> tuple[float | None, float | None]:
    """The first and the last value, None without any."""
    return (values[0], values[-1]) if values else (None, None)
