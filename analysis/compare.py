"""One arm of a sweep by itself: its runs, their mean and spread, where it is good and how it got there.

What of a sweep is compared: what was asked for, else its own plan, else what was named before.

Which runs of two arms are set against each other, and which arm a pattern stands for.

A comparison for a reader: the verdict first, then contrasts, arms and what was left out.

Whether the first arm of a contrast is better, and a comparison's verdict in at most three sentences.

Arms of a sweep compared: `comparison.json`.

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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from analysis import stats
from analysis.endpoints import (
    AUC,
    EMOTIONS,
    ENDPOINTS,
    IN_WORDS,
    RELIABILITY,
    SECONDARY,
    UNDIRECTED,
    common_curves,
    digits_of,
    hold_last,
    kaplan_meier,
    median_time,
    restricted_mean_time,
    sign_of,
    tokens_to_threshold,
    unit_of,
)
from analysis.stats import Estimate, Resampling, Statistic, minimal_detectable_effect
from analysis.sweeps import (
    BUDGETS,
    THRESHOLD,
    Contrast,
    Note,
    NoteKind,
    Planned,
    RunResult,
    Sweep,
    allowed_of,
    common_cells,
    groups_alike,
    measured,
    no_run,
    other_start,
    require_endpoint,
    require_threshold,
    run_folders,
    seed_of,
    unlike_settings,
    why_not_averaged,
    why_not_paired,
)
from analysis.table import load_sweep
from analysis.text import duration, signed
from simulator.files import check_out, jsonable, write_whole

THRESHOLDS = tuple(range(0, 101, 5))
"""Emotions at which performance profiles are read."""
CURVE_POINTS = 21
AGGREGATES: Mapping[str, Statistic] = {"mean": stats.mean, "median": stats.median, "iqm": stats.iqm}
GAP = "gap_to_expert"


def arm_record(arm: str, sweep: Sweep, *, threshold: float, resampling: Resampling) -> tuple[dict[str, Any], list[str]]:
    """An arm's part of `comparison.json`, and what is to be said about it; its runs are not averaged if they must not be.

    Args:
        threshold: emotion whose first reaching is timed, 0-100.
    """
    runs = list(sweep.of(arm).values())
    record: dict[str, Any] = {
        "seeds": [run.seed for run in runs],
        "runs": {str(run.seed): {**run.scalars, "world": run.world, "alarms": run.alarms} for run in runs},
    }
    if not runs:
        return record, [no_run(arm)]
    reason = next((said for run in runs[1:] if (said := why_not_averaged(runs[0], run))), "")
    if reason:
        return record, [f"{arm} is not averaged: {reason}."]
    record["endpoints"] = {
        name: spread_between_seeds(runs, name, resampling=resampling) for name in dict.fromkeys((*ENDPOINTS, *sweep.plan.read))
    }
    record |= over_cells(runs, resampling=resampling)
    record |= over_tokens(runs, end=sweep.auc_ends.get(runs[0].budget), threshold=threshold, resampling=resampling)
    return record, []


def spread_between_seeds(runs: Sequence[RunResult], endpoint: str, *, resampling: Resampling) -> dict[str, Any] | None:
    """An endpoint over the runs that measured it: mean and IQM with joint-bootstrap intervals, sd (R - 1), extremes."""
    values = measured(runs, endpoint)
    if not values.size:
        return None
    both = stats.band(lambda scores: np.array([stats.mean(scores), stats.iqm(scores)]), values[:, None], **resampling)
    return {
        "mean": estimate_at(both, 0),
        "iqm": estimate_at(both, 1),
        "sd": float(values.std(ddof=1)) if values.size > 1 else math.nan,
        "min": float(values.min()),
        "max": float(values.max()),
        "num_runs": values.size,
    }


def over_cells(runs: Sequence[RunResult], *, resampling: Resampling) -> dict[str, Any]:
    """The last full evaluation as scores[R, C] over family and strictness: aggregates, profile over strictness, shares above thresholds.

    The gap to the expert is how far cells fall short of what the scripted expert L6 scored on the whole grid; what lies beyond makes up
    for nothing.
    """
    cells = common_cells(runs)
    if not cells:
        return {"cells": None, "by_strictness": None, "profile": None}
    scores_RC = np.array([[run.cells[cell] for cell in cells] for run in runs])
    strictness_C = np.array([strictness for _, strictness in cells])
    levels_K, _ = stats.profile_over_strictness(scores_RC, strictness_C)
    by_strictness = stats.band(lambda scores: stats.profile_over_strictness(scores, strictness_C)[1], scores_RC, **resampling)
    shares = stats.band(lambda scores: stats.performance_profile(scores, np.array(THRESHOLDS)), scores_RC, **resampling)
    expert = expert_of(runs)
    # Nothing exceeds an emotion of 100, to which the gap would be 100 less the mean.
    gap: dict[str, Statistic] = {} if expert is None else {GAP: partial(stats.optimality_gap, target=expert)}
    told = {**AGGREGATES, **gap}
    aggregates = stats.band(lambda scores: np.array([statistic(scores) for statistic in told.values()]), scores_RC, **resampling)
    found = {name: estimate_at(aggregates, i) for i, name in enumerate(told)}
    return {
        "cells": {"num_cells": len(cells), **found, GAP: found.get(GAP), "expert": expert},
        "by_strictness": {"strictness": levels_K.tolist(), **band_dict(by_strictness)},
        "profile": {"threshold": list(THRESHOLDS), **band_dict(shares)},
    }


def expert_of(runs: Sequence[RunResult]) -> float | None:
    """What the scripted expert scored in the evaluation that the runs had; None where they do not all say the same."""
    scores = {run.expert for run in runs}
    return scores.pop() if len(scores) == 1 else None


def estimate_at(band: stats.Band, place: int) -> dict[str, float | None]:
    """One place of a band, as an estimate by itself."""
    value, low, high = (float(values[place]) for values in band)
    return Estimate(value=value, low=low, high=high).to_dict()


def band_dict(band: stats.Band) -> dict[str, list[float]]:
    """JSON-able."""
    return {name: values.tolist() for name, values in band._asdict().items()}


def over_tokens(runs: Sequence[RunResult], *, end: float | None, threshold: float, resampling: Resampling) -> dict[str, Any]:
    """The learning curve with its band, and the tokens to the threshold; runs that ended before their budget keep their last score.

    Where no run spent its budget they ended by steps, each with its own tokens: there a run is watched until its last look and no longer.
    """
    curves = [run.curve for run in runs if run.curve is not None]
    if not curves or end is None:
        return {"curve": None, "tokens_to_threshold": None}
    # Areas stop where the shortest of all runs does, where none spent its budget; a threshold may be reached after it.
    is_spent = end >= runs[0].budget
    tokens_T, curves_RT = common_curves(curves, end=end if is_spent else max(float(curve.tokens[-1]) for curve in curves))
    curves_RT = hold_last(curves_RT) if is_spent else curves_RT
    grid_K = np.linspace(tokens_T[0], end, CURVE_POINTS)
    held_RK = np.array([np.interp(grid_K, curve.tokens, curve.scores) for curve in curves])
    course = stats.band(lambda scores: scores.mean(axis=0), held_RK, **resampling)
    return {
        "curve": {"policy_tokens": grid_K.tolist(), **band_dict(course)},
        "tokens_to_threshold": {"threshold": threshold, **time_to(threshold, tokens_T, curves_RT)},
    }


def time_to(threshold: float, tokens_T: np.ndarray, curves_RT: np.ndarray) -> dict[str, Any]:
    """Median and restricted mean of the tokens to a threshold; runs that did not reach it are censored at their last look."""
    times_R, reached_R = tokens_to_threshold(tokens_T, curves_RT, threshold)
    survival = kaplan_meier(times_R, reached_R)
    horizon = float(tokens_T[-1] if reached_R.all() else min(tokens_T[-1], survival.followed))
    return {
        "num_reached": int(reached_R.sum()),
        "num_runs": len(times_R),
        "kaplan_meier_median": median_time(survival),
        "restricted_mean": restricted_mean_time(survival, horizon=horizon),
        "horizon": horizon,
    }


COMPARISON = "comparison.json"
FAVOURITE = "frontier"
"""The arm that is set against every other one where no contrast is named."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared, fixed before it is looked at."""

    contrasts: Sequence[Contrast] = ()
    """The family over which Holm corrects; none means `FAVOURITE` against every other arm, or every pair of arms."""
    primary: str = AUC
    """One of `ENDPOINTS`."""
    threshold: float = THRESHOLD
    """Emotion whose first reaching is timed, 0-100."""
    seed: int = 0
    """Of the bootstrap, >= 0."""
    num_resamples: int = stats.NUM_RESAMPLES
    """Draws for an interval, > 0."""

    @property
    def resampling(self) -> stats.Resampling:
        """For the intervals that are resampled."""
        return {"seed": self.seed, "num_resamples": self.num_resamples}

    def __post_init__(self) -> None:
        require_endpoint("--primary", self.primary)
        require_threshold("--threshold", self.threshold)
        if self.seed < 0:
            raise ValueError(f"--bootstrap-seed must be at least 0, got {self.seed!r}")
        for a, b in self.contrasts:
            if a == b:
                raise ValueError(f"--contrast must name two arms, got {a!r} twice")
        if twice := [contrast for contrast, num in Counter(self.contrasts).items() if num > 1]:
            raise ValueError(f"--contrast must name each contrast once, got {':'.join(twice[0])} more often")


