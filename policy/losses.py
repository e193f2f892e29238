"""What a loss reads of each token, what it gives back, and what two sets of logprobs say of each other.

Losses are summed over tokens: the caller divides by the denominator of the whole optimiser step, so how a batch is cut changes nothing.
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
    rollout_logprobs_N: Tensor | None = None
    """Of the engine, as the tokens were sampled."""
    rows_N: Tensor | None = None
    """int64; which row of the micro-batch each token is of. Rows are never cut."""
    selected_N: Tensor | None = None
    """bool; the tokens that the algorithm picked out of the whole optimiser step."""
    weights_N: Tensor | None = None
    """What each token counts in a sum; unset, 1 each."""
    correction_N: Tensor | None = None
    """Detached; what each token's policy gradient is multiplied by for having been sampled by an engine that differs from the trainer."""

    def summed(self, values_N: Tensor) -> Tensor:
        """Their sum, each counting by its weight."""
        return values_N.sum() if self.weights_N is None else (values_N * self.weights_N).sum()


@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """What to log of a micro-batch; nothing in it is averaged yet."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    """By metric key: sums over tokens, whose means are logged."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """By metric key: maxima over tokens."""


@dataclass(frozen=True, kw_only=True)
class TokenLoss(TokenSums):
    """A loss summed over tokens by their weights, with what to log of it."""

    total: Tensor
    """Scalar; differentiable."""


def k3(log_p_N: Tensor, log_q_N: Tensor) -> Tensor:
    """The k3 estimate of KL(p || q) on tokens sampled from p, each >= 0, float64.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    difference_N = (log_q_N.double() - log_p_N.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference_N.expm1() - difference_N


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
    """Sums and maxima over the tokens of many micro-batches; one that is no number stays one."""

    num_tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, num_tokens: int, token_sums: TokenSums) -> None:
        """Takes in one micro-batch."""
        self.num_tokens += num_tokens
        for key, value in token_sums.sums.items():
            self.sums[key] = self.sums.get(key, 0.0) + float(value)
        for key, value in token_sums.maxima.items():
            before, now = self.maxima.get(key, -math.inf), float(value)
            self.maxima[key] = now if math.isnan(now) or now > before else before

    def metrics(self) -> dict[str, float]:
        """Means over all tokens, and the maxima."""
        return {key: value / self.num_tokens for key, value in self.sums.items()} | self.maxima
