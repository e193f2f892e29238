"""What teacher and trainer exchange: tasks to practise, how they went, measurements of an update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Any

from simulator.scenario import Difficulty, Family

FamilyKey = Family | str
"""A family of tasks that share strength: one of Attune's, or any name that another trainer gives to a group of its tasks."""


class Mode(StrEnum):
    """Why a task was issued."""

    FRONTIER = "frontier"
    REPLAY = "replay"
    PROBE = "probe"
    UNIFORM = "uniform"
    UNLEARNED = "unlearned"
    """Played so that the teacher may score it; the trainer leaves it out of its batch."""


class Status(StrEnum):
    """How one rollout of a group ended, as far as a teacher cares."""

    OK = "ok"
    TRUNCATED = "truncated"
    SIMULATOR_ERROR = "simulator_error"


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One group to roll out. It travels with every rollout, so an outcome is credited to the difficulty that was issued."""

    uid: str
    family: FamilyKey
    scenario_id: str
    difficulty: Difficulty
    group_size: int
    seed: int
    mode: Mode
    teacher_step: int
    policy_version: int
    propensity: float
    """Probability with which the teacher chose this family and, given it, this mode, or this cell where it draws cells; in (0, 1]."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", Mode(self.mode))

    @cached_property
    def strictness(self) -> float:
        """Scalar difficulty d in [0, 1]: on the line `Difficulty.along(d)` its d, off the line the mean of the three axes."""
        axes = self.difficulty.to_dict()
        line = Difficulty.along(self.difficulty.strictness).to_dict()
        is_on_line = all(math.isclose(axes[name], line[name], abs_tol=1e-9) for name in axes)
        return self.difficulty.strictness if is_on_line else sum(axes.values()) / len(axes)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record with the scalar strictness; `from_dict` reads it."""
        return {**asdict(self), "family": str(self.family), "strictness": self.strictness, "mode": str(self.mode)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TaskSpec:
        """The inverse of `to_dict`; KeyError, ValueError or TypeError for another record."""
        values = {item.name: record[item.name] for item in fields(cls)}
        return cls(**{**values, "family": parse_family(values["family"]), "difficulty": Difficulty(**values["difficulty"])})

    def point(self, axes: int) -> list[float]:
        """Where the task was issued: [strictness], or with 3 axes [strictness, reserve, impatience]."""
        return [self.strictness] if axes == 1 else list(self.difficulty.to_dict().values())


@dataclass(frozen=True, kw_only=True)
class GroupOutcome:
    """One finished group; one value for each rollout in the order of the group, broken rollouts included and marked by their status.

    Values may be numpy's or torch's; they are stored as Python's, so that a teacher's state can be saved as JSON.

    Raises:
        ValueError: a column has another length than the group, or a value is out of range.
        TypeError: `task` is no TaskSpec; evaluation never reaches a teacher.
    """

    task: TaskSpec
    rewards: tuple[float, ...]
    """[G] in [0, 1]; NaN where the status is SIMULATOR_ERROR."""
    successes: tuple[bool, ...]
    """[G] final emotion >= `teacher.success_emotion`; in another trainer, solved."""
    num_tokens: tuple[int, ...]
    """[G] tokens the policy sampled."""
    statuses: tuple[Status, ...]
    signals: Mapping[str, float] = field(default_factory=dict)
    """Further measurements of the group (sampled entropy in nats, strategies recognised)."""

    def __post_init__(self) -> None:
        if not isinstance(self.task, TaskSpec):
            raise TypeError(f"outcome.task must be a TaskSpec, got {type(self.task).__name__}; evaluation never reaches a teacher")
        if stray := [value for value in self.successes if value not in (0, 1)]:
            raise ValueError(f"outcome.successes must hold true or false, got {stray[0]!r}")
        for name, kind in (("rewards", float), ("successes", bool), ("num_tokens", int), ("statuses", Status)):
            column = getattr(self, name)
            if len(column) != self.task.group_size:
                raise ValueError(f"outcome.{name} must have one value for each of {self.task.group_size} rollouts, got {len(column)}")
            try:
                object.__setattr__(self, name, tuple([kind(value) for value in column]))
            except (TypeError, ValueError) as error:
                raise ValueError(f"outcome.{name} must hold values of type {kind.__name__}: {error}") from error
        if outside := [reward for reward in self.rewards if reward < -1e-6 or reward > 1.0 + 1e-6]:
            raise ValueError(f"outcome.rewards must be in [0, 1], or NaN for a rollout that broke, got {outside[0]!r}")

    @cached_property
    def surviving(self) -> tuple[int, ...]:
        """Indices of the rollouts that count: neither an error nor a NaN reward."""
        pairs = enumerate(zip(self.statuses, self.rewards, strict=True))
        return tuple([i for i, (status, reward) in pairs if status is not Status.SIMULATOR_ERROR and reward == reward])

    @cached_property
    def success_rate(self) -> float:
        """Share of successes among the survivors, in [0, 1]; NaN without any."""
        return sum(self.successes[i] for i in self.surviving) / len(self.surviving) if self.surviving else math.nan

    @cached_property
    def mean_reward(self) -> float:
        """Mean reward of the survivors, in [0, 1]; NaN without any."""
        return sum(self.rewards[i] for i in self.surviving) / len(self.surviving) if self.surviving else math.nan


@dataclass(frozen=True, kw_only=True)
class UpdateStats:
    """Measurements of one update of the learner, for the teacher; NaN for what was not measured."""

    policy_version: int
    step: int = -1
    """Of the trainer, for the log of decisions; -1 takes `policy_version`."""
    entropy: float = math.nan
    """Exact mean entropy over agent tokens, nats; where it is not to be had, `entropy_sampled` estimates it."""
    entropy_sampled: float = math.nan
    """Mean of -logprob of the sampled tokens, nats."""
    reward_density: float = math.nan
    """See `curriculum.signals.reward_density`, in [0, G/(G-1)]."""
    zero_variance_share: float = math.nan
    """Share of groups whose rollouts all have the same reward, in [0, 1]."""
    kl: float = math.nan
    """KL to the reference policy, nats."""
    entropy_forking: float = math.nan
    """The mean of the fifth of the tokens with the highest entropy, nats."""
    budget_fraction: float = math.nan
    """Share of the run's budget that is used up, 0 to 1; NaN where a run has no end."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            try:
                object.__setattr__(self, item.name, int(value) if item.type == "int" else float(value))
            except TypeError:
                raise ValueError(f"update.{item.name} must be a number, NaN where there is none, got {value!r}") from None
        if self.step < 0:
            object.__setattr__(self, "step", self.policy_version)


def parse_family(text: str) -> FamilyKey:
    """One of Attune's families where `text` names one, otherwise the name itself."""
    try:
        return Family.parse(text)
    except ValueError:
        return text


def outcome_to_record(outcome: GroupOutcome) -> dict[str, Any]:
    """A JSON-able record of an outcome with its share of successes; its task by uid, or whole for a probe, which no teacher issued."""
    task = outcome.task.to_dict() if outcome.task.mode is Mode.PROBE else outcome.task.uid
    columns = {column.name: getattr(outcome, column.name) for column in fields(GroupOutcome)}
    return {**columns, "task": task, "signals": dict(outcome.signals), "success_share": outcome.success_rate}


def require_same(name: str, saved: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises ValueError unless a saved state has the expected kind, version and settings; the message names the one that differs."""
    for key, value in expected.items():
        found = saved.get(key)
        if isinstance(value, Mapping) and isinstance(found, Mapping):
            require_same(f"{name}.{key}", found, value)
        elif found != value:
            raise ValueError(f"{name}.{key} must be {value!r}, got {found!r}; resume with the settings and the version that saved it")
