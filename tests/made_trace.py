"""Tasks that a run's teacher recorded, made by a real teacher, for teachers that follow another run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from curriculum import TEACHERS
from curriculum.replayed import append_tasks
from curriculum.task import TaskSpec
from curriculum.teacher import Teacher
from simulator.scenario import FAMILIES

SEED = 7_654_321
"""Of the recorded run; no test's own."""
FOLDER = TemporaryDirectory(prefix="traces-")


def record(teacher: Teacher, *, num_steps: int, num_groups: int) -> list[list[TaskSpec]]:
    """The tasks of each step."""
    first = teacher.policy_version
    return [teacher.propose(num_groups, policy_version=first + step) for step in range(num_steps)]


def write_trace(path: Path, steps: Iterable[Sequence[TaskSpec]]) -> Path:
    """A trace, in place of an earlier one."""
    path.unlink(missing_ok=True)
    for tasks in steps:
        append_tasks(path, tasks)
    return path


@cache
def any_trace() -> Path:
    """Forty steps of six groups over all families."""
    config, teacher = TEACHERS["frontier"]
    recorded = teacher(config(), scenarios={family: ["a"] for family in FAMILIES}, group_size=2, seed=SEED)
    return write_trace(Path(FOLDER.name) / "teacher.jsonl", record(recorded, num_steps=40, num_groups=6))


def usable_settings(kind: str) -> Any:
    """A teacher's defaults, with a trace where it needs one, dealt on for any size of a step."""
    config, _ = TEACHERS[kind]
    return config(trace=str(any_trace()), regroup=True) if hasattr(config(), "trace") else config()
