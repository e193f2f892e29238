"""RLVER's findings held against its table run anew: each reproduced, not reproduced or undecided, with the numbers.

    python -m analysis rlver runs/rlver_matrix/sweep

What a finding says is made a number that it claims to be above 0. Where runs can be paired there is one for each seed, a mean over the
cells of the table, because runs of a seed share the prior and the evaluation. The finding is reproduced where its 95 % interval lies
above 0, not reproduced where it lies at or below 0, and undecided otherwise, which three seeds will often be.

Source: RLVER, arXiv 2507.03112, section 4.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from analysis.clusters import NOTHING, Estimate
from analysis.comparison import write_comparison
from analysis.comparison_text import columns
from analysis.paired import mean_difference
from analysis.replies import replies_in
from analysis.runs import read_run
from analysis.stats import LEVEL
from analysis.sweep import RunResult, groups_alike, read_sweep, why_not, why_not_paired
from simulator.dialogue import Outcome

ALGORITHMS, MODES, USERS = ("grpo", "ppo"), ("plain", "think"), ("vanilla", "challenging")
RLVER = "rlver.json"


class Cell(NamedTuple):
    """A place in the table, and an arm of the sweep."""

    algorithm: str
    mode: str
    user: str


CELLS = tuple(map(Cell._make, itertools.product(ALGORITHMS, MODES, USERS)))


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one run contributes, from its held-out dialogues on the full grid."""

    score: float
    """Mean final emotion at the end, 0-100."""
    gain: float
    """That less the score before training."""
    gain_at_equal_length: float
    """The same at equal words per reply: the coefficient of `after training` beside that of log words per reply."""
    leaning: float
    """Share of replies in which understanding was heard less the share in which action was, at the end; [-1, 1]."""


