"""Advantages by a critic: rewards on the tokens that end a reply, and GAE along the tokens that the agent sampled.

What the user says is neither an action nor a state of its own here: values and differences chain from one sampled token to the next,
however much was said in between, so a long answer of the user costs no discount and no reward is lost in it.

Source: GAE, arXiv 1506.02438, equation 16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.reward import TURN_UNIT

if TYPE_CHECKING:
    from torch import Tensor


def token_rewards(
    rewards_B: Tensor, turn_rewards_BK: Tensor, turn_ids_BT: Tensor, loss_mask_BT: Tensor, *, turn_credit: float = 0.0
) -> Tensor:
    """Rewards on the tokens they are paid for: 1 - `turn_credit` of the final one on a rollout's last sampled token, `turn_credit` of
    each change of emotion on the last token of the reply that brought it.

    Turn rewards are paid in the unit of the final one. What a dialogue is paid by turns is then its final reward minus what the user's
    emotion was worth at the start: undiscounted, turn credit changes when a reward comes, not which dialogue is the better one. (A reward
    for the form of thoughts scales the two differently.)

    Args:
        turn_rewards_BK: NaN where a rollout has no such turn, or none that was answered.

    Returns:
        [B, T] float64; rows without a sampled token have none.
    """
    paid_BT = rewards_B.double().new_zeros(loss_mask_BT.shape)
    if not paid_BT.shape[1]:
        return paid_BT

    def pay(amounts_B: Tensor, until_BT: Tensor) -> None:
        ends_B1 = (until_BT * position_T).amax(dim=1, keepdim=True)
        paid_BT.scatter_add_(1, ends_B1, (amounts_B * until_BT.any(dim=1))[:, None])

    position_T = turn_ids_BT.long().new_ones(turn_ids_BT.shape[1]).cumsum(0) - 1
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

    With t and t' a sampled token and the next one of the same rollout, whatever was said between them:
    delta_t = r_t + g V_t' - V_t and A_t = delta_t + g lam A_t', both ending with the last sampled token. g is `gamma` within a reply and
    `gamma` x `turn_discount` where another reply begins.

    Args:
        values_BT: expected return before the token was sampled.

    Returns:
        advantages_BT and returns_BT = advantages + values, float64, neither normalised; 0 outside the mask.
    """
    # Sampled tokens side by side, in order, before everything else: the chain then runs over neighbours.
    order_BT = (~loss_mask_BT).int().argsort(dim=1, stable=True)
    num_steps = int(loss_mask_BT.sum(dim=1).max()) if loss_mask_BT.numel() else 0
    order_BN = order_BT[:, :num_steps]
    sampled_BN = loss_mask_BT.gather(1, order_BN)
    rewards_BN, values_BN = (column.double().gather(1, order_BN) * sampled_BN for column in (rewards_BT, values_BT))
    turn_ids_BN = turn_ids_BT.long().gather(1, order_BN)
    chained_BN = rewards_BN.new_zeros(rewards_BN.shape)
    value_B, advantage_B = chained_BN.new_zeros(len(chained_BN)), chained_BN.new_zeros(len(chained_BN))
    for n in reversed(range(num_steps)):
        discount_B = value_B.new_full(value_B.shape, gamma)
        if n + 1 < num_steps:
            discount_B[turn_ids_BN[:, n + 1] > turn_ids_BN[:, n]] *= turn_discount
        delta_B = rewards_BN[:, n] + discount_B * value_B - values_BN[:, n]
        advantage_B = (delta_B + discount_B * lam * advantage_B) * sampled_BN[:, n]
        value_B = values_BN[:, n]
        chained_BN[:, n] = advantage_B
    advantages_BT = rewards_BT.double().new_zeros(rewards_BT.shape).scatter(1, order_BN, chained_BN)
    return advantages_BT, (advantages_BT + values_BT.double()) * loss_mask_BT


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one, below 0 for one worse than that.

    NaN without any spread of the returns.
    """
    spread = float(returns_N.double().var(correction=0)) if len(returns_N) else 0.0
    return 1.0 - float((returns_N.double() - values_N.double()).var(correction=0)) / spread if spread > 0 else float("nan")
