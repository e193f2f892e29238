"""Skills that fade: the pull back to the weights before training."""

from __future__ import annotations

import pytest
import torch
from policy_factories import random_batch, tiny_model

from experiments.config import load
from experiments.keys import ConfigError
from policy.grpo import Grpo, GrpoConfig
from policy.learner import Learner
from policy.learner_config import LearnerConfig


def learner(**settings: object) -> Learner:
    return Learner(LearnerConfig(**settings), Grpo(GrpoConfig()), tiny_model(), start=tiny_model())


def weights(student: Learner) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in student.weights()])


def test_an_update_ends_with_a_step_of_that_share_towards_the_start() -> None:
    before, batch = weights(learner()), random_batch(seed=0)
    keeps, fades = learner(lr=1e-2), learner(lr=1e-2, pull_to_start=0.25)
    for student in (keeps, fades):
        student.update(batch, student.algorithm.targets(batch))
    torch.testing.assert_close(weights(fades), weights(keeps) + 0.25 * (before - weights(keeps)), rtol=1e-5, atol=1e-7)
    assert not torch.equal(weights(fades), weights(keeps))
    assert keeps.policy_version == fades.policy_version == 1


def test_after_the_half_life_that_the_setting_names_half_of_what_was_learnt_is_left() -> None:
    prior, batch = tiny_model(), random_batch(seed=0)
    with torch.no_grad():
        for tensor in prior.parameters():
            tensor.zero_()
    # Nothing but the pull moves the weights: what lies between them and the prior's zeros is what was learnt.
    student = Learner(LearnerConfig(lr=1e-12, pull_to_start=0.02), Grpo(GrpoConfig()), tiny_model(), start=prior)
    before = weights(student)
    for _ in range(34):
        student.update(batch, student.algorithm.targets(batch))
    torch.testing.assert_close(weights(student), 0.5 * before, rtol=0.01, atol=1e-6)


def test_where_there_are_adapters_nothing_can_be_pulled() -> None:
    with pytest.raises(ConfigError, match=r"learner.pull_to_start must be 0 with policy.lora.rank=4, got 0.02"):
        load("smoke", ["learner.pull_to_start=0.02", "policy.lora.rank=4"])
    with pytest.raises(ConfigError, match=r"learner.pull_to_start must be in \[0, 1\), got 1.0"):
        load("smoke", ["learner.pull_to_start=1.0"])
