"""What another run's teacher issued, step for step, whatever this learner does: the control that tells feedback from ordering.

    step t issues the families and difficulties (all axes) of step t of the trace, in their order, with this run's scenarios and seeds

If the adaptive run does better than its yoked copies with other seeds, then it is by reacting to its own learner; what the yoked copies
have over `shuffled` they owe to the order. The trace is a run's folder, its `teacher.jsonl`, or a file of the same task events.

How many steps a budget in tokens buys is not known beforehand: a learner that is kept at the wrong difficulty talks longer or shorter.
A copy that buys fewer steps never sees the end of the trace. For one that buys more, `on_end: hold` goes on with the last tenth of the
trace, again and again: as strict as the recorded run had become, with its mix of families. `stop` ends the run with an error instead, and
belongs together with a budget in steps; then a trace that is too short is refused before anything starts.

Source: our own; the yoked control is that of experiments on learning in animals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from curriculum.checks import require_between, require_one_of
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, refuse_allocation
from curriculum.teacher import FamilyKey
from curriculum.trace import read_trace

HELD_SHARE = 0.1
"""Share of the trace, at its end, that is repeated once it is over."""


class AtEnd(StrEnum):
    """What follows the last step of the trace."""

    HOLD = "hold"
    STOP = "stop"


@dataclass
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
