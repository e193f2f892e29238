"""Whole runs: what they leave, how they stop, and that a resumed one goes on as if nothing had happened.

All run in this process with a tiny policy on the transformers engine, but for the two that are interrupted and killed from outside.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
import torch
import yaml
from documented_metrics import undocumented
from pages import dialogues_on
from parts_in_process import SMALL, InProcessPool
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny_policy import save_tiny_policy

from analysis.__main__ import main as analysis
from analysis.runs import CONFIG, DIALOGUES, EVALUATION, METRICS, SUMMARY, TEACHER, read_lines
from experiments.__main__ import main
from experiments.callbacks import CALLBACKS, Callback
from experiments.config import load, to_plain
from experiments.run_lock import Interruption, only_writer
from policy.checkpoint import newest_checkpoint, save_checkpoint
from policy.model import load_model
from simulator.files import ExitCode

ROOT = Path(__file__).resolve().parent.parent
NUM_STEPS = 3
SUMMARY_KEYS = """experiment name seed steps wall_s cpu_s policy_tokens simulator_calls world algorithm teacher heldout start reference
    entropy reward_density strictness collapse mismatch errors versions cut_short""".split()
HELDOUT_KEYS = "score score_ci95 auc by_strictness worst_cell cvar20 success_rate failure_rate n_dialogues cut_short".split()
TIMED = ("timing_s/", "perf/update_", "rollout/tokens_per_s", "rollout/engine_busy_share", "rollout/num_dispatched")
OF_A_PROCESS = {"name", "wall_s", "cpu_s"}
"""Keys of the summary that differ between equal runs."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The folder of all runs, next to a model."""
    torch.set_num_threads(1)  # as in the runs that are processes
    folder = tmp_path_factory.mktemp("runs")
    save_tiny_policy(folder / "tiny", hidden=32, layers=1)
    return folder


def words(place: Path, *overrides: str) -> list[str]:
    settings = ["rollout.deterministic=true", "group_size=2", f"budget.steps={NUM_STEPS}", "checkpoint.every=1"]
    return ["smoke", f"runs={place}", f"policy.model={place}/tiny", *SMALL, *settings, *overrides]


@pytest.fixture
def run(place, monkeypatch, capsys) -> Callable[..., str]:
    """Makes a run in this process, without its report, which takes longest; returns what it printed."""
    monkeypatch.setattr("experiments.run.write_report", lambda folder: folder / "report.html")

    def run(*overrides: str, code: int = 0, pool: type = InProcessPool) -> str:
        monkeypatch.setattr("experiments.build.RolloutPool", pool)
        capsys.readouterr()
        assert main(words(place, *overrides)) == code
        return capsys.readouterr().err

    return run


@dataclass
class LastWords(Callback):
    """Adds a key to the summary, and remembers the metrics of all its runs."""

    heard: ClassVar[dict[str, float]] = {}

    def on_metrics(self, run, step, metrics):
        self.heard.update(metrics)

    def at_end(self, run, summary):
        return {"last_words": {"steps": run.state.step, "score": summary["heldout"]["score"], "num_heard": len(self.heard)}}


@dataclass
class NoWords(Callback):
    """Fails at the end."""

    def at_end(self, run, summary):
        raise RuntimeError("lost for words")


