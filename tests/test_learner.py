"""An optimiser step: what it depends on, what it reports, and when it is not taken."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from policy_factories import gradient_of, group, random_batch, rollout, tiny_model, update, weights_of
from token_indicators import chi_square, effective_share, forking_entropy, k1, logprob_advantage_covariance
from token_indicators import k3 as k3_of_arrays

from policy.algorithms.algorithms import Grpo
from policy.batch import Batch, collate
from policy.config import GrpoConfig, LearnerConfig
from policy.learner import Learner
from policy.metrics import TokenMeans, TokenTrace
from policy.model import token_logprobs_and_entropy


def learner(*, loss: dict[str, object] | None = None, seed: int = 0, reference: bool = False, **settings: object) -> Learner:
    model, other = tiny_model(seed=seed), tiny_model(seed=seed + 1) if reference else None
    return Learner(LearnerConfig(**settings), Grpo(GrpoConfig(**(loss or {}))), model, reference=other)


def train(student: Learner, *, seeds: range = range(1)) -> list[dict[str, float]]:
    return [update(student, random_batch(seed=seed)) for seed in seeds]


def own_logprobs(batch: Batch) -> Batch:
    """The batch as if `learner()` had sampled it."""
    with torch.no_grad():
        logprobs_N, _ = token_logprobs_and_entropy(tiny_model(), batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)
    return replace(batch, rollout_logprobs_BT=torch.zeros(batch.loss_mask_BT.shape).masked_scatter(batch.loss_mask_BT, logprobs_N))


def test_the_gradient_is_that_of_the_mean_over_all_trained_tokens_and_is_clipped() -> None:
    student, twin = learner(max_grad_norm=1e9), tiny_model()
    batch = student.algorithm.add_advantages(random_batch(seed=0))
    metrics = student.update(batch)
    logprobs_N, _ = token_logprobs_and_entropy(twin, batch.token_ids_BT, batch.attention_BT, batch.loss_mask_BT)
    (-(batch.advantages_BT[batch.loss_mask_BT] * logprobs_N).sum() / batch.num_trained).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in twin.parameters()])
    torch.testing.assert_close(gradient_of(student), expected, rtol=1e-4, atol=1e-6)
    tight = learner(max_grad_norm=1e-3)
    assert train(tight)[0]["actor/grad_norm"] == metrics["actor/grad_norm"] == pytest.approx(float(expected.norm()), rel=1e-5)
    assert float(gradient_of(tight).norm()) == pytest.approx(1e-3, rel=1e-3)


def test_one_step_is_strictly_on_policy_and_further_ones_are_compared_with_the_weights_before_the_batch() -> None:
    metrics = train(learner())[0]
    assert metrics["actor/ratio_max"] == 1.0 and metrics["actor/approx_kl"] == metrics["actor/clip_fraction"] == 0.0
    student = learner(num_minibatches=2, epochs=2, lr=1e-2)
    many = train(student)[0]
    assert (student.num_steps, student.policy_version) == (4, 1)
    assert many["actor/approx_kl"] > 1e-4 and many["actor/ratio_max"] > 1.01
    # Mismatch and entropy are those before the update, however many steps it has.
    for key in ("actor/entropy", "actor/entropy_forking", "training/mismatch_kl", "training/rollout_logprob_abs_diff_max"):
        assert many[key] == pytest.approx(metrics[key], rel=1e-4), key


def test_without_recomputing_the_engines_logprobs_are_the_old_ones() -> None:
    batch = own_logprobs(random_batch(seed=0))
    students = [learner(num_minibatches=2, lr=1e-2, recompute_logprobs=recompute) for recompute in (True, False)]
    recomputed, taken = (update(student, batch) for student in students)
    for key in ("actor/pg_loss", "actor/approx_kl", "actor/ratio_max", "actor/grad_norm"):
        assert taken[key] == pytest.approx(recomputed[key], rel=1e-3, abs=1e-6), key
    assert taken["training/rollout_logprob_abs_diff_max"] < 1e-5 and taken["training/mismatch_kl"] < 1e-10


def test_without_recomputing_tokens_of_older_weights_keep_the_logprobs_they_were_sampled_with() -> None:
    batch = own_logprobs(random_batch(seed=0))
    batch = replace(batch, rollout_logprobs_BT=batch.rollout_logprobs_BT - 0.5 * batch.loss_mask_BT)
    own, older = learner(recompute_logprobs=False), learner(recompute_logprobs=False)
    older.policy_version = 2
    by_own, by_older = update(own, batch), update(older, batch)
    assert by_own["actor/ratio_mean"] == by_own["actor/ratio_max"] == 1.0
    assert by_older["actor/ratio_mean"] == pytest.approx(math.exp(0.5), rel=1e-4) and by_older["actor/clip_fraction"] > 0.0
    for metrics in (by_own, by_older):
        assert metrics["training/rollout_logprob_abs_diff_mean"] == pytest.approx(0.5, rel=1e-4)


def test_the_reference_pulls_and_is_asked_once_a_batch() -> None:
    free, held = learner(reference=True, lr=3e-3), learner(loss={"kl_coef": 10.0}, reference=True, lr=3e-3)
    assert train(free)[0]["actor/kl_loss"] == pytest.approx(train(held)[0]["actor/kl_loss"])
    batch = held.prepare(random_batch(seed=0))
    assert held.prepare(batch) is batch
    still = replace(batch, advantages_BT=torch.zeros_like(batch.rollout_logprobs_BT))
    kls = [held.update(still)["actor/kl_loss"] for _ in range(4)]
    assert kls[-1] < 0.97 * kls[0]
    assert math.isnan(train(learner())[0]["actor/kl_loss"])


def test_scores_temperature_and_bf16() -> None:
    student, token_ids = learner(), [4, 9, 2, 33, 17]
    with torch.no_grad():
        log_p_TV = student.model(input_ids=torch.tensor([token_ids])).logits[0].log_softmax(-1)
    assert student.score(token_ids) == pytest.approx([float(log_p_TV[t - 1, token_ids[t]]) for t in range(1, 5)], abs=1e-5)
    exact, rough = train(learner())[0]["actor/entropy"], train(learner(autocast=True))[0]["actor/entropy"]
    assert rough == pytest.approx(exact, abs=0.05) and rough != exact
    hot = Learner(LearnerConfig(), Grpo(GrpoConfig()), tiny_model(), temperature=2.0)
    assert train(hot)[0]["actor/entropy"] > exact


def test_the_step_size_grows_over_the_warm_up_and_falls_with_the_budget() -> None:
    metrics = train(learner(lr=1.0e-3, warmup_steps=3), seeds=range(5))
    assert [measured["actor/lr"] for measured in metrics] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3])
    student = learner(lr=1e-3, lr_end=0.2)
    rates = [update(student, random_batch(seed=0), budget_fraction=fraction)["actor/lr"] for fraction in (0.0, 0.5, 1.0, 1.1)]
    assert rates == pytest.approx([1e-3, 0.6e-3, 0.2e-3, 0.2e-3])


def test_a_trace_agrees_with_the_functions_for_arrays_however_the_step_was_cut() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = random_batch(seed=0, num_groups=8)
    batch = replace(batch, advantages_BT=torch.randn(batch.loss_mask_BT.shape, generator=generator).double())
    mask_BT = batch.loss_mask_BT
    rollout_N, advantages_N = batch.rollout_logprobs_BT[mask_BT].double(), batch.advantages_BT[mask_BT]
    logprobs_N = rollout_N + 0.2 * torch.randn(len(rollout_N), generator=generator)
    columns = [rollout_N, logprobs_N, torch.rand(len(rollout_N), generator=generator).double(), advantages_N]
    whole, cut = TokenTrace(), TokenTrace()
    whole.add(batch, *columns[1:3])
    first, rows = int(mask_BT[:10].sum()), torch.arange(batch.num_rollouts)
    cut.add(batch.rows(rows[:10]), *(column[:first] for column in columns[1:3]))
    cut.add(batch.rows(rows[10:]), *(column[first:] for column in columns[1:3]))
    metrics, arrays = whole.metrics(), [column.numpy() for column in columns]
    assert cut.metrics() == pytest.approx(metrics, rel=1e-6) and TokenTrace().metrics() == {}
    assert metrics["actor/entropy_forking"] == pytest.approx(forking_entropy(arrays[2]), rel=1e-5)
    assert metrics["actor/logprob_advantage_cov"] == pytest.approx(logprob_advantage_covariance(arrays[1], arrays[3]), rel=1e-4)
    for name, indicator in (
        ("mismatch_k1", k1),
        ("mismatch_kl", k3_of_arrays),
        ("mismatch_chi2", chi_square),
        ("effective_share", effective_share),
    ):
        assert metrics[f"training/{name}"] == pytest.approx(indicator(arrays[0], arrays[1]), rel=1e-4), name
    assert metrics["training/rollout_logprob_abs_diff_max"] == pytest.approx(float((logprobs_N - rollout_N).abs().max()), rel=1e-5)


def test_means_count_tokens_and_a_maximum_that_is_nan_stays_so() -> None:
    means = TokenMeans()
    for values in ([-1.0], [-2.0, -2.0, -2.0], [math.nan]):
        means.add({"actor/ratio_max": torch.tensor(values), "other": torch.tensor(values).nan_to_num(0.0)})
    assert means.metrics()["other"] == pytest.approx(-7 / 5) and math.isnan(means.metrics()["actor/ratio_max"])


def test_an_empty_batch_changes_nothing_and_reports_the_same_keys() -> None:
    student = learner()
    before, metrics = weights_of(student), update(student, collate([]))
    assert torch.equal(weights_of(student), before) and student.policy_version == 0
    assert math.isnan(metrics["actor/entropy"]) and set(metrics) == set(train(student)[0])


def why(batch: Batch, student: Learner | None = None, *, advantages: dict[int, float] | None = None) -> str:
    """The reasons for skipped steps on the batch, whose advantages are broken at some rows."""
    student = student or learner()
    batch = student.algorithm.add_advantages(batch)
    for row, value in (advantages or {}).items():
        batch.advantages_BT[row][batch.loss_mask_BT[row]] = value
    student.update(batch)
    return " | ".join(student.why_skipped)


def test_a_skipped_step_names_the_rollouts_or_parameters_at_fault() -> None:
    batch = replace(random_batch(seed=0), uids=tuple(f"task-{row}" for row in range(12)))
    assert why(batch) == ""
    assert why(batch, advantages={7: math.inf}).endswith("the advantage of rollout task-7 is not finite")
    assert why(batch, advantages=dict.fromkeys(range(5), math.nan)).endswith("task-0, task-1, task-2 and 2 more is not finite")
    rewards_B = batch.rewards_B.clone()
    rewards_B[3] = math.inf
    assert why(replace(batch, rewards_B=rewards_B)).endswith("the reward of rollout task-3 is not finite")
    student = learner()
    name, parameter = next(iter(student.model.named_parameters()))
    parameter.register_hook(lambda gradient: gradient * math.inf)
    assert f"the gradient of {name} is not" in why(batch, student)
    assert collate([group(rollout([1, 2], [0, 1]))]).uids == ("task (seed 0)",)


def test_three_skipped_steps_in_a_row_stop_the_run_with_their_reasons_and_spare_the_weights() -> None:
    student, batch = learner(), random_batch(seed=0)
    before, good = weights_of(student), student.algorithm.add_advantages(batch)
    broken = replace(good, advantages_BT=torch.full_like(batch.rollout_logprobs_BT, math.nan))
    assert [student.update(broken)["training/skipped_steps"] for _ in range(2)] == [1.0, 2.0]
    assert student.policy_version == 0 and torch.equal(weights_of(student), before)
    student.update(good)
    assert (student.num_steps, student.policy_version) == (1, 1)
    for _ in range(2):
        student.update(broken)
    with pytest.raises(RuntimeError, match=r"skipped 3 optimiser steps in a row .* the loss was nan"):
        student.update(broken)


@pytest.mark.parametrize("part", ["model", "reference"])
def test_a_gpu_that_is_too_small_is_reported_with_the_settings_that_take_less(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    student = learner(reference=True, micro_batch_tokens=4096)
    monkeypatch.setattr(getattr(student, part).base_model, "forward", forward)
    with pytest.raises(RuntimeError, match=r"learner\.micro_batch_tokens .* got 4096"):
        update(student, random_batch(seed=0))


def test_copied_weights_do_not_change_with_the_next_update() -> None:
    student = learner()
    copied = student.weights()
    before = [tensor.clone() for _, tensor in copied]
    train(student)
    assert all(torch.equal(a, b) for (_, a), b in zip(copied, before, strict=True))
    assert len(copied) == len(list(student.model.named_parameters()))


def test_a_device_or_a_reference_that_is_not_there_is_refused() -> None:
    for device in ("cuda:99", "abacus"):
        with pytest.raises(ValueError, match=r"learner\.device"):
            learner(device=device)
    with pytest.raises(ValueError, match=r"algorithm\.kl_coef"):
        learner(loss={"kl_coef": 0.1})
