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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import stats
from analysis.arms import arm_record
from analysis.contrasts import ALPHA, DECIDES_FROM, POWER, Plan, adjust, answer, contrast_record, incomplete, is_best_of_several
from analysis.endpoints import AUC, EMOTIONS, ENDPOINTS, IN_WORDS, UNDIRECTED, digits_of, sign_of, unit_of
from analysis.plan import Contrast, Planned
from analysis.stats import Estimate
from analysis.sweeps import BUDGETS, Sweep, allowed_of, comparable_groups, other_start, read_sweep
from analysis.text import duration, signed
from simulator.files import check_out, jsonable, write_whole

COMPARISON = "comparison.json"
FAVOURITE = "frontier"
"""The arm that is set against every other one where no contrast is named."""
NUM_SETTINGS = 6
"""Settings that are named where arms differ in more."""


def plan_of(
    sweep: Sweep, *, contrasts: Sequence[Contrast] = (), primary: str | None = None, threshold: float | None = None, seed: int = 0
) -> Plan:
    """The settings of a comparison: those given, else the sweep's own plan, else those named for the comparison that is in its folder."""
    kept = sweep.plan.planned or named_before(sweep.folder) or Planned(contrasts=(), primary=AUC)
    return Plan(
        contrasts=contrasts or kept.contrasts,
        primary=primary or kept.primary,
        threshold=kept.threshold if threshold is None else threshold,
        seed=seed,
    )


def named_before(folder: Path) -> Planned | None:
    """Contrasts and endpoint of the comparison in a sweep's folder; None where there is none, or it took the default."""
    try:
        kept = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))["plan"]
        contrasts = tuple((str(a), str(b)) for a, b in kept["contrasts"])
        named = kept["chosen_by"] == "name" and kept["primary"] in ENDPOINTS and kept["primary"] not in UNDIRECTED
        return Planned(contrasts=contrasts, primary=kept["primary"]) if named else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def compare(sweep: Sweep, plan: Plan) -> dict[str, Any]:
    """The contents of `comparison.json`; numbers that are not defined are NaN or infinite here and null in the file."""
    planned, read = sweep.plan.planned, sweep.plan.read
    chosen, by = contrasts_of(plan, planned, sweep)
    arms, notes = {}, list(sweep.notes)
    for arm in sweep.arms:
        arms[arm], complaints = arm_record(arm, sweep, threshold=plan.threshold, resampling=plan.resampling)
        notes += complaints
    contrasts = [contrast_record(contrast, sweep, plan, num_primary=len(chosen)) for contrast in chosen]
    for contrast, named in zip(contrasts, chosen, strict=True):
        contrast["incomplete"] = incomplete(contrast, named, sweep, chosen_by=by)
    # Contrasts named by hand are as complete as they will be.
    adjust(contrasts, plan.primary, waits=[by == "plan" and bool(contrast["incomplete"]) for contrast in contrasts])
    for contrast in contrasts:
        contrast["answer"] = answer(contrast, plan.primary)
    notes += [f"No run measured {name}, which the plan reads." for name in read if all(run.scalars.get(name) is None for run in sweep.runs)]
    if planned and planned.contrasts and by != "plan":
        why = ", for none of its contrasts has runs on both sides" if by == "instead" else ""
        notes.append(f"What is compared is not the plan{why}: it has {planned.words()}.")
    notes += remarks(sweep, planned, chosen)
    found: dict[str, Any] = {
        "sweep": sweep.folder.name,
        "experiment": sweep.folder.absolute().parent.name,
        "plan": {
            "primary": plan.primary,
            "read": list(read),
            "contrasts": [list(contrast) for contrast in chosen],
            "chosen_by": by,
            "is_torn": sweep.plan.is_torn,
            "only_seeds": None if sweep.only_seeds is None else list(sweep.only_seeds),
            "planned": planned and planned.model_dump(mode="json", include={"contrasts", "primary", "seeds"}),
            "alpha": ALPHA,
            "power": POWER,
            "level": stats.LEVEL,
            "bootstrap": {**plan.resampling, "resampled": "runs, whole"},
            "auc_ends": {str(budget): end for budget, end in sweep.auc_ends.items()},
        },
        "worlds": sorted({run.world for run in sweep.runs}),
        "notes": notes,
        "arms": arms,
        "contrasts": contrasts,
    }
    return {"verdict": verdict(found), **found}


