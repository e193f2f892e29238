"""Toy students: exact policy-gradient learners of a few numbers, on which a teacher shows in a second what it does.

A student is a policy whose success at every (family, strictness) is known in closed form. Each update it plays the groups that came
back, learns from them by A * d log pi / d theta with A = reward - mean of the group's survivors, and can be examined exactly. What is
worth practising therefore emerges, as it does for a language model: groups that all fare alike teach nothing.

Letters: N groups, G rollouts in each, F families, B the slope of the logistic sigma(x) = 1 / (1 + exp(-x)). Strictness d is in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from curriculum.outages import Outages

GRID = np.linspace(0.0, 1.0, 11)
"""Strictness at which students are examined."""


@dataclass(frozen=True)
class Batch:
    """What the groups of one update did."""

    family_N: np.ndarray
    """Index of each group's family in the student's `families`."""
    strictness_N: np.ndarray
    rewards_NG: np.ndarray
    """In [0, 1]; NaN where a rollout was lost on the way."""
    successes_NG: np.ndarray
    """bool; meaningless where the reward is NaN."""
    choices_NG: np.ndarray
    """What the policy chose, in the student's own terms."""

    @property
    def came_N(self) -> np.ndarray:
        """[N] whether any rollout of the group came back."""
        return ~np.isnan(self.rewards_NG).all(axis=1)


@dataclass
class Student:
    """What all students share, and what one must say; a fresh one is made for each run."""

    num_updates: int = 200
    delay: int = 0
    """Updates between a task's issue and its rollout, from which student and teacher learn at once."""
    num_groups: int = 32
    """Groups per update."""
    outages: Outages | None = None
    update: int = 0
    """Updates so far."""

    families: ClassVar[Sequence[str]] = ("dialogue",)
    noise: ClassVar[frozenset[str]] = frozenset()
    """Families whose reward has nothing to do with what the student does."""
    group_size: ClassVar[int] = 8
    by_strictness: ClassVar[bool] = True
    """Whether `scores` runs from the easiest strictness to the hardest; otherwise it has one value per learnable family."""
    watched: ClassVar[bool] = False
    """Whether it can collapse, so that the collapse monitor's alarms are among its figures."""

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        """Rolls out one group per row with the policy as it is; draws equally many random numbers whatever the tasks."""
        raise NotImplementedError

    def improve(self, batch: Batch) -> None:
        """One policy-gradient step, per rollout that was issued, lost ones included."""
        raise NotImplementedError

    def learn(self, batch: Batch) -> None:
        """Improves, and time passes, even when nothing came."""
        self.improve(batch)
        self.update += 1

    def scores(self) -> np.ndarray:
        """Exact success now, whose mean is the score and whose minimum the worst cell."""
        raise NotImplementedError

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        """[N] exact entropy of the policy's choice in nats; NaN where the policy has no say."""
        raise NotImplementedError

    def frontier(self) -> np.ndarray | None:
        """[F] strictness that a perfect tracker would issue now; None where the yardstick is what was learned."""
        return None


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic function."""
    return 1.0 / (1.0 + np.exp(-x))


def bernoulli_entropy(p: np.ndarray) -> np.ndarray:
    """Entropy of a coin with success probability `p`, nats."""
    safe = np.clip(p, 1e-12, 1.0 - 1e-12)
    return -safe * np.log(safe) - (1.0 - safe) * np.log1p(-safe)


def advantages(rewards_NG: np.ndarray) -> np.ndarray:
    """[N, G] reward less the mean of the group's survivors; 0 for broken rollouts and for groups with fewer than two survivors."""
    alive_NG = ~np.isnan(rewards_NG)
    if alive_NG.all():
        return rewards_NG - rewards_NG.mean(axis=1, keepdims=True)
    counts_N1 = alive_NG.sum(axis=1, keepdims=True)
    means_N1 = np.nansum(rewards_NG, axis=1, keepdims=True) / np.maximum(counts_N1, 1)
    return np.where(alive_NG & (counts_N1 >= 2), rewards_NG - means_N1, 0.0)
