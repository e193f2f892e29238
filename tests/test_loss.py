"""The policy loss against plain loops over the published formulas and by hand; and everything around the surrogates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from policy_factories import gradient_of, group, random_batch, rollout, tiny_model, update
from torch import Tensor

from policy.algorithms.algorithms import Grpo
from policy.algorithms.loss import PolicyLoss, kl_to_reference
from policy.batch import Batch, collate
from policy.config import Aggregation, Correction, GrpoConfig, KlEstimator, KlPlace, LearnerConfig, PolicyLossConfig, Surrogate
from policy.learner import Learner
from policy.metrics import k3

LENGTHS, LENGTH = (7, 1, 12, 4), 20
ZERO = torch.zeros((), dtype=torch.float64)
COVARIANCE = {"cov_share": 0.2, "cov_low": 0.0, "cov_high": 1e9}


@dataclass(frozen=True)
class Step:
    """The tokens of one optimiser step; lists by dialogue, then by token."""

    logprobs: list[list[Tensor]]
    entropies: list[list[float]]
    old: list[list[float]]
    rollout: list[list[float]]
    reference: list[list[float]]
    advantages: list[list[float]]
    selected: list[list[bool]]

    @property
    def leaves(self) -> list[Tensor]:
        return [token for row in self.logprobs for token in row]


def random_step(seed: int, *, spread: float = 0.4) -> Step:
    """Tokens whose probability has changed by about exp(+-spread), from an engine that differs by about exp(+-spread), too."""
    rng = np.random.default_rng(seed)
    old = [(-rng.exponential(1.0, length) - 0.05).tolist() for length in LENGTHS]

    def near() -> list[list[float]]:
        return [[token + spread * rng.normal() for token in row] for row in old]

    return Step(
        logprobs=[[torch.tensor(token, dtype=torch.float64, requires_grad=True) for token in row] for row in near()],
        entropies=[rng.exponential(1.0, length).tolist() for length in LENGTHS],
        old=old,
        rollout=near(),
        reference=near(),
        advantages=[(rng.normal() + 0.5 * rng.normal(size=length)).tolist() for length in LENGTHS],
        selected=[(rng.random(length) < 0.3).tolist() for length in LENGTHS],
    )


def flat(rows: list[list[float]]) -> Tensor:
    return torch.tensor([token.item() if isinstance(token, Tensor) else token for row in rows for token in row], dtype=torch.float64)


def batch_of(step: Step) -> Batch:
    """The same tokens in a batch, a token of the user before each dialogue."""
    batch = collate([group(*(rollout([1] * (length + 1), [0] + [1] * length) for length in LENGTHS))])

    def column(rows: list[list[float]]) -> Tensor:
        return torch.zeros(batch.loss_mask_BT.shape, dtype=torch.float64).masked_scatter(batch.loss_mask_BT, flat(rows))

    return replace(
        batch,
        rollout_logprobs_BT=column(step.rollout),
        ref_logprobs_BT=column(step.reference),
        old_logprobs_BT=column(step.old),
        advantages_BT=column(step.advantages),
        selected_BT=column(step.selected).bool(),
    )


def ours(config: PolicyLossConfig, batch: Batch, logprobs_N: Tensor, entropies_N: Tensor | None = None) -> tuple[float, list[float], dict]:
    """The loss of a whole optimiser step, its gradient by logprob, and sums of its metrics."""
    loss, logprobs_N = PolicyLoss(config), logprobs_N.detach().requires_grad_()
    total, metrics = loss.loss(logprobs_N, torch.zeros_like(logprobs_N) if entropies_N is None else entropies_N, batch)
    value = total / loss.denominator(batch)
    value.backward()
    return float(value.detach()), logprobs_N.grad.tolist(), {key: float(values_N.sum()) for key, values_N in metrics.items()}


def clip(value: Tensor, low: float, high: float) -> Tensor:
    return torch.tensor(low, dtype=value.dtype) if value < low else torch.tensor(high, dtype=value.dtype) if value > high else value


def ppo(step: Step, i: int, t: int, *, low: float, high: float, dual: float = 0.0) -> Tensor:
    """-min(r A, clip(r) A); with a dual clip, -max(that min, c A) where A < 0."""
    ratio, advantage = (step.logprobs[i][t] - step.old[i][t]).exp(), step.advantages[i][t]
    objective = min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)
    if dual and advantage < 0 and objective < dual * advantage:
        objective = torch.tensor(dual * advantage, dtype=torch.float64)
    return -objective


def gspo(step: Step, i: int, t: int, *, low: float, high: float) -> Tensor:
    """-min(s_t A, clip(s_t) A), s_t = sg(s) p_t / sg(p_t), s = (product of the dialogue's ratios)^(1/length)."""
    product = 1.0
    for now, before in zip(step.logprobs[i], step.old[i], strict=True):
        product *= float(now.detach().exp()) / math.exp(before)
    probability, advantage = step.logprobs[i][t].exp(), step.advantages[i][t]
    ratio = product ** (1 / len(step.old[i])) * probability / probability.detach()
    return -min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)


