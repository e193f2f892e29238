"""The figures of a run's report: its course, its held-out scores, and what its teacher issued."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from analysis.drawing.canvas import Plot, Sheet, hue, mark
from analysis.drawing.cell_maps import Heat, maps
from analysis.drawing.figures import Figure
from analysis.drawing.hues import blue
from analysis.drawing.plots import FULL, LEFT, WIDE, Level, Line, Row, bar_chart, line_chart, number_line, set_ranges
from analysis.pages.aftermath import alarm_steps
from analysis.pages.before_after import BeforeAfter
from analysis.runs import Run, setting
from analysis.teaching import Group, by_time
from analysis.wording import count, nth

SHARE = (0.0, 1.0)
MAX_GROUPS = 2000
"""Groups that are drawn; of more, every so many."""
NUM_BINS = 24
"""Stretches of a run in the map of what was issued."""
FELT = "felt"
"""A line that most runs need not draw: they are paid for it."""
ROWS = (
    ("L0, only gives advice", "reference.L0", "plain"),
    ("before training", "start", "before"),
    ("after training", "heldout", "after"),
    ("L6, uses all six skills", "reference.L6", "plain"),
)
"""Label, place in the summary and style of the scores that are compared."""


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
