"""Kept runs take the place of runs: what an earlier sitting left under docs/results/ is done, and only the rest is run.

A record is taken over where the sweep would make just this run: the same plan, world and settings, and for an arm that copies another one,
the copied run that is here. Any other stays where it is, and is told of with the reason. A run that was begun in the sweep's folder is
never replaced.

Where a sweep has no record of its own, the same run of another experiment's sweep of that name counts: same world, seed, settings and
initial weights, whatever its arm is called. Runs that copy another, and what the sealed half judges, are always a sweep's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.comparisons.planned import read_planned
from analysis.comparisons.sweep import run_folders, seed_of
from analysis.copies import COPIED, kept_facts, tasks_issued
from analysis.kept import relocated, unpack, why_unusable
from analysis.results import RUNS, results_beside, results_of
from analysis.runs import CONFIG, KEPT, PROVENANCE, SUMMARY, leaves, read_config, read_summary, setting
from experiments.agents.who import fingerprint
from experiments.config import ExperimentConfig, load_saved, to_plain
from experiments.same_run import differences, other_users, says_the_same
from experiments.sweep_plan import Cell, Sweep
from policy.prior_place import prior_folder
from simulator.fingerprint import recorded_world, world_name
from simulator.scenario import Split

NAMED = 3
"""Runs that are named one by one; of more, their number is told."""


@dataclass(frozen=True)
class KeptRuns:
    """What is kept of a sweep's runs."""

    folder: Path
    usable: dict[Cell, Path] = field(default_factory=dict)
    """By run, its record."""
    unusable: dict[str, list[Cell]] = field(default_factory=dict)
    """By reason, of the sweep's own records."""

    def sentences(self, num_runs: int) -> Iterator[str]:
        """How many are taken over, and why others are not."""
        places = Counter(record.parent.parent for record in self.usable.values())
        for place, number in places.items():
            same = "" if place == self.folder else ", with the same settings,"
            done = f"{number} of {num_runs} runs were kept in {place}{same} and are done: without weights and transcripts"
            yield f"{done}; another name= runs them anew"
        for reason, cells in self.unusable.items():
            yield f"of {self.folder} these are not taken over: {named(cells)}; {reason}"

    def place(self, sweep: Sweep) -> None:
        """Unpacks those that can be used into the sweep's folder."""
        for cell, record in self.usable.items():
            unpack(record, sweep.run_folder(cell), runs=sweep.runs)


def named(cells: Sequence[Cell]) -> str:
    """The first few by name."""
    return ", ".join(map(str, cells[:NAMED])) + (f" and {len(cells) - NAMED} more" if len(cells) > NAMED else "")


def kept_runs(sweep: Sweep, *, among: Collection[Cell] | None = None) -> KeptRuns:
    """Looks at every record of a run that the sweep has not begun.

    Args:
        among: the runs that are asked about, with those that they copy; None for all.
    """
    kept = KeptRuns(results_of(sweep.folder))
    asked = [cell for cell in sweep.cells() if among is None or cell in among]
    waiting = [cell for cell in asked if not is_begun(sweep.run_folder(cell))]
    own = [cell for cell in waiting if is_record(record_of(sweep, cell))]
    other_plan = plan_apart(sweep) if own else ""

    def look(cells: Iterable[Cell]) -> None:
        for cell in cells:
            reason = other_plan or why_not(sweep, cell, record_of(sweep, cell), kept)
            if reason:
                kept.unusable.setdefault(reason, []).append(cell)
            else:
                kept.usable[cell] = record_of(sweep, cell)

    look(cell for cell in own if not sweep.needs(cell))
    kept.usable.update(same_elsewhere(sweep, [cell for cell in waiting if cell not in own and not sweep.needs(cell)], kept))
    # Runs that copy others come last: they are looked at with what is known of those.
    look(cell for cell in own if sweep.needs(cell))
    return kept


def began_otherwise(sweep: Sweep, kept: KeptRuns) -> Iterator[str]:
    """A sentence if runs that are there began with other weights than those that are left would; only of a prior that is built already."""
    begun = {cell: folder for cell in sweep.cells() if is_begun(folder := sweep.run_folder(cell))} | kept.usable
    if not 0 < len(begun) < len(sweep.cells()):
        return
    firsts = {cell.arm: cell for cell in begun}
    begins_with = {arm: weights_now(sweep, cell) for arm, cell in firsts.items()}
    others = []
    for cell, record in begun.items():
        began_with = weights_of(record)
        if began_with and begins_with[cell.arm] and began_with != begins_with[cell.arm]:
            others.append(cell)
    if others:
        yield (
            f"runs that began with other weights than the prior here gives: {named(others)}; they are not paired with the runs "
            "made now, and another name= runs all anew"
        )


def weights_now(sweep: Sweep, cell: Cell) -> str:
    """The fingerprint of the weights that a run would begin with; empty of a prior that is not built yet, and of other models."""
    policy = sweep.config(cell).policy
    prior = prior_folder(policy.prior)
    return fingerprint(prior) if policy.is_embedded and prior.is_dir() else ""


def weights_of(record: Path) -> str:
    """The fingerprint of the weights that a run began with; empty where it was not recorded, or cannot be read."""
    try:
        return str(setting(read_config(record / CONFIG), f"{PROVENANCE}.initial_policy") or "")
    except (ValueError, OSError):
        return ""


