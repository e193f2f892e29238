"""The loss of a policy, whatever its advantages come from: a surrogate, a KL to the reference and an entropy bonus."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from policy.aggregation import denominator, token_weights
from policy.coefficients import next_entropy_coef, next_kl_coef
from policy.correction import METRICS as CORRECTION_METRICS
from policy.correction import truncated_weights
from policy.covariance import covariances, pick_between, pick_highest
from policy.learner_config import LearnerConfig
from policy.losses import TokenLoss, TokenScores
from policy.policy_loss_config import PolicyLossConfig, Surrogate
from policy.reference import KlPlace, kl_of_tokens, kl_to_reference, penalised
from policy.surrogates import cispo_surrogate, clip_cov_surrogate, clipped_surrogate, gspo_surrogate, held_by_clip, kl_cov_surrogate

if TYPE_CHECKING:
    from torch import Tensor

    from policy.batch import Batch

__all__ = ["PolicyLoss", "PolicyLossConfig"]

STATE_VERSION = 1
SURROGATES: dict[Surrogate, Callable[[TokenScores, PolicyLossConfig], TokenLoss]] = {
    Surrogate.PPO: lambda scores, config: clipped_surrogate(
        scores, clip_low=config.clip_low, clip_high=config.clip_high, dual_clip=config.dual_clip
    ),
    Surrogate.GSPO: lambda scores, config: gspo_surrogate(scores, clip_low=config.sequence_clip_low, clip_high=config.sequence_clip_high),
    Surrogate.CISPO: lambda scores, config: cispo_surrogate(scores, clip_high=config.clip_high),
    Surrogate.CLIP_COV: lambda scores, config: clip_cov_surrogate(scores, clip_low=config.clip_low, clip_high=config.clip_high),
    Surrogate.KL_COV: lambda scores, config: kl_cov_surrogate(scores, coef=config.kl_cov_coef),
}


class PolicyLoss:
    """The part of an algorithm that does not depend on its advantages: add `targets` to make one."""

    compares_siblings = True
    needs_critic = False

    def __init__(self, config: PolicyLossConfig) -> None:
        self._loss = config
        self._kl_coef, self._entropy_coef = config.kl_coef, config.entropy_coef
        self._entropy = math.nan
        """Of the latest update, nats per token."""
        self._num_picks = 0
        """Optimiser steps whose tokens were picked from at random."""

    # What the learner asks ---------------------------------------------------------------------------------------------------------

    def require(self, learner: LearnerConfig) -> None:
        """Raises ValueError where the loss cannot do its work with these settings of the optimiser step."""
        self._loss.require(learner)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self._loss.kl_coef > 0

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether the loss differentiates the entropies, in this update."""
        return self.entropy_coef > 0

    @property
    def selects(self) -> bool:
        """Whether the loss treats some tokens of an optimiser step otherwise than others, and `select` is to say which."""
        return self._loss.policy_loss in (Surrogate.CLIP_COV, Surrogate.KL_COV)

    @property
    def selects_unclipped(self) -> bool:
        """Whether `select` wants the logprobs by the present weights, too."""
        return self._loss.policy_loss is Surrogate.CLIP_COV

    def select(self, old_logprobs_N: Tensor, advantages_N: Tensor, logprobs_N: Tensor | None = None) -> Tensor:
        """The tokens that are picked out of all those of an optimiser step, bool.

        Args:
            logprobs_N: by the present weights, of which clip_cov picks no token that the clip already holds. None: the old ones.
        """
        config, covariances_N = self._loss, covariances(old_logprobs_N, advantages_N)
        if config.policy_loss is Surrogate.KL_COV:
            return pick_highest(covariances_N, share=config.cov_share)
        rng = np.random.default_rng((config.cov_seed, self._num_picks))
        self._num_picks += 1
        if logprobs_N is not None:
            held_N = held_by_clip(logprobs_N, old_logprobs_N, advantages_N, clip_low=config.clip_low, clip_high=config.clip_high)
            covariances_N = covariances_N.masked_fill(held_N, -math.inf)
        return pick_between(covariances_N, share=config.cov_share, low=config.cov_low, high=config.cov_high, rng=rng)

    def denominator(self, batch: Batch) -> float:
        """What the loss of one optimiser step, summed over its micro-batches, is divided by; `batch` is all of the step's rows."""
        return denominator(batch, self._loss.loss_aggregation, length=self._loss.loss_length)

    # The loss ----------------------------------------------------------------------------------------------------------------------

    @property
    def kl_coef(self) -> float:
        """Weight of the KL in force."""
        return self._kl_coef

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus in force: where it has a target, none while entropy was last seen above."""
        return 0.0 if self._loss.entropy_target and self._entropy > self._loss.entropy_target else self._entropy_coef

    def penalised(self, batch: Batch) -> Batch:
        """The batch with the KL to the reference taken off its rewards, where that is asked for; what targets are made from."""
        return penalised(batch, self.kl_coef) if self._kl_in_reward else batch

    def token_penalties(self, batch: Batch) -> Tensor:
        """What the KL to the reference takes off the reward at each token, [B, T]; 0 where it is not in the reward."""
        return self.kl_coef * kl_of_tokens(batch) if self._kl_in_reward else batch.rollout_logprobs_BT.new_zeros(batch.loss_mask_BT.shape)

    def loss(self, scores: TokenScores) -> TokenLoss:
        """The surrogate, plus `kl_coef` times the KL to the reference, minus `entropy_coef` times the entropy, weighed alike."""
        config = self._loss
        scores, corrected = self._weighed(scores)
        surrogate = SURROGATES[config.policy_loss](scores, config)
        total, sums = surrogate.total, surrogate.sums | corrected
        if scores.reference_logprobs_N is not None:
            kl_N = kl_to_reference(scores.logprobs_N, scores.reference_logprobs_N, config.kl_estimator)
            sums["actor/kl_loss"] = kl_N.detach().sum()
            if not self._kl_in_reward:
                total = total + self.kl_coef * scores.summed(kl_N)
        if self.needs_entropy_gradient:
            total = total - self.entropy_coef * scores.summed(scores.entropies_N)
        return replace(surrogate, total=total, sums=sums)

    def _weighed(self, scores: TokenScores) -> tuple[TokenScores, dict[str, Tensor]]:
        """The scores with each token's weight and correction, and what there is to log of them."""
        config = self._loss
        if scores.rows_N is not None:
            scores = replace(scores, weights_N=token_weights(scores.rows_N, config.loss_aggregation, dtype=scores.logprobs_N.dtype))
        if not config.corrects:
            return scores, {}
        assert scores.rollout_logprobs_N is not None, "a correction for the engine needs the engine's logprobs"
        weights_N, sums = truncated_weights(scores.old_logprobs_N, scores.rollout_logprobs_N, cap=config.importance_cap)
        return replace(scores, correction_N=weights_N), sums

    @property
    def _kl_in_reward(self) -> bool:
        return self.needs_reference and self._loss.kl_in is KlPlace.REWARD

    # What adapts -------------------------------------------------------------------------------------------------------------------

    def observe(self, batch: Batch, metrics: Mapping[str, float], *, stepped: bool = True) -> dict[str, float]:
        """Adapts to an update that is done and to what was measured in it; returns what there is to log of that.

        The coefficients logged are those that the update was made with.

        Args:
            stepped: whether the update changed the policy; otherwise nothing adapts.
        """
        config, told = self._loss, {"actor/kl_coef": self.kl_coef, "actor/entropy_coef": self.entropy_coef}
        kl = metrics.get("actor/kl_loss", math.nan)
        if self._kl_in_reward:
            kl = float(kl_of_tokens(batch).sum()) / batch.num_trained if batch.num_trained else math.nan
            told["actor/kl_reward"] = kl
        if config.kl_target and stepped:
            num_dialogues = len(batch.rollout_ids_B[batch.loss_mask_BT.any(dim=1)].unique())
            self._kl_coef = next_kl_coef(self._kl_coef, kl, target=config.kl_target, horizon=config.kl_horizon, num_dialogues=num_dialogues)
        if config.entropy_target and stepped:
            entropy = metrics.get("actor/entropy", math.nan)
            self._entropy_coef = next_entropy_coef(
                self._entropy_coef, entropy, target=config.entropy_target, step=config.entropy_coef_step, highest=config.entropy_coef_max
            )
            self._entropy = entropy if math.isfinite(entropy) else self._entropy
        if config.corrects:
            told |= {key: metrics.get(key, math.nan) for key in CORRECTION_METRICS}
            mean, square = told["training/correction_mean"], told["training/correction_square"]
            told["training/correction_effective_share"] = mean**2 / square if square > 0 else math.nan
        return told

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts."""
        return {
            "version": STATE_VERSION,
            "kl_coef": self._kl_coef,
            "entropy_coef": self._entropy_coef,
            "entropy": self._entropy,
            "num_picks": self._num_picks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: the state is of another version.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"the loss's state must be of version {STATE_VERSION}, got {state.get('version')!r}; start a new run")
        expected = self.state_dict()
        if set(state) != set(expected):
            raise ValueError(f"the loss's state must hold {', '.join(expected)}, got {', '.join(state)}; start a new run")
        self._kl_coef, self._entropy_coef, self._entropy = state["kl_coef"], state["entropy_coef"], state["entropy"]
        self._num_picks = state["num_picks"]
