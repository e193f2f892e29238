"""Benchmarks: the keys of bench.json, a number or a reason for each, and the arithmetic behind them; never how fast anything is."""

from __future__ import annotations

import importlib.util
import json
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from policy_factories import random_batch, tiny_model, tiny_tokenizer
from tiny_policy import save_tiny_policy

from experiments import bench, bench_gpu
from experiments.benchmarks import gpu, rollouts, simulator, training
from experiments.benchmarks.figures import Figure, Settings, dialogues, figure, ratio_of_medians, ratios, repeated
from experiments.benchmarks.rollouts import Rounds
from experiments.benchmarks.simulator import Timing, delay_of, serial_replies_per_s
from policy.config import EngineKind
from policy.model import load_tokenizer
from policy.rollout.chat import Chat
from simulator.dialogue import Speaker


def test_figures_are_medians_with_their_range() -> None:
    assert figure([3.0, 1.0, 2.0]) == Figure(median=2.0, lowest=1.0, highest=3.0, repeats=3)
    assert ratios([2.0, 9.0, 8.0], [1.0, 3.0, 2.0]) == Figure(median=3.0, lowest=2.0, highest=4.0, repeats=3)
    assert ratio_of_medians([2.0, 9.0, 8.0], [1.0, 4.0, 2.0]) == Figure(median=4.0, lowest=0.5, highest=9.0, repeats=3)
    assert repeated(lambda number: number, 2) == [1, 2] and repeated(lambda number: number, 2, warm_ups=0) == [0, 1]


def test_the_files_have_a_number_or_a_reason_for_every_published_key() -> None:
    found = bench.document(dict.fromkeys(bench.KEYS, "no <engine>") | {"teacher.us_per_task": figure([2.0, 1.0, 4.0])})
    assert found["rollouts"].keys() == {"tokens_per_s", "ceiling_tokens_per_s", "ratio", "engines", "in_process_ratio", "two_over_one"}
    assert found["training"].keys() == {"tokens_per_s", "trl_tokens_per_s", "ratio", "peak_mb", "trl_peak_mb", "large_vocab"}
    assert found["driver"].keys() == {"cpu_ms_per_dialogue", "kb_per_dialogue", "cpu_ms_per_update", "cpu_ms_per_weight_mb"}
    assert found["rollouts"]["engines"] == {"1": None, "2": None} and found["weights"] == {"sync_s": None}
    assert found["mismatch"].keys() == {"fp32_mean_abs", "bf16_mean_abs"} and found["simulator"].keys() == {"reactions_per_s"}
    assert found["teacher"] == {"us_per_task": 2.0} and found["slow_simulator"].keys() == {"vs_serial", "vs_lockstep"}
    assert found["spread"] == {"teacher.us_per_task": {"min": 1.0, "max": 4.0, "repeats": 3}}
    assert found["reasons"].keys() == bench.KEYS.keys() - {"teacher.us_per_task"}
    page = bench.page(found)
    assert '<td>teacher.us_per_task<td class="n">2<td class="n">1 to 4, 3 times' in page
    assert "no &lt;engine&gt;" in page and "<engine>" not in page and "http" not in page


def test_a_part_that_fails_leaves_its_reason_and_the_others_their_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def parts(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            measure=lambda settings: 1 / 0,
            measure_teacher=lambda settings: {"teacher.us_per_task": figure([1.0] * settings.repeats)},
        )

    monkeypatch.setattr(bench.importlib, "import_module", parts)
    out = tmp_path / "figures.json"
    assert bench.main(["--only", "rollouts", "--only", "teacher", "--repeats", "3", "--out", str(out)]) == 1
    found = json.loads(out.read_text())
    assert found["teacher"]["us_per_task"] == 1.0 and found["spread"]["teacher.us_per_task"]["repeats"] == 3
    assert found["reasons"]["weights.sync_s"] == "failed: ZeroDivisionError: division by zero"
    assert found["reasons"]["training.ratio"] == bench.NOT_ASKED and (tmp_path / "figures.html").is_file()


@pytest.mark.parametrize(("module", "function"), bench.PARTS.values())
def test_every_part_is_a_function_of_a_module(module: str, function: str) -> None:
    assert callable(getattr(importlib.import_module(f"experiments.benchmarks.{module}"), function))


