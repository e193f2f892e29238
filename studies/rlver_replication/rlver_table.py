"""The runs of RLVER's table as figures: by algorithm, mode of thought, users and seed, what their held-out dialogues say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from analysis.runs import read_run
from analysis.sweeps import RunResult, comparable_groups, read_sweep
from simulator.dialogue import Outcome, Speaker

ALGORITHMS, MODES, USERS = ("grpo", "ppo"), ("plain", "think"), ("vanilla", "challenging")


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
    """The same less what longer replies explain (`gained_by_length`)."""
    words_before: float = math.nan
    """Words per reply before training: the mean over dialogues, geometric."""
    words: float = math.nan
    """The same at the end."""
    understanding_before: float
    """Share of answered replies in which understanding was heard, before training; [0, 1]."""
    understanding: float
    """The same at the end."""
    acting_before: float
    """Share of answered replies in which action was heard, before training; [0, 1]."""
    acting: float
    """The same at the end."""
    num_steps: int = 0
    """Training steps; 0 where the run did not say."""
    by_strictness: dict[float, float] = field(default_factory=dict)
    """Score at the end by the strictness of the users who judged."""
    start: str = ""
    """Fingerprint of the weights that the run began with; empty where it was not recorded."""


IN_A_ROW = ("gain_at_equal_length", "words_before", "words", "understanding_before", "understanding", "acting_before", "acting")
"""Figures that stand in `results.csv` under their own names."""
COLUMN, LEVEL = "rlver.", "rlver.score_at."
UNLIKE_STEPS = 1.1
"""How many times as many steps one arm may have as another before it is said."""

Table = Mapping[Cell, Mapping[int, Figures]]
"""Runs by cell and seed."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A sweep as it was read."""

    table: Table
    notes: list[str]
    """Which runs are left out or missing, and why."""
    worlds: list[str]


def read_table(folder: Path) -> Reading:
    """The finished runs of the sweep by cell and seed, as far as they may be set against each other.

    Args:
        folder: of the sweep, or the study's `results.csv`, which holds the figures themselves.

    Raises:
        ValueError: there is none whose arm is a cell of the table.
    """
    sweep = read_sweep(folder)
    cells = {"_".join(cell): cell for cell in CELLS}
    notes = [note for note in sweep.notes if note.partition("/")[0] in cells]
    runs = to_be_paired([run for run in sweep.runs if run.arm in cells], notes)
    table: dict[Cell, dict[int, Figures]] = {}
    for run in runs:
        try:
            is_row = folder.suffix == ".csv"
            figures = figures_of_row(run) if is_row else figures_of_run(folder / run.arm / f"seed_{run.seed}")
            figures = replace(figures, start=run.initial_policy)
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
    notes += [*unlike_starts(table), *unlike_steps(table)]
    worlds = sorted({run.world for run in runs})
    return Reading(table=table, notes=notes, worlds=worlds)


def unlike_steps(table: Table) -> list[str]:
    """That some arms were updated more often than others, which their scores then tell apart, too."""
    known = {"_".join(cell): [run.num_steps for run in runs.values() if run.num_steps] for cell, runs in table.items()}
    steps = {cell: float(np.mean(numbers)) for cell, numbers in known.items() if numbers}
    if not steps:
        return []
    fewest, most = min(steps, key=steps.__getitem__), max(steps, key=steps.__getitem__)
    if steps[most] <= UNLIKE_STEPS * steps[fewest]:
        return []
    return [
        f"{most} took {steps[most]:.0f} steps and {fewest} {steps[fewest]:.0f}: they differ in how often they were updated, too; "
        "budget.steps gives all arms as many."
    ]


