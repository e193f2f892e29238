"""The figures of a run's report: its course, its held-out scores, and what its teacher issued.

What a run showed, in one sentence that claims no more than its numbers.

One self-contained HTML page about a run: the verdict first, then what it rests on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from analysis.after_alarm import alarm_steps, alarms_of, told_number
from analysis.endpoints import Look, lacks_dialogues, lacks_looks
from analysis.evaluated import is_evaluation
from analysis.page import write_page
from analysis.plots import (
    FULL,
    LEFT,
    WIDE,
    Figure,
    Heat,
    Level,
    Line,
    Plot,
    Row,
    Sheet,
    bar_chart,
    blue,
    hue,
    line_chart,
    maps,
    mark,
    number_line,
    set_ranges,
    write_figures,
)
from analysis.runs import (
    CONFIG,
    EVALUATION,
    METRICS,
    REPORT,
    SUMMARY,
    TEACHER,
    Group,
    Run,
    Teaching,
    by_time,
    lacks_provenance,
    read_teaching,
    read_torn_run,
    setting,
)
from analysis.sections import (
    CURVES,
    FELT,
    SHARE,
    Figures,
    alarms,
    all_transcripts,
    cost,
    dialogues,
    evaluation,
    left_by_callbacks,
    of_run,
    remarks,
    repeat,
    teaching,
    training,
)
from analysis.text import count, duration, facts_strip, nth, text, way_covered
from analysis.transcripts import BeforeAfter, Gain, before_after

MAX_GROUPS = 2000
"""Groups that are drawn; of more, every so many."""
NUM_BINS = 24
"""Stretches of a run in the map of what was issued."""
ROWS = (
    ("L0, only gives advice", "reference.L0", "plain"),
    ("before training", "start", "before"),
    ("after training", "heldout", "after"),
    ("L6, uses all six skills", "reference.L6", "plain"),
)
"""Label, place in the summary and style of the scores that are compared."""


AIM = {
    "level: strictness": "curriculum/level",
    "success aimed at": "curriculum/target_success",
    "success at the level": "curriculum/success_running",
}
"""What a teacher that tracks success goes by, by the name of its line."""
SHAPES = {
    "uniform": ("^", "explored at random"),
    "replay": ("D", "replayed"),
    "contrast": ("s", "drawn by contrast"),
    "unlearned": ("v", "only scored"),
}
"""By mode in the log, marks of tasks that were issued for something else than the teacher's own choice, and for what."""
OWN_CHOICE = ("o", "its own choice")


def training_figures(run: Run) -> list[Figure]:
    """What every step measured."""
    marks, figures = alarm_steps(run), []
    for curve in CURVES:
        lines = [Line(name=name, xs=series.steps, ys=series.values) for name, key in curve.keys.items() for series in [run.series(key)]]
        lines = [line for line in lines if line.name != FELT or not lies_on(line, lines[0])]
        rows = [(line.name, x, y) for line in lines for x, y in zip(line.xs, line.ys, strict=True)]
        plot = line_chart(lines, x_label="step", y_range=curve.y_range, alarms=marks)
        header = ("line", "step", "value")
        figures.append(Figure(name=curve.name, title=curve.title, plot=plot, caption=curve.caption, header=header, rows=rows))
    return figures


def lies_on(line: Line, other: Line) -> bool:
    """Whether a line would hide another, or has no points."""
    here, there = dict(zip(line.xs, line.ys, strict=True)), dict(zip(other.xs, other.ys, strict=True))
    return all(math.isclose(y, there.get(x, math.nan), abs_tol=1e-6) for x, y in here.items())


