"""Benchmarks: the keys of bench.json, a number or a reason for each, and the arithmetic behind them; never how fast anything is."""

from __future__ import annotations

import importlib.util
import json
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_policy import save_tiny_policy

from experiments import bench
from experiments.benchmarks import rollouts, simulator, training
from experiments.benchmarks.figures import Figure, Settings, dialogues, repeated
from policy.config import EngineKind
from policy.model import load_tokenizer
from simulator.dialogue import Speaker
from simulator.tokens import Chat


def test_figures_are_medians_with_their_range() -> None:
    assert Figure.of([9.0, 1.0, 2.0]) == Figure(median=2.0, lowest=1.0, highest=9.0, repeats=3)
    assert Figure.ratio([2.0, 9.0, 8.0], [1.0, 3.0, 2.0]) == Figure(median=3.0, lowest=2.0, highest=4.0, repeats=3)
    assert repeated(lambda number: number, 2) == [1, 2] and repeated(lambda number: number, 2, warm_ups=0) == [0, 1]


def test_the_files_have_a_number_or_a_reason_for_every_published_key() -> None:
    found = bench.document(dict.fromkeys(bench.KEYS, "no <engine>") | {"teacher.us_per_task": Figure.of([2.0, 1.0, 4.0])})
    assert found["rollouts"].keys() == {"tokens_per_s", "ceiling_tokens_per_s", "ratio", "engines", "in_process_ratio", "two_over_one"}
    assert found["training"].keys() == {"tokens_per_s", "trl_tokens_per_s", "ratio", "peak_mb", "trl_peak_mb", "large_vocab"}
    assert found["driver"].keys() == {"cpu_ms_per_dialogue", "kb_per_dialogue", "cpu_ms_per_update", "cpu_ms_per_weight_mb"}
    assert found["rollouts"]["engines"] == {"1": None, "2": None} and found["weights"] == {"sync_s": None}
    assert found["mismatch"].keys() == {"fp32_mean_abs", "bf16_mean_abs"} and found["simulator"].keys() == {"reactions_per_s"}
    assert found["teacher"] == {"us_per_task": 2.0} and found["slow_simulator"].keys() == {"vs_serial", "vs_lockstep"}
    assert found["spread"] == {"teacher.us_per_task": {"min": 1.0, "max": 4.0, "repeats": 3}}
    assert found["reasons"].keys() == bench.KEYS.keys() - {"teacher.us_per_task"}


def test_a_part_that_fails_leaves_its_reason_and_the_others_their_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, function in bench.PARTS.values():
        assert callable(getattr(importlib.import_module(f"experiments.benchmarks.{module}"), function))
    parts = SimpleNamespace(
        measure=lambda settings: 1 / 0,
        measure_teacher=lambda settings: {"teacher.us_per_task": Figure.of([1.0] * settings.repeats)},
    )
    monkeypatch.setattr(bench.importlib, "import_module", lambda name: parts)
    out = tmp_path / "figures.json"
    assert bench.main(["--only", "rollouts", "--only", "teacher", "--repeats", "3", "--out", str(out)]) == 1
    found = json.loads(out.read_text())
    assert found["teacher"]["us_per_task"] == 1.0 and found["spread"]["teacher.us_per_task"]["repeats"] == 3
    assert found["reasons"]["weights.sync_s"] == "failed: ZeroDivisionError: division by zero"
    assert "--only" in found["reasons"]["training.ratio"]


@pytest.mark.parametrize(("measure", "key"), [(simulator.measure, "simulator."), (simulator.measure_teacher, "teacher.")])
def test_light_parts_measure_their_keys(measure, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "dialogues", lambda num_groups, group_size, **how: dialogues(1, 4, **how))
    found = measure(Settings(repeats=1))
    assert found.keys() == {name for name in bench.KEYS if name.startswith(key)}
    assert all(number.median > 0 and number.repeats == 1 for number in found.values())


