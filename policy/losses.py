"""Losses per token, summed: the caller divides by the tokens of the whole optimiser step, so how a batch is cut changes nothing.

Tensors are worked on through their methods: an algorithm and its settings can then be named without importing torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before exp (verl, OpenRLHF)."""


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """What a loss may read of the N trained tokens of a micro-batch; logprobs and entropies in nats at the sampling temperature."""

    logprobs_N: Tensor
    """Of the weights being trained; carries the gradient."""
    entropies_N: Tensor
    """Exact; carries a gradient only where the algorithm asks for one."""
    old_logprobs_N: Tensor
    """Of the weights before this update, recomputed by the trainer."""
    advantages_N: Tensor
    reference_logprobs_N: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """What to log of a micro-batch; nothing in it is averaged yet."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    """By metric key: sums over tokens, whose means are logged."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """By metric key: maxima over tokens."""


@dataclass(frozen=True, kw_only=True)
class TokenLoss(TokenSums):
    """A loss summed over tokens, with what to log of it."""

    total: Tensor
    """Scalar; differentiable."""


def k3(log_p_N: Tensor, log_q_N: Tensor) -> Tensor:
    """The k3 estimate of KL(p || q) on tokens sampled from p, each >= 0, float64.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    difference_N = (log_q_N.double() - log_p_N.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference_N.expm1() - difference_N


def kl_to_reference(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """KL(policy || reference) per token: the value is k3, the gradient that of k2 = (difference)^2 / 2.

    k3's own gradient is biased, and k1's is zero in expectation when on policy; k2's is that of the KL.
    """
    difference_N = (logprobs_N - reference_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k2_N = difference_N.square() / 2
    k3_N = k3(logprobs_N.detach(), reference_logprobs_N).to(k2_N.dtype)
    return k2_N + (k3_N - k2_N.detach())


def clipped_surrogate(scores: TokenScores, *, clip_low: float, clip_high: float) -> TokenLoss:
    """The pessimistic one of the plain and the clipped policy-gradient loss, with bounds 1 - clip_low and 1 + clip_high on the ratio.

    Source: PPO, arXiv 1707.06347, equation 7; separate bounds, DAPO, arXiv 2503.14476.
    """
    log_ratios_N = (scores.logprobs_N - scores.old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratios_N, advantages_N = log_ratios_N.exp(), scores.advantages_N
    plain_N = -advantages_N * ratios_N
    clipped_N = -advantages_N * ratios_N.clamp(1 - clip_low, 1 + clip_high)
    losses_N = plain_N.maximum(clipped_N)
    held_N = clipped_N > plain_N
    sums = {
        "actor/pg_loss": losses_N.detach().sum(),
        "actor/pg_clipfrac": held_N.sum(),
        "actor/pg_clipfrac_lower": (held_N & (advantages_N < 0)).sum(),
        "actor/pg_clipfrac_upper": (held_N & (advantages_N > 0)).sum(),
        "actor/ppo_kl": k3(scores.old_logprobs_N, scores.logprobs_N.detach()).sum(),
        "actor/ratio_mean": ratios_N.detach().sum(),
    }
    return TokenLoss(total=losses_N.sum(), sums=sums, maxima={"actor/ratio_max": ratios_N.detach().max()})


def mismatch(rollout_logprobs_N: Tensor, logprobs_N: Tensor, entropies_N: Tensor) -> TokenSums:
    """Engine against trainer on the same tokens, as metrics alone; the KL is k3 of KL(engine || trainer)."""
    differences_N = (logprobs_N - rollout_logprobs_N).abs()
    sums = {
        "actor/entropy": entropies_N.sum(),
        "actor/entropy_sampled": -rollout_logprobs_N.sum(),
        "training/rollout_logprob_abs_diff_mean": differences_N.sum(),
        "training/mismatch_kl": k3(rollout_logprobs_N, logprobs_N).sum(),
    }
    return TokenSums(sums=sums, maxima={"training/rollout_logprob_abs_diff_max": differences_N.max()})


@dataclass
class Totals:
    """Sums and maxima over the tokens of many micro-batches."""

    num_tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, num_tokens: int, token_sums: TokenSums) -> None:
        """Takes in one micro-batch."""
        self.num_tokens += num_tokens
        for key, value in token_sums.sums.items():
            self.sums[key] = self.sums.get(key, 0.0) + float(value)
        for key, value in token_sums.maxima.items():
            self.maxima[key] = max(self.maxima.get(key, -math.inf), float(value))

    def metrics(self) -> dict[str, float]:
        """Means over all tokens, and the maxima."""
        return {key: value / self.num_tokens for key, value in self.sums.items()} | self.maxima
