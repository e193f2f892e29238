"""Benchmark of teachers on toy students: arms, jobs, figures with intervals over seeds, and the table."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curriculum import NEEDS, TEACHERS
from curriculum.replayed import append_tasks
from curriculum.toy.simulation import build_teacher, configure, figures, simulate
from curriculum.toy.students import STUDENTS
from simulator.files import write_whole

LENGTHS = {"T": 1.0, "T/2": 0.5, "2T": 2.0}
"""Values of a setting that mean a share of the student's number of updates."""
RECORDED = "run:"
"""A setting of this and a kind of teacher means the tasks that it issued in a run with the same student and another seed."""


@dataclass(frozen=True)
class Arm:
    """A teacher under comparison."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """By dotted name, as text or values; the others are at their defaults."""


SURVEY = (
    Arm("fixed_.2", "fixed", {"strictness": 0.2}),
    Arm("fixed_.5", "fixed", {"strictness": 0.5}),
    Arm("fixed_.9", "fixed", {"strictness": 0.9}),
    Arm("uniform", "uniform"),
    Arm("linear", "linear", {"num_steps": "T"}),
    Arm("linear_T/2", "linear", {"num_steps": "T/2"}),
    Arm("linear_2T", "linear", {"num_steps": "2T"}),
    Arm("linear_reverse", "linear", {"num_steps": "T", "start": 1.0, "end": 0.0}),
    Arm("staged", "staged"),
    Arm("adr", "adr"),
    Arm("adarft", "adarft"),
    Arm("adarft_.05", "adarft", {"eta": 0.05}),
    Arm("adarft_.05_per_family", "adarft", {"eta": 0.05, "per_family": True}),
    Arm("adarft_.05_tagged", "adarft", {"eta": 0.05, "tagged": True}),
    Arm("rlve", "rlve"),
    Arm("rlve_.6", "rlve", {"threshold": 0.6}),
    Arm("rlve_reversible", "rlve", {"reversible": True}),
    Arm("sec", "sec"),
    Arm("sec_flat", "sec", {"scope": "flat"}),
    Arm("dump", "dump"),
    Arm("dump_flat", "dump", {"scope": "flat"}),
    Arm("progress", "progress"),
    Arm("progress_flat", "progress", {"scope": "flat"}),
    Arm("plr", "plr"),
    Arm("plr_robust", "plr", {"robust": True}),
    Arm("beta_thompson", "beta_thompson"),
    Arm("beta_thompson_progress", "beta_thompson", {"allocation.uniform_floor": 0.25}),
    Arm("frontier", "frontier"),
    Arm("frontier_no_guard", "frontier", {"guard.enabled": False}),
    Arm("yoked", "yoked", {"trace": RECORDED + "frontier"}),
    Arm("shuffled", "shuffled", {"trace": RECORDED + "frontier"}),
)
"""Arms with settings of their own, as far as their teachers are registered; a kind that is not here runs at its defaults."""


def all_arms() -> dict[str, Arm]:
    """Every registered teacher at least once, by name; those whose packages are not installed are left out."""
    kinds = [kind for kind in TEACHERS if kind not in NEEDS or find_spec(NEEDS[kind])]
    arms = [arm for arm in SURVEY if arm.kind in kinds]
    arms += [Arm(kind, kind) for kind in kinds if kind not in {arm.kind for arm in arms}]
    return {arm.name: arm for arm in arms}


def parse_arms(words: Sequence[str]) -> list[Arm]:
    """The arms that `words` name: `all`, a name of `all_arms()`, a kind, or a kind with settings as in `fixed:strictness=.2`.

    Raises:
        ValueError: no such teacher or setting, or a setting out of range.
    """
    known = all_arms()
    if "all" in words:
        return list(known.values())
    arms = [known[word] if word in known else _parse(word) for word in dict.fromkeys(words)]
    for arm in arms:
        for name, value in arm.settings.items():
            if isinstance(value, str) and value.startswith(RECORDED) and value.removeprefix(RECORDED) not in TEACHERS:
                raise ValueError(f"teacher.{name} must name one of {', '.join(TEACHERS)} after {RECORDED}, got {value!r}")
        configure(TEACHERS[arm.kind][0](), resolve(arm.settings, num_updates=100))
    return arms


def _parse(word: str) -> Arm:
    kind, _, text = word.partition(":")
    if kind not in TEACHERS:
        names = ", ".join(dict.fromkeys([*TEACHERS, *all_arms()]))
        raise ValueError(f"--teachers must be all, one of {names}, or KIND:SETTING=VALUE,..., got {word!r}")
    # A comma inside brackets belongs to a list.
    pairs = [pair.partition("=") for pair in re.split(r",(?![^\[]*\])", text) if text]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError(f"--teachers must set a teacher as in KIND:SETTING=VALUE,..., got {word!r}")
    return Arm(word, kind, {name.strip(): value.strip() for name, _, value in pairs})


def resolve(settings: Mapping[str, Any], *, num_updates: int) -> dict[str, Any]:
    """`settings` with lengths such as "T/2" made numbers."""
    lengths = {name: LENGTHS[value] for name, value in settings.items() if isinstance(value, str) and value in LENGTHS}
    return {**settings, **{name: round(share * num_updates) for name, share in lengths.items()}}


Row = Mapping[str, Mapping[str, Any]]
"""{figure: {"mean", "ci95", "per_seed"}}; None for events that did not happen and intervals that cannot be computed."""
Results = dict[str, dict[str, Row]]
"""{student: {teacher: row}}."""


class Job(NamedTuple):
    """One run."""

    student: str
    arm: Arm
    seed: int


def run_one(student: str, kind: str, settings: Mapping[str, Any] | None = None, seed: int = 0) -> dict[str, float]:
    """The figures of one run.

    Args:
        student: a name in `STUDENTS`.
        kind: a name in `TEACHERS`.
        settings: of the teacher, by dotted name; the others are at their defaults. "T", "T/2" and "2T" mean the student's number of
            updates, "run:KIND" a file of the tasks that such a teacher issued to the same student with another seed.
        seed: see `simulate`.
    """
    chosen = resolve(settings or {}, num_updates=STUDENTS[student](np.random.default_rng(0)).num_updates)
    with tempfile.TemporaryDirectory() as folder:
        for name, value in chosen.items():
            if isinstance(value, str) and value.startswith(RECORDED):
                chosen[name] = str(Path(folder) / "teacher.jsonl")
                for tasks in simulate(student, value.removeprefix(RECORDED), {}, seed + 1).tasks:
                    append_tasks(chosen[name], tasks)
        return figures(simulate(student, kind, chosen, seed))


def check_jobs(students: Iterable[str], arms: Sequence[Arm]) -> None:
    """Builds every teacher for every student once, so that jobs that cannot run are refused before any does.

    Raises:
        ValueError: a teacher refuses its settings or a student's families.
    """
    for name in students:
        student = STUDENTS[name](np.random.default_rng(0))
        scenarios = {family: [family] for family in student.families}
        for arm in arms:
            settings = resolve(arm.settings, num_updates=student.num_updates)
            if not any(isinstance(value, str) and value.startswith(RECORDED) for value in settings.values()):
                build_teacher(arm.kind, settings, scenarios=scenarios, group_size=student.group_size, seed=0)


def run_jobs(jobs: Sequence[Job], *, num_processes: int) -> Iterator[tuple[Job, dict[str, float]]]:
    """The figures of all jobs, as they finish."""
    if num_processes == 1:
        yield from ((job, _run(job)) for job in jobs)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        running = {pool.submit(_run, job): job for job in jobs}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run(job: Job) -> dict[str, float]:
    try:
        return run_one(job.student, job.arm.kind, job.arm.settings, job.seed)
    except Exception as error:
        error.add_note(f"in the run of {job.arm.name} with {job.student}, seed {job.seed}")
        raise


def summarise(done: Mapping[Job, Mapping[str, float]]) -> Results:
    """Means and intervals over the seeds of each student and teacher."""
    by_pair: dict[tuple[str, str], list[Mapping[str, float]]] = defaultdict(list)
    for job in sorted(done, key=lambda job: job.seed):
        by_pair[job.student, job.arm.name].append(done[job])
    results: Results = {}
    for (student, arm), rows in by_pair.items():
        results.setdefault(student, {})[arm] = {name: summary([row[name] for row in rows]) for name in rows[0]}
    return results


def summary(per_seed: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % t interval over the seeds that have a value, and the values; None where there are too few."""
    from scipy.special import stdtrit  # here, so that --help need not wait for scipy

    known = [value for value in per_seed if math.isfinite(value)]
    mean = float(np.mean(known)) if known else None
    interval = None
    if mean is not None and len(known) > 1:
        half = float(stdtrit(len(known) - 1, 0.975) * np.std(known, ddof=1) / math.sqrt(len(known)))
        interval = [mean - half, mean + half]
    return {"mean": mean, "ci95": interval, "per_seed": [value if math.isfinite(value) else None for value in per_seed]}


