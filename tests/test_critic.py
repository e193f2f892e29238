"""A critic: what it reads, what it learns, and that neither model disturbs the other where it should not."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from policy_factories import gradient_of, group, random_batch, random_talks, rollout, tiny_model, tiny_tokenizer, update, weights_of

from policy.algorithms.algorithms import Grpo, Ppo
from policy.algorithms.critic import METRICS, Critic
from policy.batch import Batch, collate
from policy.checkpoint import load_checkpoint, save_checkpoint
from policy.config import CriticKind, GrpoConfig, LearnerConfig, PpoConfig
from policy.learner import Learner
from policy.model import load_model

KINDS = pytest.mark.parametrize("kind", CriticKind)


def learner(config: PpoConfig | None = None, *, model: torch.nn.Module | None = None, **settings: object) -> Learner:
    config, learner_config, model = config or PpoConfig(), LearnerConfig(**settings), model or tiny_model()
    critic = Critic(config, learner_config, model if config.critic is CriticKind.SHARED else tiny_model())
    return Learner(learner_config, Ppo(config), model, critic=critic)


def train(student: Learner, seeds: range) -> list[dict[str, float]]:
    return [update(student, random_talks(seed=seed)) for seed in seeds]


def with_advantages(student: Learner, batch: Batch) -> Batch:
    return student.algorithm.add_advantages(student.prepare(batch))


def critic_weights(student: Learner) -> torch.Tensor:
    return torch.cat([tensor.flatten().clone() for tensor in student.critic.state_dict()["weights"].values()])


def critic_gradient(student: Learner) -> torch.Tensor:
    own = [parameter for group in student.critic.optimizer.param_groups for parameter in group["params"]]
    return torch.cat([parameter.grad.flatten() for parameter in own])


def random_head(student: Learner) -> Learner:
    weight = student.critic.head.weight
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) / 10)
    return student


def constant_critic(value: float, *, old: list[float], returns: list[float], clip: float = 0.0) -> tuple[Learner, dict[str, float]]:
    """A critic that expects `value` everywhere, after its backward pass over a dialogue of these tokens; and its metrics."""
    student, batch = learner(PpoConfig(value_clip=clip)), collate([group(rollout([1] * (len(old) + 1), [0] + [1] * len(old)))])
    with torch.no_grad():
        student.critic.head.bias.fill_(value)
    columns = ({"values_BT": old}, {"returns_BT": returns})
    batch = replace(batch, **{name: torch.tensor([[0.0, *column]]) for each in columns for name, column in each.items()})
    assert student.critic.backward(batch) == ""
    return student, student.critic.finish_update(batch)


def test_the_value_loss_counts_the_worse_of_the_value_and_the_value_held() -> None:
    # 0.9, held within 0.2 of 0.5, 0.5, 1.2 and 0.9: 0.7, 0.7, 1.0, 0.9; returns 1, 0.75, 2, 1
    student, metrics = constant_critic(0.9, old=[0.5, 0.5, 1.2, 0.9], returns=[1.0, 0.75, 2.0, 1.0], clip=0.2)
    assert metrics["critic/vf_loss"] == pytest.approx((0.3**2 + 0.15**2 + 1.1**2 + 0.1**2) / 2 / 4)
    assert metrics["critic/vf_clipfrac"] == 0.25 and metrics["critic/vpred_mean"] == pytest.approx(0.9)
    # of a value that is held nothing; of the others value - return
    assert float(student.critic.head.bias.grad) == pytest.approx((0.15 - 1.1 - 0.1) / 4)
    _, metrics = constant_critic(0.9, old=[0.0, 0.0], returns=[1.0, -1.0])
    assert metrics["critic/vf_loss"] == pytest.approx((0.1**2 + 1.9**2) / 2 / 2) and metrics["critic/vf_clipfrac"] == 0.0


def test_explained_variance_is_that_of_the_values_before_the_update() -> None:
    def explained(old: list[float], returns: list[float]) -> float:
        return constant_critic(0.0, old=old, returns=returns)[1]["critic/vf_explained_var"]

    returns = [0.0, 1.0, 2.0, 3.0]
    assert explained(returns, returns) == 1.0 and explained([9.0] * 4, returns) == pytest.approx(0.0)
    assert explained([0.5, 0.5, 1.5, 3.5], returns) == pytest.approx(1 - 0.25 / 1.25)
    assert math.isnan(explained(returns, [1.0] * 4))


@KINDS
def test_a_value_reads_the_tokens_before_its_own_and_nothing_later(kind: CriticKind) -> None:
    student, batch = learner(PpoConfig(critic=kind)), random_batch(seed=0)
    assert not student.critic.values(batch).any()  # an untrained head expects nothing
    values_BT = random_head(student).critic.values(batch)
    assert not values_BT[~batch.loss_mask_BT].any() and values_BT[batch.loss_mask_BT].abs().min() > 0
    row, t = batch.loss_mask_BT.nonzero()[-1].tolist()
    with torch.no_grad():
        states_TD = student.critic.trunk(input_ids=batch.token_ids_BT[row, :t][None]).last_hidden_state[0]
        assert float(student.critic.head(states_TD[-1])) == pytest.approx(float(values_BT[row, t]), abs=1e-5)


@KINDS
def test_the_cut_into_micro_batches_changes_nothing(kind: CriticKind) -> None:
    pieces = [{"micro_batch_rows": 100}, {"micro_batch_rows": 3, "micro_batch_tokens": 64}]
    students = [random_head(learner(PpoConfig(critic=kind, lam=0.9, turn_credit=0.5), max_grad_norm=1e9, **piece)) for piece in pieces]
    whole, cut = (train(student, range(1))[0] for student in students)
    torch.testing.assert_close(critic_gradient(students[1]), critic_gradient(students[0]), rtol=1e-4, atol=1e-6)
    for key in (*METRICS, "actor/grad_norm"):
        assert cut[key] == pytest.approx(whole[key], rel=1e-4, abs=1e-6), key


@KINDS
def test_a_critic_learns_to_predict_returns(kind: CriticKind) -> None:
    """The first word decides how a dialogue will end: after some updates most of the returns' variance is explained."""
    student = learner(PpoConfig(critic=kind, critic_lr=1e-2, value_clip=0.0), lr=1e-4)
    rows = [rollout([word, 7, 8, 9, 10], [0, 0, 1, 1, 1], reward=reward) for word, reward in ((3, 0.9), (4, 0.1), (5, 0.6), (6, 0.3))]
    metrics = [update(student, collate([group(*rows)])) for _ in range(30)]
    assert metrics[0]["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-6)
    assert metrics[-1]["critic/vf_explained_var"] > 0.9 and metrics[-1]["critic/vf_loss"] < 0.1 * metrics[0]["critic/vf_loss"]
    assert (metrics[-1]["critic/values/max"], metrics[-1]["critic/values/min"]) == pytest.approx((0.9, 0.1), abs=0.25)


def test_a_separate_critic_is_no_part_of_the_policy() -> None:
    with_critic, without = learner(max_grad_norm=1e9), Learner(LearnerConfig(max_grad_norm=1e9), Grpo(GrpoConfig()), tiny_model())
    batch = with_advantages(with_critic, random_talks(seed=0))
    with_critic.update(batch)
    without.update(batch)
    assert torch.equal(weights_of(with_critic), weights_of(without))


def test_a_shared_critic_pulls_at_the_policys_layers_by_its_coefficient() -> None:
    gradients = {}
    for coef in (1e-9, 0.5, 1.0):
        student = random_head(learner(PpoConfig(critic=CriticKind.SHARED, value_coef=coef), max_grad_norm=1e9))
        train(student, range(1))
        gradients[coef] = gradient_of(student)
    pull = gradients[1.0] - gradients[1e-9]
    assert float(pull.norm()) > 1e-3
    torch.testing.assert_close(gradients[0.5] - gradients[1e-9], pull / 2, rtol=1e-3, atol=1e-6)


@KINDS
def test_in_the_warm_up_the_critic_learns_alone(kind: CriticKind) -> None:
    student = learner(PpoConfig(critic=kind, critic_warmup_steps=2), num_minibatches=2, recompute_logprobs=kind is CriticKind.SHARED)
    before, metrics = weights_of(student), []
    for seed in range(2):
        critic_before = critic_weights(student)
        metrics += train(student, range(seed, seed + 1))
        assert not torch.equal(critic_weights(student), critic_before)
    assert torch.equal(weights_of(student), before) and student.policy_version == student.num_steps == 0
    assert all(math.isfinite(measured["actor/entropy"]) and math.isnan(measured["actor/pg_loss"]) for measured in metrics)
    train(student, range(2, 3))
    assert student.policy_version == 1 and not torch.equal(weights_of(student), before)


def test_coefficients_rest_while_the_policy_does() -> None:
    student = learner(PpoConfig(critic_warmup_steps=1, entropy_coef=0.02, entropy_target=99.0, entropy_coef_step=0.005))
    metrics = train(student, range(3))
    assert [measured["training/policy_version"] for measured in metrics] == [0.0, 1.0, 2.0]
    assert [measured["actor/entropy_coef"] for measured in metrics] == pytest.approx([0.02, 0.02, 0.025])


@KINDS
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(kind: CriticKind, tmp_path: Path) -> None:
    """The warm-up ends after the checkpoint, so that its count must come back too; and the folder holds nothing of the critic."""
    config, settings = PpoConfig(critic=kind, critic_warmup_steps=3, lam=0.9, turn_credit=0.3), {"num_minibatches": 2, "warmup_steps": 3}
    whole, first = learner(config, **settings), learner(config, **settings)
    expected = train(whole, range(5))
    train(first, range(2))
    state = {"learner": first.state_dict()}
    folder = save_checkpoint(tmp_path / "checkpoints" / "step_2", model=first.model, tokenizer=tiny_tokenizer(), state=state)
    model, _ = load_model(folder)
    second = learner(config, model=model, **settings)
    second.load_state_dict(load_checkpoint(folder)["learner"])
    metrics = train(second, range(2, 5))
    assert torch.equal(weights_of(second), weights_of(whole)) and torch.equal(critic_weights(second), critic_weights(whole))
    for key in METRICS:
        assert [measured[key] for measured in metrics] == [measured[key] for measured in expected[2:]], key
    other = CriticKind.SHARED if kind is CriticKind.SEPARATE else CriticKind.SEPARATE
    with pytest.raises(ValueError, match=r"algorithm\.critic"):
        learner(PpoConfig(critic=other)).critic.load_state_dict(first.critic.state_dict())


def test_a_critic_that_is_not_finite_spares_both_models_and_three_in_a_row_stop_the_run() -> None:
    student = learner()
    before, batch = (weights_of(student), critic_weights(student)), with_advantages(student, random_talks(seed=0))
    broken = replace(batch, returns_BT=torch.full_like(batch.returns_BT, math.nan))
    for _ in range(2):
        student.update(broken)
    with pytest.raises(RuntimeError, match=r"skipped 3 optimiser steps in a row .* the critic's loss was nan"):
        student.update(broken)
    assert torch.equal(weights_of(student), before[0]) and torch.equal(critic_weights(student), before[1])
