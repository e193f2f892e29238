"""Indicators of tokens in numpy, a second implementation of those in `policy.metrics`; logprobs in nats, mu sampled, pi is trained."""

from __future__ import annotations

import numpy as np


def forking_entropy(entropies_N: np.ndarray) -> float:
    """Mean of the highest fifth of token entropies, at least one token."""
    return float(np.sort(entropies_N)[-max(1, round(0.2 * len(entropies_N))) :].mean())


def logprob_advantage_covariance(logprobs_N: np.ndarray, advantages_N: np.ndarray) -> float:
    return float(np.cov(logprobs_N, advantages_N, ddof=0)[0, 1])


def k1(mu_N: np.ndarray, pi_N: np.ndarray) -> float:
    return float(np.mean(np.subtract(mu_N, pi_N)))


def k3(mu_N: np.ndarray, pi_N: np.ndarray) -> float:
    ratios_N = np.exp(np.clip(np.subtract(pi_N, mu_N, dtype=float), -20.0, 20.0))
    return float(np.mean(ratios_N - 1.0 - np.log(ratios_N)))


def chi_square(mu_N: np.ndarray, pi_N: np.ndarray) -> float:
    return float(np.mean(np.exp(2.0 * np.clip(np.subtract(pi_N, mu_N, dtype=float), -20.0, 20.0)) - 1.0))


def effective_share(mu_N: np.ndarray, pi_N: np.ndarray) -> float:
    ratios_N = np.exp(np.clip(np.subtract(pi_N, mu_N, dtype=float), -20.0, 20.0))
    return float(1.0 / np.mean(np.square(ratios_N / ratios_N.mean())))