@pytest.mark.parametrize("cores", [1, 2])
def test_an_engine_with_a_core_for_its_users_is_the_headline(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(settings: Settings, *, num_engines: int, engine_process: bool) -> rollouts.Rounds:
        fast = (150.0, 150.0) if engine_process else (100.0 * num_engines, 120.0 * num_engines)
        return rollouts.Rounds(fast, (200.0 * num_engines,) * 2, (0.5, 0.5))

    monkeypatch.setattr(rollouts, "measure_rounds", measured)
    monkeypatch.setattr(rollouts.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(rollouts.importlib.util, "find_spec", lambda name: object())
    found = rollouts.measure(Settings(repeats=2))
    assert found.keys() == {key for key in bench.KEYS if key.startswith(("rollouts.", "weights."))}
    numbers = {key.removeprefix("rollouts."): value.median for key, value in found.items() if isinstance(value, Figure)}
    in_process = {"engines.1": 110.0, "engines.2": 220.0, "in_process_ratio.1": 0.55, "in_process_ratio.2": 0.55}
    assert numbers.items() >= in_process.items() and numbers["weights.sync_s"] == 0.5
    # From the slowest of two engines, 200, over the fastest of one, 120, to the contrary.
    assert found["rollouts.two_over_one"] == Figure(median=2.0, lowest=200 / 120, highest=2.4, repeats=2)
    if cores == 2:
        assert (numbers["tokens_per_s"], numbers["ratio"]) == (150.0, 0.75)
    else:
        assert "two cores" in found["rollouts.ratio"]


@pytest.mark.parametrize("has_trl", [False, True])
def test_training_without_trl_says_how_to_get_it(has_trl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "find_spec", lambda name: object() if has_trl else None)
    speeds = {"ours": [30.0, 20.0], "trl": [10.0, 10.0]}
    monkeypatch.setattr(training, "run_measurement", lambda what, sides, settings: {side: speeds[side] for side in sides})
    found = training.measure(Settings(repeats=2))
    assert found.keys() == {key for key in bench.KEYS if key.startswith("training.")}
    assert found["training.ratio"] == Figure.of([3.0, 2.0]) if has_trl else "setup-bench" in found["training.ratio"]


def test_a_real_batch_trains_on_replies_alone(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1))
    batch = training.real_batch(tokenizer, num_groups=2, group_size=2)
    played = [dialogue for group in dialogues(2, 2, seed=0) for dialogue in group]
    assert all(dialogue.outcome is not None and dialogue.turns[0].speaker is Speaker.USER for dialogue in played)
    first = played[0]
    replies = [[*tokenizer(reply, add_special_tokens=False)["input_ids"], Chat(tokenizer).end_of_turn_id] for reply in first.replies()]
    assert batch.token_ids_BT[0][batch.loss_mask_BT[0]].tolist() == list(chain.from_iterable(replies))


def test_delays_of_slow_users_are_log_normal_and_the_same_for_the_same_turn() -> None:
    delays = [simulator.delay_of(f"/{i}") for i in range(20_000)]
    assert delays[:10] == [simulator.delay_of(f"/{i}") for i in range(10)]
    assert np.median(delays) == pytest.approx(0.15, rel=0.03) and np.quantile(delays, 0.99) == pytest.approx(1.2, rel=0.06)


@pytest.mark.engine
def test_engines_are_measured_by_all_their_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes 16 s: one pool for all parts; Ray and a worker take most of it."""
    folder = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    monkeypatch.setattr(simulator, "delay_of", lambda key: 0.001)
    monkeypatch.setattr(rollouts, "LARGE_MB", 16)
    monkeypatch.setattr(training, "dialogues", lambda num_groups, group_size, **how: dialogues(2, group_size, **how))
    for module, name, value in ((simulator, "NUM_DIALOGUES", 6), (simulator, "NUM_SERIAL", 2), (rollouts, "NUM_GROUPS", 2)):
        monkeypatch.setattr(module, name, value)
    for module, name in ((simulator, "NUM_ENGINES"), (rollouts, "DRIVER_ENGINES")):
        monkeypatch.setattr(module, name, 1)
    settings = Settings(repeats=1, model=str(folder), engine=EngineKind.HF)
    with rollouts.make_pool(settings, folder, rollouts.EchoUser, num_engines=1) as pool:
        monkeypatch.setattr(rollouts, "make_pool", lambda *_, **__: nullcontext(pool))
        rounds = rollouts.measure_rounds(settings, num_engines=1, engine_process=False)
        found = rollouts.measure_driver(settings) | simulator.measure_slow(settings)
    found |= training.measure_mismatch(settings)
    assert rounds.rollout_tokens_per_s[0] > 0 < rounds.offline_tokens_per_s[0] and rounds.update_s[0] > 0
    assert found.keys() == {key for key in bench.KEYS if key.startswith(("slow_simulator.", "driver.", "mismatch."))}
    assert all(number.median > 0.0 and number.repeats == 1 for number in found.values())
    assert found["mismatch.fp32_mean_abs"].median < 1e-4


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["--repeats", "0"], "--repeats"), (["--out", "/no/such/b.json"], "--out")],
)
def test_impossible_requests_are_refused_before_anything_is_measured(arguments, name, capsys) -> None:
    with pytest.raises(SystemExit) as refused:
        raise SystemExit(bench.main(arguments))
    assert refused.value.code == 2 and name in capsys.readouterr().err
