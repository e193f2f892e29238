"""Metrics of a step's trained tokens: means over micro-batches, and how far engine and trainer differ.

The same quantities for arrays, each with its meaning and source, are in `curriculum/collapse/indicators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before exp (verl, OpenRLHF)."""
FORKING_SHARE = 0.2
"""Share of the tokens, those of highest entropy, at which a policy is said to decide (arXiv 2506.01939)."""
MAXIMA = ("actor/ratio_max", "training/rollout_logprob_abs_diff_max")
"""Metrics that are the maximum over tokens; all others are means."""
TRACE_METRICS = (
    "actor/entropy_forking",
    "actor/logprob_advantage_cov",
    "training/mismatch_k1",
    "training/mismatch_chi2",
    "training/effective_share",
)
"""Metrics of `TokenTrace` that need all tokens at once, or products of them."""


def k3(log_p_N: Tensor, log_q_N: Tensor) -> Tensor:
    """The k3 estimate of KL(p || q) on tokens sampled from p, each >= 0, float64.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    difference_N = (log_q_N.double() - log_p_N.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference_N.expm1() - difference_N


class TokenMeans:
    """Means (or `MAXIMA`) over the tokens of many micro-batches; NaN stays NaN."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._totals: dict[str, float] = {}

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Takes in one micro-batch: by metric, the value of each of its tokens, [N]."""
        self._num_tokens += len(next(iter(metrics.values())))
        for key, values_N in metrics.items():
            if key not in MAXIMA:
                self._totals[key] = self._totals.get(key, 0.0) + float(values_N.sum())
                continue
            highest, now = self._totals.get(key, -math.inf), float(values_N.max())
            self._totals[key] = now if math.isnan(now) or now > highest else highest

    def metrics(self) -> dict[str, float]:
        """By metric."""
        return {key: total if key in MAXIMA else total / self._num_tokens for key, total in self._totals.items()}


class TokenTrace:
    """The tokens of a step under the weights before the update, collected micro-batch by micro-batch; 16 bytes a token on the CPU."""

    def __init__(self) -> None:
        self._means = TokenMeans()
        self._columns: list[Tensor] = []

    def add(self, rollout_logprobs_N: Tensor, logprobs_N: Tensor, entropies_N: Tensor, advantages_N: Tensor) -> None:
        """Takes in one micro-batch: logprobs of the engine and of the trainer, nats, entropies, nats, and advantages."""
        differences_N = (logprobs_N - rollout_logprobs_N).abs()
        self._means.add(
            {
                "actor/entropy": entropies_N,
                "actor/entropy_sampled": -rollout_logprobs_N,
                "training/rollout_logprob_abs_diff_mean": differences_N,
                "training/rollout_logprob_abs_diff_max": differences_N,
                "training/mismatch_kl": k3(rollout_logprobs_N, logprobs_N),
            }
        )
        self._columns.append(torch.stack([rollout_logprobs_N, logprobs_N, entropies_N, advantages_N]).float().cpu())

    def metrics(self) -> dict[str, float]:
        """All of them, none without tokens. KLs are of KL(engine || trainer)."""
        if not self._columns:
            return {}
        rollout_N, logprobs_N, entropies_N, advantages_N = torch.cat(self._columns, dim=1).double()
        log_ratios_N = (logprobs_N - rollout_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        num_forks = max(1, round(FORKING_SHARE * len(entropies_N)))
        mean_square = (2.0 * log_ratios_N).exp().mean()
        values = (
            entropies_N.topk(num_forks).values.mean(),
            ((advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())).mean(),
            -(logprobs_N - rollout_N).mean(),
            mean_square - 1.0,
            log_ratios_N.exp().mean().square() / mean_square,
        )
        return self._means.metrics() | dict(zip(TRACE_METRICS, map(float, values), strict=True))