def cispo(step: Step, i: int, t: int, *, high: float) -> Tensor:
    """-sg(min(r, 1 + high)) A log p."""
    ratio = float((step.logprobs[i][t].detach() - step.old[i][t]).exp())
    return -min(ratio, 1 + high) * step.advantages[i][t] * step.logprobs[i][t]


def clip_cov(step: Step, i: int, t: int, *, low: float, high: float) -> Tensor:
    """PPO's, and nothing for a picked token."""
    return ZERO if step.selected[i][t] else ppo(step, i, t, low=low, high=high)


def kl_cov(step: Step, i: int, t: int, *, coef: float) -> Tensor:
    """-r A, plus coef |log r| for a picked token."""
    log_ratio = step.logprobs[i][t] - step.old[i][t]
    return -log_ratio.exp() * step.advantages[i][t] + (coef * abs(log_ratio) if step.selected[i][t] else 0.0)


GSPO_CLIP = {"sequence_clip_low": 0.03, "sequence_clip_high": 0.04}
LOSSES: dict[str, tuple[dict[str, object], Callable[[Step, int, int], Tensor]]] = {
    "ppo": ({}, partial(ppo, low=0.2, high=0.28)),
    "dual clip": ({"clip_high": 0.1, "dual_clip": 1.2}, partial(ppo, low=0.2, high=0.1, dual=1.2)),
    "gspo": ({"policy_loss": Surrogate.GSPO, **GSPO_CLIP}, partial(gspo, low=0.03, high=0.04)),
    "cispo": ({"policy_loss": Surrogate.CISPO}, partial(cispo, high=0.28)),
    "clip_cov": ({"policy_loss": Surrogate.CLIP_COV}, partial(clip_cov, low=0.2, high=0.28)),
    "kl_cov": ({"policy_loss": Surrogate.KL_COV, "kl_cov_coef": 0.7}, partial(kl_cov, coef=0.7)),
}
AVERAGES: dict[Aggregation, Callable[[list[list[Tensor]]], Tensor]] = {
    Aggregation.TOKEN_MEAN: lambda losses: sum((sum(row, ZERO) for row in losses), ZERO) / sum(LENGTHS),
    Aggregation.DIALOGUE_MEAN: lambda losses: sum((sum(row, ZERO) / len(row) for row in losses), ZERO) / len(losses),
    Aggregation.CONSTANT: lambda losses: sum((sum(row, ZERO) / LENGTH for row in losses), ZERO) / len(losses),
}


def aggregated(aggregation: Aggregation) -> dict[str, object]:
    return {"loss_aggregation": aggregation, "loss_length": LENGTH * (aggregation is Aggregation.CONSTANT)}


