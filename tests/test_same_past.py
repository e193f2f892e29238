"""A run that goes on does so from its own past: records that are there, that nobody moved, and the weights that it began with."""

from __future__ import annotations

import signal
from dataclasses import dataclass

import pytest
from policy_factories import tiny_model, tiny_tokenizer
from test_cli import make_saved_run, refused
from test_run import begin, sent  # noqa: F401 (a fixture)
from tiny_policy import save_tiny_policy

from analysis.runs import CONFIG, EVALUATION, METRICS
from experiments.agents.agent import fingerprint
from experiments.callbacks import CALLBACKS, Callback
from experiments.config import load, to_yaml
from experiments.errors import ConfigError
from experiments.recorder import Recorder
from experiments.resume import check_initial_weights, check_records, needing_start
from policy.checkpoint import save_checkpoint


def test_a_run_that_another_process_went_on_with_while_this_one_started_its_engines_is_refused(begin, tmp_path):  # noqa: F811
    folder = tmp_path / "runs" / "smoke" / "made"
    begin(stats=sent(signal.SIGINT))
    before = (folder / METRICS).stat().st_ino

    def another_goes_on_and_ends():
        Recorder(folder, cut_after=(0, 0)).close()

    with pytest.raises(ConfigError, match=f"^{folder} must be written by one process at a time, got another one that went on with it"):
        begin(f"resume={folder}", load_weights=another_goes_on_and_ends)
    begin(f"resume={folder}", stats=sent(signal.SIGINT))
    assert (folder / METRICS).stat().st_ino != before


def records(folder, *, steps, looks):
    recorder = Recorder(folder)
    for step in range(1, steps + 1):
        recorder.metrics(step, {"reward/mean": 0.5})
    for look in range(looks):
        recorder.evaluation(look, [{"look": look}])
    recorder.close()
    return folder


@pytest.mark.parametrize(("steps", "looks"), [(3, 2), (5, 4)])
def test_records_may_reach_beyond_the_checkpoint_that_a_run_goes_on_from(tmp_path, steps, looks):
    check_records(records(tmp_path, steps=steps, looks=looks), step=3, num_looks=2)


def test_a_plan_to_go_on_says_that_records_are_lacking(capsys, tmp_path):
    folder = make_saved_run(tmp_path / "smoke" / "a")
    records(folder, steps=1, looks=0)
    state = {"run": {}}
    save_checkpoint(folder / "checkpoints" / "step_3", model=tiny_model(), tokenizer=tiny_tokenizer(), state=state)
    message = refused(capsys, "smoke", f"runs={tmp_path}", "resume=a", "--dry-run")
    assert message.startswith(f"{folder / METRICS} must reach step 3, ") and "delete checkpoints/step_3 to go on from" in message


@dataclass
class LooksBack(Callback):
    """Needs the weights before training."""

    needs_start = True


def test_a_run_that_goes_on_from_the_start_needs_no_records(tmp_path):
    check_records(tmp_path, step=0, num_looks=0)


@pytest.mark.parametrize(
    ("steps", "looks", "lacking"),
    [
        (2, 2, rf"{METRICS} must reach step 3, .* got step 2; bring"),
        (0, 2, rf"{METRICS} must reach step 3, .* got none; bring"),
        (3, 1, rf"{EVALUATION} must reach look 1, .* got look 0; bring"),
        (3, 0, rf"{EVALUATION} must reach look 1, .* got none; bring"),
    ],
)
def test_a_run_without_the_records_of_what_its_checkpoint_has_behind_it_is_refused(tmp_path, steps, looks, lacking):
    with pytest.raises(ConfigError, match=lacking):
        check_records(records(tmp_path, steps=steps, looks=looks), step=3, num_looks=2)


def test_a_run_whose_first_weights_were_exchanged_is_refused_where_it_still_needs_them(tmp_path):
    model = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)
    plain = load("smoke", [f"policy.model={model}"])
    pulled = load("smoke", [f"policy.model={model}", "algorithm.kl_coef=0.01"])
    (tmp_path / CONFIG).write_text(to_yaml(pulled, {"initial_policy": fingerprint(model)}), encoding="utf-8")
    check_initial_weights(pulled, tmp_path)
    save_tiny_policy(model, hidden=64, layers=1)
    check_initial_weights(plain, tmp_path)
    with pytest.raises(ConfigError, match=r"^policy.model must be what the run began with .* as algorithm.kl_coef=0.01 still needs"):
        check_initial_weights(pulled, tmp_path)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ([], []),
        (["algorithm.kl_coef=0.1"], ["algorithm.kl_coef=0.1"]),
        (["policy.lora.rank=4", "callbacks.looks_back={}"], ["policy.lora.rank=4", "callbacks.looks_back"]),
    ],
)
def test_what_still_needs_the_first_weights_goes_by_the_name_of_its_setting(overrides, named, monkeypatch):
    monkeypatch.setitem(CALLBACKS, "looks_back", LooksBack)
    assert list(needing_start(load("smoke", overrides))) == named
