"""The parts of a sweep's report below its head, each a piece of HTML.

What a sweep came to, as tables for a spreadsheet: the contrasts with their tests, the arms with their spread between seeds.

The first line of a sweep's report, and everything that limits it.

One self-contained HTML page about a sweep: the verdict first, then every seed of every arm.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.after_alarm import OF_WHICH_GRID, Aftermath, aftermaths, num_alarms, told, told_number
from analysis.compare import COMPARISON, compare, contrast_notes, contrast_rows, mean_of, plan_of, write_json
from analysis.endpoints import AUC, EMOTIONS, GAIN, IN_WORDS
from analysis.page import write_page
from analysis.plots import FOLDER, Figure, as_csv, write_figures
from analysis.runs import CONFIG, EVALUATION, REPORT, leaves, setting
from analysis.sections import NUM_NOTES, of_arms, read_by, remarks
from analysis.sweep_figures import (
    Course,
    Courses,
    arms_figure,
    cell_figure,
    contrasts_figure,
    lattice,
    learning_curves,
    profiles,
    ranked,
    read_courses,
    styles_of,
)
from analysis.sweeps import BY_ITSELF, WITH_KINDS, KeptPlan, Note, NoteKind, Planned, Sweep, read_kept_plan, read_results, read_sweep
from analysis.text import anew, count, duration, facts_strip, finite, grid_table, make_experiment, text, two_columns
from analysis.transcripts import Record, about, folded, transcript, typical
from simulator.files import write_whole
from simulator.version import recorded_world

NBSP = "\N{NO-BREAK SPACE}"
COLUMNS = (*EMOTIONS, GAIN)
TABLE_NOTE = (
    "Area: under the curves, on the small held-out grid. The other scores: at the last evaluation, on the full grid (the gain: over the "
    "first), so a final score is not quite where a curve ends."
)
HEADINGS = ("area under the curve", "final score", "worst cell", "worst fifth", "gain over the start", "users who left")


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


VERDICT = (
    *("a", "b", "endpoint", "pairs", "difference", "low", "high", "p", "p_holm"),
    *("probability_of_improvement", "probability_low", "probability_high", "minimal_detectable_effect", "at_p", "answer"),
)
ARMS = ("arm", "endpoint", "runs", "mean", "low", "high", "iqm", "sd", "min", "max")


def write_tables(folder: Path, found: Mapping[str, Any]) -> list[Path]:
    """Writes `verdict.csv` and `arms.csv` of a comparison into the sweep's folder; returns their paths."""
    tables = {"verdict.csv": (VERDICT, verdict_rows(found)), "arms.csv": (ARMS, arm_rows(found))}
    return [write_whole(folder / name, as_csv(header, rows)) for name, (header, rows) in tables.items()]


def verdict_rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Every contrast on every endpoint that its pairs measured; the primary one comes first, and it alone is answered."""
    primary = found["plan"]["primary"]
    for contrast in found["contrasts"]:
        for name, endpoint in sorted(contrast["endpoints"].items(), key=lambda pair: pair[0] != primary):
            if endpoint is None:
                continue
            d, better, least = (endpoint[key] for key in ("difference", "probability_of_improvement", "minimal_detectable_effect"))
            yield (
                *(contrast["a"], contrast["b"], name, endpoint["num_pairs"], d["value"], d["low"], d["high"]),
                *(endpoint["p"], endpoint["p_holm"], better["value"], better["low"], better["high"]),
                *(least["effect"], least["alpha"], contrast["answer"] if name == primary else None),
            )


def arm_rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Every arm whose runs may be averaged on every endpoint that they measured."""
    for arm, record in found["arms"].items():
        for name, spread in (record.get("endpoints") or {}).items():
            if spread is not None:
                mean = spread["mean"]
                extremes = (spread[key] for key in ("sd", "min", "max"))
                yield (arm, name, spread["num_runs"], mean["value"], mean["low"], mean["high"], spread["iqm"]["value"], *extremes)


def headline(found: Mapping[str, Any] | None, courses: Courses) -> str:
    """The first sentence of the page; `found` is None where no run could be used."""
    if found is None and (finished := sum(course.is_finished for course in courses.runs)):
        return f"Nothing can be compared: {runs(finished)} finished, and none of them can be used."
    if found is None:
        begun = len(courses.runs) + len(courses.unreadable)
        return f"No run of this sweep has finished: {runs(begun)} begun, and nothing can be compared yet."
    return str(found["verdict"][0])