def check_against_loops(config: PolicyLossConfig, step: Step, formula: Callable[[Step, int, int], Tensor]) -> None:
    value, gradient, _ = ours(config, batch_of(step), flat(step.logprobs), flat(step.entropies))
    losses = [[formula(step, i, t) for t in range(length)] for i, length in enumerate(LENGTHS)]
    expected = AVERAGES[config.loss_aggregation](losses)
    gradients = torch.autograd.grad(expected, step.leaves, allow_unused=True, materialize_grads=True)
    assert value == pytest.approx(expected.item(), rel=1e-9)
    assert gradient == pytest.approx([float(each) for each in gradients], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("aggregation", AVERAGES)
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_the_published_formula_token_by_token(name: str, aggregation: Aggregation) -> None:
    check_against_loops(PolicyLossConfig(**aggregated(aggregation), **LOSSES[name][0]), random_step(0), LOSSES[name][1])


@pytest.mark.parametrize("aggregation", AVERAGES)
def test_correction_kl_and_entropy_are_averaged_like_the_surrogate(aggregation: Aggregation) -> None:
    others = {"kl_coef": 0.3, "entropy_coef": 0.1, "kl_estimator": KlEstimator.K2}
    config = PolicyLossConfig(**aggregated(aggregation), **others, importance_correction=Correction.TOKEN, importance_cap=1.3)

    def formula(step: Step, i: int, t: int) -> Tensor:
        weight = min(math.exp(step.old[i][t] - step.rollout[i][t]), 1.3)
        kl = (step.logprobs[i][t] - step.reference[i][t]) ** 2 / 2
        return weight * ppo(step, i, t, low=0.2, high=0.28) + 0.3 * kl - 0.1 * step.entropies[i][t]

    check_against_loops(config, random_step(5), formula)


@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo", "clip_cov", "kl_cov"])
def test_strictly_on_policy_every_loss_is_the_plain_policy_gradient(name: str) -> None:
    step = random_step(1)
    batch = replace(batch_of(step), old_logprobs_BT=None, selected_BT=None)
    _, gradient, sums = ours(PolicyLossConfig(**LOSSES[name][0]), batch, flat(step.logprobs))
    assert gradient == pytest.approx((-flat(step.advantages) / sum(LENGTHS)).tolist())
    assert sums["actor/approx_kl"] == sums["actor/clip_fraction"] == 0.0


def tokens(ratios: list[float], advantages: list[float]) -> tuple[Batch, Tensor]:
    """A dialogue of tokens whose old logprob is -1, and their logprobs after the probability has changed by `ratios`."""
    batch = collate([group(rollout([1] * (len(ratios) + 1), [0] + [1] * len(ratios)))])
    mask_BT = batch.loss_mask_BT
    advantages_BT = torch.zeros(mask_BT.shape).double().masked_scatter(mask_BT, torch.tensor(advantages).double())
    batch = replace(batch, advantages_BT=advantages_BT, old_logprobs_BT=-mask_BT.double())
    return batch, torch.tensor(ratios).double().log() - 1


def test_the_clip_holds_only_steps_that_go_further_out() -> None:
    batch, logprobs_N = tokens([1.0, 1.5, 0.5, 1.5, 0.5], [1.0, 1.0, 1.0, -1.0, -1.0])
    value, gradient, sums = ours(PolicyLossConfig(), batch, logprobs_N)
    # kept -1; high held at 1.28; low with A > 0 kept; high with A < 0 kept; low with A < 0 held at 0.8
    assert value == pytest.approx((-1.0 - 1.28 - 0.5 + 1.5 + 0.8) / 5)
    assert gradient == pytest.approx([-0.2, 0.0, -0.1, 0.3, 0.0])  # -A r where it is not held
    names = ("clip_fraction", "clip_fraction_positive", "clip_fraction_negative", "ratio_mean")
    assert [sums[f"actor/{name}"] for name in names] == pytest.approx([2, 1, 1, 5.0])
    # KL(old, now), k3 of tokens that the old policy sampled: ratio - 1 - log ratio. An alarm reads it.
    assert sums["actor/approx_kl"] == pytest.approx(2 * (0.5 - math.log(1.5)) + 2 * (-0.5 - math.log(0.5)))


def selected(algorithm: Grpo, step: Step) -> Tensor:
    batch = batch_of(step)
    logprobs_BT = torch.zeros_like(batch.old_logprobs_BT).masked_scatter(batch.loss_mask_BT, flat(step.logprobs).detach())
    return algorithm.select(batch, lambda: logprobs_BT).selected_BT[batch.loss_mask_BT]


def picked(old: list[float], advantages: list[float], **settings: object) -> list[bool]:
    """The tokens of one dialogue that are picked before any has moved."""
    batch = tokens([1.0] * len(old), advantages)[0]
    old_BT = torch.zeros(batch.loss_mask_BT.shape).double().masked_scatter(batch.loss_mask_BT, torch.tensor(old).double())
    chosen = Grpo(GrpoConfig(**settings)).select(replace(batch, old_logprobs_BT=old_BT), lambda: old_BT)
    return chosen.selected_BT[batch.loss_mask_BT].tolist()


def test_picks_are_the_highest_covariances_or_at_random_within_bounds_and_at_least_one() -> None:
    # means -2 and 0: covariances 4, 0, -2, 1, -1
    old, advantages = [-4.0, -2.0, -3.0, -1.0, 0.0], [-2.0, 0.5, 2.0, 1.0, -1.5]
    highest = {"policy_loss": Surrogate.KL_COV}
    assert picked(old, advantages, cov_share=0.4, **highest) == [True, False, False, True, False]
    assert picked(old, advantages, cov_share=1e-6, **highest) == [True, False, False, False, False]
    between = {"policy_loss": Surrogate.CLIP_COV, "cov_low": 0.5, "cov_high": 3.0}
    assert picked(old, advantages, cov_share=0.9, **between) == [False, False, False, True, False]
    assert not any(picked(old, advantages, cov_share=0.9, **(between | {"cov_low": 5.0, "cov_high": 6.0})))
    line = [i / 100 for i in range(200)]
    draws = [
        picked(line, line, policy_loss=Surrogate.CLIP_COV, cov_share=0.05, cov_low=0.1, cov_high=0.5, cov_seed=seed) for seed in (0, 0, 1)
    ]
    assert sum(draws[0]) == 10 and draws[0] == draws[1] != draws[2]


def test_clip_cov_draws_again_each_step_and_goes_on_from_its_state() -> None:
    config, step = GrpoConfig(policy_loss=Surrogate.CLIP_COV, **COVARIANCE), random_step(0, spread=0.01)
    whole, first, second = Grpo(config), Grpo(config), Grpo(config)
    draws = [selected(whole, step) for _ in range(4)]
    assert len({tuple(draw.tolist()) for draw in draws}) > 2
    for _ in range(2):
        selected(first, step)
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(selected(second, step), draw) for draw in draws[2:])


