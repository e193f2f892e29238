"""The same strictness always: the baseline that every other teacher has to beat.

    d = strictness; reserve and impatience as on the line of difficulty there, unless they are set apart

Too easy or too hard a value starves the learner of contrast, and the best one is known only in hindsight: a fair comparison reports
several.

From one strictness to another in equal steps, whatever the learner does: the schedule that adaptive teachers have to beat.

    d_t = start + (end - start) * min(t, T) / T,     t = 0, 1, ... the teacher's steps, T = num_steps

t counts proposals and not policy versions: each proposal costs about as many tokens, so under a token budget t is the budget spent, and
an update that never comes (an empty batch where everyone failed alike) cannot hold the schedule at the very strictness that caused it.
Set T to the steps that the budget buys. With start > end it is the reverse schedule, a negative control.

Tuned to the learner's speed it comes close to the best adaptive teacher; when the learner is three times slower than was thought it runs
away from it, and no later step brings it back. Report it with T halved and doubled as well.

Source: Syllabus, `SimulatedAnnealing` (arXiv 2411.11318).

One stage of strictness after another, each left when its time is up, when it is mastered, or both.

    d = strictness[s];   s -> s + 1 when the gate opens:
        steps     the stage has lasted num_steps of the teacher's steps (as in `linear`, proposals and not policy versions)
        success   the mean success share of the last `window` groups of the stage is at least `threshold`
        either, both

Only groups issued in the present stage count, so that outcomes of the stage before that come late cannot open the gate. Stages are never
left backwards. The gate of success alone waits for ever where the learner cannot reach the threshold; `either` cannot stall, `both` keeps
a minimum of practice on each stage.

Source: Syllabus, `SequentialCurriculum` (arXiv 2411.11318), whose conditions such as "episode_return>=0.9&steps>1000" are one gate for
all stages here.

Every strictness alike: uniform domain randomisation.

    d ~ U[low, high]     for each group; with axes = 3 strictness, reserve and impatience are each drawn so, on their own

It never adapts: a student that learns where success is near one half gets from it about half of what it could learn from, and the rest
of the budget goes to the extremes. What it cannot do is forget, and it is hard to beat where tasks differ little.

Source: Tobin et al. 2017 (arXiv 1703.06907).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any

from pydantic.dataclasses import dataclass

from curriculum.checks import require_between, require_one_of
from curriculum.task import FamilyKey, GroupOutcome, Mode
from curriculum.teacher import Choice, LedgerTeacher, TeacherConfig, point_choice, success_share
from simulator.scenario import Difficulty
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class FixedConfig(TeacherConfig):
    """Settings of `FixedTeacher`."""

    strictness: float = 0.5
    """[0, 1]: the strictness of every group."""
    reserve: float | None = None
    """[0, 1]: how little users say of themselves; none means as much as the line of difficulty has at this strictness."""
    impatience: float | None = None
    """[0, 1]: how fast users lose heart; none means as on the line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.strictness", self.strictness, 0.0, 1.0)
        for name, value in (("reserve", self.reserve), ("impatience", self.impatience)):
            if value is not None:
                require_between(f"teacher.{name}", value, 0.0, 1.0)
                setattr(self, name, float(value))


class FixedTeacher(LedgerTeacher):
    """d = `strictness`, families in turn."""

    kind = "fixed"
    config: FixedConfig

    def choose(self, family: FamilyKey) -> Choice:
        """The point of the settings."""
        config = self.config
        apart = {name: value for name, value in (("reserve", config.reserve), ("impatience", config.impatience)) if value is not None}
        if not apart:
            return Choice(config.strictness, Mode.FRONTIER, 1.0)
        return Choice.at(Difficulty(**{**Difficulty.along(config.strictness).to_dict(), **apart}), Mode.FRONTIER, 1.0)


@dataclass(config=SETTINGS)
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


class Gate(StrEnum):
    """What opens the way to the next stage."""

    STEPS = "steps"
    SUCCESS = "success"
    EITHER = "either"
    BOTH = "both"


@dataclass(config=SETTINGS)
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


@dataclass(config=SETTINGS)
class UniformConfig(TeacherConfig):
    """Settings of `UniformTeacher`."""

    low: float = 0.0
    """[0, high]: the least strictness issued."""
    high: float = 1.0
    """[low, 1]: the greatest strictness issued."""
    axes: int = 1
    """{1, 3}: 1 draws a point on the line of difficulty, 3 draws each axis on its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.high", self.high, 0.0, 1.0)
        require_between("teacher.low", self.low, 0.0, self.high)
        require_one_of("teacher.axes", self.axes, (1, 3))


class UniformTeacher(LedgerTeacher):
    """d ~ U[low, high] for each group, families in turn."""

    kind = "uniform"
    config: UniformConfig

    def choose(self, family: FamilyKey) -> Choice:
        """A fresh draw."""
        point = self.rng.uniform(self.config.low, self.config.high, self.config.axes).tolist()
        return point_choice(point, Mode.UNIFORM, 1.0)
