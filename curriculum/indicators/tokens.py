"""What the sampled tokens say of a policy: how undecided it is, what the update will do to that, and how far two policies are apart.

Everywhere N are the T agent tokens of a step, the policy is pi, the one that sampled mu, logprobs are in nats at the sampling temperature.
`policy.token_trace` computes the same in torch where the tensors are; a test holds the two together.
"""

from __future__ import annotations

import math

import numpy as np

MAX_LOG_RATIO = 20.0
"""Log-ratios are clipped to +-20 before exp (verl, OpenRLHF)."""


def entropy(logits_NV: np.ndarray, *, temperature: float = 1.0) -> np.ndarray:
    """Exact entropy of every token's distribution, H = logsumexp(z) - sum softmax(z) z with z = logits / temperature. Leads.

    Returns:
        [N] nats, in [0, log V]. Leads because nothing can be explored that is no longer sampled; falls in healthy runs too.
    """
    z_NV = np.asarray(logits_NV, dtype=float) / temperature
    z_NV = z_NV - z_NV.max(axis=-1, keepdims=True)
    log_norm_N = np.log(np.exp(z_NV).sum(axis=-1))
    weighed_NV = np.where(np.isneginf(z_NV), 0.0, z_NV)  # a token that cannot be sampled adds nothing
    return log_norm_N - (np.exp(z_NV - log_norm_N[..., None]) * weighed_NV).sum(axis=-1)


def sampled_entropy(logprobs_N: np.ndarray) -> float:
    """Mean of -logprob of the sampled tokens, nats. Leads, noisier than the exact one.

    Unbiased only where the tokens were sampled from the same untruncated policy at the same temperature; scored by pi but sampled by mu
    it estimates H(mu) + KL(mu || pi).
    """
    return float(-np.mean(logprobs_N)) if len(logprobs_N) else math.nan


def forking_entropy(entropies_N: np.ndarray, *, share: float = 0.2) -> float:
    """Mean of the highest `share` of token entropies, at least one token: how undecided the policy is where it decides. Leads.

    Source: Wang et al. 2025 (arXiv 2506.01939), where the top 20 % carry the learning.

    Returns:
        Nats, at least the mean entropy; NaN without tokens.
    """
    if not len(entropies_N):
        return math.nan
    num_forks = max(1, round(share * len(entropies_N)))
    return float(np.sort(entropies_N)[-num_forks:].mean())


def logprob_advantage_covariance(logprobs_N: np.ndarray, advantages_N: np.ndarray) -> float:
    """C = mean of (A - mean A)(logp - mean logp): to first order a policy-gradient step changes entropy by -(step size) x C. Leads.

    Positive while what is already likely is rewarded, so that the policy narrows; negative while it widens.

    Source: Cui et al. 2025 (arXiv 2505.22617), theorem 1.

    Returns:
        Nats times the unit of the advantages; NaN without tokens.
    """
    if not len(logprobs_N):
        return math.nan
    return float(np.mean((advantages_N - np.mean(advantages_N)) * (logprobs_N - np.mean(logprobs_N))))


def k1(sampler_logprobs_N: np.ndarray, logprobs_N: np.ndarray) -> float:
    """KL(mu || pi) as the mean of log mu - log pi on tokens of mu, nats: unbiased, of either sign. Leads (engine against trainer)."""
    return float(np.mean(np.subtract(sampler_logprobs_N, logprobs_N))) if len(logprobs_N) else math.nan


def k3(sampler_logprobs_N: np.ndarray, logprobs_N: np.ndarray) -> float:
    """KL(mu || pi) as the mean of r - 1 - log r, r = pi / mu, on tokens of mu, nats: unbiased, never negative.

    With the reference for pi it is the distance from the reference, which comes with collapse; with the trainer for pi and the engine
    for mu it is their mismatch, which leads.

    Source: Schulman, "Approximating KL divergence" (2020); clipped as verl's `low_var_kl`.
    """
    log_ratios_N = _log_ratios(sampler_logprobs_N, logprobs_N)
    return float(np.mean(np.expm1(log_ratios_N) - log_ratios_N)) if len(log_ratios_N) else math.nan


def chi_square(sampler_logprobs_N: np.ndarray, logprobs_N: np.ndarray) -> float:
    """chi2(pi || mu) as the mean of r^2 - 1, r = pi / mu, on tokens of mu: the relative variance of importance weights. Leads.

    Returns:
        At least -1, 0 where both agree; verl's notes on rollout correction take more than 1 for trouble.
    """
    return float(np.mean(np.expm1(2.0 * _log_ratios(sampler_logprobs_N, logprobs_N)))) if len(logprobs_N) else math.nan


def effective_share(sampler_logprobs_N: np.ndarray, logprobs_N: np.ndarray) -> float:
    """Effective sample size over T, 1 / mean of (r / mean r)^2 with r = pi / mu: the share of the tokens that still count. Leads.

    Returns:
        In (0, 1]; verl's notes take less than .3 for trouble. NaN without tokens.
    """
    if not len(logprobs_N):
        return math.nan
    ratios_N = np.exp(_log_ratios(sampler_logprobs_N, logprobs_N))
    return float(1.0 / np.mean(np.square(ratios_N / ratios_N.mean())))


def _log_ratios(sampler_logprobs_N: np.ndarray, logprobs_N: np.ndarray) -> np.ndarray:
    return np.clip(np.subtract(logprobs_N, sampler_logprobs_N, dtype=float), -MAX_LOG_RATIO, MAX_LOG_RATIO)
