"""What a learner is reckoned to need, and that a run which cannot fit is refused before it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from policy_factories import VOCABULARY, tiny_model, tiny_tokenizer

from experiments.__main__ import plan
from experiments.config import load
from experiments.errors import ConfigError
from experiments.preflight import check_memory, check_needs, learner_memory
from policy.config import LearnerConfig
from policy.memory import ModelSize, learner_bytes

LARGE = ModelSize(num_parameters=7_600_000_000, num_layers=28, hidden_size=3584, intermediate_size=18944, num_outside=1_090_000_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_the_size_of_a_model_is_read_off_its_files(folder: Path) -> None:
    model, size = tiny_model(), ModelSize.of(folder)
    assert size is not None and size.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (size.num_layers, size.hidden_size, size.intermediate_size) == (2, 32, 48)
    assert size.num_outside == 2 * VOCABULARY * 32 + 32


def test_a_model_whose_files_do_not_say_is_not_reckoned(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": None, "n_layer": 2}))
    assert ModelSize.of(folder) is None


def test_parts_are_divided_between_ranks_where_the_model_is() -> None:
    alone, eight = (
        learner_bytes(LARGE, LearnerConfig(ranks=ranks, sharded=ranks > 1), max_context=8192, has_reference=True) for ranks in (1, 8)
    )
    exact = ("weights", "gradients", "optimiser", "reference")
    assert [alone[name] / LARGE.num_parameters for name in exact] == [4.0, 4.0, 8.0, 4.0]
    assert [eight[name] for name in exact] == [alone[name] // 8 for name in exact]
    assert "whole layers" not in alone and eight["whole layers"] > 2**30
    adapted = learner_bytes(LARGE, LearnerConfig(), max_context=8192, num_adapted=40_000_000)
    assert adapted["optimiser"] == 320_000_000 and adapted["weights"] == 4 * 7_640_000_000
    kept = [
        learner_bytes(LARGE, LearnerConfig(gradient_checkpointing=recomputes), max_context=8192)["activations"]
        for recomputes in (False, True)
    ]
    assert kept[1] < kept[0] / 5


def test_a_dry_run_says_what_the_learner_needs_and_too_much_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = load("adaptive_curriculum")
    (line,) = [line for line in plan(config, tmp_path).splitlines() if "the learner needs" in line]
    assert "GiB of" in line and "weights 0.01, gradients 0.01, optimiser 0.02, activations" in line
    monkeypatch.setattr("experiments.preflight.free_bytes", lambda: 20 << 20)
    with pytest.raises(ConfigError, match=r"policy\.model must fit, got a learner that needs about .* of 0 free on this machine: weights"):
        check_memory(config)


def test_what_the_learner_keeps_must_stand_beside_awake_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.preflight.gpu_bytes", lambda device: 200 << 20)
    words = ["policy.sleep=true", "cluster.gpus_per_engine=1", "learner.device=cuda", "rollout.num_engines=1", "learner.micro_batch_rows=1"]
    config = load("adaptive_curriculum", [*words, "policy.gpu_memory_share=0.6"])
    found = learner_memory(config)
    assert found is not None and found[1:] == (190 << 20, "on cuda while engines sleep")
    check_memory(config)
    with pytest.raises(ConfigError, match=r"policy\.gpu_memory_share must leave the learner .*, got 0\.9; it keeps about 0\.0 GiB"):
        check_memory(load("adaptive_curriculum", [*words, "policy.gpu_memory_share=0.9"]))
    with pytest.raises(ConfigError, match=r"policy\.sleep must be false with rollout\.max_staleness=1, got true"):
        load("adaptive_curriculum", [*words, "rollout.max_staleness=1"])


def test_more_ranks_than_cores_and_shards_without_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.ranks must be at most this machine's \d+ cores, got 1000"):
        check_needs(load("adaptive_curriculum", ["learner.ranks=1000"]))
    with pytest.raises(ConfigError, match=r"learner\.sharded must be false with learner\.ranks=1"):
        load("adaptive_curriculum", ["learner.sharded=true"])
    with pytest.raises(ConfigError, match=r"learner\.sharded must be false with algorithm\.critic=shared"):
        load("adaptive_curriculum", ["learner.sharded=true", "learner.ranks=2", "algorithm.kind=ppo", "algorithm.critic=shared"])