def plan_of(
    sweep: Sweep, *, contrasts: Sequence[Contrast] = (), primary: str | None = None, threshold: float | None = None, seed: int = 0
) -> Plan:
    """What is compared: what was asked for, else the sweep's own plan, else what the comparison beside the runs named."""
    kept = sweep.plan.planned or named_before(sweep.folder)
    if kept is None:
        kept = Planned(contrasts=(), primary=AUC)
    return Plan(
        contrasts=contrasts or kept.contrasts,
        primary=primary or kept.primary,
        threshold=kept.threshold if threshold is None else threshold,
        seed=seed,
    )


def named_before(folder: Path) -> Planned | None:
    """What was named for the comparison beside the runs; None where there is none, or nothing was."""
    try:
        kept = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))["plan"]
        contrasts = tuple(dict.fromkeys((str(a), str(b)) for a, b in kept["contrasts"]))
        named = kept["chosen_by"] == "name" and kept["primary"] in ENDPOINTS and kept["primary"] not in UNDIRECTED
        return Planned(contrasts=contrasts, primary=kept["primary"]) if named else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def holds_more(path: Path, plan: Mapping[str, Any]) -> str:
    """What a comparison that is kept has and a new one would lose, in words: all seeds, or what was planned; empty for neither.

    Args:
        plan: of the new one, as `comparison.json` has it.
    """
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))["plan"]
        by, has_all = kept["chosen_by"], kept.get("only_seeds") is None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
    if has_all and plan["only_seeds"] is not None:
        return "all seeds"
    return "what was planned" if has_all and by == "plan" and plan["chosen_by"] != "plan" else ""


