"""Arms of a sweep compared: `comparison.json`.

Per arm the numbers of its runs, their mean and interquartile mean, and the spread between seeds; per contrast the difference on common
seeds with everything that `docs/statistics.md` asks of a claim. What cannot be compared is said in a sentence, and the rest is computed.
"""

from __future__ import annotations

import fnmatch
import json
import math
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import paired, stats
from analysis.comparisons.answers import answer, verdict
from analysis.comparisons.arms import arm_record
from analysis.comparisons.comparison_plan import COMPARISON, Plan, contrasts_of, holds_more, plan_of
from analysis.comparisons.pairing import best_of, comparable_seeds, lacking_candidates, passed_over, why_no_rival
from analysis.comparisons.planned import THRESHOLD, Contrast, Planned
from analysis.comparisons.sweep import (
    BUDGETS,
    RunResult,
    Sweep,
    allowed_of,
    common_cells,
    groups_alike,
    other_start,
    run_folders,
    seed_of,
    unlike_settings,
)
from analysis.comparisons.table import load_sweep
from analysis.comparisons.text import as_text
from analysis.endpoints import AUC, RELIABILITY, SECONDARY, sign_of
from analysis.power import minimal_detectable_effect
from simulator.files import check_out, jsonable, write_whole

ALPHA, POWER = 0.05, 0.8


def comparison(options: Namespace) -> str:
    """Runs the command; returns what it prints.

    Raises:
        ValueError: what was asked for cannot be had, or nothing may be written there.
    """
    is_table = options.folder.suffix == ".csv"
    path = options.out or options.folder / COMPARISON
    check_out(options.out)
    if path.is_dir():
        raise ValueError(f"{path} must be a file, got a folder; --out FILE.json writes elsewhere")
    # Options that no plan takes are refused before runs are read.
    Plan(
        primary=options.primary or AUC, threshold=THRESHOLD if options.threshold is None else options.threshold, seed=options.bootstrap_seed
    )
    if not is_table:
        require_seeds(options.folder, options.seeds)
    sweep = load_sweep(options.folder, seeds=options.seeds)
    plan = plan_of(sweep, contrasts=options.contrast, primary=options.primary, threshold=options.threshold, seed=options.bootstrap_seed)
    for a, b in options.contrast:
        # Only the second may be a pattern, which stands for the best arm that fits it.
        for name, is_known in ((a, a in sweep.arms), (b, b in sweep.arms or bool(fnmatch.filter(sweep.arms, b)))):
            if not is_known:
                raise ValueError(f"--contrast must name arms of the sweep ({', '.join(sweep.arms)}), got {name!r}")
        if b not in sweep.arms and fnmatch.filter(sweep.arms, b) == [a]:
            raise ValueError(f"--contrast must set {a} against another arm, got the pattern {b!r}, which fits {a} alone")
    found = compare(sweep, plan)
    if is_table and options.out is None:
        return as_text(found)
    if options.out is None and (more := holds_more(path, found["plan"])):
        return f"{as_text(found)}\n\n{path} stays as it is, for it holds {more}; --out FILE.json keeps this one"
    write_json(found, path)
    return f"{as_text(found)}\n\n{path}"


def require_seeds(folder: Path, seeds: range | None) -> None:
    """Refuses seeds of which the sweep has none; None are all.

    Raises:
        ValueError: names those that it has.
    """
    there = sorted({seed_of(place) for place in run_folders(folder)})
    if seeds is not None and not {*there} & {*seeds}:
        asked = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
        raise ValueError(f"--seeds must hold a seed of the sweep ({', '.join(map(str, there))}), got {asked}")


def compare(sweep: Sweep, plan: Plan) -> dict[str, Any]:
    """The contents of `comparison.json`; numbers that are not defined are NaN or infinite here and null in the file."""
    planned = sweep.plan.planned
    arms, notes = {}, list(sweep.notes)
    for arm in sweep.arms:
        arms[arm], said = arm_record(arm, sweep, threshold=plan.threshold, resampling=plan.resampling)
        notes += said
    chosen, by = contrasts_of(plan, planned, sweep)
    read = sweep.plan.read
    contrasts = [contrast_record(contrast, sweep, plan, num_primary=len(chosen), read=read) for contrast in chosen]
    for contrast, named in zip(contrasts, chosen, strict=True):
        contrast["incomplete"] = incomplete(contrast, named, sweep, chosen_by=by)
    # What is named by hand is as complete as it will be.
    adjust(contrasts, plan.primary, waits=[by == "plan" and bool(contrast["incomplete"]) for contrast in contrasts])
    for contrast in contrasts:
        contrast["answer"] = answer(contrast, {"primary": plan.primary, "alpha": ALPHA})
    notes += [f"No run measured {name}, which the plan reads." for name in read if all(run.scalars.get(name) is None for run in sweep.runs)]
    notes += beside_the_plan(planned, by) + worlds(sweep) + unequal_budgets(sweep) + tuned_before(chosen, planned)
    notes += states_of_the_code(sweep) + watched_otherwise(sweep) + initial_policies(sweep)
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
            "planned": planned
            and {
                "contrasts": [list(contrast) for contrast in planned.contrasts],
                "primary": planned.primary,
                "seeds": list(planned.seeds),
            },
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


