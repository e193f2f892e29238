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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from analysis.clusters import NOTHING, Estimate
from analysis.comparisons.comparison import write_json
from analysis.comparisons.rlver_table import ALGORITHMS, CELLS, MODES, USERS, Cell, Figures, Reading, Table, read_table
from analysis.comparisons.text import columns
from analysis.paired import mean_difference
from analysis.stats import LEVEL
from analysis.wording import grid_table

RLVER = "rlver.json"


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
    if look is thinking_is_robust:
        return f"that a hard user costs anything is not sure ({moderate_over_challenging(table).text(1)} points)"
    return "there are no two runs of an arm that differ"


def moderate_over_challenging(table: Table) -> Estimate:
    """Score of runs taught by VANILLA users less that of runs taught by CHALLENGING ones."""
    return over_seeds(table, lambda at: at("vanilla").score - at("challenging").score, itertools.product(ALGORITHMS, MODES))


def thinking_is_robust(table: Table) -> Estimate:
    """How much more a policy that does not think loses by a hard user than one that thinks.

    NaN where it is not sure that a hard user costs anything: whoever gains less by one would count as less robust.
    """
    cost = moderate_over_challenging(table)
    if not cost.low > 0.0:
        return NOTHING

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
    """Score of PPO's best run less that of GRPO's, over mode and user; of seeds that both have: more runs have a better best.

    Without an interval while cells have one seed: its best is its only run, and four cells of one seed say nothing of other seeds.
    """
    differences, fewest = [], math.inf
    for place in itertools.product(MODES, USERS):
        ppo, grpo = (table.get(Cell(algorithm, *place), {}) for algorithm in ("ppo", "grpo"))
        if seeds := ppo.keys() & grpo.keys():
            differences.append(max(ppo[seed].score for seed in seeds) - max(grpo[seed].score for seed in seeds))
            fewest = min(fewest, len(seeds))
    found = of_seeds(differences)
    return found if fewest > 1 else Estimate(value=found.value, low=math.nan, high=math.nan)


def thinking_understands(table: Table) -> Estimate:
    """How much more training made a policy that thinks lean towards understanding rather than action; the two priors may differ in it."""

    def gained(figures: Figures) -> float:
        return figures.leaning - figures.leaning_before

    return over_seeds(table, lambda at: gained(at("think")) - gained(at("plain")), itertools.product(ALGORITHMS, USERS), varying="mode")


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
    ("thinking gives understanding, no thinking action", "gain of understanding - action, think - plain", thinking_understands),
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


def hold_against(folder: Path) -> str:
    """Runs the command: writes `rlver.json` into the sweep's folder and returns what is printed.

    Raises:
        ValueError: the folder holds no such sweep.
    """
    reading = read_table(folder)
    found, num_runs = findings(reading.table), sum(map(len, reading.table.values()))
    path = folder / RLVER
    write_json(as_record(found, reading, num_runs=num_runs), path)
    return f"{as_text(found, reading.notes, table=reading.table, num_runs=num_runs)}\n\n{path}"


def as_record(found: Sequence[Finding], reading: Reading, *, num_runs: int) -> dict[str, Any]:
    """The contents of `rlver.json`."""
    return {
        "num_runs": num_runs,
        "world_hashes": reading.world_hashes,
        "notes": reading.notes,
        "cells": {
            "_".join(cell): {str(seed): asdict(figures) for seed, figures in sorted(reading.table[cell].items())}
            for cell in CELLS
            if cell in reading.table
        },
        "findings": [
            {"claim": one.claim, "measure": one.measure, **one.estimate.to_dict(), "mark": one.mark, "reason": one.reason} for one in found
        ],
    }


def finding_rows(found: Sequence[Finding]) -> list[list[str]]:
    """Each claim with its number and its mark, below a header."""
    rows = [["finding", "measured", "value", "95 % interval", ""]]
    for finding in found:
        d = finding.estimate
        between = "–" if math.isnan(d.low) else f"[{d.low:.2f}, {d.high:.2f}]"
        rows.append([finding.claim, finding.measure, "–" if math.isnan(d.value) else f"{d.value:+.2f}", between, finding.mark])
    return rows


def section(folder: Path, arms: Iterable[str]) -> str:
    """The findings on the page of a sweep whose arms are all cells of the table; nothing for other sweeps."""
    if not set(arms) <= {"_".join(cell) for cell in CELLS}:
        return ""
    reading = read_table(folder)
    found = findings(reading.table)
    header, *rows = finding_rows(found)
    why = [f"{one.claim}: {one.reason}." for one in found if one.reason]
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in [*why, *filter(None, [by_judge(reading.table)])])
    num_runs = sum(map(len, reading.table.values()))
    lead = f"Reproduced is what has its 95 % interval above 0, not reproduced what has it at or below 0 ({num_runs} runs)."
    return f"<h2>RLVER's findings</h2><p>{lead}</p>{grid_table(header, rows)}{notes}"


def cell_rows(table: Table) -> list[list[str]]:
    """What the cells' runs came to, means over seeds, with what each seed scored."""
    rows = [["cell", "score at the end", "of each seed", "gain", "understanding - action", "steps"]]
    for cell in (cell for cell in CELLS if cell in table):
        runs = [run for _, run in sorted(table[cell].items())]

        def mean(name: str, runs: Sequence[Figures] = tuple(runs)) -> float:
            return mean_of(getattr(run, name) for run in runs)

        scores = " ".join(f"{run.score:.1f}" for run in runs)
        leans = f"{mean('leaning_before'):+.2f} to {mean('leaning'):+.2f}"
        rows.append([" ".join(cell), f"{mean('score'):.1f}", scores, f"{mean('gain'):+.1f}", leans, f"{mean('num_steps'):.0f}"])
    return rows


def by_judge(table: Table) -> str:
    """VANILLA less CHALLENGING by the strictness of the users who judged, mean over seeds and ways to train; empty where none is known.

    Which users teach more hangs on who judges: a policy is good before those it practised with.
    """
    pairs = [
        (table.get(Cell(*way, "vanilla"), {}), table.get(Cell(*way, "challenging"), {})) for way in itertools.product(ALGORITHMS, MODES)
    ]
    runs = [(mild[seed].by_strictness, hard[seed].by_strictness) for mild, hard in pairs for seed in sorted(mild.keys() & hard.keys())]
    levels = sorted(set.intersection(*(set(found) for pair in runs for found in pair))) if runs else []
    if len(levels) < 2:
        return ""
    told = ", ".join(f"{mean_of(mild[at] - hard[at] for mild, hard in runs):+.1f} by {at:g}" for at in levels)
    return f"score, VANILLA - CHALLENGING, by the strictness of the users who judge (mean of {len(runs)} pairs): {told}."


def as_text(found: Sequence[Finding], notes: Sequence[str], *, table: Table, num_runs: int) -> str:
    """The page that the command prints."""
    parts = [
        columns(cell_rows(table)),
        columns(finding_rows(found)),
        f"{num_runs} runs; a finding is reproduced where the interval lies above 0.",
    ]
    judged = by_judge(table)
    remarks = [*(f"{one.claim}: {one.reason}." for one in found if one.reason), *([judged] if judged else []), *notes]
    if remarks:
        parts.append("To know:\n" + "\n".join(f"- {remark}" for remark in dict.fromkeys(remarks)))
    return "\n\n".join(parts)