def to_be_paired(runs: Sequence[RunResult], notes: list[str]) -> list[RunResult]:
    """The largest group of runs of one world, budget and evaluation, and of these in each mode and seed the largest with the same start.

    Findings pair runs within a seed, so another seed may begin with another build of the prior; that it does is said.

    Args:
        notes: to which is added why others are left out.
    """
    kept, *others = comparable_groups(runs, apart=RunResult.why_not) or [[]]
    notes += [f"{kept[0].name} and {group[0].name} {kept[0].why_not(group[0])}; {listed(group)} left out." for group in others]
    found = []
    for mode in MODES:
        of_mode = [run for run in kept if f"_{mode}_" in run.arm]
        for seed in dict.fromkeys(run.seed for run in of_mode):
            first, *rest = comparable_groups([run for run in of_mode if run.seed == seed], apart=RunResult.why_not_paired)
            notes += [
                f"{first[0].name} and {group[0].name} {first[0].why_not_paired(group[0])}; {listed(group)} left out." for group in rest
            ]
            found += first
    return found


def unlike_starts(table: Table) -> list[str]:
    """For each mode, that its seeds did not all begin with the same weights."""
    found = []
    for mode in MODES:
        seeds: dict[str, set[int]] = {}
        for cell, runs in table.items():
            if cell.mode == mode:
                for seed, run in runs.items():
                    seeds.setdefault(run.start, set()).add(seed)
        seeds.pop("", None)
        if len(seeds) > 1:
            groups = " and ".join(f"seed{'s' if len(each) > 1 else ''} {', '.join(map(str, sorted(each)))}" for each in seeds.values())
            found.append(
                f"{mode}: {groups} began with different builds of the prior; runs are paired within a seed, "
                "and the spread between seeds is taken over those that began alike."
            )
    return found


def listed(runs: Sequence[RunResult]) -> str:
    """`a is`, `a, b are`."""
    return f"{', '.join(run.name for run in runs)} {'is' if len(runs) == 1 else 'are'}"


def figures_of_row(run: RunResult) -> Figures:
    """A run's figures from its row of `results.csv`, in columns named `rlver.*`.

    Raises:
        ValueError: the row lacks one of them.
    """
    known = {name: value for name, value in run.scalars.items() if value is not None}
    if lacking := [name for name in ("start.score", "heldout.score", *(COLUMN + name for name in IN_A_ROW)) if name not in known]:
        raise ValueError(f"{run.name} must have {', '.join(lacking)} in its row")
    levels = {name.removeprefix(LEVEL): value for name, value in known.items() if name.startswith(LEVEL)}
    return Figures(
        score=known["heldout.score"],
        gain=known["heldout.score"] - known["start.score"],
        by_strictness={float(level): value for level, value in levels.items()},
        gain_at_equal_length=known[COLUMN + "gain_at_equal_length"],
        words_before=known[COLUMN + "words_before"],
        words=known[COLUMN + "words"],
        understanding_before=known[COLUMN + "understanding_before"],
        understanding=known[COLUMN + "understanding"],
        acting_before=known[COLUMN + "acting_before"],
        acting=known[COLUMN + "acting"],
    )


def figures_of_run(folder: Path) -> Figures:
    """A run's figures from what it left.

    Raises:
        ValueError: its records cannot be read, or are not those that `figures_of` takes.
    """
    run = read_run(folder)
    return figures_of(run.evaluation(), num_steps=run.num_steps)


