"""The contract of an algorithm, and all there are: what a batch should teach, and the loss that teaches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from policy.advantages import Targets
from policy.grpo import Grpo, GrpoConfig
from policy.learner_config import LearnerConfig
from policy.losses import TokenLoss, TokenScores
from policy.ppo import Ppo, PpoConfig
from policy.reinforce_pp import ReinforcePP, ReinforcePPConfig
from policy.rloo import Rloo, RlooConfig

if TYPE_CHECKING:
    from torch import Tensor

    from policy.batch import Batch


class Algorithm(Protocol):
    """Mathematics on tensors: it knows neither model nor optimiser. What adapts in it changes in `observe` alone."""

    compares_siblings: bool
    """Whether a rollout is judged by its group, so that a group of one survivor, or whose rollouts all fared alike, teaches nothing."""
    needs_critic: bool
    """Whether advantages are over a critic's values."""

    def require(self, learner: LearnerConfig) -> None:
        """Raises ValueError where the algorithm cannot do its work with these settings of the optimiser step."""
        ...

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        ...

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether the loss differentiates the entropies; asked anew for every micro-batch."""
        ...

    @property
    def selects(self) -> bool:
        """Whether `select` is to be asked before every optimiser step."""
        ...

    def targets(self, batch: Batch, values_BT: Tensor | None = None) -> Targets:
        """What to reinforce, per token; zero outside the loss mask. Where a reference is kept, the batch has its logprobs.

        Args:
            values_BT: what the critic expects before each trained token; only algorithms that need a critic read it.
        """
        ...

    @property
    def selects_unclipped(self) -> bool:
        """Whether `select` wants the logprobs by the present weights, too."""
        ...

    def select(self, old_logprobs_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor | None = None) -> Tensor:
        """The tokens that the loss is to treat in a way of its own, bool, out of all those of an optimiser step."""
        ...

    def loss(self, scores: TokenScores) -> TokenLoss:
        """The loss of a micro-batch of whole rows, summed over its tokens."""
        ...

    def denominator(self, batch: Batch) -> float:
        """What the loss of one optimiser step, summed over its micro-batches, is divided by; `batch` is all of the step's rows."""
        ...

    def observe(self, batch: Batch, metrics: Mapping[str, float], *, stepped: bool = True) -> dict[str, float]:
        """Adapts to an update that is done and to what was measured in it; returns what there is to log of that.

        Args:
            stepped: whether the update changed the policy; one that did not (the critic warms up, or every step was skipped) is no reason
                to adapt.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, with a version."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: the state is of another version or of other settings.
        """
        ...


ALGORITHMS: dict[str, tuple[type, type]] = {
    "grpo": (GrpoConfig, Grpo),
    "rloo": (RlooConfig, Rloo),
    "reinforce_pp": (ReinforcePPConfig, ReinforcePP),
    "ppo": (PpoConfig, Ppo),
}
"""`algorithm.kind` -> (its config, its class)."""


def make_algorithm(config: Any) -> Algorithm:
    """The algorithm that `config.kind` names.

    Raises:
        ValueError: there is none of that kind.
    """
    if config.kind not in ALGORITHMS:
        raise ValueError(f"algorithm.kind must be one of {', '.join(ALGORITHMS)}, got {config.kind!r}")
    return ALGORITHMS[config.kind][1](config)
