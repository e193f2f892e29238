"""The page about a sweep, however far its runs have come: verdict and contrasts, curves, scores of arms, alarms, dialogues, cost."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.after_alarm import WHICH_GRID, after_alarms, alarms_in_all, num_alarms
from analysis.before_after import before_after, examples, typical
from analysis.compare import compare, contrast_notes, contrast_rows, plan_of
from analysis.endpoints import AUC, EMOTIONS, ERRORS, FORGOTTEN, GAIN, IN_WORDS, MARGINS, digits_of
from analysis.page import render
from analysis.plots import FOLDER, as_csv, write_figures
from analysis.report import other_name
from analysis.runs import CONFIG, EVALUATION, REPORT
from analysis.sweep_figures import Courses, endpoints_of, ranked, read_courses, sweep_figures
from analysis.sweeps import BY_ITSELF, Planned, Sweep, read_kept_plan, read_results, read_sweep
from analysis.text import count, duration, finite, make_experiment, text
from analysis.transcripts import transcript
from simulator.files import write_whole
from simulator.settings import leaves, setting
from simulator.version import recorded_world

SCORES = {
    **dict(zip(EMOTIONS, ("area under the curve", "final score", "worst cell", "worst fifth"), strict=True)),
    GAIN: "gain over the start",
}
"""Columns of the table of arms by endpoint."""
WAYS = ("asked plainly", "after an emotional turn", "against a false belief")
RELIABILITY_HEADINGS = (
    dict(zip(ERRORS, (*WAYS, "emotion adds", "the belief adds"), strict=True)),
    dict(zip(MARGINS, (f"right over wrong, {WAYS[0]}, nats", f"right over wrong, {WAYS[2]}, nats"), strict=True)),
)
"""Columns of two tables by endpoint."""
READ_BY = "Described, with 95% intervals; the verdict is on the primary endpoint alone."
NOTES = {
    FORGOTTEN: "Forgotten: the best score on the small grid less the last one, by strictness of the users and mean over these, in points. "
    "The best of noisy scores lies above the last one even where nothing is forgotten: read the differences.",
}
"""How to read an endpoint."""
VERDICT = (
    *("a", "b", "endpoint", "pairs", "difference", "low", "high", "p", "p_holm"),
    *("probability_of_improvement", "probability_low", "probability_high", "minimal_detectable_effect", "at_p", "answer"),
)
"""Columns of `verdict.csv`."""
ARMS = ("arm", "endpoint", "runs", "mean", "low", "high", "iqm", "sd", "min", "max")
"""Columns of `arms.csv`."""


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds arms, `<arm>/seed_<n>/`, and is no run itself."""
    return not (folder / CONFIG).is_file() and any(place.is_dir() for place in folder.glob("*/seed_*"))


def write_sweep_report(folder: Path) -> Path:
    """Writes `report.html`, `figures/`, `verdict.csv` and `arms.csv` into the folder of a sweep and returns the page's path.

    Raises:
        ValueError: the folder holds no arms, or not one run that can be read.
    """
    courses = read_courses(folder)
    if not courses.runs:
        reasons = " ".join(courses.unreadable.values())
        raise ValueError(f"sweep must hold a run that can be read, got {str(folder)!r}; {reasons}")
    sweep, found = compared(folder, courses)
    arms, plan, place = ranked(courses.arms(), found), read_kept_plan(folder), folder.absolute()
    figures = {figure.name: figure for figure in sweep_figures(courses, sweep, found)}
    write_figures(folder, figures.values())
    of_comparison: dict[str, Any] = {"contrasts": [], "primary": "", "arms": None, "states": table_of_states(courses)}
    if found is not None:
        write_whole(folder / "verdict.csv", as_csv(VERDICT, verdict_rows(found)))
        write_whole(folder / "arms.csv", as_csv(ARMS, arm_rows(found)))
        of_comparison |= comparison_tables(found, arms, plan.planned)
    alarms = [(course, after_alarms(course.run, course.looks)) for course in courses.runs]
    page = render(
        "sweep_report.html",
        title=f"{place.parent.name}/{place.name}",
        where=f"{place.parent.name} / {place.name} · {count(len(arms), 'arm')} · {seeds_in_words(courses)}",
        headline=headline(found, courses),
        facts=facts(courses, plan.planned),
        remarks=list(dict.fromkeys([*plan.notes, *remarks(found, courses)])),
        figures=figures,
        alarms=[
            {
                "name": course.name,
                "num": count(sum(alarm.num for alarm in fired), "alarm"),
                "when": ", ".join(f"{alarm.name} at step {alarm.step}" for alarm in fired),
                "alarms": fired,
            }
            for course, fired in alarms
            if fired
        ],
        num_runs=len(courses.runs),
        which_grid=WHICH_GRID,
        **dialogues(courses, found["contrasts"][0]["a"] if found and found["contrasts"] else arms[0]),
        cost=cost_rows(courses),
        repeat=repeat(courses, found, plan.planned, place),
        **of_comparison,
    )
    return write_whole(folder / REPORT, page)


