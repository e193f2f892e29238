"""Contrasts between two arms of a sweep: which runs are paired, their differences with exact tests, and the answer."""

from __future__ import annotations

import fnmatch
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import stats
from analysis.arms import no_run
from analysis.endpoints import AUC, RELIABILITY, SECONDARY, sign_of
from analysis.plan import THRESHOLD, Contrast, require_endpoint, require_threshold
from analysis.stats import Resampling
from analysis.sweeps import (
    WITH_KINDS,
    Note,
    NoteKind,
    RunResult,
    Sweep,
    common_cells,
    comparable_groups,
    differing,
    why_not_averaged,
    why_not_paired,
)

ALPHA, POWER = 0.05, 0.8
DECIDES_FROM = 5
"""Pairs below which a comparison describes and does not decide."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a comparison, fixed before its results are looked at."""

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
    def resampling(self) -> Resampling:
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


def comparable_seeds(a: str, b: str, sweep: Sweep) -> tuple[list[int], list[str]]:
    """Seeds whose runs may be set against each other, and why others may not."""
    arms = {name: sweep.of(name) for name in (a, b)}
    notes: list[str] = [no_run(name) for name, runs in arms.items() if not runs]
    if notes:
        return [], notes
    for name, other in ((a, b), (b, a)):
        if seeds := tuple(sorted(arms[other].keys() - arms[name].keys())):
            lacks = f"{name} lacks seed {', '.join(map(str, seeds))}; only common seeds are paired."
            notes.append(Note(lacks, arm=name, seeds=seeds, kind=NoteKind.LACKS_SEEDS))
    apart: dict[str, list[int]] = {}
    for seed in sorted(arms[a].keys() & arms[b].keys()):
        apart.setdefault(why_not_paired(arms[a][seed], arms[b][seed]), []).append(seed)
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
            f"{why_not_averaged(runs[kept[0]], runs[seed])}; the pair of seed {seed} is left out." for seed in paired if seed not in kept
        ]
        paired = kept
    return paired, notes


def values_of(arm: str, seeds: Sequence[int], endpoint: str, sweep: Sweep) -> pd.Series:
    """An endpoint of an arm by seed; NaN where a run did not measure it."""
    return sweep.frame[endpoint].loc[arm].loc[list(seeds)] if seeds else pd.Series(dtype=float)


def gains_over(a: str, b: str, sweep: Sweep, endpoint: str) -> pd.Series:
    """By how much the first arm is better, by seed, on the seeds on which both may be compared and measured the endpoint."""
    seeds, _ = comparable_seeds(a, b, sweep)
    better = sign_of(endpoint, lower=sweep.plan.lower)
    return (better * (values_of(a, seeds, endpoint, sweep) - values_of(b, seeds, endpoint, sweep))).dropna()


def best_of(pattern: str, a: str, sweep: Sweep, endpoint: str) -> tuple[str, list[str]]:
    """The arm among those that fit a pattern over which `a` gains least, and those it was chosen from.

    An arm's own name stays as it is, with no candidates. Gains are over the seeds on which `a` and a candidate may be compared, so that one
    from another world is not chosen. Two candidates are compared on the seeds that both have, so that an easy seed favours none; the best
    is beaten by the fewest. One that has no seed in common with any other is chosen only where none has.
    """
    if pattern in sweep.arms or not any(sign in pattern for sign in "*?["):
        return pattern, []
    gains = {arm: found for arm in fnmatch.filter(sweep.arms, pattern) if arm != a and (found := gains_over(a, arm, sweep, endpoint)).size}
    if not gains:
        return pattern, []

    def rank(arm: str) -> tuple[bool, int, float]:
        pairs = [pd.concat([gains[other], gains[arm]], axis=1, join="inner").mean().to_numpy() for other in gains if other != arm]
        shared = [pair for pair in pairs if not np.isnan(pair[0])]
        return bool(pairs) and not shared, sum(bool(other < own) for other, own in shared), gains[arm].mean()

    return min(gains, key=rank), sorted(gains)