def test_clip_cov_picks_no_token_that_the_clip_already_holds() -> None:
    step, config = random_step(2), GrpoConfig(policy_loss=Surrogate.CLIP_COV, cov_share=1.0, cov_low=-100.0, cov_high=100.0)
    ratios_N, advantages_N = (flat(step.logprobs) - flat(step.old)).exp(), flat(step.advantages)
    held_N = ((advantages_N > 0) & (ratios_N > 1.28)) | ((advantages_N < 0) & (ratios_N < 0.8))
    assert held_N.any() and not held_N.all() and torch.equal(selected(Grpo(config), step), ~held_N)


def learner(loss: dict[str, object] | None = None, *, reference: bool = False, **settings: object) -> Learner:
    algorithm = Grpo(GrpoConfig(**(loss or {})))
    return Learner(LearnerConfig(**settings), algorithm, tiny_model(), reference=tiny_model(seed=1) if reference else None)


@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [*((loss, Aggregation.TOKEN_MEAN) for loss in Surrogate), *((Surrogate.PPO, aggregation) for aggregation in Aggregation)],
)
def test_no_loss_and_no_average_depends_on_the_cut_into_micro_batches(loss: Surrogate, aggregation: Aggregation) -> None:
    own = {Surrogate.GSPO: GSPO_CLIP, Surrogate.CLIP_COV: COVARIANCE, Surrogate.KL_COV: {"cov_share": 0.2}}
    settings = {"policy_loss": loss, "kl_coef": 0.1, "entropy_coef": 0.05, **aggregated(aggregation), **own.get(loss, {})}
    settings |= {} if loss is Surrogate.GSPO else {"importance_correction": Correction.TOKEN}
    pieces = [{"micro_batch_rows": 100}, {"micro_batch_rows": 3, "micro_batch_tokens": 64}]
    students = [learner(settings, reference=True, num_minibatches=2, lr=1e-2, max_grad_norm=1e9, **piece) for piece in pieces]
    whole, cut = (update(student, random_batch(seed=0)) for student in students)
    assert float(gradient_of(students[0]).norm()) > 1e-2 and whole["actor/ratio_max"] > 1.01
    torch.testing.assert_close(gradient_of(students[1]), gradient_of(students[0]), rtol=1e-3, atol=1e-5)
    for key in ("actor/pg_loss", "actor/clip_fraction", "actor/kl_loss", "actor/grad_norm", "actor/approx_kl"):
        assert cut[key] == pytest.approx(whole[key], rel=1e-3, abs=1e-5), key
    if "importance_correction" in settings:
        share = whole["training/correction_mean"] ** 2 / whole["training/correction_square"]
        assert whole["training/correction_effective_share"] == pytest.approx(share)


