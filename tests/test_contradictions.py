"""Settings that contradict each other: one sentence with both values and the remedy, before anything heavy is imported or started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from experiments.config import ConfigError, load

CONTRADICTIONS = {
    "sequence ratios with token truncation": (
        ["algorithm.policy_loss=gspo", "algorithm.importance_correction=token"],
        r"algorithm\.importance_correction must be none with algorithm\.policy_loss=gspo, got token: .*; set one of the two otherwise",
    ),
    "thinking on a prior without it": (
        ["policy.thinking=true", "policy.prior.thinking=false"],
        r"policy\.prior\.thinking must be True where policy\.thinking is, got False; leave it unset",
    ),
    "a micro-batch larger than the token budget": (
        ["learner.micro_batch_tokens=511", "rollout.max_context=512"],
        r"learner\.micro_batch_tokens must be at least rollout\.max_context=512, got 511: .*; raise the one or lower the other",
    ),
    "an adaptive KL without a reference": (
        ["algorithm.kl_target=0.01", "algorithm.kl_coef=0"],
        r"algorithm\.kl_target must be 0 with algorithm\.kl_coef=0\.0, which keeps no reference, got 0\.01; set algorithm\.kl_coef to",
    ),
    "a KL in the reward without a reference": (
        ["algorithm.kl_in=reward", "algorithm.kl_coef=0"],
        r"algorithm\.kl_in must be loss with algorithm\.kl_coef=0\.0, which keeps no reference, got reward; set algorithm\.kl_coef above 0",
    ),
    "a correction that would count twice": (
        ["algorithm.importance_correction=token", "learner.recompute_logprobs=false"],
        r"importance_correction must be none with learner\.recompute_logprobs=false, got token: .*; set learner\.recompute_logprobs=true",
    ),
    "parts of an engine without a GPU each": (
        ["policy.tensor_parallel=2", "policy.engine=hf"],
        r"policy\.tensor_parallel must be 1 with policy\.engine=hf, got 2: .*; take policy\.engine=vllm",
    ),
    "an engine of ours in a process of its own": (
        ["policy.engine_process=true", "policy.engine=hf"],
        r"policy\.engine_process must be false with policy\.engine=hf, got true: .*; take policy\.engine=vllm",
    ),
    "parts that are processes in a process": (
        ["policy.engine_process=true", "policy.tensor_parallel=2"],
        r"policy\.engine_process must be false with policy\.tensor_parallel=2, got true: .*; leave it out",
    ),
}


@pytest.mark.parametrize("which", CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused_with_both_values_and_the_remedy(which: str) -> None:
    settings, message = CONTRADICTIONS[which]
    with pytest.raises(ConfigError, match=message) as caught:
        load("smoke", settings)
    assert "\n" not in str(caught.value)


def test_a_micro_batch_that_holds_the_longest_dialogue_is_fine() -> None:
    assert load("smoke", ["learner.micro_batch_tokens=512", "rollout.max_context=512"]).learner.micro_batch_tokens == 512


def test_the_command_says_so_on_one_line_and_leaves_nothing_behind(tmp_path) -> None:
    settings = ["learner.micro_batch_tokens=100", f"runs={tmp_path / 'runs'}"]
    done = subprocess.run([sys.executable, "-m", "experiments", "smoke", *settings], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "learner.micro_batch_tokens must be at least rollout.max_context=512, got 100" in done.stderr
    assert not (tmp_path / "runs").exists()
