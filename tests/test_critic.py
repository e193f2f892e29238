"""A critic beside the policy: what it learns, what it leaves alone, and that it goes on where it stopped."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from policy_factories import group, pack, random_batch, random_talks, rollout, tiny_model, tiny_tokenizer

from policy.algorithms.algorithms import Grpo, Ppo
from policy.algorithms.critic import METRICS, Critic, clipped_value_loss
from policy.batch import Batch
from policy.checkpoint import load_checkpoint, save_checkpoint
from policy.config import CriticKind, GrpoConfig, LearnerConfig, PpoConfig
from policy.learner import Learner
from policy.model import load_model

KINDS = list(CriticKind)


def learner(config: PpoConfig | None = None, *, model: torch.nn.Module | None = None, **settings: object) -> Learner:
    config, learner_config, model = config or PpoConfig(), LearnerConfig(**settings), model or tiny_model()
    critic = Critic(config, learner_config, model if config.critic is CriticKind.SHARED else tiny_model())
    return Learner(learner_config, Ppo(config), model, critic=critic)


def train(student: Learner, batches: list[Batch]) -> list[dict[str, float]]:
    return [student.update(batch, student.algorithm.targets(batch, student.values(batch))) for batch in batches]


def talks(seeds: range) -> list[Batch]:
    return [random_talks(seed=seed) for seed in seeds]


def policy_weights(student: Learner) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in student.weights()])


def critic_weights(student: Learner) -> torch.Tensor:
    return torch.cat([tensor.flatten().clone() for tensor in student.critic.state_dict()["weights"].values()])


def critic_gradient(student: Learner) -> torch.Tensor:
    own = [parameter for group in student.critic.optimizer.param_groups for parameter in group["params"]]
    return torch.cat([parameter.grad.flatten() for parameter in own])


def random_head(student: Learner) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        student.critic.head.weight.copy_(torch.randn(student.critic.head.weight.shape, generator=generator) / 10)


def test_value_loss_counts_the_worse_of_the_value_and_the_value_held() -> None:
    values_N = torch.tensor([0.9, 0.9, 0.4, 0.0], requires_grad=True)
    # old .5, held within .2: .7, .7, .4, .3; returns 1, .75, .4, -1
    loss = clipped_value_loss(values_N, torch.full((4,), 0.5), torch.tensor([1.0, 0.75, 0.4, -1.0]), clip=0.2)
    expected = [0.3**2 / 2, 0.15**2 / 2, 0.0, 1.3**2 / 2]
    assert float(loss.total.detach()) == pytest.approx(sum(expected))
    assert float(loss.sums["critic/vf_clipfrac"]) == 2
    assert float(loss.sums["critic/vpred_mean"]) == pytest.approx(2.2)
    loss.total.backward()
    assert values_N.grad.tolist() == pytest.approx([0.0, 0.15, 0.0, 0.0], abs=1e-6)


def test_value_loss_without_a_limit_is_half_the_squared_error() -> None:
    loss = clipped_value_loss(torch.tensor([0.9, 0.0]), torch.zeros(2), torch.tensor([1.0, -1.0]), clip=0.0)
    assert float(loss.total) == pytest.approx(0.01 / 2 + 1 / 2)
    assert float(loss.sums["critic/vf_clipfrac"]) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_reads_what_stood_before_its_token_and_nothing_later(kind: CriticKind) -> None:
    student, batch = learner(PpoConfig(critic=kind)), random_batch(seed=0)
    assert not student.values(batch).any()  # a head that has learned nothing expects nothing
    random_head(student)
    values_BT = student.values(batch)
    assert not values_BT[~batch.loss_mask_BT].any() and values_BT[batch.loss_mask_BT].abs().min() > 0
    row, t = batch.loss_mask_BT.nonzero()[-1].tolist()
    with torch.no_grad():
        states_TD = student.critic.trunk(input_ids=batch.token_ids_BT[row, :t][None]).last_hidden_state[0]
        assert float(student.critic.head(states_TD[-1])) == pytest.approx(float(values_BT[row, t]), abs=1e-5)
    changed = batch.token_ids_BT.clone()
    changed[row, t] = (changed[row, t] + 1) % 61
    again_BT = student.values(replace(batch, token_ids_BT=changed))
    torch.testing.assert_close(again_BT[row, : t + 1], values_BT[row, : t + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_how_a_batch_is_cut_into_micro_batches_changes_nothing(kind: CriticKind) -> None:
    pieces = [{"micro_batch_rows": 100}, {"micro_batch_rows": 1}, {"micro_batch_rows": 3, "micro_batch_tokens": 64}]
    students = [learner(PpoConfig(critic=kind, lam=0.9, turn_credit=0.5), max_grad_norm=1e9, **piece) for piece in pieces]
    for student in students:
        random_head(student)
    metrics = [train(student, talks(range(1)))[0] for student in students]
    for student, measured in zip(students[1:], metrics[1:], strict=True):
        torch.testing.assert_close(critic_gradient(student), critic_gradient(students[0]), rtol=1e-4, atol=1e-6)
        for key in METRICS:
            assert measured[key] == pytest.approx(metrics[0][key], rel=1e-4, abs=1e-6), key
        assert measured["actor/grad_norm"] == pytest.approx(metrics[0]["actor/grad_norm"], rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_learns_to_predict_returns(kind: CriticKind) -> None:
    """The first word tells how a dialogue will end: after some updates most of the returns' variance is explained."""
    student = learner(PpoConfig(critic=kind, critic_lr=1e-2, value_clip=0.0), lr=1e-4)
    rows = [rollout([word, 7, 8, 9, 10], [0, 0, 1, 1, 1], reward=reward) for word, reward in ((3, 0.9), (4, 0.1), (5, 0.6), (6, 0.3))]
    metrics = train(student, [pack([group(*rows)])] * 30)
    assert metrics[0]["critic/vf_explained_var"] == pytest.approx(0.0, abs=1e-6)
    assert metrics[-1]["critic/vf_explained_var"] > 0.9
    assert metrics[-1]["critic/vf_loss"] < 0.1 * metrics[0]["critic/vf_loss"]
    assert metrics[-1]["critic/values/max"] == pytest.approx(0.9, abs=0.25)
    assert metrics[-1]["critic/values/min"] == pytest.approx(0.1, abs=0.25)


