"""Where TRL is installed: its own losses on the same tokens, through its trainer's own function, are ours in value and gradient."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from policy_factories import random_batch
from torch import Tensor

from policy.algorithms.advantages import group_advantages
from policy.algorithms.loss import PolicyLoss
from policy.batch import TokenScores
from policy.config import Aggregation, PolicyLossConfig, Surrogate

pytest.importorskip("trl", reason="TRL is for comparisons only")
from trl import GRPOTrainer

BATCH = random_batch(seed=3)
MASK_BT, LENGTH = BATCH.loss_mask_BT, BATCH.loss_mask_BT.shape[1]
CASES = {
    "grpo": ({"loss_aggregation": Aggregation.DIALOGUE_MEAN}, {"loss_type": "grpo"}),
    "dapo": ({}, {"loss_type": "dapo"}),
    "dr_grpo": ({"loss_aggregation": Aggregation.CONSTANT, "loss_length": LENGTH}, {"loss_type": "dr_grpo"}),
    "gspo": (
        {
            "policy_loss": Surrogate.GSPO,
            "loss_aggregation": Aggregation.DIALOGUE_MEAN,
            "sequence_clip_low": 0.03,
            "sequence_clip_high": 0.04,
        },
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    # TRL bounds the weight from above alone, at epsilon_high itself.
    "cispo": ({"policy_loss": Surrogate.CISPO, "clip_high": 0.28}, {"loss_type": "cispo", "epsilon_high": 1.28}),
}


def columns() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logprobs now and before, the reference's, and advantages by rollout."""
    generator = torch.Generator().manual_seed(0)
    old_BT = -torch.rand(MASK_BT.shape, generator=generator, dtype=torch.float64) - 0.1
    noise_2BT = torch.randn(2, *MASK_BT.shape, generator=generator, dtype=torch.float64)
    advantages_B = group_advantages(BATCH.rewards_B, BATCH.group_ids_B, BATCH.valid_B)
    return (old_BT + 0.3 * noise_2BT[0]).requires_grad_(), old_BT, old_BT + 0.3 * noise_2BT[1], advantages_B


def by_trl(settings: dict[str, object], *, beta: float) -> tuple[float, Tensor]:
    """TRL's loss, without its trainer's model, data and processes; and its gradient by logprob."""
    logprobs_BT, old_BT, reference_BT, advantages_B = columns()
    trainer = object.__new__(GRPOTrainer)
    few = {"loss_type": "dapo", "importance_sampling_level": "token", "epsilon_low": 0.2, "epsilon_high": 0.28}
    if settings.get("importance_sampling_level") == "sequence":
        few |= {"epsilon_low": 0.03, "epsilon_high": 0.04}
    others = {"beta": beta, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_vllm": False, "aux_loss_enabled": False}
    others |= {"max_completion_length": LENGTH, "_entropy_bonus_enabled": False, "current_gradient_accumulation_steps": 1}
    accelerator = SimpleNamespace(num_processes=1, gather=lambda values: values, reduce=lambda values, reduction: values)
    vars(trainer).update(few | others | settings)
    vars(trainer).update(
        model=SimpleNamespace(training=False),
        accelerator=accelerator,
        args=SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs_BT, torch.zeros_like(old_BT), None),
    )
    inputs = {
        "prompt_ids": torch.zeros(len(old_BT), 1, dtype=torch.int64),
        "prompt_mask": torch.ones(len(old_BT), 1, dtype=torch.int64),
        "completion_ids": BATCH.token_ids_BT,
        "completion_mask": MASK_BT.long(),
        "advantages": advantages_B,
        "old_per_token_logps": old_BT,
        "ref_per_token_logps": reference_BT,
        "num_items_in_batch": MASK_BT.sum(),
    }
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return float(loss.detach()), logprobs_BT.grad[MASK_BT]


def by_us(settings: dict[str, object], *, kl_coef: float) -> tuple[float, Tensor]:
    logprobs_BT, old_BT, reference_BT, advantages_B = columns()
    loss = PolicyLoss(PolicyLossConfig(**({"kl_coef": kl_coef} | settings)))
    scores = TokenScores(
        logprobs_N=logprobs_BT[MASK_BT],
        entropies_N=torch.zeros_like(old_BT[MASK_BT]),
        old_logprobs_N=old_BT[MASK_BT],
        advantages_N=(advantages_B[:, None] * MASK_BT)[MASK_BT],
        reference_logprobs_N=reference_BT[MASK_BT],
        rows_N=MASK_BT.nonzero()[:, 0],
    )
    total = loss.loss(scores).total / loss.denominator(BATCH)
    total.backward()
    return float(total.detach()), logprobs_BT.grad[MASK_BT]


@pytest.mark.parametrize("name", CASES)
def test_the_loss_is_trls(name: str) -> None:
    ours, trls = CASES[name]
    value, gradient_N = by_us(ours, kl_coef=0.0)
    expected, expected_N = by_trl(trls, beta=0.0)
    assert value == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(gradient_N, expected_N, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_value_of_the_kl_is_trls_whose_gradient_is_biased(name: str) -> None:
    ours, trls = CASES[name]
    (value, gradient_N), (expected, expected_N) = by_us(ours, kl_coef=0.2), by_trl(trls, beta=0.2)
    assert value == pytest.approx(expected, rel=1e-9)
    assert not torch.allclose(gradient_N, expected_N, rtol=1e-3)