def default_contrasts(arms: Sequence[str]) -> list[Contrast]:
    """The favourite against the others, or every pair of arms."""
    if FAVOURITE in arms:
        return [(FAVOURITE, arm) for arm in arms if arm != FAVOURITE]
    return [(a, b) for i, a in enumerate(arms) for b in arms[i + 1 :]]


def contrasts_of(plan: Plan, planned: Planned | None, sweep: Sweep) -> tuple[Sequence[Contrast], str]:
    """The contrasts that are computed, and by what they were chosen.

    Where each contrast of the sweep's own plan is with an arm that has no run here, those that follow from the arms with runs take their
    place (`instead`): what is there is described all the same.
    """
    by = chosen_by(plan, planned)
    if by != "plan":
        return plan.contrasts or default_contrasts(sweep.arms), by
    there = [arm for arm in sweep.arms if sweep.of(arm)]
    if len(there) < 2 or any(a in there and fnmatch.filter(there, b) not in ([], [a]) for a, b in plan.contrasts):
        return plan.contrasts, by
    return default_contrasts(there), "instead"


def chosen_by(plan: Plan, planned: Planned | None) -> str:
    """`plan` where it is the sweep's own, `name` where contrasts were named otherwise, else `default`."""
    if planned is not None and planned.contrasts and (set(plan.contrasts), plan.primary) == (set(planned.contrasts), planned.primary):
        return "plan"
    return "name" if plan.contrasts else "default"


