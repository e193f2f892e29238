"""What a step's trained tokens say of the weights before the update: kept as they are scored, looked at once.

The same figures for arrays, each with its meaning and source, stand in `curriculum/collapse/indicators.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policy.losses import MAX_LOG_RATIO, Totals, mismatch

FORKING_SHARE = 0.2
"""Share of the tokens, those of highest entropy, at which a policy is said to decide (arXiv 2506.01939)."""
METRICS = (
    "actor/entropy_forking",
    "actor/logprob_advantage_cov",
    "training/mismatch_k1",
    "training/mismatch_chi2",
    "training/effective_share",
)
"""Keys that need all tokens at once, or products of them; `policy.losses.mismatch` adds those that are plain means."""


class TokenTrace:
    """Collects the tokens of a step, micro-batch by micro-batch; 16 bytes a token on the CPU."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._columns: list[Tensor] = []

    def add(self, rollout_logprobs_N: Tensor, logprobs_N: Tensor, entropies_N: Tensor, advantages_N: Tensor) -> None:
        """Takes in one micro-batch: what the engine and the trainer give each token, how undecided it was, how much better it fared."""
        self._totals.add(len(logprobs_N), mismatch(rollout_logprobs_N, logprobs_N, entropies_N))
        self._columns.append(torch.stack([rollout_logprobs_N, logprobs_N, entropies_N, advantages_N]).float().cpu())

    def metrics(self) -> dict[str, float]:
        """All of it, empty without tokens."""
        if not self._columns:
            return {}
        rollout_N, logprobs_N, entropies_N, advantages_N = torch.cat(self._columns, dim=1).double()
        log_ratios_N = (logprobs_N - rollout_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        num_forks = max(1, round(FORKING_SHARE * len(entropies_N)))
        mean_square = (2.0 * log_ratios_N).exp().mean()
        figures = (
            entropies_N.topk(num_forks).values.mean(),
            ((advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())).mean(),
            -(logprobs_N - rollout_N).mean(),
            mean_square - 1.0,
            log_ratios_N.exp().mean().square() / mean_square,
        )
        return self._totals.metrics() | dict(zip(METRICS, map(float, figures), strict=True))
