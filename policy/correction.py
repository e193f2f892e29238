"""Weights that make tokens sampled by an engine count as if the trainer had sampled them.

Three policies meet in a token: the one that sampled it (rollout), the trainer's before the update (old) and the trainer's now. The
surrogate's ratio is now / old; this weight is old / rollout. Their product would be now / rollout: where the rollout policy is itself
taken for the old one, the ratio holds all of it already, and a weight on top would count it twice.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from policy.losses import MAX_LOG_RATIO

if TYPE_CHECKING:
    from torch import Tensor


METRICS = ("training/correction_mean", "training/correction_square", "training/correction_truncated")
"""Keys of the sums that `truncated_weights` gives."""


class Correction(StrEnum):
    """Whether tokens are weighed for the difference between engine and trainer."""

    NONE = "none"
    TOKEN = "token"
    """Each by its own truncated ratio: biased for what follows it in the dialogue, but of bounded variance however long that is."""


def truncated_weights(old_logprobs_N: Tensor, rollout_logprobs_N: Tensor, *, cap: float) -> tuple[Tensor, dict[str, Tensor]]:
    """min(p_old / p_rollout, cap) of each token, detached, with sums of what there is to log.

    Source: truncated importance sampling, Ionides (2008); between engine and trainer, Yao et al., "Your efficient RL framework secretly
    brings you off-policy RL training" (2025).
    """
    ratios_N = (old_logprobs_N - rollout_logprobs_N).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weights_N = ratios_N.clamp(max=cap)
    sums = (weights_N.sum(), weights_N.double().square().sum(), (ratios_N > cap).sum())
    return weights_N, dict(zip(METRICS, sums, strict=True))