def beside_the_plan(planned: Planned | None, chosen_by: str) -> list[str]:
    """A remark if what is compared is not what the sweep set out to compare."""
    if planned is None or not planned.contrasts or chosen_by == "plan":
        return []
    why = ", for none of its contrasts has runs on both sides" if chosen_by == "instead" else ""
    return [f"What is compared is not the plan{why}: it has {planned.words()}."]


def tuned_before(contrasts: Sequence[Contrast], planned: Planned | None) -> list[str]:
    """What was tried before for the arms that others are set against, as the plan states it; a remark for all of which the same is said."""
    said: dict[str, list[str]] = {}
    for arm in dict.fromkeys(a for a, _ in contrasts):
        what = (planned.tuning_of(arm) if planned else "") or "none"
        said.setdefault(what, []).append(arm)
    return [f"Tuned before these runs: {', '.join(arms)} ({what})." for what, arms in said.items() if not what.startswith("none")]


def worlds(sweep: Sweep) -> list[str]:
    """A remark if the runs come from more than one world, with the arms that have runs in each but the one of most runs."""
    (_, *others) = Counter(run.world for run in sweep.runs).most_common() or [("", 0)]
    where = [f"{', '.join(dict.fromkeys(run.arm for run in sweep.runs if run.world == world))} in {world}" for world, _ in others]
    says = f"The runs come from {len(others) + 1} worlds ({'; '.join(where)}); only runs of one world are set against each other."
    return [says] if others else []


def unequal_budgets(sweep: Sweep) -> list[str]:
    """A remark if arms were not allowed the same, with what each was: in one table more training looks like a better arm."""
    allowed: dict[str, list[str]] = {}
    for run in sweep.runs:
        tokens, steps = (allowed_of(run, name) for name in BUDGETS)
        said = f"{tokens:,} policy tokens" + (f" or {steps:,} steps" if steps else "")
        allowed.setdefault(said, []).append(run.arm)
    where = [f"{', '.join(dict.fromkeys(arms))} {said}" for said, arms in allowed.items()]
    return [f"Arms had unequal budgets ({'; '.join(where)}): by their numbers side by side none is better."] if len(allowed) > 1 else []


def states_of_the_code(sweep: Sweep) -> list[str]:
    """A remark if the runs were not all made by one commit; `+` marks one with uncommitted changes."""
    commits = sorted({commit for run in sweep.runs for commit in run.commits or ("",)})
    names = [commit[:12] + "+" * commit.endswith("+") or "unknown" for commit in commits]
    return [f"The runs come from {len(commits)} states of the code ({', '.join(names)})."] if len(commits) > 1 else []


def watched_otherwise(sweep: Sweep) -> list[str]:
    """A remark if some runs were made before others' alarms were there: how often alarms rang is then no difference between arms."""
    known = [{name for name in run.settings if name.startswith("collapse.")} for run in sweep.runs]
    everywhere: set[str] = set.intersection(*known) if known else set()
    newer = sorted({name for names in known for name in names} - everywhere)
    says = f"Not all runs were watched by the same alarms (some had no {', '.join(newer)}): how often they rang does not compare."
    return [says] if newer else []


def initial_policies(sweep: Sweep) -> list[str]:
    """A remark if runs with the same settings of the policy did not all begin with the same weights, as far as that was recorded."""
    recorded = [run for run in sweep.runs if run.initial_policy]
    starts = [sorted({run.initial_policy for run in group}) for group in groups_alike(recorded, apart=other_start)]
    return [
        f"Runs with the same settings began with {len(found)} policies ({', '.join(found)}), as two builds of a prior need not be "
        "the same; only runs that began with the same one are paired."
        for found in starts
        if len(found) > 1
    ]