def compared(folder: Path, courses: Courses) -> tuple[Sweep | None, dict[str, Any] | None]:
    """The finished runs and their comparison; None while there is none."""
    if not any(course.is_finished for course in courses.runs):
        return None, None
    try:
        sweep = read_sweep(folder)
    except ValueError:
        # Finished, but none that a comparison takes: `remarks` says why.
        return None, None
    return sweep, compare(sweep, plan_of(sweep))


def seeds_in_words(courses: Courses) -> str:
    """`seed 0`, `seeds 0, 1`."""
    seeds = sorted({course.seed for course in courses.runs})
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def headline(found: Mapping[str, Any] | None, courses: Courses) -> str:
    """The comparison's verdict, or why there is none."""
    if found is not None:
        return str(found["verdict"][0])
    if finished := sum(course.is_finished for course in courses.runs):
        return f"Nothing can be compared: {count(finished, 'finished run')}, and none can be used."
    return f"No run of this sweep has finished: {count(len(courses.runs) + len(courses.unreadable), 'run')} begun, nothing to compare yet."


def facts(courses: Courses, planned: Planned | None) -> list[tuple[str, str, str]]:
    """Numbers asked for first: name, value and a remark."""
    summaries = [course.run.summary for course in courses.runs if course.run.summary is not None]
    budgets = sorted({course.budget for course in courses.runs if course.budget})
    begun = len(courses.runs) + len(courses.unreadable)
    whole = max(begun, planned.num_runs if planned else 0)
    with_alarms = sum(bool(num_alarms(course.run)) for course in courses.runs)
    return [
        ("runs finished", f"{len(summaries)} of {whole}", f"planned; {begun} begun" if whole > begun else "begun so far"),
        ("policy tokens a run", " or ".join(f"{budget:,}" for budget in budgets) or "–", "allowed to each arm"),
        ("CPU time", duration(sum(setting(summary, "cpu_s", 0.0) for summary in summaries)), "all finished runs"),
        ("alarms", alarms_in_all([course.run for course in courses.runs]), f"in {with_alarms} of {len(courses.runs)} runs"),
    ]


def remarks(found: Mapping[str, Any] | None, courses: Courses) -> list[str]:
    """Everything that limits the verdict: runs that are unfinished or cannot be read, and the comparison's own remarks."""
    unfinished = [course for course in courses.runs if not course.is_finished]
    said = []
    for course in unfinished:
        tokens = (course.run.series("perf/policy_tokens").values or [0.0])[-1]
        share = f", {tokens / course.budget:.0%} of its tokens" if course.budget else ""
        said.append(f"{course.name} has not finished (step {course.run.num_steps}{share}): it is drawn and not compared.")
    said += [f"{name} is left out: {reason}" for name, reason in courses.unreadable.items()]
    if found is None:
        return said + read_results([course.run.folder for course in courses.runs if course.is_finished])[1]
    of_contrasts = [note for contrast in found["contrasts"] for note in contrast_notes(contrast)]
    known = tuple(f"{name} is left out" for name in (*(course.name for course in unfinished), *courses.unreadable))
    return said + [note for note in (*found["verdict"][1:], *found["notes"], *of_contrasts) if not note.startswith(known)]


