"""What a batch of groups has to teach: pure functions of each group's rewards.

Every function takes one sequence of per-rollout numbers per group and drops NaN (rollouts that broke); what cannot be computed is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Groups = Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class ZeroVariance:
    """Shares of the groups in which all survivors fared alike, in [0, 1]."""

    all_low: float
    """Alike at a reward below .5: too hard."""
    all_high: float
    """Alike at .5 or above: too easy."""

    @property
    def total(self) -> float:
        """Share of the groups that teach the policy nothing."""
        return self.all_low + self.all_high


def reward_density(groups: Groups) -> float:
    """4 x mean over groups of the unbiased (G - 1) variance of reward within the group, before any normalisation.

    Returns:
        0 where every rollout of a group fares alike, 1 in expectation for groups of fair coins; in [0, G / (G - 1)].
    """
    return _mean([4.0 * float(np.var(rewards_G, ddof=1)) for rewards_G in survivors(groups)])


def within_group_std(groups: Groups) -> float:
    """Mean over groups of the unbiased (G - 1) standard deviation of reward."""
    return _mean([float(np.std(rewards_G, ddof=1)) for rewards_G in survivors(groups)])


def zero_variance_share(groups: Groups) -> ZeroVariance:
    """How many groups fared exactly alike, those that all failed and those that all succeeded apart."""
    alive = survivors(groups)
    alike = [rewards_G[0] for rewards_G in alive if np.all(rewards_G == rewards_G[0])]
    num_low = sum(reward < 0.5 for reward in alike)
    if not alive:
        return ZeroVariance(all_low=float("nan"), all_high=float("nan"))
    return ZeroVariance(all_low=num_low / len(alive), all_high=(len(alike) - num_low) / len(alive))


def effective_group_size(groups: Groups) -> float:
    """Mean of (sum |A|)^2 / sum A^2 over the groups with any variance, A = reward - group mean.

    Returns:
        In [2, G]: 4 - 4/G where one rollout stands against equal siblings, G where all are equally far from the mean.
    """
    sizes = []
    for rewards_G in survivors(groups):
        advantages_G = rewards_G - rewards_G.mean()
        if np.any(rewards_G != rewards_G[0]):
            sizes.append(float(np.abs(advantages_G).sum() ** 2 / np.square(advantages_G).sum()))
    return _mean(sizes)


def success_share(successes: Groups) -> float:
    """Mean over groups of the share of successes (1 or 0, NaN for broken rollouts)."""
    return _mean([float(successes_G.mean()) for successes_G in survivors(successes)])


def learnability(successes: Groups) -> float:
    """Mean over groups of the unbiased p (1 - p), that is k (G - k) / (G (G - 1)) for k successes.

    Source: SFL, arXiv 2408.15099.
    """
    return _mean([float(np.var(successes_G, ddof=1)) for successes_G in survivors(successes)])


def survivors(groups: Groups) -> list[np.ndarray]:
    """[G'] values of each group without NaN; groups with fewer than two left are dropped."""
    alive = [np.asarray(group, dtype=float) for group in groups]
    alive = [values_G[~np.isnan(values_G)] for values_G in alive]
    return [values_G for values_G in alive if len(values_G) >= 2]


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
