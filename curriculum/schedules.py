"""Teachers that ignore the learner or follow a plan: fixed, uniform, linear and staged strictness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec
from curriculum.teacher import Axes, Teacher, TeacherConfig
from simulator.scenario import Difficulty
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class FixedConfig(TeacherConfig):
    """Settings of `FixedTeacher`."""

    strictness: float = Field(default=0.5, ge=0, le=1)
    """The strictness of every group."""
    reserve: float | None = Field(default=None, ge=0, le=1)
    """How little users say of themselves; none means as much as the line of difficulty has at this strictness."""
    impatience: float | None = Field(default=None, ge=0, le=1)
    """How fast users lose heart; none means as on the line."""


class FixedTeacher(Teacher):
    """The same strictness always: the baseline that every other teacher has to beat.

        d = strictness; reserve and impatience as on the line of difficulty there, unless they are set apart

    The best value is known only in hindsight: a fair comparison reports several.
    """

    kind = "fixed"
    config: FixedConfig

    def choose(self, family: FamilyKey) -> TaskSpec:
        apart = {"reserve": self.config.reserve, "impatience": self.config.impatience}
        axes = {name: value for name, value in apart.items() if value is not None}
        return self.task(family, Difficulty(**{**Difficulty.along(self.config.strictness).to_dict(), **axes}))


@dataclass(config=SETTINGS)
class UniformConfig(TeacherConfig):
    """Settings of `UniformTeacher`."""

    low: float = Field(default=0.0, ge=0, le=1)
    """The least strictness issued, at most `high`."""
    high: float = Field(default=1.0, ge=0, le=1)
    """The greatest strictness issued."""
    axes: Axes = 1
    """1 draws a point on the line of difficulty, 3 draws each axis separately."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"teacher.low must be at most teacher.high={self.high:g}, got {self.low!r}")


class UniformTeacher(Teacher):
    """Every strictness with the same probability: uniform domain randomisation.

        d ~ U[low, high]     for each group; with axes = 3 strictness, reserve and impatience are each drawn so, independently

    About half of the budget goes to the extremes, but it forgets nothing, and is hard to beat where tasks differ little.

    Source: Tobin et al. 2017 (arXiv 1703.06907).
    """

    kind = "uniform"
    config: UniformConfig

    def choose(self, family: FamilyKey) -> TaskSpec:
        return self.task(family, self.rng.uniform(self.config.low, self.config.high, self.config.axes).tolist(), Mode.UNIFORM)


@dataclass(config=SETTINGS)
class LinearConfig(TeacherConfig):
    """Settings of `LinearTeacher`."""

    start: float = Field(default=0.0, ge=0, le=1)
    """Strictness of the first step."""
    end: float = Field(default=1.0, ge=0, le=1)
    """Strictness from step `num_steps` on."""
    num_steps: int = Field(default=100, ge=1, le=1_000_000)
    """Steps from one to the other; as many as the budget buys."""


class LinearTeacher(Teacher):
    """From one strictness to another in equal steps: the schedule that adaptive teachers have to beat.

        d_t = start + (end - start) * min(t, T) / T,     t = 0, 1, ... the teacher's steps, T = num_steps

    t counts proposals and not policy versions: each proposal costs about as many tokens, and an update that never comes (an empty batch
    where all groups failed) cannot hold the schedule at the very strictness that caused it. With start > end it is a negative control.

    Tuned to the learner's speed it comes close to the best adaptive teacher; when the learner is slower it runs away from it for good.
    Report it with T halved and doubled as well.

    Source: Syllabus, `SimulatedAnnealing` (arXiv 2411.11318).
    """

    kind = "linear"
    plans_by_proposal = True
    config: LinearConfig

    def choose(self, family: FamilyKey) -> TaskSpec:
        done = min((self.step - 1) / self.config.num_steps, 1.0)
        return self.task(family, (1.0 - done) * self.config.start + done * self.config.end)


@dataclass(config=SETTINGS)
class StagedConfig(TeacherConfig):
    """Settings of `StagedTeacher`."""

    strictness: list[Annotated[float, Field(ge=0, le=1)]] = field(default_factory=lambda: [0.1, 0.3, 0.5, 0.7, 0.9])
    """Strictness of the stages, in their order; at least one."""
    gate: Literal["steps", "success", "either", "both"] = "either"
    """Condition that ends a stage: `steps`, `success`, `either` of the two or `both`."""
    num_steps: int = Field(default=40, ge=1, le=1_000_000)
    """Steps of a stage, where steps count."""
    threshold: float = Field(default=0.7, ge=0, le=1)
    """Mean success rate that masters a stage, where success counts."""
    window: int = Field(default=32, ge=1, le=10_000)
    """Groups of the stage over which that mean is taken; with fewer the stage is not mastered."""

    def __post_init__(self) -> None:
        if not self.strictness:
            raise ValueError("teacher.strictness must hold at least one stage, got []")


class StagedTeacher(Teacher):
    """One stage of strictness after another, each left when its time is up, when it is mastered, or both.

        d = strictness[s];   s -> s + 1 when the gate opens:
            steps     the stage has lasted num_steps of the teacher's steps (as in `linear`, proposals and not policy versions)
            success   the mean success rate of the last `window` groups of the stage is at least `threshold`
            either, both

    Only groups issued in the present stage count, so that late outcomes of the stage before cannot open the gate. The gate of success alone
    waits for ever where the learner cannot reach the threshold; `either` cannot stall, `both` keeps a minimum of practice on each stage.

    Source: Syllabus, `SequentialCurriculum` (arXiv 2411.11318), with one gate for all stages here.
    """

    kind = "staged"
    plans_by_proposal = True
    adapting = ("stage", "first_step", "success_rates")
    config: StagedConfig

    def start(self) -> None:
        self.stage = 0
        self.first_step = 1
        # Of the latest groups of this stage.
        self.success_rates: list[float] = []

    @property
    def success(self) -> float:
        """Mean success rate of the latest groups of this stage, in [0, 1]; 0 before the first."""
        return sum(self.success_rates) / max(len(self.success_rates), 1)

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        is_over = self.step - self.first_step >= self.config.num_steps
        is_mastered = len(self.success_rates) == self.config.window and self.success >= self.config.threshold
        gates = {"steps": is_over, "success": is_mastered, "either": is_over or is_mastered, "both": is_over and is_mastered}
        if self.stage + 1 < len(self.config.strictness) and gates[self.config.gate]:
            self.decide("next_stage", left=self.stage, lasted=self.step - self.first_step, success=self.success)
            self.stage, self.first_step, self.success_rates = self.stage + 1, self.step, []
        return super().choose_families(num_groups)

    def choose(self, family: FamilyKey) -> TaskSpec:
        return self.task(family, self.config.strictness[self.stage])

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        issued_here = [group.success_rate for group in groups if group.task.teacher_step >= self.first_step]
        self.success_rates = [*self.success_rates, *issued_here][-self.config.window :]

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/staged/stage": float(self.stage), "curriculum/staged/success": self.success}
