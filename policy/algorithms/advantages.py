"""Advantages: of rollouts and turns by comparison with siblings, and of tokens by a critic (GAE).

B rollouts, K turns, T tokens. A rollout is valid unless it broke; broken ones are in no mean and have advantage 0.

Source: GRPO, arXiv 2402.03300, section 4.1; without division by the spread, Dr.GRPO, arXiv 2503.20783; GAE, arXiv 1506.02438.
"""

from __future__ import annotations

from torch import Tensor

from simulator.reward import TURN_UNIT

EPSILON = 1e-6
"""Added to a group's standard deviation (verl's value)."""


def group_advantages(
    rewards_B: Tensor, group_ids_B: Tensor, valid_B: Tensor, *, std_normalise: bool = True, leave_one_out: bool = False
) -> Tensor:
    """Each reward minus its group's mean, over the group's unbiased (G - 1) standard deviation plus 1e-6; [B] float64.

    Groups with fewer than two valid rollouts, or without any spread, have advantage 0: there is nothing to compare with.

    Args:
        std_normalise: False leaves the deviation undivided.
        leave_one_out: takes the siblings' mean for the group's, undivided, so that the gradient is unbiased (RLOO, arXiv 2402.14740).
    """
    advantages_B = rewards_B.double().new_zeros(len(rewards_B))
    for group_id in group_ids_B.unique():
        members_B = (group_ids_B == group_id) & valid_B
        rewards_G = rewards_B[members_B].double()
        if len(rewards_G) < 2 or bool(rewards_G.max() == rewards_G.min()):
            continue
        deviations_G = rewards_G - rewards_G.mean()
        if leave_one_out:
            deviations_G = rewards_G - (rewards_G.sum() - rewards_G) / (len(rewards_G) - 1)
        elif std_normalise:
            deviations_G = deviations_G / (rewards_G.std(correction=1) + EPSILON)
        advantages_B[members_B] = deviations_G
    return advantages_B


def turn_returns(turn_rewards_BK: Tensor, valid_B: Tensor, *, discount: float) -> tuple[Tensor, Tensor]:
    """Discounted return of each turn, sum_j discount^j r_(k+j) for turn k (float64), and has_BK: where a valid rollout has that turn."""
    returns_BK = turn_rewards_BK.nan_to_num(0.0)
    for k in reversed(range(returns_BK.shape[1] - 1)):
        returns_BK[:, k] += discount * returns_BK[:, k + 1]
    return returns_BK, turn_rewards_BK.isfinite() & valid_B[:, None]


def turn_deviations(returns_BK: Tensor, has_BK: Tensor, group_ids_B: Tensor, *, leave_one_out: bool = False) -> tuple[Tensor, Tensor]:
    """Each turn's return minus the mean of the same turn over the siblings that got so far, itself left out with `leave_one_out`.

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
    turn_rewards_BK: Tensor,
    group_ids_B: Tensor,
    valid_B: Tensor,
    *,
    discount: float,
    std_normalise: bool = True,
    leave_one_out: bool = False,
) -> Tensor:
    """Each turn's deviation from its siblings' same turn, over the spread of these in the group.

    A reply answers for its own and later turns, not for earlier ones. The spread is the unbiased standard deviation about the
    turns' own means, pooled over the group's turns that at least two siblings reached: sqrt(sum of squared deviations / sum over turns of
    (siblings there - 1)), the same estimator as for final rewards.

    Returns:
        [B, K] float64; 0 where there is no turn, or no sibling's.
    """
    returns_BK, has_BK = turn_returns(turn_rewards_BK, valid_B, discount=discount)
    advantages_BK, compared_BK = turn_deviations(returns_BK, has_BK, group_ids_B, leave_one_out=leave_one_out)
    for group_id in group_ids_B.unique() if std_normalise else ():
        rows = group_ids_B == group_id
        freedom = (compared_BK[rows].sum(dim=0) - 1).clamp(min=0).sum()
        spread = (advantages_BK[rows].square().sum() / freedom.clamp(min=1)).sqrt()
        advantages_BK[rows] = advantages_BK[rows] / (spread + EPSILON)
    return advantages_BK


def to_tokens(advantages_B: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """A rollout's advantage on each token it sampled, 0 elsewhere; [B, T] float32."""
    return (advantages_B[:, None] * loss_mask_BT).float()


def turns_to_tokens(advantages_BK: Tensor, turn_ids_BT: Tensor, loss_mask_BT: Tensor) -> Tensor:
    """A turn's advantage on each token sampled in it, 0 elsewhere; [B, T] float32. A reply that was never answered has none."""
    if advantages_BK.shape[1] == 0:
        return turn_ids_BT.new_zeros(turn_ids_BT.shape).float()
    index_BT = turn_ids_BT.long()
    answered_BT = index_BT < advantages_BK.shape[1]
    advantages_BT = advantages_BK.gather(1, index_BT.clamp(max=advantages_BK.shape[1] - 1))
    return (advantages_BT * answered_BT * loss_mask_BT).float()


