"""REINFORCE++: a reply is as good as its dialogue fared among all of the batch, or among its siblings in units of the whole batch.

Source: arXiv 2501.03262; with `group_baseline` the variant that it calls REINFORCE++-baseline. Undiscounted, as published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from policy.advantages import (
    Targets,
    group_advantages,
    has_siblings,
    turn_deviations,
    turn_returns,
    turns_to_tokens,
    whiten,
)
from policy.policy_loss import PolicyLoss
from policy.turn_credit import TurnCreditConfig, mixed

if TYPE_CHECKING:
    from torch import Tensor

    from policy.batch import Batch


@dataclass
class ReinforcePPConfig(TurnCreditConfig):
    """Settings of REINFORCE++, `algorithm.*`."""

    kind: str = "reinforce_pp"
    """Which algorithm."""
    group_baseline: bool = False
    """Subtract the mean of a rollout's group before advantages are normalised over the batch's tokens. Without it all tasks share one
    mean, so a rollout of an easy task counts as good whatever the agent did there; groups that fared alike are then trained on too."""


class ReinforcePP(PolicyLoss):
    """Advantages with mean 0 and variance 1 over the batch's trained tokens."""

    def __init__(self, config: ReinforcePPConfig) -> None:
        super().__init__(config)
        self.config = config
        self.compares_siblings = config.group_baseline

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """A rollout's advantage on each token it sampled, mixed with its turn's by `turn_credit`; each normalised by itself.

        With a KL in the reward, a token answers for its own and for those that came after it, not for those before.
        """
        advantages_BT = self._by_end(batch)
        if self.config.turn_credit > 0:
            advantages_BT = mixed(advantages_BT, self._by_turn(batch), self.config.turn_credit)
        return Targets(advantages_BT=advantages_BT)

    def _by_end(self, batch: Batch) -> Tensor:
        if self.config.group_baseline:
            compared_B = has_siblings(batch.group_ids_B, batch.valid_B)
            scores_B = group_advantages(batch.rewards_B, batch.group_ids_B, batch.valid_B, std_normalise=False)
        else:
            compared_B, scores_B = batch.valid_B, batch.rewards_B.nan_to_num(0.0)
        mask_BT = batch.loss_mask_BT & compared_B[:, None]
        return whiten(scores_B[:, None] - self.token_penalties(batch).flip(1).cumsum(1).flip(1), mask_BT)

    def _by_turn(self, batch: Batch) -> Tensor:
        batch = self.penalised(batch)
        returns_BK, compared_BK = turn_returns(batch.turn_rewards_BK, batch.valid_B, discount=self.config.turn_discount)
        if self.config.group_baseline:
            returns_BK, compared_BK = turn_deviations(returns_BK, compared_BK, batch.group_ids_B)
        mask_BT = turns_to_tokens(compared_BK.double(), batch.turn_ids_BT, batch.loss_mask_BT) > 0
        return whiten(turns_to_tokens(returns_BK, batch.turn_ids_BT, batch.loss_mask_BT), mask_BT)