def scores_figure(run: Run) -> Figure | None:
    """Before and after beside the scripted agents; None while there is no summary."""
    rows = []
    for name, place, style in ROWS:
        value = setting(run.summary, f"{place}.score")
        low, high = setting(run.summary, f"{place}.score_ci95", (None, None))
        if value is not None:
            rows.append(Row(name=name, value=value, low=low, high=high, style=style))
    if not rows:
        return None
    num = setting(run.summary, "heldout.n_dialogues") or setting(run.summary, "start.n_dialogues", 0)
    caption = f"Held-out score: the user's mean final emotion, 0 to 100, over {count(num, 'dialogue')}. Bars: 95% intervals over scenarios."
    table = [(row.name, row.value, row.low, row.high) for row in rows]
    return Figure(
        name="scores",
        title="Held-out score",
        plot=number_line(rows),
        caption=caption,
        header=("score", "value", "low", "high"),
        rows=table,
    )


def held_out_figures(run: Run, held_out: BeforeAfter) -> list[Figure]:
    """The held-out score in the course of training, and by strictness."""
    line = Line(name="score", xs=[look.policy_tokens for look in held_out.looks], ys=[look.score for look in held_out.looks], noisy=False)
    references = [(name, setting(run.summary, f"reference.{name}.score")) for name in ("L0", "L6")]
    levels = [Level(name=name, y=value) for name, value in references if value is not None]
    over_tokens = Figure(
        name="score_over_tokens",
        title="Score over tokens",
        plot=line_chart([line], x_label="policy tokens", y_range=(0.0, 100.0), levels=levels, width=WIDE),
        caption="The same small grid at every look" + ("; L0 and L6 are scores on the full grid." if levels else "."),
        header=("step", "policy_tokens", "score"),
        rows=[tuple(look) for look in held_out.looks],
    )
    before, after = (setting(run.summary, f"{when}.by_strictness", {}) for when in ("start", "heldout"))
    groups = [(name, before.get(name), after.get(name)) for name in sorted({*before, *after}, key=float)]
    by_strictness = Figure(
        name="score_by_strictness",
        title="Score by strictness",
        plot=bar_chart(groups, x_label="strictness of the user", width=WIDE),
        nothing="A finished run has these.",
        caption="A stricter user asks for more skills at once.",
        header=("strictness", "before", "after"),
        rows=groups,
    )
    return [over_tokens, by_strictness]


def teaching_figures(groups: Sequence[Group]) -> list[Figure]:
    """Every group that was issued, and how difficulty went by hidden intention."""
    return [issued_figure(groups), intentions_figure(groups)]


def aim_figure(run: Run) -> Figure | None:
    """What the teacher's choices rest on: its level, the success that it aims at and the success it found; None of one that has no aim."""
    lines = [Line(name=name, xs=series.steps, ys=series.values) for name, key in AIM.items() for series in [run.series(key)]]
    plot = line_chart(lines, x_label="step", y_range=SHARE, alarms=alarm_steps(run), width=FULL)
    if plot is None:
        return None
    return Figure(
        name="aim",
        title="What it went by",
        plot=plot,
        caption="Success below the aim lowers the level, success above it raises it (the mean reward, where teacher.measure says so). The "
        "level is the mean over families, each with an offset of its own.",
        header=("line", "step", "value"),
        rows=[(line.name, x, y) for line in lines for x, y in zip(line.xs, line.ys, strict=True)],
    )


