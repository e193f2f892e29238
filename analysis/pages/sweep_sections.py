"""The parts of a sweep's report below its head, each a piece of HTML."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from analysis.comparisons.planned import Planned
from analysis.comparisons.sweep import BY_ITSELF, WITH_KINDS
from analysis.comparisons.text import mean_of
from analysis.endpoints import AUC, EMOTIONS, GAIN
from analysis.pages.aftermath import OF_WHICH_GRID, Aftermath, aftermaths, told
from analysis.pages.before_after import Record, typical
from analysis.pages.examples import about, folded
from analysis.pages.sweep_course import Course, Courses
from analysis.pages.transcripts import transcript
from analysis.runs import EVALUATION, leaves, setting
from analysis.wording import anew, count, duration, finite, grid_table, make_experiment, text, two_columns
from simulator.version import recorded_world

NBSP = "\N{NO-BREAK SPACE}"
NUM_NOTES = 8
"""Remarks that stand open; more are folded in."""
COLUMNS = (*EMOTIONS, GAIN)
TABLE_NOTE = (
    "Area: under the curves, on the small held-out grid. The other scores: at the last evaluation, on the full grid (the gain: over the "
    "first), so a final score is not quite where a curve ends."
)
HEADINGS = ("area under the curve", "final score", "worst cell", "worst fifth", "gain over the start", "users who left")


def remarks(notes: Sequence[str]) -> str:
    """What limits the verdict, as a list."""
    if not notes:
        return ""
    return f'<div class="know"><h3>To know before reading on</h3>{some_items(notes)}</div>'


def some_items(sentences: Sequence[str]) -> str:
    """A list of which what is beyond the first ones is folded in."""
    first, rest = sentences[:NUM_NOTES], sentences[NUM_NOTES:]
    return items(first) + (f"<details><summary>{len(rest)} more</summary>{items(rest)}</details>" if rest else "")


def items(sentences: Sequence[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def table_of_arms(found: Mapping[str, Any], arms: Sequence[str]) -> str:
    """Every arm with its means, and what each of its runs scored where an arm has several."""
    rows = []
    has_seeds = any(len((found["arms"].get(arm) or {"runs": ()})["runs"]) > 1 for arm in arms)
    for arm in arms:
        record = found["arms"].get(arm) or {"runs": {}}
        averaged = record.get("endpoints") or {}
        means = [mean_of(averaged.get(name), name, with_interval=name == AUC) for name in COLUMNS]
        left = finite(((averaged.get("heldout.failure_rate") or {}).get("mean") or {}).get("value"))
        spread = finite((averaged.get(AUC) or {}).get("sd"))
        seeds = ", ".join(f"{seed}:{NBSP}{text(finite(run[AUC]), '{:.1f}')}" for seed, run in record["runs"].items())
        rows.append([arm, *means, text(left, "{:.0%}"), *([text(spread, "{:.1f}"), seeds or "–"] if has_seeds else [])])
    header = ("mean over seeds", *HEADINGS, "sd of the area", "area, seed by seed") if has_seeds else ("the one run", *HEADINGS)
    primary = found["plan"]["primary"]
    measured = [arm for arm in arms if ((found["arms"].get(arm) or {}).get("endpoints") or {}).get(primary)]
    order = f" The best by the primary endpoint ({primary}) stands first." if primary not in COLUMNS and len(measured) > 1 else ""
    return f'{grid_table(header, rows, is_list=has_seeds)}<p class="note">{TABLE_NOTE}{escape(order)}</p>'


def how_fast(found: Mapping[str, Any], arms: Sequence[str]) -> str:
    """Policy tokens until a score is first reached; runs that never got there are censored where they ended."""
    rows, threshold, num_reached = [], None, 0
    for arm in arms:
        timed = (found["arms"].get(arm) or {}).get("tokens_to_threshold")
        if not timed:
            continue
        threshold = timed["threshold"]
        num_reached += timed["num_reached"]
        median = finite(timed["kaplan_meier_median"])
        rows.append(
            [
                arm,
                f"{timed['num_reached']} of {timed['num_runs']}",
                "not by half of the runs" if median is None else f"{median:,.0f}",
                f"{timed['restricted_mean']:,.0f} of {timed['horizon']:,.0f}",
            ]
        )
    if threshold is None:
        return ""
    if not num_reached:
        return f'<p class="note">No run of any arm reached a held-out score of {threshold:g} on the small grid.</p>'
    note = (
        "Descriptive, on the small grid: a noisy curve crosses early. "
        "A run that did not get there counts as watched until its last look (censored); one that ended before its budget was spent has "
        "its last score to the end of it. "
        "Median by Kaplan and Meier; restricted mean: of the tokens until then, or to where the arm's longest run was watched, whichever "
        "came first."
    )
    header = ("policy tokens to the threshold", "runs that reached it", "median", "restricted mean")
    return f'<h3>How fast a held-out score of {threshold:g} was reached</h3>{grid_table(header, rows)}<p class="note">{note}</p>'


def tuned_before(planned: Planned | None, arms: Sequence[str]) -> str:
    """What was tried before each arm's settings were fixed, as the sweep's plan states it; empty where it does not."""
    rows = [(arm, said) for arm in arms if planned and (said := planned.tuning_of(arm))]
    if not rows:
        return ""
    body = "".join(f'<tr><th>{escape(arm)}</th><td class="list">{escape(said)}</td></tr>' for arm, said in rows)
    return f'<h3>What was tuned before</h3><div class="wide"><table><tr><th>arm</th><th>tuning budget</th></tr>{body}</table></div>'


def table_of_runs(courses: Courses) -> str:
    """How far each run has come, a row for each arm and a column for each seed."""
    seeds = sorted({course.seed for course in courses.runs})
    by_place = {(course.arm, course.seed): course for course in courses.runs}
    rows = [[arm, *(state_of(by_place.get((arm, seed))) for seed in seeds)] for arm in courses.arms()]
    return grid_table(("final score, or how far", *(f"seed {seed}" for seed in seeds)), rows)


def state_of(course: Course | None) -> str:
    """A run in a word."""
    if course is None:
        return "–"
    if not course.is_finished:
        return f"step {course.run.num_steps}, unfinished"
    return text(setting(course.run.summary, "heldout.score"), "{:.1f}")


def alarms(courses: Courses) -> str:
    """A row for each run in which alarms went off; each of them, and what happened after, is folded in."""
    title = "<h2>Alarms, and what happened after</h2>"
    found = [(course, aftermaths(course.run, course.looks)) for course in courses.runs]
    rows = [alarms_of_run(course, items) for course, items in found if items]
    if not rows:
        return f'{title}<p class="alarm quiet">None went off in {len(courses.runs)} runs.</p>'
    first, rest = rows[:NUM_NOTES], rows[NUM_NOTES:]
    more = f"<details><summary>{count(len(rest), 'more run')}</summary>{''.join(rest)}</details>" if rest else ""
    note = f"A row for each run with alarms, to be unfolded. {OF_WHICH_GRID}"
    return f'{title}<p class="note">{note}</p>{"".join(first)}{more}'


def alarms_of_run(course: Course, fired: Sequence[Aftermath]) -> str:
    """Which alarms of a run went off when, and folded in what each said and what followed."""
    when = ", ".join(f"{item.name} at step {item.step}" for item in fired)
    lines = "".join(f"<li>{escape(item.name)} at step {item.step}: {escape(item.message)}<br>{escape(told(item))}</li>" for item in fired)
    summary = f"<summary><b>{escape(course.name)}</b>, {count(sum(item.num for item in fired), 'alarm')}: {escape(when)}</summary>"
    return f'<details class="alarm">{summary}<ul>{lines}</ul></details>'


def dialogues(courses: Courses, favourite: str) -> str:
    """One held-out user before training and after it in every arm, of the first seed that the favourite, or else any arm, has finished."""
    title = "<h2>One held-out user, before and after</h2>"
    finished = [course for course in (*courses.of(favourite), *courses.runs) if course.is_finished]
    if not finished:
        return f'{title}<p class="none">The evaluation after training is still to come.</p>'
    first = finished[0]
    held_out = first.evaluations()
    if not held_out.pairs:
        return f'{title}<p class="none">{EVALUATION} of {escape(first.name)} holds no dialogue of before and after training.</p>'
    pair = typical(held_out.pairs)
    shown = [transcript(pair.before, "Before training"), transcript(pair.after, f"After training: {first.arm}")]
    others = [
        (course.arm, last_of(course, pair.before["uid"]))
        for course in courses.runs
        if course.seed == first.seed and course.is_finished and course.arm != first.arm
    ]
    more = [transcript(record, f"After training: {arm}") for arm, record in others if record is not None]
    rest = f'<details><summary>The same user after training in the other arms</summary><div class="pair">{"".join(more)}</div></details>'
    said = about(pair, held_out.pairs, whose=f" of {first.name}", seed=first.seed)
    return f'{title}{said}<div class="pair">{"".join(shown)}</div>{rest if more else ""}{folded(held_out.pairs, run=first.name)}'


def last_of(course: Course, uid: str) -> Record | None:
    """A held-out dialogue at the last full evaluation of a run."""
    found = None
    for line in course.run.evaluation():
        if line.get("uid") == uid and line.get("grid") == "full" and line.get("look"):
            found = line
    return found


def cost(courses: Courses) -> str:
    """What a run of each arm took, and all of them."""
    rows = []
    for arm in courses.arms():
        done = [course.run.summary for course in courses.of(arm) if course.run.summary is not None]
        if not done:
            rows.append([arm, "0", *["–"] * 6])
            continue
        steps, tokens, wall, cpu, calls = (mean_over(done, key) for key in ("steps", "policy_tokens", "wall_s", "cpu_s", "simulator_calls"))
        total = sum(setting(summary, "cpu_s", 0.0) for summary in done)
        rows.append(
            [
                arm,
                str(len(done)),
                *(text(value, "{:,.0f}") for value in (steps, tokens, calls)),
                duration(wall),
                duration(cpu),
                duration(total),
            ]
        )
    header = ("a run on average", "runs", "steps", "policy tokens", "calls of the simulator", "wall time", "CPU time", "CPU time in all")
    note = "Wall time holds the evaluations, and whatever else the machine did; runs side by side slow each other down."
    return f'<h2>Cost</h2>{grid_table(header, rows)}<p class="note">{note}</p>'


def mean_over(summaries: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean of a number over the runs that have it."""
    values = [summary[key] for summary in summaries if isinstance(summary.get(key), int | float)]
    return fmean(values) if values else None


