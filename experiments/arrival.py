"""Proof that new weights reached every engine and are what it samples by: engines and learner must agree on what was just said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policy.rollout.dialogue import RolloutGroup
from simulator.dialogue import Outcome

TOLERANCE = 1e-3
"""Largest |logprob difference| in nats on a canary, both sides in fp32 (measured: 1e-5)."""


def canaries(groups: Sequence[RolloutGroup], *, max_context: int, num_sequences: int = 2) -> list[np.ndarray]:
    """Token ids [T] of a few dialogues that ended well, one from a group; of one in several sequences, the first.

    Args:
        max_context: tokens of the longest dialogue; one that fills it loses its last token here, as vLLM needs the room of a further one to
            score a prompt and a model may have no position beyond.
    """
    good = [next((r for r in group.rollouts if r.dialogue.outcome is not Outcome.ERROR), None) for group in groups]
    return [rollout.token_ids[rollout.segments[0]][: max_context - 1] for rollout in good if rollout is not None][:num_sequences]


def largest_difference(
    sequences: Sequence[np.ndarray],
    *,
    engines: Callable[[list[int]], Sequence[Sequence[float]]],
    learner: Callable[[list[int]], Sequence[float]],
) -> float:
    """Largest |logprob difference| in nats between any engine and the learner; NaN without sequences, infinite where one is no number.

    Args:
        engines: token ids -> logprobs of each engine, the first token's left out.
        learner: token ids -> logprobs, likewise.
    """
    largest = float("nan")
    for sequence in sequences:
        token_ids = [int(token) for token in sequence]
        expected = np.asarray(learner(token_ids), dtype=np.float64)
        for scores in engines(token_ids):
            difference = np.abs(np.asarray(scores, dtype=np.float64) - expected)
            largest = np.fmax(largest, np.where(np.isnan(difference), np.inf, difference).max())
    return float(largest)


def require_arrival(difference: float, *, policy_version: int, is_fp32: bool) -> None:
    """Raises when an engine still speaks with other weights than the learner's.

    Raises:
        RuntimeError: the difference is larger than fp32 arithmetic explains.
    """
    if is_fp32 and difference > TOLERANCE:
        seen = f"logprobs that differ from the learner's by {difference:.2g} nats"
        raise RuntimeError(f"weights of version {policy_version} must reach every engine, got {seen}")


def require_agreement(difference: float, *, policy_version: int, is_exact: bool) -> None:
    """Raises when the engines sampled by something else than the learner's weights.

    New weights may have arrived and the engine go on with the keys and values that the old ones left in its cache: that shows only in
    what it samples.

    Args:
        difference: mean |logprob difference| in nats on the tokens of a batch; NaN where nothing was measured.
        is_exact: whether both sides compute in fp32 and no token may be of older weights.

    Raises:
        RuntimeError: the difference is larger than fp32 arithmetic explains.
    """
    if is_exact and difference > TOLERANCE:
        seen = f"logprobs {difference:.2g} nats apart on average"
        raise RuntimeError(
            f"engines must sample by the learner's weights of version {policy_version}, got {seen}; "
            "a prefix cache that outlives its weights does that, or another dtype than policy.dtype"
        )
