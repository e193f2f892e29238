"""The benchmark's files: the keys others read, numbers where something was measured and a reason where not; never how fast anything is."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from policy_factories import random_batch, tiny_model, tiny_tokenizer

from experiments import bench
from experiments.benchmarks import rollouts, training
from experiments.benchmarks.figures import Figure, Settings, dialogues, embedded_user, figure, ratio_of_medians, ratios
from experiments.benchmarks.rollouts import Rounds
from policy.config import EngineConfig, RolloutConfig
from simulator.dialogue import Speaker

PUBLISHED = {
    "rollouts": {"tokens_per_s", "ceiling_tokens_per_s", "ratio", "engines", "in_process_ratio", "two_over_one"},
    "slow_simulator": {"vs_serial", "vs_lockstep"},
    "training": {"tokens_per_s", "trl_tokens_per_s", "ratio", "peak_mb", "trl_peak_mb", "large_vocab"},
    "weights": {"sync_s"},
    "mismatch": {"fp32_mean_abs", "bf16_mean_abs"},
    "teacher": {"us_per_task"},
    "simulator": {"reactions_per_s"},
}


def test_figure_is_the_median_with_its_range() -> None:
    assert figure([3.0, 1.0, 2.0]) == Figure(median=2.0, lowest=1.0, highest=3.0, repeats=3)
    assert ratios([2.0, 9.0, 8.0], [1.0, 3.0, 2.0]) == Figure(median=3.0, lowest=2.0, highest=4.0, repeats=3)
    assert ratio_of_medians([2.0, 9.0, 8.0], [1.0, 4.0, 2.0]) == Figure(median=4.0, lowest=0.5, highest=9.0, repeats=3)


def test_document_has_the_published_keys_and_a_reason_for_each_null() -> None:
    found = bench.document(dict.fromkeys(bench.KEYS, "because") | {"teacher.us_per_task": figure([2.0, 1.0, 4.0])})
    for section, keys in PUBLISHED.items():
        assert found[section].keys() == keys
    assert found["rollouts"]["engines"].keys() == {"1", "2"}
    assert found["training"]["large_vocab"].keys() == {"peak_mb", "trl_peak_mb"}
    assert found["teacher"]["us_per_task"] == 2.0
    assert found["spread"] == {"teacher.us_per_task": {"min": 1.0, "max": 4.0, "repeats": 3}}
    assert found["weights"]["sync_s"] is None
    assert found["reasons"].keys() == bench.KEYS.keys() - {"teacher.us_per_task"}


def test_page_shows_numbers_with_ranges_and_reasons_as_text() -> None:
    page = bench.page(bench.document(dict.fromkeys(bench.KEYS, "no <engine>") | {"teacher.us_per_task": figure([2.0, 1.0, 4.0])}))
    assert '<td>teacher.us_per_task<td class="n">2<td class="n">1 to 4, 3 times' in page
    assert "no &lt;engine&gt;" in page and "<engine>" not in page
    assert "http" not in page


def test_who_reads_the_figures_while_new_ones_are_written_reads_the_earlier_ones_whole(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    earlier, later = (bench.document(dict.fromkeys(bench.KEYS, reason)) for reason in ("earlier", "later"))
    bench.write(earlier, path)
    with path.open() as figures, path.with_suffix(".html").open() as page:
        bench.write(later, path)
        assert json.load(figures) == earlier and page.read() == bench.page(earlier)
    assert json.loads(path.read_text()) == later


def test_part_that_fails_leaves_its_reason_and_the_others_their_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = {
        "teacher": lambda settings: {"teacher.us_per_task": figure([1.0] * settings.repeats)},
        "rollouts": lambda settings: 1 / 0,
    }
    monkeypatch.setattr(
        bench.importlib, "import_module", lambda name: type("Part", (), {"measure": staticmethod(parts[name.split(".")[-1]])})
    )
    out = tmp_path / "figures.json"
    assert bench.main(["--only", "rollouts", "--only", "teacher", "--repeats", "3", "--out", str(out)]) == 1
    found = json.loads(out.read_text())
    assert found["teacher"]["us_per_task"] == 1.0 and found["spread"]["teacher.us_per_task"]["repeats"] == 3
    assert found["reasons"]["weights.sync_s"] == "failed: ZeroDivisionError: division by zero"
    assert found["reasons"]["training.ratio"] == bench.NOT_ASKED
    assert (tmp_path / "figures.html").is_file()


@pytest.mark.parametrize(
    "arguments", [["--repeats", "0"], ["--threads", "0"], ["--out", "/no/such/folder/bench.json"], ["--out", "b.html"]]
)
def test_bad_input_is_refused_before_anything_is_measured(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(arguments) == 2
    assert f"{arguments[0]} must" in capsys.readouterr().err


@pytest.mark.parametrize("part", bench.PARTS)
def test_every_part_is_a_module_that_measures(part: str) -> None:
    assert importlib.util.find_spec(f"experiments.benchmarks.{part}") is not None


@pytest.mark.parametrize("part", ["simulator", "teacher"])
def test_light_parts_measure_their_key(part: str) -> None:
    found = importlib.import_module(f"experiments.benchmarks.{part}").measure(Settings(repeats=1))
    assert found.keys() == {key for key in bench.KEYS if key.startswith(f"{part}.")}
    assert all(isinstance(number, Figure) and number.median > 0 and number.repeats == 1 for number in found.values())


@pytest.mark.parametrize("cores", [1, 2])
def test_an_engine_with_a_core_beside_it_is_the_headline(cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measured(folder: Path, *, config: RolloutConfig, engine_config: EngineConfig, repeats: int, **_: object) -> Rounds:
        speed = 150.0 if engine_config.engine_process else 100.0 * config.num_engines
        rounds = {"rollout_tokens_per_s": (speed,) * repeats, "offline_tokens_per_s": (200.0 * config.num_engines,) * repeats}
        return Rounds(**rounds, update_s=(0.5,) * repeats)

    monkeypatch.setattr(rollouts, "bench_rollouts", measured)
    monkeypatch.setattr(rollouts.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(rollouts.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(Settings, "folder", lambda self: tmp_path)
    found = rollouts.measure(Settings(repeats=2))
    assert found.keys() == {key for key in bench.KEYS if key.startswith(("rollouts.", "weights."))}
    numbers = {key: value.median for key, value in found.items() if isinstance(value, Figure)}
    assert (numbers["rollouts.engines.1"], numbers["rollouts.engines.2"], numbers["weights.sync_s"]) == (100.0, 200.0, 0.5)
    assert (numbers["rollouts.in_process_ratio.1"], numbers["rollouts.in_process_ratio.2"]) == (0.5, 0.5)
    assert numbers["rollouts.two_over_one"] == 2.0
    if cores == 2:
        assert (numbers["rollouts.tokens_per_s"], numbers["rollouts.ratio"]) == (150.0, 0.75)
    else:
        assert found["rollouts.ratio"] == rollouts.NO_PROCESS.format(1)


@pytest.mark.parametrize("has_trl", [False, True])
def test_training_without_trl_says_how_to_get_it(has_trl: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if has_trl else None)
    monkeypatch.setattr(Settings, "folder", lambda self: tmp_path)
    speeds = {"ours": [30.0, 20.0], "trl": [10.0, 10.0]}
    monkeypatch.setattr(training, "_run", lambda what, folder, sides, settings: {side: speeds[side] for side in sides})
    found = training.measure(Settings(repeats=2))
    assert found.keys() == {key for key in bench.KEYS if key.startswith("training.")}
    assert found["training.ratio"] == (figure([3.0, 2.0]) if has_trl else training.NO_TRL)


def test_dialogues_are_whole_repeat_and_differ_in_length() -> None:
    groups, again = (list(dialogues(4, 2, seed=1, user=embedded_user())) for _ in range(2))
    assert groups == again
    played = [dialogue for group in groups for dialogue in group]
    assert all(dialogue.outcome is not None and dialogue.turns[0].speaker is Speaker.USER for dialogue in played)
    assert len({len(dialogue.turns) for dialogue in played}) > 1


@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="TRL is not installed (requirements/bench.txt)")
def test_trl_takes_the_same_step() -> None:
    from experiments.benchmarks.trl_step import TrlStep
    from policy.algorithms.algorithms import Grpo
    from policy.config import GrpoConfig, LearnerConfig
    from policy.learner import Learner

    batch, ours = random_batch(seed=1, num_groups=4), tiny_model()
    algorithm = Grpo(GrpoConfig())
    targets = algorithm.targets(batch)
    Learner(LearnerConfig(max_grad_norm=1e9), algorithm, ours).update(batch, targets)
    trl = TrlStep(tiny_model(), tiny_tokenizer(), rows=batch.num_rollouts, micro_rows=4)
    trl.gradient(batch, targets.advantages_BT)
    for (name, a), b in zip(ours.named_parameters(), trl.trainer.model.parameters(), strict=True):
        np.testing.assert_allclose(torch.asarray(b.grad), torch.asarray(a.grad), rtol=1e-3, atol=1e-5, err_msg=name)
