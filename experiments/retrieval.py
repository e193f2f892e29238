"""Can a reply be told from others by whom it answers? First replies on the probe panel, each scored in the contexts of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from curriculum.collapse.indicators import retrieval_accuracy
from policy.rollout.dialogue import Rollout
from simulator.dialogue import Outcome

Exchange = tuple[list[int], list[int]]
"""Token ids of what the policy had read, and of its first reply with its thought, if any."""


def exchanges(rollouts: Sequence[Rollout], *, num_contexts: int) -> list[Exchange]:
    """The first exchanges of the first `num_contexts` dialogues that did not fail and whose contexts differ."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rollout in rollouts:
        begin = int(rollout.loss_mask.argmax()) if rollout.loss_mask.any() else 0
        if begin and rollout.dialogue.outcome is not Outcome.ERROR:
            num_sampled = int(np.cumprod(rollout.loss_mask[begin:]).sum())
            context, reply = rollout.token_ids[:begin], rollout.token_ids[begin : begin + num_sampled]
            found.setdefault(tuple(context.tolist()), reply.tolist())
    return [(list(context), reply) for context, reply in found.items()][:num_contexts]


def crossed_logprobs(pairs: Sequence[Exchange], score: Callable[[list[int]], Sequence[float]]) -> np.ndarray:
    """[N, N] nats: logprob of reply i (rows) in context j (columns), by N^2 passes of the model.

    Args:
        score: token ids -> logprobs of all but the first.
    """
    return np.array([[np.sum(score([*context, *reply])[-len(reply) :]) for context, _ in pairs] for _, reply in pairs]).reshape(
        len(pairs), len(pairs)
    )


def retrieval_metrics(rollouts: Sequence[Rollout], score: Callable[[list[int]], Sequence[float]], *, num_contexts: int) -> dict[str, float]:
    """How well first replies are told apart; nothing where `num_contexts` is 0."""
    if num_contexts == 0:
        return {}
    pairs = exchanges(rollouts, num_contexts=num_contexts)
    return {"probe/retrieval_accuracy": retrieval_accuracy(crossed_logprobs(pairs, score))}