@pytest.fixture(scope="module")
def whole(place) -> Path:
    """A run of three steps of four dialogues that nothing disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.build.RolloutPool", InProcessPool)
        assert main(words(place, "name=whole")) == 0
    return place / "smoke" / "whole"


def copied(whole: Path, name: str) -> Path:
    return shutil.copytree(whole, whole.with_name(name))


def summary_of(folder: Path) -> dict:
    return json.loads((folder / SUMMARY).read_text())


def untimed(folder: Path) -> list[dict]:
    return [{key: value for key, value in line.items() if not key.startswith(TIMED)} for line in read_lines(folder / METRICS)]


def is_the_same_run(folder: Path, other: Path) -> None:
    for name in (TEACHER, DIALOGUES, EVALUATION):
        assert (folder / name).read_text() == (other / name).read_text(), name
    assert untimed(folder) == untimed(other)
    ours, theirs = ({key: value for key, value in summary_of(each).items() if key not in OF_A_PROCESS} for each in (folder, other))
    assert ours == theirs


# A finished run -----------------------------------------------------------------------------------------------------------------


def test_a_run_leaves_every_file_of_its_folder(whole):
    names = {path.name for path in whole.iterdir()}
    assert {CONFIG, METRICS, TEACHER, DIALOGUES, EVALUATION, SUMMARY, "report.html", "checkpoints", "log.txt"} <= names
    assert any(name.startswith("events.out.tfevents.") for name in names)
    assert "whole" in (whole / "report.html").read_text() and "step    0  held-out" in (whole / "log.txt").read_text()
    assert analysis(["transcripts", str(whole)]) == 0
    assert next(read_lines(whole / DIALOGUES))["scenario_id"] == dialogues_on(whole / "transcripts.html")[0]["scenario_id"]


def test_the_newest_two_checkpoints_stay_and_load_as_models(whole):
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == ["step_2", "step_3"]
    model, tokenizer = load_model(newest_checkpoint(whole))
    assert model.config.hidden_size == 32 and tokenizer.chat_template


def test_the_summary_has_exactly_the_stable_keys(whole):
    summary = summary_of(whole)
    # The run hears ordinary English, so it has a second listener.
    assert set(summary) == {*SUMMARY_KEYS, "second_listener"}
    assert set(summary["heldout"]) == set(summary["start"]) == {*HELDOUT_KEYS, "second_listener"}
    assert set(summary["reference"]) == {"L0", "L6"} and set(summary["reference"]["L6"]) == {"score"}
    assert set(summary["entropy"]) == set(summary["reward_density"]) == {"start", "end"}
    assert set(summary["strictness"]) == {"start", "end", "trace"} and len(summary["strictness"]["trace"]) == NUM_STEPS
    assert set(summary["collapse"]) == {"alarms", "first_step"} and set(summary["mismatch"]) == {"kl", "mean_abs_logprob"}
    assert summary["errors"] == {"simulator": 0, "engine": 0, "excluded_dialogues": 0}
    assert (summary["experiment"], summary["name"], summary["steps"], summary["world"]) == ("smoke", "whole", NUM_STEPS, "open-2")
    assert summary["heldout"]["n_dialogues"] == summary["start"]["n_dialogues"] == 2
    assert summary["wall_s"] > 0 and summary["cpu_s"] > 0


def test_the_policy_is_evaluated_before_training_in_every_tenth_and_at_the_end(whole):
    looks = {line["look"]: (line["step"], line["grid"]) for line in read_lines(whole / EVALUATION)}
    assert list(looks.values()) == [(0, "full"), (1, "during"), (2, "during"), (3, "full")]


def test_every_metric_is_documented_and_drawn(whole):
    lines = list(read_lines(whole / METRICS))
    assert undocumented(key for line in lines for key in line if key != "step") == []
    events = EventAccumulator(str(whole), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    events.Reload()
    drawn = [(event.step, event.value) for event in events.Scalars("reward/mean")]
    assert drawn == [(line["step"], pytest.approx(line["reward/mean"])) for line in lines]
    assert "eval/full_grid" in events.Tags()["images"] and "dialogue/0" in events.Tags()["tensors"]
    assert events.Scalars("eval/auc")[0].value == pytest.approx(summary_of(whole)["heldout"]["auc"])


def test_the_settings_name_their_origin_and_give_the_run_again(whole, place):
    saved = yaml.safe_load((whole / CONFIG).read_text())
    provenance = saved.pop("provenance")
    assert provenance["format"] == 2 and provenance["world"] == "open-2" and len(provenance["initial_policy"]) == 16
    assert {"python", "torch", "transformers"} <= set(provenance["versions"])
    again = to_plain(load("smoke", [*provenance["overrides"], f"runs={place}", "name=whole", "checkpoint.every=1"]))
    assert again == saved


def test_a_run_ends_with_its_result_and_its_place_also_where_its_report_or_a_callback_fails(run, place, monkeypatch):
    def fails(folder):
        raise ValueError("no picture")

    monkeypatch.setattr("experiments.run.write_report", fails)
    monkeypatch.setitem(CALLBACKS, "last_words", LastWords)
    monkeypatch.setitem(CALLBACKS, "no_words", NoWords)
    monkeypatch.setattr(LastWords, "heard", heard := {})
    output = run("name=named", "budget.steps=1", "callbacks.no_words={}", "callbacks.last_words={}")
    events = EventAccumulator(str(place / "smoke" / "named"))
    events.Reload()
    assert {key for key, value in heard.items() if math.isfinite(value)} == {*events.Tags()["scalars"]} >= {"reward/mean", "eval/auc"}
    summary = summary_of(place / "smoke" / "named")
    assert summary["last_words"] == {"steps": 1, "score": summary["heldout"]["score"], "num_heard": len(heard)}
    assert "held-out score" in output and "L6" in output and f"results     {place}/smoke/named" in output
    assert "callbacks.no_words left nothing in the summary: lost for words" in output
    assert "no report: no picture" in output and f"make report RUN={place}/smoke/named" in output


def test_a_run_warns_once_of_evaluations_and_steps_whose_contexts_were_full(run):
    output = run("name=short", "rollout.max_context=100", "rollout.max_turns=8", "budget.steps=2")
    assert output.count("WARNING at step 0: 100% of the held-out dialogues were cut short") == 1
    assert output.count("WARNING at step 1: 100% of the training dialogues were cut short") == 1 and output.count("cut short") == 2


# Resumed runs -------------------------------------------------------------------------------------------------------------------


def test_a_run_with_a_larger_budget_goes_on_as_one_that_had_it_at_once(run, place):
    """The critic's weights and optimiser are in no model folder, so they must be restored from the state."""
    ppo = ("algorithm.kind=ppo", "algorithm.turn_credit=0.5", "algorithm.critic_warmup_steps=1")
    run("name=ppo", *ppo, "budget.steps=4")
    run("name=half", *ppo, "budget.steps=2")
    full, half = place / "smoke" / "ppo", place / "smoke" / "half"
    ended = summary_of(half)
    assert "larger budget.policy_tokens or budget.steps" in run(f"resume={half}", "budget.steps=2", code=2)
    run(f"resume={half}", "budget.steps=4")
    assert json.loads((half / "summary.earlier.json").read_text()) == ended
    # What depends on the share of the budget differs before the resume.
    taught = [re.sub(r'"budget_fraction": [^,}]+', "", (each / TEACHER).read_text()) for each in (half, full)]
    logged = [[line | {"curriculum/entropy_affordable": None} for line in untimed(each)] for each in (half, full)]
    assert logged[0] == logged[1] and taught[0] == taught[1]
    # The evaluation with which the half ended is gone; a small one at the same step has its place on the curve.
    assert [{line["step"] for line in read_lines(each / EVALUATION)} for each in (half, full)] == [{0, 1, 2, 3, 4}] * 2
    lines = list(read_lines(half / METRICS))
    assert [line["training/policy_version"] for line in lines] == [0, 1, 2, 3] and all(line["critic/grad_norm"] > 0 for line in lines)


