"""Control teachers that replay the tasks of another run: the trace of its teacher, yoked and shuffled."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_dataclass

from curriculum.task import FamilyKey, Mode, TaskSpec, task_from_record, task_to_record
from curriculum.teacher import Choice, LedgerTeacher, TeacherConfig, refuse_allocation, task_seed
from simulator.scenario import Difficulty
from simulator.settings import SETTINGS

RECORD = "teacher.jsonl"
"""File of a run's folder with its tasks; lines other than task events are passed over."""
MODES = tuple(Mode)
WIDTH = 5
"""Numbers kept of a task: family, mode, three axes of difficulty."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """The tasks that another run's teacher issued: S steps of G groups each; about 40 bytes a group."""

    families: tuple[FamilyKey, ...]
    tasks_SGC: np.ndarray
    """[S, G, 5] index into `families`, index into `MODES`, strictness, reserve and impatience in [0, 1]."""
    digest: str
    """Of the content above, independent of the file's layout."""

    @property
    def num_steps(self) -> int:
        """Steps recorded."""
        return self.tasks_SGC.shape[0]

    @property
    def num_groups(self) -> int:
        """Groups in each step."""
        return self.tasks_SGC.shape[1]

    def task(self, step: int, slot: int) -> tuple[FamilyKey, Mode, Difficulty]:
        """Family, mode and difficulty of a task."""
        family, mode, strictness, reserve, impatience = self.tasks_SGC[step, slot].tolist()
        difficulty = Difficulty(strictness=strictness, reserve=reserve, impatience=impatience)
        return self.families[int(family)], MODES[int(mode)], difficulty


def append_tasks(path: str | Path, tasks: Iterable[TaskSpec]) -> None:
    """Adds a proposal to a file that can be followed later, for trainers other than Attune's, whose runs record it in their folder.

    A trainer that resumes from a checkpoint appends the steps after it once more; the later record of a step then counts.
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
        ValueError: there is no such file, or its content cannot be followed.
    """
    path = Path(where).expanduser()
    path = path / RECORD if path.is_dir() else path
    if not where or not path.is_file():
        raise ValueError(f"teacher.trace must name a run's folder or its {RECORD}, got {where!r}; there is no such file")
    index = {str(family): i for i, family in enumerate(families)}
    rows = array("d")
    num_groups: list[int] = []  # by step
    latest = 0
    uids: set[str] = set()  # of the latest step
    for place, task in _tasks(path):
        if str(task.family) not in index:
            raise ValueError(f"teacher.trace must issue only families of this run, got {str(task.family)!r} in {place}")
        if task.seed == task_seed(seed, task.teacher_step, 0):
            raise ValueError(f"teacher.trace must be recorded with another seed than this run's, got {seed} in both")
        if num_groups and (latest - len(num_groups) < task.teacher_step < latest or task.uid in uids):
            # The run resumed from a checkpoint: this step was taken once more, and all that came after it.
            del num_groups[task.teacher_step - latest - 1 :]
            del rows[sum(num_groups) * WIDTH :]
            latest = task.teacher_step - 1
            uids.clear()
        if task.teacher_step != latest or not num_groups:
            if num_groups:
                _require_next(num_groups, latest, task.teacher_step, place)
            num_groups.append(0)
            uids.clear()
        uids.add(task.uid)
        latest = task.teacher_step
        num_groups[-1] += 1
        rows.extend((index[str(task.family)], MODES.index(task.mode), *task.difficulty.to_dict().values()))
    if not num_groups:
        raise ValueError(f"teacher.trace must hold task events, got none in {path}")
    _require_next(num_groups, latest, latest + 1, path)
    tasks_SGC = np.array(rows).reshape(len(num_groups), num_groups[0], WIDTH)
    names = [str(family) for family in families]
    digest = hashlib.sha256(json.dumps([names, *tasks_SGC.shape]).encode() + tasks_SGC.tobytes())
    return Trace(families=tuple(families), tasks_SGC=tasks_SGC, digest=digest.hexdigest())


