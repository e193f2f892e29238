"""Credit by turn: each reply's return relative to the replies at the same turn in its group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

EPSILON = 1e-6


def turn_advantages(turn_rewards: Sequence[Sequence[float] | None], *, discount: float = 0.6) -> list[list[float]]:
    """Each turn's discounted return minus the mean of its siblings that got so far, over the spread of these in the group.

    Args:
        turn_rewards: of one group, by rollout (`Result.turn_rewards`); None for one that broke.
        discount: how much of the next turn's reward counts for a reply, and so on.

    Returns:
        One advantage a turn; 0 where no sibling has that turn. Equal to `policy.algorithms.advantages.turn_advantages`.
    """
    rewards_GK = [() if rewards is None else rewards for rewards in turn_rewards]
    returns_GK = np.full((len(rewards_GK), max(map(len, rewards_GK), default=0)), np.nan)
    for returns_K, rewards_K in zip(returns_GK, rewards_GK, strict=True):
        total = 0.0
        if not np.isfinite(rewards_K).all():
            raise ValueError(f"a turn's reward must be finite, got {rewards_K!r}")
        for turn in reversed(range(len(rewards_K))):
            returns_K[turn] = total = rewards_K[turn] + discount * total
    is_there_GK = ~np.isnan(returns_GK)
    count_K = is_there_GK.sum(axis=0)
    means_K = np.where(is_there_GK, returns_GK, 0.0).sum(axis=0) / np.maximum(count_K, 1)
    deviations_GK = np.where(is_there_GK & (count_K >= 2), returns_GK - means_K, 0.0)
    freedom = max(int(np.maximum(np.where(count_K >= 2, count_K, 0) - 1, 0).sum()), 1)
    advantages_GK = deviations_GK / (np.sqrt(np.square(deviations_GK).sum() / freedom) + EPSILON)
    return [advantages_K[: len(rewards_K)].tolist() for advantages_K, rewards_K in zip(advantages_GK, rewards_GK, strict=True)]