def test_rows_without_a_trained_token_are_in_no_denominator() -> None:
    batch = collate([group(rollout([1, 2, 3], [0, 1, 1]), rollout([1, 2], [0, 1]), rollout([1, 2], [0, 0]))])
    expected = {Aggregation.TOKEN_MEAN: 3, Aggregation.DIALOGUE_MEAN: 2, Aggregation.CONSTANT: 2 * LENGTH}
    for aggregation, number in expected.items():
        assert PolicyLoss(PolicyLossConfig(**aggregated(aggregation))).denominator(batch) == number


def test_k3_averages_to_the_exact_kl_and_the_kls_gradient_is_k2s() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-6)
    for estimator, values in ((KlEstimator.K3, [math.exp(-0.5) - 0.5, math.exp(1.0) - 2.0]), (KlEstimator.K2, [0.125, 0.5])):
        logprobs_N = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
        kl_N = kl_to_reference(logprobs_N, torch.tensor([-1.5, -1.0], dtype=torch.float64), estimator)
        kl_N.sum().backward()
        assert kl_N.tolist() == pytest.approx(values) and logprobs_N.grad.tolist() == pytest.approx([0.5, -1.0])


def test_a_kl_in_the_reward_is_taken_off_the_rollouts_and_off_each_turns() -> None:
    batch = collate([group(rollout([1, 2, 3, 4, 5], [0, 1, 1, 0, 1], reward=0.5, logprobs=[0, -1, -1, 0, -2]))])
    batch = replace(
        batch,
        ref_logprobs_BT=torch.tensor([[0.0, -1.5, -1.25, 0.0, -1.0]]),
        turn_ids_BT=torch.tensor([[0, 0, 0, 1, 1]], dtype=torch.int16),
        turn_rewards_BK=torch.tensor([[0.2, math.nan]]).double(),
    )
    algorithm = Grpo(GrpoConfig(kl_coef=0.3, kl_in=KlPlace.REWARD))
    algorithm.kl_coef = 0.1  # as adapted
    got = algorithm.penalise(batch)
    # 0.5 + 0.25 in the first turn, -1 in the second
    assert got.rewards_B.tolist() == pytest.approx([0.5 - 0.1 * (0.75 - 1.0)])
    torch.testing.assert_close(algorithm.token_penalties(batch), torch.tensor([[0.0, 0.05, 0.025, 0.0, -0.1]]))
    assert algorithm.observe(batch, {})["actor/kl_reward"] == pytest.approx(-0.25 / 3)
    # A turn reward of 1 is 0.1 of the final one, so the same 0.075 are 0.75 there.
    assert got.turn_rewards_BK.tolist()[0] == pytest.approx([0.2 - 0.1 * 0.75 / 0.1, math.nan], nan_ok=True)


