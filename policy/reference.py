"""How far the policy may be from a reference: its KL in the loss, or taken off the reward.

Both estimate KL(policy || reference) in nats on the sampled tokens. In the loss it is differentiated; in the reward it is part of what
the policy is reinforced for, and a reply also answers for the divergence of the replies after it.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from policy.losses import MAX_LOG_RATIO, k3
from simulator.reward import TURN_UNIT

if TYPE_CHECKING:
    from torch import Tensor

    from policy.batch import Batch


class KlPlace(StrEnum):
    """Where the KL to the reference counts."""

    LOSS = "loss"
    REWARD = "reward"


class KlEstimator(StrEnum):
    """The value of a token's KL in the loss; the gradient is k2's either way."""

    K2 = "k2"
    """Half the squared difference of the logprobs: biased, of little variance."""
    K3 = "k3"
    """Unbiased and never negative."""


def kl_to_reference(logprobs_N: Tensor, reference_logprobs_N: Tensor, estimator: KlEstimator = KlEstimator.K3) -> Tensor:
    """KL(policy || reference) per token: the value is the estimator's, the gradient that of k2 = (difference)^2 / 2.

    k3's own gradient is biased, and k1's is zero in expectation when on policy; k2's is that of the KL.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    difference_N = (logprobs_N - reference_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k2_N = difference_N.square() / 2
    if estimator is KlEstimator.K2:
        return k2_N
    k3_N = k3(logprobs_N.detach(), reference_logprobs_N).to(k2_N.dtype)
    return k2_N + (k3_N - k2_N.detach())


def kl_of_tokens(batch: Batch) -> Tensor:
    """k1 = logp - logp_reference of each trained token under the policy that sampled it, 0 elsewhere; [B, T] float32 nats."""
    assert batch.reference_logprobs_BT is not None, "a KL in the reward needs the reference's logprobs in the batch before its targets"
    difference_BT = (batch.rollout_logprobs_BT - batch.reference_logprobs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference_BT * batch.loss_mask_BT


def penalised(batch: Batch, coef: float) -> Batch:
    """The batch with `coef` times the KL of its tokens taken off: of all of a rollout off its reward, of a turn's off the turn's.

    Turn rewards have a unit of their own, so what is taken off them is `coef` times the KL in that unit.

    Source: arXiv 1909.08593, section 2.2, summed over a rollout's tokens.
    """
    kl_BT = kl_of_tokens(batch).double()
    turn_rewards_BK = batch.turn_rewards_BK
    if turn_rewards_BK.shape[1]:
        index_BT = batch.turn_ids_BT.long()
        answered_BT = index_BT < turn_rewards_BK.shape[1]
        by_turn_BK = turn_rewards_BK.new_zeros(turn_rewards_BK.shape)
        by_turn_BK.scatter_add_(1, index_BT.clamp(max=turn_rewards_BK.shape[1] - 1), kl_BT * answered_BT)
        turn_rewards_BK = turn_rewards_BK - coef / TURN_UNIT * by_turn_BK
    return replace(batch, rewards_B=batch.rewards_B - coef * kl_BT.sum(dim=1), turn_rewards_BK=turn_rewards_BK)
