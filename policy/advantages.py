"""How much better a rollout fared than its siblings, and the same for each token it sampled.

Source: GRPO, arXiv 2402.03300, section 4.1; without division by the spread, Dr.GRPO, arXiv 2503.20783.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-6
"""Added to a group's standard deviation (verl's value)."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What an algorithm wants of each token of a batch."""

    advantages_BT: Tensor
    """float32; 0 outside the loss mask."""


def group_advantages(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor, *, std_normalise: bool = True) -> Tensor:
    """Each reward minus its group's mean, over the group's unbiased (G - 1) standard deviation plus 1e-6.

    Only valid rollouts are in the mean and the spread. A broken rollout, and every member of a group with fewer than two survivors or
    without any spread, has advantage 0: there is nothing to compare it with.

    Args:
        std_normalise: False leaves the deviation undivided.

    Returns:
        [B] float64.
    """
    advantages_B = rewards_B.double().new_zeros(len(rewards_B))
    for group_id in group_ids_B.unique():
        members = (group_ids_B == group_id) & valid_B
        rewards_G = rewards_B[members].double()
        if len(rewards_G) < 2 or bool(rewards_G.max() == rewards_G.min()):
            continue
        deviations_G = rewards_G - rewards_G.mean()
        advantages_B[members] = deviations_G / (rewards_G.std(correction=1) + EPSILON) if std_normalise else deviations_G
    return advantages_B


def turn_advantages(
    turn_rewards_BK: Tensor, group_ids_B: Tensor, valid_B: Tensor, *, discount: float, std_normalise: bool = True
) -> Tensor:
    """Each reply's discounted return, minus what its siblings' replies of the same turn brought, over the spread of these in the group.

    The return of turn k is sum_j discount^j r_(k+j): what a reply could still change, so that it does not answer for what came before.
    With discount 1 the returns of a dialogue's turns tell its final reward apart without adding to it. The mean of a turn is over the
    siblings that got so far; a turn that fewer than two reached has advantage 0. The spread is the root mean square of all the group's
    deviations.

    Args:
        turn_rewards_BK: NaN where a rollout has no such turn.

    Returns:
        [B, K] float64; 0 where there is no turn.
    """
    has_BK = turn_rewards_BK.isfinite() & valid_B[:, None]
    returns_BK = turn_rewards_BK.nan_to_num(0.0)
    for k in reversed(range(returns_BK.shape[1] - 1)):
        returns_BK[:, k] += discount * returns_BK[:, k + 1]
    advantages_BK = returns_BK.new_zeros(returns_BK.shape)
    for group_id in group_ids_B.unique():
        rows = group_ids_B == group_id
        has_GK, returns_GK = has_BK[rows], returns_BK[rows]
        count_K = has_GK.sum(dim=0)
        means_K = (returns_GK * has_GK).sum(dim=0) / count_K.clamp(min=1)
        deviations_GK = (returns_GK - means_K) * (has_GK & (count_K >= 2))
        spread = (deviations_GK.square().sum() / has_GK.sum().clamp(min=1)).sqrt()
        advantages_BK[rows] = deviations_GK / (spread + EPSILON) if std_normalise else deviations_GK
    return advantages_BK


def turns_to_tokens(advantages_BK: Tensor, turn_ids_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """A turn's advantage on each token sampled in it, 0 elsewhere; [B, T] float32. A reply that was never answered has none."""
    if advantages_BK.shape[1] == 0:
        return turn_ids_BT.new_zeros(turn_ids_BT.shape).float()
    index_BT = turn_ids_BT.long()
    answered_BT = index_BT < advantages_BK.shape[1]
    advantages_BT = advantages_BK.gather(1, index_BT.clamp(max=advantages_BK.shape[1] - 1))
    return (advantages_BT * answered_BT * loss_mask_BT).float()


def to_tokens(advantages_B: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """A rollout's advantage on each token it sampled, 0 elsewhere; [B, T] float32."""
    return (advantages_B[:, None] * loss_mask_BT).float()
