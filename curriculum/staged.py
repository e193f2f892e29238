"""One stage of strictness after another, each left when its time is up, when it is mastered, or both.

    d = strictness[s];   s -> s + 1 when the gate opens:
        steps     the stage has lasted num_steps of the teacher's steps (as in `linear`, proposals and not policy versions)
        success   the mean success share of the last `window` groups of the stage is at least `threshold`
        either, both

Only groups issued in the present stage count, so that outcomes of the stage before that come late cannot open the gate. Stages are never
left backwards. The gate of success alone waits for ever where the learner cannot reach the threshold; `either` cannot stall, `both` keeps
a minimum of practice on each stage.

Source: Syllabus, `SequentialCurriculum` (arXiv 2411.11318), whose conditions such as "episode_return>=0.9&steps>1000" are one gate for
all stages here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from curriculum.checks import require_between, require_one_of
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, success_share
from curriculum.teacher import FamilyKey, GroupOutcome, Mode


class Gate(StrEnum):
    """What opens the way to the next stage."""

    STEPS = "steps"
    SUCCESS = "success"
    EITHER = "either"
    BOTH = "both"


@dataclass
class StagedConfig(TeacherConfig):
    """Settings of `StagedTeacher`."""

    strictness: list[float] = field(default_factory=lambda: [0.1, 0.3, 0.5, 0.7, 0.9])
    """[0, 1] each: strictness of the stages, in their order; at least one."""
    gate: Gate = Gate.EITHER
    """What ends a stage: `steps`, `success`, `either` of the two or `both`."""
    num_steps: int = 40
    """[1, 1e6]: steps of a stage, where steps count."""
    threshold: float = 0.7
    """[0, 1]: mean success share that masters a stage, where success counts."""
    window: int = 32
    """[1, 10000]: groups of the stage over which that mean is taken; with fewer the stage is not mastered."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.strictness:
            raise ValueError("teacher.strictness must hold at least one stage, got []")
        for strictness in self.strictness:
            require_between("teacher.strictness", strictness, 0.0, 1.0)
        self.strictness = [float(strictness) for strictness in self.strictness]
        require_one_of("teacher.gate", self.gate, tuple(Gate))
        require_between("teacher.num_steps", self.num_steps, 1, 1e6)
        require_between("teacher.threshold", self.threshold, 0.0, 1.0)
        require_between("teacher.window", self.window, 1, 10_000)


class StagedTeacher(LedgerTeacher):
    """d of the present stage, families in turn."""

    kind = "staged"
    plans_by_proposal = True
    adapting = ("stage", "first_step", "shares")
    config: StagedConfig

    def __init__(self, config: StagedConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.stage = 0
        self.first_step = 1
        # Success shares of the latest groups of this stage.
        self.shares: list[float] = []

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        """Families in turn, after leaving a stage whose gate is open."""
        if self.stage + 1 < len(self.config.strictness) and self.is_open():
            self.decide("next_stage", left=self.stage, lasted=self._step - self.first_step, success=self.success)
            self.stage, self.first_step, self.shares = self.stage + 1, self._step, []
        return super().choose_families(num_groups)

    def choose(self, family: FamilyKey) -> Choice:
        """The strictness of the stage."""
        return Choice(self.config.strictness[self.stage], Mode.FRONTIER, 1.0)

    def is_open(self) -> bool:
        """Whether the present stage may be left."""
        config = self.config
        is_over = self._step - self.first_step >= config.num_steps
        is_mastered = len(self.shares) == config.window and self.success >= config.threshold
        answers = {Gate.STEPS: is_over, Gate.SUCCESS: is_mastered, Gate.EITHER: is_over or is_mastered, Gate.BOTH: is_over and is_mastered}
        return answers[config.gate]

    @property
    def success(self) -> float:
        """Mean success share of the latest groups of this stage, in [0, 1]; 0 before the first."""
        return sum(self.shares) / max(len(self.shares), 1)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Remembers how the groups of this stage fared."""
        issued_here = [success_share(group) for group in groups if group.task.teacher_step >= self.first_step]
        self.shares = [*self.shares, *issued_here][-self.config.window :]

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, the stage and how it goes."""
        return {**super().metrics(), "curriculum/staged/stage": float(self.stage), "curriculum/staged/success": self.success}
