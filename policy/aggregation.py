"""How the losses of an optimiser step's tokens become one number.

Weights are by row and denominators by optimiser step, so that neither depends on how the step is cut into micro-batches.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from policy.batch import Batch


class Aggregation(StrEnum):
    """What all tokens of an optimiser step are averaged to."""

    TOKEN_MEAN = "token_mean"
    """The mean over all trained tokens: each counts alike, a long dialogue for more than a short one (DAPO, arXiv 2503.14476)."""
    DIALOGUE_MEAN = "dialogue_mean"
    """The mean over dialogues of the mean over each one's tokens: each dialogue counts alike (GRPO, arXiv 2402.03300)."""
    CONSTANT = "constant"
    """The sum over dialogues of each one's sum, over their number and a constant length (Dr.GRPO, arXiv 2503.20783)."""


def token_weights(rows_N: Tensor, aggregation: Aggregation, *, dtype: dtype) -> Tensor | None:
    """What each token counts in the sum; None for 1 each. A dialogue's tokens must all be there, which rows see to."""
    if aggregation is not Aggregation.DIALOGUE_MEAN:
        return None
    return rows_N.bincount().to(dtype).reciprocal()[rows_N]


def denominator(batch: Batch, aggregation: Aggregation, *, length: int) -> float:
    """What the weighted sum over all tokens of the optimiser step `batch` is divided by; dialogues without a trained token count nowhere.

    Args:
        length: tokens a dialogue stands for where the denominator is constant.
    """
    if aggregation is Aggregation.TOKEN_MEAN:
        return batch.num_trained
    num_dialogues = int(batch.loss_mask_BT.any(dim=1).sum())
    return num_dialogues if aggregation is Aggregation.DIALOGUE_MEAN else num_dialogues * length