@pytest.mark.parametrize(("measure", "key"), [(simulator.measure, "simulator."), (simulator.measure_teacher, "teacher.")])
def test_light_parts_measure_their_keys(measure, key: str) -> None:
    found = measure(Settings(repeats=1))
    assert found.keys() == {name for name in bench.KEYS if name.startswith(key)}
    assert all(number.median > 0 and number.repeats == 1 for number in found.values())


@pytest.mark.parametrize("cores", [1, 2])
def test_an_engine_with_a_core_for_its_users_is_the_headline(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(settings: Settings, *, num_engines: int, engine_process: bool) -> Rounds:
        speed, n = (150.0 if engine_process else 100.0 * num_engines), settings.repeats
        return Rounds(rollout_tokens_per_s=(speed,) * n, offline_tokens_per_s=(200.0 * num_engines,) * n, update_s=(0.5,) * n)

    monkeypatch.setattr(rollouts, "measure_rounds", measured)
    monkeypatch.setattr(rollouts.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(rollouts.importlib.util, "find_spec", lambda name: object())
    found = rollouts.measure(Settings(repeats=2))
    assert found.keys() == {key for key in bench.KEYS if key.startswith(("rollouts.", "weights."))}
    numbers = {key.removeprefix("rollouts."): value.median for key, value in found.items() if isinstance(value, Figure)}
    in_process = {"engines.1": 100.0, "engines.2": 200.0, "in_process_ratio.1": 0.5, "in_process_ratio.2": 0.5, "two_over_one": 2.0}
    assert numbers.items() >= in_process.items() and numbers["weights.sync_s"] == 0.5
    if cores == 2:
        assert (numbers["tokens_per_s"], numbers["ratio"]) == (150.0, 0.75)
    else:
        assert found["rollouts.ratio"] == rollouts.NO_PROCESS.format(1)


@pytest.mark.parametrize("has_trl", [False, True])
def test_training_without_trl_says_how_to_get_it(has_trl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if has_trl else None)
    speeds = {"ours": [30.0, 20.0], "trl": [10.0, 10.0]}
    monkeypatch.setattr(training, "_run", lambda what, sides, settings: {side: speeds[side] for side in sides})
    found = training.measure(Settings(repeats=2))
    assert found.keys() == {key for key in bench.KEYS if key.startswith("training.")}
    assert found["training.ratio"] == (figure([3.0, 2.0]) if has_trl else training.NO_TRL)


def test_dialogues_are_complete_repeat_and_differ_in_length() -> None:
    groups, again = (list(dialogues(4, 2, seed=1)) for _ in range(2))
    played = [dialogue for group in groups for dialogue in group]
    assert groups == again and len({len(dialogue.turns) for dialogue in played}) > 1
    assert all(dialogue.outcome is not None and dialogue.turns[0].speaker is Speaker.USER for dialogue in played)


def test_a_real_batch_trains_on_replies_alone(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1))
    batch = training.real_batch(tokenizer, num_groups=1, group_size=2)
    (first, _), *_ = dialogues(1, 2, seed=0)
    replies = [[*tokenizer(reply, add_special_tokens=False)["input_ids"], Chat(tokenizer).end_of_turn_id] for reply in first.replies()]
    assert batch.token_ids_BT[0][batch.loss_mask_BT[0]].tolist() == list(chain.from_iterable(replies))


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed (requirements/bench.txt)")
def test_trl_takes_the_same_step() -> None:
    from policy.algorithms.algorithms import Grpo
    from policy.config import GrpoConfig, LearnerConfig
    from policy.learner import Learner

    batch, ours = random_batch(seed=1, num_groups=4), tiny_model()
    algorithm = Grpo(GrpoConfig())
    targets = algorithm.targets(batch)
    Learner(LearnerConfig(max_grad_norm=1e9), algorithm, ours).update(batch, targets)
    trl = training.TrlStep(tiny_model(), tiny_tokenizer(), rows=batch.num_rollouts, micro_rows=4)
    trl.gradient(batch, targets.advantages_BT)
    for (name, a), b in zip(ours.named_parameters(), trl.trainer.model.parameters(), strict=True):
        np.testing.assert_allclose(torch.asarray(b.grad), torch.asarray(a.grad), rtol=1e-3, atol=1e-5, err_msg=name)


def test_delays_of_slow_users_are_log_normal_and_the_same_for_the_same_turn() -> None:
    delays = [delay_of(f"/{i}") for i in range(20_000)]
    assert delays[:10] == [delay_of(f"/{i}") for i in range(10)]
    assert np.median(delays) == pytest.approx(0.15, rel=0.03) and np.quantile(delays, 0.99) == pytest.approx(1.2, rel=0.06)


def test_serial_users_take_lockstep_s_engine_time_and_a_call_for_each_reply() -> None:
    lockstep = Timing(num_replies=100, seconds=9.0, engine_s=5.0)
    four = Timing(num_replies=10, seconds=4.0, engine_s=1.0, user_s=2.0)
    assert serial_replies_per_s(lockstep, four) == pytest.approx(1.0 / (0.05 + 0.2))


@pytest.mark.engine
def test_engines_are_measured_by_all_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    for module, name, value in (
        (simulator, "NUM_DIALOGUES", 6),
        (simulator, "NUM_SERIAL", 2),
        (simulator, "NUM_ENGINES", 1),
        (simulator, "MEDIAN_S", 0.01),
        (simulator, "P99_S", 0.05),
        (rollouts, "DRIVER_ENGINES", 1),
        (rollouts, "LARGE_MB", 16),
    ):
        monkeypatch.setattr(module, name, value)
    settings = Settings(repeats=1, model=str(folder), engine=EngineKind.HF)
    found = simulator.measure_slow(settings) | rollouts.measure_driver(settings) | training.measure_mismatch(settings)
    assert found.keys() == {key for key in bench.KEYS if key.startswith(("slow_simulator.", "driver.", "mismatch."))}
    assert all(number.median > 0.0 and number.repeats == 1 for number in found.values())
    assert found["mismatch.fp32_mean_abs"].median < 1e-4
    rounds = rollouts.measure_rounds(settings, num_engines=1, engine_process=False)
    assert rounds.rollout_tokens_per_s[0] > 0 < rounds.offline_tokens_per_s[0] and rounds.update_s[0] > 0


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
    tiny = gpu.SHAPES["tiny"]
    model = gpu.random_model(tiny, positions=64, device=torch.device("cpu"))
    assert gpu.num_parameters(tiny) == sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    for size, number in {"0.5b": 0.49e9, "1.5b": 1.54e9, "3b": 3.09e9, "7b": 7.61e9}.items():
        assert gpu.num_parameters(gpu.SHAPES[size]) == pytest.approx(number, rel=0.01)
    # Each layer: queries and output 64 x 64, keys and values 64 x 32, three matrices of 64 x 128; two layers.
    in_layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    assert gpu.num_in_layers(tiny) == in_layers
    assert gpu.update_flops(tiny, [10, 20], num_trained=5) == 6 * in_layers * 30 + 6 * 4096 * 64 * 5 + 6 * 2 * 64 * (100 + 400)


@pytest.mark.parametrize(("card", "tflops"), [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("Something", None)])
def test_cards_are_known_by_their_names(card: str, tflops: int | None) -> None:
    assert gpu.peak_flops(card) == (tflops and tflops * 1e12)


@pytest.mark.parametrize(
    ("command", "arguments", "name"),
    [
        (bench, ["--repeats", "0"], "--repeats"),
        (bench, ["--out", "/no/such/folder/bench.json"], "--out"),
        (bench, ["--out", "b.html"], "--out"),
        (bench_gpu, ["--rows", "0"], "--rows"),
        (bench_gpu, ["--tokens", "4096", "--micro-tokens", "1024"], "--tokens"),
        (bench_gpu, ["--device", "cpu"], "--size"),
        (bench_gpu, ["--out", "/no/such/folder/g.json"], "--out"),
        (bench_gpu, [], "CUDA"),
    ],
)
def test_impossible_requests_are_refused_before_anything_is_measured(command, arguments, name, capsys, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as refused:
        raise SystemExit(command.main(arguments))
    assert refused.value.code == 2 and name in capsys.readouterr().err