Table = Mapping[Cell, Mapping[int, Figures]]
"""Runs by cell and seed."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A sweep as it was read."""

    table: Table
    notes: list[str]
    """Which runs are left out or missing, and why."""
    world_hashes: list[str]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One published claim beside what was found."""

    claim: str
    measure: str
    """The number that the claim says is above 0."""
    estimate: Estimate
    reason: str = ""
    """Why there is no number; empty where there is one."""

    @property
    def mark(self) -> str:
        """Reproduced, not reproduced or undecided."""
        if self.estimate.low > 0.0:
            return "reproduced"
        return "not reproduced" if self.estimate.high <= 0.0 else "undecided"


def findings(table: Table) -> list[Finding]:
    """Every claim; one that the table lacks the runs for is undecided, with the reason."""
    found = []
    for claim, measure, look in CLAIMS:
        estimate = look(table)
        reason = why_open(table, look) if math.isnan(estimate.value) else ""
        found.append(Finding(claim=claim, measure=measure, estimate=estimate, reason=reason))
    return found


def why_open(table: Table, look: Callable[[Table], Estimate]) -> str:
    """What a claim without a number lacks.

    Args:
        look: how the claim is looked at.
    """
    lacking = ["_".join(cell) for cell in CELLS if not table.get(cell)]
    if lacking:
        return f"there is no run that can be used of {', '.join(lacking)}"
    if not set.intersection(*(set(runs) for runs in table.values())):
        return "there is no seed that all arms have"
    if look is gain_beyond_length:
        return f"that there is a gain is not sure ({whole_gain(table).text(1)} points)"
    return "there are no two runs of an arm that differ"


def moderate_over_challenging(table: Table) -> Estimate:
    """Score of runs taught by VANILLA users less that of runs taught by CHALLENGING ones."""
    return over_seeds(table, lambda at: at("vanilla").score - at("challenging").score, itertools.product(ALGORITHMS, MODES))


def thinking_is_robust(table: Table) -> Estimate:
    """How much more a policy that does not think loses by a hard user than one that thinks."""

    def fall(table: Table, mode: str) -> dict[int, float]:
        return by_seed(table, lambda at: at("vanilla").score - at("challenging").score, [(algorithm, mode) for algorithm in ALGORITHMS])

    plain, think = fall(table, "plain"), fall(table, "think")
    return of_seeds([plain[seed] - think[seed] for seed in sorted(plain.keys() & think.keys())])


def grpo_is_steadier(table: Table) -> Estimate:
    """Log ratio of the standard deviations between seeds, PPO's to GRPO's, pooled within cells; the interval is of the F distribution."""
    pooled = {}
    for algorithm in ALGORITHMS:
        groups = [[figures.score for figures in runs.values()] for cell, runs in table.items() if cell.algorithm == algorithm]
        freedom = sum(len(group) - 1 for group in groups if len(group) > 1)
        squares = sum(float(np.var(group, ddof=1)) * (len(group) - 1) for group in groups if len(group) > 1)
        pooled[algorithm] = (squares / freedom if freedom else math.nan, freedom)
    (grpo, grpo_freedom), (ppo, ppo_freedom) = pooled["grpo"], pooled["ppo"]
    if not (grpo > 0.0 and ppo > 0.0):
        return Estimate(value=math.nan, low=math.nan, high=math.nan)
    low, high = (stats.f.ppf(share, ppo_freedom, grpo_freedom) for share in (0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0))
    ratio = ppo / grpo
    return Estimate(value=0.5 * math.log(ratio), low=0.5 * math.log(ratio / high), high=0.5 * math.log(ratio / low))


def ppo_reaches_higher(table: Table) -> Estimate:
    """Score of PPO's best run less that of GRPO's, over mode and user; of seeds that both have: more runs have a better best."""
    differences = []
    for place in itertools.product(MODES, USERS):
        ppo, grpo = (table.get(Cell(algorithm, *place), {}) for algorithm in ("ppo", "grpo"))
        if seeds := ppo.keys() & grpo.keys():
            differences.append(max(ppo[seed].score for seed in seeds) - max(grpo[seed].score for seed in seeds))
    return of_seeds(differences)


def thinking_understands(table: Table) -> Estimate:
    """How much more a policy that thinks leans towards understanding rather than action."""
    return over_seeds(table, lambda at: at("think").leaning - at("plain").leaning, itertools.product(ALGORITHMS, USERS), varying="mode")


def gain_beyond_length(table: Table) -> Estimate:
    """Gain at equal words per reply less half of the whole gain: above 0, length explains less than half of it.

    NaN where it is not sure that there is a gain at all: half of a loss is less than nothing.
    """
    whole = whole_gain(table)
    if whole.value <= 0.0 or whole.low <= 0.0:
        return NOTHING
    means = by_seed(
        table,
        lambda at: mean_of(at(user).gain_at_equal_length - 0.5 * at(user).gain for user in USERS),
        itertools.product(ALGORITHMS, MODES),
    )
    return of_seeds(list(means.values()))


def whole_gain(table: Table) -> Estimate:
    """By how much training raised the score, over all cells."""
    return over_seeds(table, lambda at: mean_of(at(user).gain for user in USERS), itertools.product(ALGORITHMS, MODES))


CLAIMS: tuple[tuple[str, str, Callable[[Table], Estimate]], ...] = (
    ("moderate users teach more than challenging ones", "score, VANILLA - CHALLENGING", moderate_over_challenging),
    ("thinking is more robust to a hard user", "fall to CHALLENGING, plain - think", thinking_is_robust),
    ("GRPO is steadier", "log sd between seeds, PPO - GRPO", grpo_is_steadier),
    ("PPO's ceiling is higher", "best run, PPO - GRPO", ppo_reaches_higher),
    ("thinking gives understanding, no thinking action", "understanding - action, think - plain", thinking_understands),
    ("length does not explain the gain", "gain at equal length - half the gain", gain_beyond_length),
)


def over_seeds(
    table: Table, difference: Callable[[Callable[[str], Figures]], float], places: Iterable[tuple[str, str]], *, varying: str = "user"
) -> Estimate:
    """The mean over seeds of `by_seed`."""
    return of_seeds(list(by_seed(table, difference, places, varying=varying).values()))


def by_seed(
    table: Table, difference: Callable[[Callable[[str], Figures]], float], places: Iterable[tuple[str, str]], *, varying: str = "user"
) -> dict[int, float]:
    """By seed, the mean of a difference between cells over the places of the table, for seeds that all of these cells have.

    Args:
        difference: told how to look up the figures of a value of the varying column.
        places: values of the other two columns, in the order of `Cell`.
    """
    wanted = list(places)
    index = Cell._fields.index(varying)

    def cell(place: tuple[str, str], value: str) -> Cell:
        return Cell._make([*place[:index], value, *place[index:]])

    def at(place: tuple[str, str], seed: int) -> Callable[[str], Figures]:
        return lambda value: table[cell(place, value)][seed]

    values = MODES if varying == "mode" else USERS
    runs = [table.get(cell(place, value), {}) for place in wanted for value in values]
    seeds = sorted(set.intersection(*(set(each) for each in runs)))
    return {seed: mean_of(difference(at(place, seed)) for place in wanted) for seed in seeds}


def of_seeds(values: Sequence[float]) -> Estimate:
    """Their mean with Student's interval; NaN without any."""
    return mean_difference(np.array(values)) if values else Estimate(value=math.nan, low=math.nan, high=math.nan)


