"""RLVER's findings held against its table, run again here: each reproduced, not reproduced or undecided, with the numbers.

    python -m analysis rlver runs/rlver_matrix/sweep
    python -m analysis rlver studies/rlver_replication/results.csv

What a finding says is made a number that it claims to be above 0. Where runs can be paired there is one for each seed, a mean over the
cells of the table, because runs of a seed share the prior and the evaluation. The finding is reproduced where its 95 % interval lies
above 0, not reproduced where it lies at or below 0, and undecided otherwise, which three seeds will often be. Some findings presuppose
something, such as that a hard user costs anything at all: where that is not sure they are undecided whatever their number.

Source: the findings that the abstract of RLVER names (arXiv 2507.03112); it gives no figures for them.
"""

from __future__ import annotations

import itertools
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from analysis.compare import columns, write_json
from analysis.stats import LEVEL, NOTHING, Estimate, mean_difference
from simulator.files import check_out
from studies.rlver_replication.rlver_table import ALGORITHMS, CELLS, MODES, USERS, Cell, Figures, Reading, Table, read_table

RLVER = "rlver.json"


Look = Callable[[Table], Estimate]


class Premise(NamedTuple):
    """What a claim takes for granted, as a number that has to be above 0."""

    words: str
    look: Look
    digits: int = 1
    is_claimed: bool = False
    """Whether the claim says so itself, and is refuted where it is not so; else it cannot be asked there."""


class Claim(NamedTuple):
    """A published finding as a number that it says is above 0."""

    words: str
    measure: str
    look: Look
    premise: Premise | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One published claim beside what was found."""

    claim: str
    measure: str
    """The number that the claim says is above 0."""
    estimate: Estimate
    mark: str
    """Reproduced, not reproduced or undecided."""
    reason: str = ""
    """Why its number does not decide it, or why there is none; empty where it does."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """RLVER's findings, marked by the runs of a sweep."""

    findings: list[Finding]
    reading: Reading

    @property
    def num_runs(self) -> int:
        """How many runs the table holds."""
        return sum(map(len, self.reading.table.values()))

    def keep(self, path: Path) -> None:
        """Writes them as JSON."""
        write_json(as_record(self), path)


def read_marks(folder: Path) -> Marks:
    """What the finished runs of a sweep say of each finding.

    Raises:
        ValueError: the folder holds no run of RLVER's table.
    """
    reading = read_table(folder)
    return Marks(findings=findings(reading.table), reading=reading)


def findings(table: Table) -> list[Finding]:
    """Every claim; one that the table lacks the runs for is undecided, with the reason."""
    return [found_of(claim, table) for claim in CLAIMS]


def found_of(claim: Claim, table: Table) -> Finding:
    """What the table says of a claim."""
    estimate = claim.look(table)
    mark, reason = marked(estimate), why_open(table) if math.isnan(estimate.value) else ""
    if claim.premise and not reason:
        given = claim.premise.look(table)
        if marked(given) != "reproduced":
            refuted = claim.premise.is_claimed and marked(given) == "not reproduced"
            mark = "not reproduced" if refuted else "undecided"
            reason = f"that {claim.premise.words} is {'false' if refuted else 'not sure'} ({given.text(claim.premise.digits)})"
    return Finding(claim=claim.words, measure=claim.measure, estimate=estimate, mark=mark, reason=reason)


def marked(estimate: Estimate) -> str:
    """The mark that an interval gives; undecided without one."""
    if estimate.low > 0.0:
        return "reproduced"
    return "not reproduced" if estimate.high <= 0.0 else "undecided"


def why_open(table: Table) -> str:
    """What a claim without a number lacks."""
    lacking = ["_".join(cell) for cell in CELLS if not table.get(cell)]
    if lacking:
        return f"there is no run that can be used of {', '.join(lacking)}"
    if not set.intersection(*(set(runs) for runs in table.values())):
        return "there is no seed that all arms have"
    return "there are no two runs of an arm that differ"


def moderate_over_challenging(table: Table) -> Estimate:
    """Score of runs taught by VANILLA users less that of runs taught by CHALLENGING ones."""
    return over_seeds(table, lambda at: at("vanilla").score - at("challenging").score, itertools.product(ALGORITHMS, MODES))