def contrast_record(contrast: Contrast, sweep: Sweep, plan: Plan, *, num_primary: int, read: Sequence[str]) -> dict[str, Any]:
    """One contrast on the primary endpoint and on the secondary ones.

    Args:
        read: further endpoints that the sweep names.
    """
    a, pattern = contrast
    b, candidates = best_of(pattern, a, sweep, plan.primary)
    a_runs, b_runs = sweep.of(a), sweep.of(b)
    seeds, notes = comparable_seeds(a_runs, b_runs, names=(a, b)) if a_runs and b in sweep.arms else ([], why_no_rival(a, b, sweep))
    if candidates:
        notes += [how_chosen(contrast, b, candidates), *passed_over(pattern, a, sweep, candidates=candidates, endpoint=plan.primary)]
    pairs = [(a_runs[seed], b_runs[seed]) for seed in seeds]
    endpoints = endpoints_of(pairs, plan, num_primary=num_primary, read=read)
    cannot = None
    if not pairs:
        # What else there is to say is why.
        cannot, notes = " ".join(notes) or f"{a} and {b} have no seed in common.", []
    elif endpoints[plan.primary] is None:
        cannot = f"{a} and {b} cannot be compared on {plan.primary}: no pair of runs measured it."
    return {
        "a": a,
        "b": b,
        "seeds": seeds,
        "notes": [*notes, *unmeasured((a, b), endpoints, primary=plan.primary, num_pairs=len(pairs))],
        "cannot": cannot,
        **({"b_chosen_from": candidates} if candidates else {}),
        **({"settings_that_differ": settings_that_differ(pairs)} if pairs else {}),
        "endpoints": endpoints,
        "improvement_over_cells": improvement_over_cells(pairs, plan),
    }


def how_chosen(contrast: Contrast, b: str, candidates: Sequence[str]) -> str:
    """From which arms the second one was taken, on the runs that are compared."""
    a, pattern = contrast
    if len(candidates) == 1:
        return f"Of {pattern} only {b} can be set against {a}."
    return f"{b} was chosen on these very runs as the best of {', '.join(candidates)}, which favours it over {a}."


def settings_that_differ(pairs: Sequence[tuple[RunResult, RunResult]]) -> list[str]:
    """Dotted names, sorted."""
    return sorted({name for a, b in pairs for name in unlike_settings(a.settings, b.settings)})


def endpoints_of(
    pairs: Sequence[tuple[RunResult, RunResult]], plan: Plan, *, num_primary: int, read: Sequence[str]
) -> dict[str, dict[str, Any] | None]:
    """The differences by endpoint: the primary one, the secondary ones, what the probe asked, and what the sweep is read by."""
    probed = [name for name in RELIABILITY if any(run.scalars.get(name) is not None for pair in pairs for run in pair)]
    names = dict.fromkeys([plan.primary, *SECONDARY, *probed, *read])
    return {name: difference(pairs, name, alpha=ALPHA / (num_primary if name == plan.primary else 1)) for name in names}


def unmeasured(names: Contrast, endpoints: Mapping[str, Any], *, primary: str, num_pairs: int) -> list[str]:
    """Which endpoints some pairs did not measure: the primary one, and those that lack more pairs than it does."""
    a, b = names
    main = endpoints[primary]
    most = main["num_dropped"] if main else num_pairs
    said = [f"{most} of {num_pairs} pairs of {a} and {b} did not measure {primary}."] if main and most else []
    short = [name for name, found in endpoints.items() if found and found["num_dropped"] > most]
    return [*said, f"Not every pair of {a} and {b} measured {', '.join(short)}: there the others are told of."] if short else said


