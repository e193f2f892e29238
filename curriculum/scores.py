"""What one group of rollouts says about practising the like of it again: pure functions of the rewards or successes of its survivors.

With r the rewards of the G survivors, k how many of them succeeded and p = k / G:

    advantages             A = r - mean r, over the unbiased standard deviation of r plus 1e-6 where normalised (GRPO)
    mean_abs_advantage     mean |A|
    positive_advantage     mean max(A, 0), A not normalised; p (1 - p) where rewards are 0 or 1
    max_minus_mean         max r - mean r
    learnability           k (G - k) / (G (G - 1)), the unbiased p (1 - p)
    normalised_variance    learnability over the most that G rollouts can have, in [0, 1]

Normalised advantages tell a group with any spread from one without, hardly a group of even chances from a lopsided one, and with dense
rewards nothing more than that; the deviation undivided keeps what the group has to teach.
"""

from __future__ import annotations

import math

import numpy as np

from curriculum.teacher import GroupOutcome

EPSILON = 1e-6
"""Added to a group's standard deviation, as where the policy is trained."""


def advantages(group: GroupOutcome, *, normalise: bool) -> np.ndarray:
    """[G] each survivor's reward less their mean; all 0 where they fared alike."""
    rewards_G = np.array([group.rewards[i] for i in group.surviving])
    size = len(rewards_G)
    deviations_G = rewards_G - rewards_G.sum() / size
    if rewards_G.max() == rewards_G.min():
        return np.zeros(size)
    return deviations_G / (math.sqrt(deviations_G @ deviations_G / (size - 1)) + EPSILON) if normalise else deviations_G


def mean_abs_advantage(group: GroupOutcome, *, normalise: bool) -> float:
    """In [0, 1): at most .5 where not normalised."""
    return float(np.abs(advantages(group, normalise=normalise)).mean())


def positive_advantage(group: GroupOutcome) -> float:
    """In [0, .25]: what positive value loss is to a learner with a critic."""
    return float(np.maximum(advantages(group, normalise=False), 0.0).mean())


def max_minus_mean(group: GroupOutcome) -> float:
    """In [0, 1): by how much the best attempt beat the mean one, which is what MaxMC regret is to a learner with a critic."""
    return float(advantages(group, normalise=False).max())


def learnability(group: GroupOutcome) -> float:
    """In [0, 1/2]: see above; 1/2 needs a group of two."""
    size, num_successes = _counts(group)
    return num_successes * (size - num_successes) / (size * (size - 1))


def normalised_variance(group: GroupOutcome) -> float:
    """In [0, 1]: the variance of success in the group over the greatest that its size allows."""
    size, num_successes = _counts(group)
    return num_successes * (size - num_successes) / ((size // 2) * (size - size // 2))


def _counts(group: GroupOutcome) -> tuple[int, int]:
    return len(group.surviving), sum(group.successes[i] for i in group.surviving)