def thinking_is_robust(table: Table) -> Estimate:
    """How much more a policy that does not think loses by a hard user than one that thinks."""

    def fall(mode: str) -> dict[int, float]:
        return by_seed(table, lambda at: at("vanilla").score - at("challenging").score, [(algorithm, mode) for algorithm in ALGORITHMS])

    plain, think = fall("plain"), fall("think")
    return of_seeds([plain[seed] - think[seed] for seed in sorted(plain.keys() & think.keys())])


def grpo_is_steadier(table: Table) -> Estimate:
    """Log ratio of the standard deviations between seeds, PPO's to GRPO's; the interval is of the F distribution.

    Pooled within cells and, there, within seeds that began with the same weights: two builds of a prior are no spread of an algorithm.
    """
    pooled = {}
    for algorithm in ALGORITHMS:
        groups = [
            [run.score for run in runs.values() if run.start == start]
            for cell, runs in table.items()
            if cell.algorithm == algorithm
            for start in {run.start for run in runs.values()}
        ]
        freedom = sum(len(group) - 1 for group in groups if len(group) > 1)
        squares = sum(float(np.var(group, ddof=1)) * (len(group) - 1) for group in groups if len(group) > 1)
        pooled[algorithm] = (squares / freedom if freedom else math.nan, freedom)
    (grpo, grpo_freedom), (ppo, ppo_freedom) = pooled["grpo"], pooled["ppo"]
    if not (grpo > 0.0 and ppo > 0.0):
        return NOTHING
    low, high = (stats.f.ppf(share, ppo_freedom, grpo_freedom) for share in (0.5 - LEVEL / 2.0, 0.5 + LEVEL / 2.0))
    ratio = ppo / grpo
    return Estimate(value=0.5 * math.log(ratio), low=0.5 * math.log(ratio / high), high=0.5 * math.log(ratio / low))


def ppo_reaches_higher(table: Table) -> Estimate:
    """Score of PPO's best run less that of GRPO's, over mode and user; of seeds that both have: more runs have a better best.

    The interval is over the four cells, which share their seeds, and not over runs. Without one while cells have one seed: its best is its
    only run, and four cells of one seed say nothing of other seeds.
    """
    differences, fewest = [], math.inf
    for place in itertools.product(MODES, USERS):
        ppo, grpo = (table.get(Cell(algorithm, *place), {}) for algorithm in ("ppo", "grpo"))
        if seeds := ppo.keys() & grpo.keys():
            differences.append(max(ppo[seed].score for seed in seeds) - max(grpo[seed].score for seed in seeds))
            fewest = min(fewest, len(seeds))
    found = of_seeds(differences)
    return found if fewest > 1 else Estimate(found.value)


def thinking_understands(table: Table) -> Estimate:
    """By how much more training raised understanding in a policy that thinks; the two priors may differ in it."""

    def gained(run: Figures) -> float:
        return run.understanding - run.understanding_before

    return over_seeds(table, lambda at: gained(at("think")) - gained(at("plain")), itertools.product(ALGORITHMS, USERS), varying="mode")


def plain_acts(table: Table) -> Estimate:
    """By how much more training raised action in a policy that does not think."""
    return over_seeds(
        table, lambda at: acting_gained(at("plain")) - acting_gained(at("think")), itertools.product(ALGORITHMS, USERS), varying="mode"
    )


def plain_gains_action(table: Table) -> Estimate:
    """By how much training raised action in policies that do not think."""
    ways = [(algorithm, "plain") for algorithm in ALGORITHMS]
    return over_seeds(table, lambda at: mean_of(acting_gained(at(user)) for user in USERS), ways)


def acting_gained(run: Figures) -> float:
    """By how much the share of replies in which action was heard grew in a run."""
    return run.acting - run.acting_before


def gain_beyond_length(table: Table) -> Estimate:
    """Gain less what longer replies explain and less half of the whole gain: above 0, length explains less than half of it."""

    def beyond(at: Callable[[str], Figures]) -> float:
        return mean_of(at(user).gain_at_equal_length - 0.5 * at(user).gain for user in USERS)

    return over_seeds(table, beyond, itertools.product(ALGORITHMS, MODES))


def whole_gain(table: Table) -> Estimate:
    """By how much training raised the score, over all cells."""
    return over_seeds(table, lambda at: mean_of(at(user).gain for user in USERS), itertools.product(ALGORITHMS, MODES))


