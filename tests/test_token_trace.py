"""The trace of a step's tokens agrees with the figures for arrays, however the step was cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from curriculum.collapse.indicators import chi_square, effective_share, forking_entropy, k1, k3, logprob_advantage_covariance
from policy.algorithms.loss import TRACE_METRICS, TokenTrace


def columns(num_tokens: int = 1000) -> list[np.ndarray]:
    """Engine's and trainer's logprobs, entropies, advantages."""
    rng = np.random.default_rng(0)
    rollout_N = -rng.exponential(1.0, num_tokens)
    return [rollout_N, rollout_N + 0.2 * rng.normal(size=num_tokens), rng.exponential(1.0, num_tokens), rng.normal(size=num_tokens)]


def traced(pieces: list[list[np.ndarray]]) -> dict[str, float]:
    trace = TokenTrace()
    for piece in pieces:
        trace.add(*map(torch.from_numpy, piece))
    return trace.metrics()


def test_a_trace_says_what_the_functions_for_arrays_say():
    rollout_N, logprobs_N, entropies_N, advantages_N = columns()
    metrics = traced([columns()])
    assert metrics["actor/entropy_forking"] == pytest.approx(forking_entropy(entropies_N), rel=1e-5)
    assert metrics["actor/logprob_advantage_cov"] == pytest.approx(logprob_advantage_covariance(logprobs_N, advantages_N), rel=1e-4)
    assert metrics["training/mismatch_k1"] == pytest.approx(k1(rollout_N, logprobs_N), rel=1e-4)
    assert metrics["training/mismatch_kl"] == pytest.approx(k3(rollout_N, logprobs_N), rel=1e-5)
    assert metrics["training/mismatch_chi2"] == pytest.approx(chi_square(rollout_N, logprobs_N), rel=1e-4)
    assert metrics["training/effective_share"] == pytest.approx(effective_share(rollout_N, logprobs_N), rel=1e-5)


def test_how_a_step_is_cut_changes_nothing():
    whole = traced([columns()])
    cut = traced([[column[:10] for column in columns()], [column[10:] for column in columns()]])
    assert cut == pytest.approx(whole, rel=1e-9) and set(TRACE_METRICS) < set(whole)


def test_without_tokens_there_is_nothing_to_say():
    assert TokenTrace().metrics() == {}
