"""Every loss and every way to average it against plain loops over the published formulas, values and gradients, and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import token_losses as loops
import torch
from token_losses import Step, random_step
from torch import Tensor

from policy.algorithms.loss import PolicyLoss, cispo_surrogate, clipped_surrogate, gspo_surrogate
from policy.batch import TokenScores
from policy.config import Aggregation, Correction, KlEstimator, PolicyLossConfig, Surrogate

LENGTH = 20
LOSSES: dict[str, tuple[dict[str, object], Callable[[Step, int, int], Tensor]]] = {
    "ppo": ({}, partial(loops.ppo, low=0.2, high=0.28)),
    "dual clip": ({"clip_high": 0.1, "dual_clip": 1.2}, partial(loops.ppo, low=0.2, high=0.1, dual=1.2)),
    "gspo": (
        {"policy_loss": Surrogate.GSPO, "sequence_clip_low": 0.03, "sequence_clip_high": 0.04},
        partial(loops.gspo, low=0.03, high=0.04),
    ),
    "cispo": ({"policy_loss": Surrogate.CISPO}, partial(loops.cispo, high=0.28)),
    "clip_cov": ({"policy_loss": Surrogate.CLIP_COV}, partial(loops.clip_cov, low=0.2, high=0.28)),
    "kl_cov": ({"policy_loss": Surrogate.KL_COV, "kl_cov_coef": 0.7}, partial(loops.kl_cov, coef=0.7)),
}
AVERAGES: dict[Aggregation, Callable[[list[list[Tensor]]], Tensor]] = {
    Aggregation.TOKEN_MEAN: loops.token_mean,
    Aggregation.DIALOGUE_MEAN: loops.dialogue_mean,
    Aggregation.CONSTANT: partial(loops.constant, length=LENGTH),
}


class Rows:
    """As much of a batch as a denominator reads."""

    loss_mask_BT = torch.arange(max(loops.LENGTHS)) < torch.tensor(loops.LENGTHS)[:, None]
    num_trained = sum(loops.LENGTHS)


def settings(aggregation: Aggregation, **others: object) -> PolicyLossConfig:
    return PolicyLossConfig(loss_aggregation=aggregation, loss_length=LENGTH * (aggregation is Aggregation.CONSTANT), **others)


def ours(config: PolicyLossConfig, scores: TokenScores) -> tuple[Tensor, list[float]]:
    """The loss of a whole optimiser step, and its gradient by logprob."""
    loss = PolicyLoss(config)
    value = loss.loss(scores).total / loss.denominator(Rows())
    value.backward()
    return value.detach(), scores.logprobs_N.grad.tolist()


def naive(
    step: Step, losses: Callable[[Step, int, int], Tensor], average: Callable[[list[list[Tensor]]], Tensor]
) -> tuple[Tensor, list[float]]:
    value = average([[losses(step, i, t) for t in range(length)] for i, length in enumerate(loops.LENGTHS)])
    gradients = torch.autograd.grad(value, step.leaves, allow_unused=True, materialize_grads=True)
    return value.detach(), [float(gradient) for gradient in gradients]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("aggregation", AVERAGES)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_published_formula_token_by_token(name: str, aggregation: Aggregation, seed: int) -> None:
    others, formula = LOSSES[name]
    step = random_step(seed)
    value, gradient = ours(settings(aggregation, **others), step.scores())
    expected, expected_gradient = naive(step, formula, AVERAGES[aggregation])
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    assert gradient == pytest.approx(expected_gradient, rel=1e-9, abs=1e-12)


def test_the_random_tokens_reach_every_branch_of_every_loss() -> None:
    values = {name: ours(settings(Aggregation.TOKEN_MEAN, **others), random_step(0).scores())[0] for name, (others, _) in LOSSES.items()}
    assert len({round(float(value), 9) for value in values.values()}) == len(LOSSES)
    for seed in range(3):
        for name in ("ppo", "gspo", "cispo"):
            sums = PolicyLoss(settings(Aggregation.TOKEN_MEAN, **LOSSES[name][0])).loss(random_step(seed).scores()).sums
            assert 0 < sums["actor/clip_fraction"] < Rows.num_trained, name


@pytest.mark.parametrize("aggregation", AVERAGES)
def test_correction_kl_and_entropy_are_averaged_as_the_surrogate_is(aggregation: Aggregation) -> None:
    step = random_step(5)
    config = settings(
        aggregation, kl_coef=0.3, entropy_coef=0.1, importance_correction=Correction.TOKEN, importance_cap=1.3, kl_estimator=KlEstimator.K2
    )

    def formula(step: Step, i: int, t: int) -> Tensor:
        weight = min(math.exp(step.old[i][t] - step.rollout[i][t]), 1.3)
        kl = (step.logprobs[i][t] - step.reference[i][t]) ** 2 / 2
        return weight * loops.ppo(step, i, t, low=0.2, high=0.28) + 0.3 * kl - 0.1 * step.entropies[i][t]

    value, gradient = ours(config, step.scores())
    expected, expected_gradient = naive(step, formula, AVERAGES[aggregation])
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    assert gradient == pytest.approx(expected_gradient, rel=1e-9, abs=1e-12)


def tokens(ratios: list[float], advantages: list[float], rows: list[int] | None = None) -> TokenScores:
    log_ratios_N = torch.tensor(ratios, dtype=torch.float64).log()
    return TokenScores(
        logprobs_N=(log_ratios_N - 1).requires_grad_(),
        entropies_N=torch.zeros_like(log_ratios_N),
        old_logprobs_N=torch.full_like(log_ratios_N, -1.0),
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        rows_N=None if rows is None else torch.tensor(rows),
    )


def test_a_dual_clip_bounds_the_loss_of_what_was_bad_and_has_become_likely() -> None:
    scores = tokens([5.0, 2.0, 5.0, 0.1], [-1.0, -1.0, 1.0, -1.0])
    loss = clipped_surrogate(scores, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    # 5 is held at 3; 2 is below it; with A > 0 the plain clip holds at 1.28; 0.1 is held at 0.8
    assert float(loss.total.detach()) == pytest.approx(3.0 + 2.0 - 1.28 + 0.8)
    loss.total.backward()
    assert scores.logprobs_N.grad.tolist() == pytest.approx([0.0, 2.0, 0.0, 0.0])
    assert float(loss.sums["actor/clip_fraction"]) == 3


def test_cispo_bounds_the_weight_and_keeps_every_gradient() -> None:
    scores = tokens([1.0, 3.0, 0.1], [1.0, 2.0, -1.0])
    cispo_surrogate(scores, clip_high=0.28).total.backward()
    # From above alone: a token that became a tenth as likely counts by a tenth.
    assert scores.logprobs_N.grad.tolist() == pytest.approx([-1.0, -1.28 * 2.0, 0.1])


def test_gspo_has_one_ratio_a_dialogue_the_geometric_mean_of_its_tokens() -> None:
    scores = tokens([1.2, 1.2, 4.0, 1.0], [1.0, 1.0, 1.0, 1.0], rows=[0, 0, 1, 1])
    loss = gspo_surrogate(scores, clip_low=0.3, clip_high=0.3)
    # the first dialogue's is 1.2, the second's 2, held at 1.3
    assert float(loss.total.detach()) == pytest.approx(-2 * 1.2 - 2 * 1.3)
    loss.total.backward()
    assert scores.logprobs_N.grad.tolist() == pytest.approx([-1.2, -1.2, 0.0, 0.0])


def test_gspos_token_form_is_its_form_by_sequences_where_a_dialogues_tokens_share_an_advantage() -> None:
    step = random_step(3, spread=0.02)
    step = replace(step, advantages=[[row[0]] * len(row) for row in step.advantages])
    clips = {"sequence_clip_low": 0.002, "sequence_clip_high": 0.002}
    value, gradient = ours(settings(Aggregation.DIALOGUE_MEAN, policy_loss=Surrogate.GSPO, **clips), step.scores())
    total = loops.ZERO
    for logprobs, old, (advantage, *_) in zip(step.logprobs, step.old, step.advantages, strict=True):
        ratio = ((sum(logprobs, loops.ZERO) - sum(old)) / len(old)).exp()
        total = total - min(ratio * advantage, loops.clip(ratio, 0.998, 1.002) * advantage) / len(loops.LENGTHS)
    torch.testing.assert_close(value, total.detach(), rtol=1e-9, atol=1e-12)
    expected = [float(each) for each in torch.autograd.grad(total, step.leaves, allow_unused=True, materialize_grads=True)]
    assert gradient == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert any(expected) and not all(expected)


@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo", "clip_cov", "kl_cov"])
def test_strictly_on_policy_every_loss_is_the_plain_policy_gradient(name: str) -> None:
    step = random_step(1)
    scores = step.scores()
    scores = replace(scores, old_logprobs_N=scores.logprobs_N.detach(), selected_N=torch.zeros_like(scores.selected_N))
    _, gradient = ours(settings(Aggregation.TOKEN_MEAN, **LOSSES[name][0]), scores)
    assert gradient == pytest.approx((-scores.advantages_N / Rows.num_trained).tolist())