def incomplete(contrast: Mapping[str, Any], named: Contrast, sweep: Sweep, *, chosen_by: str) -> str:
    """What keeps a contrast from being what was planned, so that it is not answered; empty where it is, or where nothing was planned.

    Contrasts named by hand are not answered in a sweep with a plan: naming only some of the planned ones would weaken Holm's correction.

    Args:
        named: as the plan has it, with a pattern.
        chosen_by: as `comparison_plan.contrasts_of` says.
    """
    planned = sweep.plan.planned
    if sweep.plan.is_torn:
        return "the plan cannot be read"
    if planned is None or not (planned.contrasts or chosen_by == "name"):
        return ""
    if chosen_by != "plan":
        return "not in the sweep's plan"
    a, pattern = named
    if lacking := [seed for seed in planned.seeds if seed not in contrast["seeds"]]:
        return f"not paired yet: {in_words(lacking)}"
    if planned.seeds and (others := [seed for seed in contrast["seeds"] if seed not in planned.seeds]):
        return f"not in the plan: {in_words(others)}"
    main = contrast["endpoints"].get(planned.primary)
    if main and main["num_dropped"]:
        return f"pairs that did not measure {planned.primary}: {main['num_dropped']}"
    if "b_chosen_from" in contrast:
        # The best of those that happen to be there need not be the best of those that were planned.
        arms, seeds = planned.arms or sweep.arms, planned.seeds or contrast["seeds"]
        if strays := [arm for arm in contrast["b_chosen_from"] if arm not in arms]:
            return f"not in the plan: {', '.join(strays)}"
        lost = lacking_candidates(pattern, a, sweep, arms=arms, seeds=seeds, endpoint=planned.primary)
        if lost:
            return "; ".join(f"{arm} has no pair in {in_words(missing)}" for arm, missing in lost.items())
    return ""


def in_words(seeds: Sequence[int]) -> str:
    """`seed 3`, `seeds 3, 4`."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def difference(pairs: Sequence[tuple[RunResult, RunResult]], endpoint: str, *, alpha: float) -> dict[str, Any] | None:
    """An endpoint of a less that of b, over seeds; None where no pair measured it.

    Args:
        alpha: at which the minimal detectable effect is stated.
    """
    values = np.array([[run.scalars.get(endpoint) for run in pair] for pair in pairs], dtype=float).reshape(-1, 2)
    a_R, b_R, num_dropped = paired.complete_pairs(values[:, 0], values[:, 1])
    if not a_R.size:
        return None
    d_R = a_R - b_R
    test = paired.sign_flip_test(d_R)
    better = sign_of(endpoint)
    sd = float(d_R.std(ddof=1)) if d_R.size > 1 else math.nan
    effect = minimal_detectable_effect(num_pairs=d_R.size, sd=sd, alpha=alpha, power=POWER) if d_R.size > 1 else math.nan
    return {
        "num_pairs": d_R.size,
        "num_dropped": num_dropped,
        "differences": d_R.tolist(),
        "difference": paired.mean_difference(d_R).to_dict(),
        "sign_flip_interval": paired.sign_flip_interval(d_R).to_dict() if d_R.size <= paired.MAX_EXACT else None,
        "p": test.p,
        "p_is_exact": test.exact,
        "p_smallest": paired.smallest_p(d_R.size),
        "p_smallest_holm": None,
        "p_holm": None,
        "probability_of_improvement": paired.paired_probability(better * d_R).to_dict(),
        "probability_of_improvement_any_pair": paired.probability_of_improvement(better * a_R[:, None], better * b_R[:, None]),
        "minimal_detectable_effect": {"effect": effect, "alpha": alpha, "power": POWER, "sd": sd},
    }


def improvement_over_cells(pairs: Sequence[tuple[RunResult, RunResult]], plan: Plan) -> dict[str, Any] | None:
    """Probability of improvement as published, averaged over family and strictness at the end; pairs of runs are resampled whole."""
    cells = common_cells([run for pair in pairs for run in pair])
    if not cells:
        return None
    sides = [np.array([[pair[side].cells[cell] for cell in cells] for pair in pairs]) for side in (0, 1)]
    c = len(cells)
    found = stats.estimate(lambda both: paired.probability_of_improvement(both[:, :c], both[:, c:]), np.hstack(sides), **plan.resampling)
    return {**found.to_dict(), "num_cells": c}


def adjust(contrasts: Sequence[dict[str, Any]], primary: str, *, waits: Sequence[bool]) -> None:
    """Puts Holm's p into each contrast's primary endpoint, and the smallest that so many pairs could have, were all pairs to agree.

    A contrast that could not be computed counts in the family with p = 1, and so for all others does one that is not complete: what is here
    of it is not what was planned.

    Args:
        waits: which of them are not.
    """
    found = [contrast["endpoints"][primary] for contrast in contrasts]
    for name in ("p", "p_smallest"):
        values = [endpoint[name] if endpoint else 1.0 for endpoint in found]
        for i, endpoint in enumerate(found):
            if endpoint:
                family = [1.0 if waits[j] and j != i else p for j, p in enumerate(values)]
                endpoint[f"{name}_holm"] = paired.holm(family)[i]


def write_json(found: Mapping[str, Any], path: Path) -> None:
    """Writes figures for machines, whole or not at all."""
    write_whole(path, json.dumps(jsonable(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
