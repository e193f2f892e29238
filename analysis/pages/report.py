"""One self-contained HTML page about a run: the verdict first, then what it rests on."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from pathlib import Path

from analysis.agents.evaluated import is_evaluation
from analysis.drawing.figures import Figure, write_figures
from analysis.drawing.page import write_page
from analysis.grades import lacks_dialogues, lacks_looks
from analysis.pages.aftermath import told_number
from analysis.pages.before_after import BeforeAfter, before_after
from analysis.pages.callback_sections import left_by_callbacks
from analysis.pages.reliability_sections import of_run
from analysis.pages.run_figures import aim_figure, held_out_figures, scores_figure, teaching_figures, training_figures
from analysis.pages.sections import Figures, alarms, all_transcripts, cost, dialogues, evaluation, repeat, teaching, training
from analysis.pages.sweep_sections import remarks
from analysis.pages.verdict import caveat, verdict
from analysis.runs import CONFIG, EVALUATION, METRICS, REPORT, SUMMARY, TEACHER, Run, lacks_provenance, read_torn_run, setting
from analysis.teaching import Teaching, read_teaching
from analysis.wording import duration, facts_strip, text


def write_report(run_folder: Path) -> Path:
    """Writes `report.html` and `figures/` into the folder of a run, finished or not, and returns the page's path.

    What rests on a file that cannot be used is left out, and the page says so first.

    Raises:
        ValueError: the folder is no training run's.
    """
    run = read_torn_run(run_folder)
    if is_evaluation(run.folder, run.config):
        raise ValueError(
            f"run must be a training run's folder, got {str(run.folder)!r}, which is an evaluation's; "
            f"`python -m analysis leaderboard {run.folder}` and `python -m analysis transcripts {run.folder}` show what it found"
        )
    run, held_out, taught = with_streams(run)
    figures = figures_of(run, held_out, taught)
    write_figures(run.folder, figures.values())
    return write_page(run.folder / REPORT, title=run.title, body=body(run, held_out, taught, figures))


def with_streams(run: Run) -> tuple[Run, BeforeAfter, Teaching]:
    """What a run's long streams say; one that cannot be used says nothing and is named in the run's `torn`."""
    torn = dict(run.torn)
    if CONFIG not in torn and (said := lacks_provenance(run)):
        run, torn[CONFIG] = replace(run, config={}), said
    held_out, taught = BeforeAfter(looks=[], pairs=[], gain=None), Teaching(groups=[], decisions=[])
    try:
        found = before_after(run.evaluation())
        if setting(run.summary, "heldout.auc") is not None and not found.looks:
            raise ValueError(f"{run.folder / EVALUATION} holds no held-out dialogue")
        if said := lacks_looks(run.summary, found.looks) or lacks_dialogues(run.summary, found.num_last):
            raise ValueError(said)
        held_out = found
    except (ValueError, OSError) as error:
        torn[EVALUATION] = str(error)
    try:
        taught = read_teaching(run)
    except (ValueError, OSError) as error:
        torn[TEACHER] = str(error)
    return replace(run, torn=torn), held_out, taught


def figures_of(run: Run, held_out: BeforeAfter, taught: Teaching) -> dict[str, Figure]:
    """All figures by name, without those that a torn file would have filled."""
    over_tokens, by_strictness = held_out_figures(run, held_out)
    scores = scores_figure(run)
    made = [
        *([] if METRICS in run.torn else training_figures(run)),
        *([] if EVALUATION in run.torn else [over_tokens]),
        *([] if SUMMARY in run.torn else [by_strictness]),
        *([] if TEACHER in run.torn else teaching_figures(taught.groups)),
        *([] if METRICS in run.torn else filter(None, [aim_figure(run)])),
        *([scores] if scores else []),
    ]
    return {figure.name: figure for figure in made}


def body(run: Run, held_out: BeforeAfter, taught: Teaching, figures: Figures) -> str:
    """Everything below the title of the window."""
    parts = [
        head(run, held_out, figures),
        training(run, figures),
        evaluation(run, figures),
        of_run(run),
        left_by_callbacks(run),
        teaching(run, taught.decisions, figures),
        alarms(run, held_out),
        dialogues(run, held_out),
        all_transcripts(run),
        cost(run),
        repeat(run),
    ]
    return "\n".join(parts)


def head(run: Run, held_out: BeforeAfter, figures: Figures) -> str:
    """The verdict, where the score lies between the scripted agents, and the numbers one asks for first."""
    drawn = figures["scores"].html() if "scores" in figures else ""
    torn = remarks([f"Nothing here rests on {name}, which cannot be used: {why}." for name, why in run.torn.items()])
    return (
        f'<p class="where">{escape(identity(run))}</p>'
        f"<h1>{escape(verdict(run, held_out))}</h1>"
        f'<p class="lead">{escape(caveat(run, held_out))}</p>{torn}{drawn}{facts(run)}'
    )


def identity(run: Run) -> str:
    """Which run this is."""
    kind, algorithm, model = (setting(run.config, key) for key in ("teacher.kind", "algorithm.kind", "policy.model"))
    made_by = [f"{kind} teacher" if kind else None, algorithm, f"{model} policy" if model else None]
    return " · ".join([run.title.replace("/", " / "), f"seed {run.config.get('seed', '?')}", *filter(None, made_by)])


def facts(run: Run) -> str:
    """A strip of numbers."""
    summary = run.summary
    unknown = METRICS in run.torn and summary is None
    steps = setting(summary, "steps") if METRICS in run.torn else run.num_steps
    tokens = setting(summary, "policy_tokens") or (run.series("perf/policy_tokens").values or [0])[-1]
    strictness = run.series("curriculum/strictness").values
    first, last = (setting(summary, f"strictness.{when}", value) for when, value in zip(("start", "end"), ends(strictness), strict=True))
    cpu_s = setting(summary, "cpu_s")
    shown = [
        ("steps", text(steps, "{:,}"), ""),
        ("policy tokens", text(None if unknown else tokens, "{:,.0f}"), ""),
        ("time", duration(setting(summary, "wall_s")), f"{duration(cpu_s)} of CPU" if cpu_s else ""),
        ("area under the curve", text(setting(summary, "heldout.auc"), "{:.1f}"), "held-out score on the small grid, over its own tokens"),
        ("difficulty practised", text(last, "{:.2f}"), f"strictness, {text(first, '{:.2f}')} at the start"),
        ("alarms", "–" if unknown else told_number([run]), ""),
    ]
    return facts_strip(shown)


def ends(values: list[float]) -> tuple[float | None, float | None]:
    """The first and the last value, None without any."""
    return (values[0], values[-1]) if values else (None, None)
