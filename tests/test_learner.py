"""An optimiser step: what it depends on, what it reports, and when it is not taken."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from policy_factories import group, pack, random_batch, rollout, tiny_model

from policy.algorithms.algorithms import Grpo
from policy.algorithms.loss import TRACE_METRICS
from policy.batch import Targets
from policy.config import Aggregation, GrpoConfig, LearnerConfig
from policy.diagnosis import naming_settings_for_memory
from policy.learner import METRICS, Learner
from policy.model import token_logprobs_and_entropy


def learner(*, algorithm: Grpo | None = None, seed: int = 0, reference: bool = False, **settings: object) -> Learner:
    return Learner(
        LearnerConfig(**settings),
        algorithm or Grpo(GrpoConfig()),
        tiny_model(seed=seed),
        reference=tiny_model(seed=seed + 1) if reference else None,
    )


def train(student: Learner, *, seeds: range = range(1)) -> list[dict[str, float]]:
    batches = [random_batch(seed=seed) for seed in seeds]
    return [student.update(batch, student.algorithm.targets(batch)) for batch in batches]


def weights(student: Learner) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in student.weights()])


def gradient(student: Learner) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in student.model.parameters()])


@pytest.mark.parametrize("algorithm", [GrpoConfig(), GrpoConfig(kl_coef=0.3, entropy_coef=0.1)])
def test_how_a_batch_is_cut_into_micro_batches_changes_nothing(algorithm: GrpoConfig) -> None:
    pieces = [{"micro_batch_rows": 100}, {"micro_batch_rows": 1}, {"micro_batch_rows": 3, "micro_batch_tokens": 64}]
    students = [learner(algorithm=Grpo(algorithm), reference=True, max_grad_norm=1e9, **piece) for piece in pieces]
    metrics = [train(student)[0] for student in students]
    for student, measured in zip(students[1:], metrics[1:], strict=True):
        torch.testing.assert_close(gradient(student), gradient(students[0]), rtol=1e-4, atol=1e-6)
        for key in METRICS:
            assert measured[key] == pytest.approx(metrics[0][key], rel=1e-4, abs=1e-6, nan_ok=True), key


def test_gradient_is_that_of_the_mean_over_all_trained_tokens() -> None:
    student, twin, batch = learner(max_grad_norm=1e9), tiny_model(), random_batch(seed=0)
    targets = student.algorithm.targets(batch)
    student.update(batch, targets)
    logprobs_N, _ = token_logprobs_and_entropy(twin, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)
    (-(targets.advantages_BT[batch.loss_mask_BT] * logprobs_N).sum() / batch.num_trained).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in twin.parameters()])
    torch.testing.assert_close(gradient(student), expected, rtol=1e-4, atol=1e-6)


def test_training_raises_what_was_rewarded_and_lowers_what_was_not() -> None:
    student = learner(lr=3e-3)
    good, bad = [5, 6, 7, 8], [5, 6, 9, 10]
    batch = pack([group(rollout(good, [0, 0, 1, 1], reward=1.0), rollout(bad, [0, 0, 1, 1], reward=0.0))])
    before = sum(student.score(good)[1:]), sum(student.score(bad)[1:])
    for _ in range(5):
        student.update(batch, student.algorithm.targets(batch))
    assert sum(student.score(good)[1:]) > before[0] + 0.5
    assert sum(student.score(bad)[1:]) < before[1] - 0.5


def test_one_pass_in_one_step_is_strictly_on_policy() -> None:
    metrics = train(learner())[0]
    assert metrics["actor/ratio_max"] == 1.0
    assert metrics["actor/approx_kl"] == metrics["actor/clip_fraction"] == 0.0


def test_further_steps_on_a_batch_are_compared_with_the_weights_before_it() -> None:
    student = learner(num_minibatches=2, epochs=2, lr=1e-2)
    metrics = train(student)[0]
    assert student.num_steps == 4
    assert student.policy_version == 1
    assert metrics["actor/approx_kl"] > 1e-4
    assert metrics["actor/ratio_max"] > 1.01


def test_mismatch_and_entropy_are_those_before_the_update_however_many_steps_it_has() -> None:
    one, many = train(learner())[0], train(learner(num_minibatches=3, epochs=2, lr=1e-2))[0]
    for key in ("actor/entropy", "actor/entropy_sampled", "training/mismatch_kl", "training/rollout_logprob_abs_diff_max"):
        assert many[key] == pytest.approx(one[key], rel=1e-5), key


def test_what_needs_all_tokens_at_once_is_of_the_weights_before_the_update_too() -> None:
    one, many = train(learner())[0], train(learner(num_minibatches=3, epochs=2, lr=1e-2))[0]
    for key in TRACE_METRICS:
        assert many[key] == pytest.approx(one[key], rel=1e-4), key
    assert one["actor/entropy_forking"] > one["actor/entropy"] and 0.0 < one["training/effective_share"] < 1.0


def test_no_mismatch_with_logprobs_of_the_same_weights() -> None:
    student, batch = learner(), random_batch(seed=0)
    with torch.no_grad():
        logprobs_N, entropies_N = token_logprobs_and_entropy(student.model, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)
    batch.rollout_logprobs_BT[batch.loss_mask_BT] = logprobs_N
    metrics = student.update(batch, student.algorithm.targets(batch))
    assert metrics["training/rollout_logprob_abs_diff_mean"] < 1e-6
    assert metrics["training/rollout_logprob_abs_diff_max"] < 1e-5
    assert metrics["training/mismatch_kl"] < 1e-10
    assert metrics["actor/entropy"] == pytest.approx(float(entropies_N.mean()), abs=1e-5)
    assert metrics["actor/entropy_sampled"] == pytest.approx(-float(logprobs_N.mean()), abs=1e-5)


def test_without_recomputing_the_engines_logprobs_are_the_old_ones() -> None:
    students = [learner(num_minibatches=2, lr=1e-2, recompute_logprobs=recompute) for recompute in (True, False)]
    batch = random_batch(seed=0)
    with torch.no_grad():
        batch.rollout_logprobs_BT[batch.loss_mask_BT], _ = token_logprobs_and_entropy(
            students[0].model, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT
        )
    recomputed, taken = (student.update(batch, student.algorithm.targets(batch)) for student in students)
    for key in ("actor/pg_loss", "actor/approx_kl", "actor/ratio_max", "actor/grad_norm"):
        assert taken[key] == pytest.approx(recomputed[key], rel=1e-3, abs=1e-6), key
    assert taken["training/rollout_logprob_abs_diff_max"] < 1e-5
    batch.rollout_logprobs_BT[batch.loss_mask_BT] -= 0.1
    far = students[1].update(batch, students[1].algorithm.targets(batch))
    assert far["training/rollout_logprob_abs_diff_mean"] > 0.05
    assert far["actor/ratio_mean"] > 1.02


def test_without_recomputing_tokens_of_older_weights_keep_the_logprobs_they_were_sampled_with() -> None:
    batch = random_batch(seed=0)
    with torch.no_grad():
        logprobs_N, _ = token_logprobs_and_entropy(tiny_model(), batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)
    batch.rollout_logprobs_BT[batch.loss_mask_BT] = logprobs_N - 0.5
    own, older = learner(recompute_logprobs=False), learner(recompute_logprobs=False)
    older.policy_version = 2
    metrics = [student.update(batch, student.algorithm.targets(batch)) for student in (own, older)]
    assert metrics[0]["actor/ratio_mean"] == metrics[0]["actor/ratio_max"] == 1.0
    assert metrics[1]["actor/ratio_mean"] == pytest.approx(math.exp(0.5), rel=1e-4) and metrics[1]["actor/clip_fraction"] > 0.0
    # How far the engine was from the weights before the update is told either way.
    assert [told["training/rollout_logprob_abs_diff_mean"] for told in metrics] == pytest.approx([0.5, 0.5], rel=1e-4)


@pytest.mark.parametrize(("num_rows", "sizes"), [(9, [3, 2, 2, 2]), (10, [3, 3, 2, 2]), (3, [1, 1, 1])])
def test_minibatches_are_as_many_as_asked_for_and_of_nearly_one_size(num_rows: int, sizes: list[int]) -> None:
    batch = pack([group(*(rollout([1, 2, 3], [0, 0, 1], reward=float(i)) for i in range(num_rows)))])
    assert [len(rows_R) for rows_R in learner(num_minibatches=4)._minibatches(batch)] == sizes


def test_score_agrees_with_the_models_own_logits() -> None:
    student, token_ids = learner(), [4, 9, 2, 33, 17]
    with torch.no_grad():
        log_p_TV = student.model(input_ids=torch.tensor([token_ids])).logits[0].log_softmax(-1)
    expected = [float(log_p_TV[t - 1, token_ids[t]]) for t in range(1, 5)]
    assert student.score(token_ids) == pytest.approx(expected, abs=1e-5)


def test_kl_to_the_reference_is_reported_and_pulls_towards_it() -> None:
    free, held = learner(reference=True, lr=3e-3), learner(algorithm=Grpo(GrpoConfig(kl_coef=10.0)), reference=True, lr=3e-3)
    assert train(free)[0]["actor/kl_loss"] == pytest.approx(train(held)[0]["actor/kl_loss"])
    batch = random_batch(seed=0)
    still = Targets(advantages_BT=torch.zeros_like(batch.rollout_logprobs_BT))
    kls = [held.update(batch, still)["actor/kl_loss"] for _ in range(10)]
    assert kls[-1] < 0.9 * kls[0]


def test_kl_is_not_a_number_without_a_reference() -> None:
    assert math.isnan(train(learner())[0]["actor/kl_loss"])


def test_kl_in_the_loss_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match=r"algorithm\.kl_coef must be 0 without a reference"):
        learner(algorithm=Grpo(GrpoConfig(kl_coef=0.1)))


@pytest.mark.parametrize("device", ["cuda:99", "abacus"])
def test_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=rf"learner\.device must be a device of this machine, got '{device}'"):
        learner(device=device)


def test_step_size_grows_over_the_warm_up() -> None:
    metrics = train(learner(lr=1.0e-3, warmup_steps=3), seeds=range(5))
    assert [measured["actor/lr"] for measured in metrics] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])


def test_gradient_is_clipped_and_its_norm_reported_unclipped() -> None:
    loose, tight = learner(max_grad_norm=1e9), learner(max_grad_norm=1e-3)
    norms = train(loose)[0]["actor/grad_norm"], train(tight)[0]["actor/grad_norm"]
    assert norms[0] == norms[1] == pytest.approx(float(gradient(loose).norm()), rel=1e-5)
    assert float(gradient(tight).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_empty_batch_changes_nothing_and_reports_the_same_keys() -> None:
    student = learner()
    before, batch = weights(student), pack([])
    metrics = student.update(batch, student.algorithm.targets(batch))
    assert torch.equal(weights(student), before)
    assert student.policy_version == 0
    assert math.isnan(metrics["actor/entropy"])
    assert set(metrics) == set(train(student)[0])


def test_three_steps_in_a_row_without_a_finite_gradient_stop_the_run_and_spare_the_weights() -> None:
    student, batch = learner(), random_batch(seed=0)
    before = weights(student)
    broken = Targets(advantages_BT=torch.full_like(batch.rollout_logprobs_BT, math.nan))
    assert [student.update(batch, broken)["training/skipped_steps"] for _ in range(2)] == [1.0, 2.0]
    assert student.policy_version == 0
    with pytest.raises(RuntimeError, match=r"skipped 3 optimiser steps in a row .* the loss was nan"):
        student.update(batch, broken)
    assert torch.equal(weights(student), before)


def test_steps_that_are_skipped_within_one_update_are_told_with_all_their_reasons() -> None:
    student = learner(num_minibatches=8)
    batch = replace(random_batch(seed=0), uids=tuple(f"task-{row}" for row in range(12)))
    targets = student.algorithm.targets(batch)
    with torch.no_grad():
        student.model.lm_head.weight.fill_(math.nan)
    with pytest.raises(RuntimeError, match="skipped 3 optimiser steps in a row") as caught:
        student.update(batch, targets)
    assert len(student.why_skipped) == len(set(student.why_skipped)) == 3
    assert all(reason in str(caught.value) for reason in student.why_skipped)


def test_a_good_step_between_broken_ones_starts_the_count_again() -> None:
    student, batch = learner(), random_batch(seed=0)
    good = student.algorithm.targets(batch)
    broken = Targets(advantages_BT=torch.full_like(batch.rollout_logprobs_BT, math.inf))
    for targets in (broken, broken, good, broken, broken):
        student.update(batch, targets)
    assert (student.num_skipped, student.num_steps, student.policy_version) == (4, 1, 1)


def test_same_seed_gives_the_same_weights_bit_for_bit() -> None:
    first, second = learner(num_minibatches=2), learner(num_minibatches=2)
    train(first, seeds=range(3))
    train(second, seeds=range(3))
    assert torch.equal(weights(first), weights(second))


def test_restored_learner_goes_on_bit_for_bit() -> None:
    whole, first = learner(num_minibatches=2, warmup_steps=3), learner(num_minibatches=2, warmup_steps=3)
    train(whole, seeds=range(4))
    train(first, seeds=range(2))
    second = learner(num_minibatches=2, warmup_steps=3)
    second.model.load_state_dict(copy.deepcopy(first.model.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    metrics = train(second, seeds=range(2, 4))
    assert second.policy_version == 4
    assert metrics[-1]["actor/lr"] == whole.config.lr
    assert torch.equal(weights(second), weights(whole))


def test_state_of_another_model_is_refused() -> None:
    other = Learner(LearnerConfig(), Grpo(GrpoConfig()), tiny_model(hidden_size=16))
    with pytest.raises(ValueError, match="must belong to the same model"):
        learner().load_state_dict(other.state_dict())


def test_handed_out_weights_do_not_change_with_the_next_update() -> None:
    student = learner()
    handed_out = student.weights()
    kept = [tensor.clone() for _, tensor in handed_out]
    train(student)
    assert all(torch.equal(a, b) for (_, a), b in zip(handed_out, kept, strict=True))
    assert len(handed_out) == len(list(student.model.named_parameters()))


def test_temperature_of_sampling_is_that_of_training() -> None:
    batch = random_batch(seed=0)
    hot = Learner(LearnerConfig(), Grpo(GrpoConfig()), tiny_model(), temperature=2.0)
    assert hot.update(batch, hot.algorithm.targets(batch))["actor/entropy"] > train(learner())[0]["actor/entropy"]


def test_bf16_stays_close_to_fp32() -> None:
    exact, rough = train(learner())[0], train(learner(autocast=True))[0]
    assert rough["actor/entropy"] == pytest.approx(exact["actor/entropy"], abs=0.05)
    assert rough["actor/entropy"] != exact["actor/entropy"]


@pytest.mark.parametrize("aggregation", Aggregation)
def test_broken_rows_train_nothing(aggregation: Aggregation) -> None:
    loss = {"loss_aggregation": aggregation, "loss_length": 50 if aggregation is Aggregation.CONSTANT else 0}
    student, fewer = (learner(algorithm=Grpo(GrpoConfig(**loss)), max_grad_norm=1e9) for _ in range(2))
    batch = random_batch(seed=0)
    valid_B = torch.arange(batch.num_rollouts) >= 4
    broken = replace(batch, valid_B=valid_B, loss_mask_BT=batch.loss_mask_BT & valid_B[:, None])
    kept = batch.rows(torch.arange(4, batch.num_rollouts))
    student.update(broken, student.algorithm.targets(broken))
    fewer.update(kept, fewer.algorithm.targets(kept))
    torch.testing.assert_close(gradient(student), gradient(fewer), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, r"learner\.lr must be > 0 and finite, got 0\.0"),
        ({"max_grad_norm": math.nan}, r"learner\.max_grad_norm must be > 0 and finite, got nan"),
        ({"beta2": 1.0}, r"learner\.beta2 must be in \[0, 1\), got 1\.0"),
        ({"warmup_steps": -1}, r"learner\.warmup_steps must be >= 0, got -1"),
        ({"epochs": 0}, r"learner\.epochs must be >= 1, got 0"),
        ({"micro_batch_rows": 0}, r"learner\.micro_batch_rows must be >= 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearnerConfig(**settings)


def test_the_step_size_falls_with_the_budget() -> None:
    student, batch = learner(lr=1e-3, lr_end=0.2), random_batch(seed=0)
    rates = [student.update(batch, student.algorithm.targets(batch), spent=spent)["actor/lr"] for spent in (0.0, 0.5, 1.0, 1.1)]
    assert rates == pytest.approx([1e-3, 0.6e-3, 0.2e-3, 0.2e-3])


OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free."


@pytest.mark.parametrize("part", ["update", "with_reference"])
def test_a_gpu_that_is_too_small_is_told_with_the_settings_that_take_less(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    student, batch = learner(reference=part == "with_reference", micro_batch_tokens=4096), random_batch(seed=0)

    def forward(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    model = student.model if part == "update" else student.reference
    assert model is not None
    monkeypatch.setattr(model.base_model, "forward", forward)
    with pytest.raises(RuntimeError) as caught:
        student.update(batch, student.algorithm.targets(batch)) if part == "update" else student.with_reference(batch)
    assert type(caught.value) is RuntimeError and str(caught.value) == (
        "learner.micro_batch_tokens must be such that an update fits into the memory of cpu, got 4096 "
        "(CUDA out of memory. Tried to allocate 2.00 GiB); lower it, learner.micro_batch_rows=8 or learner.logit_chunk_mb=64, "
        "set learner.gradient_checkpointing=true, or lower policy.gpu_memory_share where engines are on the same GPU, and go on, or train "
        "adapters in a new run (policy.lora.rank)"
    )


def test_settings_that_are_on_already_are_no_remedy_and_other_errors_stay_as_they_are() -> None:
    adapted = torch.nn.ModuleDict({"lora_A": torch.nn.Linear(1, 1)})
    thrifty = LearnerConfig(gradient_checkpointing=True)
    with (
        pytest.raises(RuntimeError, match=r"logit_chunk_mb=64, or lower .* same GPU, and go on$"),
        naming_settings_for_memory(thrifty, adapted),
    ):
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)
    with pytest.raises(RuntimeError, match=r"^another$"), naming_settings_for_memory(thrifty, adapted):
        raise RuntimeError("another")
