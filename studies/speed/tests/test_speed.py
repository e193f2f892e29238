"""The GPU's benchmark, small on a CPU and by hand, and TRL's step against ours."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from policy_factories import random_batch, tiny_model, tiny_tokenizer

from studies.speed import bench_gpu


def test_the_gpu_benchmark_runs_small_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    small = ["--size", "tiny", "--device", "cpu", "--rows", "8", "--tokens", "48", "--new-tokens", "8", "--repeats", "2"]
    assert bench_gpu.main([*small, "--engine", "hf", "--peak-tflops", "1", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    update, sampled = found["update"], found["rollouts_hf"]
    assert update["tokens_per_s"]["repeats"] == 2 and update["tokens_per_s"]["median"] > 0
    assert update["model_flop_utilisation"]["median"] == pytest.approx(update["tflops_per_s"]["median"])
    assert sampled["tokens_per_s"]["median"] > 0 and sampled["peak_gib"] is None


def test_parameters_and_operations_of_an_update_by_hand() -> None:
    tiny = bench_gpu.shape("tiny")
    model = bench_gpu.random_model(tiny, positions=64, device=torch.device("cpu"))
    assert bench_gpu.num_parameters(tiny) == sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    for size, number in {"0.5b": 0.49e9, "1.5b": 1.54e9, "3b": 3.09e9, "7b": 7.61e9}.items():
        assert bench_gpu.num_parameters(bench_gpu.shape(size)) == pytest.approx(number, rel=0.01)
    # Each layer: queries and output 64 x 64, keys and values 64 x 32, three matrices of 64 x 128; two layers.
    in_layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    flops = 6 * in_layers * 30 + 6 * 4096 * 64 * 5 + 6 * 2 * 64 * (100 + 400)
    assert bench_gpu.update_flops(tiny, [10, 20], num_trained=5) == flops


@pytest.mark.parametrize(("card", "tflops"), [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("Something", None)])
def test_cards_are_known_by_their_names(card: str, tflops: int | None) -> None:
    assert bench_gpu.peak_flops(card) == (tflops and tflops * 1e12)


@pytest.mark.parametrize(
    ("arguments", "name"), [(["--tokens", "4096", "--micro-tokens", "1024"], "--tokens"), (["--device", "cpu"], "--size"), ([], "CUDA")]
)
def test_impossible_requests_are_refused(arguments, name, capsys, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        bench_gpu.main(arguments)
    assert name in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed (requirements/bench.txt)")
def test_trl_takes_the_same_step() -> None:
    from policy.algorithms.algorithms import Grpo
    from policy.config import GrpoConfig, LearnerConfig
    from policy.learner import Learner
    from studies.speed.trl_step import TrlStep

    ours, algorithm = tiny_model(), Grpo(GrpoConfig())
    batch = algorithm.add_advantages(random_batch(seed=1, num_groups=4))
    Learner(LearnerConfig(max_grad_norm=1e9), algorithm, ours).update(batch)
    trl = TrlStep(tiny_model(), tiny_tokenizer(), rows=batch.num_rollouts, micro_rows=4)
    trl.gradient(batch, batch.advantages_BT)
    for (name, a), b in zip(ours.named_parameters(), trl.trainer.model.parameters(), strict=True):
        np.testing.assert_allclose(torch.asarray(b.grad), torch.asarray(a.grad), rtol=1e-3, atol=1e-5, err_msg=name)
