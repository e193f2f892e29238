"""What a run is made of, as it begins and as it goes on: what of it comes from the policy before training, and what from the checkpoint."""

from __future__ import annotations

from dataclasses import asdict

import torch
from tiny_policy import save_tiny_policy

from experiments.build import build
from experiments.config import load
from experiments.run_state import RunState
from policy.checkpoint import save_checkpoint


def test_the_workers_hear_what_the_agent_is_told_before_a_dialogue(tmp_path, monkeypatch):
    told = {}
    monkeypatch.setattr("experiments.build.RolloutPool", lambda *_, **given: told.update(given))
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    build(load("smoke", [f"policy.model={folder}", "policy.engine=hf", "policy.system_prompt=Listen."]), checkpoint=None)
    assert told["system_prompt"] == "Listen."


def test_a_run_that_goes_on_is_held_to_the_policy_before_training_and_has_its_own_state(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.build.RolloutPool", lambda *_, **__: None)
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    anchored = ("algorithm.kl_coef=0.1", "rollout.temperature=0.7")
    config = load("smoke", [f"policy.model={folder}", "policy.engine=hf", *anchored])
    first, nothing = build(config, checkpoint=None)
    assert nothing is None and first.learner.scorer._temperature == 0.7
    before = {name: tensor.detach().clone() for name, tensor in first.learner.model.named_parameters()}
    with torch.no_grad():
        for tensor in first.learner.model.parameters():
            tensor.add_(1.0)
    first.faults._num_engine = 3
    state = {name: getattr(first, name).state_dict() for name in ("learner", "teacher", "collapse", "faults")}
    place = tmp_path / "checkpoints" / "step_1"
    save_checkpoint(place, model=first.learner.model, tokenizer=first.tokenizer, state={"run": asdict(RunState(step=1)), **state})

    again, saved = build(config, checkpoint=place)
    assert saved is not None and saved["step"] == 1
    assert again.faults.counts()["engine"] == 3 and again.learner.scorer._temperature == 0.7
    for name, tensor in before.items():
        assert torch.equal(again.learner.model.get_parameter(name), tensor + 1.0), name
        assert torch.equal(again.learner.reference.get_parameter(name), tensor), name