@pytest.mark.parametrize("kind", KINDS)
def test_a_critic_whose_layers_are_recomputed_learns_the_same_bits_and_keeps_less(kind: CriticKind) -> None:
    results = []
    for recompute in (False, True):
        student, kept = learner(PpoConfig(critic=kind), gradient_checkpointing=recompute), []
        random_head(student)

        def keep(tensor: torch.Tensor, kept: list[int] = kept) -> torch.Tensor:
            kept.append(tensor.numel())
            return tensor

        batch = random_talks(seed=0)
        targets = student.algorithm.targets(batch, student.values(batch))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            student.critic.judge(batch, targets.returns_BT, targets.values_BT)
        results.append((sum(kept), critic_gradient(student)))
    (kept, gradient), (kept_less, same_gradient) = results
    assert torch.equal(gradient, same_gradient)
    assert kept_less < kept / 2


def test_what_the_policy_learns_is_what_fared_better_than_expected() -> None:
    student = learner(PpoConfig(critic_lr=1e-2), lr=3e-3)
    good, bad = [5, 6, 7, 8], [5, 6, 9, 10]
    batch = pack([group(rollout(good, [0, 0, 1, 1], reward=1.0), rollout(bad, [0, 0, 1, 1], reward=0.0))])
    before = sum(student.score(good)[1:]), sum(student.score(bad)[1:])
    train(student, [batch] * 5)
    assert sum(student.score(good)[1:]) > before[0] + 0.3
    assert sum(student.score(bad)[1:]) < before[1] - 0.3


