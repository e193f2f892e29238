"""GRPO: a reply is as good as its dialogue fared among its siblings.

Source: arXiv 2402.03300.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from policy.advantages import EPSILON, Targets, group_advantages, to_tokens, turn_advantages, turns_to_tokens
from policy.policy_loss import PolicyLoss
from policy.turn_credit import TurnCreditConfig, mixed
from simulator.reward import TURN_UNIT

if TYPE_CHECKING:
    from torch import Tensor

    from policy.batch import Batch


class Spread(StrEnum):
    """What the deviations from a group's mean are measured by."""

    GROUP = "group"
    """The group's own standard deviation: every group counts alike, also one whose rollouts differ by little more than noise."""
    BATCH = "batch"
    """The root mean square over all tokens that are trained on: groups that differ more count for more (REINFORCE++, arXiv 2501.03262)."""
    NONE = "none"
    """Nothing, as in Dr.GRPO (arXiv 2503.20783)."""


@dataclass
class GrpoConfig(TurnCreditConfig):
    """Settings of GRPO, `algorithm.*`."""

    kind: str = "grpo"
    """Which algorithm."""
    normalise_by: Spread = Spread.GROUP
    """Whose spread advantages are divided by: the group's, as RLVER does; the batch's; or none."""


class Grpo(PolicyLoss):
    """Advantages by comparison with siblings; the loss is everyone's."""

    def __init__(self, config: GrpoConfig) -> None:
        super().__init__(config)
        self.config = config

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """Every token a rollout sampled gets the rollout's advantage, mixed with its turn's by `turn_credit`."""
        batch = self.penalised(batch)
        config, siblings = self.config, (batch.group_ids_B, batch.valid_B)
        by_group = config.normalise_by is Spread.GROUP
        advantages_B = group_advantages(batch.rewards_B, *siblings, std_normalise=by_group)
        advantages_BT = self._by_batch(to_tokens(advantages_B, batch.loss_mask_BT), batch)
        if config.turn_credit > 0:
            turns_BK = turn_advantages(batch.turn_rewards_BK, *siblings, discount=config.turn_discount, std_normalise=by_group)
            if config.normalise_by is Spread.NONE:
                turns_BK = TURN_UNIT * turns_BK  # no spread takes the unit away
            by_turn_BT = self._by_batch(turns_to_tokens(turns_BK, batch.turn_ids_BT, batch.loss_mask_BT), batch)
            advantages_BT = mixed(advantages_BT, by_turn_BT, config.turn_credit)
        return Targets(advantages_BT=advantages_BT)

    def _by_batch(self, advantages_BT: Tensor, batch: Batch) -> Tensor:
        """Divided by their root mean square over the batch's trained tokens, where that is asked for."""
        if self.config.normalise_by is not Spread.BATCH or not batch.num_trained:
            return advantages_BT
        return advantages_BT / (advantages_BT[batch.loss_mask_BT].square().mean().sqrt() + EPSILON)
