"""The page about a sweep, however far its runs have come: verdict and contrasts, curves, scores of arms, alarms, dialogues, cost."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.compare import compare, contrast_notes, contrast_rows, plan_of
from analysis.endpoints import AUC, EMOTIONS, ERRORS, FORGOTTEN, GAIN, MARGINS, Planned, endpoint, read_plan
from analysis.page import render
from analysis.plots import FOLDER, as_csv, write_figures
from analysis.report import other_name
from analysis.runs import CONFIG, EVALUATION, REPORT
from analysis.sections import BeforeAfter, after_alarms, alarms_in_all, examples, num_alarms, typical
from analysis.sweep_figures import Courses, endpoints_of, ranked, sweep_figures
from analysis.sweeps import BY_ITSELF, read_results, read_sweep
from analysis.text import count, duration, finite, make_experiment, text
from analysis.transcripts import transcript
from simulator.files import write_whole
from simulator.settings import leaves, setting
from simulator.version import recorded_world

RELIABILITY_HEADINGS = (
    dict(
        zip(
            ERRORS,
            ("asked plainly", "after an emotional turn", "against a false belief", "emotion adds", "the belief adds"),
            strict=True,
        )
    ),
    dict(zip(MARGINS, ("right over wrong, asked plainly, nats", "right over wrong, against a false belief, nats"), strict=True)),
)
"""Columns of two tables by endpoint."""


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds arms, `<arm>/seed_<n>/`, and is no run itself."""
    return not (folder / CONFIG).is_file() and any(place.is_dir() for place in folder.glob("*/seed_*"))


def write_sweep_report(folder: Path) -> Path:
    """Writes `report.html`, `figures/`, `verdict.csv` and `arms.csv` into the folder of a sweep and returns the page's path.

    Raises:
        ValueError: the folder holds no arms, or not one run that can be read.
    """
    courses = Courses.read(folder)
    if not courses.runs:
        reasons = " ".join(courses.unreadable.values())
        raise ValueError(f"sweep must hold a run that can be read, got {str(folder)!r}; {reasons}")
    sweep = found = None
    if any(course.is_finished for course in courses.runs):
        # Of finished runs a comparison may take none; then `remarks` says why.
        with contextlib.suppress(ValueError):
            sweep = read_sweep(folder)
            found = compare(sweep, plan_of(sweep))
    arms, plan, place = ranked(courses.arms(), found), read_plan(folder), folder.absolute()
    figures = {figure.name: figure for figure in sweep_figures(courses, sweep, found)}
    write_figures(folder, figures.values())
    headline = (
        f"No run of this sweep has finished: {count(len(courses.runs) + len(courses.unreadable), 'run')} begun, nothing to compare yet."
    )
    if found is not None:
        headline = str(found["verdict"][0])
    elif finished := sum(course.is_finished for course in courses.runs):
        headline = f"Nothing can be compared: {count(finished, 'finished run')}, and none can be used."
    seeds = sorted({course.seed for course in courses.runs})
    # How far each run has come: a row for each arm, a column for each seed.
    states = {arm: dict.fromkeys(seeds, "–") for arm in courses.arms()}
    for course in courses.runs:
        score = text(setting(course.run.summary, "heldout.score"), "{:.1f}")
        states[course.arm][course.seed] = score if course.is_finished else f"step {course.run.num_steps}, unfinished"
    of_states = {
        "header": ("final score, or how far", *(f"seed {seed}" for seed in seeds)),
        "rows": [[arm, *of_arm.values()] for arm, of_arm in states.items()],
    }
    of_comparison: dict[str, Any] = {"contrasts": [], "primary": "", "arms": None, "states": of_states}
    if found is not None:
        write_tables(folder, found)
        of_comparison |= comparison_tables(found, arms, plan)
    of_seeds = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    alarms = [(course, after_alarms(course.run, course.looks)) for course in courses.runs]
    page = render(
        "sweep_report.html",
        title=f"{place.parent.name}/{place.name}",
        where=f"{place.parent.name} / {place.name} · {count(len(arms), 'arm')} · {of_seeds}",
        headline=headline,
        facts=facts(courses, plan),
        remarks=list(dict.fromkeys(remarks(found, courses))),
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
        **dialogues(courses, found["contrasts"][0]["a"] if found and found["contrasts"] else arms[0]),
        cost=cost_rows(courses),
        repeat=repeat(courses, found, plan, place),
        **of_comparison,
    )
    return write_whole(folder / REPORT, page)


