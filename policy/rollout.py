"""One dialogue from opening to end, and groups of them: the tokens the policy is trained on, kept as they were sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulator.dialogue import Dialogue
from simulator.difficulty import Difficulty
from simulator.reward import Reward

ROLE_USER, ROLE_AGENT = 0, 1
"""Values of `Rollout.role_ids`; template tokens count with the role whose turn they open or close."""


class Task(Protocol):
    """What rolling out needs to know of a task; a teacher's TaskSpec and an evaluation's task both fit."""

    @property
    def uid(self) -> str: ...
    @property
    def scenario_id(self) -> str: ...
    @property
    def difficulty(self) -> Difficulty: ...
    @property
    def group_size(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A dialogue with the tokens behind it.

    Example, a dialogue of two replies (u user, a agent, e the agent's end-of-turn token):

        token_ids        u u u a a e u u a e u
        role_ids         0 0 0 1 1 1 0 0 1 1 0
        turn_ids         0 0 0 0 0 0 1 1 1 1 2      counts agent turns begun
        loss_mask        0 0 0 1 1 1 0 0 1 1 0      tokens the policy sampled
        rollout_logprobs 0 0 0 x x x 0 0 x x 0
    """

    dialogue: Dialogue
    token_ids: np.ndarray
    """[T] int32."""
    role_ids: np.ndarray
    """[T] int8."""
    turn_ids: np.ndarray
    """[T] int16."""
    loss_mask: np.ndarray
    """[T] bool."""
    rollout_logprobs: np.ndarray
    """[T] float32 nats, 0 where the mask is."""
    reward: Reward
    turn_rewards: tuple[float, ...]
    """One per answered reply, each in [-1, 1]."""
    policy_versions: tuple[int, int]
    """Oldest and newest weights that sampled a token of it."""

    @property
    def num_sampled(self) -> int:
        """Tokens the policy sampled."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True, kw_only=True)
class RolloutGroup:
    """The G siblings of one task."""

    task: Task
    rollouts: tuple[Rollout, ...]
