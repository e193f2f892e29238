"""Kept runs take the place of runs: what an earlier sitting left under docs/results/ is done, and only the rest is run.

A record is taken over where the sweep would make just this run: the same plan, world and settings, and for an arm that copies another one,
the copied run that is here. Any other stays where it is, and is told of with the reason. A run that was begun in the sweep's folder is
never replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from analysis.copies import COPIED, digest_of_tasks
from analysis.kept import RUNS, relocated, results_of, unpack
from analysis.planned import read_planned
from analysis.runs import CONFIG, KEPT, PROVENANCE, SUMMARY, TEACHER, read_config, read_lines, setting
from experiments.config import load_saved, to_plain
from experiments.same_run import differences
from experiments.sweep_plan import Cell, Sweep
from simulator.bank import world_hash

NAMED = 3
"""Runs that are named one by one; of more, their number is told."""


@dataclass(frozen=True)
class KeptRuns:
    """What is kept of a sweep's runs."""

    folder: Path
    usable: list[Cell] = field(default_factory=list)
    unusable: dict[str, list[Cell]] = field(default_factory=dict)
    """By reason."""

    def sentences(self, num_runs: int) -> Iterator[str]:
        """How many are taken over, and why others are not."""
        if self.usable:
            done = f"{len(self.usable)} of {num_runs} runs were kept in {self.folder} and are done: without weights and transcripts"
            yield f"{done}; another name= runs them anew"
        for reason, cells in self.unusable.items():
            names = ", ".join(map(str, cells[:NAMED])) + (f" and {len(cells) - NAMED} more" if len(cells) > NAMED else "")
            yield f"not used of {self.folder}: {names}; {reason}"

    def place(self, sweep: Sweep) -> None:
        """Unpacks those that can be used into the sweep's folder."""
        for cell in self.usable:
            unpack(record_of(sweep, cell), sweep.run_folder(cell), runs=sweep.runs)


def kept_runs(sweep: Sweep) -> KeptRuns:
    """Looks at every record of a run that the sweep has not begun."""
    kept = KeptRuns(results_of(sweep.folder))
    open_cells = [cell for cell in sweep.cells() if is_record(record_of(sweep, cell)) and not is_begun(sweep.run_folder(cell))]
    if not open_cells:
        return kept
    other_plan = plan_apart(sweep)
    # Runs that others copy come first: these are looked at with what is known of them.
    for cell in sorted(open_cells, key=lambda cell: len(sweep.needs(cell))):
        reason = other_plan or why_not(sweep, cell, kept)
        if reason:
            kept.unusable.setdefault(reason, []).append(cell)
        else:
            kept.usable.append(cell)
    return kept


def record_of(sweep: Sweep, cell: Cell) -> Path:
    """Where a run is kept, if it is."""
    return results_of(sweep.folder) / cell.arm / f"seed_{cell.seed}"


def is_record(folder: Path) -> bool:
    """Whether a folder is a kept run."""
    return all((folder / name).is_file() for name in (KEPT, CONFIG, SUMMARY))


def is_begun(folder: Path) -> bool:
    """Whether anything lies where a run would."""
    return folder.is_dir() and any(folder.iterdir())


def plan_apart(sweep: Sweep) -> str:
    """Why no record of this sweep may be used; empty where they may."""
    try:
        planned = read_planned(results_of(sweep.folder))
    except ValueError as error:
        return str(error)
    if planned is None or (planned.contrasts, planned.primary) == (sweep.planned.contrasts, sweep.planned.primary):
        return ""
    return f"they were run for another plan ({planned.words()})"


def why_not(sweep: Sweep, cell: Cell, kept: KeptRuns) -> str:
    """Why a record is not the run that the sweep would make; empty where it is."""
    record = record_of(sweep, cell)
    try:
        world = setting(read_config(record / CONFIG), f"{PROVENANCE}.world_hash")
        if world != world_hash():
            return f"the world was {world} and is {world_hash()}"
        saved = relocated(to_plain(load_saved(record / CONFIG)), RUNS, str(sweep.runs))
        for name, before, now in differences(saved, sweep.config(cell)):
            return f"{name} was {before!r} and is {now!r}"
        copied = json.loads((record / KEPT).read_text(encoding="utf-8"))[COPIED]
        for need in sweep.needs(cell):
            if copied is None or copied != tasks_of(sweep, need, kept):
                return "the run that they copied is not the one here"
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"they cannot be read ({error})"
    return ""


def tasks_of(sweep: Sweep, cell: Cell, kept: KeptRuns) -> str | None:
    """A digest of what a run's teacher issued, of the sweep's own run or of its record; None where neither can be used."""
    if is_begun(sweep.run_folder(cell)):
        return digest_of_tasks(read_lines(sweep.run_folder(cell) / TEACHER))
    if cell not in kept.usable:
        return None
    tasks = json.loads((record_of(sweep, cell) / KEPT).read_text(encoding="utf-8"))["tasks"]
    return None if tasks is None else str(tasks)
