"""Arms of a sweep compared: `comparison.json`, and the page that `python -m analysis compare` prints.

Per arm the numbers of its runs, their mean and interquartile mean, and the spread between seeds; per contrast the difference on common
seeds with the tests that `docs/statistics.md` describes. Runs that cannot be compared are named in a note, and the rest is computed.
"""

from __future__ import annotations

import fnmatch
import json
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from analysis import stats
from analysis.contrasts import ALPHA, NO_RUN, POWER, answer_all, contrast_record, incomplete
from analysis.endpoints import EMOTIONS, ENDPOINTS, Planned, endpoint
from analysis.stats import Estimate
from analysis.sweeps import RunResult, Sweep, common_cells, comparable_groups, read_sweep
from analysis.text import duration, signed
from simulator.files import check_out, jsonable, write_whole
from simulator.settings import message

COMPARISON = "comparison.json"


def plan_of(
    sweep: Sweep, *, contrasts: Sequence[tuple[str, str]] = (), primary: str | None = None, threshold: float | None = None
) -> Planned:
    """The settings of a comparison: those given, else the sweep's own plan, else those named for the comparison that is in its folder.

    Raises:
        ValueError: a contrast, the endpoint or the threshold cannot be used.
    """
    kept = (sweep.plan or Planned()).model_dump()
    if sweep.plan is None and (sweep.folder / COMPARISON).is_file():
        before = json.loads((sweep.folder / COMPARISON).read_text(encoding="utf-8"))["plan"]
        if before["chosen_by"] == "name":
            kept |= {name: before[name] for name in ("contrasts", "primary")}
    given = {"contrasts": tuple(contrasts) or None, "primary": primary, "threshold": threshold}
    try:
        return Planned.model_validate(kept | {name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise ValueError(f"--{message(error)}") from error


def compare(sweep: Sweep, plan: Planned, *, seed: int = 0, num_resamples: int = stats.NUM_RESAMPLES) -> dict[str, Any]:
    """The contents of `comparison.json`; numbers that are not defined are NaN or infinite here and null in the file.

    How contrasts were chosen is `plan` for the sweep's own, `name` for others that were named, `default` where none were, and `instead`
    where each of the sweep's own is with an arm that has no run here: then the default ones among arms with runs are described. By default
    the arm `frontier` is set against every other one; without it, every pair is compared.

    Args:
        seed, num_resamples: of the intervals that are resampled.
    """
    resampling = {"seed": seed, "num_resamples": num_resamples}
    planned, chosen, by = sweep.plan, list(plan.contrasts), "name" if plan.contrasts else "default"
    there = [arm for arm in sweep.arms if sweep.of(arm)]
    if planned and planned.contrasts and plan.decides_as(planned):
        can_be_met = any(a in there and fnmatch.filter(there, b) not in ([], [a]) for a, b in plan.contrasts)
        by = "plan" if len(there) < 2 or can_be_met else "instead"
    if by in ("default", "instead"):
        arms = there if by == "instead" else sweep.arms
        pairs = [(a, b) for i, a in enumerate(arms) for b in arms[i + 1 :]]
        chosen = [("frontier", arm) for arm in arms if arm != "frontier"] if "frontier" in arms else pairs
    records, notes = {}, list(sweep.notes)
    for arm in sweep.arms:
        records[arm], complaint = arm_record(arm, sweep, threshold=plan.threshold, **resampling)
        notes += [complaint] if complaint else []
    contrasts = [contrast_record(contrast, sweep, plan.primary, num_primary=len(chosen), **resampling) for contrast in chosen]
    for contrast, named in zip(contrasts, chosen, strict=True):
        contrast["incomplete"] = incomplete(contrast, named, sweep, chosen_by=by)
    # Contrasts that were named are as complete as they will be.
    answer_all(contrasts, plan.primary, waits=[by == "plan" and bool(contrast["incomplete"]) for contrast in contrasts])
    unmeasured = [name for name in sweep.read if all(run.scalars.get(name) is None for run in sweep.runs)]
    notes += [f"No run measured {name}, which the plan reads." for name in unmeasured]
    if planned and planned.contrasts and by != "plan":
        why = ", for none of its contrasts has runs on both sides" if by == "instead" else ""
        notes.append(f"This is not the planned comparison{why}: the plan has {planned.words()}.")
    answers = [contrast["answer"] for contrast in contrasts]
    verdict = ["Nothing can be compared: no two arms have runs that may be set against each other."]
    if any(contrast["endpoints"][plan.primary] for contrast in contrasts):
        counts = ", ".join(f"{answers.count(each)} {each}" for each in ("yes", "no", "undecided"))
        verdict = [f"Is the first arm better by {endpoint(plan.primary).words}? Of {len(contrasts)}: {counts}."]
        if "undecided" in answers:
            verdict.append(
                f"Undecided means fewer than 5 pairs, p above {ALPHA:g} after Holm's correction, or anything else than was planned."
            )
        if any(len(contrast.get("b_chosen_from", ())) > 1 for contrast in contrasts):
            verdict.append("The best of several arms, chosen on these runs, is ahead by luck too often: against it only a yes counts.")
    return {
        "verdict": verdict,
        "sweep": sweep.folder.name,
        "experiment": sweep.folder.absolute().parent.name,
        "plan": {
            "primary": plan.primary,
            "read": sweep.read,
            "contrasts": [list(contrast) for contrast in chosen],
            "chosen_by": by,
            "only_seeds": None if sweep.only_seeds is None else list(sweep.only_seeds),
            "planned": planned and planned.model_dump(mode="json", include={"contrasts", "primary", "seeds"}),
            "alpha": ALPHA,
            "power": POWER,
            "level": stats.LEVEL,
            "bootstrap": {**resampling, "resampled": "runs, whole"},
            "auc_ends": {str(budget): end for budget, end in sweep.auc_ends.items()},
        },
        "worlds": sorted({run.world for run in sweep.runs}),
        "notes": [*notes, *remarks(sweep, planned, chosen)],
        "arms": records,
        "contrasts": contrasts,
    }


def arm_record(arm: str, sweep: Sweep, *, threshold: float, **resampling: int) -> tuple[dict[str, Any], str]:
    """An arm's part of `comparison.json`: its runs, their mean and spread between seeds, its profile over users, and its learning curve.

    Args:
        threshold: emotion whose first reaching is timed, 0-100.
        resampling: `seed` and `num_resamples` of the bootstrap.

    Returns:
        The record and why its runs are not averaged, if they must not be.
    """
    runs = list(sweep.of(arm).values())
    record: dict[str, Any] = {
        "seeds": [run.seed for run in runs],
        "runs": {str(run.seed): {**run.scalars, "world": run.world, "alarms": run.alarms} for run in runs},
    }
    if not runs:
        return record, NO_RUN.format(arm)
    if reason := next((why for run in runs[1:] if (why := runs[0].why_not_averaged(run))), ""):
        return record, f"{arm} is not averaged: {reason}."
    measured, record["endpoints"] = sweep.frame.loc[[arm]], {}
    for name in dict.fromkeys((*ENDPOINTS, *sweep.read)):
        values_R = measured[name].dropna().to_numpy()
        record["endpoints"][name] = None
        if values_R.size:
            both = stats.bootstrap(lambda scores: np.stack([stats.mean(scores), stats.iqm(scores)], -1), values_R[:, None], **resampling)
            record["endpoints"][name] = {
                "mean": Estimate(*both[:, 0]).to_dict(),
                "iqm": Estimate(*both[:, 1]).to_dict(),
                "sd": float(values_R.std(ddof=1)) if values_R.size > 1 else math.nan,
                "min": float(values_R.min()),
                "max": float(values_R.max()),
                "num_runs": values_R.size,
            }
    record |= over_cells(runs, **resampling)
    return record | over_tokens(runs, end=sweep.auc_ends.get(runs[0].budgets[0]), threshold=threshold, **resampling), ""


def as_band(found: np.ndarray) -> dict[str, list[float]]:
    """K figures with their bounds, float[3, K], as part of `comparison.json`."""
    return dict(zip(("value", "low", "high"), found.tolist(), strict=True))


def over_cells(runs: Sequence[RunResult], **resampling: int) -> dict[str, Any]:
    """The last full evaluation as scores[R, C] over family and strictness: aggregates, profile over strictness, shares above thresholds.

    The gap to the expert is target - mean of min(score, target): how far cells fall short of the score of the scripted expert L6 on the
    whole grid, where all runs name one; scores beyond it make up for nothing. The median is over cells of the mean over runs.
    """
    cells, experts = common_cells(runs), {run.expert for run in runs}
    if not cells:
        return {"cells": None, "by_strictness": None, "profile": None}
    scores_RC = np.array([[run.cells[cell] for cell in cells] for run in runs])
    expert = experts.pop() if len(experts) == 1 else None
    statistics: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "mean": stats.mean,
        "median": lambda scores: np.median(scores.mean(axis=-2), axis=-1),
        "iqm": stats.iqm,
    }
    if expert is not None:
        statistics["gap_to_expert"] = lambda scores: expert - np.minimum(scores, expert).mean(axis=(-2, -1))
    aggregates = stats.bootstrap(lambda scores: np.stack([each(scores) for each in statistics.values()], -1), scores_RC, **resampling)
    found = {name: Estimate(*aggregates[:, i]).to_dict() for i, name in enumerate(statistics)}
    levels_K, place_C = np.unique([strictness for _, strictness in cells], return_inverse=True)
    share_CK = (place_C[:, None] == np.arange(levels_K.size)) / np.bincount(place_C)
    thresholds = range(0, 101, 5)
    by_strictness = stats.bootstrap(lambda scores: scores.mean(axis=-2) @ share_CK, scores_RC, **resampling)
    profile = stats.bootstrap(lambda scores: np.stack([stats.mean(scores > at) for at in thresholds], -1), scores_RC, **resampling)
    return {
        "cells": {"num_cells": len(cells), "gap_to_expert": None, **found, "expert": expert},
        "by_strictness": {"strictness": levels_K.tolist(), **as_band(by_strictness)},
        "profile": {"threshold": list(thresholds), **as_band(profile)},
    }


def over_tokens(runs: Sequence[RunResult], *, end: float | None, threshold: float, **resampling: int) -> dict[str, Any]:
    """The learning curve with its band, and the tokens to the threshold; runs that ended before their budget keep their last score.

    Runs that did not reach the threshold are censored at the budget; where no run spent it they ended by steps, each with its own tokens,
    and are censored at their last evaluation.
    """
    curves = [run.curve for run in runs if run.curve is not None]
    if not curves or end is None:
        return {"curve": None, "tokens_to_threshold": None}
    grid_K = np.linspace(0.0, end, 21)
    scores_RK = np.array([np.interp(grid_K, curve.tokens, curve.scores) for curve in curves])
    ends = [end if end >= runs[0].budgets[0] else float(curve.tokens[-1]) for curve in curves]
    timed = [curve.tokens_to(threshold, end=last) for curve, last in zip(curves, ends, strict=True)]
    times_R, reached_R = np.array([time for time, _ in timed]), np.array([reached for _, reached in timed])
    median, restricted_mean = stats.survival_times(times_R, reached_R)
    return {
        "curve": {
            "policy_tokens": grid_K.tolist(),
            **as_band(stats.bootstrap(lambda scores: scores.mean(axis=-2), scores_RK, **resampling)),
        },
        "tokens_to_threshold": {
            "threshold": threshold,
            "num_reached": int(reached_R.sum()),
            "num_runs": len(timed),
            "kaplan_meier_median": median,
            "restricted_mean": restricted_mean,
            "horizon": max(ends) if reached_R.all() else float(times_R.max()),
        },
    }


def remarks(sweep: Sweep, planned: Planned | None, contrasts: Sequence[tuple[str, str]]) -> list[str]:
    """Sentences on what limits the whole comparison: tuning, worlds, budgets, code, alarms and initial policies that differ."""

    def listed(arms: Iterable[str]) -> str:
        return ", ".join(dict.fromkeys(arms))

    notes, runs = list[str](), sweep.runs
    worlds = Counter(run.world for run in runs).most_common()
    if len(worlds) > 1:
        where = "; ".join(f"{listed(run.arm for run in runs if run.world == world)} in {world}" for world, _ in worlds[1:])
        notes.append(f"The runs come from {len(worlds)} worlds ({where}); only runs of one world are set against each other.")
    allowed: dict[str, list[str]] = {}
    for run in runs:
        tokens, steps = run.budgets
        allowed.setdefault(f"{tokens:,} policy tokens" + (f" or {steps:,} steps" if steps else ""), []).append(run.arm)
    if len(allowed) > 1:
        where = "; ".join(f"{listed(arms)} {budget}" for budget, arms in allowed.items())
        notes.append(f"Arms had unequal budgets ({where}): by their numbers side by side none is better.")
    tuned: dict[str, list[str]] = {}
    for arm in dict.fromkeys(a for a, _ in contrasts):
        tuned.setdefault((planned.tuning_of(arm) if planned else "") or "none", []).append(arm)
    notes += [f"Tuned before these runs: {', '.join(arms)} ({how})." for how, arms in tuned.items() if not how.startswith("none")]
    commits = sorted({commit for run in runs for commit in run.commits or ("unknown",)})
    if len(commits) > 1:
        notes.append(f"The runs come from {len(commits)} states of the code ({', '.join(commits)}).")
    alarms: list[set[str]] = [{name for name in run.settings if name.startswith("collapse.")} for run in runs]
    if newer := sorted(set().union(*alarms) - alarms[0].intersection(*alarms)):
        missing = ", ".join(newer)
        notes.append(f"Not all runs were watched by the same alarms (some had no {missing}): how often they rang does not compare.")
    for group in comparable_groups([run for run in runs if run.initial_policy], apart=RunResult.begins_otherwise):
        policies = sorted({run.initial_policy for run in group})
        if len(policies) > 1:
            notes.append(
                f"Runs with the same settings began with {len(policies)} policies ({', '.join(policies)}), as two builds of a prior need "
                "not be the same; only runs that began with the same one are paired."
            )
    return notes


def comparison(options: Namespace) -> str:
    """Runs the command; returns the page that it prints.

    A comparison with other contrasts, endpoint or seeds than a sweep's plan is only written where `--out` says.

    Raises:
        ValueError: an option names nothing that is there, or nothing may be written there.
    """
    check_out(options.out)
    if options.bootstrap_seed < 0:
        raise ValueError(f"--bootstrap-seed must be at least 0, got {options.bootstrap_seed!r}")
    sweep = read_sweep(options.folder, seeds=options.seeds)
    for a, b in options.contrast:
        # Only the second may be a pattern.
        if a not in sweep.arms or (b not in sweep.arms and not {*fnmatch.filter(sweep.arms, b)} - {a}):
            raise ValueError(f"--contrast must name two arms of the sweep ({', '.join(sweep.arms)}), got {a}:{b}")
    plan = plan_of(sweep, contrasts=options.contrast, primary=options.primary, threshold=options.threshold)
    found = compare(sweep, plan, seed=options.bootstrap_seed)
    path, page = options.out or options.folder / COMPARISON, as_text(found)
    if options.out is None and options.folder.suffix == ".csv":
        return page
    if options.out is None and sweep.plan and (found["plan"]["chosen_by"] == "name" or options.seeds):
        return f"{page}\n\nIt is not the comparison that was planned, so it is not written; --out FILE.json keeps it"
    write_json(found, path)
    return f"{page}\n\n{path}"


def write_json(found: Mapping[str, Any], path: Path) -> None:
    """Writes figures for machines, whole or not at all."""
    write_whole(path, json.dumps(jsonable(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def as_text(found: Mapping[str, Any]) -> str:
    """A comparison as a page: verdict, contrasts, a line for each arm, remarks."""
    rows, primary = contrast_rows(found), found["plan"]["primary"]
    endpoints, digits = list(dict.fromkeys([primary, *EMOTIONS])), endpoint(primary).digits
    arms = [["arm (mean over seeds)", "seeds", *(name.removeprefix("heldout.") for name in endpoints), "sd", "IQM", "a run took", "alarms"]]
    for arm, record in found["arms"].items():
        if not (averaged := record.get("endpoints")):
            arms.append([arm, str(len(record["seeds"])), *["–"] * (len(endpoints) + 4)])
            continue
        means = {name: Estimate.from_dict(averaged[name]["mean"]) for name in endpoints if averaged[name]}
        cells = [means[name].text(digits) if name == primary else f"{means[name].value:.{endpoint(name).digits}f}" for name in means]
        shown, main = dict(zip(means, cells, strict=True)), averaged[primary]
        spread = "–" if main is None or not math.isfinite(main["sd"]) else f"{main['sd']:.{digits}f}"
        iqm = "–" if main is None else Estimate.from_dict(main["iqm"]).text(digits)
        wall = duration(averaged["wall_s"]["mean"]["value"] if averaged["wall_s"] else None)
        alarms = str(sum(len(run["alarms"]) for run in record["runs"].values()))
        arms.append([arm, str(len(record["seeds"])), *(shown.get(name, "–") for name in endpoints), spread, iqm, wall, alarms])
    parts = ["\n".join(found["verdict"]), columns(rows) if len(rows) > 1 else "", columns(arms)]
    said = [*found["notes"], *(note for contrast in found["contrasts"] for note in contrast_notes(contrast))]
    if said:
        parts.append("To know:\n" + "\n".join(f"- {remark}" for remark in dict.fromkeys(said)))
    return "\n\n".join(part for part in parts if part)


def contrast_notes(contrast: Mapping[str, Any]) -> list[str]:
    """Remarks on a contrast, in addition to its row."""
    name = f"{contrast['a']} - {contrast['b']}"
    if contrast["cannot"]:
        return [f"{name} cannot be computed: {contrast['cannot']}"]
    notes = [*([f"{name} is not answered: {why}."] if (why := contrast["incomplete"]) else []), *contrast["notes"]]
    differing = contrast.get("settings_that_differ", ())
    if settings := [name for name in differing if not name.startswith("teacher.")]:
        more = "more than the teacher:" if len(settings) < len(differing) else "other settings than the teacher's:"
        rest = f" and {len(settings) - 6} more" if len(settings) > 6 else ""
        notes.append(f"{contrast['a']} and {contrast['b']} differ in {more} {', '.join(settings[:6])}{rest}.")
    return notes


def contrast_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The header, and a row for each contrast on the primary endpoint."""
    primary = found["plan"]["primary"]
    _, sign, digits, unit = endpoint(primary)
    rows = [[f"contrasts on {primary}", "answer", "difference", "95 % interval", "better in", "p", "p Holm", "P(better)", "would detect"]]
    for contrast in found["contrasts"]:
        name, main = f"{contrast['a']} - {contrast['b']}", contrast["endpoints"][primary]
        if main is None:
            rows.append([name, contrast["answer"], *["–"] * 7])
            continue
        d, better = Estimate.from_dict(main["difference"]), Estimate.from_dict(main["probability_of_improvement"])
        low, high = (round(bound, digits) + 0.0 for bound in (d.low, d.high))
        effect = main["minimal_detectable_effect"]["effect"]
        wins = sum(sign * difference > 0 for difference in main["differences"])
        # One pair is no sample: it has a difference and nothing more.
        tested = main["num_pairs"] > 1
        rows.append(
            [
                name,
                contrast["answer"],
                f"{signed(d.value, digits)}{unit}",
                "–" if math.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]",
                f"{wins} of {main['num_pairs']}",
                f"{main['p']:.3g}" if tested else "–",
                f"{main['p_holm']:.3g}" if tested else "–",
                better.text(2) if tested else "–",
                "–" if not math.isfinite(effect) else f"{effect:.{digits}f}",
            ]
        )
    return rows


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, the first flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    )
