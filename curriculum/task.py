"""The contract between a teacher and a trainer: what to practise, how it went, what the update did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

from curriculum.checks import require_between, require_one_of, require_whole
from simulator.scenario import Difficulty, Family

FamilyKey = Family | str
"""A family of tasks that share strength: one of Attune's own, or any name that another trainer gives to a group of its tasks."""


LEAST, MOST = -1e-6, 1.0 + 1e-6
"""Bounds of a reward, float error granted."""


class Mode(StrEnum):
    """Why a task was issued."""

    FRONTIER = "frontier"
    REPLAY = "replay"
    PROBE = "probe"
    UNIFORM = "uniform"
    UNLEARNED = "unlearned"
    """Played so that the teacher may score it; the trainer leaves it out of its batch."""


class Status(StrEnum):
    """How one rollout of a group ended, as far as the teacher cares."""

    OK = "ok"
    TRUNCATED = "truncated"
    SIMULATOR_ERROR = "simulator_error"


_STATUSES = frozenset(Status)
"""Text is equal to the member that it names."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """One group to roll out. Travels with every rollout, so an outcome is credited to the difficulty that was issued."""

    uid: str
    family: FamilyKey
    scenario_id: str
    difficulty: Difficulty
    strictness: float
    """The scalar d that was issued, in [0, 1]: `difficulty` is `Difficulty.along(d)`, unless a teacher moves the axes apart; d is then
    their mean."""
    group_size: int
    seed: int
    mode: Mode
    teacher_step: int
    policy_version: int
    propensity: float
    """Probability with which the teacher chose this family and, given it, this mode, or this cell where it draws cells; in (0, 1]."""

    def __post_init__(self) -> None:
        require_between("task.strictness", self.strictness, 0.0, 1.0)
        require_one_of("task.mode", self.mode, tuple(Mode))
        object.__setattr__(self, "mode", Mode(self.mode))


@dataclass(frozen=True, kw_only=True)
class GroupOutcome:
    """One finished group; per-rollout values in the order of the group, broken rollouts included and marked by their status.

    Values may be numpy's or torch's; they are kept as Python's own, so that what a teacher learns can be saved as JSON.
    """

    task: TaskSpec
    rewards: tuple[float, ...]
    """[G] in [0, 1]; NaN where the status is SIMULATOR_ERROR."""
    successes: tuple[bool, ...]
    """[G] final emotion >= `teacher.success_emotion`; in another trainer, whatever counts as solved there."""
    num_tokens: tuple[int, ...]
    """[G] tokens the policy sampled."""
    statuses: tuple[Status, ...]
    signals: Mapping[str, float] = field(default_factory=dict)
    """What else was measured on the group (sampled entropy in nats, strategies heard)."""

    def __post_init__(self) -> None:
        if not isinstance(self.task, TaskSpec):
            raise TypeError(f"outcome.task must be a TaskSpec, got {type(self.task).__name__}; evaluation never reaches a teacher")
        lengths = {len(self.rewards), len(self.successes), len(self.num_tokens), len(self.statuses)}
        if len(lengths) > 1:
            raise ValueError(f"outcome must have one value for each rollout in every column, got columns of {sorted(lengths)}")
        if lengths != {self.task.group_size}:
            said = f"got {len(self.rewards)} of {self.task.group_size}"
            raise ValueError(f"outcome must have every rollout of its task, those that broke marked by their status, {said}")
        if stray := [reward for reward in self.rewards if not _is_reward(reward)]:
            raise ValueError(f"outcome.rewards must be in [0, 1], or NaN for a rollout that broke, got {stray[0]!r}")
        if strange := [success for success in self.successes if success not in (0, 1)]:
            raise ValueError(f"outcome.successes must be true or false for every rollout, got {strange[0]!r}")
        if unknown := [status for status in self.statuses if status not in _STATUSES]:
            require_one_of("outcome.statuses", unknown[0], tuple(Status))
        settle = object.__setattr__
        settle(self, "rewards", tuple(map(float, self.rewards)))
        settle(self, "successes", tuple(map(bool, self.successes)))
        settle(self, "num_tokens", tuple(map(int, self.num_tokens)))
        settle(self, "statuses", tuple(map(Status, self.statuses)))

    @cached_property
    def surviving(self) -> tuple[int, ...]:
        """Indices of the rollouts that count: neither an error nor a NaN reward."""
        broken = Status.SIMULATOR_ERROR
        pairs = zip(self.statuses, self.rewards, strict=True)
        return tuple([i for i, (status, reward) in enumerate(pairs) if status is not broken and reward == reward])

    @cached_property
    def success_share(self) -> float:
        """Share of successes among the survivors, in [0, 1]; NaN without any."""
        alive = self.surviving
        return sum(self.successes[i] for i in alive) / len(alive) if alive else float("nan")


@dataclass(frozen=True, kw_only=True)
class UpdateStats:
    """What the learner tells the teacher after each update."""

    step: int
    policy_version: int
    entropy: float
    """Exact mean entropy over agent tokens, nats; NaN when the step trained on nothing."""
    entropy_sampled: float
    """Mean of -logprob of the sampled tokens, nats."""
    reward_density: float
    """See `curriculum.signals.reward_density`, in [0, G/(G-1)]."""
    zero_variance_share: float
    """Share of groups whose rollouts all fared alike, in [0, 1]."""
    kl: float
    """KL to the reference policy, nats; NaN without one."""

    def __post_init__(self) -> None:
        for name in ("step", "policy_version"):
            object.__setattr__(self, name, require_whole(f"update.{name}", getattr(self, name), 0))
        for name in ("entropy", "entropy_sampled", "reward_density", "zero_variance_share", "kl"):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, float(value))
            except (TypeError, ValueError):
                raise ValueError(f"update.{name} must be a number, NaN where there is none, got {value!r}") from None


def _is_reward(value: Any) -> bool:
    try:
        return bool(LEAST <= value <= MOST or value != value)
    except TypeError:  # None, say, where a rollout was not scored
        return False


class Teacher(Protocol):
    """Proposes tasks and learns from what came of them. Never blocks; everything that adapts is in `state_dict`.

    Outcomes may come late, in any order, or never; one that is not outstanding is a counted no-op, and within one `observe` call order
    does not matter.
    """

    def propose(self, num_groups: int, *, policy_version: int) -> list[TaskSpec]:
        """The next `num_groups` tasks to practise."""
        ...

    def observe(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Takes in finished groups, before any filter has dropped one."""
        ...

    def on_update(self, stats: UpdateStats) -> None:
        """Takes in what the optimiser step did."""
        ...

    def expire(self, uids: Sequence[str], *, reason: str) -> None:
        """Strikes tasks that will never come back from the ledger."""
        ...

    def metrics(self) -> dict[str, float]:
        """What it would plot, by metric key under `curriculum/`."""
        ...

    def decisions(self) -> list[dict[str, Any]]:
        """Decisions taken since the last call, each with its inputs, JSON-able, for `teacher.jsonl`."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, JSON-able, with the kind of teacher and a version."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; refuses another kind, another version, missing or unknown fields with a ValueError."""
        ...
