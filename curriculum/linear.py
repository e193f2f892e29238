"""From one strictness to another in equal steps, whatever the learner does: the schedule that adaptive teachers have to beat.

    d_t = start + (end - start) * min(t, T) / T,     t = 0, 1, ... the teacher's steps, T = num_steps

t counts proposals and not policy versions: each proposal costs about as many tokens, so under a token budget t is the budget spent, and
an update that never comes (an empty batch where everyone failed alike) cannot hold the schedule at the very strictness that caused it.
Set T to the steps that the budget buys. With start > end it is the reverse schedule, a negative control.

Tuned to the learner's speed it comes close to the best adaptive teacher; when the learner is three times slower than was thought it runs
away from it, and no later step brings it back. Report it with T halved and doubled as well.

Source: Syllabus, `SimulatedAnnealing` (arXiv 2411.11318).
"""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.checks import require_between
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig
from curriculum.teacher import FamilyKey, Mode


@dataclass
class LinearConfig(TeacherConfig):
    """Settings of `LinearTeacher`."""

    start: float = 0.0
    """[0, 1]: strictness of the first step."""
    end: float = 1.0
    """[0, 1]: strictness from step `num_steps` on."""
    num_steps: int = 100
    """[1, 1e6]: steps from one to the other; as many as the budget buys."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.start", self.start, 0.0, 1.0)
        require_between("teacher.end", self.end, 0.0, 1.0)
        require_between("teacher.num_steps", self.num_steps, 1, 1e6)


class LinearTeacher(LedgerTeacher):
    """d moves from `start` to `end`, families in turn."""

    kind = "linear"
    plans_by_proposal = True
    config: LinearConfig

    def choose(self, family: FamilyKey) -> Choice:
        """Where the schedule stands in this step; the first step is at `start`."""
        done = min((self._step - 1) / self.config.num_steps, 1.0)
        return Choice((1.0 - done) * self.config.start + done * self.config.end, Mode.FRONTIER, 1.0)