CLAIMS = (
    Claim("moderate users teach more than challenging ones", "score, VANILLA - CHALLENGING", moderate_over_challenging),
    Claim(
        "thinking is more robust to a hard user",
        "fall to CHALLENGING, plain - think",
        thinking_is_robust,
        Premise("a hard user costs anything", moderate_over_challenging),
    ),
    Claim("GRPO is steadier", "log sd between seeds, PPO - GRPO", grpo_is_steadier),
    Claim("PPO's ceiling is higher", "best run, PPO - GRPO", ppo_reaches_higher),
    Claim("thinking gives empathy and insight", "gain of understanding, think - plain", thinking_understands),
    Claim(
        "no thinking gives action",
        "gain of action, plain - think",
        plain_acts,
        Premise("policies that do not think gain action", plain_gains_action, digits=2, is_claimed=True),
    ),
    Claim(
        "length does not explain the gain",
        "gain less what length explains - half the gain",
        gain_beyond_length,
        Premise("there is a gain", whole_gain),
    ),
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
    return mean_difference(np.array(values)) if values else NOTHING


def mean_of(values: Iterable[float]) -> float:
    """The arithmetic mean."""
    return float(np.mean(list(values)))


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the sweep's folder, runs/rlver_matrix/<name>, or the results.csv")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="default FOLDER/rlver.json")


def run(options: Namespace) -> int:
    """Prints each published finding with its mark, and writes the file."""
    print(hold_against(options.folder, out=options.out))
    return 0


def hold_against(folder: Path, *, out: Path | None = None) -> str:
    """Runs the command: writes the findings and returns what is printed.

    Args:
        out: where to; None means `rlver.json` in the sweep's folder, and nowhere for a table.

    Raises:
        ValueError: the folder holds no such sweep, or nothing may be written there.
    """
    check_out(out)
    marks, path = read_marks(folder), out or (None if folder.suffix == ".csv" else folder / RLVER)
    if path is None:
        return as_text(marks)
    marks.keep(path)
    return f"{as_text(marks)}\n\n{path}"


def as_record(marks: Marks) -> dict[str, Any]:
    """The contents of `rlver.json`."""
    reading = marks.reading
    return {
        "num_runs": marks.num_runs,
        "worlds": reading.worlds,
        "notes": reading.notes,
        "cells": {
            "_".join(cell): {str(seed): asdict(figures) for seed, figures in sorted(reading.table[cell].items())}
            for cell in CELLS
            if cell in reading.table
        },
        "findings": [
            {"claim": one.claim, "measure": one.measure, **one.estimate.to_dict(), "mark": one.mark, "reason": one.reason}
            for one in marks.findings
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


def cell_rows(table: Table) -> list[list[str]]:
    """What the cells' runs came to, means over seeds, with what each seed scored."""
    rows = [["cell", "score at the end", "of each seed", "gain", "understanding", "action", "words a reply", "steps"]]
    for cell in (cell for cell in CELLS if cell in table):
        runs = [run for _, run in sorted(table[cell].items())]
        rows.append(
            [
                " ".join(cell),
                f"{mean_of(run.score for run in runs):.1f}",
                " ".join(f"{run.score:.1f}" for run in runs),
                f"{mean_of(run.gain for run in runs):+.1f}",
                f"{mean_of(run.understanding_before for run in runs):.2f} to {mean_of(run.understanding for run in runs):.2f}",
                f"{mean_of(run.acting_before for run in runs):.2f} to {mean_of(run.acting for run in runs):.2f}",
                f"{mean_of(run.words_before for run in runs):.1f} to {mean_of(run.words for run in runs):.1f}",
                f"{mean_of(run.num_steps for run in runs):.0f}",
            ]
        )
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


def as_text(marks: Marks) -> str:
    """The page that the command prints."""
    found, table = marks.findings, marks.reading.table
    parts = [
        columns(cell_rows(table)),
        columns(finding_rows(found)),
        f"{marks.num_runs} runs; a finding is reproduced where the interval lies above 0 and what it presupposes is sure. "
        "Each mark is of one interval by itself, uncorrected, and of few seeds: it describes.",
    ]
    judged = by_judge(table)
    remarks = [*(f"{one.claim}: {one.reason}." for one in found if one.reason), *([judged] if judged else []), *marks.reading.notes]
    if remarks:
        parts.append("To know:\n" + "\n".join(f"- {remark}" for remark in dict.fromkeys(remarks)))
    return "\n\n".join(parts)
