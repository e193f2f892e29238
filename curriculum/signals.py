"""Signals of a batch of groups: what their rewards have to teach.

Every function takes one sequence of per-rollout numbers per group and drops NaN (rollouts that broke); values that cannot be computed are
NaN. *Leads*, *coincident* and *lags* say when a signal moves relative to a collapse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

Groups = Sequence[Sequence[float]] | np.ndarray


def survivors(groups: Groups) -> list[np.ndarray]:
    """[G'] values of each group without NaN; groups with fewer than two left are dropped."""
    alive = [np.asarray(group, dtype=float) for group in groups]
    alive = [values_G[~np.isnan(values_G)] for values_G in alive]
    return [values_G for values_G in alive if len(values_G) >= 2]


def mean(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return float(np.mean(values)) if len(values) else math.nan


def reward_density(groups: Groups) -> float:
    """4 x mean over groups of the unbiased (G - 1) variance of reward within the group, in [0, G / (G - 1)]; 1 for fair coins. Leads."""
    return mean([4.0 * float(np.var(rewards_G, ddof=1)) for rewards_G in survivors(groups)])


def within_group_std(groups: Groups) -> float:
    """Mean over groups of the unbiased (G - 1) standard deviation of reward. Leads: a cliff in it precedes the fall."""
    return mean([float(np.std(rewards_G, ddof=1)) for rewards_G in survivors(groups)])


@dataclass(frozen=True, kw_only=True)
class ZeroVariance:
    """Shares of the groups in which the rewards of all survivors are equal, in [0, 1]."""

    all_low: float
    """Equal, below 0.5: too hard."""
    all_high: float
    """Equal, 0.5 or above: too easy."""

    @property
    def total(self) -> float:
        """Share of the groups that teach the policy nothing."""
        return self.all_low + self.all_high


def zero_variance_share(groups: Groups) -> ZeroVariance:
    """Shares of groups with exactly equal rewards, those that all failed and those that all succeeded apart. Leads."""
    alive = survivors(groups)
    if not alive:
        return ZeroVariance(all_low=math.nan, all_high=math.nan)
    constant = [rewards_G[0] for rewards_G in alive if len(set(rewards_G.tolist())) == 1]
    num_low = sum(reward < 0.5 for reward in constant)
    return ZeroVariance(all_low=num_low / len(alive), all_high=(len(constant) - num_low) / len(alive))


def neighbours_success(strictness_N: Sequence[float], successes: Groups, *, num_neighbours: int = 4) -> list[float]:
    """[N] for each group, the mean success rate of the other groups nearest in strictness, in [0, 1]; NaN without any.

    A group's own rate will not do: where all of a group succeeded it makes that look certain.
    """
    rates_N = np.array([mean([values_G.mean() for values_G in survivors([successes_G])]) for successes_G in successes])
    expected = []
    for i, d in enumerate(strictness_N):
        distances_N = np.abs(np.asarray(strictness_N, dtype=float) - d)
        distances_N[i] = np.inf
        distances_N[np.isnan(rates_N)] = np.inf
        nearest = np.argsort(distances_N, kind="stable")[:num_neighbours]
        expected.append(mean(rates_N[nearest[np.isfinite(distances_N[nearest])]]))
    return expected


def alike_excess(successes: Groups, expected_N: Sequence[float]) -> float:
    """Share of groups that all succeeded or all failed, minus the share by chance, mean of p^G + (1 - p)^G; in [-1, 1]. Leads.

    0 in expectation for independent siblings where every group's p is right. Odds that differ among neighbours push it up: by 0.05 to 0.23
    in usual batches, so only a rise above the run's start says that siblings act as one.

    Args:
        expected_N: success probability p of each group, from elsewhere (`neighbours_success`); a NaN leaves its group out.
    """
    excess = []
    for successes_G, p in zip(successes, expected_N, strict=True):
        for alive_G in survivors([successes_G]):
            excess.append(float(np.ptp(alive_G) == 0.0) - p ** len(alive_G) - (1.0 - p) ** len(alive_G))
    return mean([value for value in excess if value == value])


def effective_groups(groups: Groups) -> float:
    """(sum E)^2 / sum E^2 over groups, E the variance of reward within a group: how many carry the step; NaN without any. Coincident."""
    variances_N = np.array([float(np.var(rewards_G)) for rewards_G in survivors(groups)])
    return float(variances_N.sum() ** 2 / np.square(variances_N).sum()) if variances_N.any() else math.nan


def effective_group_size(groups: Groups) -> float:
    """Mean of (sum |A|)^2 / sum A^2 over the groups with any variance, A = reward - group mean; in [2, G]. Coincident."""
    deviations = [rewards_G - rewards_G.mean() for rewards_G in survivors(groups) if np.any(rewards_G != rewards_G[0])]
    return mean([float(np.abs(each_G).sum() ** 2 / np.square(each_G).sum()) for each_G in deviations])


def expected_best(values_UK: np.ndarray, j: int) -> np.ndarray:
    """float[U], the mean best of j tries over all choices of j among the K (last axis).

    With x sorted upwards it is the sum of x_i C(i - 1, j - 1) / C(K, j).

    Source: the unbiased pass@k of Chen et al. 2021 (arXiv 2107.03374), extended to graded values.
    """
    num_tries = values_UK.shape[-1]
    weights_K = np.array([comb(i, j - 1) for i in range(num_tries)], dtype=float) / comb(num_tries, j)
    return np.asarray(np.sort(values_UK, axis=-1) @ weights_K)


def best_of_k_gain(groups: Groups, *, k: int = 4) -> float:
    """Mean over groups of E[best of k rollouts] - mean reward, >= 0; pass@k - pass@1 for binary rewards. Coincident to lagging.

    It shrinks as siblings find nothing better; groups with fewer than `k` survivors are left out.
    """
    alive = [rewards_G for rewards_G in survivors(groups) if len(rewards_G) >= k]
    return mean([float(expected_best(rewards_G, k) - rewards_G.mean()) for rewards_G in alive])
