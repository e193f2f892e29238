"""The policy loss: surrogate, correction, aggregation, KL to a reference and entropy bonus, with the coefficients that adapt.

A is a token's advantage, r = exp(logp - logp_old) its probability now over that before the update, N the trained tokens of a micro-batch in
row-major order. Three policies meet in a token: that of the engine (rollout), the trainer's before the update (old) and the trainer's now.
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
from policy.config import Aggregation, KlEstimator, KlPlace, PolicyLossConfig, Surrogate
from policy.metrics import MAX_LOG_RATIO, k3
from simulator.reward import TURN_UNIT


def surrogate(
    config: PolicyLossConfig, logprobs_N: Tensor, old_N: Tensor, advantages_N: Tensor, *, rows_N: Tensor, selected_N: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss that `config.policy_loss` names, of each token.

    ppo: max(-A r, -A clip(r, 1 - low, 1 + high)), the pessimistic one of the plain and the clipped loss. Where A < 0 that is unbounded in
        r; a dual clip c > 1 bounds it by -c A.
    gspo: the same with one ratio for all tokens of a dialogue, s = exp(mean_t (logp - logp_old)), the geometric mean of theirs. Each
        token's ratio is sg(s) p / sg(p), sg stopping the gradient: its value is s and its gradient that of its own logprob.
    cispo: -sg(min(r, 1 + high)) A logp, REINFORCE with an importance weight bounded above, so that no token loses its gradient.
    clip_cov: ppo without the selected tokens, some of those whose covariance with the advantage drives entropy down.
    kl_cov: -A r, plus coef abs(logp - logp_old) on the selected tokens, those of the highest covariance; nothing is clipped.

    Args:
        rows_N: int64; the dialogue of each token.
        selected_N: bool; the tokens that clip_cov and kl_cov treat separately.

    Returns:
        Losses [N]; bool [N], the tokens whose gradient was held or bounded (`actor/clip_fraction`); ratios [N].

    Source: PPO, arXiv 1707.06347, equation 7; separate bounds, DAPO, arXiv 2503.14476; dual clip, arXiv 1912.09729; GSPO, arXiv
        2507.18071, sections 4.1 and 4.3 (its token form); CISPO (MiniMax-M1), arXiv 2506.13585, section 3.1; Clip-Cov and KL-Cov, arXiv
        2505.22617, section 4, with the authors' code for abs of the log-ratio as KL.
    """
    kind, low, high = config.policy_loss, config.clip_low, config.clip_high
    log_ratios_N = logprobs_N - old_N
    if kind is Surrogate.GSPO:
        low, high = config.sequence_clip_low, config.sequence_clip_high
        sums_R = log_ratios_N.new_zeros(int(rows_N.max()) + 1).index_add(0, rows_N, log_ratios_N.detach())
        means_N = (sums_R / rows_N.bincount().clamp(min=1))[rows_N]
        log_ratios_N = logprobs_N - logprobs_N.detach() + means_N
    ratios_N = log_ratios_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    if kind is Surrogate.CISPO:
        ratios_N = ratios_N.detach()
        weights_N = ratios_N.clamp(max=1 + high)
        return -weights_N * advantages_N * logprobs_N, weights_N != ratios_N, ratios_N
    plain_N = -advantages_N * ratios_N
    if kind is Surrogate.KL_COV:
        moved_N = log_ratios_N.abs()
        pulled_N = selected_N & (moved_N > 1e-5)  # less is the float error between two passes: its sign says nothing
        return plain_N + config.kl_cov_coef * moved_N.masked_fill(~pulled_N, 0.0), selected_N, ratios_N
    clipped_N = -advantages_N * ratios_N.clamp(1 - low, 1 + high)
    losses_N, held_N = plain_N.maximum(clipped_N), clipped_N > plain_N
    if kind is Surrogate.PPO and config.dual_clip:
        ceilings_N = -config.dual_clip * advantages_N
        above_N = (advantages_N < 0) & (losses_N > ceilings_N)
        losses_N, held_N = losses_N.where(~above_N, ceilings_N), held_N | above_N
    if kind is Surrogate.CLIP_COV:
        losses_N, held_N = losses_N.masked_fill(selected_N, 0.0), held_N | selected_N
    return losses_N, held_N, ratios_N