def test_a_torn_checkpoint_is_skipped_with_a_warning(run, whole):
    folder = copied(whole, "torn")
    (folder / SUMMARY).unlink()
    (newest_checkpoint(folder) / "state.pt").write_bytes(b"")
    output = run(f"resume={folder}")
    assert "after step 2" in output and "SKIPPED a newer checkpoint" in output and "state.pt" in (folder / "log.txt").read_text()
    is_the_same_run(folder, whole)


def test_a_run_that_lost_evaluations_or_is_written_by_another_process_is_refused(run, whole, monkeypatch):
    folder = copied(whole, "lost")
    (folder / SUMMARY).unlink()
    # Another process takes the lock just after the first check.
    with pytest.MonkeyPatch.context() as patch, only_writer(folder):
        patch.setattr("experiments.preflight.check_no_writer", lambda folder: None)
        assert "must be written by one process at a time" in run(f"resume={folder}", code=2)
    lines = (folder / EVALUATION).read_text().splitlines(keepends=True)
    (folder / EVALUATION).write_text("".join(line for line in lines if json.loads(line)["look"] == 0))
    assert f"{folder / EVALUATION} must reach look 2" in run(f"resume={folder}", code=2)


# Runs that stop -----------------------------------------------------------------------------------------------------------------


def interrupted_at(request: str, number: int = signal.SIGINT, *, nth: int = 1) -> type:
    """A pool during whose request of that name, for the first or a later time, a signal arrives."""
    left = [nth]

    def asked(self, *arguments, **named):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)
        return getattr(InProcessPool, request)(self, *arguments, **named)

    return type("InterruptedPool", (InProcessPool,), {request: asked})


