"""The contract of whatever generates tokens: token ids in, token ids and their logprobs out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. Top-p, top-k and penalties do not exist here: they would bias the importance ratio (docs/decisions.md)."""

    max_tokens: int
    temperature: float = 1.0
    """Must be > 0 in training; 0 means greedy and is for evaluation only."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What an engine sampled, verbatim."""

    token_ids: tuple[int, ...]
    """[T], the end-of-turn token included when the model emitted it."""
    logprobs: tuple[float, ...]
    """[T] nats, at the sampling temperature, over the full vocabulary."""
    text: str
    """Decoded without special tokens."""
    finish_reason: str
    """`stop` (end of turn) or `length`."""
    policy_version: int
    """Of the weights that sampled it."""


class Generate(Protocol):
    """One continuation of a prompt. Rollout code receives this callable and cannot learn whether it is local, an actor or a test's fake."""

    async def __call__(self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int) -> Completion: ...
