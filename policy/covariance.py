"""Which tokens drive entropy down: those whose logprob and advantage are high together.

Entropy changes by about minus the step size times the covariance of logprob and advantage (arXiv 2505.22617), and a few
tokens make up most of it. They are picked out of all tokens of an optimiser step, by their logprobs before the update: so neither the
cut into micro-batches nor their order has a part in it. The authors' code picks out of a micro-batch, by the present logprobs. Clip-Cov
draws among the tokens that PPO's clip does not already hold, as theirs does: the others have no gradient to lose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def covariances(logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """(logp - mean logp)(A - mean A) of each token, float64. Source: arXiv 2505.22617, section 4."""
    logprobs_N, advantages_N = logprobs_N.double(), advantages_N.double()
    return (logprobs_N - logprobs_N.mean()) * (advantages_N - advantages_N.mean())


def pick_between(covariances_N: Tensor, *, share: float, low: float, high: float, rng: np.random.Generator) -> Tensor:
    """Of the tokens with low < covariance < high, `share` of all tokens at random (at least one, at most all of them), bool.

    Source: Clip-Cov, arXiv 2505.22617, section 4.
    """
    candidates = ((covariances_N > low) & (covariances_N < high)).nonzero().squeeze(1)
    size = min(_number(covariances_N, share), len(candidates))
    return _marked(covariances_N, candidates[rng.choice(len(candidates), size, replace=False).tolist()] if size else candidates)


def pick_highest(covariances_N: Tensor, *, share: float) -> Tensor:
    """The `share` of tokens of highest covariance (at least one), bool. Source: KL-Cov, arXiv 2505.22617, section 4."""
    return _marked(covariances_N, covariances_N.topk(min(_number(covariances_N, share), len(covariances_N))).indices)


def _number(values_N: Tensor, share: float) -> int:
    return max(1, int(share * len(values_N)))


def _marked(values_N: Tensor, indices: Tensor) -> Tensor:
    picked_N = values_N > values_N.max()
    picked_N[indices] = True
    return picked_N
