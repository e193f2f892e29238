"""PPO: a reply is as good as what came of it beside what a critic expected at each of its tokens.

Source: arXiv 1707.06347, with generalised advantage estimates (arXiv 1506.02438) along the tokens that the agent sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from policy.advantages import Targets, whiten
from policy.gae import gae, token_rewards
from policy.policy_loss import PolicyLoss
from policy.turn_credit import TurnCreditConfig

if TYPE_CHECKING:
    from torch import Tensor

    from policy.batch import Batch


class CriticKind(StrEnum):
    """Where the values come from."""

    SEPARATE = "separate"
    """A model of its own, which starts as the policy did: twice the memory, and neither disturbs the other."""
    SHARED = "shared"
    """A head on the policy's own layers, which both losses then train."""


@dataclass
class PpoConfig(TurnCreditConfig):
    """Settings of PPO, `algorithm.*`."""

    kind: str = "ppo"
    """Which algorithm."""
    turn_credit: float = 0.0
    """In [0, 1]; share of the reward that is paid as changes of emotion at the end of each reply, instead of at the dialogue's end."""
    turn_discount: float = 1.0
    """In [0, 1]; how much of what is paid after the user's next turn counts for a reply, whichever kind of reward it is."""
    gamma: float = 1.0
    """In (0, 1]; discount from one sampled token to the next."""
    lam: float = 1.0
    """In [0, 1]; 1 judges a token by what came in the end, 0 by what the critic expects right after it: less noise, but the critic's
    mistakes count."""
    critic: CriticKind = CriticKind.SEPARATE
    """Where the values come from: separate or shared."""
    critic_lr: float = 1e-3
    """> 0; AdamW's step size for what the critic has of its own, the same from beginning to end: `learner.warmup_steps` and
    `learner.lr_end` are the policy's. 1e-3 suits the embedded policy, 1e-5 a critic of billions."""
    critic_warmup_steps: int = 0
    """>= 0; training steps in which the critic learns alone and the policy stays as it is."""
    value_clip: float = 0.2
    """>= 0; how far a value may move in one update before the loss stops rewarding it, in units of the final reward; 0 sets no limit."""
    value_coef: float = 0.5
    """> 0; weight of the critic's loss in the gradient of layers that it shares with the policy."""

    credits_turns_alone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.gamma <= 1.0:
            raise ValueError(f"algorithm.gamma must be in (0, 1], got {self.gamma!r}; 1 does not discount")
        if not 0.0 <= self.lam <= 1.0:
            raise ValueError(f"algorithm.lam must be in [0, 1], got {self.lam!r}; 1 does without the critic's expectations")
        for name in ("critic_lr", "value_coef"):
            if not getattr(self, name) > 0.0:
                raise ValueError(f"algorithm.{name} must be > 0, got {getattr(self, name)!r}")
        for name in ("critic_warmup_steps", "value_clip"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"algorithm.{name} must be >= 0, got {getattr(self, name)!r}")
        if self.critic is CriticKind.SEPARATE and self.value_coef != type(self).value_coef:
            raise ValueError(f"algorithm.value_coef is read with algorithm.critic=shared alone, got {self.value_coef!r} without it")


class Ppo(PolicyLoss):
    """Advantages over a critic's expectations, with mean 0 and variance 1 over the batch's trained tokens."""

    compares_siblings = False
    needs_critic = True

    def __init__(self, config: PpoConfig) -> None:
        super().__init__(config)
        self.config = config

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """Advantages of the tokens sampled, and what the critic should have expected of them. A KL in the reward is paid token by token.

        Args:
            values_BT: the critic's expectations before the update.
        """
        assert values_BT is not None, "PPO must be given the critic's values"
        config, mask_BT = self.config, batch.loss_mask_BT
        rewards_BT = token_rewards(batch.rewards_B, batch.turn_rewards_BK, batch.turn_ids_BT, mask_BT, turn_credit=config.turn_credit)
        advantages_BT, returns_BT = gae(
            rewards_BT - self.token_penalties(batch),
            values_BT,
            batch.turn_ids_BT,
            mask_BT,
            gamma=config.gamma,
            lam=config.lam,
            turn_discount=config.turn_discount,
        )
        return Targets(advantages_BT=whiten(advantages_BT, mask_BT), returns_BT=returns_BT.float(), values_BT=values_BT)
