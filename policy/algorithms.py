"""The contract of an algorithm, and all there are: what a batch should teach, and the loss that teaches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from policy.advantages import Targets
from policy.grpo import Grpo, GrpoConfig
from policy.losses import TokenLoss, TokenScores

if TYPE_CHECKING:
    from policy.batch import Batch


class Algorithm(Protocol):
    """Pure mathematics on tensors: it knows neither model nor optimiser."""

    needs_reference: bool
    """Whether the loss reads the logprobs of a reference policy."""
    needs_entropy_gradient: bool
    """Whether the loss differentiates the entropies."""

    def targets(self, batch: Batch) -> Targets:
        """What to reinforce, per token; zero outside the loss mask."""
        ...

    def loss(self, scores: TokenScores) -> TokenLoss:
        """The loss of a micro-batch, summed over its tokens; the learner divides by those of the optimiser step."""
        ...


ALGORITHMS: dict[str, tuple[type, type]] = {"grpo": (GrpoConfig, Grpo)}
"""`algorithm.kind` -> (its config, its class)."""


def make_algorithm(config: Any) -> Algorithm:
    """The algorithm that `config.kind` names.

    Raises:
        ValueError: there is none of that kind.
    """
    if config.kind not in ALGORITHMS:
        raise ValueError(f"algorithm.kind must be one of {', '.join(ALGORITHMS)}, got {config.kind!r}")
    return ALGORITHMS[config.kind][1](config)
