"""What the teacher of another run issued, step by step: read from that run's record, checked, and kept as numbers.

Attune's runs leave such a record in their folder; another trainer keeps one by giving each proposal to `append_tasks`.

What another run's teacher issued, step for step, whatever this learner does: the control that tells feedback from ordering.

    step t issues the families and difficulties (all axes) of step t of the trace, in their order, with this run's scenarios and seeds

If the adaptive run does better than its yoked copies with other seeds, then it is by reacting to its own learner; what the yoked copies
have over `shuffled` they owe to the order. The trace is a run's folder, its `teacher.jsonl`, or a file of the same task events.

How many steps a budget in tokens buys is not known beforehand: a learner that is kept at the wrong difficulty talks longer or shorter.
A copy that buys fewer steps never sees the end of the trace. For one that buys more, `on_end: hold` goes on with the last tenth of the
trace, again and again: as strict as the recorded run had become, with its mix of families. `stop` ends the run with an error instead, and
belongs together with a budget in steps; then a trace that is too short is refused before anything starts.

Source: our own; the yoked control is that of experiments on learning in animals.

The steps of another run's trace in an order drawn once from this run's seed: what `yoked` is, less the order.

    step t issues step order(t) of the trace, all its groups together;   order ~ uniform over permutations, from the seed alone

The mix of difficulties and families stays what it was, over the whole trace; that early steps were easy and late ones strict is gone. A
run that buys fewer steps than the trace has gets a fair sample of them; one that buys more goes on with a second order, and so on.

Source: see `yoked`.
"""

from __future__ import annotations

import hashlib
import json
import operator
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass as settings_dataclass

from curriculum.checks import require_between, require_fields, require_one_of
from curriculum.task import FamilyKey, Mode, TaskSpec
from curriculum.teacher import Choice, LedgerTeacher, TeacherConfig, refuse_allocation, task_from_record, task_seed, task_to_record
from simulator.scenario import Difficulty
from simulator.settings import SETTINGS

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
    min_steps: int = 0
    """[0, 1e6]: steps that the trace must have at least; a shorter one is refused before anything starts."""
    regroup: bool = False
    """Whether the trace's groups are dealt on where its steps have another number of groups than this run's; false refuses that."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_allocation(self, "those of teacher.trace")
        require_one_of("teacher.on_end", self.on_end, tuple(AtEnd))
        require_between("teacher.min_steps", self.min_steps, 0, 1e6)


class YokedTeacher(LedgerTeacher):
    """Follows a trace; learns nothing."""

    kind = "yoked"
    plans_by_proposal = True
    adapting = ("trace", "num_issued")
    config: YokedConfig

    def __init__(self, config: YokedConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.trace = read_trace(config.trace, families=self.families, seed=seed)
        self.require_steps(config.min_steps)
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

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        """The trace's next families; nothing is left to chance."""
        trace = self.trace
        if num_groups != trace.num_groups and not self.config.regroup:
            raise ValueError(
                f"num_groups must be {trace.num_groups}, as in every step of the trace, got {num_groups};"
                " teacher.regroup=true deals its groups on regardless"
            )
        places = [divmod(i, trace.num_groups) for i in range(self.num_issued, self.num_issued + num_groups)]
        if self.config.on_end == AtEnd.STOP and places[-1][0] >= trace.num_steps:
            raise RuntimeError(f"the trace ended after {trace.num_steps} steps; teacher.on_end=hold would have gone on as it ended")
        self._places = [(self.step_of_trace(step), slot) for step, slot in places]
        self.num_issued += num_groups
        return [(trace.family(*place), 1.0) for place in self._places]

    def choose(self, family: FamilyKey) -> Choice:
        """The difficulty that the trace has in this place."""
        place = self._places.pop(0)
        return Choice(float(self.trace.strictness_SG[place]), self.trace.mode(*place), 1.0, self.trace.difficulty(*place))

    def _settings(self) -> dict[str, Any]:
        """Without the trace's place: it may have moved, and what it says is checked by its digest."""
        return {name: value for name, value in super()._settings().items() if name != "trace"}

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, and how much of the trace was issued: above 1 it is over."""
        replayed = self.num_issued / self.trace.family_SG.size
        return {**super().metrics(), f"curriculum/{self.kind}/replayed": replayed}


@settings_dataclass(config=SETTINGS)
class ShuffledConfig(YokedConfig):
    """Settings of `ShuffledTeacher`."""


class ShuffledTeacher(YokedTeacher):
    """Follows a trace out of order; learns nothing."""

    kind = "shuffled"
    config: ShuffledConfig

    def step_of_trace(self, step: int) -> int:
        """The step of the trace that this run's `step` repeats, both counted from 0."""
        time_through, place = divmod(step, self.trace.num_steps)
        return int(drawn_order(self._seed, time_through, self.trace.num_steps)[place])


@lru_cache(maxsize=8)
def drawn_order(seed: int, time_through: int, num_steps: int) -> np.ndarray:
    """[S] the order in which a trace is gone through for the n-th time."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(time_through,))).permutation(num_steps)