def facts(courses: Courses, planned: Planned | None) -> list[tuple[str, str, str]]:
    """Numbers asked for first: name, value and a remark."""
    summaries = [course.run.summary for course in courses.runs if course.run.summary is not None]
    budgets = sorted({course.budget for course in courses.runs if course.budget})
    begun = len(courses.runs) + len(courses.unreadable)
    whole = max(begun, len(planned.seeds) * len(planned.arms) if planned else 0)
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


def write_tables(folder: Path, found: Mapping[str, Any]) -> None:
    """Writes `verdict.csv`, every contrast on every endpoint that its pairs measured, and `arms.csv`, the same of averaged arms."""
    primary, of_contrasts, of_arms = found["plan"]["primary"], list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for contrast in found["contrasts"]:
        # The primary endpoint comes first, and it alone has an answer.
        for name, main in sorted(contrast["endpoints"].items(), key=lambda pair: pair[0] != primary):
            if main is not None:
                d, better, least = (main[key] for key in ("difference", "probability_of_improvement", "minimal_detectable_effect"))
                figures = (main["num_pairs"], d["value"], d["low"], d["high"], main["p"], main["p_holm"])
                chances = (better["value"], better["low"], better["high"], least["effect"], least["alpha"])
                of_contrasts.append(
                    (contrast["a"], contrast["b"], name, *figures, *chances, contrast["answer"] if name == primary else None)
                )
    for arm in found["arms"]:
        for name, spread in endpoints_of(found, arm).items():
            if spread is not None:
                mean, extremes = spread["mean"], (spread[key] for key in ("sd", "min", "max"))
                of_arms.append((arm, name, spread["num_runs"], mean["value"], mean["low"], mean["high"], spread["iqm"]["value"], *extremes))
    header = "a b endpoint pairs difference low high p p_holm probability_of_improvement probability_low probability_high"
    write_whole(folder / "verdict.csv", as_csv((*header.split(), "minimal_detectable_effect", "at_p", "answer"), of_contrasts))
    write_whole(folder / "arms.csv", as_csv("arm endpoint runs mean low high iqm sd min max".split(), of_arms))


