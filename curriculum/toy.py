"""Toy students: exact policy-gradient learners of a few numbers, on which a teacher shows in a second what it does.

A student is a policy whose success at every (family, strictness) is known in closed form. Each update it plays the groups that came
back, learns from them by A * d log pi / d theta with A = reward - mean of the group's survivors, and can be examined exactly. What is
worth practising therefore emerges, as it does for a language model: groups that all fare alike teach nothing.

Letters: N groups, G rollouts in each, F families, B the slope of the logistic sigma(x) = 1 / (1 + exp(-x)). Strictness d is in [0, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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


class Student(Protocol):
    """What the benchmark needs of a student; a fresh one is made for each run."""

    families: Sequence[str]
    num_updates: int
    num_groups: int
    """Groups per update."""
    group_size: int
    delay: int
    """Updates between issuing a task and its rollout, from which both the student and the teacher learn."""
    noise: frozenset[str]
    """Families whose reward has nothing to do with what the student does."""
    outages: Outages | None
    grid: bool
    """Whether `scores` runs from the easiest strictness to the hardest; otherwise it has one value a family."""
    target: float | None
    """Success share that defines `frontier`; None where a frontier is not the yardstick."""

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        """Rolls out one group per row with the policy as it is; draws equally many random numbers whatever the tasks."""
        ...

    def learn(self, batch: Batch, num_groups: int) -> None:
        """One policy-gradient step on `batch`, normalised by the `num_groups` that were issued; time passes even when nothing came."""
        ...

    def scores(self) -> np.ndarray:
        """Exact success now, whose mean is the score and whose minimum the worst cell: by strictness or by learnable family."""
        ...

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        """[N] exact entropy of the policy's choice in nats; NaN where the policy has no say."""
        ...

    def frontier(self) -> np.ndarray:
        """[F] strictness at which each family succeeds with share `target` now, clipped to [0, 1]."""
        ...


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