def comparison_tables(found: Mapping[str, Any], arms: Sequence[str], planned: Planned | None) -> dict[str, Any]:
    """What the template shows of a comparison."""
    primary, names = found["plan"]["primary"], found["plan"]["read"]
    (_, *header), *rows = contrast_rows(found)
    times = {arm: timed for arm in arms if (timed := (found["arms"].get(arm) or {}).get("tokens_to_threshold"))}
    reached = any(timed["num_reached"] for timed in times.values())
    medians = {arm: finite(timed["kaplan_meier_median"]) for arm, timed in times.items()}
    return {
        "contrasts": [("contrast", *header), *rows] if rows else [],
        "primary": IN_WORDS.get(primary, primary),
        "arms": table_of_arms(found, arms),
        "threshold": {
            "score": next((f"{timed['threshold']:g}" for timed in times.values()), ""),
            "rows": [
                (
                    arm,
                    f"{timed['num_reached']} of {timed['num_runs']}",
                    "not by half of the runs" if medians[arm] is None else f"{medians[arm]:,.0f}",
                    f"{timed['restricted_mean']:,.0f} of {timed['horizon']:,.0f}",
                )
                for arm, timed in times.items()
                if reached
            ],
        },
        "tuning": [(arm, said) for arm in arms if planned and (said := planned.tuning_of(arm))],
        "read_by": {
            "tables": endpoint_tables(found, arms, {name: IN_WORDS.get(name, name) for name in names}),
            "note": " ".join([*(NOTES[name] for name in names if name in NOTES), READ_BY]),
        },
        "reliability": [
            table
            for headings in RELIABILITY_HEADINGS
            for table in endpoint_tables(found, arms, headings, mean="change by training, mean over seeds")
        ],
    }


def table_of_arms(found: Mapping[str, Any], arms: Sequence[str]) -> dict[str, Any]:
    """Every arm with its means, and the area of each of its runs where an arm has several."""
    runs = {arm: (found["arms"].get(arm) or {"runs": {}})["runs"] for arm in arms}
    has_seeds = any(len(of_arm) > 1 for of_arm in runs.values())
    rows = []
    for arm in arms:
        averaged = endpoints_of(found, arm)
        means = [shown((averaged.get(name) or {}).get("mean"), name, with_interval=name == AUC) for name in SCORES]
        left = ((averaged.get("heldout.failure_rate") or {}).get("mean") or {}).get("value")
        spread = text(finite((averaged.get(AUC) or {}).get("sd")), "{:.1f}")
        areas = ", ".join(f"{seed}:\N{NO-BREAK SPACE}{text(finite(run[AUC]), '{:.1f}')}" for seed, run in runs[arm].items())
        rows.append([arm, *means, text(finite(left), "{:.0%}"), *([spread, areas or "–"] if has_seeds else [])])
    header = ("mean over seeds" if has_seeds else "the one run", *SCORES.values(), "users who left")
    return {"header": (*header, *(("sd of the area", "area, seed by seed") if has_seeds else ())), "rows": rows, "has_seeds": has_seeds}


def endpoint_tables(
    found: Mapping[str, Any], arms: Sequence[str], headings: Mapping[str, str], *, mean: str = "mean over seeds"
) -> list[dict[str, Any]]:
    """A table of the arms that measured one of the endpoints, then one of the contrasts if any pair did; none where no run did.

    Args:
        headings: of the columns, by endpoint.
        mean: heading of the arms.
    """
    measured = [arm for arm in arms if any(endpoints_of(found, arm).get(name) for name in headings)]
    of_arms = [[arm, *(shown((endpoints_of(found, arm).get(name) or {}).get("mean"), name) for name in headings)] for arm in measured]
    of_contrasts = [
        [
            f"{contrast['a']} less {contrast['b']}",
            *(shown((contrast["endpoints"].get(name) or {}).get("difference"), name, sign="+") for name in headings),
        ]
        for contrast in found["contrasts"]
    ]
    tables = [(mean, of_arms), ("paired difference over seeds", [row for row in of_contrasts if {*row[1:]} != {"–"}] and of_contrasts)]
    return [{"header": (first, *headings.values()), "rows": rows} for first, rows in tables if measured and rows]