def figures_of(lines: Iterable[Mapping[str, Any]], *, num_steps: int = 0) -> Figures:
    """A run's figures from its evaluation records.

    Raises:
        ValueError: the full grid was not played both before and after training, or no reply was answered in one of them.
    """
    full: dict[int, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["grid"] == "full" and line["outcome"] != Outcome.ERROR:
            full.setdefault(line["look"], []).append(line)
    if len(full) < 2:
        raise ValueError("evaluation.jsonl must hold the full grid before and after training, got it once or not at all")
    before, after = full[min(full)], full[max(full)]
    emotions = [np.array([line["emotion"] for line in side], dtype=float) for side in (before, after)]
    early, late = heard(before), heard(after)
    if math.isnan(early.acting) or math.isnan(late.acting):
        raise ValueError("evaluation.jsonl must hold an answered reply both before and after training, got none on one side")
    gain = float(emotions[1].mean() - emotions[0].mean())
    return Figures(
        score=float(emotions[1].mean()),
        gain=gain,
        gain_at_equal_length=gain - gained_by_length(before, after),
        words_before=2.0 ** float(log_words(before).mean()),
        words=2.0 ** float(log_words(after).mean()),
        understanding_before=early.understanding,
        understanding=late.understanding,
        acting_before=early.acting,
        acting=late.acting,
        num_steps=num_steps,
        by_strictness=by_strictness(after),
    )


def by_strictness(lines: Iterable[Mapping[str, Any]]) -> dict[float, float]:
    """The mean final emotion with the users of each strictness, from the most lenient on."""
    emotions: dict[float, list[float]] = {}
    for line in lines:
        emotions.setdefault(float(line["strictness"]), []).append(float(line["emotion"]))
    return {strictness: float(np.mean(found)) for strictness, found in sorted(emotions.items())}


def gained_by_length(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> float:
    """Points of the gain that longer replies explain, at least 0.

    That is points of emotion per doubling x doublings by which replies grew. The slope is that between dialogues of one look, with users of
    one intention and strictness, and of as many replies. It is a lower bound: where failing makes an agent talk, the slope is too small,
    and records of kept runs do not tell one reply from the next (`experiments.agents.scores`). So length never adds to a gain, and how
    much longer replies grew stands beside the number.
    """
    lines = [*before, *after]
    x_N, y_N = np.concatenate([log_words(before), log_words(after)]), np.array([line["emotion"] for line in lines], dtype=float)
    looks = [*[0] * len(before), *[1] * len(after)]
    cells: dict[tuple[int, str, float, int], int] = {}
    cell_N = np.array(
        [
            cells.setdefault((look, line["family"].partition("/")[0], line["strictness"], replies_in(line).num), len(cells))
            for look, line in zip(looks, lines, strict=True)
        ]
    )
    size_C = np.bincount(cell_N)
    dx_N, dy_N = (values - (np.bincount(cell_N, values) / size_C)[cell_N] for values in (x_N, y_N))
    spread = float(dx_N @ dx_N)
    slope = float(dx_N @ dy_N) / spread if spread > 1e-9 else 0.0
    return max(0.0, slope * float(log_words(after).mean() - log_words(before).mean()))


def log_words(lines: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """log2 of the words that the agent says in a reply, of each dialogue; 0 for fewer than one."""
    found = (replies_in(line) for line in lines)
    return np.log2([max(1.0, replies.words / max(1, replies.num)) for replies in found])


UNDERSTANDING = frozenset(("reflection", "listening", "guided_reflection", "motives", "both_sides"))
ACTING = frozenset(("suggestion", "information", "referral"))
"""Support strategies that give empathy and insight, and those that give something to do."""


class Replies(NamedTuple):
    """Counts of one dialogue."""

    num: int
    """Replies of the agent."""
    words: int
    """Words in them."""
    answered: int
    """Replies that the user reacted to."""
    understanding: int
    """Of these, how many in which a strategy of `UNDERSTANDING` was heard."""
    acting: int
    """Of these, how many in which one of `ACTING` was heard."""


def replies_in(line: Mapping[str, Any]) -> Replies:
    """The counts of a recorded dialogue.

    Raises:
        KeyError: it has no turns.
    """
    lengths = [len(turn["text"].split()) for turn in line["turns"] if turn["speaker"] == Speaker.AGENT]
    # A recorded turn leaves out what is empty: the opening has no change, and a reply in which nothing was heard has no `heard`.
    heard = [set(turn.get("heard", ())) for turn in line["turns"] if turn.get("change") is not None]
    return Replies(
        num=len(lengths),
        words=sum(lengths),
        answered=len(heard),
        understanding=sum(bool(UNDERSTANDING & each) for each in heard),
        acting=sum(bool(ACTING & each) for each in heard),
    )


class Heard(NamedTuple):
    """Shares of answered replies; NaN without any."""

    understanding: float
    acting: float


def heard(lines: Iterable[Mapping[str, Any]]) -> Heard:
    """In which share of the answered replies understanding was heard, and in which action; both may be heard in one."""
    found = [replies_in(line) for line in lines]
    answered = sum(replies.answered for replies in found)
    if not answered:
        return Heard(math.nan, math.nan)
    return Heard(sum(replies.understanding for replies in found) / answered, sum(replies.acting for replies in found) / answered)