def contrast_record(contrast: Contrast, sweep: Sweep, plan: Plan, *, num_primary: int) -> dict[str, Any]:
    """One contrast on the primary endpoint and on the others that are described.

    Args:
        num_primary: contrasts in the family.
    """
    a, pattern = contrast
    b, candidates = best_of(pattern, a, sweep, plan.primary)
    fitting = [arm for arm in fnmatch.filter(sweep.arms, pattern) if arm not in (a, *candidates) and sweep.of(arm)]
    if sweep.of(a) and b in sweep.arms:
        seeds, notes = comparable_seeds(a, b, sweep)
    elif not sweep.of(a) or not fitting:
        seeds, notes = [], [no_run(name) for name, runs in ((a, sweep.of(a)), (pattern, fitting)) if not runs]
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
            reason = f"no pair of it and {a} measured {plan.primary}." if common else reasons[-1]
            notes.append(f"{arm} was not among those to choose from: {reason}")
    pairs = [(sweep.of(a)[seed], sweep.of(b)[seed]) for seed in seeds]
    probed = [name for name in RELIABILITY if any(run.scalars.get(name) is not None for pair in pairs for run in pair)]
    endpoints = {
        name: difference(
            values_of(a, seeds, name, sweep).to_numpy(),
            values_of(b, seeds, name, sweep).to_numpy(),
            better=sign_of(name, lower=sweep.plan.lower),
            alpha=ALPHA / (num_primary if name == plan.primary else 1),
        )
        for name in dict.fromkeys([plan.primary, *SECONDARY, *probed, *sweep.plan.read])
    }
    main, cannot = endpoints[plan.primary], None
    if not pairs:
        # The notes say why.
        cannot, notes = " ".join(notes) or f"{a} and {b} have no seed in common.", []
    elif main is None:
        cannot = f"{a} and {b} cannot be compared on {plan.primary}: no pair of runs measured it."
    dropped = main["num_dropped"] if main else len(pairs)
    if main and dropped:
        notes.append(f"{dropped} of {len(pairs)} pairs of {a} and {b} did not measure {plan.primary}.")
    if short := [name for name, found in endpoints.items() if found and found["num_dropped"] > dropped]:
        notes.append(f"Not every pair of {a} and {b} measured {', '.join(short)}: the others are described there.")
    return {
        "a": a,
        "b": b,
        "seeds": seeds,
        "notes": notes,
        "cannot": cannot,
        **({"b_chosen_from": candidates} if candidates else {}),
        **({"settings_that_differ": settings_that_differ(pairs)} if pairs else {}),
        "endpoints": endpoints,
        "improvement_over_cells": improvement_over_cells(pairs, plan),
    }


def settings_that_differ(pairs: Sequence[tuple[RunResult, RunResult]]) -> list[str]:
    """Dotted names, sorted, without those that only one run knows outside of groups that have kinds: they did not exist yet."""
    names = {(name, name in a.settings and name in b.settings) for a, b in pairs for name in differing(a.settings, b.settings)}
    return sorted({name for name, is_known in names if is_known or name.startswith(WITH_KINDS)})