def best_of(pattern: str, a: str, sweep: Sweep, endpoint: str) -> tuple[str, list[str]]:
    """The arm among those that fit a pattern over which `a` gains least, and those it was chosen from.

    An arm's own name stays as it is, with no candidates. Gains are over the seeds on which `a` and a candidate may be compared, so that one
    from another world is not chosen. Two candidates are held against each other on the seeds that both have, so that an easy seed favours
    none and one that has run on few decides nothing about the others; the best is beaten by the fewest. One that has no seed in common with
    any other is chosen only where none has.
    """
    if pattern in sweep.arms or not any(sign in pattern for sign in "*?["):
        return pattern, []
    a_runs = sweep.of(a)
    gains = {arm: gains_over(a_runs, sweep.of(arm), names=(a, arm), endpoint=endpoint) for arm in fnmatch.filter(sweep.arms, pattern)}
    gains = {arm: by_seed for arm, by_seed in gains.items() if by_seed and arm != a}

    def is_harder(x: str, y: str) -> bool:
        both = gains[x].keys() & gains[y].keys()
        return bool(both) and fmean(gains[x][seed] for seed in both) < fmean(gains[y][seed] for seed in both)

    def is_apart(arm: str) -> bool:
        return not any(gains[arm].keys() & by_seed.keys() for other, by_seed in gains.items() if other != arm)

    def rank(arm: str) -> tuple[bool, int, float]:
        return is_apart(arm), sum(is_harder(other, arm) for other in gains), fmean(gains[arm].values())

    return (min(gains, key=rank), sorted(gains)) if gains else (pattern, [])


def passed_over(pattern: str, a: str, sweep: Sweep, *, candidates: Sequence[str], endpoint: str) -> list[str]:
    """A sentence for each arm with runs that fits a pattern and was not among the candidates, with the reason.

    Args:
        candidates: what `best_of` chose from.
    """
    said = []
    for arm in fnmatch.filter(sweep.arms, pattern):
        if arm != a and arm not in candidates and sweep.of(arm):
            seeds, reasons = comparable_seeds(sweep.of(a), sweep.of(arm), names=(a, arm))
            reason = f"no pair of it and {a} measured {endpoint}." if seeds else reasons[-1]
            said.append(f"{arm} was not among those to choose from: {reason}")
    return said


def lacking_candidates(
    pattern: str, a: str, sweep: Sweep, *, arms: Sequence[str], seeds: Sequence[int], endpoint: str
) -> dict[str, list[int]]:
    """By arm that fits a pattern, the seeds on which it cannot be set against `a`; arms that have all are left out.

    Args:
        arms: all that were planned, whether they have runs or not.
        seeds: all that were planned.
    """
    fitting = [arm for arm in fnmatch.filter(arms, pattern) if arm != a]
    there = {arm: gains_over(sweep.of(a), sweep.of(arm), names=(a, arm), endpoint=endpoint) for arm in fitting}
    lacking = {arm: [seed for seed in seeds if seed not in there[arm]] for arm in fitting}
    return {arm: lost for arm, lost in lacking.items() if lost}


def why_no_rival(a: str, pattern: str, sweep: Sweep) -> list[str]:
    """Why an arm can be set against none of those that fit a pattern."""
    a_runs, arms = sweep.of(a), [arm for arm in fnmatch.filter(sweep.arms, pattern) if arm != a and sweep.of(arm)]
    if not a_runs or not arms:
        return [no_run(name) for name, runs in ((a, a_runs), (pattern, arms)) if not runs]
    return list(dict.fromkeys(note for arm in arms for note in comparable_seeds(a_runs, sweep.of(arm), names=(a, arm))[1]))


def gains_over(a_runs: Mapping[int, RunResult], b_runs: Mapping[int, RunResult], *, names: Contrast, endpoint: str) -> dict[int, float]:
    """By seed, how much better the first arm is, on the seeds on which both may be compared and measured it."""
    pairs = {
        seed: (a_runs[seed].scalars[endpoint], b_runs[seed].scalars[endpoint]) for seed in comparable_seeds(a_runs, b_runs, names=names)[0]
    }
    return {seed: sign_of(endpoint) * (a - b) for seed, (a, b) in pairs.items() if a is not None and b is not None}


