"""The policy loss: surrogate, correction, aggregation, KL to a reference and entropy bonus, with the coefficients that adapt.

Throughout, A is a token's advantage, r = exp(logp - logp_old) its probability now over that before the update, and N the trained tokens
of a micro-batch in row-major order. Three policies meet in a token: the one that sampled it (rollout, the engine's), the trainer's before
the update (old) and the trainer's now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policy.batch import Batch
from policy.config import Aggregation, KlEstimator, KlPlace, LearnerConfig, PolicyLossConfig, Surrogate
from policy.metrics import MAX_LOG_RATIO, k3
from simulator.reward import TURN_UNIT

NOISE = 1e-5
"""Log-ratios up to here, nats, are the float error between two passes: their sign says nothing."""
MAX_KL_ERROR = 0.2
"""A KL's relative error counts up to +-0.2 (Ziegler et al.)."""
CORRECTION_METRICS = ("training/correction_mean", "training/correction_square", "training/correction_truncated")

TokenLosses = tuple[Tensor, Tensor, Tensor]
"""Losses [N]; bool [N] of the tokens whose gradient was held or bounded (`actor/clip_fraction`); ratios [N]."""


# Surrogates ------------------------------------------------------------------------------------------------------------------------


def ppo(logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, *, low: float, high: float, dual: float = 0.0) -> TokenLosses:
    """max(-A r, -A clip(r, 1 - low, 1 + high)): the pessimistic one of the plain and the clipped loss.

    Where A < 0 that is unbounded in r; a dual clip c > 1 bounds it by -c A.

    Args:
        dual: c; 0 for none.

    Source: PPO, arXiv 1707.06347, equation 7; separate bounds, DAPO, arXiv 2503.14476; dual clip, arXiv 1912.09729.
    """
    return _clipped(_ratios(logprobs_N, old_N), advantages_N, low=low, high=high, dual=dual)