def to_know(found: Mapping[str, Any] | None, courses: Courses) -> list[str]:
    """Everything that limits the verdict: what is unfinished, torn, unequal or missing; a sentence each."""
    said = [still_running(course) for course in courses.runs if not course.is_finished]
    said += [f"{name} is left out: {reason}" for name, reason in courses.unreadable.items()]
    said += [f"{course.name} is shown without the tasks it issued: {course.lacks_issued}" for course in courses.runs if course.lacks_issued]
    if found is None:
        said += read_results([course.run.folder for course in courses.runs if course.is_finished])[1]
    else:
        unfinished = {(course.arm, course.seed) for course in courses.runs if not course.is_finished}
        contrast_remarks = [note for contrast in found["contrasts"] for note in contrast_notes(contrast)]
        said += found["verdict"][1:]
        said += [note for note in [*found["notes"], *contrast_remarks] if not is_said(note, unfinished)]
    return list(dict.fromkeys([*said, *missing_seeds(courses, but=lacking_in(said))]))


def is_said(note: str, unfinished: Set[tuple[str, int]]) -> bool:
    """Whether a comparison's remark says of a run no more than that it has not finished.

    Args:
        unfinished: arms and seeds of runs of which that is said already.
    """
    if not isinstance(note, Note):
        return False
    if note.kind is NoteKind.LEFT_OUT:
        return {(note.arm, seed) for seed in note.seeds} <= unfinished
    return note.kind is NoteKind.NO_RUN and note.arm in {arm for arm, _ in unfinished}


def lacking_in(notes: Iterable[str]) -> set[tuple[str, int]]:
    """The arms and seeds of which remarks say that there is no run."""
    told = [note for note in notes if isinstance(note, Note) and note.kind is NoteKind.LACKS_SEEDS]
    return {(note.arm, seed) for note in told for seed in note.seeds}


def still_running(course: Course) -> str:
    """How far a run has come that has no summary."""
    share = f", {course.policy_tokens / course.budget:.0%} of its tokens" if course.budget else ""
    step = course.run.num_steps
    return f"{course.name} has not finished (step {step}{share}): its curves are drawn, the verdict does without it."


def missing_seeds(courses: Courses, *, but: Set[tuple[str, int]]) -> list[str]:
    """A sentence for each arm that lacks seeds which other arms have.

    Args:
        but: arms and seeds of which that is said already.
    """
    everyone = {course.seed for course in courses.runs}
    there = {(course.arm, course.seed) for course in courses.runs} | but
    lacking = {arm: [seed for seed in sorted(everyone) if (arm, seed) not in there] for arm in courses.arms()}
    return [f"{arm} has no run with seed {', '.join(map(str, seeds))}." for arm, seeds in lacking.items() if seeds]


def runs(number: int) -> str:
    """`1 run was`, `3 runs were`."""
    return f"{number} run was" if number == 1 else f"{number} runs were"