def mean_of(values: Iterable[float]) -> float:
    """The arithmetic mean."""
    return float(np.mean(list(values)))


def read_table(folder: Path) -> Reading:
    """The finished runs of the sweep by cell and seed, as far as they may be set against each other.

    Raises:
        ValueError: there is none whose arm is a cell of the table.
    """
    sweep = read_sweep(folder)
    cells = {"_".join(cell): cell for cell in CELLS}
    notes = [note for note in sweep.notes if note.partition("/")[0] in cells]
    runs = largest_alike([run for run in sweep.runs if run.arm in cells], notes)
    table: dict[Cell, dict[int, Figures]] = {}
    for run in runs:
        try:
            figures = figures_of(read_run(folder / run.arm / f"seed_{run.seed}").evaluation())
        except (ValueError, KeyError, TypeError) as error:
            notes.append(
                f"{run.name} is left out: {error if isinstance(error, ValueError) else f'evaluation.jsonl has a line with a bad {error}'}"
            )
            continue
        table.setdefault(cells[run.arm], {})[run.seed] = figures
    if not table:
        raise ValueError(
            f"sweep must hold finished arms such as grpo_think_vanilla, got none in {str(folder)!r}; {' '.join(notes[:3])}".rstrip("; ")
        )
    everyone = {seed for found in table.values() for seed in found}
    for cell, found in table.items():
        if lacking := sorted(everyone - found.keys()):
            notes.append(f"{'_'.join(cell)} lacks seed {', '.join(map(str, lacking))}; only seeds that all arms have are paired.")
    worlds = sorted({run.world_hash for run in runs})
    return Reading(table=table, notes=notes, world_hashes=worlds)


def largest_alike(runs: Sequence[RunResult], notes: list[str]) -> list[RunResult]:
    """The largest group of runs of one world, budget and evaluation, and of these in each mode the largest with the same first weights.

    Args:
        notes: to which is added why others are left out.
    """
    kept, *others = groups_alike(runs, apart=why_not) or [[]]
    notes += [f"{why_not(kept[0], group[0])}; {listed(group)} left out." for group in others]
    found = []
    for mode in MODES:
        of_mode = groups_alike([run for run in kept if f"_{mode}_" in run.arm], apart=why_not_paired) or [[]]
        notes += [f"{why_not_paired(of_mode[0][0], group[0])}; {listed(group)} left out." for group in of_mode[1:]]
        found += of_mode[0]
    return found