def same_elsewhere(sweep: Sweep, cells: Sequence[Cell], kept: KeptRuns) -> Iterator[tuple[Cell, Path]]:
    """Runs without a record of their own that another experiment's sweep of this name has kept.

    Only runs that began with the same weights as one of the sweep's own runs or records. Where there are none, with the weights its runs
    would begin with. Others could not be paired.
    """
    if setting(sweep.base, "evaluation.split") == Split.SEALED:
        return
    seeds = {cell.seed for cell in cells}
    others = [place for place in sorted(results_beside(sweep.runs).glob(f"*/{sweep.folder.name}")) if place != kept.folder]
    records = [path for place in others for path in runs_in(place) if is_record(path) and seed_of(path) in seeds]
    places = [place for cell in sweep.cells() for place in (sweep.run_folder(cell), record_of(sweep, cell))]
    own = {weights for place in places if (weights := weights_of(place))}
    began = {path: weights_of(path) for path in records}
    # Most have another teacher: told apart by what they wrote down, since to read all settings through the schema takes long.
    teachers = {path: teacher_of(path) for path in records}
    firsts = {cell.arm: cell for cell in cells}
    wanted = {arm: dict(leaves(to_plain(sweep.config(cell))["teacher"])) for arm, cell in firsts.items()}
    beginnings = {arm: own or {weights_now(sweep, cell)} - {""} for arm, cell in firsts.items()}
    for cell in cells:
        alike = (
            path
            for path, saved in teachers.items()
            if seed_of(path) == cell.seed
            and began[path] in beginnings[cell.arm]
            and all(saved.get(name, value) == value for name, value in wanted[cell.arm].items())
        )
        same = next((path for path in alike if not why_not(sweep, cell, path, kept)), None)
        if same:
            yield cell, same


def runs_in(sweep: Path) -> list[Path]:
    """The folders of a sweep's runs; none where it holds none."""
    try:
        return run_folders(sweep)
    except ValueError:
        return []


def teacher_of(record: Path) -> Mapping[str, Any]:
    """The teacher's settings of a kept run by dotted name, as they were written down; without a kind where they cannot be read."""
    try:
        return dict(leaves(read_config(record / CONFIG)["teacher"]))
    except (ValueError, KeyError, TypeError, OSError):
        return {"kind": ""}


def record_of(sweep: Sweep, cell: Cell) -> Path:
    """Where a run is kept, if it is."""
    return results_of(sweep.folder) / cell.arm / f"seed_{cell.seed}"


def is_record(folder: Path) -> bool:
    """Whether a folder is a kept run."""
    return all((folder / name).is_file() for name in (KEPT, CONFIG, SUMMARY))


def is_begun(folder: Path) -> bool:
    """Whether anything lies where a run would."""
    return folder.is_dir() and any(folder.iterdir())


def is_done(sweep: Sweep, cell: Cell) -> bool:
    """Whether a run has ended well, and its summary can be read."""
    try:
        return read_summary(sweep.run_folder(cell) / SUMMARY) is not None
    except (ValueError, OSError):
        return False


def plan_apart(sweep: Sweep) -> str:
    """Why no record of this sweep may be used; empty where they may."""
    try:
        planned = read_planned(results_of(sweep.folder))
    except ValueError as error:
        return str(error)
    if planned is None or (planned.contrasts, planned.primary) == (sweep.planned.contrasts, sweep.planned.primary):
        return ""
    return f"they were run for another plan ({planned.words()})"


def why_not(sweep: Sweep, cell: Cell, record: Path, kept: KeptRuns) -> str:
    """Why a record is not the run that the sweep would make; empty where it is."""
    try:
        written = read_config(record / CONFIG)
        world = recorded_world(written.get(PROVENANCE) or {}, written)
        if world != world_name():
            return f"the world was {world} and is {world_name()}"
        if other := other_users(written, sweep.config(cell)):
            return other.partition(";")[0]
        if found := first_difference(record, written, sweep.config(cell)):
            name, before, now = found
            return f"{name} was {before!r} and is {now!r}"
        copied = kept_facts(record)[COPIED]
        for need in sweep.needs(cell):
            if copied is None or copied != tasks_of(sweep, need, kept):
                return "the run that they copied is not the one here"
        reason = why_unusable(record)
    except (ValueError, KeyError, TypeError, OSError) as error:
        reason = str(error)
    return f"they cannot be read ({reason})" if reason else ""


def first_difference(record: Path, written: Mapping[str, Any], config: ExperimentConfig) -> tuple[str, object, object] | None:
    """A setting in which a kept run differs from one that would be made now, before and now; None where there is none.

    Args:
        written: what its file says.
    """
    own = {name: value for name, value in written.items() if name != PROVENANCE}
    if says_the_same(relocated(own, RUNS, config.runs), config):
        return None
    saved = relocated(to_plain(load_saved(record / CONFIG)), RUNS, config.runs)
    return next(differences(saved, config), None)


def tasks_of(sweep: Sweep, cell: Cell, kept: KeptRuns) -> str | None:
    """A digest of what a run's teacher issued, of the sweep's own run or of its record; None where neither can be used."""
    folder = sweep.run_folder(cell)
    place = folder if is_begun(folder) else kept.usable.get(cell)
    return None if place is None else tasks_issued(place)