def shown(estimate: Mapping[str, float | None] | None, name: str, *, sign: str = "", with_interval: bool = True) -> str:
    """An estimate of an endpoint with its interval; changes with their sign, shares of errors in percentage points."""
    value, low, high = ((estimate or {}).get(bound) for bound in ("value", "low", "high"))
    if value is None:
        return "–"
    scale, digits = (100, 1) if name in ERRORS else (1, digits_of(name))
    said = f"{value * scale:{'+' if name.endswith('.change') else sign}.{digits}f}"
    if not with_interval or finite(low) is None or finite(high) is None:
        return said
    return f"{said} [{', '.join(f'{round(scale * bound, digits) + 0.0:.{digits}f}' for bound in (low, high) if bound is not None)}]"


def table_of_states(courses: Courses) -> dict[str, Any]:
    """How far each run has come: a row for each arm, a column for each seed."""
    seeds = sorted({course.seed for course in courses.runs})
    rows = [[arm, *("–" for _ in seeds)] for arm in courses.arms()]
    for row in rows:
        for course in courses.of(row[0]):
            score = text(setting(course.run.summary, "heldout.score"), "{:.1f}")
            row[1 + seeds.index(course.seed)] = score if course.is_finished else f"step {course.run.num_steps}, unfinished"
    return {"header": ("final score, or how far", *(f"seed {seed}" for seed in seeds)), "rows": rows}


def dialogues(courses: Courses, favourite: str) -> dict[str, Any]:
    """One held-out user before and after training in the first finished run of the favourite arm, or else of any, and in the other arms."""
    finished = [course for course in (*courses.of(favourite), *courses.runs) if course.is_finished]
    if not finished:
        return {"examples": [], "others": [], "no_example": "The evaluation after training is still to come."}
    first = finished[0]
    pairs = before_after(first.run.evaluation()).pairs
    if not pairs:
        return {"examples": [], "others": [], "no_example": f"{EVALUATION} of {first.name} holds no dialogue of before and after training."}
    uid, others = typical(pairs).before["uid"], []
    for course in finished:
        if course.seed == first.seed and course.arm != first.arm:
            met = [line for line in course.run.evaluation() if line.get("uid") == uid and line.get("grid") == "full" and line.get("look")]
            others += [transcript(line, f"After training: {course.arm}") for line in met[-1:]]
    return {"examples": examples(pairs, run=first.name, arm=first.arm), "others": others, "no_example": ""}


def cost_rows(courses: Courses) -> list[list[str]]:
    """What a run of each arm took on average, and all of them."""
    rows = []
    for arm in courses.arms():
        done = [course.run.summary for course in courses.of(arm) if course.run.summary is not None]
        means = {key: mean_over(done, key) for key in ("steps", "policy_tokens", "simulator_calls", "wall_s", "cpu_s")}
        counts = [text(means[key], "{:,.0f}") for key in ("steps", "policy_tokens", "simulator_calls")]
        total = sum(setting(summary, "cpu_s", 0.0) for summary in done) if done else None
        rows.append([arm, str(len(done)), *counts, duration(means["wall_s"]), duration(means["cpu_s"]), duration(total)])
    return rows


