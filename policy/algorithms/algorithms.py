"""GRPO, RLOO, REINFORCE++ and PPO: the advantages of a batch's tokens; the loss is common to all (`PolicyLoss`)."""

from __future__ import annotations

import abc
from dataclasses import replace

from torch import Tensor

from policy.algorithms.advantages import (
    EPSILON,
    gae,
    group_advantages,
    to_tokens,
    token_rewards,
    turn_advantages,
    turn_deviations,
    turn_returns,
    turns_to_tokens,
    whiten,
)
from policy.algorithms.loss import PolicyLoss
from policy.batch import Batch
from policy.config import GrpoConfig, PpoConfig, ReinforcePPConfig, RlooConfig, Spread
from simulator.reward import TURN_UNIT


class Algorithm(PolicyLoss, abc.ABC):
    """Mathematics on tensors, without a model or an optimiser."""

    compares_siblings = True
    """Whether a rollout is judged by its group, so that a group of one valid rollout, or without variance, teaches nothing."""
    needs_critic = False
    """Whether advantages are over a critic's values."""

    @abc.abstractmethod
    def add_advantages(self, batch: Batch) -> Batch:
        """The batch with `advantages_BT`, zero outside the loss mask, and `returns_BT` where there is a critic.

        Args:
            batch: whole dialogues, with the reference's logprobs and the critic's values where these are needed.
        """


def against_siblings(
    algorithm: PolicyLoss, config: GrpoConfig | RlooConfig, batch: Batch, *, spread: Spread, leave_one_out: bool = False
) -> Batch:
    """The batch with each rollout's reward against its siblings', on each token it sampled, mixed with its turn's by `turn_credit`."""
    rewarded, mask_BT = algorithm.penalise(batch), batch.loss_mask_BT
    siblings, by_group = (batch.group_ids_B, batch.valid_B), spread is Spread.GROUP

    def over_batch(advantages_BT: Tensor) -> Tensor:
        """Divided by their root mean square over the batch's trained tokens, for `normalise_by=batch`."""
        if spread is not Spread.BATCH or not batch.num_trained:
            return advantages_BT
        return advantages_BT / (advantages_BT[mask_BT].square().mean().sqrt() + EPSILON)

    advantages_B = group_advantages(rewarded.rewards_B, *siblings, std_normalise=by_group, leave_one_out=leave_one_out)
    advantages_BT = over_batch(to_tokens(advantages_B, mask_BT))
    if config.turn_credit > 0:
        discount, turn_rewards_BK = config.turn_discount, rewarded.turn_rewards_BK
        turns_BK = turn_advantages(turn_rewards_BK, *siblings, discount=discount, std_normalise=by_group, leave_one_out=leave_one_out)
        if spread is Spread.NONE:
            turns_BK = TURN_UNIT * turns_BK  # no spread takes the unit away
        by_turn_BT = over_batch(turns_to_tokens(turns_BK, batch.turn_ids_BT, mask_BT))
        advantages_BT = (1.0 - config.turn_credit) * advantages_BT + config.turn_credit * by_turn_BT
    return replace(batch, advantages_BT=advantages_BT)


class Grpo(Algorithm):
    """A rollout's reward against its siblings', over the spread that `normalise_by` names. Source: arXiv 2402.03300."""

    config: GrpoConfig

    def add_advantages(self, batch: Batch) -> Batch:
        return against_siblings(self, self.config, batch, spread=self.config.normalise_by)


class Rloo(Algorithm):
    """A rollout's reward against its siblings', itself left out and undivided; in the final reward's unit.

    Source: arXiv 2402.14740; the surrogate is clipped as for every algorithm here, which changes nothing strictly on policy.
    """

    config: RlooConfig

    def add_advantages(self, batch: Batch) -> Batch:
        return against_siblings(self, self.config, batch, spread=Spread.NONE, leave_one_out=True)


class ReinforcePP(Algorithm):
    """A rollout's reward on each token it sampled, mixed with its turn's; each whitened over the batch's trained tokens.

    A KL in the reward counts for its own token and those before it. Undiscounted, as published.

    Source: arXiv 2501.03262; with `group_baseline` the variant that it calls REINFORCE++-baseline.
    """

    config: ReinforcePPConfig

    def __init__(self, config: ReinforcePPConfig) -> None:
        super().__init__(config)
        self.compares_siblings = config.group_baseline

    def add_advantages(self, batch: Batch) -> Batch:
        config, compared_B, scores_B = self.config, batch.valid_B, batch.rewards_B.nan_to_num(0.0)
        if config.group_baseline:
            num_valid_B = ((batch.group_ids_B[:, None] == batch.group_ids_B) & batch.valid_B).sum(dim=1)
            compared_B = batch.valid_B & (num_valid_B >= 2)
            scores_B = group_advantages(batch.rewards_B, batch.group_ids_B, batch.valid_B, std_normalise=False)
        penalties_to_come_BT = self.token_penalties(batch).flip(1).cumsum(1).flip(1)
        advantages_BT = whiten(scores_B[:, None] - penalties_to_come_BT, batch.loss_mask_BT & compared_B[:, None])
        if config.turn_credit > 0:
            returns_BK, has_BK = turn_returns(self.penalise(batch).turn_rewards_BK, batch.valid_B, discount=config.turn_discount)
            if config.group_baseline:
                returns_BK, has_BK = turn_deviations(returns_BK, has_BK, batch.group_ids_B)
            mask_BT = turns_to_tokens(has_BK.double(), batch.turn_ids_BT, batch.loss_mask_BT) > 0
            by_turn_BT = whiten(turns_to_tokens(returns_BK, batch.turn_ids_BT, batch.loss_mask_BT), mask_BT)
            advantages_BT = (1.0 - config.turn_credit) * advantages_BT + config.turn_credit * by_turn_BT
        return replace(batch, advantages_BT=advantages_BT)


class Ppo(Algorithm):
    """Generalised advantage estimates over a critic's values, whitened over the batch's trained tokens; a KL is paid by token.

    Source: arXiv 1707.06347, with GAE (arXiv 1506.02438) along the sampled tokens.
    """

    config: PpoConfig
    compares_siblings = False
    needs_critic = True

    def add_advantages(self, batch: Batch) -> Batch:
        config, mask_BT = self.config, batch.loss_mask_BT
        assert batch.values_BT is not None, "PPO needs the critic's values"
        rewards_BT = token_rewards(batch.rewards_B, batch.turn_rewards_BK, batch.turn_ids_BT, mask_BT, turn_credit=config.turn_credit)
        advantages_BT, returns_BT = gae(
            rewards_BT - self.token_penalties(batch),
            batch.values_BT,
            batch.turn_ids_BT,
            mask_BT,
            gamma=config.gamma,
            lam=config.lam,
            turn_discount=config.turn_discount,
        )
        return replace(batch, advantages_BT=whiten(advantages_BT, mask_BT), returns_BT=returns_BT.float())


ALGORITHMS: dict[str, type[Algorithm]] = {"grpo": Grpo, "rloo": Rloo, "reinforce_pp": ReinforcePP, "ppo": Ppo}
"""Algorithms by `algorithm.kind`."""