def write(results: Results, path: Path) -> None:
    """Writes `path` whole or not at all."""
    write_whole(path, json.dumps(results, indent=1) + "\n")


def read(path: Path, *, option: str) -> Results:
    """Reads a file of `write`.

    Args:
        option: the one that named it, for the message.

    Raises:
        ValueError: there is no such file, or it holds something else.
    """
    try:
        results: Results = json.loads(path.read_text(encoding="utf-8"))
        _ = [values["mean"] for arms in results.values() for row in arms.values() for values in row.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{option} must be a file that `benchmark --out` wrote, got {str(path)!r}") from None
    return results


COLUMNS_AT_ONCE = 5
"""Students in one table; more follow in a table below."""
LEGEND = (
    "Where a frontier is to be tracked: rmse of the strictness issued. Otherwise final/worst (auc): mean success over all cells at the end,"
    " the worst cell's, and the mean over the run; with families macro/worst, then the share of tasks spent on noise if there is any."
    " us: CPU of the teacher for each task, microseconds. Means over seeds."
)


def tables(results: Results, *, markdown: bool = False) -> str:
    """All results as text or as Markdown: a row for each teacher, a column for each student."""
    students = iter(results)
    blocks = []
    while block := list(islice(students, COLUMNS_AT_ONCE)):
        arms = list(dict.fromkeys(arm for student in block for arm in results[student]))
        rows = [["teacher", *block, "us"]]
        for arm in arms:
            costs = [results[student][arm]["us_per_task"]["mean"] for student in block if arm in results[student]]
            rows.append([arm, *(cell(results[student].get(arm)) for student in block), f"{sum(costs) / len(costs):.0f}"])
        if markdown:
            lines = [f"| {' | '.join(row)} |" for row in rows]
            lines.insert(1, f"|{'---|' * len(rows[0])}")
        else:
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, LEGEND])


def cell(row: Row | None) -> str:
    """The figures of one teacher with one student."""

    def number(name: str, digits: int) -> str:
        mean = row[name]["mean"] if row else None
        return "-" if mean is None else f"{mean:.{digits}f}"

    if row is None:
        return ""
    if "rmse" in row:
        return number("rmse", 3)
    if "macro" in row:
        noise = f" {number('noise_share', 2)}" if "noise_share" in row else ""
        return f"{number('macro', 3)}/{number('worst', 2)}{noise}"
    return f"{number('final', 2)}/{number('worst', 2)} ({number('auc', 2)})"