def test_a_separate_critic_is_no_part_of_the_policy() -> None:
    """Rewards that the critic alone reads: the policy's gradient is that of its own loss."""
    batch = random_talks(seed=0)
    with_critic, without = learner(max_grad_norm=1e9), Learner(LearnerConfig(max_grad_norm=1e9), Grpo(GrpoConfig()), tiny_model())
    targets = with_critic.algorithm.targets(batch, with_critic.values(batch))
    with_critic.update(batch, targets)
    without.update(batch, targets)
    assert torch.equal(policy_weights(with_critic), policy_weights(without))
    assert [name for name, _ in with_critic.weights()] == [name for name, _ in without.weights()]


def test_a_shared_critic_pulls_at_the_policys_layers_by_its_coefficient() -> None:
    batch = random_talks(seed=0)
    gradients = {}
    for coef in (1e-9, 0.5, 1.0):
        student = learner(PpoConfig(critic=CriticKind.SHARED, value_coef=coef), max_grad_norm=1e9)
        random_head(student)
        train(student, [batch])
        gradients[coef] = torch.cat([parameter.grad.flatten() for parameter in student.model.parameters()])
    pull = gradients[1.0] - gradients[1e-9]
    assert float(pull.norm()) > 1e-3
    torch.testing.assert_close(gradients[0.5] - gradients[1e-9], pull / 2, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", [True, False])
def test_in_the_warm_up_the_critic_learns_alone(kind: CriticKind, recompute: bool) -> None:
    student = learner(PpoConfig(critic=kind, critic_warmup_steps=2), num_minibatches=2, recompute_logprobs=recompute)
    before, metrics = policy_weights(student), []
    for seed in range(2):
        critic_before = critic_weights(student)
        metrics += train(student, talks(range(seed, seed + 1)))
        assert not torch.equal(critic_weights(student), critic_before)
    assert torch.equal(policy_weights(student), before)
    assert student.policy_version == student.num_steps == 0
    assert all(math.isfinite(measured["actor/entropy"]) and math.isnan(measured["actor/pg_loss"]) for measured in metrics)
    assert metrics[1]["critic/vf_loss"] > 0
    train(student, talks(range(2, 3)))
    assert student.policy_version == 1 and not torch.equal(policy_weights(student), before)


@pytest.mark.parametrize("target", [1e-3, 99.0])
def test_a_coefficient_rests_while_the_policy_does(target: float) -> None:
    student = learner(PpoConfig(critic_warmup_steps=3, entropy_coef=0.02, entropy_target=target, entropy_coef_step=0.005))
    metrics = train(student, talks(range(5)))
    assert [measured["training/policy_version"] for measured in metrics] == [0.0, 0.0, 0.0, 1.0, 2.0]
    # Above its target entropy needs no bonus: the coefficient then rests at 0.
    moved = 0.025 if target > 1 else 0.0
    assert [measured["actor/entropy_coef"] for measured in metrics] == pytest.approx([0.02] * 4 + [moved])


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(kind: CriticKind, tmp_path: Path) -> None:
    """The warm-up ends after the checkpoint, so that its count must come back too."""
    config = PpoConfig(critic=kind, critic_warmup_steps=3, lam=0.9, turn_credit=0.3)
    settings = {"num_minibatches": 2, "warmup_steps": 3}
    whole, first = learner(config, **settings), learner(config, **settings)
    expected = train(whole, talks(range(6)))
    train(first, talks(range(2)))
    state = {"learner": first.state_dict()}
    folder = save_checkpoint(tmp_path / "checkpoints" / "step_2", model=first.model, tokenizer=tiny_tokenizer(), state=state)

    second = learner(config, model=load_model(folder)[0], **settings)
    second.load_state_dict(load_checkpoint(folder).state["learner"])
    metrics = train(second, talks(range(2, 6)))
    assert torch.equal(policy_weights(second), policy_weights(whole))
    assert torch.equal(critic_weights(second), critic_weights(whole))
    for key in METRICS:
        assert [measured[key] for measured in metrics] == [measured[key] for measured in expected[2:]], key


def test_the_policys_folder_holds_nothing_of_the_critic(tmp_path: Path) -> None:
    plain, student = Learner(LearnerConfig(), Grpo(GrpoConfig()), tiny_model()), learner()
    folders = []
    for name, each in (("plain", plain), ("ppo", student)):
        path = tmp_path / name / "checkpoints" / "step_1"
        folders.append(save_checkpoint(path, model=each.model, tokenizer=tiny_tokenizer(), state={"learner": each.state_dict()}))
    first, second = ({path.name for path in folder.iterdir()} for folder in folders)
    assert first == second
    for name in ("model.safetensors", "config.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes(), name


def test_state_of_another_critic_is_refused() -> None:
    state = learner().state_dict()
    with pytest.raises(ValueError, match=r"must be of algorithm\.critic=shared, got separate"):
        learner(PpoConfig(critic=CriticKind.SHARED)).load_state_dict(state)
    with pytest.raises(ValueError, match="must hold a critic's exactly where the algorithm needs one"):
        Learner(LearnerConfig(), Grpo(GrpoConfig()), tiny_model()).load_state_dict(state)
    foreign = copy.deepcopy(state)
    foreign["critic"]["weights"]["head.weight"] = torch.zeros(1, 7)
    with pytest.raises(ValueError, match="the critic's state must belong to the same model"):
        learner().load_state_dict(foreign)


def test_a_critic_that_is_no_number_spares_both_and_three_in_a_row_stop_the_run() -> None:
    student, batch = learner(), random_talks(seed=0)
    before = policy_weights(student), critic_weights(student)
    targets = student.algorithm.targets(batch, student.values(batch))
    broken = replace(targets, returns_BT=torch.full_like(targets.returns_BT, math.nan))
    assert [student.update(batch, broken)["training/skipped_steps"] for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(RuntimeError, match=r"skipped 3 optimiser steps in a row .* the critic's loss was nan"):
        student.update(batch, broken)
    assert torch.equal(policy_weights(student), before[0]) and torch.equal(critic_weights(student), before[1])


def test_an_empty_batch_teaches_a_critic_nothing_and_reports_the_same_keys() -> None:
    student = learner(PpoConfig(critic_warmup_steps=1))
    (metrics,) = train(student, [pack([])])
    assert student.critic.num_updates == 0
    assert math.isnan(metrics["critic/vf_explained_var"])
    assert set(metrics) == set(train(student, talks(range(1)))[0]) and set(METRICS) <= set(metrics)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.0}, r"algorithm\.gamma must be in \(0, 1\], got 0\.0; 1 does not discount"),
        ({"gamma": 1.01}, r"algorithm\.gamma must be in \(0, 1\], got 1\.01"),
        ({"lam": -0.1}, r"algorithm\.lam must be in \[0, 1\], got -0\.1"),
        ({"lam": math.nan}, r"algorithm\.lam must be in \[0, 1\], got nan"),
        ({"critic_lr": 0.0}, r"algorithm\.critic_lr must be > 0, got 0\.0"),
        ({"value_coef": -1.0}, r"algorithm\.value_coef must be > 0, got -1\.0"),
        ({"critic_warmup_steps": -1}, r"algorithm\.critic_warmup_steps must be >= 0, got -1"),
        ({"value_clip": -0.2}, r"algorithm\.value_clip must be >= 0, got -0\.2"),
        ({"turn_credit": 1.5}, r"algorithm\.turn_credit must be in \[0, 1\], got 1\.5"),
        ({"clip_low": 1.0}, r"algorithm\.clip_low must be in \(0, 1\), got 1\.0"),
        ({"kind": "grpo"}, r"algorithm\.kind must be 'ppo' here, got 'grpo'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PpoConfig(**settings)
