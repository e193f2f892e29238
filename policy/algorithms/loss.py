"""The policy gradient's losses: how far a token's advantage may move the policy in one update.

In all of them A is a token's advantage, r = exp(logp - logp_old) its probability now over that before the update, and the loss a sum
over tokens by their weights. What is clipped has no gradient. `actor/clip_fraction` counts the tokens whose gradient was held or bounded.

How the losses of an optimiser step's tokens become one number.

Weights are by row and denominators by optimiser step, so that neither depends on how the step is cut into micro-batches.

How far the policy may be from a reference: its KL in the loss, or taken off the reward.

Both estimate KL(policy || reference) in nats on the sampled tokens. In the loss it is differentiated; in the reward it is part of what
the policy is reinforced for, and a reply also answers for the divergence of the replies after it.

Weights that make tokens sampled by an engine count as if the trainer had sampled them.

Three policies meet in a token: the one that sampled it (rollout), the trainer's before the update (old) and the trainer's now. The
surrogate's ratio is now / old; this weight is old / rollout. Their product would be now / rollout: where the rollout policy is itself
taken for the old one, the ratio holds all of it already, and a weight on top would count it twice.

Coefficients that follow what they are to bring about; each changes once an update, between the passes over two batches.

Which tokens drive entropy down: those whose logprob and advantage are high together.

Entropy changes by about minus the step size times the covariance of logprob and advantage (arXiv 2505.22617), and a few
tokens make up most of it. They are picked out of all tokens of an optimiser step, by their logprobs before the update: so neither the
cut into micro-batches nor their order has a part in it. The authors' code picks out of a micro-batch, by the present logprobs. Clip-Cov
draws among the tokens that PPO's clip does not already hold, as theirs does: the others have no gradient to lose.

The loss of a policy, whatever its advantages come from: a surrogate, a KL to the reference and an entropy bonus.

What a step's trained tokens say of the weights before the update: kept as they are scored, looked at once.

The same figures for arrays, each with its meaning and source, stand in `curriculum/collapse/indicators.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from policy.batch import MAX_LOG_RATIO, TokenLoss, TokenScores, Totals, k3, mismatch
from policy.config import Aggregation, KlEstimator, KlPlace, LearnerConfig, PolicyLossConfig, Surrogate
from simulator.reward import TURN_UNIT

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from policy.batch import Batch


NOISE = 1e-5
"""Log-ratios up to here, nats, are the float error between two passes: their sign says nothing."""


def clipped_surrogate(scores: TokenScores, *, clip_low: float, clip_high: float, dual_clip: float = 0.0) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)): the pessimistic one of the plain and the clipped loss.

    Where A < 0 that is unbounded in r; a dual clip c > 1 bounds it by -c A.

    Args:
        dual_clip: c; 0 for none.

    Source: PPO, arXiv 1707.06347, equation 7; separate bounds, DAPO, arXiv 2503.14476; dual clip, arXiv 1912.09729.
    """
    ratios_N = _ratios(scores)
    losses_N, held_N = _pessimistic(ratios_N, scores.advantages_N, clip_low=clip_low, clip_high=clip_high)
    if dual_clip:
        ceilings_N = -dual_clip * scores.advantages_N
        above_N = (scores.advantages_N < 0) & (losses_N > ceilings_N)
        losses_N, held_N = losses_N.where(~above_N, ceilings_N), held_N | above_N
    return _told(scores, losses_N, held_N, ratios_N)


