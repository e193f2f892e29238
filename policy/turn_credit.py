"""Credit for a reply by what came of it: the setting that every algorithm shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from policy.policy_loss import PolicyLossConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class TurnCreditConfig(PolicyLossConfig):
    """Settings of how the dialogue's end and its turns share the credit, `algorithm.*`."""

    turn_credit: float = 0.0
    """In [0, 1]; share of the advantage that credits a reply with what came of it, instead of with how the dialogue ended."""
    turn_discount: float = 0.6
    """In [0, 1]; how much of the next turn's change of emotion counts for a reply, and so on."""

    credits_turns_alone: ClassVar[bool] = True
    """Whether `turn_discount` has no other use."""

    def __post_init__(self) -> None:
        if self.kind != type(self).kind:
            raise ValueError(f"algorithm.kind must be {type(self).kind!r} here, got {self.kind!r}")
        super().__post_init__()
        for name in ("turn_credit", "turn_discount"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"algorithm.{name} must be in [0, 1], got {getattr(self, name)!r}")
        if self.credits_turns_alone and not self.turn_credit and self.turn_discount != type(self).turn_discount:
            raise ValueError(
                f"algorithm.turn_discount is read with algorithm.turn_credit above 0 alone, got {self.turn_discount!r} without it"
            )


def mixed(by_end_BT: Tensor, by_turn_BT: Tensor, turn_credit: float) -> Tensor:
    """Both advantages of each token, `turn_credit` of the second."""
    return (1.0 - turn_credit) * by_end_BT + turn_credit * by_turn_BT
