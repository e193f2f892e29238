"""Simulators that fail for a while: outages of heavy-tailed length, in which groups come back maimed or never.

An outage starts with probability `start_prob` at each update and lasts ceil(Pareto(`tail`)) updates, at most `longest`. While it lasts
each group is hit with probability `hit_prob`, and a hit group, with equal chances, never returns, keeps one survivor, or loses half of
its rollouts. The constants are ours: 23 % of the updates then lie in an outage; half of the outages are over in two updates, and one run of
200 updates in three has one that lasts 20 or more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Fate(IntEnum):
    """What becomes of a group."""

    WHOLE = 0
    LOST = 1
    """Never returns; its task is struck from the teacher's ledger later."""
    ONE_SURVIVOR = 2
    HALF = 3


@dataclass
class Outages:
    """The state of the simulators; one instance a run."""

    start_prob: float = 0.06
    tail: float = 1.1
    longest: int = 50
    hit_prob: float = 0.8
    expire_after: int = 10
    """Updates after which a lost group is given up."""
    left: int = 0

    def fates(self, num_groups: int, rng: np.random.Generator) -> np.ndarray:
        """[N] the fate of each group of the next update; draws equally many random numbers whether there is an outage or not."""
        starts, length = rng.random(2)
        hits_N, kinds_N = rng.random(num_groups) < self.hit_prob, rng.integers(Fate.LOST, Fate.HALF + 1, num_groups)
        if self.left > 0:
            self.left -= 1
        elif starts < self.start_prob:
            # Inverse of the Pareto tail P(X > x) = x^-tail.
            self.left = min(math.ceil((1.0 - length) ** (-1.0 / self.tail)), self.longest)
        return np.where(hits_N & (self.left > 0), kinds_N, Fate.WHOLE)


def maim(rewards_NG: np.ndarray, fate_N: np.ndarray) -> np.ndarray:
    """A copy of the rewards with NaN for every rollout that its group's fate cost: all, all but the first, every second."""
    maimed_NG = rewards_NG.copy()
    maimed_NG[fate_N == Fate.LOST] = np.nan
    maimed_NG[fate_N == Fate.ONE_SURVIVOR, 1:] = np.nan
    maimed_NG[fate_N == Fate.HALF, ::2] = np.nan
    return maimed_NG