def repeat(
    courses: Courses, found: Mapping[str, Any] | None, planned: Planned | None, *, experiment: str, sweep: str, where_figures: str
) -> str:
    """Which code, which world, which settings in which arm.

    Args:
        planned: what the sweep's folder keeps of its plan; settings that were given on the command line stand there.
        where_figures: a sentence that says where they lie by themselves.
    """
    arms, seeds = courses.arms(), sorted({course.seed for course in courses.runs})
    commits = distinct(commit for course in courses.runs for commit in course.run.commits)
    worlds = distinct(recorded_world(course.run.provenance or course.run.summary or {}, course.run.config) for course in courses.runs)
    name = anew(sweep)
    given = planned.overrides if planned else None
    words = [*map(shlex.quote, given or ()), f"seeds={','.join(map(str, seeds))}", f"arms={','.join(arms)}", f"name={name}"]
    lines = [f"git checkout {commits[0].removesuffix('+')}"] if len(commits) == 1 else []
    lines.append(make_experiment(experiment, words))
    if found is not None and found["plan"]["chosen_by"] == "name":
        contrasts = " ".join(f"--contrast '{a}:{b}'" for a, b in found["plan"]["contrasts"])
        lines.append(f".venv/bin/python -m analysis compare runs/{experiment}/{name} {contrasts}")
    notes = ["The working tree had changes that no commit holds."] if any(commit.endswith("+") for commit in commits) else []
    if len(commits) > 1:
        notes.append(f"The runs come from {len(commits)} commits; to repeat some of them, check theirs out first (below, under Versions).")
    notes.append(f"Under its own name, {sweep}, runs that are finished would be taken as they are, and nothing would run.")
    if given is None:
        notes.append("Which settings were given on the command line was not kept; they are among those below.")
    notes.append(where_figures)
    shared, own = settings_by_arm(courses)
    differ = "\n".join(f"{arm}: {', '.join(f'{name}={value}' for name, value in changes.items()) or '–'}" for arm, changes in own.items())
    versions = [course.run.summary.get("versions") or {} for course in courses.runs if course.run.summary]
    kept = {name: ", ".join(distinct(v.get(name) for v in versions)) for name in dict.fromkeys(n for v in versions for n in v)}
    rows = [("code", ", ".join(commits) or "not recorded"), ("world", ", ".join(worlds) or "not recorded"), *kept.items()]
    return (
        f'<h2>How to repeat it</h2><pre>{escape(chr(10).join(lines))}</pre><p class="note">{escape(" ".join(notes))}</p>'
        f"<details><summary>In which settings the arms differ</summary><pre>{escape(differ)}</pre></details>"
        f"<details><summary>Settings that all arms share</summary><pre>{escape(shared)}</pre></details><h2>Versions</h2>{two_columns(rows)}"
    )


def distinct(values: Any) -> list[str]:
    """Those that are there, each once."""
    return list(dict.fromkeys(str(value) for value in values if value))


def settings_by_arm(courses: Courses) -> tuple[str, dict[str, dict[str, Any]]]:
    """The settings that all runs share, as lines, and of each arm's first run those that not all share."""
    configs = {course.name: dict(leaves(course.run.config)) for course in courses.runs}
    names = [name for name in dict.fromkeys(n for config in configs.values() for n in config) if name not in BY_ITSELF]
    # A setting that only some runs know, and that goes with no kind, did not exist when the others began.
    names = [name for name in names if name.startswith(WITH_KINDS) or all(name in config for config in configs.values())]
    shared = [name for name in names if len({json.dumps(config.get(name), default=str) for config in configs.values()}) == 1]
    first = {arm: configs[courses.of(arm)[0].name] for arm in courses.arms()}
    own = {arm: {name: config[name] for name in names if name in config and name not in shared} for arm, config in first.items()}
    any_config = next(iter(configs.values()), {})
    return "\n".join(f"{name}: {any_config.get(name)}" for name in shared), own
