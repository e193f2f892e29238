"""The policy gradient's losses: how far a token's advantage may move the policy in one update.

In all of them A is a token's advantage, r = exp(logp - logp_old) its probability now over that before the update, and the loss a sum
over tokens by their weights. What is clipped has no gradient. `actor/clip_fraction` counts the tokens whose gradient was held or bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.losses import MAX_LOG_RATIO, TokenLoss, TokenScores, k3

if TYPE_CHECKING:
    from torch import Tensor

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
