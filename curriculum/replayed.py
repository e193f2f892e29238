"""Control teachers that replay the tasks of another run, in its order (yoked) or in another (shuffled)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from curriculum.task import FamilyKey, Mode, TaskSpec
from curriculum.teacher import Teacher, TeacherConfig, task_seed
from simulator.scenario import Difficulty
from simulator.settings import SETTINGS

Repeated = tuple[FamilyKey, Difficulty, Mode]  # the part of a task that is repeated


def append_tasks(path: str | Path, tasks: Iterable[TaskSpec]) -> None:
    """Adds a proposal to a file that can be followed later, for trainers other than Attune's, whose runs record it in their folder.

    A trainer that resumes from a checkpoint appends the steps after it once more; the later record of a step then counts.
    """
    with Path(path).open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"event": "task", **task.to_dict()}) + "\n" for task in tasks)


def read_steps(where: str, *, families: Sequence[FamilyKey], seed: int) -> list[list[Repeated]]:
    """The tasks of a run by step, equally many in each; ValueError where there are none or they cannot be followed.

    Args:
        where: the folder of a run, its teacher.jsonl, or a file of the same task events; other events are passed over.
        families: those of the run that will follow.
        seed: of that run; a trace with the same seed is refused, because both would play the same dialogues.
    """
    path = Path(where).expanduser()
    path = path / "teacher.jsonl" if path.is_dir() else path
    if not where or not path.is_file():
        raise ValueError(f"teacher.trace must name a run's folder or its teacher.jsonl, got {where!r}; there is no such file")
    tasks: list[TaskSpec] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
                if record["event"] == "task":
                    tasks.append(TaskSpec.from_dict(record))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"teacher.trace must hold a run's events, got {error!r} in line {number} of {path}") from error
    steps: list[list[Repeated]] = []
    first = tasks[0].teacher_step if tasks else 0
    uids: set[str] = set()  # of the latest step
    for task in tasks:
        i = task.teacher_step - first
        if task.family not in families:
            raise ValueError(f"teacher.trace must issue only families of this run, got {str(task.family)!r} in {path}")
        if task.seed == task_seed(seed, task.teacher_step, 0):
            raise ValueError(f"teacher.trace must be recorded with another seed than this run's, got {seed} in both")
        if 0 <= i < len(steps) and (i < len(steps) - 1 or task.uid in uids):
            # The run resumed from a checkpoint: this step was taken once more, and all that came after it.
            del steps[i:]
        if i == len(steps):
            steps.append([])
            uids.clear()
        if i != len(steps) - 1:
            raise ValueError(f"teacher.trace must hold every step in order, got step {i + first} after {len(steps) - 1 + first} in {path}")
        steps[i].append((task.family, task.difficulty, task.mode))
        uids.add(task.uid)
    if not steps:
        raise ValueError(f"teacher.trace must hold task events, got none in {path}")
    for i, groups in enumerate(steps):
        if len(groups) != len(steps[0]):
            raise ValueError(f"teacher.trace must have {len(steps[0])} groups a step, got {len(groups)} in step {i + first} of {path}")
    return steps


@dataclass(config=SETTINGS)
class YokedConfig(TeacherConfig):
    """Settings of `YokedTeacher` and `ShuffledTeacher`."""

    trace: str = ""
    """A run's folder, its teacher.jsonl, or a file of the same task events; recorded with another seed."""
    on_end: Literal["hold", "stop"] = "hold"
    """What follows the end of the trace: `hold` goes on as it ended, `stop` ends the run with an error."""
    regroup: bool = False
    """Whether the trace's groups are dealt on where its steps have another number of groups than this run's; false refuses that."""

    def __post_init__(self) -> None:
        self.refuse_allocation("those of teacher.trace")


class YokedTeacher(Teacher):
    """Repeats another run's tasks, step for step and independent of this learner: the control that separates feedback from ordering.

        step t issues the families and difficulties (all axes) of step t of the trace, in their order, with this run's scenarios and seeds

    If the adaptive run does better than its yoked copies with other seeds, then because it reacts to its learner; an advantage of the yoked
    copies over `shuffled` is due to the order.

    A budget in tokens buys more or fewer steps than the trace has. When the trace is over, `on_end: hold` repeats its last tenth, again and
    again: as strict as the recorded run had become, with its mix of families. `stop` ends the run with an error instead, and belongs
    together with a budget in steps; then a trace that is too short is refused before anything starts.

    Source: our own; the yoked control is that of experiments on learning in animals.
    """

    kind = "yoked"
    plans_by_proposal = True
    adapting = ("num_issued",)
    config: YokedConfig

    def start(self) -> None:
        self.steps = read_steps(self.config.trace, families=self.families, seed=self.seed)
        content = [[(str(family), difficulty.to_dict(), mode) for family, difficulty, mode in groups] for groups in self.steps]
        self.digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        self.num_issued = 0
        # What the groups of the proposal that is being made repeat.
        self._next: list[Repeated] = []

    def require_steps(self, num_steps: int) -> None:
        """Raises ValueError when the trace has fewer steps."""
        if len(self.steps) < num_steps:
            raise ValueError(f"teacher.trace must have at least {num_steps} steps, got {len(self.steps)} in {self.config.trace!r}")

    def step_of_trace(self, step: int) -> int:
        """The step of the trace that this run's `step` repeats, both counted from 0."""
        end = len(self.steps)
        held = max(1, round(0.1 * end))
        return step if step < end else end - held + (step - end) % held

    def propose(self, num_groups: int, *, policy_version: int) -> list[TaskSpec]:
        """The trace's next tasks; RuntimeError when it is over and `on_end` is `stop`."""
        if num_groups != len(self.steps[0]) and not self.config.regroup:
            raise ValueError(f"num_groups must be the trace's {len(self.steps[0])} without teacher.regroup=true, got {num_groups}")
        return super().propose(num_groups, policy_version=policy_version)

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        places = [divmod(i, len(self.steps[0])) for i in range(self.num_issued, self.num_issued + num_groups)]
        if self.config.on_end == "stop" and places[-1][0] >= len(self.steps):
            raise RuntimeError(f"the trace ended after {len(self.steps)} steps; teacher.on_end=hold would have gone on as it ended")
        self._next = [self.steps[self.step_of_trace(step)][slot] for step, slot in places]
        self.num_issued += num_groups
        return [(family, 1.0) for family, _, _ in self._next]

    def choose(self, family: FamilyKey) -> TaskSpec:
        return self.task(*self._next.pop(0))

    def metrics(self) -> dict[str, float]:
        replayed = self.num_issued / (len(self.steps) * len(self.steps[0]))
        return {**super().metrics(), f"curriculum/{self.kind}/replayed": replayed}

    def identity(self) -> dict[str, Any]:
        """With the trace's digest for its place, as the file may have moved."""
        identity = super().identity()
        return {**identity, "settings": {**identity["settings"], "trace": self.digest}}


class ShuffledTeacher(YokedTeacher):
    """Repeats the steps of another run's trace in an order drawn once from this run's seed: `yoked` without the order.

        step t issues step order(t) of the trace, all its groups together;   order ~ uniform over permutations, from the seed alone

    The mix of difficulties and families stays the same over the whole trace, but early steps are not easy and late ones not strict. A run
    that buys fewer steps than the trace has gets a fair sample of them; one that buys more goes on with a second order, and so on.

    Source: see `YokedTeacher`.
    """

    kind = "shuffled"

    def step_of_trace(self, step: int) -> int:
        time_through, place = divmod(step, len(self.steps))
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(time_through,)))
        return int(rng.permutation(len(self.steps))[place])
