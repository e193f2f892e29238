"""What is around the surrogates: picked tokens, the correction for the engine, the reference, coefficients that adapt, refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from policy_factories import group, pack, random_batch, rollout, tiny_model
from torch import Tensor

from experiments.config import ConfigError, load
from policy.algorithms.algorithms import Grpo
from policy.algorithms.loss import (
    covariances,
    kl_to_reference,
    next_entropy_coef,
    next_kl_coef,
    penalised,
    pick_between,
    pick_highest,
    truncated_weights,
)
from policy.batch import Batch
from policy.config import (
    Aggregation,
    Correction,
    CriticKind,
    GrpoConfig,
    KlEstimator,
    KlPlace,
    LearnerConfig,
    PolicyLossConfig,
    PpoConfig,
    ReinforcePPConfig,
    RlooConfig,
    Surrogate,
)
from policy.learner import Learner

COVARIANCE = {"cov_share": 0.2, "cov_low": 0.0, "cov_high": 1e9}
OF_THEIR_OWN = {
    Surrogate.GSPO: {"sequence_clip_low": 0.05, "sequence_clip_high": 0.05},
    Surrogate.CLIP_COV: COVARIANCE,
    Surrogate.KL_COV: {"cov_share": 0.2},
}
"""Settings that a surrogate alone reads."""


def learner(*, reference: bool = False, loss: dict[str, object] | None = None, **settings: object) -> Learner:
    algorithm = Grpo(GrpoConfig(**(loss or {})))
    return Learner(LearnerConfig(**settings), algorithm, tiny_model(), reference=tiny_model(seed=1) if reference else None)


def update(student: Learner, batch: Batch) -> dict[str, float]:
    batch = student.with_reference(batch)
    return student.update(batch, student.algorithm.targets(batch))


def gradient(student: Learner) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in student.model.parameters()])


# Micro-batches ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("aggregation", Aggregation)
@pytest.mark.parametrize("loss", Surrogate)
def test_no_loss_and_no_average_depends_on_how_a_step_is_cut(loss: Surrogate, aggregation: Aggregation) -> None:
    settings: dict[str, object] = {"policy_loss": loss, "loss_aggregation": aggregation, "kl_coef": 0.1, "entropy_coef": 0.05}
    settings |= {"loss_length": 40 * (aggregation is Aggregation.CONSTANT)} | OF_THEIR_OWN.get(loss, {})
    settings |= {} if loss is Surrogate.GSPO else {"importance_correction": Correction.TOKEN}
    pieces = [{"micro_batch_rows": 100}, {"micro_batch_rows": 1}, {"micro_batch_rows": 3, "micro_batch_tokens": 64}]
    students = [learner(reference=True, loss=settings, num_minibatches=2, lr=1e-2, max_grad_norm=1e9, **piece) for piece in pieces]
    metrics = [update(student, random_batch(seed=0)) for student in students]
    assert float(gradient(students[0]).norm()) > 1e-2
    assert metrics[0]["actor/ratio_max"] > 1.01
    for student, measured in zip(students[1:], metrics[1:], strict=True):
        torch.testing.assert_close(gradient(student), gradient(students[0]), rtol=1e-3, atol=1e-5)
        for key in ("actor/pg_loss", "actor/clip_fraction", "actor/kl_loss", "actor/grad_norm", "actor/approx_kl"):
            assert measured[key] == pytest.approx(metrics[0][key], rel=1e-3, abs=1e-5), key


def test_averages_differ_where_dialogues_differ_in_length() -> None:
    norms = [
        update(learner(loss={"loss_aggregation": each, "loss_length": 40 * (each is Aggregation.CONSTANT)}), random_batch(seed=0))
        for each in Aggregation
    ]
    assert len({round(measured["actor/grad_norm"], 4) for measured in norms}) == 3


def test_a_dialogue_counts_alike_however_long_in_the_mean_over_dialogues() -> None:
    student, batch = learner(loss={"loss_aggregation": Aggregation.DIALOGUE_MEAN}, max_grad_norm=1e9), random_batch(seed=0, num_groups=1)
    update(student, batch)
    expected = torch.zeros_like(gradient(student))
    for row in range(batch.num_rollouts):
        alone = learner(max_grad_norm=1e9)
        targets = alone.algorithm.targets(batch)
        alone.update(batch.rows(torch.tensor([row])), replace(targets, advantages_BT=targets.advantages_BT[[row], : batch.needed_B[row]]))
        expected += gradient(alone) / batch.num_rollouts
    torch.testing.assert_close(gradient(student), expected, rtol=1e-4, atol=1e-6)


# Tokens picked by covariance --------------------------------------------------------------------------------------------------------


def test_covariances_are_products_of_deviations() -> None:
    got_N = covariances(torch.tensor([-1.0, -3.0, -2.0]), torch.tensor([2.0, -1.0, -1.0]))
    assert got_N.tolist() == pytest.approx([2.0, 1.0, 0.0])
    assert float(got_N.mean()) == pytest.approx(np.cov([-1.0, -3.0, -2.0], [2.0, -1.0, -1.0], bias=True)[0, 1])


def test_kl_cov_picks_the_highest_and_at_least_one() -> None:
    values_N = torch.tensor([0.3, 5.0, -7.0, 2.0, 1.0])
    assert pick_highest(values_N, share=0.4).tolist() == [False, True, False, True, False]
    assert pick_highest(values_N, share=1e-6).tolist() == [False, True, False, False, False]
    assert bool(pick_highest(values_N, share=1.0).all())


def test_clip_cov_picks_at_random_within_its_bounds_and_repeats() -> None:
    values_N = torch.linspace(0.0, 10.0, 1001)

    def picked_N(seed: int) -> Tensor:
        return pick_between(values_N, share=0.01, low=1.0, high=5.0, rng=np.random.default_rng(seed))

    assert int(picked_N(0).sum()) == 10
    assert float(values_N[picked_N(0)].min()) > 1.0 and float(values_N[picked_N(0)].max()) < 5.0
    assert torch.equal(picked_N(0), picked_N(0)) and not torch.equal(picked_N(0), picked_N(1))
    assert not pick_between(values_N, share=0.01, low=11.0, high=12.0, rng=np.random.default_rng(0)).any()


def test_clip_cov_draws_anew_each_step_and_goes_on_where_it_was_saved() -> None:
    config = GrpoConfig(policy_loss=Surrogate.CLIP_COV, **COVARIANCE)
    columns = torch.randn(2, 500, generator=torch.Generator().manual_seed(0))
    whole, first, second = Grpo(config), Grpo(config), Grpo(config)
    draws = [whole.select(*columns) for _ in range(4)]
    assert not torch.equal(draws[0], draws[1])
    for _ in range(2):
        first.select(*columns)
    second.load_state_dict(first.state_dict())
    assert all(torch.equal(second.select(*columns), draw) for draw in draws[2:])


def test_clip_cov_picks_no_token_that_the_clip_already_holds() -> None:
    generator = torch.Generator().manual_seed(0)
    old_N, advantages_N = -torch.rand(400, generator=generator), torch.randn(400, generator=generator)
    ratios_N = 0.4 + 1.2 * torch.rand(400, generator=generator)
    held_N = ((advantages_N > 0) & (ratios_N > 1.28)) | ((advantages_N < 0) & (ratios_N < 0.8))
    config = GrpoConfig(policy_loss=Surrogate.CLIP_COV, cov_share=1.0, cov_low=-100.0, cov_high=100.0)
    # Everything may be picked, so what is picked is just what the clip leaves its gradient.
    picked_N = Grpo(config).select(old_N, advantages_N, old_N + ratios_N.log())
    assert 50 < int(held_N.sum()) < 350 and torch.equal(picked_N, ~held_N)
    assert bool(Grpo(config).select(old_N, advantages_N).all())


def test_a_second_step_of_clip_cov_spends_no_pick_on_clipped_tokens() -> None:
    loss = {"policy_loss": Surrogate.CLIP_COV, "cov_share": 1.0, "cov_low": -100.0, "cov_high": 100.0}
    student = learner(loss=loss, epochs=2, lr=3e-2, max_grad_norm=1e9)
    asked: list[tuple[Tensor, ...]] = []
    select = student.algorithm.select
    student.algorithm.select = lambda *columns: asked.append(columns) or torch.zeros_like(select(*columns))
    update(student, random_batch(seed=0))
    (old_N, _, first_N), (again_N, advantages_N, second_N) = asked
    assert torch.allclose(old_N, first_N, atol=1e-5) and torch.equal(old_N, again_N)
    ratios_N = (second_N - old_N).exp()
    held_N = ((advantages_N > 0) & (ratios_N > 1.28)) | ((advantages_N < 0) & (ratios_N < 0.8))
    assert held_N.any() and not (select(again_N, advantages_N, second_N) & held_N).any()


def test_picked_tokens_are_those_of_the_whole_step_by_the_weights_before_it() -> None:
    student, batch = learner(loss={"policy_loss": Surrogate.KL_COV, "cov_share": 0.1}, num_minibatches=2, lr=1e-2), random_batch(seed=0)
    asked: list[tuple[Tensor, Tensor]] = []
    select = student.algorithm.select
    student.algorithm.select = lambda *columns: asked.append(columns) or select(*columns)
    before = student.scorer.logprobs(student.model, batch)[batch.loss_mask_BT]
    metrics = update(student, batch)
    assert torch.cat([logprobs_N for logprobs_N, _ in asked]).sort().values.tolist() == pytest.approx(before.sort().values.tolist())
    expected = sum(max(1, int(0.1 * len(logprobs_N))) for logprobs_N, _ in asked) / batch.num_trained
    assert metrics["actor/clip_fraction"] == pytest.approx(expected)


# Engine and trainer -----------------------------------------------------------------------------------------------------------------


def test_a_weight_is_the_ratio_of_old_to_rollout_up_to_the_cap_and_has_no_gradient() -> None:
    old_N = torch.tensor([-1.0, -1.0, -1.0], requires_grad=True)
    weights_N, sums = truncated_weights(old_N, torch.tensor([-1.0, -2.0, -0.5]), cap=2.0)
    assert weights_N.tolist() == pytest.approx([1.0, 2.0, math.exp(-0.5)]) and not weights_N.requires_grad
    assert float(sums["training/correction_truncated"]) == 1
    assert float(sums["training/correction_mean"]) == pytest.approx(3.0 + math.exp(-0.5))


def test_the_gradient_of_a_corrected_step_is_weighed_by_old_over_rollout_alone() -> None:
    student, batch = learner(loss={"importance_correction": Correction.TOKEN}, max_grad_norm=1e9), random_batch(seed=0)
    batch = replace(batch, rollout_logprobs_BT=batch.rollout_logprobs_BT - 3.5 * batch.loss_mask_BT)
    targets = student.algorithm.targets(batch)
    logprobs_BT = student.scorer.logprobs(student.model, batch)
    weights_BT = ((logprobs_BT - batch.rollout_logprobs_BT).exp()).clamp(max=2.0)
    metrics = student.update(batch, targets)
    plain = learner(max_grad_norm=1e9)
    plain.update(batch, replace(targets, advantages_BT=targets.advantages_BT * weights_BT))
    torch.testing.assert_close(gradient(student), gradient(plain), rtol=1e-4, atol=1e-6)
    weights_N = weights_BT[batch.loss_mask_BT]
    assert metrics["training/correction_mean"] == pytest.approx(float(weights_N.mean()), rel=1e-4)
    assert metrics["training/correction_effective_share"] == pytest.approx(
        float(weights_N.mean() ** 2 / weights_N.square().mean()), rel=1e-4
    )
    assert 0.0 < metrics["training/correction_truncated"] < 1.0
    assert metrics["actor/ratio_max"] == 1.0


def test_an_engine_that_agrees_is_not_corrected() -> None:
    student, batch = learner(loss={"importance_correction": Correction.TOKEN}), random_batch(seed=0)
    batch = replace(batch, rollout_logprobs_BT=student.scorer.logprobs(student.model, batch))
    metrics = update(student, batch)
    assert metrics["training/correction_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["training/correction_truncated"] == 0.0
    assert metrics["actor/grad_norm"] == pytest.approx(update(learner(), batch)["actor/grad_norm"], rel=1e-5)


def test_a_correction_asks_for_logprobs_of_the_trainers_own() -> None:
    override = "algorithm.importance_correction=token"
    assert load("smoke", [override]).learner.recompute_logprobs is True
    with pytest.raises(ConfigError, match=r"must be none with learner\.recompute_logprobs=false, got token: .* count twice; set learner"):
        load("smoke", [override, "learner.recompute_logprobs=false"])


# The reference ----------------------------------------------------------------------------------------------------------------------


def test_k2_has_half_the_square_as_its_value_and_the_same_gradient() -> None:
    logprobs_N = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    kl_N = kl_to_reference(logprobs_N, torch.tensor([-1.5, -1.0], dtype=torch.float64), KlEstimator.K2)
    assert kl_N.tolist() == pytest.approx([0.125, 0.5])
    kl_N.sum().backward()
    assert logprobs_N.grad.tolist() == pytest.approx([0.5, -1.0])


def two_turns() -> Batch:
    """One rollout of two replies: logprobs -1 and -1, then -2; the reference gives -1.5, -1.25 and -1."""
    batch = pack([group(rollout([1, 2, 3, 4, 5], [0, 1, 1, 0, 1], reward=0.5, logprobs=[0, -1, -1, 0, -2]))])
    reference_BT = torch.tensor([[0.0, -1.5, -1.25, 0.0, -1.0]])
    turn_ids_BT = torch.tensor([[0, 0, 0, 1, 1]], dtype=torch.int16)
    return replace(
        batch, reference_logprobs_BT=reference_BT, turn_ids_BT=turn_ids_BT, turn_rewards_BK=torch.tensor([[0.2, math.nan]]).double()
    )


def test_kl_in_the_reward_is_taken_off_the_rollouts_and_off_each_turns() -> None:
    got = penalised(two_turns(), 0.1)
    # 0.5 + 0.25 in the first turn, -1 in the second
    assert got.rewards_B.tolist() == pytest.approx([0.5 - 0.1 * (0.75 - 1.0)])
    # A turn reward of 1 is 0.1 of the final one, so the same 0.075 are 0.75 there.
    assert got.turn_rewards_BK.tolist()[0] == pytest.approx([0.2 - 0.1 * 0.75 / 0.1, math.nan], nan_ok=True)


def test_kl_in_the_reward_moves_advantages_and_stays_out_of_the_loss() -> None:
    batch = random_batch(seed=0)
    plain, held = learner(reference=True), learner(reference=True, loss={"kl_coef": 0.05, "kl_in": KlPlace.REWARD})
    batch = held.with_reference(batch)
    by_reward, without = (student.algorithm.targets(batch).advantages_BT for student in (held, plain))
    kl_B = (batch.rollout_logprobs_BT - batch.reference_logprobs_BT).mul(batch.loss_mask_BT).sum(dim=1).double()
    expected_BT = plain.algorithm.targets(replace(batch, rewards_B=batch.rewards_B - 0.05 * kl_B)).advantages_BT
    torch.testing.assert_close(by_reward, expected_BT)
    assert not torch.allclose(by_reward, without, atol=1e-2)
    metrics = held.update(batch, held.algorithm.targets(batch))
    assert metrics["actor/kl_reward"] == pytest.approx(float(kl_B.sum()) / batch.num_trained, rel=1e-5)
    plain.update(batch, held.algorithm.targets(batch))
    assert torch.equal(gradient(held), gradient(plain))


def test_the_reference_is_asked_once_a_batch() -> None:
    student, batch = learner(reference=True, loss={"kl_coef": 0.1}), random_batch(seed=0)
    batch = student.with_reference(batch)
    assert student.with_reference(batch) is batch
    assert batch.rows(torch.tensor([3, 1])).reference_logprobs_BT.shape == batch.rows(torch.tensor([3, 1])).token_ids_BT.shape
    assert learner().with_reference(random_batch(seed=0)).reference_logprobs_BT is None


# Coefficients that adapt ------------------------------------------------------------------------------------------------------------


def test_a_kls_coefficient_follows_its_target_by_at_most_a_fifth_of_the_horizons_share() -> None:
    assert next_kl_coef(0.5, 0.11, target=0.1, horizon=100, num_dialogues=10) == pytest.approx(0.5 * (1 + 0.1 * 0.1))
    assert next_kl_coef(0.5, 99.0, target=0.1, horizon=100, num_dialogues=10) == pytest.approx(0.5 * 1.02)
    assert next_kl_coef(0.5, -1.0, target=0.1, horizon=100, num_dialogues=10) == pytest.approx(0.5 * 0.98)
    assert next_kl_coef(0.5, math.nan, target=0.1, horizon=100, num_dialogues=10) == 0.5
    # However many dialogues an update has, it changes by a fifth at most, and so is never 0.
    assert next_kl_coef(0.5, 0.0, target=0.1, horizon=20, num_dialogues=128) == pytest.approx(0.4)


def test_an_entropys_coefficient_steps_towards_its_target_within_its_bounds() -> None:
    assert next_entropy_coef(0.1, 0.2, target=0.2, step=0.05, highest=1.0) == pytest.approx(0.15)
    assert next_entropy_coef(0.1, 0.3, target=0.2, step=0.05, highest=1.0) == pytest.approx(0.05)
    assert next_entropy_coef(0.01, 0.3, target=0.2, step=0.05, highest=1.0) == 0.0
    assert next_entropy_coef(0.98, 0.1, target=0.2, step=0.05, highest=1.0) == 1.0
    assert next_entropy_coef(0.1, math.nan, target=0.2, step=0.05, highest=1.0) == 0.1


@pytest.mark.parametrize("place", KlPlace)
def test_the_learner_adapts_the_kls_coefficient_after_each_update(place: KlPlace) -> None:
    settings = {"kl_coef": 0.1, "kl_target": 1e-6, "kl_horizon": 12.0, "kl_in": place}
    student, batch = learner(reference=True, loss=settings), random_batch(seed=0)
    batch = replace(batch, rollout_logprobs_BT=torch.zeros_like(batch.rollout_logprobs_BT))  # likelier than by any reference: KL > 0
    coefs = [update(student, batch)["actor/kl_coef"] for _ in range(3)]
    assert coefs == pytest.approx([0.1, 0.1 * 1.2, 0.1 * 1.2**2])


def test_an_adaptive_entropy_bonus_rests_above_its_target() -> None:
    high = learner(loss={"entropy_coef": 0.1, "entropy_target": 1e-3})
    low = learner(loss={"entropy_coef": 0.1, "entropy_target": 99.0, "entropy_coef_step": 0.02})
    batch = random_batch(seed=0)
    assert [update(high, batch)["actor/entropy_coef"] for _ in range(2)] == [0.1, 0.0]
    assert not high.algorithm.needs_entropy_gradient
    assert [update(low, batch)["actor/entropy_coef"] for _ in range(3)] == pytest.approx([0.1, 0.12, 0.14])


def test_what_adapts_goes_on_where_it_was_saved() -> None:
    settings = {"kl_coef": 0.1, "kl_target": 0.01, "kl_horizon": 50.0, "entropy_target": 99.0, "entropy_coef": 0.01}
    whole, first, second = (learner(reference=True, loss=settings) for _ in range(3))
    batch = random_batch(seed=0)
    expected = [update(whole, batch) for _ in range(4)]
    for _ in range(2):
        update(first, batch)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(first.state_dict())
    for told in expected[2:]:
        got = update(second, batch)
        assert all(got[key] == told[key] for key in ("actor/kl_coef", "actor/entropy_coef", "actor/grad_norm"))
    assert expected[3]["actor/kl_coef"] != expected[2]["actor/kl_coef"]


def test_a_batch_without_tokens_adapts_nothing_and_reports_the_same_keys() -> None:
    settings = {"kl_coef": 0.1, "kl_in": KlPlace.REWARD, "kl_target": 0.1, "entropy_coef": 0.1, "entropy_target": 1.0}
    student = learner(reference=True, loss=settings | {"importance_correction": Correction.TOKEN})
    before = student.algorithm.state_dict()
    metrics = update(student, pack([]))
    assert repr(student.algorithm.state_dict()) == repr(before)
    assert math.isnan(metrics["actor/kl_reward"]) and math.isnan(metrics["training/correction_effective_share"])
    assert set(metrics) == set(update(student, random_batch(seed=0)))


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the loss's state must be of version 1, got 0"):
        Grpo(GrpoConfig()).load_state_dict({"version": 0})
    with pytest.raises(ValueError, match=r"the loss's state must hold version, kl_coef, .*, got version;"):
        Grpo(GrpoConfig()).load_state_dict({"version": 1})
    student = learner()
    state = {key: value for key, value in student.state_dict().items() if key != "algorithm"}
    with pytest.raises(ValueError, match=r"must hold the algorithm's, got none"):
        student.load_state_dict(state)


# Settings that contradict each other ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dual_clip": 1.0}, r"algorithm\.dual_clip must be 0 for none, or > 1, got 1\.0"),
        ({"dual_clip": 3.0, "policy_loss": Surrogate.GSPO}, r"dual_clip must be 0 with algorithm\.policy_loss=gspo, got 3\.0"),
        (
            {"importance_correction": Correction.TOKEN, "policy_loss": Surrogate.GSPO},
            r"importance_correction must be none with algorithm\.policy_loss=gspo, got token: .*; set",
        ),
        ({"importance_cap": 0.5}, r"algorithm\.importance_cap must be >= 1, got 0\.5"),
        ({"cov_low": 5.0}, r"algorithm\.cov_low must be < algorithm\.cov_high, got 5\.0 and 5\.0"),
        ({"cov_share": 0.0}, r"algorithm\.cov_share must be in \(0, 1\], got 0\.0"),
        ({"loss_aggregation": Aggregation.CONSTANT}, r"loss_length must be > 0 with algorithm\.loss_aggregation=constant, got 0; rollout"),
        ({"loss_length": 9}, r"loss_length must be 0 with algorithm\.loss_aggregation=token_mean, got 9; set"),
        ({"kl_target": 0.1}, r"kl_target must be 0 with algorithm\.kl_coef=0\.0, which keeps no reference, got 0\.1; set"),
        ({"kl_in": KlPlace.REWARD}, r"kl_in must be loss with algorithm\.kl_coef=0\.0, which keeps no reference, got reward; set"),
        (
            {"kl_in": KlPlace.REWARD, "kl_coef": 0.1, "kl_estimator": KlEstimator.K2},
            r"kl_estimator must be k3 with algorithm\.kl_in=reward, got k2",
        ),
        ({"entropy_target": 1.0, "entropy_coef": 2.0}, r"entropy_coef must be <= algorithm\.entropy_coef_max=1\.0 .* got 2\.0"),
        ({"kl_horizon": 0.0}, r"algorithm\.kl_horizon must be > 0 and finite, got 0\.0"),
        (
            {"policy_loss": Surrogate.GSPO, "clip_low": 3e-4},
            r"clip_low is read with .*ppo or clip_cov alone, got 0\.0003 .*gspo reads algorithm\.sequence_clip_low",
        ),
        ({"policy_loss": Surrogate.KL_COV, "clip_high": 0.4}, r"clip_high is read with .* alone, got 0\.4 without it$"),
        ({"policy_loss": Surrogate.CISPO, "clip_low": 0.3}, r"clip_low is read with .*ppo or clip_cov alone, got 0\.3 without it$"),
        ({"sequence_clip_high": 0.1}, r"sequence_clip_high is read with algorithm\.policy_loss=gspo alone, got 0\.1"),
        ({"cov_share": 0.1}, r"cov_share is read with algorithm\.policy_loss=clip_cov or kl_cov alone, got 0\.1"),
        ({"policy_loss": Surrogate.KL_COV, "cov_seed": 1}, r"cov_seed is read with algorithm\.policy_loss=clip_cov alone, got 1"),
        ({"kl_cov_coef": 2.0}, r"kl_cov_coef is read with algorithm\.policy_loss=kl_cov alone, got 2\.0"),
        ({"importance_cap": 3.0}, r"importance_cap is read with algorithm\.importance_correction=token alone, got 3\.0"),
        ({"kl_estimator": KlEstimator.K2}, r"kl_estimator is read with algorithm\.kl_coef above 0 alone"),
        ({"kl_coef": 0.1, "kl_horizon": 5.0}, r"kl_horizon is read with algorithm\.kl_target above 0 alone, got 5\.0"),
        ({"entropy_coef": 0.1, "entropy_coef_max": 0.2}, r"entropy_coef_max is read with algorithm\.entropy_target above 0 alone"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolicyLossConfig(**settings)


def test_settings_of_credit_and_critic_that_nothing_reads_are_refused() -> None:
    for kind in (GrpoConfig, RlooConfig, ReinforcePPConfig):
        kind(turn_credit=0.5, turn_discount=0.3)
        with pytest.raises(ValueError, match=r"algorithm\.turn_discount is read with algorithm\.turn_credit above 0 alone, got 0\.3"):
            kind(turn_discount=0.3)
    PpoConfig(turn_discount=0.3)
    PpoConfig(critic=CriticKind.SHARED, value_coef=3.0)
    with pytest.raises(ValueError, match=r"algorithm\.value_coef is read with algorithm\.critic=shared alone, got 3\.0"):
        PpoConfig(value_coef=3.0)


def test_kl_cov_is_refused_where_nothing_moves_before_it_is_asked() -> None:
    message = r"must not be kl_cov with learner\.num_minibatches=1 and learner\.epochs=1, got kl_cov: .*; set learner\.num_minibatches"
    with pytest.raises(ValueError, match=message):
        learner(loss={"policy_loss": Surrogate.KL_COV})
    with pytest.raises(ConfigError, match=message):
        load("smoke", ["algorithm.policy_loss=kl_cov", "learner.num_minibatches=1"])


def test_settings_of_the_loss_are_read_from_words() -> None:
    words = ["policy_loss=gspo", "loss_aggregation=dialogue_mean", "kl_coef=0.1", "kl_in=reward", "kl_target=0.05"]
    config = load("smoke", [f"algorithm.{word}" for word in words]).algorithm
    assert (config.policy_loss, config.loss_aggregation) == (Surrogate.GSPO, Aggregation.DIALOGUE_MEAN)
    assert (config.kl_in, config.kl_target) == (KlPlace.REWARD, 0.05)
    with pytest.raises(ConfigError, match=r"algorithm\.policy_loss must be .*, got 'pop'"):
        load("smoke", ["algorithm.policy_loss=pop"])


# Steps that are not finite ----------------------------------------------------------------------------------------------------------


def why(batch: Batch, student: Learner | None = None, *, advantages: dict[int, float] | None = None) -> str:
    """What the learner says of a step on the batch, whose advantages are broken at some rows."""
    student = student or learner()
    targets = student.algorithm.targets(batch)
    for row, value in (advantages or {}).items():
        targets.advantages_BT[row][batch.loss_mask_BT[row]] = value
    student.update(batch, targets)
    return " | ".join(student.why_skipped)


def test_a_skipped_step_names_the_rollout_whose_figures_are_not_finite() -> None:
    batch = replace(random_batch(seed=0), uids=tuple(f"task-{row}" for row in range(12)))
    assert why(batch) == ""
    assert why(batch, advantages={7: math.inf}).endswith("the advantage of rollout task-7 is not finite")
    rewards_B = batch.rewards_B.clone()
    rewards_B[3] = math.inf
    assert why(replace(batch, rewards_B=rewards_B)).endswith("the reward of rollout task-3 is not finite")
    many = why(batch, advantages=dict.fromkeys(range(5), math.nan))
    assert many.endswith("the advantage of rollout task-0, task-1, task-2 and 2 more is not finite")


def test_a_skipped_step_tells_broken_weights_from_broken_figures() -> None:
    student, batch = learner(), random_batch(seed=0)
    with torch.no_grad():
        student.model.lm_head.weight[5] = math.nan
    reason = why(batch, student)
    assert reason.startswith("the loss was nan") and "what the weights being trained give rollout task (seed 0)" in reason
    assert "Infinity" not in reason and student.num_skipped == 1


def test_a_skipped_step_names_the_parameters_whose_gradient_alone_is_not_finite() -> None:
    student, batch = learner(), random_batch(seed=0)
    name, parameter = next(iter(student.model.named_parameters()))
    handle = parameter.register_hook(lambda gradient: gradient * math.inf)
    reason = why(batch, student)
    handle.remove()
    assert f"the loss is finite, but the gradient of {name} is not" in reason
    assert why(batch, student) == ""


def test_a_batch_names_its_rollouts_by_task_and_seed() -> None:
    assert pack([group(rollout([1, 2], [0, 1]))]).uids == ("task (seed 0)",)
