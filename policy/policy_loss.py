"""The loss of a policy, whatever its advantages come from: a surrogate, a KL to the reference and an entropy bonus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from policy.losses import TokenLoss, TokenScores, clipped_surrogate, kl_to_reference

if TYPE_CHECKING:
    from policy.batch import Batch

STATE_VERSION = 1


@dataclass
class PolicyLossConfig:
    """Settings of the loss, `algorithm.*`; each algorithm adds what concerns its advantages."""

    kind: str = ""
    """Which algorithm."""
    clip_low: float = 0.2
    """In (0, 1); the ratio counts down to 1 - clip_low."""
    clip_high: float = 0.28
    """> 0; the ratio counts up to 1 + clip_high. More than clip_low keeps rare tokens alive (DAPO's value)."""
    kl_coef: float = 0.0
    """>= 0; weight of the KL to the reference policy. RLVER trains without; above 0 a reference model is kept."""
    entropy_coef: float = 0.0
    """>= 0; weight of an entropy bonus per token."""

    def __post_init__(self) -> None:
        if not 0.0 < self.clip_low < 1.0:
            raise ValueError(f"algorithm.clip_low must be in (0, 1), got {self.clip_low!r}")
        if not self.clip_high > 0.0:
            raise ValueError(f"algorithm.clip_high must be > 0, got {self.clip_high!r}")
        for name in ("kl_coef", "entropy_coef"):
            if not getattr(self, name) >= 0.0:
                raise ValueError(f"algorithm.{name} must be >= 0, got {getattr(self, name)!r}")


class PolicyLoss:
    """The part of an algorithm that does not depend on its advantages: add `targets` to make one."""

    compares_siblings = True
    needs_critic = False

    def __init__(self, config: PolicyLossConfig) -> None:
        self._loss = config

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self._loss.kl_coef > 0

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether the loss differentiates the entropies."""
        return self._loss.entropy_coef > 0

    def loss(self, scores: TokenScores) -> TokenLoss:
        """Clipped surrogate, plus `kl_coef` times the KL to the reference, minus `entropy_coef` times the entropy."""
        config = self._loss
        surrogate = clipped_surrogate(scores, clip_low=config.clip_low, clip_high=config.clip_high)
        total, sums = surrogate.total, dict(surrogate.sums)
        if scores.reference_logprobs_N is not None:
            kl = kl_to_reference(scores.logprobs_N, scores.reference_logprobs_N).sum()
            sums["actor/kl_loss"] = kl.detach()
            total = total + config.kl_coef * kl
        if self.needs_entropy_gradient:
            total = total - config.entropy_coef * scores.entropies_N.sum()
        return replace(surrogate, total=total, sums=sums)

    def denominator(self, batch: Batch) -> float:
        """What the loss of one optimiser step, summed over its micro-batches, is divided by."""
        return batch.num_trained

    def observe(self, batch: Batch, metrics: Mapping[str, float]) -> dict[str, float]:
        """Adapts to an update that is done and to what was measured in it; returns what there is to log of that."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts."""
        return {"version": STATE_VERSION}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: the state is of another version or of other settings.
        """
        expected = self.state_dict()
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"the loss's state must be of version {STATE_VERSION}, got {state.get('version')!r}; start a new run")
        if set(state) != set(expected):
            raise ValueError(f"the loss's state must hold {sorted(expected)}, got {sorted(state)}; start a new run")