def listed(runs: Sequence[RunResult]) -> str:
    """`a is`, `a, b are`."""
    return f"{', '.join(run.name for run in runs)} {'is' if len(runs) == 1 else 'are'}"


def figures_of(lines: Iterable[Mapping[str, Any]]) -> Figures:
    """A run's figures from its evaluation records.

    Raises:
        ValueError: the full grid was not played both before and after training.
    """
    full: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["grid"] == "full" and line["outcome"] != Outcome.ERROR:
            full.setdefault(line["look"], []).append(line)
    if len(full) < 2:
        raise ValueError("evaluation.jsonl must hold the full grid before and after training, got it once or not at all")
    before, after = full[min(full)], full[max(full)]
    emotions = [np.array([line["emotion"] for line in side], dtype=float) for side in (before, after)]
    trained_N = np.repeat([0.0, 1.0], [len(before), len(after)])
    length_N = np.log([max(words_per_reply(line), 1.0) for line in (*before, *after)])
    at_equal_length = np.linalg.lstsq(
        np.stack([np.ones_like(trained_N), trained_N, length_N], axis=1), np.concatenate(emotions), rcond=None
    )
    return Figures(
        score=float(emotions[1].mean()),
        gain=float(emotions[1].mean() - emotions[0].mean()),
        gain_at_equal_length=float(at_equal_length[0][1]),
        leaning=leaning(after),
    )


def words_per_reply(line: Mapping[str, Any]) -> float:
    """Words that the agent says in a reply, mean over a dialogue; 0 without replies."""
    replies = replies_in(line)
    return replies.words / replies.num if replies.num else 0.0


def leaning(lines: Iterable[Mapping[str, Any]]) -> float:
    """Share of answered replies in which understanding was heard less the share in which action was."""
    found = [replies_in(line) for line in lines]
    answered = sum(replies.answered for replies in found)
    return sum(replies.understanding - replies.acting for replies in found) / answered if answered else math.nan


def hold_against(folder: Path) -> str:
    """Runs the command: writes `rlver.json` into the sweep's folder and returns what is printed.

    Raises:
        ValueError: the folder holds no such sweep.
    """
    reading = read_table(folder)
    found, num_runs = findings(reading.table), sum(map(len, reading.table.values()))
    path = folder / RLVER
    write_comparison(as_record(found, reading, num_runs=num_runs), path)
    return f"{as_text(found, reading.notes, num_runs=num_runs)}\n\n{path}"


def as_record(found: Sequence[Finding], reading: Reading, *, num_runs: int) -> dict[str, Any]:
    """The contents of `rlver.json`."""
    return {
        "num_runs": num_runs,
        "world_hashes": reading.world_hashes,
        "notes": reading.notes,
        "findings": [
            {"claim": one.claim, "measure": one.measure, **one.estimate.to_dict(), "mark": one.mark, "reason": one.reason} for one in found
        ],
    }


def as_text(found: Sequence[Finding], notes: Sequence[str], *, num_runs: int) -> str:
    """The page that the command prints."""
    rows = [["finding", "measured", "value", "95 % interval", ""]]
    for finding in found:
        d = finding.estimate
        between = "–" if math.isnan(d.low) else f"[{d.low:.2f}, {d.high:.2f}]"
        rows.append([finding.claim, finding.measure, "–" if math.isnan(d.value) else f"{d.value:+.2f}", between, finding.mark])
    parts = [columns(rows), f"{num_runs} runs; a finding is reproduced where the interval lies above 0."]
    remarks = [*(f"{one.claim}: {one.reason}." for one in found if one.reason), *notes]
    if remarks:
        parts.append("To know:\n" + "\n".join(f"- {remark}" for remark in dict.fromkeys(remarks)))
    return "\n\n".join(parts)