def issued_figure(groups: Sequence[Group]) -> Figure:
    """A dot for each group, dark where it succeeded."""
    every = -(-len(groups) // MAX_GROUPS) or 1
    shown = groups[::every]
    skipped = f" Of {len(groups):,} {nth(every)} is drawn." if every > 1 else ""
    return Figure(
        name="issued",
        title="What was issued, and how it went",
        plot=issued_plot(shown) if shown else None,
        caption="A dot for each group at the strictness of its user: dark where its rollouts succeeded, pale where none did." + skipped,
        header=("step", "family", "strictness", "success_share", "mode"),
        rows=[(group.step, group.family, group.strictness, group.success_share, group.mode) for group in groups],
    )


def issued_plot(shown: Sequence[Group]) -> Plot:
    """Strictness over steps, a dot for each group; what the shades mean stands above, and the shapes where there are several modes."""
    height = 280.0
    edge = {"edgecolors": hue("soft"), "linewidths": 0.3}
    looks = {mode: SHAPES.get(mode, OWN_CHOICE) for mode in {group.mode for group in shown}}
    if len(set(looks.values())) == 1:
        looks = dict.fromkeys(looks, OWN_CHOICE)

    def shade(share: float | None) -> str:
        return "none" if share is None else blue(0.1 + 0.9 * share)

    def paint(sheet: Sheet) -> None:
        axes = sheet.axes(LEFT, 28, FULL - 12, height - 38)
        set_ranges(axes, (0.0, max(group.step for group in shown) + 0.5), (-0.02, 1.02), num_x=12, whole_x=True)
        kinds = sorted(set(looks.values()), key=lambda look: look != OWN_CHOICE)
        for marker, _ in kinds:
            groups = [group for group in shown if looks[group.mode][0] == marker]
            colours = [shade(group.success_share) for group in groups]
            steps, strictness = [group.step for group in groups], [group.strictness for group in groups]
            axes.scatter(steps, strictness, s=16, c=colours, marker=marker, gid=mark("issued"), **edge)
        sheet.text(FULL - 12, height - 3, "step", colour="soft", ha="right")
        sheet.text(LEFT, 14, "share of successes", colour="soft")
        for i, share in enumerate((0.0, 0.25, 0.5, 0.75, 1.0)):
            x = LEFT + 132.0 + 52.0 * i
            sheet.line([x], 10, marker="o", markersize=5, color=shade(share), markeredgecolor=hue("soft"), markeredgewidth=0.4)
            sheet.text(x + 8, 14, f"{share:.0%}", colour="soft")
        for i, (marker, what) in enumerate(kinds if len(kinds) > 1 else ()):
            x = LEFT + 440.0 + 150.0 * i
            sheet.line([x], 10, marker=marker, markersize=5, color="none", markeredgecolor=hue("soft"), markeredgewidth=0.8)
            sheet.text(x + 8, 14, what, colour="soft")

    return Plot(width=FULL, height=height, label="strictness of every group over steps", paint=paint)


def intentions_figure(groups: Sequence[Group]) -> Figure:
    """Mean strictness by hidden intention and stretch of steps."""
    ends, means, counts = by_time(groups, num_bins=NUM_BINS)
    intentions = sorted({intention for intention, _ in means})
    wide = (FULL - 110.0) / max(len(ends), 1)
    plot = maps(
        [Heat(values=means)] if means else [],
        intentions,
        ends,
        low=0.0,
        high=1.0,
        form="{:.2f}" if wide > 30.0 else "",
        cell=(wide, 23.0),
        x_label="up to step",
        label="strictness by hidden intention and step",
        in_a_row=1,
        every=-(-len(ends) // 16) or 1,
    )
    return Figure(
        name="strictness_by_intention",
        title="Mean strictness by what users secretly want",
        plot=plot,
        caption="Dark is strict; empty where no group of the intention was issued.",
        header=("hidden_intention", "up_to_step", "mean_strictness", "num_groups"),
        rows=[(*cell, value, counts[cell]) for cell, value in sorted(means.items(), key=lambda item: (item[0][0], int(item[0][1])))],
    )


LOST = 5.0
"""Points by which the best look lies above the last one where a gain was lost again. Looks are of few users and noisy, and the best of
them lies above the last one by itself: in nine of ten runs by less than this."""


def verdict(run: Run, held_out: BeforeAfter) -> str:
    """The first sentence of a report."""
    start, end = score(run, "start"), score(run, "heldout")
    if SUMMARY in run.torn:
        return f"What this run reached cannot be told{on_the_small_grid(held_out)}."
    if run.summary is None or end is None:
        return unfinished(run, held_out)
    if start is None:
        return f"The held-out score is {end:.1f} of 100 after training; what it was before was not measured."
    if held_out.gain is None or EVALUATION in run.torn:
        return f"The held-out score went from {start:.1f} to {end:.1f} of 100; how sure that is cannot be told without {EVALUATION}."
    way = way_to_expert(run, start, end)
    if math.isnan(held_out.gain.low):
        return f"The held-out score went from {start:.1f} to {end:.1f} of 100{way}; with one scenario how sure that is cannot be told."
    return f"{change(start, end, held_out.gain)}{way}."


def caveat(run: Run, held_out: BeforeAfter) -> str:
    """What must be known to read the verdict: the alarms, whether a gain was lost again, and what one seed can say."""
    seed = "One training seed describes a run; it does not decide between methods."
    return " ".join(filter(None, (alarms_in_short(run), lost_again(held_out.looks), seed)))


def alarms_in_short(run: Run) -> str:
    """Which alarms went off, collapse before all others; empty while a run without any has no summary."""
    alarms = alarms_of(run)
    if any(alarm["name"] == "collapse" for alarm in alarms):
        step = min(alarm["step"] for alarm in alarms if alarm["name"] == "collapse")
        return f"Collapse was reported from step {step}: read the transcripts before trusting the score."
    if alarms:
        names = ", ".join(sorted({alarm["name"] for alarm in alarms}))
        return f"{count(len(alarms), 'alarm')} went off ({names}), but not the one named collapse."
    return "No alarm went off." if run.summary else ""


def lost_again(looks: Sequence[Look]) -> str:
    """That a look in the course of training was better than the last one; empty where it was not, or by less than `LOST`."""
    best = max(looks, key=lambda look: look.score, default=None)
    if best is None or best is looks[0] or best.score - looks[-1].score < LOST:
        return ""
    return f"On the small grid the score had reached {best.score:.1f} at step {best.step} and was {looks[-1].score:.1f} at the last look."


def change(start: float, end: float, gain: Gain) -> str:
    """How the score moved, and whether that is more than the choice of scenarios explains.

    Args:
        gain: with an interval that is known.
    """
    numbers = f"from {start:.1f} to {end:.1f} of 100 ({gain.mean:+.1f}, 95% interval {gain.low:+.1f} to {gain.high:+.1f})"
    if gain.low > 0.0:
        return f"Training raised the held-out score {numbers}"
    if gain.high < 0.0:
        return f"Training lowered the held-out score {numbers}"
    return f"Training made no clear difference: the held-out score went {numbers}"


def way_to_expert(run: Run, start: float, end: float) -> str:
    """Which part of the distance to the scripted expert was covered; nothing where there is no such distance."""
    expert = setting(run.summary, "reference.L6.score")
    covered = way_covered(start, end, expert)
    return f", {covered} of the way to the scripted expert L6 ({expert:.1f})" if covered else ""


def unfinished(run: Run, held_out: BeforeAfter) -> str:
    """How far a run has come that has no summary."""
    how_far = "how far it came cannot be told" if METRICS in run.torn else f"{count(run.num_steps, 'step')} so far"
    so_far = f"This run has not finished: {how_far}"
    if EVALUATION in run.torn:
        return f"{so_far}; its held-out scores cannot be told."
    return f"{so_far}{on_the_small_grid(held_out) or ', and no held-out score yet'}."


def on_the_small_grid(held_out: BeforeAfter) -> str:
    """How a sentence goes on about the looks that were taken; empty without any."""
    if not held_out.looks:
        return ""
    first, last = held_out.looks[0], held_out.looks[-1]
    if len(held_out.looks) == 1:
        return f"; the held-out score before training is {first.score:.1f} of 100"
    return f"; on the small held-out grid the score was {first.score:.1f} of 100 before training and {last.score:.1f} at step {last.step}"


def score(run: Run, when: str) -> float | None:
    """The mean final emotion on the full grid, `start` or `heldout`; None where it was not measured."""
    return setting(run.summary, f"{when}.score")


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