def comparison_tables(found: Mapping[str, Any], arms: Sequence[str], planned: Planned | None) -> dict[str, Any]:
    """Tables about a comparison, for the template."""
    primary, names = found["plan"]["primary"], found["plan"]["read"]
    (_, *header), *rows = contrast_rows(found)
    scores = dict(zip(EMOTIONS, ("area under the curve", "final score", "worst cell", "worst fifth"), strict=True))
    scores[GAIN] = "gain over the start"
    # Every arm with its means, and the area of each of its runs where an arm has several.
    runs = {arm: (found["arms"].get(arm) or {"runs": {}})["runs"] for arm in arms}
    has_seeds, of_arms = any(len(of_arm) > 1 for of_arm in runs.values()), []
    for arm in arms:
        averaged = endpoints_of(found, arm)
        means = [shown((averaged.get(name) or {}).get("mean"), name, with_interval=name == AUC) for name in scores]
        left = ((averaged.get("heldout.failure_rate") or {}).get("mean") or {}).get("value")
        spread = text(finite((averaged.get(AUC) or {}).get("sd")), "{:.1f}")
        areas = ", ".join(f"{seed}:\N{NO-BREAK SPACE}{text(finite(run[AUC]), '{:.1f}')}" for seed, run in runs[arm].items())
        of_arms.append([arm, *means, text(finite(left), "{:.0%}"), *([spread, areas or "–"] if has_seeds else [])])
    by_seed = ("sd of the area", "area, seed by seed") if has_seeds else ()
    times = {arm: timed for arm in arms if (timed := (found["arms"].get(arm) or {}).get("tokens_to_threshold"))}
    reached = any(timed["num_reached"] for timed in times.values())
    medians = {arm: finite(timed["kaplan_meier_median"]) for arm, timed in times.items()}
    notes = ["Described, with 95% intervals; the verdict is on the primary endpoint alone."]
    if FORGOTTEN in names:
        notes.insert(
            0,
            "Forgotten: the best score on the small grid less the last one, by strictness of the users and mean over these, in points. "
            "The best of noisy scores lies above the last one even where nothing is forgotten: read the differences.",
        )
    return {
        "contrasts": [("contrast", *header), *rows] if rows else [],
        "primary": endpoint(primary).words,
        "arms": {
            "header": ("mean over seeds" if has_seeds else "the one run", *scores.values(), "users who left", *by_seed),
            "rows": of_arms,
            "has_seeds": has_seeds,
        },
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
        "read_by": {"tables": endpoint_tables(found, arms, {name: endpoint(name).words for name in names}), "note": " ".join(notes)},
        "reliability": [
            table
            for headings in RELIABILITY_HEADINGS
            for table in endpoint_tables(found, arms, headings, mean="change by training, mean over seeds")
        ],
    }


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
    scale, digits = (100, 1) if name in ERRORS else (1, endpoint(name).digits)
    said = f"{value * scale:{'+' if name.endswith('.change') else sign}.{digits}f}"
    if not with_interval or finite(low) is None or finite(high) is None:
        return said
    return f"{said} [{', '.join(f'{round(scale * bound, digits) + 0.0:.{digits}f}' for bound in (low, high) if bound is not None)}]"


def dialogues(courses: Courses, favourite: str) -> dict[str, Any]:
    """One held-out user before and after training in the first finished run of the favourite arm, or else of any, and in the other arms."""
    finished = [course for course in (*courses.of(favourite), *courses.runs) if course.is_finished]
    if not finished:
        return {"examples": [], "others": [], "no_example": "The evaluation after training is still to come."}
    first = finished[0]
    pairs = BeforeAfter.read(first.run.evaluation()).pairs
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

    def mean_over(summaries: Sequence[Mapping[str, Any]], key: str) -> float | None:
        values = [summary[key] for summary in summaries if isinstance(summary.get(key), int | float)]
        return fmean(values) if values else None

    rows = []
    for arm in courses.arms():
        done = [course.run.summary for course in courses.of(arm) if course.run.summary is not None]
        means = {key: mean_over(done, key) for key in ("steps", "policy_tokens", "simulator_calls", "wall_s", "cpu_s")}
        counts = [text(means[key], "{:,.0f}") for key in ("steps", "policy_tokens", "simulator_calls")]
        total = sum(setting(summary, "cpu_s", 0.0) for summary in done) if done else None
        rows.append([arm, str(len(done)), *counts, duration(means["wall_s"]), duration(means["cpu_s"]), duration(total)])
    return rows


def repeat(courses: Courses, found: Mapping[str, Any] | None, planned: Planned | None, place: Path) -> dict[str, Any]:
    """Commands, settings, code, world and packages, for the template's `repeat`."""
    experiment, name, given = place.parent.name, other_name(place.name), planned.overrides if planned else None
    seeds, runs = sorted({course.seed for course in courses.runs}), [course.run for course in courses.runs]
    commits = list(dict.fromkeys(commit for run in runs for commit in run.commits))
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
    worlds = list(dict.fromkeys(filter(None, (recorded_world(run.provenance or run.summary or {}, run.config) for run in runs))))
    packages = {
        key: ", ".join(dict.fromkeys(str(found[key]) for found in versions if found.get(key)))
        for key in dict.fromkeys(key for found in versions for key in found)
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
