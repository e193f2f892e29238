"""A checkpoint is whole or refused, and training goes on from it bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from policy_factories import random_batch, tiny_model, tiny_tokenizer, update, weights_of
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

import policy.checkpoint
from policy.algorithms.algorithms import Grpo
from policy.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint
from policy.config import GrpoConfig, LearnerConfig
from policy.learner import Learner
from policy.model import load_model
from simulator.scenario import HiddenIntention


def save(run: Path, step: int, *, keep: int = 2, **state: object) -> Path:
    return save_checkpoint(run / "checkpoints" / f"step_{step}", model=tiny_model(), tokenizer=tiny_tokenizer(), state=state, keep=keep)


def kept(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def make_learner(model: torch.nn.Module) -> Learner:
    return Learner(LearnerConfig(num_minibatches=2, warmup_steps=3), Grpo(GrpoConfig()), model)


def train(learner: Learner, seeds: range) -> None:
    for seed in seeds:
        update(learner, random_batch(seed=seed))


def test_four_steps_equal_two_steps_a_checkpoint_and_two_more(tmp_path: Path) -> None:
    whole, first = make_learner(tiny_model()), make_learner(tiny_model())
    train(whole, range(4))
    train(first, range(2))
    state = {"learner": first.state_dict()}
    folder = save_checkpoint(tmp_path / "checkpoints" / "step_2", model=first.model, tokenizer=tiny_tokenizer(), state=state)
    after_saving = torch.rand(3)
    second = make_learner(load_model(folder)[0])
    second.load_state_dict(load_checkpoint(folder)["learner"])
    assert torch.equal(torch.rand(3), after_saving)
    train(second, range(2, 4))
    assert second.policy_version == whole.policy_version == 4 and torch.equal(weights_of(second), weights_of(whole))
    with pytest.raises(ValueError, match=r"policy\.model"):
        second.load_state_dict(make_learner(tiny_model(hidden_size=16)).state_dict())


def test_a_model_whose_generation_settings_transformers_would_not_save_gets_its_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "temperature": 0.6, "do_sample": False}), encoding="utf-8")
    model, tokenizer = load_model(folder)
    saved = save_checkpoint(tmp_path / "checkpoints" / "step_1", model=model, tokenizer=tokenizer, state={})
    assert load_model(saved)[0].generation_config.temperature == 0.6


def test_state_comes_back_in_plain_types_and_others_are_refused_when_saved(tmp_path: Path) -> None:
    generator = np.random.default_rng(3).bit_generator.state  # holds integers of 128 bits
    state = {"teacher": {"rng": generator, "families": {"advice/negative": [0.1, 1e-300]}}, "none": None, "tensor": torch.tensor([1.5])}
    back = load_checkpoint(save(tmp_path, 1, **state))
    assert torch.equal(back.pop("tensor"), torch.tensor([1.5]))
    assert back == {key: value for key, value in state.items() if not isinstance(value, Tensor)}
    back = load_checkpoint(save(tmp_path, 1, offsets={HiddenIntention.ADVICE: np.float64(0.1)}, pair=(1, "two"), flag=True))
    assert back == {"offsets": {"advice": 0.1}, "pair": (1, "two"), "flag": True} and type(back["offsets"]["advice"]) is float
    with pytest.raises(TypeError, match=r"state\.teacher\.offsets\[1\] .* got ndarray"):
        save(tmp_path / "other", 1, teacher={"offsets": [1, np.zeros(2)]})
    assert not (tmp_path / "other").exists()


def test_the_newest_are_kept_and_found_by_number_and_a_step_saved_again_replaces_itself(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    for step in (2, 4, 10):
        save(tmp_path, step)
    assert kept(tmp_path) == ["step_10", "step_4"] and newest_checkpoint(tmp_path).name == "step_10"
    folder = save(tmp_path, 10, keep=1, tries=2)
    assert kept(tmp_path) == ["step_10"] and load_checkpoint(folder) == {"tries": 2}
    files = json.loads((folder / "manifest.json").read_text())["num_bytes"]
    assert set(files) == {path.name for path in folder.iterdir()} - {"manifest.json"}


def test_a_process_killed_while_writing_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(policy.checkpoint.shutil, "rmtree", lambda *args, **options: None)  # a killed process cleans nothing up
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2)
    assert kept(tmp_path) == [".step_2.new", "step_1"] and newest_checkpoint(tmp_path).name == "step_1"
    save(tmp_path, 2)
    assert kept(tmp_path) == ["step_1", "step_2"]


@pytest.mark.parametrize(
    ("where", "what", "error"), [(policy.checkpoint.torch, "save", OSError), (PreTrainedModel, "save_pretrained", SafetensorError)]
)
def test_a_failed_write_leaves_nothing_behind(where, what, error, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)

    def full(*args: object, **options: object) -> None:
        raise error("No space left on device")

    monkeypatch.setattr(where, what, full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 2)
    assert kept(tmp_path) == ["step_1"]


@pytest.mark.parametrize(("file", "damage"), [("model.safetensors", "missing"), ("state.pt", "short")])
def test_a_torn_checkpoint_is_refused_and_the_one_before_found(tmp_path: Path, file: str, damage: str) -> None:
    save(tmp_path, 1)
    torn = save(tmp_path, 2)
    assert newest_checkpoint(tmp_path) == torn
    content = (torn / file).read_bytes()
    (torn / file).unlink()
    if damage == "short":
        (torn / file).write_bytes(content[:-1])
    with pytest.raises(ValueError, match=file):
        load_checkpoint(torn)
    why: list[str] = []
    assert newest_checkpoint(tmp_path, on_torn=why.append).name == "step_1"
    assert len(why) == 1 and file in why[0]


@pytest.mark.parametrize("manifest", ['{"format": 99}', None])
def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path: Path, manifest: str | None) -> None:
    folder = save(tmp_path, 1)
    (folder / "manifest.json").unlink()
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    with pytest.raises(ValueError, match="step_1"):
        load_checkpoint(folder)
    assert newest_checkpoint(tmp_path) is None