def comparable_seeds(a_runs: Mapping[int, RunResult], b_runs: Mapping[int, RunResult], *, names: Contrast) -> tuple[list[int], list[str]]:
    """Seeds whose runs may be set against each other, and why others may not."""
    notes: list[str] = [no_run(name) for name, runs in zip(names, (a_runs, b_runs), strict=True) if not runs]
    if notes:
        return [], notes
    for name, lacking in zip(names, (b_runs.keys() - a_runs.keys(), a_runs.keys() - b_runs.keys()), strict=True):
        if lacking:
            seeds = tuple(sorted(lacking))
            says = f"{name} lacks seed {', '.join(map(str, seeds))}; only common seeds are stats."
            notes.append(Note(says, arm=name, seeds=seeds, kind=NoteKind.LACKS_SEEDS))
    apart: dict[str, list[int]] = {}
    for seed in sorted(a_runs.keys() & b_runs.keys()):
        apart.setdefault(why_not_paired(a_runs[seed], b_runs[seed]), []).append(seed)
    paired = apart.pop("", [])
    for reason, lost in apart.items():
        if len(lost) == 1:
            notes.append(f"{a_runs[lost[0]].name} and {b_runs[lost[0]].name} {reason}; this pair is left out.")
        else:
            notes.append(f"{' and '.join(names)} {reason} in seeds {', '.join(map(str, lost))}; these pairs are left out.")
    return largest_alike(largest_alike(paired, a_runs, notes), b_runs, notes), notes


def largest_alike(seeds: Sequence[int], runs: Mapping[int, RunResult], notes: list[str]) -> list[int]:
    """The seeds of the largest group of pairs that may be averaged with each other; why others may not is added to the notes.

    Args:
        runs: of one of the two arms, by seed.
    """
    largest = (groups_alike(runs[seed] for seed in seeds) or [[]])[0]
    kept = [seed for seed in seeds if any(run is runs[seed] for run in largest)]
    notes += [f"{why_not_averaged(runs[kept[0]], runs[seed])}; the pair of seed {seed} is left out." for seed in seeds if seed not in kept]
    return kept


NUM_SETTINGS = 6
"""Settings that are named where arms differ in more."""


def as_text(found: Mapping[str, Any]) -> str:
    """The page that the command prints."""
    rows = contrast_rows(found)
    parts = ["\n".join(found["verdict"]), columns(rows) if len(rows) > 1 else "", arms_table(found)]
    remarks = [
        *found["notes"],
        *(note for contrast in found["contrasts"] for note in contrast_notes(contrast)),
    ]
    if remarks:
        parts.append("To know:\n" + "\n".join(f"- {remark}" for remark in dict.fromkeys(remarks)))
    return "\n\n".join(part for part in parts if part)


def contrast_notes(contrast: Mapping[str, Any]) -> list[str]:
    """What must be said about a contrast besides its row."""
    name = f"{contrast['a']} - {contrast['b']}"
    if contrast["cannot"]:
        return [f"{name} cannot be computed: {contrast['cannot']}"]
    notes = [*([f"{name} is not answered: {why}."] if (why := contrast["incomplete"]) else []), *contrast["notes"]]
    differing = contrast.get("settings_that_differ", ())
    settings = [name for name in differing if not name.startswith("teacher.")]
    if settings:
        besides = "more than the teacher:" if len(settings) < len(differing) else "other settings than the teacher's:"
        more = f" and {len(settings) - NUM_SETTINGS} more" if len(settings) > NUM_SETTINGS else ""
        notes.append(f"{contrast['a']} and {contrast['b']} differ in {besides} {', '.join(settings[:NUM_SETTINGS])}{more}.")
    return notes