BESIDE = f"Every figure lies in {FOLDER}/ as SVG, PNG and CSV; every endpoint of contrasts and arms in verdict.csv and arms.csv."
ELSEWHERE = f"`make report` of this folder writes every figure into {FOLDER}/ as SVG, PNG and CSV, and beside it verdict.csv and arms.csv."


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds arms, `<arm>/seed_<n>/`, and is no run itself."""
    return not (folder / CONFIG).is_file() and any(place.is_dir() for place in folder.glob("*/seed_*"))


def write_sweep_report(folder: Path, *, with_files: bool = True) -> Path:
    """Writes `report.html` and `figures/` into the folder of a sweep, however far its runs have come, and returns the page's path.

    Args:
        with_files: also each figure by itself, and `verdict.csv` and `arms.csv`; without them the page stands alone, with
            `comparison.json` beside it.

    Raises:
        ValueError: the folder holds no arms, or not one run that can be read.
    """
    courses = read_courses(folder)
    if not courses.runs:
        reasons = " ".join(courses.unreadable.values())
        raise ValueError(f"sweep must hold a run that can be read, got {str(folder)!r}; {reasons}")
    sweep, found = compared(folder, courses)
    courses = courses._replace(never_averaged=not_averaged(found))
    figures = figures_of(courses, sweep, found)
    if with_files:
        write_figures(folder, figures.values())
        if found is not None:
            write_tables(folder, found)
    elif found is not None:
        write_json(found, folder / COMPARISON)
    body = page(folder, courses, sweep, found, figures, with_files=with_files)
    return write_page(folder / REPORT, title=f"{folder.absolute().parent.name}/{folder.absolute().name}", body=body)


def compared(folder: Path, courses: Courses) -> tuple[Sweep | None, dict[str, Any] | None]:
    """The finished runs and their comparison; None while there is none."""
    if not any(course.is_finished for course in courses.runs):
        return None, None
    try:
        sweep = read_sweep(folder)
    except ValueError:
        # Finished, but not one that a comparison takes: `to_know` says of each why.
        return None, None
    return sweep, compare(sweep, plan_of(sweep))


def not_averaged(found: Mapping[str, Any] | None) -> frozenset[str]:
    """Arms of which the comparison has runs and no mean, because they ran in different worlds or with different settings."""
    arms = found["arms"] if found is not None else {}
    return frozenset(arm for arm, record in arms.items() if record["runs"] and "endpoints" not in record)


def figures_of(courses: Courses, sweep: Sweep | None, found: Mapping[str, Any] | None) -> dict[str, Figure]:
    """All figures by name."""
    arms = ranked(courses.arms(), found)
    styles = styles_of(arms, found)
    made = [learning_curves(courses, styles), lattice(courses, arms)]
    if sweep is not None and found is not None:
        made += [
            contrasts_figure(found),
            arms_figure(found, AUC, name="area", title="Area under the held-out score"),
            arms_figure(found, "heldout.score", name="final", title="Final held-out score"),
            *profiles(found, sweep, styles),
            cell_figure(sweep, [arm for arm in arms if arm not in courses.never_averaged]),
        ]
    return {figure.name: figure for figure in made}


def page(
    folder: Path,
    courses: Courses,
    sweep: Sweep | None,
    found: Mapping[str, Any] | None,
    figures: Mapping[str, Figure],
    *,
    with_files: bool = True,
) -> str:
    """Everything below the title of the window."""
    place = folder.absolute()

    def drawn(*names: str) -> str:
        return "".join(figures[name].html() for name in names if name in figures)

    plan = sweep.plan if sweep is not None else read_kept_plan(folder)
    parts = [head(courses, found, plan, experiment=place.parent.name, name=place.name), drawn("contrasts")]
    parts.append(f"<h2>How the arms learned</h2>{drawn('learning_curves', 'courses')}")
    if found is not None:
        dots = f'<div class="grid-2">{drawn("area", "final")}</div>'
        arms = ranked(courses.arms(), found)
        parts.append(
            f"<h2>What they reached</h2>{dots}{table_of_arms(found, arms)}{how_fast(found, arms)}{tuned_before(plan.planned, arms)}"
        )
        parts.append(f'<h2>With whom</h2><div class="grid-2">{drawn("score_by_strictness", "performance_profile")}</div>{drawn("cells")}')
        parts += [read_by(found, arms), of_arms(found, arms)]
    else:
        parts.append(f"<h2>How far they have come</h2>{table_of_runs(courses)}")
    parts += [
        alarms(courses),
        dialogues(courses, favourite_of(courses, found)),
        cost(courses),
        repeat(
            courses, found, plan.planned, experiment=place.parent.name, sweep=place.name, where_figures=BESIDE if with_files else ELSEWHERE
        ),
    ]
    return "\n".join(parts)


def favourite_of(courses: Courses, found: Mapping[str, Any] | None) -> str:
    """The arm that contrasts are about; the first one where there are none."""
    return found["contrasts"][0]["a"] if found and found["contrasts"] else courses.arms()[0]


def head(courses: Courses, found: Mapping[str, Any] | None, plan: KeptPlan, *, experiment: str, name: str) -> str:
    """The verdict, the contrasts, what limits them, and the numbers one asks for first."""
    seeds = sorted({course.seed for course in courses.runs})
    of_seeds = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    where = f"{experiment} / {name} · {count(len(courses.arms()), 'arm')} · {of_seeds}"
    lead = ""
    if found is not None and found["contrasts"]:
        (_, *header), *rows = contrast_rows(found)
        primary = found["plan"]["primary"]
        lead = f'<p class="lead">Compared on {escape(IN_WORDS.get(primary, primary))}, the primary endpoint.</p>'
        lead += grid_table(("contrast", *header), rows)
    return (
        f'<p class="where">{escape(where)}</p><h1>{escape(headline(found, courses))}</h1>{lead}'
        f"{facts(courses, plan.planned)}{remarks(list(dict.fromkeys([*plan.notes, *to_know(found, courses)])))}"
    )


def facts(courses: Courses, planned: Planned | None) -> str:
    """A strip of numbers."""
    summaries = [course.run.summary for course in courses.runs if course.run.summary is not None]
    budgets = sorted({course.budget for course in courses.runs if course.budget})
    begun = len(courses.runs) + len(courses.unreadable)
    whole = max(begun, planned.num_runs if planned else 0)
    with_alarms = sum(bool(num_alarms(course.run)) for course in courses.runs)
    shown = [
        ("runs finished", f"{len(summaries)} of {whole}", f"planned; {begun} begun" if whole > begun else "begun so far"),
        ("policy tokens a run", " or ".join(f"{budget:,}" for budget in budgets) or "–", "allowed to each arm"),
        ("CPU time", duration(sum(setting(summary, "cpu_s", 0.0) for summary in summaries)), "all finished runs"),
        ("alarms", told_number([course.run for course in courses.runs]), f"in {with_alarms} of {len(courses.runs)} runs"),
    ]
    return facts_strip(shown)
