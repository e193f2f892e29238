"""Losses and their gradients worked out by hand, and GRPO put together from them."""

from __future__ import annotations

import math

import pytest
import torch
from policy_factories import group, pack, rollout

from policy.algorithms.algorithms import ALGORITHMS, Grpo, make_algorithm
from policy.algorithms.loss import clipped_surrogate, kl_to_reference
from policy.batch import TokenScores, TokenSums, Totals, k3, mismatch
from policy.config import ALGORITHM_CONFIGS, GrpoConfig, Spread
from policy.rollout.dialogue import Rollout


def scores(ratios: list[float], advantages: list[float], *, reference: list[float] | None = None) -> TokenScores:
    """Tokens whose old logprob is -1 and whose probability has since changed by `ratios`."""
    log_ratios_N = torch.tensor(ratios, dtype=torch.float64).log()
    return TokenScores(
        logprobs_N=(log_ratios_N - 1).requires_grad_(),
        entropies_N=torch.full_like(log_ratios_N, 2.0).requires_grad_(),
        old_logprobs_N=torch.full_like(log_ratios_N, -1.0),
        advantages_N=torch.tensor(advantages, dtype=torch.float64),
        reference_logprobs_N=None if reference is None else torch.tensor(reference, dtype=torch.float64),
    )


def test_surrogate_holds_back_only_steps_that_go_further_out() -> None:
    tokens = scores([1.0, 1.5, 0.5, 1.5, 0.5], [1.0, 1.0, 1.0, -1.0, -1.0])
    loss = clipped_surrogate(tokens, clip_low=0.2, clip_high=0.28)
    # kept -1; high held at 1.28; low with A > 0 kept; high with A < 0 kept; low with A < 0 held at 0.8
    assert float(loss.total.detach()) == pytest.approx(-1.0 - 1.28 - 0.5 + 1.5 + 0.8)
    loss.total.backward()
    # the gradient of -A ratio in log-space is -A ratio, and 0 where the ratio is held
    assert tokens.logprobs_N.grad.tolist() == pytest.approx([-1.0, 0.0, -0.5, 1.5, 0.0])
    assert float(loss.sums["actor/clip_fraction_positive"]) == 1
    assert float(loss.sums["actor/clip_fraction_negative"]) == 1
    assert float(loss.sums["actor/clip_fraction"]) == 2
    assert float(loss.sums["actor/ratio_mean"]) == pytest.approx(5.0)
    assert float(loss.maxima["actor/ratio_max"]) == pytest.approx(1.5)
    # KL(old, now), k3 of tokens that the old policy sampled: ratio - 1 - log ratio. An alarm reads it.
    assert float(loss.sums["actor/approx_kl"]) == pytest.approx(2 * (0.5 - math.log(1.5)) + 2 * (-0.5 - math.log(0.5)))


def test_on_policy_gradient_is_the_plain_policy_gradient() -> None:
    tokens = scores([1.0, 1.0], [0.7, -0.3])
    clipped_surrogate(tokens, clip_low=0.2, clip_high=0.28).total.backward()
    assert tokens.logprobs_N.grad.tolist() == pytest.approx([-0.7, 0.3])


def test_ratio_stays_finite_however_far_the_policy_has_moved() -> None:
    tokens = scores([1.0], [-1.0])
    far = TokenScores(
        logprobs_N=torch.tensor([0.0]),
        entropies_N=tokens.entropies_N,
        old_logprobs_N=torch.tensor([-500.0]),
        advantages_N=torch.tensor([-1.0]),
    )
    assert float(clipped_surrogate(far, clip_low=0.2, clip_high=0.28).total) == pytest.approx(math.exp(20), rel=1e-5)


def test_k3_is_the_known_closed_form_and_never_negative() -> None:
    # p/q = 2 on one token: q/p - 1 - log(q/p) = .5 - 1 + log 2
    assert float(k3(torch.tensor([math.log(0.4)]), torch.tensor([math.log(0.2)]))) == pytest.approx(math.log(2) - 0.5, abs=1e-7)
    assert float(k3(torch.tensor([-1.0]), torch.tensor([-1.0]))) == 0.0
    assert bool((k3(torch.randn(100, generator=torch.Generator().manual_seed(0)), torch.zeros(100)) >= 0).all())


def test_k3_averages_to_the_exact_kl() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    exact = float((p * (p / q).log()).sum())
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(exact, abs=1e-6)


def test_kl_to_the_reference_has_the_value_of_k3_and_the_gradient_of_k2() -> None:
    logprobs_N = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    reference_N = torch.tensor([-1.5, -1.0], dtype=torch.float64)
    kl_N = kl_to_reference(logprobs_N, reference_N)
    assert kl_N.tolist() == pytest.approx([math.exp(-0.5) + 0.5 - 1, math.exp(1.0) - 1.0 - 1])
    kl_N.sum().backward()
    assert logprobs_N.grad.tolist() == pytest.approx([0.5, -1.0])