def contrasts_of(plan: Plan, planned: Planned | None, sweep: Sweep) -> tuple[Sequence[Contrast], str]:
    """The contrasts that are computed, and how they were chosen.

    That is `plan` for the sweep's own, `name` for others that were named, `default` where none were, and `instead` where each contrast of
    the sweep's own plan is with an arm that has no run here: then the default ones among arms with runs are described.
    """
    is_planned = planned and planned.contrasts and (set(plan.contrasts), plan.primary) == (set(planned.contrasts), planned.primary)
    if not is_planned:
        return (plan.contrasts, "name") if plan.contrasts else (default_contrasts(sweep.arms), "default")
    there = [arm for arm in sweep.arms if sweep.of(arm)]
    if len(there) < 2 or any(a in there and fnmatch.filter(there, b) not in ([], [a]) for a, b in plan.contrasts):
        return plan.contrasts, "plan"
    return default_contrasts(there), "instead"


def default_contrasts(arms: Sequence[str]) -> list[Contrast]:
    """The favourite against the others, or every pair of arms."""
    if FAVOURITE in arms:
        return [(FAVOURITE, arm) for arm in arms if arm != FAVOURITE]
    return [(a, b) for i, a in enumerate(arms) for b in arms[i + 1 :]]


def remarks(sweep: Sweep, planned: Planned | None, contrasts: Sequence[Contrast]) -> list[str]:
    """Sentences on what limits the whole comparison: tuning, worlds, budgets, code, alarms and initial policies that differ."""
    notes = list[str]()
    worlds = Counter(run.world for run in sweep.runs).most_common()
    if len(worlds) > 1:
        where = "; ".join(f"{_arms(run.arm for run in sweep.runs if run.world == world)} in {world}" for world, _ in worlds[1:])
        notes.append(f"The runs come from {len(worlds)} worlds ({where}); only runs of one world are set against each other.")
    allowed: dict[str, list[str]] = {}
    for run in sweep.runs:
        tokens, steps = (allowed_of(run, name) for name in BUDGETS)
        allowed.setdefault(f"{tokens:,} policy tokens" + (f" or {steps:,} steps" if steps else ""), []).append(run.arm)
    if len(allowed) > 1:
        where = "; ".join(f"{_arms(arms)} {budget}" for budget, arms in allowed.items())
        notes.append(f"Arms had unequal budgets ({where}): by their numbers side by side none is better.")
    tuned: dict[str, list[str]] = {}
    for arm in dict.fromkeys(a for a, _ in contrasts):
        tuned.setdefault((planned.tuning_of(arm) if planned else "") or "none", []).append(arm)
    notes += [f"Tuned before these runs: {', '.join(arms)} ({how})." for how, arms in tuned.items() if not how.startswith("none")]
    commits = sorted({commit for run in sweep.runs for commit in run.commits or ("unknown",)})
    if len(commits) > 1:
        notes.append(f"The runs come from {len(commits)} states of the code ({', '.join(commits)}).")
    alarms: list[set[str]] = [{name for name in run.settings if name.startswith("collapse.")} for run in sweep.runs]
    if newer := sorted(set().union(*alarms) - alarms[0].intersection(*alarms)):
        missing = ", ".join(newer)
        notes.append(f"Not all runs were watched by the same alarms (some had no {missing}): how often they rang does not compare.")
    for group in comparable_groups([run for run in sweep.runs if run.initial_policy], apart=other_start):
        policies = sorted({run.initial_policy for run in group})
        if len(policies) > 1:
            notes.append(
                f"Runs with the same settings began with {len(policies)} policies ({', '.join(policies)}), as two builds of a prior need "
                "not be the same; only runs that began with the same one are paired."
            )
    return notes


