"""Which runs of two arms are set against each other, and which arm a pattern stands for."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from statistics import fmean

from analysis.comparisons.notes import Note, NoteKind, no_run
from analysis.comparisons.planned import Contrast
from analysis.comparisons.sweep import RunResult, Sweep, groups_alike, why_not_averaged, why_not_paired
from analysis.endpoints import sign_of


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
            says = f"{name} lacks seed {', '.join(map(str, seeds))}; only common seeds are paired."
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