def kl_to_reference(logprobs_N: Tensor, ref_logprobs_N: Tensor, estimator: KlEstimator) -> Tensor:
    """KL(policy || reference) per token, nats: the value is the estimator's, the gradient that of k2 = (difference)^2 / 2.

    k3's own gradient is biased, and k1's is zero in expectation when on policy; k2's is that of the KL.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    k2_N = (logprobs_N - ref_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).square() / 2
    if estimator is KlEstimator.K2:
        return k2_N
    k3_N = k3(logprobs_N.detach(), ref_logprobs_N).to(k2_N.dtype)
    return k2_N + (k3_N - k2_N.detach())


class PolicyLoss:
    """The part of an algorithm that does not depend on its advantages. Its coefficients change in `observe` alone, once an update."""

    def __init__(self, config: PolicyLossConfig) -> None:
        self.config = config
        self.kl_coef = config.kl_coef
        """Weight of the KL in force."""
        self._entropy_coef, self._entropy = config.entropy_coef, math.nan
        self._num_picks = 0  # optimiser steps whose tokens were picked at random
        self.needs_reference = config.kl_coef > 0
        self.selects = config.policy_loss in (Surrogate.CLIP_COV, Surrogate.KL_COV)
        """Whether some tokens of an optimiser step are treated separately, for which `select` needs the logprobs before the update."""
        self._kl_in_reward = self.needs_reference and config.kl_in is KlPlace.REWARD

    @property
    def entropy_coef(self) -> float:
        """Weight of the entropy bonus in force: where it has a target, none while entropy was last seen above."""
        return 0.0 if self.config.entropy_target and self._entropy > self.config.entropy_target else self._entropy_coef

    def token_penalties(self, batch: Batch) -> Tensor:
        """What the KL to the reference takes off the reward at each token, [B, T]: `kl_coef` times logp_rollout - logp_ref (k1, nats)."""
        return self.kl_coef * self._kls(batch) if self._kl_in_reward else batch.rollout_logprobs_BT.new_zeros(batch.loss_mask_BT.shape)

    def penalise(self, batch: Batch) -> Batch:
        """The batch that advantages are made from: where `kl_in` says so, the KL of all tokens of a rollout off its reward, and of a
        turn's tokens off the turn's, in the unit of turn rewards (`TURN_UNIT`).

        Source: arXiv 1909.08593, section 2.2, summed over a rollout's tokens.
        """
        if not self._kl_in_reward:
            return batch
        kl_BT, turn_rewards_BK = self._kls(batch).double(), batch.turn_rewards_BK
        if num_turns := turn_rewards_BK.shape[1]:
            index_BT = batch.turn_ids_BT.long()
            by_turn_BK = turn_rewards_BK.new_zeros(turn_rewards_BK.shape)
            by_turn_BK.scatter_add_(1, index_BT.clamp(max=num_turns - 1), kl_BT * (index_BT < num_turns))
            turn_rewards_BK = turn_rewards_BK - self.kl_coef / TURN_UNIT * by_turn_BK
        return replace(batch, rewards_B=batch.rewards_B - self.kl_coef * kl_BT.sum(dim=1), turn_rewards_BK=turn_rewards_BK)

    def _kls(self, batch: Batch) -> Tensor:
        assert batch.ref_logprobs_BT is not None, "a KL in the reward needs the reference's logprobs in the batch"
        return (batch.rollout_logprobs_BT - batch.ref_logprobs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) * batch.loss_mask_BT

    def select(self, batch: Batch, logprobs: Callable[[], Tensor]) -> Batch:
        """The batch of one optimiser step with the tokens marked that clip_cov or kl_cov picks; the same for other surrogates.

        Entropy changes by about minus the step size times the covariance of logprob and advantage, and a few tokens make up most of it.
        They are picked out of all tokens of an optimiser step, by their logprobs before the update (the authors' code: of a micro-batch,
        by the present ones). kl_cov picks the `cov_share` of highest covariance, at least one token; clip_cov as many at random of those
        with `cov_low` < covariance < `cov_high`.

        Args:
            logprobs: by the present weights, [B, T]; clip_cov picks no token that the clip already holds, which has no gradient to lose.

        Source: arXiv 2505.22617, section 4.
        """
        if not self.selects:
            return batch
        config, mask_BT = self.config, batch.loss_mask_BT
        assert batch.old_logprobs_BT is not None and batch.advantages_BT is not None, "tokens are picked by logprobs and advantages"
        old_N, advantages_N = batch.old_logprobs_BT[mask_BT].double(), batch.advantages_BT[mask_BT].double()
        covariances_N = (old_N - old_N.mean()) * (advantages_N - advantages_N.mean())
        picked_N = torch.zeros_like(covariances_N, dtype=torch.bool)
        size = max(1, int(config.cov_share * len(covariances_N)))
        if config.policy_loss is Surrogate.KL_COV:
            picked_N[covariances_N.topk(size).indices] = True
        else:
            rng = np.random.default_rng((config.cov_seed, self._num_picks))
            self._num_picks += 1
            tokens = (logprobs()[mask_BT], batch.old_logprobs_BT[mask_BT], batch.advantages_BT[mask_BT])
            held_N = surrogate(config, *tokens, rows_N=mask_BT.nonzero()[:, 0], selected_N=picked_N)[1]
            candidates = ((covariances_N > config.cov_low) & (covariances_N < config.cov_high) & ~held_N).nonzero().squeeze(1)
            if size := min(size, len(candidates)):
                picked_N[candidates[rng.choice(len(candidates), size, replace=False).tolist()]] = True
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

        Corrected for the engine, a token's surrogate is weighted by min(p_old / p_rollout, cap), detached: it then counts as if the trainer
        had sampled it.

        Args:
            logprobs_N: by the weights being trained, nats at the sampling temperature; carries the gradient.
            entropies_N: exact, nats; carries a gradient where `entropy_coef` is above 0.
            batch: a micro-batch with advantages.

        Returns:
            The loss summed over tokens, to be divided by `denominator`, and metrics by token, [N] each.

        Source: truncated importance sampling, Ionides (2008); between engine and trainer, Yao et al., "Your efficient RL framework secretly
            brings you off-policy RL training" (2025).
        """
        config, mask_BT = self.config, batch.loss_mask_BT
        assert batch.advantages_BT is not None, "a loss needs advantages"
        advantages_N, rows_N = batch.advantages_BT[mask_BT], mask_BT.nonzero()[:, 0]
        old_N = logprobs_N.detach() if batch.old_logprobs_BT is None else batch.old_logprobs_BT[mask_BT]
        selected_N = torch.zeros_like(rows_N, dtype=torch.bool) if batch.selected_BT is None else batch.selected_BT[mask_BT]
        losses_N, held_N, ratios_N = surrogate(config, logprobs_N, old_N, advantages_N, rows_N=rows_N, selected_N=selected_N)
        metrics: dict[str, Tensor] = {}
        if config.corrects:
            corrections_N = (old_N - batch.rollout_logprobs_BT[mask_BT]).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().detach()
            weights_N = corrections_N.clamp(max=config.importance_cap)
            losses_N = losses_N * weights_N
            metrics = {
                "training/correction_mean": weights_N,
                "training/correction_square": weights_N.double().square(),
                "training/correction_truncated": corrections_N > config.importance_cap,
            }
        metrics |= {
            "actor/pg_loss": losses_N.detach(),
            "actor/clip_fraction": held_N,
            "actor/clip_fraction_negative": held_N & (advantages_N < 0),
            "actor/clip_fraction_positive": held_N & (advantages_N > 0),
            "actor/approx_kl": k3(old_N, logprobs_N.detach()),
            "actor/ratio_mean": ratios_N.detach(),
            "actor/ratio_max": ratios_N.detach(),
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
        if self.entropy_coef > 0:
            total = total - self.entropy_coef * summed(entropies_N)
        return total, metrics

    def observe(self, batch: Batch, metrics: Mapping[str, float], *, stepped: bool = True) -> dict[str, float]:
        """Adapts to an update that is done and to its metrics; returns further metrics, with the coefficients of the update.

        The KL's coefficient is multiplied by 1 + clip(kl / target - 1, +-0.2) min(1, dialogues / horizon), at most a fifth an update: one
        low KL must not take it to 0, from where nothing multiplies it back. The entropy bonus's goes a step up where entropy is at or below
        its target, else down, within [0, `entropy_coef_max`]. A NaN changes neither.

        Args:
            stepped: whether the update changed the policy; otherwise (the critic warms up, or every step was skipped) nothing adapts.

        Source: KL, Ziegler et al., arXiv 1909.08593, section 2.2, with the horizon of their code, the bound is ours; entropy, Skywork-OR1,
            arXiv 2505.22312, which applies the coefficient only while entropy is at or below the target.
        """
        config, found = self.config, {"actor/kl_coef": self.kl_coef, "actor/entropy_coef": self.entropy_coef}
        kl, entropy = metrics.get("actor/kl_loss", math.nan), metrics.get("actor/entropy", math.nan)
        if self._kl_in_reward:
            kl = float(self._kls(batch).sum()) / batch.num_trained if batch.num_trained else math.nan
            found["actor/kl_reward"] = kl
        if config.kl_target and stepped and math.isfinite(kl):
            num_dialogues = len(batch.rollout_ids_B[batch.loss_mask_BT.any(dim=1)].unique())
            error = min(max(kl / config.kl_target - 1.0, -0.2), 0.2)
            self.kl_coef *= 1.0 + error * min(1.0, num_dialogues / config.kl_horizon)
        if config.entropy_target and stepped and math.isfinite(entropy):
            step = config.entropy_coef_step if entropy <= config.entropy_target else -config.entropy_coef_step
            self._entropy_coef, self._entropy = min(max(self._entropy_coef + step, 0.0), config.entropy_coef_max), entropy
        if config.corrects:
            found |= {
                key: metrics.get(key, math.nan) for key in (f"training/correction_{which}" for which in ("mean", "square", "truncated"))
            }
            mean, square = found["training/correction_mean"], found["training/correction_square"]
            found["training/correction_effective_share"] = mean**2 / square if square > 0 else math.nan
        return found

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts."""
        return {"kl_coef": self.kl_coef, "entropy_coef": self._entropy_coef, "entropy": self._entropy, "num_picks": self._num_picks}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        self.kl_coef, self._entropy_coef, self._entropy = state["kl_coef"], state["entropy_coef"], state["entropy"]
        self._num_picks = state["num_picks"]