def _arms(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def verdict(found: Mapping[str, Any]) -> list[str]:
    """How many contrasts are a yes, and why others are open."""
    contrasts, primary = found["contrasts"], found["plan"]["primary"]
    if not any(contrast["endpoints"][primary] for contrast in contrasts):
        return ["Nothing can be compared: no two arms have runs that may be set against each other."]
    answers = [contrast["answer"] for contrast in contrasts]
    counts = ", ".join(f"{answers.count(each)} {each}" for each in ("yes", "no", "undecided"))
    sentences = [f"Is the first arm better by {IN_WORDS.get(primary, primary)}? Of {len(contrasts)}: {counts}."]
    if "undecided" in answers:
        sentences.append(
            f"Undecided means fewer than {DECIDES_FROM} pairs, p above {ALPHA:g} after Holm's correction, "
            "or anything else than was planned."
        )
    if any(is_best_of_several(contrast) for contrast in contrasts):
        sentences.append("The best of several arms, chosen on these runs, is ahead by luck too often: against it only a yes counts.")
    return sentences


def comparison(options: Namespace) -> str:
    """Runs the command; returns the page that it prints.

    A comparison with other contrasts, endpoint or seeds than a sweep's plan is only written where `--out` says.

    Raises:
        ValueError: an option names nothing that is there, or nothing may be written there.
    """
    check_out(options.out)
    sweep = read_sweep(options.folder, seeds=options.seeds)
    plan = plan_of(sweep, contrasts=options.contrast, primary=options.primary, threshold=options.threshold, seed=options.bootstrap_seed)
    for a, b in options.contrast:
        # Only the second may be a pattern.
        for name, is_known in ((a, a in sweep.arms), (b, b in sweep.arms or bool(fnmatch.filter(sweep.arms, b)))):
            if not is_known:
                raise ValueError(f"--contrast must name arms of the sweep ({', '.join(sweep.arms)}), got {name!r}")
        if b not in sweep.arms and fnmatch.filter(sweep.arms, b) == [a]:
            raise ValueError(f"--contrast must set {a} against another arm, got the pattern {b!r}, which fits {a} alone")
    found = compare(sweep, plan)
    path, page = options.out or options.folder / COMPARISON, as_text(found)
    if options.out is None and options.folder.suffix == ".csv":
        return page
    if options.out is None and sweep.plan.planned and (found["plan"]["chosen_by"] == "name" or options.seeds):
        return f"{page}\n\nIt is not the comparison that was planned, so it is not written; --out FILE.json keeps it"
    write_json(found, path)
    return f"{page}\n\n{path}"


def write_json(found: Mapping[str, Any], path: Path) -> None:
    """Writes figures for machines, whole or not at all."""
    write_whole(path, json.dumps(jsonable(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def as_text(found: Mapping[str, Any]) -> str:
    """A comparison as a page: verdict, contrasts, arms, remarks."""
    rows = contrast_rows(found)
    parts = ["\n".join(found["verdict"]), columns(rows) if len(rows) > 1 else "", arms_table(found)]
    remarks = [*found["notes"], *(note for contrast in found["contrasts"] for note in contrast_notes(contrast))]
    if remarks:
        parts.append("To know:\n" + "\n".join(f"- {remark}" for remark in dict.fromkeys(remarks)))
    return "\n\n".join(part for part in parts if part)


def contrast_notes(contrast: Mapping[str, Any]) -> list[str]:
    """Remarks on a contrast besides its row."""
    name = f"{contrast['a']} - {contrast['b']}"
    if contrast["cannot"]:
        return [f"{name} cannot be computed: {contrast['cannot']}"]
    notes = [*([f"{name} is not answered: {why}."] if (why := contrast["incomplete"]) else []), *contrast["notes"]]
    differing = contrast.get("settings_that_differ", ())
    if settings := [name for name in differing if not name.startswith("teacher.")]:
        besides = "more than the teacher:" if len(settings) < len(differing) else "other settings than the teacher's:"
        more = f" and {len(settings) - NUM_SETTINGS} more" if len(settings) > NUM_SETTINGS else ""
        notes.append(f"{contrast['a']} and {contrast['b']} differ in {besides} {', '.join(settings[:NUM_SETTINGS])}{more}.")
    return notes


def contrast_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The header, and a row for each contrast on the primary endpoint."""
    primary = found["plan"]["primary"]
    digits = digits_of(primary)
    rows = [[f"contrasts on {primary}", "answer", "difference", "95 % interval", "better in", "p", "p Holm", "P(better)", "would detect"]]
    for contrast in found["contrasts"]:
        name, endpoint = f"{contrast['a']} - {contrast['b']}", contrast["endpoints"][primary]
        if endpoint is None:
            rows.append([name, contrast["answer"], *["–"] * 7])
            continue
        d, better = Estimate.from_dict(endpoint["difference"]), Estimate.from_dict(endpoint["probability_of_improvement"])
        effect = endpoint["minimal_detectable_effect"]["effect"]
        wins = sum(sign_of(primary) * difference > 0 for difference in endpoint["differences"])
        # One pair is no sample: it has a difference and nothing more.
        tested = endpoint["num_pairs"] > 1
        rows.append(
            [
                name,
                contrast["answer"],
                f"{signed(d.value, digits)}{unit_of(primary)}",
                interval(d, digits) or "–",
                f"{wins} of {endpoint['num_pairs']}",
                f"{endpoint['p']:.3g}" if tested else "–",
                f"{endpoint['p_holm']:.3g}" if tested else "–",
                better.text(2) if tested else "–",
                "–" if not math.isfinite(effect) else f"{effect:.{digits}f}",
            ]
        )
    return rows


def arms_table(found: Mapping[str, Any]) -> str:
    """A line for each arm."""
    primary = found["plan"]["primary"]
    endpoints = list(dict.fromkeys([primary, *EMOTIONS]))
    rows = [["arm (mean over seeds)", "seeds", *(name.removeprefix("heldout.") for name in endpoints), "sd", "IQM", "a run took", "alarms"]]
    for arm, record in found["arms"].items():
        seeds, averaged = str(len(record["seeds"])), record.get("endpoints")
        if not averaged:
            rows.append([arm, seeds, *["–"] * (len(endpoints) + 4)])
            continue
        main, digits = averaged[primary], digits_of(primary)
        means = [mean_of(averaged[name], name, with_interval=name == primary) for name in endpoints]
        spread = "–" if main is None or not math.isfinite(main["sd"]) else f"{main['sd']:.{digits}f}"
        iqm = "–" if main is None else Estimate.from_dict(main["iqm"]).text(digits)
        wall = averaged["wall_s"]["mean"]["value"] if averaged["wall_s"] else None
        alarms = sum(len(run["alarms"]) for run in record["runs"].values())
        rows.append([arm, seeds, *means, spread, iqm, duration(wall), str(alarms)])
    return columns(rows)


def mean_of(values: Mapping[str, Any] | None, endpoint: str, *, with_interval: bool) -> str:
    """The mean over runs, with its interval where asked for."""
    if values is None:
        return "–"
    mean, digits = Estimate.from_dict(values["mean"]), digits_of(endpoint)
    return mean.text(digits) if with_interval else f"{mean.value:.{digits}f}"


def interval(estimate: Estimate, digits: int) -> str:
    """`[-1.0, 2.0]`; empty where there is none."""
    low, high = (round(bound, digits) + 0.0 for bound in (estimate.low, estimate.high))
    return "" if math.isnan(low) else f"[{low:.{digits}f}, {high:.{digits}f}]"


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, the first flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    )
