"""Contrasts between two arms of a sweep: which runs are paired, their differences with exact tests, and the answer."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import stats
from analysis.endpoints import EMOTIONS, ERRORS, MARGINS, Planned, endpoint
from analysis.stats import Estimate
from analysis.sweeps import Sweep, common_cells, comparable_groups

ALPHA, POWER = 0.05, 0.8
NO_RUN = "{} has no run that can be used."


def comparable_seeds(a: str, b: str, sweep: Sweep) -> tuple[list[int], list[str]]:
    """Seeds whose runs may be set against each other, and why others may not."""
    arms = {name: sweep.of(name) for name in (a, b)}
    if notes := [NO_RUN.format(name) for name, runs in arms.items() if not runs]:
        return [], notes
    for name, other in ((a, b), (b, a)):
        if seeds := sorted(arms[other].keys() - arms[name].keys()):
            notes.append(f"{name} lacks seed {', '.join(map(str, seeds))}; only common seeds are paired.")
    apart: dict[str, list[int]] = {}
    for seed in sorted(arms[a].keys() & arms[b].keys()):
        apart.setdefault(arms[a][seed].why_not_paired(arms[b][seed]), []).append(seed)
    paired = apart.pop("", [])
    for reason, lost in apart.items():
        if len(lost) == 1:
            notes.append(f"{arms[a][lost[0]].name} and {arms[b][lost[0]].name} {reason}; this pair is left out.")
        else:
            notes.append(f"{a} and {b} {reason} in seeds {', '.join(map(str, lost))}; these pairs are left out.")
    for runs in arms.values():
        # Of pairs that may not be averaged with each other the largest group stays.
        kept = [run.seed for run in (comparable_groups(runs[seed] for seed in paired) or [[]])[0]]
        notes += [
            f"{runs[kept[0]].why_not_averaged(runs[seed])}; the pair of seed {seed} is left out." for seed in paired if seed not in kept
        ]
        paired = kept
    return paired, notes


def gains_over(a: str, b: str, sweep: Sweep, name: str) -> pd.Series:
    """By how much the first arm is better, by seed, on the seeds on which both may be compared and measured the endpoint."""
    seeds, _ = comparable_seeds(a, b, sweep)
    return (sweep.sign(name) * (sweep.values(a, seeds, name) - sweep.values(b, seeds, name))).dropna()


def best_of(pattern: str, a: str, sweep: Sweep, primary: str) -> tuple[str, list[str]]:
    """The arm among those that fit a pattern over which `a` gains least, and those it was chosen from.

    An arm's own name stays as it is, with no candidates. Gains are over the seeds on which `a` and a candidate may be compared, so that one
    from another world is not chosen. Two candidates are compared on the seeds that both have, so that an easy seed favours none; the best
    is beaten by the fewest. One that has no seed in common with any other is chosen only where none has.
    """
    if pattern in sweep.arms or not any(sign in pattern for sign in "*?["):
        return pattern, []
    gains = {arm: found for arm in fnmatch.filter(sweep.arms, pattern) if arm != a and (found := gains_over(a, arm, sweep, primary)).size}
    if not gains:
        return pattern, []

    def rank(arm: str) -> tuple[bool, int, float]:
        pairs = [pd.concat([gains[other], gains[arm]], axis=1, join="inner").mean().to_numpy() for other in gains if other != arm]
        shared = [pair for pair in pairs if not np.isnan(pair[0])]
        return bool(pairs) and not shared, sum(bool(other < own) for other, own in shared), gains[arm].mean()

    return min(gains, key=rank), sorted(gains)


def contrast_record(contrast: tuple[str, str], sweep: Sweep, primary: str, *, num_primary: int, **resampling: int) -> dict[str, Any]:
    """One contrast on the primary endpoint and on the others that are described.

    Args:
        num_primary: contrasts in the family.
        resampling: `seed` and `num_resamples` of the bootstrap.
    """
    a, pattern = contrast
    b, candidates = best_of(pattern, a, sweep, primary)
    fitting = [arm for arm in fnmatch.filter(sweep.arms, pattern) if arm not in (a, *candidates) and sweep.of(arm)]
    if sweep.of(a) and b in sweep.arms:
        seeds, notes = comparable_seeds(a, b, sweep)
    elif not sweep.of(a) or not fitting:
        seeds, notes = [], [NO_RUN.format(name) for name, runs in ((a, sweep.of(a)), (pattern, fitting)) if not runs]
    else:
        seeds, notes = [], list(dict.fromkeys(note for arm in fitting for note in comparable_seeds(a, arm, sweep)[1]))
    if candidates:
        notes.append(
            f"Of {pattern} only {b} can be set against {a}."
            if len(candidates) == 1
            else f"{b} was chosen on these very runs as the best of {', '.join(candidates)}, which favours it over {a}."
        )
        for arm in fitting:
            common, reasons = comparable_seeds(a, arm, sweep)
            reason = f"no pair of it and {a} measured {primary}." if common else reasons[-1]
            notes.append(f"{arm} was not among those to choose from: {reason}")
    pairs = [(sweep.of(a)[seed], sweep.of(b)[seed]) for seed in seeds]
    probed = [name for name in (*ERRORS, *MARGINS) if any(run.scalars.get(name) is not None for pair in pairs for run in pair)]
    endpoints = {
        name: difference(
            sweep.values(a, seeds, name).to_numpy(),
            sweep.values(b, seeds, name).to_numpy(),
            better=sweep.sign(name),
            alpha=ALPHA / (num_primary if name == primary else 1),
        )
        for name in dict.fromkeys([primary, *EMOTIONS, "heldout.success_rate", "heldout.failure_rate", *probed, *sweep.read])
    }
    main, cannot = endpoints[primary], None
    if not pairs:
        # The notes say why.
        cannot, notes = " ".join(notes) or f"{a} and {b} have no seed in common.", []
    elif main is None:
        cannot = f"{a} and {b} cannot be compared on {primary}: no pair of runs measured it."
    dropped = main["num_dropped"] if main else len(pairs)
    if main and dropped:
        notes.append(f"{dropped} of {len(pairs)} pairs of {a} and {b} did not measure {primary}.")
    if short := [name for name, found in endpoints.items() if found and found["num_dropped"] > dropped]:
        notes.append(f"Not every pair of {a} and {b} measured {', '.join(short)}: the others are described there.")
    # Settings that only one run knows did not exist yet, but in groups whose settings depend on a kind.
    kinds, over_cells = ("teacher.", "algorithm.", "simulator."), None
    differing = {name for one, other in pairs for name in (*one.differs_in(other), *one.differs_in(other, known=False, of=kinds))}
    if cells := common_cells([run for pair in pairs for run in pair]):
        # Probability of improvement as published, averaged over cells at the end; pairs of runs are resampled whole.
        both, num = np.array([[run.cells[cell] for run in pair for cell in cells] for pair in pairs]), len(cells)
        found = stats.bootstrap(lambda both: stats.probability_of_improvement(both[..., :num], both[..., num:]), both, **resampling)
        over_cells = {**Estimate(*found).to_dict(), "num_cells": num}
    return {
        "a": a,
        "b": b,
        "seeds": seeds,
        "notes": notes,
        "cannot": cannot,
        **({"b_chosen_from": candidates} if candidates else {}),
        **({"settings_that_differ": sorted(differing)} if pairs else {}),
        "endpoints": endpoints,
        "improvement_over_cells": over_cells,
    }


def difference(a_R: np.ndarray, b_R: np.ndarray, *, better: int, alpha: float) -> dict[str, Any] | None:
    """An endpoint of one arm less that of another on the same seeds; None where no pair measured it.

    Args:
        better: 1, or -1 where lower is better.
        alpha: at which the minimal detectable effect is stated.
    """
    measured = ~(np.isnan(a_R) | np.isnan(b_R))
    a_R, b_R = a_R[measured], b_R[measured]
    if not a_R.size:
        return None
    d_R = a_R - b_R
    sd = float(d_R.std(ddof=1)) if d_R.size > 1 else float("nan")
    return {
        "num_pairs": d_R.size,
        "num_dropped": int((~measured).sum()),
        "differences": d_R.tolist(),
        "difference": stats.mean_difference(d_R).to_dict(),
        "sign_flip_interval": stats.sign_flip_interval(d_R).to_dict() if d_R.size <= stats.MAX_EXACT else None,
        "p": stats.sign_flip_test(d_R),
        "p_is_exact": d_R.size <= stats.MAX_EXACT,
        "p_smallest": 2.0 ** (1 - d_R.size),
        "p_smallest_holm": None,
        "p_holm": None,
        "probability_of_improvement": stats.paired_probability(better * d_R).to_dict(),
        "probability_of_improvement_any_pair": float(stats.probability_of_improvement(better * a_R[:, None], better * b_R[:, None])),
        "minimal_detectable_effect": {"effect": sd * stats.detectable(d_R.size, alpha, POWER), "alpha": alpha, "power": POWER, "sd": sd},
    }


def incomplete(contrast: Mapping[str, Any], named: tuple[str, str], sweep: Sweep, *, chosen_by: str) -> str:
    """Why a contrast is not the one that was planned, so that it is not answered; empty where it is, or where nothing was planned.

    Contrasts of `--contrast` are not answered in a sweep with a plan: only some of the planned ones would weaken Holm's correction.

    Args:
        named: as the plan has it, with a pattern.
        chosen_by: as in `compare`.
    """

    def listed(seeds: Sequence[int]) -> str:
        return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"

    planned: Planned | None = sweep.plan
    if planned is None or not (planned.contrasts or chosen_by == "name"):
        return ""
    if chosen_by != "plan":
        return "not in the sweep's plan"
    a, pattern = named
    if lacking := [seed for seed in planned.seeds if seed not in contrast["seeds"]]:
        return f"not paired yet: {listed(lacking)}"
    if planned.seeds and (others := [seed for seed in contrast["seeds"] if seed not in planned.seeds]):
        return f"not in the plan: {listed(others)}"
    main = contrast["endpoints"].get(planned.primary)
    if main and main["num_dropped"]:
        return f"pairs that did not measure {planned.primary}: {main['num_dropped']}"
    if "b_chosen_from" not in contrast:
        return ""
    # The best of those that happen to be there need not be the best of those that were planned.
    arms, seeds = planned.arms or sweep.arms, planned.seeds or contrast["seeds"]
    if strays := [arm for arm in contrast["b_chosen_from"] if arm not in arms]:
        return f"not in the plan: {', '.join(strays)}"
    missing = {
        arm: [seed for seed in seeds if seed not in gains_over(a, arm, sweep, planned.primary).index]
        for arm in fnmatch.filter(arms, pattern)
        if arm != a
    }
    return "; ".join(f"{arm} has no pair in {listed(lost)}" for arm, lost in missing.items() if lost)


def answer_all(contrasts: Sequence[dict[str, Any]], primary: str, *, waits: Sequence[bool]) -> None:
    """Puts Holm's p into each contrast's primary endpoint, the smallest that so many pairs could have, and the answer.

    A contrast that could not be computed counts in the family with p = 1, and so for all others does one that is not complete. The answer
    is `yes` or `no` where p after Holm is at most alpha, else `undecided`: an arm a little behind is as undecided as one a little ahead.

    Args:
        waits: which of them are not complete.
    """
    found = [contrast["endpoints"][primary] for contrast in contrasts]
    for i, (contrast, main) in enumerate(zip(contrasts, found, strict=True)):
        contrast["answer"] = "undecided"
        if main is None:
            continue
        for name in ("p", "p_smallest"):
            ps = [1.0 if other is None or (waits[j] and j != i) else other[name] for j, other in enumerate(found)]
            main[f"{name}_holm"] = stats.holm(ps)[i]
        # Five pairs or fewer never get there: their smallest p is 0.0625.
        if not contrast["incomplete"] and main["p_holm"] <= ALPHA:
            if endpoint(primary).sign * main["difference"]["value"] > 0:
                contrast["answer"] = "yes"
            elif len(contrast.get("b_chosen_from", ())) < 2:
                # Of five equal arms the best lies ahead for sure in 8 % of ten-seed sweeps of noise at p <= 0.05.
                contrast["answer"] = "no"