def whiten(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Values under the mask as (value - mean) / sqrt(unbiased variance + 1e-8, verl's); 0 elsewhere, and everywhere with fewer than two.

    [B, T] float32, computed in float64. Source: REINFORCE++, arXiv 2501.03262.
    """
    whitened_BT = values_BT.double().new_zeros(values_BT.shape)
    if int(mask_BT.sum()) >= 2:
        values_N = values_BT[mask_BT].double()
        whitened_BT[mask_BT] = (values_N - values_N.mean()) * (values_N.var(correction=1) + 1e-8).rsqrt()
    return whitened_BT.float()


def token_rewards(
    rewards_B: Tensor, turn_rewards_BK: Tensor, turn_ids_BT: Tensor, loss_mask_BT: Tensor, *, turn_credit: float = 0.0
) -> Tensor:
    """Rewards on the tokens they are paid for: 1 - `turn_credit` of the final one on a rollout's last sampled token, `turn_credit` of
    each change of emotion on the last token of the reply that brought it.

    Turn rewards are paid in the unit of the final one: undiscounted, turn credit changes when a reward comes, not which dialogue is the
    better one.

    Returns:
        [B, T] float64; rows without a sampled token have none.
    """
    paid_BT = rewards_B.double().new_zeros(loss_mask_BT.shape)
    if not paid_BT.shape[1]:
        return paid_BT
    position_T = turn_ids_BT.long().new_ones(turn_ids_BT.shape[1]).cumsum(0) - 1

    def pay(amounts_B: Tensor, until_BT: Tensor) -> None:
        ends_B1 = (until_BT * position_T).amax(dim=1, keepdim=True)
        paid_BT.scatter_add_(1, ends_B1, (amounts_B * until_BT.any(dim=1))[:, None])

    pay((1.0 - turn_credit) * rewards_B.double().nan_to_num(0.0), loss_mask_BT)
    if turn_credit > 0:
        for k in range(turn_rewards_BK.shape[1]):
            pay(turn_credit * TURN_UNIT * turn_rewards_BK[:, k].nan_to_num(0.0), loss_mask_BT & (turn_ids_BT <= k))
    return paid_BT


def gae(
    rewards_BT: Tensor,
    values_BT: Tensor,
    turn_ids_BT: Tensor,
    loss_mask_BT: Tensor,
    *,
    gamma: float,
    lam: float,
    turn_discount: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates of sampled tokens, and the returns that a critic should have predicted.

    With t and t' a sampled token and the next one of the same rollout, however many of the user's are between them:
    delta_t = r_t + g V_t' - V_t and A_t = delta_t + g lam A_t', both ending with the last sampled token. g is `gamma` within a reply and
    `gamma` x `turn_discount` where another reply begins. The user's words are neither an action nor a state and cost no discount.

    Args:
        values_BT: expected return before the token was sampled.

    Returns:
        advantages_BT and returns_BT = advantages + values, float64, neither normalised; 0 outside the mask.

    Source: GAE, arXiv 1506.02438, equation 16.
    """
    # Sampled tokens first, in order, and zeros after a row's last: the chain then runs over neighbours.
    order_BT = (~loss_mask_BT).int().argsort(dim=1, stable=True)
    num_steps = int(loss_mask_BT.sum(dim=1).max()) if loss_mask_BT.numel() else 0
    order_BN = order_BT[:, :num_steps]
    sampled_BN = loss_mask_BT.gather(1, order_BN)
    rewards_BN, values_BN = (column.double().gather(1, order_BN) * sampled_BN for column in (rewards_BT, values_BT))
    turn_ids_BN = turn_ids_BT.long().gather(1, order_BN)
    advantages_BN = rewards_BN.new_zeros(rewards_BN.shape)
    value_B, advantage_B = advantages_BN.new_zeros(len(advantages_BN)), advantages_BN.new_zeros(len(advantages_BN))
    for n in reversed(range(num_steps)):
        discount_B = value_B.new_full(value_B.shape, gamma)
        if n + 1 < num_steps:
            discount_B[turn_ids_BN[:, n + 1] > turn_ids_BN[:, n]] *= turn_discount
        delta_B = rewards_BN[:, n] + discount_B * value_B - values_BN[:, n]
        advantage_B = delta_B + discount_B * lam * advantage_B
        value_B = values_BN[:, n]
        advantages_BN[:, n] = advantage_B
    advantages_BT = rewards_BT.double().new_zeros(rewards_BT.shape).scatter(1, order_BN, advantages_BN)
    return advantages_BT, (advantages_BT + values_BT.double()) * loss_mask_BT