def test_a_kl_in_the_reward_stays_out_of_the_loss() -> None:
    step = random_step(0)
    configs = PolicyLossConfig(kl_coef=0.3, kl_in=KlPlace.REWARD), PolicyLossConfig()
    held, plain = (ours(config, batch_of(step), flat(step.logprobs))[:2] for config in configs)
    assert held == plain


def coefficients(loss: dict[str, float], metric: str, values: list[float]) -> list[float]:
    """A coefficient after each of these measured values, every time from where it began; ten dialogues an update."""
    batch, found = collate([group(*(rollout([1, 2], [0, 1]) for _ in range(10)))]), []
    for value in values:
        algorithm = Grpo(GrpoConfig(**loss))
        algorithm.observe(batch, {metric: value})
        found.append(algorithm.state_dict()["kl_coef" if "kl_coef" in loss else "entropy_coef"])
    return found


def test_coefficients_follow_their_targets_in_bounded_steps() -> None:
    kl = {"kl_coef": 0.5, "kl_target": 0.1, "kl_horizon": 100}
    moved = coefficients(kl, "actor/kl_loss", [0.11, 99.0, 0.0, math.nan])
    assert moved == pytest.approx([0.5 * (1 + 0.1 * 0.1), 0.5 * 1.02, 0.5 * 0.98, 0.5])
    # more dialogues than the horizon: a fifth at most
    assert coefficients(kl | {"kl_horizon": 1}, "actor/kl_loss", [0.0]) == pytest.approx([0.4])
    entropy = {"entropy_coef": 0.1, "entropy_target": 1.0, "entropy_coef_step": 0.1, "entropy_coef_max": 0.15}
    assert coefficients(entropy, "actor/entropy", [0.5, 1.0, 1.5, math.nan]) == pytest.approx([0.15, 0.15, 0.0, 0.1])
    assert coefficients(entropy | {"entropy_coef_step": 0.2}, "actor/entropy", [1.5]) == [0.0]


def test_an_entropy_bonus_with_a_target_counts_only_below_it_and_goes_on_from_its_state() -> None:
    config = GrpoConfig(entropy_coef=0.1, entropy_target=1.0, entropy_coef_step=0.01)
    algorithm, batch = Grpo(config), random_batch(seed=0)
    algorithm.observe(batch, {"actor/entropy": 0.5}, stepped=False)
    assert algorithm.entropy_coef == 0.1
    algorithm.observe(batch, {"actor/entropy": 0.5})
    assert algorithm.entropy_coef == pytest.approx(0.11)
    assert algorithm.observe(batch, {"actor/entropy": 2.0})["actor/entropy_coef"] == pytest.approx(0.11)
    assert algorithm.entropy_coef == 0.0
    other = Grpo(config)
    other.load_state_dict(algorithm.state_dict())
    for each in (algorithm, other):
        each.observe(batch, {"actor/entropy": 0.5})
        assert each.entropy_coef == pytest.approx(0.11)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"policy_loss": Surrogate.GSPO, "clip_low": 0.1}, "clip_low is read with .*gspo reads sequence_clip_low"),
        ({"policy_loss": Surrogate.GSPO, "importance_correction": Correction.TOKEN}, "importance_correction"),
        ({"loss_aggregation": Aggregation.CONSTANT}, "loss_length"),
    ],
)
def test_settings_that_cannot_hold_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        PolicyLossConfig(**settings)
    with pytest.raises(ValueError, match="recompute_logprobs"):
        learner({"importance_correction": Correction.TOKEN}, recompute_logprobs=False)
