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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curriculum import NEEDS, TEACHERS
from curriculum.replayed import append_tasks
from curriculum.toy.simulation import build_teacher, configure, figures, simulate
from curriculum.toy.students import STUDENTS

RECORDED = "run:"
"""A setting of this and a kind of teacher means the tasks that it issued in a run with the same student and another seed."""


@dataclass(frozen=True)
class Arm:
    """A teacher under comparison."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """By dotted name, as text or values; the others are at their defaults."""


def all_arms() -> dict[str, Arm]:
    """Every registered teacher at least once, by name; those whose packages are not installed are left out."""
    # Settings of a kind's arms, by name; any other kind runs once, at its defaults.
    variants: dict[str, dict[str, dict[str, Any]]] = {
        "fixed": {"fixed_.2": {"strictness": 0.2}, "fixed_.5": {"strictness": 0.5}, "fixed_.9": {"strictness": 0.9}},
        "linear": {
            "linear": {"num_steps": "T"},
            "linear_T/2": {"num_steps": "T/2"},
            "linear_2T": {"num_steps": "2T"},
            "linear_reverse": {"num_steps": "T", "start": 1.0, "end": 0.0},
        },
        "adarft": {
            "adarft": {},
            "adarft_.05": {"eta": 0.05},
            "adarft_.05_per_family": {"eta": 0.05, "per_family": True},
            "adarft_.05_tagged": {"eta": 0.05, "tagged": True},
        },
        "rlve": {"rlve": {}, "rlve_.6": {"threshold": 0.6}, "rlve_reversible": {"reversible": True}},
        "plr": {"plr": {}, "plr_robust": {"robust": True}},
        "beta_thompson": {"beta_thompson": {}, "beta_thompson_progress": {"allocation.uniform_floor": 0.25}},
        "frontier": {"frontier": {}, "frontier_no_entropy": {"entropy": False}},
        "target": {"target": {}, "target_no_guard": {"guard.enabled": False}},
        **{kind: {kind: {}, f"{kind}_flat": {"scope": "flat"}} for kind in ("sec", "dump", "progress")},
        **{kind: {kind: {"trace": RECORDED + "frontier"}} for kind in ("yoked", "shuffled")},
    }
    kinds = [kind for kind in TEACHERS if kind not in NEEDS or find_spec(NEEDS[kind])]
    return {name: Arm(name, kind, settings) for kind in kinds for name, settings in variants.get(kind, {kind: {}}).items()}


def parse_arms(words: Sequence[str]) -> list[Arm]:
    """The arms that `words` name: `all`, a name of `all_arms()`, a kind, or a kind with settings as in `fixed:strictness=.2`.

    Raises:
        ValueError: no such teacher or setting, or a setting out of range.
    """
    known = all_arms()
    if "all" in words:
        return list(known.values())
    arms = []
    for word in dict.fromkeys(words):
        kind, _, text = word.partition(":")
        if word not in known and kind not in TEACHERS:
            names = ", ".join(dict.fromkeys([*TEACHERS, *known]))
            raise ValueError(f"--teachers must be all, one of {names}, or KIND:SETTING=VALUE,..., got {word!r}")
        # A comma inside brackets belongs to a list.
        pairs = [pair.partition("=") for pair in re.split(r",(?![^\[]*\])", text) if text]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError(f"--teachers must set a teacher as in KIND:SETTING=VALUE,..., got {word!r}")
        arm = known.get(word) or Arm(word, kind, {name.strip(): value.strip() for name, _, value in pairs})
        for name, value in arm.settings.items():
            if isinstance(value, str) and value.startswith(RECORDED) and value.removeprefix(RECORDED) not in TEACHERS:
                raise ValueError(f"teacher.{name} must name one of {', '.join(TEACHERS)} after {RECORDED}, got {value!r}")
        configure(TEACHERS[arm.kind][0](), resolve(arm.settings, num_updates=100))
        arms.append(arm)
    return arms


def resolve(settings: Mapping[str, Any], *, num_updates: int) -> dict[str, Any]:
    """`settings` with "T", "T/2" and "2T" made the student's number of updates, half and twice of it."""
    lengths = {"T": num_updates, "T/2": round(0.5 * num_updates), "2T": 2 * num_updates}
    return {name: lengths.get(value, value) if isinstance(value, str) else value for name, value in settings.items()}


Results = dict[str, dict[str, Mapping[str, Mapping[str, Any]]]]
"""{student: {teacher: {figure: {"mean", "ci95", "per_seed"}}}}; None for events that did not happen and intervals of fewer than two."""


class Job(NamedTuple):
    """One run."""

    student: str
    arm: Arm
    seed: int


def run_one(student: str, kind: str, settings: Mapping[str, Any] | None = None, seed: int = 0) -> dict[str, float]:
    """The figures of one run; student and teacher by name.

    Args:
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
    """Builds every teacher for every student once, so that settings that a teacher refuses (ValueError) stop the benchmark at once."""
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
        yield from ((job, run_one(job.student, job.arm.kind, job.arm.settings, job.seed)) for job in jobs)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        running = {pool.submit(run_one, job.student, job.arm.kind, job.arm.settings, job.seed): job for job in jobs}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


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


def read(path: Path, *, option: str) -> Results:
    """The content of a file that `benchmark --out` wrote; a ValueError names the `option` that gave it if there is none."""
    try:
        results: Results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{option} must be a file that `benchmark --out` wrote, got {str(path)!r}") from None
    return results


def tables(results: Results, *, markdown: bool = False) -> str:
    """All results as text or as Markdown: a row for each teacher, a column for each student, five students at once."""
    blocks = []
    for i in range(0, len(results), 5):
        block = list(results)[i : i + 5]
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
    legend = (
        "Where a frontier is to be tracked: rmse of the strictness issued. Otherwise final/worst (auc): mean success over all cells at the"
        " end, the worst cell's, and the mean over the run; with families macro/worst, then the share of tasks spent on noise if there is"
        " any. us: CPU of the teacher for each task, microseconds. Means over seeds."
    )
    return "\n\n".join([*blocks, legend])


def cell(row: Mapping[str, Mapping[str, Any]] | None) -> str:
    """The figures of one teacher with one student."""
    digits = {"rmse": 3, "macro": 3}
    text = {name: "-" if values["mean"] is None else f"{values['mean']:.{digits.get(name, 2)}f}" for name, values in (row or {}).items()}
    if not text or "rmse" in text:
        return text.get("rmse", "")
    if "macro" in text:
        return f"{text['macro']}/{text['worst']} {text.get('noise_share', '')}".rstrip()
    return f"{text['final']}/{text['worst']} ({text['auc']})"