def _tasks(path: Path) -> Iterator[tuple[str, TaskSpec]]:
    """Every task event with its place, without a last line torn by a kill."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            place = f"line {number} of {path}"
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                if not line.endswith("\n"):
                    return
                raise ValueError(f"teacher.trace must hold one JSON object a line, got none in {place}") from error
            try:
                task = task_from_record(record) if record["event"] == "task" else None
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"teacher.trace must hold events as a run records them, got {error!r} in {place}") from error
            if task:
                yield place, task


def _require_next(num_groups: Sequence[int], latest: int, step: int, place: object) -> None:
    """Raises ValueError unless the latest step has as many groups as the first, and `step` is the next one."""
    if num_groups[-1] != num_groups[0]:
        raise ValueError(
            f"teacher.trace must have the same number of groups in every step, got {num_groups[-1]} in step {latest}"
            f" and {num_groups[0]} in the first, at {place}; finish a run that was cut off, or leave that step out"
        )
    if step != latest + 1:
        raise ValueError(f"teacher.trace must hold every step in order, got step {step} after {latest} in {place}")


HELD_SHARE = 0.1
"""Share of the trace, at its end, that is repeated once it is over."""


class AtEnd(StrEnum):
    """What follows the last step of the trace."""

    HOLD = "hold"
    STOP = "stop"


@settings_dataclass(config=SETTINGS)
class YokedConfig(TeacherConfig):
    """Settings of `YokedTeacher`."""

    trace: str = ""
    """A run's folder, its teacher.jsonl, or a file of the same task events; recorded with another seed."""
    on_end: AtEnd = AtEnd.HOLD
    """What follows the end of the trace: `hold` goes on as it ended, `stop` ends the run with an error."""
    min_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Steps that the trace must have at least; a shorter one is refused before anything starts."""
    regroup: bool = False
    """Whether the trace's groups are dealt on where its steps have another number of groups than this run's; false refuses that."""

    def __post_init__(self) -> None:
        refuse_allocation(self, "those of teacher.trace")


class YokedTeacher(LedgerTeacher):
    """Repeats another run's tasks, step for step and independent of this learner: the control that separates feedback from ordering.

        step t issues the families and difficulties (all axes) of step t of the trace, in their order, with this run's scenarios and seeds

    If the adaptive run does better than its yoked copies with other seeds, then because it reacts to its own learner; an advantage of the
    yoked copies over `shuffled` is due to the order. The trace is a run's folder, its `teacher.jsonl`, or a file of the same task events.

    The number of steps that a budget in tokens buys is not known beforehand: a learner that is kept at the wrong difficulty talks longer or
    shorter. A copy that buys fewer steps never sees the end of the trace. For one that buys more, `on_end: hold` goes on with the last
    tenth of the trace, again and again: as strict as the recorded run had become, with its mix of families. `stop` ends the run with an
    error instead, and belongs together with a budget in steps; then a trace that is too short is refused before anything starts.

    Source: our own; the yoked control is that of experiments on learning in animals.
    """

    kind = "yoked"
    plans_by_proposal = True
    adapting = ("num_issued",)
    config: YokedConfig

    def start(self) -> None:
        self.trace = read_trace(self.config.trace, families=self.families, seed=self.seed)
        self.require_steps(self.config.min_steps)
        self.num_issued = 0
        # (step, slot) of the trace for the groups of the proposal that is being made.
        self._places: list[tuple[int, int]] = []

    def require_steps(self, num_steps: int) -> None:
        """Raises ValueError when the trace has fewer steps."""
        if self.trace.num_steps < num_steps:
            raise ValueError(f"teacher.trace must have at least {num_steps} steps, got {self.trace.num_steps} in {self.config.trace!r}")

    def step_of_trace(self, step: int) -> int:
        """The step of the trace that this run's `step` repeats, both counted from 0."""
        end = self.trace.num_steps
        held = max(1, round(HELD_SHARE * end))
        return step if step < end else end - held + (step - end) % held

    def propose(self, num_groups: int, *, policy_version: int) -> list[TaskSpec]:
        """The trace's next tasks.

        Raises:
            ValueError: its steps have another number of groups, and `regroup` is off.
            RuntimeError: it is over, and `on_end` is `stop`.
        """
        if num_groups != self.trace.num_groups and not self.config.regroup:
            raise ValueError(
                f"num_groups must be {self.trace.num_groups}, as in every step of the trace, got {num_groups};"
                " teacher.regroup=true deals its groups on regardless"
            )
        return super().propose(num_groups, policy_version=policy_version)

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        trace = self.trace
        places = [divmod(i, trace.num_groups) for i in range(self.num_issued, self.num_issued + num_groups)]
        if self.config.on_end is AtEnd.STOP and places[-1][0] >= trace.num_steps:
            raise RuntimeError(f"the trace ended after {trace.num_steps} steps; teacher.on_end=hold would have gone on as it ended")
        self._places = [(self.step_of_trace(step), slot) for step, slot in places]
        self.num_issued += num_groups
        return [(trace.task(*place)[0], 1.0) for place in self._places]

    def choose(self, family: FamilyKey) -> Choice:
        _, mode, difficulty = self.trace.task(*self._places.pop(0))
        return Choice(difficulty, mode)

    def metrics(self) -> dict[str, float]:
        replayed = self.num_issued / (self.trace.num_steps * self.trace.num_groups)
        return {**super().metrics(), f"curriculum/{self.kind}/replayed": replayed}

    def _identity(self) -> dict[str, Any]:
        """With the trace's digest for its place, as the file may have moved."""
        identity = super()._identity()
        return {**identity, "settings": {**identity["settings"], "trace": self.trace.digest}}


@settings_dataclass(config=SETTINGS)
class ShuffledConfig(YokedConfig):
    """Settings of `ShuffledTeacher`."""


class ShuffledTeacher(YokedTeacher):
    """Repeats the steps of another run's trace in an order drawn once from this run's seed: `yoked` without the order.

        step t issues step order(t) of the trace, all its groups together;   order ~ uniform over permutations, from the seed alone

    The mix of difficulties and families stays the same over the whole trace, but early steps are not easy and late ones not strict. A run
    that buys fewer steps than the trace has gets a fair sample of them; one that buys more goes on with a second order, and so on.

    Source: see `YokedTeacher`.
    """

    kind = "shuffled"
    config: ShuffledConfig

    def step_of_trace(self, step: int) -> int:
        """The step of the trace that this run's `step` repeats, both counted from 0."""
        time_through, place = divmod(step, self.trace.num_steps)
        return int(drawn_order(self.seed, time_through, self.trace.num_steps)[place])


@lru_cache(maxsize=8)
def drawn_order(seed: int, time_through: int, num_steps: int) -> np.ndarray:
    """[S] the order in which a trace is gone through for the n-th time."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(time_through,))).permutation(num_steps)
