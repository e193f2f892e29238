"""Metrics of a step's trained tokens: means over micro-batches, how far engine and trainer differ, and why a step is not finite.

The same quantities for arrays, each with its meaning and source, are in `curriculum/collapse/indicators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from policy.batch import Batch

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before exp (verl, OpenRLHF)."""


def k3(log_p_N: Tensor, log_q_N: Tensor) -> Tensor:
    """The k3 estimate of KL(p || q) on tokens sampled from p, each >= 0, float64.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    difference_N = (log_q_N.double() - log_p_N.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference_N.expm1() - difference_N


class TokenMeans:
    """Means (or `MAXIMA`) over the tokens of many micro-batches; NaN stays NaN."""

    MAXIMA = ("actor/ratio_max", "training/rollout_logprob_abs_diff_max")

    def __init__(self) -> None:
        self._num_tokens = 0
        self._totals: dict[str, float] = {}

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        """Takes in one micro-batch: by metric, the value of each of its tokens, [N]."""
        self._num_tokens += len(next(iter(metrics.values())))
        for key, values_N in metrics.items():
            self._take(key, float(values_N.max() if key in self.MAXIMA else values_N.sum()))

    def merge(self, other: TokenMeans) -> None:
        """Takes in the tokens of another."""
        self._num_tokens += other._num_tokens
        for key, found in other._totals.items():
            self._take(key, found)

    def _take(self, key: str, found: float) -> None:
        if key not in self.MAXIMA:
            self._totals[key] = self._totals.get(key, 0.0) + found
        elif math.isnan(found) or found > self._totals.get(key, -math.inf):
            self._totals[key] = found

    def metrics(self) -> dict[str, float]:
        """By metric."""
        return {key: total if key in self.MAXIMA else total / self._num_tokens for key, total in self._totals.items()}


class TokenTrace:
    """The tokens of a step under the weights before the update, collected micro-batch by micro-batch; 16 bytes a token on the CPU."""

    def __init__(self) -> None:
        self._means = TokenMeans()
        self._columns: list[Tensor] = []

    def add(self, micro: Batch, logprobs_N: Tensor, entropies_N: Tensor) -> None:
        """Takes in one micro-batch with advantages: the trainer's logprobs and entropies of its trained tokens, nats."""
        assert micro.advantages_BT is not None, "an update needs advantages"
        rollout_logprobs_N, advantages_N = micro.rollout_logprobs_BT[micro.loss_mask_BT], micro.advantages_BT[micro.loss_mask_BT]
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

    def merge(self, other: TokenTrace) -> None:
        """Takes in the tokens of another."""
        self._means.merge(other._means)
        self._columns += other._columns

    def metrics(self) -> dict[str, float]:
        """All of them, none without tokens. KLs are of KL(engine || trainer)."""
        if not self._columns:
            return {}
        rollout_N, logprobs_N, entropies_N, advantages_N = torch.cat(self._columns, dim=1).double()
        log_ratios_N = (logprobs_N - rollout_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        num_forks = max(1, round(0.2 * len(entropies_N)))  # at these a policy is said to decide (arXiv 2506.01939)
        mean_square = (2.0 * log_ratios_N).exp().mean()
        return {
            **self._means.metrics(),
            "actor/entropy_forking": float(entropies_N.topk(num_forks).values.mean()),
            "actor/logprob_advantage_cov": float(((advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())).mean()),
            "training/mismatch_k1": float(-(logprobs_N - rollout_N).mean()),
            "training/mismatch_chi2": float(mean_square - 1.0),
            "training/effective_share": float(log_ratios_N.exp().mean().square() / mean_square),
        }


def why_not_finite(batch: Batch, columns: Mapping[str, Tensor | None], gradients: Iterable[tuple[str, Tensor | None]]) -> str:
    """Why an optimiser step is not finite: the first of the loss's inputs ([B] or [B, T]) that is not, or the parameters' gradients."""

    def listed(names: Sequence[str]) -> str:
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    for name, column in columns.items():
        if column is not None:
            broken_BT = ~column.isfinite().reshape(len(column), -1) & batch.loss_mask_BT
            if rows := broken_BT.any(dim=1).nonzero().squeeze(1).tolist():
                return f"the {name} of rollout {listed([batch.uids[row] for row in rows])} is not finite"
    names = [name for name, gradient in gradients if gradient is not None and not gradient.isfinite().all()]
    return f"all inputs of the loss are finite, but the gradient of {listed(names)} is not" if names else "the gradient's norm overflows"