def gspo_surrogate(scores: TokenScores, *, clip_low: float, clip_high: float) -> TokenLoss:
    """The clipped loss with one ratio for all tokens of a dialogue: s = exp(mean_t (logp - logp_old)), the geometric mean of theirs.

    Each token's ratio is sg(s) p / sg(p), sg stopping the gradient: its value is s and its gradient that of its own logprob, so that
    the advantages of a dialogue's tokens may differ. With equal ones and a mean over the dialogue this is the loss by sequences.

    Source: GSPO, arXiv 2507.18071, sections 4.1 and 4.3 (its token form).
    """
    assert scores.rows_N is not None, "a ratio of sequences needs to know which row each token is of"
    log_ratios_N = (scores.logprobs_N - scores.old_logprobs_N).detach()
    sums_R = log_ratios_N.new_zeros(int(scores.rows_N.max()) + 1).index_add(0, scores.rows_N, log_ratios_N)
    means_N = (sums_R / scores.rows_N.bincount().clamp(min=1))[scores.rows_N]
    ratios_N = (scores.logprobs_N - scores.logprobs_N.detach() + means_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    losses_N, held_N = _pessimistic(ratios_N, scores.advantages_N, clip_low=clip_low, clip_high=clip_high)
    return _told(scores, losses_N, held_N, ratios_N)


def cispo_surrogate(scores: TokenScores, *, clip_high: float) -> TokenLoss:
    """-sg(min(r, 1 + clip_high)) A logp: REINFORCE with a bounded importance weight, so that no token loses its gradient.

    The weight has no lower bound, as in the paper's runs (its formula has one, which they set so low that it never held) and in TRL.

    Source: CISPO (MiniMax-M1), arXiv 2506.13585, section 3.1.
    """
    ratios_N = _ratios(scores).detach()
    weights_N = ratios_N.clamp(max=1 + clip_high)
    return _told(scores, -weights_N * scores.advantages_N * scores.logprobs_N, weights_N != ratios_N, ratios_N)


def clip_cov_surrogate(scores: TokenScores, *, clip_low: float, clip_high: float) -> TokenLoss:
    """The clipped loss without the selected tokens: some of those whose covariance with the advantage drives entropy down.

    They are picked among the tokens that the clip leaves their gradient (`PolicyLoss.select`), as in the authors' code.

    Source: Clip-Cov, arXiv 2505.22617, section 4.
    """
    assert scores.selected_N is not None, "Clip-Cov needs the tokens that were picked"
    ratios_N = _ratios(scores)
    losses_N, held_N = _pessimistic(ratios_N, scores.advantages_N, clip_low=clip_low, clip_high=clip_high)
    losses_N = losses_N.masked_fill(scores.selected_N, 0.0)
    return _told(scores, losses_N, held_N | scores.selected_N, ratios_N)


def kl_cov_surrogate(scores: TokenScores, *, coef: float) -> TokenLoss:
    """-A r, plus coef abs(logp - logp_old) on the selected tokens: those of the highest covariance with the advantage; nothing is clipped.

    Source: KL-Cov, arXiv 2505.22617, section 4; abs of the log-ratio as its KL, the authors' code.
    """
    assert scores.selected_N is not None, "KL-Cov needs the tokens that were picked"
    ratios_N = _ratios(scores)
    moved_N = (scores.logprobs_N - scores.old_logprobs_N).abs()
    pulled_N = scores.selected_N & (moved_N > NOISE)
    return _told(scores, -scores.advantages_N * ratios_N + coef * moved_N.masked_fill(~pulled_N, 0.0), scores.selected_N, ratios_N)


def _ratios(scores: TokenScores) -> Tensor:
    return (scores.logprobs_N - scores.old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def held_by_clip(logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Where PPO's clip stops the gradient, bool."""
    ratios_N = (logprobs_N - old_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return _pessimistic(ratios_N, advantages_N, clip_low=clip_low, clip_high=clip_high)[1]


def _pessimistic(ratios_N: Tensor, advantages_N: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """The clipped loss of each token, and where the clip holds it."""
    plain_N = -advantages_N * ratios_N
    clipped_N = -advantages_N * ratios_N.clamp(1 - clip_low, 1 + clip_high)
    return plain_N.maximum(clipped_N), clipped_N > plain_N


def _told(scores: TokenScores, losses_N: Tensor, held_N: Tensor, ratios_N: Tensor) -> TokenLoss:
    """The losses, corrected for who sampled the tokens, with what there is to log of them."""
    if scores.correction_N is not None:
        losses_N = losses_N * scores.correction_N
    ratios_N = ratios_N.detach()
    sums = {
        "actor/pg_loss": losses_N.detach().sum(),
        "actor/clip_fraction": held_N.sum(),
        "actor/clip_fraction_negative": (held_N & (scores.advantages_N < 0)).sum(),
        "actor/clip_fraction_positive": (held_N & (scores.advantages_N > 0)).sum(),
        "actor/approx_kl": k3(scores.old_logprobs_N, scores.logprobs_N.detach()).sum(),
        "actor/ratio_mean": ratios_N.sum(),
    }
    return TokenLoss(total=scores.summed(losses_N), sums=sums, maxima={"actor/ratio_max": ratios_N.max()})


def token_weights(rows_N: Tensor, aggregation: Aggregation, *, dtype: dtype) -> Tensor | None:
    """What each token counts in the sum; None for 1 each. A dialogue's tokens must all be there, which rows see to."""
    if aggregation is not Aggregation.DIALOGUE_MEAN:
        return None
    return rows_N.bincount().to(dtype).reciprocal()[rows_N]


def denominator(batch: Batch, aggregation: Aggregation, *, length: int) -> float:
    """What the weighted sum over all tokens of the optimiser step `batch` is divided by; dialogues without a trained token count nowhere.

    Args:
        length: tokens a dialogue stands for where the denominator is constant.
    """
    if aggregation is Aggregation.TOKEN_MEAN:
        return batch.num_trained
    num_dialogues = int(batch.loss_mask_BT.any(dim=1).sum())
    return num_dialogues if aggregation is Aggregation.DIALOGUE_MEAN else num_dialogues * length


def kl_to_reference(logprobs_N: Tensor, reference_logprobs_N: Tensor, estimator: KlEstimator = KlEstimator.K3) -> Tensor:
    """KL(policy || reference) per token: the value is the estimator's, the gradient that of k2 = (difference)^2 / 2.

    k3's own gradient is biased, and k1's is zero in expectation when on policy; k2's is that of the KL.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    difference_N = (logprobs_N - reference_logprobs_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    k2_N = difference_N.square() / 2
    if estimator is KlEstimator.K2:
        return k2_N
    k3_N = k3(logprobs_N.detach(), reference_logprobs_N).to(k2_N.dtype)
    return k2_N + (k3_N - k2_N.detach())


def kl_of_tokens(batch: Batch) -> Tensor:
    """k1 = logp - logp_reference of each trained token under the policy that sampled it, 0 elsewhere; [B, T] float32 nats."""
    assert batch.reference_logprobs_BT is not None, "a KL in the reward needs the reference's logprobs in the batch before its targets"
    difference_BT = (batch.rollout_logprobs_BT - batch.reference_logprobs_BT).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference_BT * batch.loss_mask_BT


def penalised(batch: Batch, coef: float) -> Batch:
    """The batch with `coef` times the KL of its tokens taken off: of all of a rollout off its reward, of a turn's off the turn's.

    Turn rewards have a unit of their own, so what is taken off them is `coef` times the KL in that unit.

    Source: arXiv 1909.08593, section 2.2, summed over a rollout's tokens.
    """
    kl_BT = kl_of_tokens(batch).double()
    turn_rewards_BK = batch.turn_rewards_BK
    if turn_rewards_BK.shape[1]:
        index_BT = batch.turn_ids_BT.long()
        answered_BT = index_BT < turn_rewards_BK.shape[1]
        by_turn_BK = turn_rewards_BK.new_zeros(turn_rewards_BK.shape)
        by_turn_BK.scatter_add_(1, index_BT.clamp(max=turn_rewards_BK.shape[1] - 1), kl_BT * answered_BT)
        turn_rewards_BK = turn_rewards_BK - coef / TURN_UNIT * by_turn_BK
    return replace(batch, rewards_B=batch.rewards_B - coef * kl_BT.sum(dim=1), turn_rewards_BK=turn_rewards_BK)


CORRECTION_METRICS = ("training/correction_mean", "training/correction_square", "training/correction_truncated")
"""Keys of the sums that `truncated_weights` gives."""


def truncated_weights(old_logprobs_N: Tensor, rollout_logprobs_N: Tensor, *, cap: float) -> tuple[Tensor, dict[str, Tensor]]:
    """min(p_old / p_rollout, cap) of each token, detached, with sums of what there is to log.

    Source: truncated importance sampling, Ionides (2008); between engine and trainer, Yao et al., "Your efficient RL framework secretly
    brings you off-policy RL training" (2025).
    """
    ratios_N = (old_logprobs_N - rollout_logprobs_N).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    weights_N = ratios_N.clamp(max=cap)
    sums = (weights_N.sum(), weights_N.double().square().sum(), (ratios_N > cap).sum())
    return weights_N, dict(zip(CORRECTION_METRICS, sums, strict=True))


MAX_KL_ERROR = 0.2
"""A KL's relative error counts up to +-0.2 (Ziegler et al.)."""


def next_kl_coef(coef: float, kl: float, *, target: float, horizon: float, num_dialogues: int) -> float:
    """The KL's coefficient after an update: coef (1 + clip(kl / target - 1, +-0.2) min(1, num_dialogues / horizon)).

    Args:
        kl: measured in the update, nats per token; not a number leaves the coefficient as it is.
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
        entropy: measured in the update, nats per token; not a number leaves the coefficient as it is.

    Source: Skywork-OR1, arXiv 2505.22312; it applies the coefficient only while entropy is at or below the target.
    """
    if not math.isfinite(entropy):
        return coef
    return min(max(coef + (step if entropy <= target else -step), 0.0), highest)


def covariances(logprobs_N: Tensor, advantages_N: Tensor) -> Tensor:
    """(logp - mean logp)(A - mean A) of each token, float64. Source: arXiv 2505.22617, section 4."""
    logprobs_N, advantages_N = logprobs_N.double(), advantages_N.double()
    return (logprobs_N - logprobs_N.mean()) * (advantages_N - advantages_N.mean())


def pick_between(covariances_N: Tensor, *, share: float, low: float, high: float, rng: np.random.Generator) -> Tensor:
    """Of the tokens with low < covariance < high, `share` of all tokens at random (at least one, at most all of them), bool.

    Source: Clip-Cov, arXiv 2505.22617, section 4.
    """
    candidates = ((covariances_N > low) & (covariances_N < high)).nonzero().squeeze(1)
    size = min(_number(covariances_N, share), len(candidates))
    return _marked(covariances_N, candidates[rng.choice(len(candidates), size, replace=False).tolist()] if size else candidates)


def pick_highest(covariances_N: Tensor, *, share: float) -> Tensor:
    """The `share` of tokens of highest covariance (at least one), bool. Source: KL-Cov, arXiv 2505.22617, section 4."""
    return _marked(covariances_N, covariances_N.topk(min(_number(covariances_N, share), len(covariances_N))).indices)


def _number(values_N: Tensor, share: float) -> int:
    return max(1, int(share * len(values_N)))


def _marked(values_N: Tensor, indices: Tensor) -> Tensor:
    picked_N = values_N > values_N.max()
    picked_N[indices] = True
    return picked_N


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


FORKING_SHARE = 0.2
"""Share of the tokens, those of highest entropy, at which a policy is said to decide (arXiv 2506.01939)."""
TRACE_METRICS = (
    "actor/entropy_forking",
    "actor/logprob_advantage_cov",
    "training/mismatch_k1",
    "training/mismatch_chi2",
    "training/effective_share",
)
"""Keys that need all tokens at once, or products of them; `policy.batch.mismatch` adds those that are plain means."""


class TokenTrace:
    """Collects the tokens of a step, micro-batch by micro-batch; 16 bytes a token on the CPU."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._columns: list[Tensor] = []

    def add(self, rollout_logprobs_N: Tensor, logprobs_N: Tensor, entropies_N: Tensor, advantages_N: Tensor) -> None:
        """Takes in one micro-batch: what the engine and the trainer give each token, how undecided it was, how much better it fared."""
        self._totals.add(len(logprobs_N), mismatch(rollout_logprobs_N, logprobs_N, entropies_N))
        self._columns.append(torch.stack([rollout_logprobs_N, logprobs_N, entropies_N, advantages_N]).float().cpu())

    def metrics(self) -> dict[str, float]:
        """All of it, empty without tokens."""
        if not self._columns:
            return {}
        rollout_N, logprobs_N, entropies_N, advantages_N = torch.cat(self._columns, dim=1).double()
        log_ratios_N = (logprobs_N - rollout_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        num_forks = max(1, round(FORKING_SHARE * len(entropies_N)))
        mean_square = (2.0 * log_ratios_N).exp().mean()
        figures = (
            entropies_N.topk(num_forks).values.mean(),
            ((advantages_N - advantages_N.mean()) * (logprobs_N - logprobs_N.mean())).mean(),
            -(logprobs_N - rollout_N).mean(),
            mean_square - 1.0,
            log_ratios_N.exp().mean().square() / mean_square,
        )
        return self._totals.metrics() | dict(zip(TRACE_METRICS, map(float, figures), strict=True))
