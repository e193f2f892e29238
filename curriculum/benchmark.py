"""Teachers compared on toy students: many runs side by side, their figures with intervals, and where they are kept."""

from __future__ import annotations

import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curriculum.arms import RECORDED, Arm, build_teacher, resolve
from curriculum.figures import figures
from curriculum.ledger import task_to_record
from curriculum.students import STUDENTS
from curriculum.trial import Trace, simulate
from simulator.drafts import write_whole

Results = dict[str, dict[str, dict[str, dict[str, Any]]]]
"""{student: {teacher: {figure: {"mean", "ci95", "per_seed"}}}}; None for what did not happen or cannot be computed."""


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
        settings: of the teacher, by dotted name; the others are at their defaults. "T", "T/2" and "2T" stand for the student's number of
            updates, "run:KIND" for a file of the tasks that such a teacher issued to the same student with another seed.
        seed: see `simulate`.
    """
    num_updates = STUDENTS[student](np.random.default_rng(0)).num_updates
    chosen = resolve(settings or {}, num_updates=num_updates)
    with tempfile.TemporaryDirectory() as folder:
        for name, value in chosen.items():
            if isinstance(value, str) and value.startswith(RECORDED):
                chosen[name] = str(
                    record_tasks(simulate(student, value.removeprefix(RECORDED), {}, seed + 1), Path(folder) / "teacher.jsonl")
                )
        return figures(simulate(student, kind, chosen, seed))


def record_tasks(trace: Trace, path: Path) -> Path:
    """Writes what was issued as a run's teacher.jsonl has it."""
    events = [{"event": "task", "step": step, **task_to_record(task)} for step, tasks in enumerate(trace.tasks) for task in tasks]
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return path


def check_jobs(students: Iterable[str], arms: Sequence[Arm]) -> None:
    """Builds every teacher for every student once, so that what cannot run is refused before anything does.

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
    by_pair: dict[tuple[str, str], list[tuple[int, Mapping[str, float]]]] = defaultdict(list)
    for job, values in done.items():
        by_pair[job.student, job.arm.name].append((job.seed, values))
    results: Results = {}
    for (student, arm), runs in by_pair.items():
        rows = [values for _, values in sorted(runs, key=lambda run: run[0])]
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
    """Writes `path` at once or not at all."""
    write_whole(path, json.dumps(results, indent=1) + "\n")


def read(path: Path, *, option: str) -> Results:
    """Reads what `write` wrote.

    Args:
        option: the one that named it, for the complaint.

    Raises:
        ValueError: there is no such file, or it holds something else.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        _ = [values["mean"] for arms in results.values() for metrics in arms.values() for values in metrics.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{option} must be a file that `benchmark --out` wrote, got {str(path)!r}") from None
    return results