def test_a_run_that_is_interrupted_before_its_folder_is_begun_leaves_none(run, place):
    assert "interrupted before a run began" in run("name=early", code=ExitCode.INTERRUPTED, pool=interrupted_at("load_weights"))
    assert not (place / "smoke" / "early").exists()


def test_an_interrupted_run_saves_with_its_records_on_the_disk_and_says_how_to_resume(run, place, whole, monkeypatch):
    folder, synced, seen = place / "smoke" / "stopped", [], []
    monkeypatch.setattr("experiments.recorder.os.fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    monkeypatch.setattr("experiments.run.save_checkpoint", lambda *a, **k: (seen.append(set(synced)), save_checkpoint(*a, **k)))
    output = run("name=stopped", code=ExitCode.INTERRUPTED, pool=interrupted_at("stats", signal.SIGTERM))
    assert f"to resume: python -m experiments smoke resume={folder}" in output
    assert newest_checkpoint(folder).name == "step_0" and not list(read_lines(folder / EVALUATION))
    assert seen == [{str(folder / name) for name in (METRICS, TEACHER, DIALOGUES, EVALUATION)}]
    run(f"resume={folder}")
    is_the_same_run(folder, whole)


def test_an_interrupted_run_that_rolls_out_ahead_plays_and_observes_every_task_once(run, place):
    folder = place / "smoke" / "ahead"
    # The pool is asked for its counts when the run begins and in each step.
    stopped = interrupted_at("stats", nth=3)
    run("name=ahead", "rollout.max_staleness=2", "budget.steps=6", code=ExitCode.INTERRUPTED, pool=stopped)
    assert newest_checkpoint(folder).name == "step_2"
    run(f"resume={folder}", "budget.steps=6")
    records = list(read_lines(folder / TEACHER))
    issued = [record["uid"] for record in records if record["event"] == "task"]
    assert len(set(issued)) == 12 and issued == [record["task"] for record in records if record["event"] == "outcome"]
    assert [line["step"] for line in read_lines(folder / METRICS)] == [1, 2, 3, 4, 5, 6]
    assert sum(line["num_tokens"] for line in read_lines(folder / DIALOGUES)) == summary_of(folder)["policy_tokens"]


def test_a_run_that_cannot_write_its_checkpoint_fails_in_a_sentence(run, whole):
    folder = copied(whole, "unsaved")
    (folder / "checkpoints" / ".step_99.new").touch()  # a file where half of a checkpoint would be
    output = run(f"resume={folder}", "budget.steps=4", code=ExitCode.FAILED)
    assert "stopped in step 4: [Errno 20]" in output and "Traceback" not in output and f"resume={folder}" in output


BREAKS = ("rollout.deterministic=false", "rollout.dialogue_timeout_s=0.0001", "rollout.retries=0")


def test_a_run_whose_evaluation_breaks_fails_with_the_first_traceback_and_records_nothing_of_it(run, place):
    folder = place / "smoke" / "unjudged"
    output = run("name=unjudged", *BREAKS, code=ExitCode.FAILED)
    assert "at most 1 of 2 held-out dialogues may break, got 2" in output and "the first:\nTraceback" in output
    assert not list(read_lines(folder / EVALUATION)) and newest_checkpoint(folder) is None


def test_a_run_whose_dialogues_break_fails_with_the_first_traceback_and_keeps_its_checkpoints(run, place):
    folder = place / "smoke" / "broken"
    output = run("name=broken", *BREAKS, "rollout.max_error_share=1", "budget.steps=20", "checkpoint.every=4", code=ExitCode.FAILED)
    assert "10 steps in a row must not be empty" in output and "the first error:\nTraceback" in output
    assert newest_checkpoint(folder).name == "step_8"
    assert {line["step"] for line in read_lines(folder / EVALUATION)} == {0, 2, 4, 6, 8}  # at every tenth of the budget
    first = next(read_lines(folder / METRICS))
    assert first["dialogue/error_share"] == 1 and first["reward/mean"] is None and first["training/policy_version"] == 0


def test_a_model_whose_weights_are_not_finite_is_refused_and_leaves_nothing(run, place):
    model = shutil.copytree(place / "tiny", place / "no-numbers")
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    output = run(f"policy.model={model}", "name=refused", code=ExitCode.REFUSED)
    assert "'model.norm.weight'" in output and "Traceback" not in output and not (place / "smoke" / "refused").exists()


@pytest.mark.parametrize("workers", ["answer", "broke"])
def test_a_run_that_stops_says_what_its_users_cost_whether_or_not_workers_answer(run, place, monkeypatch, workers):
    class Paid(interrupted_at("stats")):
        costs = iter([0.0, 1.25])  # when the run begins, and at its last checkpoint

        def user_counts(self, *, timeout_s=None):
            if timeout_s is None:
                return {"cost": next(self.costs)}
            if workers == "answer":
                return {"cost": 2.5}
            raise TypeError("something else")

    output = run(f"name=paid-{workers}", code=ExitCode.INTERRUPTED, pool=Paid)
    assert f"the simulated users cost {2.5 if workers == 'answer' else 1.25:.2f} so far" in output


# From outside -------------------------------------------------------------------------------------------------------------------


def start(place: Path, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "experiments", *words(place, *overrides)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_steps(folder: Path, number: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while len(list(read_lines(folder / METRICS))) < number and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    """Whether it still works; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.engine
def test_a_killed_run_leaves_no_process_and_is_resumed_as_if_nothing_had_happened(run, place, whole):
    """Takes 15 s: a process of its own with Ray and a real pool, whose dialogues are those of the run in this process."""
    folder = place / "smoke" / "killed"
    process = start(place, "name=killed")
    wait_for_steps(folder, 2, process)
    started = [child for child in psutil.Process(process.pid).children(recursive=True) if not child.name().endswith("Agent")]
    process.kill()  # the driver alone; Ray's two agents may take minutes
    process.communicate()
    assert any("RolloutWorker" in name for name in (child.name() for child in started if is_alive(child))) or len(started) > 2
    deadline = time.monotonic() + 60
    while (orphans := [child for child in started if is_alive(child)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not orphans and not (folder / SUMMARY).exists()
    run(f"resume={folder}")
    is_the_same_run(folder, whole)


@pytest.mark.engine
def test_ctrl_c_lets_a_run_finish_its_step(place):
    """Takes 15 s: a process of its own with Ray. The signal goes to the whole group of processes, as a terminal's does."""
    folder = place / "smoke" / "interrupted"
    process = start(place, "name=interrupted", "budget.steps=1000", "evaluation.listener=none", "probe.num_dialogues=0")
    wait_for_steps(folder, 1, process)
    assert main(words(place, f"resume={folder}")) == ExitCode.REFUSED
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == ExitCode.INTERRUPTED, output
    assert f"to resume: python -m experiments smoke resume={folder}" in output and "Traceback" not in output
    assert newest_checkpoint(folder).name == f"step_{list(read_lines(folder / METRICS))[-1]['step']}"


# Signals ------------------------------------------------------------------------------------------------------------------------


def test_the_first_signal_is_remembered_the_second_raises_and_the_third_does_not_disturb_the_clean_up():
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background
    with Interruption() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("handler", "counts"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)])
def test_a_closed_terminal_is_a_first_signal_but_under_nohup(handler, counts):
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interruption.requested is counts
        assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)
