"""The GPU benchmark, small and on a CPU: the same code, its arithmetic by hand, and what it refuses."""

from __future__ import annotations

import json

import pytest
import torch

from experiments import bench_gpu
from experiments.benchmarks.gpu import SHAPES, peak_flops, random_model


def test_the_same_code_runs_small_on_a_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    small = ["--size", "tiny", "--device", "cpu", "--rows", "8", "--tokens", "48", "--new-tokens", "8", "--repeats", "2"]
    out.write_text("earlier")
    with out.open() as earlier:
        assert bench_gpu.main([*small, "--engine", "hf", "--peak-tflops", "1", "--out", str(out)]) == 0
        assert earlier.read() == "earlier"
    found = json.loads(out.read_text())
    update, rollouts = found["update"], found["rollouts_hf"]
    assert update["tokens_per_s"]["repeats"] == 2 and update["tokens_per_s"]["median"] > 0
    assert update["model_flop_utilisation"]["median"] == pytest.approx(update["tflops_per_s"]["median"])
    assert rollouts["tokens_per_s"]["median"] > 0 and rollouts["peak_gib"] is None


def test_parameters_are_those_of_the_model_but_for_norms_and_biases():
    shape = SHAPES["tiny"]
    model = random_model(shape, positions=64, device=torch.device("cpu"))
    matrices = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    assert shape.num_parameters == matrices
    published = {"0.5b": 0.49e9, "1.5b": 1.54e9, "3b": 3.09e9, "7b": 7.61e9}
    for size, number in published.items():
        assert SHAPES[size].num_parameters == pytest.approx(number, rel=0.01)


def test_arithmetic_of_an_update_by_hand():
    shape = SHAPES["tiny"]
    # each layer: queries and output 64 x 64, keys and values 64 x 32, three matrices of 64 x 128; two layers
    assert shape.num_in_layers == 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    assert shape.update_flops([10, 20], num_trained=5) == 6 * shape.num_in_layers * 30 + 6 * 4096 * 64 * 5 + 6 * 2 * 64 * (100 + 400)
    assert shape.state_bytes == 16 * shape.num_parameters


@pytest.mark.parametrize(
    ("card", "tflops"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H200", 989), ("NVIDIA A100-SXM4-80GB", 312), ("Something", None)],
)
def test_cards_are_known_by_their_names(card, tflops):
    assert peak_flops(card) == (tflops and tflops * 1e12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "--rows must be >= 1, got 0"),
        (["--tokens", "4096", "--micro-tokens", "1024"], "--tokens must be from 4 to --micro-tokens=1024, got 4096"),
        (["--device", "cpu"], "--size must be tiny on a CPU, got 0.5b"),
        (["--out", "/no/such/folder/g.json"], "--out must name a JSON file in a folder that exists"),
        ([], "bench-gpu must run on a machine with CUDA, got none here"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench_gpu.main(arguments) == 2
    said = capsys.readouterr().err.strip()
    assert message in said and "\n" not in said