def mean_over(summaries: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The mean of a number over the runs that have it."""
    values = [summary[key] for summary in summaries if isinstance(summary.get(key), int | float)]
    return fmean(values) if values else None


def repeat(courses: Courses, found: Mapping[str, Any] | None, planned: Planned | None, place: Path) -> dict[str, Any]:
    """Commands, settings, code, world and packages, for the template's `repeat`."""
    experiment, name, given = place.parent.name, other_name(place.name), planned.overrides if planned else None
    seeds, runs = sorted({course.seed for course in courses.runs}), [course.run for course in courses.runs]
    commits = distinct(commit for run in runs for commit in run.commits)
    words = [*map(shlex.quote, given or ()), f"seeds={','.join(map(str, seeds))}", f"arms={','.join(courses.arms())}", f"name={name}"]
    commands = [f"git checkout {commits[0].removesuffix('+')}"] if len(commits) == 1 else []
    commands.append(make_experiment(experiment, words))
    if found is not None and found["plan"]["chosen_by"] == "name":
        contrasts = " ".join(f"--contrast '{a}:{b}'" for a, b in found["plan"]["contrasts"])
        commands.append(f".venv/bin/python -m analysis compare runs/{experiment}/{name} {contrasts}")
    notes = {
        "The working tree had changes that no commit holds.": any(commit.endswith("+") for commit in commits),
        f"The runs come from {len(commits)} commits; check out theirs first (below, under Versions).": len(commits) > 1,
        f"Under its own name, {place.name}, finished runs would not run again.": True,
        "Settings given on the command line were not recorded; they are among those below.": given is None,
        f"Every figure is in {FOLDER}/ as SVG, PNG and CSV; every endpoint of contrasts and arms in verdict.csv and arms.csv.": True,
    }
    # Of each arm's first run. A setting that not all arms have did not exist when the others began, or belongs to a kind of teacher.
    configs = {arm: dict(leaves(courses.of(arm)[0].run.config)) for arm in courses.arms()}
    known = [key for key in dict.fromkeys(key for config in configs.values() for key in config) if key not in BY_ITSELF]
    shared = [key for key in known if len({json.dumps(config.get(key), default=str) for config in configs.values()}) == 1]
    differ = [
        key for key in known if key not in shared and (key.startswith("teacher.") or all(key in config for config in configs.values()))
    ]
    own = {arm: ", ".join(f"{key}={config[key]}" for key in differ if key in config) or "–" for arm, config in configs.items()}
    versions = [run.summary.get("versions") or {} for run in runs if run.summary]
    worlds = distinct(recorded_world(run.provenance or run.summary or {}, run.config) for run in runs)
    packages = {
        key: ", ".join(distinct(found.get(key) for found in versions)) for key in dict.fromkeys(key for found in versions for key in found)
    }
    return {
        "commands": commands,
        "notes": [note for note, is_so in notes.items() if is_so],
        "settings": [
            ("In which settings the arms differ", "\n".join(f"{arm}: {said}" for arm, said in own.items())),
            ("Settings that all arms share", "\n".join(f"{key}: {next(iter(configs.values()))[key]}" for key in shared)),
        ],
        "versions": [("code", ", ".join(commits) or "not recorded"), ("world", ", ".join(worlds) or "not recorded"), *packages.items()],
    }


def distinct(values: Iterable[Any]) -> list[str]:
    """Those that are not empty, each once."""
    return list(dict.fromkeys(str(value) for value in values if value))


def verdict_rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Every contrast on every endpoint that its pairs measured; the primary one comes first, and it alone has an answer."""
    primary = found["plan"]["primary"]
    for contrast in found["contrasts"]:
        for name, endpoint in sorted(contrast["endpoints"].items(), key=lambda pair: pair[0] != primary):
            if endpoint is not None:
                d, better, least = (endpoint[key] for key in ("difference", "probability_of_improvement", "minimal_detectable_effect"))
                yield (
                    *(contrast["a"], contrast["b"], name, endpoint["num_pairs"], d["value"], d["low"], d["high"]),
                    *(endpoint["p"], endpoint["p_holm"], better["value"], better["low"], better["high"]),
                    *(least["effect"], least["alpha"], contrast["answer"] if name == primary else None),
                )


def arm_rows(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Every arm whose runs are averaged on every endpoint that they measured."""
    for arm in found["arms"]:
        for name, spread in endpoints_of(found, arm).items():
            if spread is not None:
                mean = spread["mean"]
                extremes = (spread[key] for key in ("sd", "min", "max"))
                yield (arm, name, spread["num_runs"], mean["value"], mean["low"], mean["high"], spread["iqm"]["value"], *extremes)