def contrast_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The header, and a row for each contrast on the primary endpoint."""
    primary = found["plan"]["primary"]
    rows = [
        [f"contrasts on {primary}", "answer", "difference", "95 % interval", "better in", "p", "p Holm", "P(better)", "would detect"],
    ]
    for contrast in found["contrasts"]:
        name, endpoint = f"{contrast['a']} - {contrast['b']}", contrast["endpoints"][primary]
        if endpoint is None:
            rows.append([name, contrast["answer"], *["–"] * 7])
            continue
        d, better = Estimate.from_dict(endpoint["difference"]), Estimate.from_dict(endpoint["probability_of_improvement"])
        digits, effect = digits_of(primary), endpoint["minimal_detectable_effect"]["effect"]
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
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    )


DECIDES_FROM = 5
"""Pairs below which a comparison describes and does not decide."""
UNDECIDED = "Undecided means fewer than {} pairs, p above {:g} after Holm's correction, or anything else than was planned."
FLATTERED = "The best of several arms, chosen on these runs, is ahead by luck too often: against it only a yes counts."


def answer(contrast: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """`yes` or `no` where p after Holm is at most alpha, else `undecided`; an arm a little behind is as undecided as one a little ahead."""
    endpoint = contrast["endpoints"][plan["primary"]]
    if endpoint is None or contrast["incomplete"] or endpoint["num_pairs"] < DECIDES_FROM or endpoint["p_holm"] > plan["alpha"]:
        return "undecided"
    is_better = sign_of(plan["primary"]) * endpoint["difference"]["value"] > 0
    # Of five equal arms the best lies ahead for sure in 8 % of ten-seed sweeps of noise at p <= 0.05.
    return "yes" if is_better else "undecided" if is_flattered(contrast) else "no"


def is_flattered(contrast: Mapping[str, Any]) -> bool:
    """Whether the second arm was chosen on these very runs as the best of several."""
    return len(contrast.get("b_chosen_from", ())) > 1


def verdict(found: Mapping[str, Any]) -> list[str]:
    """How many contrasts are a yes, and what leaves the others open."""
    contrasts, plan = found["contrasts"], found["plan"]
    if not any(contrast["endpoints"][plan["primary"]] for contrast in contrasts):
        return ["Nothing can be compared: no two arms have runs that may be set against each other."]
    answers = [contrast["answer"] for contrast in contrasts]
    counts = ", ".join(f"{answers.count(said)} {said}" for said in ("yes", "no", "undecided"))
    sentences = [f"Is the first arm better by {IN_WORDS.get(plan['primary'], plan['primary'])}? Of {len(contrasts)}: {counts}."]
    if "undecided" in answers:
        sentences.append(UNDECIDED.format(DECIDES_FROM, plan["alpha"]))
    if any(is_flattered(contrast) for contrast in contrasts):
        sentences.append(FLATTERED)
    return sentences


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
        "the same; only runs that began with the same one are stats."
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
    a_R, b_R, num_dropped = stats.complete_pairs(values[:, 0], values[:, 1])
    if not a_R.size:
        return None
    d_R = a_R - b_R
    test = stats.sign_flip_test(d_R)
    better = sign_of(endpoint)
    sd = float(d_R.std(ddof=1)) if d_R.size > 1 else math.nan
    effect = minimal_detectable_effect(num_pairs=d_R.size, sd=sd, alpha=alpha, power=POWER) if d_R.size > 1 else math.nan
    return {
        "num_pairs": d_R.size,
        "num_dropped": num_dropped,
        "differences": d_R.tolist(),
        "difference": stats.mean_difference(d_R).to_dict(),
        "sign_flip_interval": stats.sign_flip_interval(d_R).to_dict() if d_R.size <= stats.MAX_EXACT else None,
        "p": test.p,
        "p_is_exact": test.exact,
        "p_smallest": stats.smallest_p(d_R.size),
        "p_smallest_holm": None,
        "p_holm": None,
        "probability_of_improvement": stats.paired_probability(better * d_R).to_dict(),
        "probability_of_improvement_any_pair": stats.probability_of_improvement(better * a_R[:, None], better * b_R[:, None]),
        "minimal_detectable_effect": {"effect": effect, "alpha": alpha, "power": POWER, "sd": sd},
    }


def improvement_over_cells(pairs: Sequence[tuple[RunResult, RunResult]], plan: Plan) -> dict[str, Any] | None:
    """Probability of improvement as published, averaged over family and strictness at the end; pairs of runs are resampled whole."""
    cells = common_cells([run for pair in pairs for run in pair])
    if not cells:
        return None
    sides = [np.array([[pair[side].cells[cell] for cell in cells] for pair in pairs]) for side in (0, 1)]
    c = len(cells)
    found = stats.estimate(lambda both: stats.probability_of_improvement(both[:, :c], both[:, c:]), np.hstack(sides), **plan.resampling)
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
                endpoint[f"{name}_holm"] = stats.holm(family)[i]


def write_json(found: Mapping[str, Any], path: Path) -> None:
    """Writes figures for machines, whole or not at all."""
    write_whole(path, json.dumps(jsonable(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