def difference(a_R: np.ndarray, b_R: np.ndarray, *, better: float, alpha: float) -> dict[str, Any] | None:
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
    test = stats.sign_flip_test(d_R)
    sd = float(d_R.std(ddof=1)) if d_R.size > 1 else math.nan
    effect = stats.minimal_detectable_effect(num_pairs=d_R.size, sd=sd, alpha=alpha, power=POWER) if d_R.size > 1 else math.nan
    return {
        "num_pairs": d_R.size,
        "num_dropped": int((~measured).sum()),
        "differences": d_R.tolist(),
        "difference": stats.mean_difference(d_R).to_dict(),
        "sign_flip_interval": stats.sign_flip_interval(d_R).to_dict() if d_R.size <= stats.MAX_EXACT else None,
        "p": test.p,
        "p_is_exact": test.exact,
        "p_smallest": stats.smallest_p(d_R.size),
        "p_smallest_holm": None,
        "p_holm": None,
        "probability_of_improvement": stats.paired_probability(better * d_R).to_dict(),
        "probability_of_improvement_any_pair": float(stats.probability_of_improvement(better * a_R[:, None], better * b_R[:, None])),
        "minimal_detectable_effect": {"effect": effect, "alpha": alpha, "power": POWER, "sd": sd},
    }


def improvement_over_cells(pairs: Sequence[tuple[RunResult, RunResult]], plan: Plan) -> dict[str, Any] | None:
    """Probability of improvement as published, averaged over family and strictness at the end; pairs of runs are resampled whole."""
    cells = common_cells([run for pair in pairs for run in pair])
    if not cells:
        return None
    both = np.array([[run.cells[cell] for run in pair for cell in cells] for pair in pairs])
    c = len(cells)
    found = stats.estimate(lambda both: stats.probability_of_improvement(both[..., :c], both[..., c:]), both, **plan.resampling)
    return {**found.to_dict(), "num_cells": c}


def incomplete(contrast: Mapping[str, Any], named: Contrast, sweep: Sweep, *, chosen_by: str) -> str:
    """Why a contrast is not the one that was planned, so that it is not answered; empty where it is, or where nothing was planned.

    Contrasts named by hand are not answered in a sweep with a plan: naming only some of the planned ones would weaken Holm's correction.

    Args:
        named: as the plan has it, with a pattern.
        chosen_by: as in `contrasts_of`.
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
        missing = {
            arm: [seed for seed in seeds if seed not in gains_over(a, arm, sweep, planned.primary).index]
            for arm in fnmatch.filter(arms, pattern)
            if arm != a
        }
        return "; ".join(f"{arm} has no pair in {in_words(lost)}" for arm, lost in missing.items() if lost)
    return ""


def in_words(seeds: Sequence[int]) -> str:
    """`seed 3`, `seeds 3, 4`."""
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def adjust(contrasts: Sequence[dict[str, Any]], primary: str, *, waits: Sequence[bool]) -> None:
    """Puts Holm's p into each contrast's primary endpoint, and the smallest that so many pairs could have, were all pairs to agree.

    A contrast that could not be computed counts in the family with p = 1, and so for all others does one that is not complete.

    Args:
        waits: which of them are not complete.
    """
    found = [contrast["endpoints"][primary] for contrast in contrasts]
    for name in ("p", "p_smallest"):
        values = [endpoint[name] if endpoint else 1.0 for endpoint in found]
        for i, endpoint in enumerate(found):
            if endpoint:
                endpoint[f"{name}_holm"] = stats.holm([1.0 if waits[j] and j != i else p for j, p in enumerate(values)])[i]


def answer(contrast: Mapping[str, Any], primary: str) -> str:
    """`yes` or `no` where p after Holm is at most alpha, else `undecided`; an arm a little behind is as undecided as one a little ahead."""
    endpoint = contrast["endpoints"][primary]
    if endpoint is None or contrast["incomplete"] or endpoint["num_pairs"] < DECIDES_FROM or endpoint["p_holm"] > ALPHA:
        return "undecided"
    if sign_of(primary) * endpoint["difference"]["value"] > 0:
        return "yes"
    # Of five equal arms the best lies ahead for sure in 8 % of ten-seed sweeps of noise at p <= 0.05.
    return "undecided" if is_best_of_several(contrast) else "no"


def is_best_of_several(contrast: Mapping[str, Any]) -> bool:
    """Whether the second arm was chosen on these very runs as the best of several."""
    return len(contrast.get("b_chosen_from", ())) > 1
