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


def to_tokens(advantages_B: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """A rollout's advantage on each token it sampled, 0 elsewhere; [B, T] float32."""
    return (advantages_B[:, None] * loss_mask_BT).float()
