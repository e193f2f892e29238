"""Skills that fade: the pull back to the weights before training."""

from __future__ import annotations

import pytest
import torch
from parts_in_process import tiny_run
from policy_factories import tiny_model

import studies.forgetting  # noqa: F401 (registers the callback)
from experiments.config import load
from experiments.errors import ConfigError
from studies.forgetting.pull_to_start import pull


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten().clone() for tensor in model.parameters()])


def test_an_update_ends_with_a_step_of_that_share_towards_the_start(tmp_path) -> None:
    contrast = ["resampling.max_rounds=2", "resampling.contrast=reward", "teacher.strictness=0.3", "teacher.kind=fixed"]
    weights = []
    for share in ("0.0", "0.5"):
        training = tiny_run(tmp_path / "tiny", *contrast, f"callbacks.pull_to_start.share={share}")
        start = flat(training.components.learner.model)
        training.step()
        assert training.components.learner.policy_version == 1
        weights.append(flat(training.components.learner.model))
    kept, faded = weights
    assert not torch.equal(kept, start)
    torch.testing.assert_close(faded, kept + 0.5 * (start - kept), rtol=1e-4, atol=1e-6)


def test_after_the_half_life_that_the_setting_names_half_of_what_was_learnt_is_left() -> None:
    model, prior = tiny_model(), tiny_model()
    with torch.no_grad():
        for tensor in prior.parameters():
            tensor.zero_()
    before = flat(model)
    for _ in range(34):
        pull(model, dict(prior.named_parameters()), share=0.02)
    torch.testing.assert_close(flat(model), 0.5 * before, rtol=0.01, atol=1e-6)


def check(*overrides: str) -> None:
    config = load("smoke", overrides)
    config.callbacks["pull_to_start"].check(config)


def test_where_there_are_adapters_nothing_can_be_pulled() -> None:
    with pytest.raises(ValueError, match=r"callbacks.pull_to_start.share must be 0 with policy.lora.rank=4, got 0.02"):
        check("callbacks.pull_to_start={}", "policy.lora.rank=4")
    check("callbacks.pull_to_start.share=0", "policy.lora.rank=4")
    with pytest.raises(ConfigError, match=r"callbacks.pull_to_start.share must be in \[0, 1\), got 1.0"):
        load("smoke", ["callbacks.pull_to_start.share=1.0"])