def test_grpo_adds_kl_and_entropy_with_their_weights() -> None:
    tokens = scores([1.0, 1.0], [1.0, 3.0], reference=[-1.0, -2.0])
    loss = Grpo(GrpoConfig(kl_coef=0.5, entropy_coef=0.1)).loss(tokens)
    kl = math.exp(-1.0) + 1.0 - 1.0
    assert float(loss.sums["actor/kl_loss"]) == pytest.approx(kl)
    assert float(loss.total.detach()) == pytest.approx(-4.0 + 0.5 * kl - 0.1 * (2.0 + 2.0))
    loss.total.backward()
    assert tokens.entropies_N.grad.tolist() == pytest.approx([-0.1, -0.1])


def test_mismatch_of_engine_and_trainer() -> None:
    got = mismatch(torch.tensor([-1.0, -2.0]), torch.tensor([-1.1, -1.8]), torch.tensor([1.5, 2.5]))
    assert float(got.sums["training/rollout_logprob_abs_diff_mean"]) == pytest.approx(0.3, abs=1e-6)
    assert float(got.maxima["training/rollout_logprob_abs_diff_max"]) == pytest.approx(0.2, abs=1e-6)
    assert float(got.sums["training/mismatch_kl"]) == pytest.approx(math.exp(-0.1) + 0.1 - 1 + math.exp(0.2) - 0.2 - 1, abs=1e-6)
    assert float(got.sums["actor/entropy"]) == pytest.approx(4.0)
    assert float(got.sums["actor/entropy_sampled"]) == pytest.approx(3.0)


def test_totals_weigh_micro_batches_by_their_tokens() -> None:
    totals = Totals()
    for logprobs in ([-1.0], [-2.0, -2.0, -2.0]):
        tokens = torch.tensor(logprobs)
        totals.add(len(logprobs), mismatch(tokens, tokens, tokens))
    assert totals.metrics()["actor/entropy_sampled"] == pytest.approx(7 / 4)


@pytest.mark.parametrize("values", [[1.0, math.nan, 2.0], [math.nan], [math.nan, 3.0]])
def test_a_maximum_that_is_no_number_is_not_hidden_by_those_that_are(values: list[float]) -> None:
    totals = Totals()
    for value in values:
        totals.add(1, TokenSums(maxima={"largest": torch.tensor(value)}))
    assert math.isnan(totals.metrics()["largest"])


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_every_algorithm_is_made_from_its_default_settings(kind: str) -> None:
    config_class, algorithm_class = ALGORITHM_CONFIGS[kind], ALGORITHMS[kind]
    assert isinstance(make_algorithm(config_class()), algorithm_class)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_low": 1.0}, r"algorithm\.clip_low must be in \(0, 1\), got 1\.0"),
        ({"clip_high": 0.0}, r"algorithm\.clip_high must be > 0 and finite, got 0\.0"),
        ({"kl_coef": math.inf}, r"algorithm\.kl_coef must be >= 0 and finite, got inf"),
        ({"kl_coef": -0.1}, r"algorithm\.kl_coef must be >= 0 and finite, got -0\.1"),
        ({"entropy_coef": math.nan}, r"algorithm\.entropy_coef must be >= 0 and finite, got nan"),
        ({"kind": "ppo"}, r"algorithm\.kind must be 'grpo' here, got 'ppo'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GrpoConfig(**settings)


def test_by_the_batch_a_group_that_differs_more_counts_for_more() -> None:
    def row(reward: float) -> Rollout:
        return rollout([5, 6, 7, 8], [0, 0, 1, 1], reward=reward)

    batch = pack([group(row(0.9), row(0.1)), group(row(0.52), row(0.48))])
    sizes = {}
    for spread in Spread:
        advantages_BT = Grpo(GrpoConfig(normalise_by=spread)).targets(batch).advantages_BT
        sizes[spread] = advantages_BT[:, 2].abs().tolist()
        assert (advantages_BT[:, :2] == 0).all()
    assert sizes[Spread.GROUP] == pytest.approx([math.sqrt(0.5)] * 4, abs=1e-3)
    assert sizes[Spread.NONE] == pytest.approx([0.4, 0.4, 0.02, 0.02], abs=1e-6)
    scale = math.sqrt((0.4**2 + 0.02**2) / 2)
    assert sizes[Spread.BATCH] == pytest.approx([0.4 / scale, 0.4 / scale, 0.02 / scale, 0.02 / scale], abs=1e-4)
