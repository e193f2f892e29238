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
VARIANCE_EPSILON = 1e-8
"""Added to the variance of a whole batch (verl's value)."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What an algorithm wants of each token of a batch."""

    advantages_BT: Tensor
    """float32; 0 outside the loss mask."""
    returns_BT: Tensor | None = None
    """float32; what a critic is to predict of each token, 0 outside the loss mask. None where there is no critic."""
    values_BT: Tensor | None = None
    """float32; what the critic predicted before the update, alike."""


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


def leave_one_out_advantages(rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor) -> Tensor:
    """Each reward minus the mean of its siblings' rewards: with n survivors, n / (n - 1) times its deviation from the group's mean.

    Unlike the group's mean, the siblings' does not depend on the rollout itself, so the gradient is unbiased. A broken rollout is in no
    mean, and a group with fewer than two survivors has advantage 0.

    Returns:
        [B] float64.

    Source: RLOO, arXiv 2402.14740.
    """
    advantages_B = rewards_B.double().new_zeros(len(rewards_B))
    for group_id in group_ids_B.unique():
        members = (group_ids_B == group_id) & valid_B
        rewards_G = rewards_B[members].double()
        if len(rewards_G) >= 2:
            advantages_B[members] = rewards_G - (rewards_G.sum() - rewards_G) / (len(rewards_G) - 1)
    return advantages_B


def has_siblings(group_ids_B: Tensor, valid_B: Tensor) -> Tensor:
    """Whether a rollout survived and another of its group did too, so that there is something to compare it with; [B] bool."""
    compared_B = valid_B.new_zeros(len(valid_B))
    for group_id in group_ids_B.unique():
        members = (group_ids_B == group_id) & valid_B
        compared_B |= members & (members.sum() >= 2)
    return compared_B


def turn_returns(turn_rewards_BK: Tensor, valid_B: Tensor, *, discount: float) -> tuple[Tensor, Tensor]:
    """What each reply brought and what came after it: sum_j discount^j r_(k+j) for turn k.

    Args:
        turn_rewards_BK: NaN where a rollout has no such turn.

    Returns:
        returns_BK, float64, and has_BK, bool: where a rollout that did not break has that turn.
    """
    returns_BK = turn_rewards_BK.nan_to_num(0.0)
    for k in reversed(range(returns_BK.shape[1] - 1)):
        returns_BK[:, k] += discount * returns_BK[:, k + 1]
    return returns_BK, turn_rewards_BK.isfinite() & valid_B[:, None]


def turn_deviations(returns_BK: Tensor, has_BK: Tensor, group_ids_B: Tensor, *, leave_one_out: bool = False) -> tuple[Tensor, Tensor]:
    """Each turn's return minus the mean of the same turn over the siblings that got so far.

    Args:
        leave_one_out: leaves the turn itself out of that mean.

    Returns:
        deviations_BK, float64, and compared_BK, bool: where at least two siblings got so far; elsewhere the deviation is 0.
    """
    deviations_BK, compared_BK = returns_BK.new_zeros(returns_BK.shape), has_BK.new_zeros(has_BK.shape)
    for group_id in group_ids_B.unique():
        rows = group_ids_B == group_id
        has_GK, returns_GK = has_BK[rows], returns_BK[rows]
        count_K = has_GK.sum(dim=0)
        means_K = (returns_GK * has_GK).sum(dim=0) / count_K.clamp(min=1)
        compared_BK[rows] = has_GK & (count_K >= 2)
        deviations_BK[rows] = (returns_GK - means_K) * compared_BK[rows]
        if leave_one_out:
            deviations_BK[rows] *= count_K / (count_K - 1).clamp(min=1)
    return deviations_BK, compared_BK


def turn_advantages(
    turn_rewards_BK: Tensor, group_ids_B: Tensor, valid_B: Tensor, *, discount: float, std_normalise: bool = True
) -> Tensor:
    """Each reply's discounted return, minus what its siblings' replies of the same turn brought, over the spread of these in the group.

    A reply answers for what it could still change, not for what came before. With discount 1 the returns of a dialogue's turns tell its
    final reward apart without adding to it. The spread is the unbiased standard deviation about the turns' own means, pooled over the
    group's turns that at least two siblings reached: sqrt(sum of squared deviations / sum over turns of (siblings there - 1)), the same
    estimator as of the ends, so that `turn_credit` means the same in groups of every size. The other turns have advantage 0.

    Args:
        turn_rewards_BK: NaN where a rollout has no such turn.

    Returns:
        [B, K] float64; 0 where there is no turn.
    """
    returns_BK, has_BK = turn_returns(turn_rewards_BK, valid_B, discount=discount)
    advantages_BK, compared_BK = turn_deviations(returns_BK, has_BK, group_ids_B)
    if not std_normalise:
        return advantages_BK
    for group_id in group_ids_B.unique():
        rows = group_ids_B == group_id
        freedom = (compared_BK[rows].sum(dim=0) - 1).clamp(min=0).sum()
        spread = (advantages_BK[rows].square().sum() / freedom.clamp(min=1)).sqrt()
        advantages_BK[rows] = advantages_BK[rows] / (spread + EPSILON)
    return advantages_BK


def whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Values under the mask with mean 0 and unbiased variance 1 over all of them; 0 elsewhere, and everywhere with fewer than two.

    Returns:
        [B, T] float32; computed in float64, (value - mean) / sqrt(variance + 1e-8).

    Source: REINFORCE++, arXiv 2501.03262.
    """
    whitened_BT = values_BT.double().new_zeros(values_BT.shape)
    if int(mask_BT.sum()) >= 2:
        values_N = values_BT[mask_BT].double()
        whitened_BT[mask_BT] = (values_N - values_N.mean()) * (values_N.var(correction=1) + VARIANCE_EPSILON).rsqrt()
    return whitened_BT.float()


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
