"""What the teacher of another run issued, step by step: read from that run's record, checked, and kept as numbers.

Attune's runs leave such a record in their folder; another trainer keeps one by giving each proposal to `append_tasks`.
"""

from __future__ import annotations

import hashlib
import json
import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from curriculum.checks import require_between, require_fields
from curriculum.ledger import task_from_record, task_seed, task_to_record
from curriculum.teacher import FamilyKey, Mode, TaskSpec
from simulator.difficulty import Difficulty

RECORD = "teacher.jsonl"
"""File of a run's folder that holds the tasks; lines other than task events are passed over."""
MODES = tuple(Mode)
WIDTH = 6
"""Numbers kept of a task while its file is read."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """S steps of G groups each; about 40 bytes a group."""

    families: tuple[FamilyKey, ...]
    family_SG: np.ndarray
    """[S, G] index into `families`."""
    mode_SG: np.ndarray
    """[S, G] index into `MODES`."""
    strictness_SG: np.ndarray
    """[S, G] in [0, 1]."""
    axes_SGA: np.ndarray
    """[S, G, 3] the axes of difficulty, in [0, 1]."""
    digest: str
    """Of the content above, whatever the file's layout."""

    @property
    def num_steps(self) -> int:
        """Steps recorded."""
        return self.family_SG.shape[0]

    @property
    def num_groups(self) -> int:
        """Groups in each step."""
        return self.family_SG.shape[1]

    def family(self, step: int, slot: int) -> FamilyKey:
        """The family that was practised there."""
        return self.families[self.family_SG[step, slot]]

    def mode(self, step: int, slot: int) -> Mode:
        """Why it was issued."""
        return MODES[self.mode_SG[step, slot]]

    def difficulty(self, step: int, slot: int) -> Difficulty:
        """The point that was issued, all axes."""
        return Difficulty(**dict(zip(("strictness", "reserve", "impatience"), self.axes_SGA[step, slot].tolist(), strict=True)))

    def state_dict(self) -> dict[str, Any]:
        """Which trace this is; what it says stays in its file."""
        return {"digest": self.digest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError when the state was made with another trace; there is nothing to restore."""
        require_fields("teacher state's trace", state, ("digest",))
        if state["digest"] != self.digest:
            raise ValueError(
                f"teacher.trace must be the one that the state was made with (digest {str(state['digest'])[:12]}),"
                f" got another ({self.digest[:12]}); resume with the trace that the run began with"
            )


def append_tasks(path: str | Path, tasks: Iterable[TaskSpec]) -> None:
    """Adds a proposal to a file that can be followed later.

    A trainer that goes on from a checkpoint appends again what came after it; the later record of a step then counts.
    """
    with Path(path).open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"event": "task", **task_to_record(task)}) + "\n" for task in tasks)


def read_trace(where: str, *, families: Sequence[FamilyKey], seed: int) -> Trace:
    """Reads the tasks of a run, one at a time.

    Args:
        where: the folder of a run, its teacher.jsonl, or a file of the same task events.
        families: those of the run that will follow the trace.
        seed: of the run that will follow; a trace with the same seed is refused, because both would play the same dialogues.

    Raises:
        ValueError: there is no such file, or what it holds cannot be followed.
    """
    path = Path(where).expanduser()
    path = path / RECORD if path.is_dir() else path
    if not where or not path.is_file():
        raise ValueError(f"teacher.trace must name a run's folder or its {RECORD}, got {where!r}; there is no such file")
    index = {str(family): i for i, family in enumerate(families)}
    rows = array("d")
    num_groups: list[int] = []
    latest: int | None = None
    uids: set[str] = set()  # of the latest step
    for place, task in _tasks(path):
        if str(task.family) not in index:
            raise ValueError(f"teacher.trace must issue only families of this run, got {str(task.family)!r} in {place}")
        if task.teacher_step != latest and task.seed == task_seed(seed, task.teacher_step, 0):
            raise ValueError(
                f"teacher.trace must be recorded with another seed than this run's, got {seed} in both; follow it with another"
            )
        goes_back = latest is not None and latest - len(num_groups) < task.teacher_step < latest
        if latest is not None and (goes_back or task.uid in uids):
            # The record of a run that went on from a checkpoint: this step was taken again, and all that came after it.
            del num_groups[task.teacher_step - latest - 1 :]
            del rows[sum(num_groups) * WIDTH :]
            latest = task.teacher_step - 1 if num_groups else None
        if task.teacher_step != latest:
            _require_next(num_groups, latest, task.teacher_step, place)
            num_groups.append(0)
            uids.clear()
        uids.add(task.uid)
        latest = task.teacher_step
        num_groups[-1] += 1
        rows.extend((index[str(task.family)], MODES.index(task.mode), task.strictness, *task.difficulty.to_dict().values()))
    if latest is None:
        raise ValueError(f"teacher.trace must hold task events, got none in {path}")
    _require_next(num_groups, latest, latest + 1, path)
    return _pack(np.array(rows).reshape(len(num_groups), num_groups[0], -1), families)


def _tasks(path: Path) -> Iterator[tuple[str, TaskSpec]]:
    """Every task event with the place where it stands."""
    for place, record in _records(path):
        try:
            if record["event"] != "task":
                continue
            task = task_from_record({key: value for key, value in record.items() if key not in ("event", "step")})
            if task.mode is Mode.PROBE:
                raise ValueError("a probe, which no teacher issues")
            require_between("teacher_step", operator.index(task.teacher_step), 0, 1e12)
        except (ValueError, KeyError, TypeError) as error:
            said = f"no field {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"teacher.trace must hold events as a run records them, got in {place}: {said}") from error
        yield place, task


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Every record with the place where it stands, without a last line torn by a kill.

    Another trainer's file has no step in its lines, and perhaps no end to its last one.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            place = f"line {number} of {path}"
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                if not line.endswith("\n"):
                    return
                raise ValueError(f"teacher.trace must hold one JSON object a line, got none in {place}") from error
            yield place, record


def _require_next(num_groups: Sequence[int], latest: int | None, step: int, place: object) -> None:
    """Raises unless the steps so far have as many groups as the first, and `step` is the next one."""
    if latest is None:
        return
    if num_groups[-1] != num_groups[0]:
        raise ValueError(
            f"teacher.trace must have the same number of groups in every step, got {num_groups[-1]} in step {latest}"
            f" and {num_groups[0]} in the first, at {place}; finish a run that was cut off, or leave that step out"
        )
    if step != latest + 1:
        raise ValueError(f"teacher.trace must hold every step in order, got step {step} after {latest} in {place}")


def _pack(rows_SGC: np.ndarray, families: Sequence[FamilyKey]) -> Trace:
    names = [str(family) for family in families]
    digest = hashlib.sha256(json.dumps([names, *rows_SGC.shape]).encode() + rows_SGC.tobytes())
    return Trace(
        families=tuple(families),
        family_SG=rows_SGC[..., 0].astype(np.int32),
        mode_SG=rows_SGC[..., 1].astype(np.int8),
        strictness_SG=rows_SGC[..., 2].copy(),
        axes_SGA=rows_SGC[..., 3:].copy(),
        digest=digest.hexdigest(),
    )
