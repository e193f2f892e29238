"""The page about one run, finished or not: a verdict, figures, what the teacher did, alarms, dialogues, cost and how to repeat it."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.endpoints import Look
from analysis.evaluated import is_evaluation
from analysis.judged import judged_looks
from analysis.page import render
from analysis.plots import FOLDER, FULL, SMALL, WIDE, Dots, Figure, Line, bars, curves, dot_rows, heat_map, shaded_dots, write_figures
from analysis.runs import EVALUATION, REPORT, TRANSCRIPTS, Decision, Group, Run, by_time, in_words, read_run
from analysis.sections import BeforeAfter, after_alarms, alarms_in_all, alarms_of, examples
from analysis.sweeps import run_folders, seed_of
from analysis.text import count, duration, make_experiment, nth, text, way_covered, with_interval
from simulator.files import write_whole
from simulator.settings import leaves, setting
from simulator.version import recorded_world


class Curve(NamedTuple):
    """A figure over steps."""

    name: str
    title: str
    keys: dict[str, str]
    """Metric by the name of its line."""
    caption: str
    y_range: tuple[float, float] | None = (0.0, 1.0)


CURVES = (
    Curve(
        "reward",
        "Reward",
        {"mean": "reward/mean", "success rate": "reward/success_rate", "felt": "reward/emotion"},
        "The run is trained on its mean. If that is not the users' final emotion / 100, the emotion is drawn too (felt): the further below "
        "the mean, the more the reward is gamed. An adaptive teacher holds mean and success near a target by asking for more.",
    ),
    Curve(
        "reward_density",
        "Reward density",
        {"density": "curriculum/reward_density"},
        "How much rewards differ within a group. Near 0 there is nothing to learn from.",
        None,
    ),
    Curve(
        "entropy",
        "Policy entropy",
        {"entropy": "actor/entropy", "what the budget affords": "curriculum/entropy_affordable"},
        "Nats per token. A slow fall is learning; near 0 the policy has stopped exploring. At what the budget affords, a tenth of the "
        "start is left at the end.",
        None,
    ),
    Curve("difficulty", "Difficulty", {"strictness": "curriculum/strictness"}, "Mean strictness of the users that the teacher chose."),
    Curve(
        "zero_variance",
        "Zero-variance share",
        {"all": "curriculum/zero_variance_share", "too hard": "curriculum/all_low_share", "too easy": "curriculum/all_high_share"},
        "Groups whose rollouts all got the same reward, a low or a high one.",
    ),
    Curve(
        "repetition",
        "Repetition",
        {"repetition": "dialogue/repetition"},
        "Share of the agent's four-word runs that it said before in the same dialogue.",
    ),
)
AIM = Curve(
    "aim",
    "Level and success",
    {
        "level: strictness": "curriculum/level",
        "success aimed at": "curriculum/target_success",
        "success at the level": "curriculum/success_running",
    },
    "Success below the aim lowers the level, success above it raises it (the mean reward, where teacher.measure says so). The level is the "
    "mean over families, each with an offset of its own.",
)
"""Of a teacher that tracks success."""
STEERING = Curve(
    "steering",
    "What entropy and density moved",
    {
        "ease": "curriculum/ease",
        "entropy pressure": "curriculum/entropy_pressure",
        "entropy growth": "curriculum/entropy_growth",
        "density ratio": "curriculum/density_ratio",
    },
    "Ease is in logits of the mean reward, below 0 for harder tasks. Pressure above 1 (entropy falls faster than the budget affords) makes "
    "tasks harder; growth above 1 (entropy will double) or density below 1 (rewards differ less than expected) makes them easier.",
    (-1.1, 3.0),
)
"""Of a teacher that entropy and density steer; the most that pressure can do it does at 2.7."""


def write_report(run_folder: Path) -> Path:
    """Writes `report.html` and `figures/` into the folder of a run, finished or not, and returns the page's path.

    Raises:
        ValueError: the folder is no training run's, or a file in it cannot be read.
    """
    run = read_run(run_folder)
    if is_evaluation(run.folder, run.config):
        raise ValueError(
            f"run must be a training run's folder, got {str(run.folder)!r}, which is an evaluation's; "
            f"`python -m analysis leaderboard {run.folder}` and `python -m analysis transcripts {run.folder}` show its results"
        )
    held_out, (groups, decided) = BeforeAfter.read(run.evaluation()), run.teaching()
    drawn = [line_figure(run, curve) for curve in CURVES]
    drawn += [*held_out_figures(run, held_out.looks), issued_figure(groups, decided), intentions_figure(groups)]
    # Only a finished run has scores, and only one with a second listener has two curves.
    drawn += [figure for figure in (scores_figure(run), judges_figure(run)) if figure.draw is not None]
    own = [curve for curve in (AIM, STEERING) if all(run.series(key).values for key in curve.keys.values())]
    drawn += [line_figure(run, curve, size=(FULL[0], SMALL[1])) for curve in own]
    write_figures(run.folder, drawn)
    kind, algorithm, model = (setting(run.config, key) for key in ("teacher.kind", "algorithm.kind", "policy.model"))
    made_by = [f"{kind} teacher" if kind else None, algorithm, f"{model} policy" if model else None]
    decisions = [(str(at), f"{name}: {move}" if move else name, in_words(inputs)) for at, name, inputs, move in decided[:200]]
    counts = Counter(decision.name for decision in decided)
    ended = f"{EVALUATION} holds no dialogue of before and after training."
    page = render(
        "report.html",
        title=run.title,
        folder=run.folder,
        where=" · ".join([run.title.replace("/", " / "), f"seed {run.config.get('seed', '?')}", *filter(None, made_by)]),
        headline=verdict(run, held_out),
        caveat=caveat(run, held_out.looks),
        figures={figure.name: figure for figure in drawn},
        curves=[curve.name for curve in CURVES],
        facts=facts(run),
        has_alarms=bool(alarms_of(run)),
        scores=score_rows(run),
        reliability=reliability_tables(run),
        callbacks=callback_tables(run),
        decision_counts=", ".join(f"{name} {num}" for name, num in counts.most_common()),
        decisions=decisions,
        more_decisions=len(decided) - len(decisions),
        alarms=after_alarms(run, held_out.looks),
        examples=examples(held_out.pairs) if held_out.pairs else [],
        no_example=ended if run.summary is not None else "The evaluation after training is still to come.",
        transcripts=TRANSCRIPTS if (run.folder / TRANSCRIPTS).is_file() else "",
        cost=cost(run),
        repeat=repeat(run),
    )
    return write_whole(run.folder / REPORT, page)


def verdict(run: Run, held_out: BeforeAfter) -> str:
    """The headline: how the score moved, and whether that is more than the choice of scenarios explains."""
    start, end, gain = setting(run.summary, "start.score"), setting(run.summary, "heldout.score"), held_out.gain
    if end is None:
        score = ", and no held-out score yet"
        if held_out.looks:
            first, last = held_out.looks[0], held_out.looks[-1]
            score = f"; on the small held-out grid the score was {first.score:.1f} of 100 before training"
            score += f" and {last.score:.1f} at step {last.step}" if last is not first else ""
        return f"This run has not finished: {count(run.num_steps, 'step')} so far{score}."
    if start is None:
        return f"The held-out score is {end:.1f} of 100 after training; the one before was not measured."
    expert = setting(run.summary, "reference.L6.score")
    covered = way_covered(start, end, expert)
    way = f", {covered} of the way to the scripted expert L6 ({expert:.1f})" if covered else ""
    if gain is None or math.isnan(gain[1]):
        why = f"without dialogues in {EVALUATION}" if gain is None else "with one scenario"
        return f"The held-out score went from {start:.1f} to {end:.1f} of 100{way}; {why} it has no interval."
    mean, low, high = gain
    claim = "Training raised the held-out score" if low > 0.0 else "Training lowered the held-out score"
    if low <= 0.0 <= high:
        claim = "Training made no clear difference: the held-out score went"
    return f"{claim} from {start:.1f} to {end:.1f} of 100 ({mean:+.1f}, 95% interval {low:+.1f} to {high:+.1f}){way}."


def caveat(run: Run, looks: Sequence[Look]) -> str:
    """At most three sentences on how to read the verdict: alarms, whether a gain was lost, and that one seed decides nothing."""
    alarms = alarms_of(run) if run.summary else []
    sentences = ["No alarm went off."] if run.summary else []
    if alarms:
        names = ", ".join(sorted({alarm["name"] for alarm in alarms}))
        sentences = [f"{count(len(alarms), 'alarm')} went off ({names}), but not the one named collapse."]
    if collapsed := [alarm["step"] for alarm in alarms if alarm["name"] == "collapse"]:
        sentences = [f"Collapse was reported from step {min(collapsed)}: read the transcripts before trusting the score."]
    best = max(looks, key=lambda look: look.score, default=None)
    # In nine of ten runs noise makes less than 5 points.
    if best and best is not looks[0] and best.score - looks[-1].score >= 5.0:
        sentences.append(
            f"On the small grid the score had reached {best.score:.1f} at step {best.step} and was {looks[-1].score:.1f} at the end."
        )
    return " ".join([*sentences, "One training seed describes a run; it does not decide between methods."])


def facts(run: Run) -> list[tuple[str, str, str]]:
    """Numbers asked for first: name, value and a remark."""
    summary, cpu_s = run.summary, setting(run.summary, "cpu_s")
    tokens = setting(summary, "policy_tokens") or (run.series("perf/policy_tokens").values or [0])[-1]
    issued = run.series("curriculum/strictness").values
    first, last = (setting(summary, f"strictness.{when}", issued[i] if issued else None) for when, i in (("start", 0), ("end", -1)))
    return [
        ("steps", f"{run.num_steps:,}", ""),
        ("policy tokens", f"{tokens:,.0f}", ""),
        ("time", duration(setting(summary, "wall_s")), f"{duration(cpu_s)} of CPU" if cpu_s else ""),
        ("area under the curve", text(setting(summary, "heldout.auc"), "{:.1f}"), "held-out score on the small grid, over its own tokens"),
        ("difficulty practised", text(last, "{:.2f}"), f"strictness, {text(first, '{:.2f}')} at the start"),
        ("alarms", alarms_in_all([run]), ""),
    ]


def line_figure(run: Run, curve: Curve, *, size: tuple[float, float] = SMALL) -> Figure:
    """Metrics over steps, with the steps of alarms."""
    lines = [Line(name, *run.series(key)) for name, key in curve.keys.items()]
    paid = dict(zip(lines[0].xs, lines[0].ys, strict=True))
    # Most runs are trained on what users felt: then the line would only hide the mean.
    felt = [point for line in lines if line.name == "felt" for point in zip(line.xs, line.ys, strict=True)]
    is_paid = all(math.isclose(y, paid.get(x, math.nan), abs_tol=1e-6) for x, y in felt)
    lines = [line for line in lines if line.name != "felt" or not is_paid]
    alarms = sorted({float(alarm["step"]) for alarm in alarms_of(run)})
    return Figure(
        name=curve.name,
        title=curve.title,
        draw=curves(lines, x_label="step", y_range=curve.y_range, alarms=alarms),
        caption=curve.caption,
        header=("line", "step", "value"),
        rows=[(line.name, x, y) for line in lines for x, y in zip(line.xs, line.ys, strict=True)],
        size=size,
    )


def scores_figure(run: Run) -> Figure:
    """Scores before and after with those of the scripted agents; nothing to draw while there is no summary."""
    rows = []
    for name, place, colour in (
        ("L0, only gives advice", "reference.L0", "soft"),
        ("before training", "start", "before"),
        ("after training", "heldout", "a"),
        ("L6, uses all six skills", "reference.L6", "soft"),
    ):
        value = setting(run.summary, f"{place}.score")
        if value is not None:
            low, high = setting(run.summary, f"{place}.score_ci95", (None, None))
            rows.append(Dots(name, (), value, low, high, f"{value:.1f}", colour))
    num = setting(run.summary, "heldout.n_dialogues") or setting(run.summary, "start.n_dialogues", 0)
    draw, height = dot_rows(rows, x_range=(0.0, 100.0))
    return Figure(
        name="scores",
        title="Held-out score",
        draw=draw,
        caption=f"The users' mean final emotion, 0 to 100, over {count(num, 'dialogue')}. Bars: 95% intervals over scenarios.",
        header=("score", "value", "low", "high"),
        rows=[(row.name, row.mean, row.low, row.high) for row in rows],
        size=(720, height),
    )


def held_out_figures(run: Run, looks: Sequence[Look]) -> list[Figure]:
    """The held-out score in the course of training, and by strictness."""
    references = {name: setting(run.summary, f"reference.{name}.score") for name in ("L0", "L6")}
    line = Line("score", [look.policy_tokens for look in looks], [look.score for look in looks])
    before, after = (setting(run.summary, f"{when}.by_strictness", {}) for when in ("start", "heldout"))
    groups = [(name, before.get(name), after.get(name)) for name in sorted({*before, *after}, key=float)]
    return [
        Figure(
            name="score_over_tokens",
            title="Score over tokens",
            draw=curves([line], x_label="policy tokens", y_range=(0.0, 100.0), levels=references, noisy=False),
            caption="The same small grid at every evaluation"
            + ("; L0 and L6 are scores on the full grid." if any(references.values()) else "."),
            header=("step", "policy_tokens", "score"),
            rows=[tuple(look) for look in looks],
            size=WIDE,
        ),
        Figure(
            name="score_by_strictness",
            title="Score by strictness",
            draw=bars(groups, x_label="strictness of the user"),
            caption="A stricter user asks for more skills at once.",
            header=("strictness", "before", "after"),
            rows=groups,
            size=WIDE,
            nothing="A finished run has these.",
        ),
    ]


def judges_figure(run: Run) -> Figure:
    """The held-out score by the listener of training and by the second one, over tokens; undrawn without a second one."""
    seen = judged_looks(run.evaluation())
    second = seen[-1].by if seen else "another"
    tokens = [look.policy_tokens for look in seen]
    lines = [Line("of training", tokens, [look.score for look in seen]), Line(second, tokens, [look.second for look in seen])]
    gap = f" The gap went from {seen[0].gap:+.1f} to {seen[-1].gap:+.1f} points." if len(seen) > 1 else ""
    return Figure(
        name="judges",
        title="Score by two listeners",
        draw=curves(lines, x_label="policy tokens", y_range=(0.0, 100.0), noisy=False) if seen else None,
        caption=f"The same dialogues of the small grid, heard by the listener of training and by {second}. "
        f"Where the first curve rises alone, the policy pleases only the listener that it trains with.{gap}",
        header=("step", "policy_tokens", "score", "second", "gap"),
        rows=[(look.step, look.policy_tokens, look.score, look.second, look.gap) for look in seen],
        size=(FULL[0], SMALL[1]),
    )


def issued_figure(groups: Sequence[Group], decided: Sequence[Decision] = ()) -> Figure:
    """A dot for each group at its strictness, dark where it succeeded, and a triangle for each decision that moved difficulty."""
    every = math.ceil(len(groups) / 2000) or 1
    skipped = f" Of {len(groups):,} {nth(every)} is drawn." if every > 1 else ""
    # Tasks other than the teacher's own choice, by mode; a teacher with one mode has no other to be distinguished from.
    markers = {
        "uniform": ("^", "explored at random"),
        "replay": ("D", "replayed"),
        "contrast": ("s", "drawn by contrast"),
        "unlearned": ("v", "only scored"),
    }
    markers = markers if len({group.mode for group in groups}) > 1 else {}
    moves = [(float(decision.step), decision.move) for decision in decided if decision.move]
    moved = " Triangles below: where the teacher made tasks harder (up) or easier (down)." if moves else ""
    dots = [(group.step, group.strictness, group.success_share, markers.get(group.mode, ("o", "its own choice"))) for group in groups]
    return Figure(
        name="issued",
        title="What was issued, and how it went",
        draw=shaded_dots(dots[::every], moves),
        caption="A dot for each group at the strictness of its user: dark where its rollouts succeeded, pale where none did."
        + skipped
        + moved,
        header=("step", "family", "strictness", "success_share", "mode"),
        rows=[(group.step, group.family, group.strictness, group.success_share, group.mode) for group in groups],
        size=FULL,
    )


def intentions_figure(groups: Sequence[Group]) -> Figure:
    """Mean strictness by hidden intention and stretch of steps."""
    ends, means, counts = by_time(groups, num_bins=24)
    intentions = sorted({intention for intention, _ in means})
    return Figure(
        name="strictness_by_intention",
        title="Mean strictness by hidden intention",
        draw=heat_map(means, intentions, ends, x_label="up to step", high=1.0, form="{:.2f}"),
        caption="Dark is strict; empty where no group of the intention was issued.",
        header=("hidden_intention", "up_to_step", "mean_strictness", "num_groups"),
        rows=[(*cell, value, counts[cell]) for cell, value in sorted(means.items(), key=lambda item: (item[0][0], int(item[0][1])))],
        size=(FULL[0], 23.0 * len(intentions) + 40.0),
    )


def score_rows(run: Run) -> list[tuple[str, str, str]]:
    """Held-out numbers before and after; empty while there is no summary."""
    if run.summary is None:
        return []
    before, after = (setting(run.summary, when, {}) for when in ("start", "heldout"))
    rows = [("score, with its 95% interval", with_interval(before), with_interval(after))]
    for name, key, form in (
        ("worst cell: intention and difficulty", "worst_cell", "{:.1f}"),
        ("worst fifth of the scenarios", "cvar20", "{:.1f}"),
        ("delighted users", "success_rate", "{:.0%}"),
        ("users who left", "failure_rate", "{:.0%}"),
        ("dialogues cut short, as their context was full", "cut_short", "{:.0%}"),
    ):
        rows.append((name, text(before.get(key), form), text(after.get(key), form)))
    return rows


def reliability_tables(run: Run) -> list[dict[str, Any]]:
    """The reliability probe before and after training; empty where the run had none. Differences of shares are in points."""
    found = setting(run.summary, "reliability")
    if not found:
        return []
    percent, points, nats, rows = "{:.1%}", "{:+.1f} points", "{:.2f}", []
    for label, key, form in (
        ("errors, asked plainly", "errors.plain", percent),
        ("errors after an emotional turn", "errors.emotional", percent),
        ("errors against a false belief", "errors.false_belief", percent),
        ("emotion adds", "emotional_cost", points),
        ("the belief adds", "sycophancy", points),
        ("right answer over the wrong one, plainly, nats", "margin_nats.plain", nats),
        ("the same after an emotional turn, nats", "margin_nats.emotional", nats),
        ("the same against a false belief, nats", "margin_nats.false_belief", nats),
    ):
        if form == nats and "margin_nats" not in found:
            continue  # of answers in words
        cell = setting(found, key, {})
        scale, form_of_change = (1.0, "{:+.2f}") if form == nats else (100.0, "{:+.1f}")
        ends = [
            text(None if (at := cell.get(when)) is None else at * (100.0 if form == points else 1.0), form) for when in ("before", "after")
        ]
        numbers = (cell.get("change"), *(cell.get("change_ci95") or (None, None)))
        change, low, high = (text(None if value is None else scale * value, form_of_change) for value in numbers)
        rows.append([label, *ends, change if None in numbers else f"{change} [{low}, {high}]"])
    header = (f"{text(found.get('n'), '{:,}')} facts", "before", "after", "change in points or nats, with its 95% interval")
    return [{"header": header, "rows": rows}]


def callback_tables(run: Run) -> list[tuple[str, list[tuple[str, str]]]]:
    """What callbacks left in the summary under their own names: for each its numbers by dotted name."""

    def shown(value: Any) -> str:
        if isinstance(value, list):
            return ", ".join(map(shown, value))
        return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else str(value)

    # That of reliability has a section of its own.
    found = {name: setting(run.summary, name) for name in setting(run.config, "callbacks", {}) if name != "reliability"}
    return [(name, [(key, shown(value)) for key, value in leaves(left)]) for name, left in found.items() if isinstance(left, Mapping)]


def cost(run: Run) -> list[tuple[str, str]]:
    """Time, tokens and errors; empty while there is no summary."""
    if (summary := run.summary) is None:
        return []
    seconds, tokens = setting(summary, "wall_s", 0.0), setting(summary, "policy_tokens", 0)
    steps = run.series("timing_s/step").values
    timings = {"rolling out": "timing_s/gen", "updating": "timing_s/update_actor", "sending weights": "timing_s/update_weights"}
    parts = ", ".join(f"{sum(run.series(key).values) / sum(steps):.0%} {name}" for name, key in timings.items()) if steps else ""
    errors = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in setting(summary, "errors", {}).items())
    return [
        ("wall time", duration(seconds)),
        ("CPU time", duration(setting(summary, "cpu_s"))),
        ("policy tokens", f"{tokens:,}" + (f", {tokens / seconds:,.0f} a second (the time holds the evaluations too)" if seconds else "")),
        ("calls of the simulator", text(setting(summary, "simulator_calls"), "{:,}")),
        *([("cost of the simulator", f"{paid:,.2f}")] if (paid := setting(summary, "simulator_cost")) else []),
        ("a step", f"{sum(steps) / len(steps):.2f} s on average: {parts}" if steps else "not recorded"),
        ("errors", errors or "none"),
        ("dialogues cut short", f"{text(setting(summary, 'cut_short'), '{:.1%}')} in training, mean over steps"),
        ("trainer against engine", f"{text(setting(summary, 'mismatch.mean_abs_logprob'), '{:.1e}')} nats, mean difference of logprobs"),
    ]


def repeat(run: Run) -> dict[str, Any]:
    """Commands, settings, code, world and packages, for the template's `repeat`."""
    commit, given = str(run.provenance.get("git_commit") or ""), run.provenance.get("overrides")
    words = [f"seed={run.config.get('seed', 0)}"] if given is None else [shlex.quote(str(word)) for word in given]
    if run.arm:
        # Under the sweep's own name the run is finished.
        sweep = run.folder.absolute().parents[1]
        seeds = sorted({seed_of(place) for place in run_folders(sweep)})
        words = [f"seeds={','.join(map(str, seeds))}", f"name={other_name(sweep.name)}", "--cell", run.arm, str(run.config.get("seed", 0))]
    notes = {
        "The working tree had changes that no commit holds.": commit.endswith("+"),
        "It was resumed on other code than it began with; all states of it are listed below.": len(run.commits) > 1,
        f"Every figure is in {FOLDER}/ as SVG, PNG and CSV.": True,
        "If other settings were given too, they are in the list below.": given is None or bool(run.arm),
    }
    world = recorded_world(run.summary or run.provenance, run.config) or "not recorded"
    versions = setting(run.summary, "versions") or run.provenance.get("versions") or {}
    return {
        "commands": [*([f"git checkout {commit.removesuffix('+')}"] if commit else []), make_experiment(run.experiment, words)],
        "notes": [note for note, is_so in notes.items() if is_so],
        "settings": [("All settings of this run", "\n".join(f"{name}: {value}" for name, value in leaves(run.config)))],
        "versions": [("code", ", ".join(run.commits) or "not recorded"), ("world", world), *versions.items()],
    }


def other_name(sweep: str) -> str:
    """A name for the repetition of a sweep: under its own name finished runs would not run again."""
    return "again" if sweep != "again" else "again_2"