def gspo(logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, rows_N: Tensor, *, low: float, high: float) -> TokenLosses:
    """The clipped loss with one ratio for all tokens of a dialogue: s = exp(mean_t (logp - logp_old)), the geometric mean of theirs.

    Each token's ratio is sg(s) p / sg(p), sg stopping the gradient: its value is s and its gradient that of its own logprob, so that
    the advantages of a dialogue's tokens may differ. With equal ones and a mean over the dialogue this is the loss by sequences.

    Args:
        rows_N: int64; the dialogue of each token.

    Source: GSPO, arXiv 2507.18071, sections 4.1 and 4.3 (its token form).
    """
    log_ratios_N = (logprobs_N - old_N).detach()
    sums_R = log_ratios_N.new_zeros(int(rows_N.max()) + 1).index_add(0, rows_N, log_ratios_N)
    means_N = (sums_R / rows_N.bincount().clamp(min=1))[rows_N]
    ratios_N = (logprobs_N - logprobs_N.detach() + means_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _clipped(ratios_N, advantages_N, low=low, high=high)


def cispo(logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, *, high: float) -> TokenLosses:
    """-sg(min(r, 1 + high)) A logp: REINFORCE with a bounded importance weight, so that no token loses its gradient.

    The weight has no lower bound, as in the paper's runs (its formula has one, which they set so low that it never held) and in TRL.

    Source: CISPO (MiniMax-M1), arXiv 2506.13585, section 3.1.
    """
    ratios_N = _ratios(logprobs_N, old_N).detach()
    weights_N = ratios_N.clamp(max=1 + high)
    return -weights_N * advantages_N * logprobs_N, weights_N != ratios_N, ratios_N


def clip_cov(logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, selected_N: Tensor, *, low: float, high: float) -> TokenLosses:
    """The clipped loss without the selected tokens: some of those whose covariance with the advantage drives entropy down.

    Source: Clip-Cov, arXiv 2505.22617, section 4.
    """
    losses_N, held_N, ratios_N = ppo(logprobs_N, old_N, advantages_N, low=low, high=high)
    return losses_N.masked_fill(selected_N, 0.0), held_N | selected_N, ratios_N


def kl_cov(logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, selected_N: Tensor, *, coef: float) -> TokenLosses:
    """-A r, plus coef abs(logp - logp_old) on the selected tokens: those of the highest covariance with the advantage; nothing is clipped.

    Source: KL-Cov, arXiv 2505.22617, section 4; abs of the log-ratio as its KL, the authors' code.
    """
    ratios_N, moved_N = _ratios(logprobs_N, old_N), (logprobs_N - old_N).abs()
    pulled_N = selected_N & (moved_N > NOISE)
    return -advantages_N * ratios_N + coef * moved_N.masked_fill(~pulled_N, 0.0), selected_N, ratios_N


def _ratios(logprobs_N: Tensor, old_N: Tensor) -> Tensor:
    return (logprobs_N - old_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _clipped(ratios_N: Tensor, advantages_N: Tensor, *, low: float, high: float, dual: float = 0.0) -> TokenLosses:
    plain_N = -advantages_N * ratios_N
    clipped_N = -advantages_N * ratios_N.clamp(1 - low, 1 + high)
    losses_N, held_N = plain_N.maximum(clipped_N), clipped_N > plain_N
    if dual:
        ceilings_N = -dual * advantages_N
        above_N = (advantages_N < 0) & (losses_N > ceilings_N)
        losses_N, held_N = losses_N.where(~above_N, ceilings_N), held_N | above_N
    return losses_N, held_N, ratios_N


# Tokens that drive entropy down ----------------------------------------------------------------------------------------------------
#
# Entropy changes by about minus the step size times the covariance of logprob and advantage, and a few tokens make up most of it. They are
# picked out of all tokens of an optimiser step, by their logprobs before the update, so that neither the cut into micro-batches nor their
# order has a part in it. (The authors' code picks out of a micro-batch, by the present logprobs.)


def covariances(logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """(logp - mean logp)(A - mean A) of each token, float64. Source: arXiv 2505.22617, section 4."""
    logprobs_N, advantages_N = logprobs_N.double(), advantages_N.double()
    return (logprobs_N - logprobs_N.mean()) * (advantages_N - advantages_N.mean())


def pick_between(covariances_N: Tensor, *, share: float, low: float, high: float, rng: np.random.Generator) -> Tensor:
    """Of the tokens with low < covariance < high, `share` of all tokens at random (at least one, at most all of them), bool [N].

    Source: Clip-Cov, arXiv 2505.22617, section 4.
    """
    picked_N = torch.zeros_like(covariances_N, dtype=torch.bool)
    candidates = ((covariances_N > low) & (covariances_N < high)).nonzero().squeeze(1)
    if size := min(max(1, int(share * len(covariances_N))), len(candidates)):
        picked_N[candidates[rng.choice(len(candidates), size, replace=False).tolist()]] = True
    return picked_N


def pick_highest(covariances_N: Tensor, *, share: float) -> Tensor:
    """The `share` of tokens of highest covariance (at least one), bool [N]. Source: KL-Cov, arXiv 2505.22617, section 4."""
    picked_N = torch.zeros_like(covariances_N, dtype=torch.bool)
    picked_N[covariances_N.topk(max(1, int(share * len(covariances_N)))).indices] = True
    return picked_N


# KL to the reference, correction for the engine ------------------------------------------------------------------------------------


def kl_to_reference(logprobs_N: Tensor, ref_logprobs_N: Tensor, estimator: KlEstimator = KlEstimator.K3) -> Tensor:
    """KL(policy || reference) per token, nats: the value is the estimator's, the gradient that of k2 = (difference)^2 / 2.

    k3's own gradient is biased, and k1's is zero in expectation when on policy; k2's is that of the KL.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    k2_N = (logprobs_N - ref_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).square() / 2
    if estimator is KlEstimator.K2:
        return k2_N
    k3_N = k3(logprobs_N.detach(), ref_logprobs_N).to(k2_N.dtype)
    return k2_N + (k3_N - k2_N.detach())


def kl_of_tokens(batch: Batch) -> Tensor:
    """k1 = logp - logp_ref of each trained token under the policy that sampled it, 0 elsewhere; [B, T] float32 nats."""
    assert batch.ref_logprobs_BT is not None, "a KL in the reward needs the reference's logprobs in the batch"
    return (batch.rollout_logprobs_BT - batch.ref_logprobs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) * batch.loss_mask_BT


def penalise_rewards(batch: Batch, coef: float) -> Batch:
    """The batch with `coef` times the KL of its tokens taken off: of all of a rollout off its reward, of a turn's off the turn's.

    Turn rewards have a unit of their own (`TURN_UNIT`), in which their KL is taken off.

    Source: arXiv 1909.08593, section 2.2, summed over a rollout's tokens.
    """
    kl_BT, turn_rewards_BK = kl_of_tokens(batch).double(), batch.turn_rewards_BK
    if num_turns := turn_rewards_BK.shape[1]:
        index_BT = batch.turn_ids_BT.long()
        by_turn_BK = turn_rewards_BK.new_zeros(turn_rewards_BK.shape)
        by_turn_BK.scatter_add_(1, index_BT.clamp(max=num_turns - 1), kl_BT * (index_BT < num_turns))
        turn_rewards_BK = turn_rewards_BK - coef / TURN_UNIT * by_turn_BK
    return replace(batch, rewards_B=batch.rewards_B - coef * kl_BT.sum(dim=1), turn_rewards_BK=turn_rewards_BK)


def truncated_weights(old_N: Tensor, rollout_N: Tensor, *, cap: float) -> tuple[Tensor, dict[str, Tensor]]:
    """min(p_old / p_rollout, cap) of each token, detached, with metrics: tokens of the engine then count as if the trainer had sampled
    them.

    The surrogate's ratio is now / old. Where the rollout policy itself is taken for the old one, that ratio holds all of it already, and
    a weight on top would count it twice.

    Source: truncated importance sampling, Ionides (2008); between engine and trainer, Yao et al., "Your efficient RL framework secretly
    brings you off-policy RL training" (2025).
    """
    ratios_N = _ratios(old_N, rollout_N).detach()
    weights_N = ratios_N.clamp(max=cap)
    return weights_N, dict(zip(CORRECTION_METRICS, (weights_N, weights_N.double().square(), ratios_N > cap), strict=True))


# Coefficients that adapt -----------------------------------------------------------------------------------------------------------


def next_kl_coef(coef: float, kl: float, *, target: float, horizon: float, num_dialogues: int) -> float:
    """The KL's coefficient after an update: coef (1 + clip(kl / target - 1, +-0.2) min(1, num_dialogues / horizon)).

    Args:
        kl: measured in the update, nats per token; NaN leaves the coefficient as it is.
        horizon: dialogues within which the coefficient can grow or fall by about a fifth, which is also the most that an update of more
            dialogues changes it by: unbounded, one low KL could take the coefficient to 0, from where nothing multiplies it back.

    Source: Ziegler et al., arXiv 1909.08593, section 2.2, with the horizon of their code; the bound is ours.
    """
    if not math.isfinite(kl):
        return coef
    error = min(max(kl / target - 1.0, -MAX_KL_ERROR), MAX_KL_ERROR)
    return coef * (1.0 + error * min(1.0, num_dialogues / horizon))


def next_entropy_coef(coef: float, entropy: float, *, target: float, step: float, highest: float) -> float:
    """The entropy bonus's coefficient after an update: a step up where entropy is at or below its target, else down, within [0, highest].

    Args:
        entropy: measured in the update, nats per token; NaN leaves the coefficient as it is.

    Source: Skywork-OR1, arXiv 2505.22312; it applies the coefficient only while entropy is at or below the target.
    """
    if not math.isfinite(entropy):
        return coef
    return min(max(coef + (step if entropy <= target else -step), 0.0), highest)


class PolicyLoss:
    """The part of an algorithm that does not depend on its advantages. Its coefficients change in `observe` alone, once an update."""

    def __init__(self, config: PolicyLossConfig) -> None:
        self.config = config
        self._kl_coef, self._entropy_coef = config.kl_coef, config.entropy_coef
        self._entropy = math.nan
        """Of the latest update, nats per token."""
        self._num_picks = 0
        """Optimiser steps whose tokens were picked at random."""

    def require(self, learner: LearnerConfig) -> None:
        """Raises ValueError where the loss cannot do its work with these settings of the optimiser step."""
        self.config.require(learner)

    @property
    def needs_reference(self) -> bool:
        """Whether a reference policy is kept."""
        return self.config.kl_coef > 0

    @property
    def kl_coef(self) -> float:
        """Weight of the KL in force."""
        return self._kl_coef

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus in force: where it has a target, none while entropy was last seen above."""
        return 0.0 if self.config.entropy_target and self._entropy > self.config.entropy_target else self._entropy_coef

    @property
    def needs_entropy_gradient(self) -> bool:
        """Whether the loss differentiates the entropies, in this update."""
        return self.entropy_coef > 0

    @property
    def selects(self) -> bool:
        """Whether some tokens of an optimiser step are treated separately, for which `select` needs the logprobs before the update."""
        return self.config.policy_loss in (Surrogate.CLIP_COV, Surrogate.KL_COV)

    @property
    def _kl_in_reward(self) -> bool:
        return self.needs_reference and self.config.kl_in is KlPlace.REWARD

    def penalise(self, batch: Batch) -> Batch:
        """The batch that advantages are made from: with the KL to the reference taken off its rewards, where `kl_in` says so."""
        return penalise_rewards(batch, self.kl_coef) if self._kl_in_reward else batch

    def token_penalties(self, batch: Batch) -> Tensor:
        """The part of the reward that the KL to the reference takes off at each token, [B, T]; 0 where it is not in the reward."""
        return self.kl_coef * kl_of_tokens(batch) if self._kl_in_reward else batch.rollout_logprobs_BT.new_zeros(batch.loss_mask_BT.shape)

    def select(self, batch: Batch, logprobs: Callable[[], Tensor]) -> Batch:
        """The batch of one optimiser step with the tokens marked that clip_cov or kl_cov picks; the same for other surrogates.

        Args:
            logprobs: by the present weights, [B, T]; clip_cov picks no token that the clip already holds, which has no gradient to lose.
        """
        if not self.selects:
            return batch
        config, mask_BT = self.config, batch.loss_mask_BT
        assert batch.old_logprobs_BT is not None and batch.advantages_BT is not None, "tokens are picked by logprobs and advantages"
        old_N, advantages_N = batch.old_logprobs_BT[mask_BT], batch.advantages_BT[mask_BT]
        covariances_N = covariances(old_N, advantages_N)
        if config.policy_loss is Surrogate.KL_COV:
            picked_N = pick_highest(covariances_N, share=config.cov_share)
        else:
            rng = np.random.default_rng((config.cov_seed, self._num_picks))
            self._num_picks += 1
            held_N = ppo(logprobs()[mask_BT], old_N, advantages_N, low=config.clip_low, high=config.clip_high)[1]
            covariances_N = covariances_N.masked_fill(held_N, -math.inf)
            picked_N = pick_between(covariances_N, share=config.cov_share, low=config.cov_low, high=config.cov_high, rng=rng)
        return replace(batch, selected_BT=torch.zeros_like(mask_BT).masked_scatter(mask_BT, picked_N))

    def denominator(self, batch: Batch) -> float:
        """Divisor of the loss of one optimiser step, summed over its micro-batches; dialogues without a trained token count nowhere.

        Args:
            batch: all rows of the step, so that the cut into micro-batches changes nothing.
        """
        if self.config.loss_aggregation is Aggregation.TOKEN_MEAN:
            return batch.num_trained
        num_dialogues = int(batch.loss_mask_BT.any(dim=1).sum())
        return num_dialogues * (self.config.loss_length if self.config.loss_aggregation is Aggregation.CONSTANT else 1)

    def loss(self, logprobs_N: Tensor, entropies_N: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The surrogate, plus `kl_coef` times the KL to the reference, minus `entropy_coef` times the entropy, all weighted equally.

        Args:
            logprobs_N: by the weights being trained, nats at the sampling temperature; carries the gradient.
            entropies_N: exact, nats; carries a gradient where `needs_entropy_gradient`.
            batch: a micro-batch of whole rows with advantages, on the same device.

        Returns:
            The loss summed over tokens, to be divided by `denominator`, and metrics by token, [N] each.
        """
        config, mask_BT = self.config, batch.loss_mask_BT
        assert batch.advantages_BT is not None, "a loss needs advantages"
        advantages_N, rows_N = batch.advantages_BT[mask_BT], mask_BT.nonzero()[:, 0]
        old_N = logprobs_N.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT[mask_BT]
        selected_N = torch.zeros_like(rows_N, dtype=torch.bool) if batch.selected_BT is None else batch.selected_BT[mask_BT]
        low, high = config.clip_low, config.clip_high
        match config.policy_loss:
            case Surrogate.PPO:
                losses_N, held_N, ratios_N = ppo(logprobs_N, old_N, advantages_N, low=low, high=high, dual=config.dual_clip)
            case Surrogate.GSPO:
                low, high = config.sequence_clip_low, config.sequence_clip_high
                losses_N, held_N, ratios_N = gspo(logprobs_N, old_N, advantages_N, rows_N, low=low, high=high)
            case Surrogate.CISPO:
                losses_N, held_N, ratios_N = cispo(logprobs_N, old_N, advantages_N, high=high)
            case Surrogate.CLIP_COV:
                losses_N, held_N, ratios_N = clip_cov(logprobs_N, old_N, advantages_N, selected_N, low=low, high=high)
            case Surrogate.KL_COV:
                losses_N, held_N, ratios_N = kl_cov(logprobs_N, old_N, advantages_N, selected_N, coef=config.kl_cov_coef)
        corrected: dict[str, Tensor] = {}
        if config.corrects:
            weights_N, corrected = truncated_weights(old_N, batch.rollout_logprobs_BT[mask_BT], cap=config.importance_cap)
            losses_N = losses_N * weights_N
        metrics = {
            "actor/pg_loss": losses_N.detach(),
            "actor/clip_fraction": held_N,
            "actor/clip_fraction_negative": held_N & (advantages_N < 0),
            "actor/clip_fraction_positive": held_N & (advantages_N > 0),
            "actor/approx_kl": k3(old_N, logprobs_N.detach()),
            "actor/ratio_mean": ratios_N.detach(),
            "actor/ratio_max": ratios_N.detach(),
            **corrected,
        }

        def summed(values_N: Tensor) -> Tensor:
            if config.loss_aggregation is not Aggregation.DIALOGUE_MEAN:
                return values_N.sum()
            return (values_N * rows_N.bincount().to(values_N.dtype).reciprocal()[rows_N]).sum()

        total = summed(losses_N)
        if batch.ref_logprobs_BT is not None:
            kl_N = kl_to_reference(logprobs_N, batch.ref_logprobs_BT[mask_BT], config.kl_estimator)
            metrics["actor/kl_loss"] = kl_N.detach()
            if not self._kl_in_reward:
                total = total + self.kl_coef * summed(kl_N)
        if self.needs_entropy_gradient:
            total = total - self.entropy_coef * summed(entropies_N)
        return total, metrics

    def observe(self, batch: Batch, metrics: Mapping[str, float], *, stepped: bool = True) -> dict[str, float]:
        """Adapts to an update that is done and to its metrics; returns further metrics, with the coefficients of the update.

        Args:
            stepped: whether the update changed the policy; otherwise (the critic warms up, or every step was skipped) nothing adapts.
        """
        config, found = self.config, {"actor/kl_coef": self.kl_coef, "actor/entropy_coef": self.entropy_coef}
        kl, entropy = metrics.get("actor/kl_loss", math.nan), metrics.get("actor/entropy", math.nan)
        if self._kl_in_reward:
            kl = float(kl_of_tokens(batch).sum()) / batch.num_trained if batch.num_trained else math.nan
            found["actor/kl_reward"] = kl
        if config.kl_target and stepped:
            num = len(batch.rollout_ids_B[batch.loss_mask_BT.any(dim=1)].unique())
            self._kl_coef = next_kl_coef(self._kl_coef, kl, target=config.kl_target, horizon=config.kl_horizon, num_dialogues=num)
        if config.entropy_target and stepped:
            step, highest = config.entropy_coef_step, config.entropy_coef_max
            self._entropy_coef = next_entropy_coef(self._entropy_coef, entropy, target=config.entropy_target, step=step, highest=highest)
            self._entropy = entropy if math.isfinite(entropy) else self._entropy
        if config.corrects:
            mean, square, truncated = (metrics.get(key, math.nan) for key in CORRECTION_METRICS)
            found |= dict(zip(CORRECTION_METRICS, (mean, square, truncated), strict=True))
            found["training/correction_effective_share"] = mean**2 / square if square > 0 else math.nan
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts."""
        return {
            "kl_coef": self._kl_coef,
            "entropy_coef": self._entropy_coef,
            "entropy": self._entropy,
            "num_picks": self._num_picks,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        self._kl_coef, self._entropy_coef, self._entropy = state["kl_coef"], state["entropy_coef"], state["entropy"]
        self._num_picks = state["num_picks"]
