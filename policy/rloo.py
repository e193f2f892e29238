"""RLOO: a reply is as good as its dialogue fared beside the others of its group, itself left out; nothing is divided by a spread.

Source: arXiv 2402.14740; the surrogate is clipped as for every algorithm here, which changes nothing strictly on policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from policy.advantages import Targets, leave_one_out_advantages, to_tokens, turn_deviations, turn_returns, turns_to_tokens
from policy.policy_loss import PolicyLoss
from policy.turn_credit import TurnCreditConfig, mixed
from simulator.reward import TURN_UNIT

if TYPE_CHECKING:
    from torch import Tensor

    from policy.batch import Batch


@dataclass
class RlooConfig(TurnCreditConfig):
    """Settings of RLOO, `algorithm.*`."""

    kind: str = "rloo"
    """Which algorithm."""


class Rloo(PolicyLoss):
    """Advantages by comparison with the siblings alone."""

    def __init__(self, config: RlooConfig) -> None:
        super().__init__(config)
        self.config = config

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """A rollout's advantage on each token it sampled, mixed with its turn's by `turn_credit`, both in the final reward's unit."""
        config, batch = self.config, self.penalised(batch)
        advantages_BT = to_tokens(leave_one_out_advantages(batch.rewards_B, batch.group_ids_B, batch.valid_B), batch.loss_mask_BT)
        if config.turn_credit > 0:
            returns_BK, has_BK = turn_returns(batch.turn_rewards_BK, batch.valid_B, discount=config.turn_discount)
            turns_BK, _ = turn_deviations(returns_BK, has_BK, batch.group_ids_B, leave_one_out=True)
            by_turn_BT = turns_to_tokens(TURN_UNIT * turns_BK, batch.turn_ids_BT, batch.loss_mask_BT)
            advantages_BT = mixed(advantages_BT, by_turn_BT, config.turn_credit)
        return Targets(advantages_BT=advantages_BT)
