"""Whole small runs with every real part: what they leave, and that a killed one goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file, save_file

from analysis.runs import DIALOGUES, EVALUATION, METRICS, TEACHER, read_lines
from policy.checkpoint import newest_checkpoint
from policy.config import PriorConfig
from policy.prior.prior import build_prior

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parent.parent
NUM_STEPS = 6
SUMMARY_KEYS = (
    "experiment, name, seed, steps, wall_s, cpu_s, policy_tokens, simulator_calls, world, algorithm, teacher",
    "heldout, start, reference, entropy, reward_density, strictness, collapse, mismatch, errors, versions, cut_short",
)
HELDOUT_KEYS = "score, score_ci95, auc, by_strictness, worst_cell, cvar20, success_rate, failure_rate, n_dialogues, cut_short"
OF_THE_PROCESS = ("timing_s/", "perf/update_", "rollout/tokens_per_s", "rollout/engine_busy_share", "rollout/num_dispatched")


def keys(*lists: str) -> set[str]:
    return {key for names in lists for key in names.split(", ")}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a prior in it that is taught for seconds only."""
    folder = tmp_path_factory.mktemp("runs")
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        prior = build_prior(PriorConfig(num_tokens=40_000, hidden_size=64, num_layers=1, num_heads=2, intermediate_size=64), progress=False)
    finally:
        os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)
    prior.rename(folder / "prior")
    return folder


def start(place: Path, *overrides: str) -> subprocess.Popen[str]:
    settings = [
        f"runs={place}",
        f"policy.model={place}/prior",
        "policy.engine=hf",
        "rollout.deterministic=true",
        "rollout.max_turns=3",
        f"budget.steps={NUM_STEPS}",
        *overrides,
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "experiments", "smoke", *settings],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str], *, code: int = 0) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    return output


@pytest.fixture(scope="module")
def whole(place) -> tuple[Path, str]:
    """A run that nobody disturbed, and what it said."""
    output = finish(start(place, "name=whole"))
    return place / "smoke" / "whole", output


def test_a_run_leaves_every_file_of_its_directory(whole):
    folder, _ = whole
    names = {path.name for path in folder.iterdir()}
    assert {"config.yaml", METRICS, TEACHER, DIALOGUES, EVALUATION, "summary.json", "report.html", "checkpoints", "log.txt"} <= names
    assert any(name.startswith("events.out.tfevents.") for name in names)
    assert (newest_checkpoint(folder) / "config.json").is_file()


def test_the_summary_has_exactly_the_stable_keys(whole):
    summary = json.loads((whole[0] / "summary.json").read_text())
    assert set(summary) == keys(*SUMMARY_KEYS)
    assert set(summary["heldout"]) == set(summary["start"]) == keys(HELDOUT_KEYS)
    assert set(summary["reference"]) == {"L0", "L6"} and set(summary["reference"]["L6"]) == {"score"}
    assert set(summary["entropy"]) == set(summary["reward_density"]) == {"start", "end"}
    assert set(summary["strictness"]) == {"start", "end", "trace"} and len(summary["strictness"]["trace"]) == NUM_STEPS
    assert set(summary["collapse"]) == {"alarms", "first_step"} and set(summary["mismatch"]) == {"kl", "mean_abs_logprob"}
    assert summary["errors"] == {"simulator": 0, "engine": 0, "excluded_dialogues": 0}
    assert summary["steps"] == NUM_STEPS and summary["heldout"]["n_dialogues"] == 18


def test_engines_and_trainer_agree_and_every_update_arrives(whole):
    lines = list(read_lines(whole[0] / METRICS))
    measured = [diff for line in lines if (diff := line["training/rollout_logprob_abs_diff_mean"]) is not None]
    assert measured and max(measured) < 1e-5
    assert max(line["rollout/arrival_logprob_diff"] for line in lines) < 1e-4
    assert lines[-1]["training/policy_version"] > 0


def test_every_task_is_answered_and_every_token_billed(whole):
    records = list(read_lines(whole[0] / TEACHER))
    issued = [record["uid"] for record in records if record["event"] == "task"]
    assert len(issued) == 2 * NUM_STEPS
    assert issued == [record["task"] for record in records if record["event"] == "outcome"]
    dialogues = list(read_lines(whole[0] / DIALOGUES))
    assert [line["kind"] for line in dialogues].count("probe") == 4 * NUM_STEPS // 2
    assert sum(line["num_tokens"] for line in dialogues) == json.loads((whole[0] / "summary.json").read_text())["policy_tokens"]


def test_the_run_ends_by_saying_how_it_went_and_where_it_lies(whole):
    folder, output = whole
    assert "held-out score" in output and "L6" in output
    assert f"results     {folder}" in output and "make tensorboard" in output


def kill_without_orphans(process: subprocess.Popen[str]) -> None:
    """Kills a run's driver alone; all that it started must end by itself. Ray's two agents hold nothing and may take minutes."""
    family = psutil.Process(process.pid).children(recursive=True)
    started = [child for child in family if not child.name().endswith("Agent")]
    assert any("RolloutWorker" in child.name() for child in started) and len(started) > 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while (orphans := [child for child in started if is_alive(child)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not orphans


def is_alive(process: psutil.Process) -> bool:
    """Whether it still does something; one that is dead and only waits to be buried does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_run_goes_on_as_if_nothing_had_happened(place, whole):
    folder = place / "smoke" / "killed"
    process = start(place, "name=killed")
    deadline = time.monotonic() + 200
    while len(list(read_lines(folder / METRICS))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_without_orphans(process)
    goes_on_from = newest_checkpoint(folder).name.replace("_", " ")
    assert goes_on_from != "step 0" and not (folder / "summary.json").exists()
    assert f"after {goes_on_from}" in finish(start(place, f"resume={folder}"))

    for name in (TEACHER, DIALOGUES, EVALUATION):
        assert (folder / name).read_text() == (whole[0] / name).read_text()
    pairs = list(zip(read_lines(folder / METRICS), read_lines(whole[0] / METRICS), strict=True))
    assert len(pairs) == NUM_STEPS
    for ours, theirs in pairs:
        assert untimed(ours) == untimed(theirs)
    ended, undisturbed = (json.loads((path / "summary.json").read_text()) for path in (folder, whole[0]))
    of_a_sitting = {"name", "wall_s", "cpu_s"}
    assert {name: ended[name] for name in ended if name not in of_a_sitting} == {
        name: undisturbed[name] for name in undisturbed if name not in of_a_sitting
    }


def test_a_run_whose_newest_checkpoint_is_torn_goes_on_from_the_one_before_and_says_so(place, whole):
    folder = place / "smoke" / "torn"
    shutil.copytree(whole[0], folder)
    (folder / "summary.json").unlink()
    torn = newest_checkpoint(folder)
    (torn / "state.pt").write_bytes(b"")
    older = newest_checkpoint(folder)
    output = finish(start(place, f"resume={folder}"))
    skipped = f"SKIPPED a newer checkpoint: checkpoint {torn} must be whole, got a missing or changed state.pt"
    assert f"after {older.name.replace('_', ' ')}" in output and skipped in output
    assert skipped in (folder / "log.txt").read_text()
    assert (folder / TEACHER).read_text() == (whole[0] / TEACHER).read_text()


def test_a_killed_run_that_rolls_out_ahead_loses_no_task_and_hears_of_none_twice(place):
    folder = place / "smoke" / "ahead"
    process = start(place, "name=ahead", "rollout.max_staleness=2", "rollout.deterministic=false", "checkpoint.every=1")
    deadline = time.monotonic() + 200
    while len(list(read_lines(folder / METRICS))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_without_orphans(process)
    finish(start(place, "rollout.deterministic=false", f"resume={folder}"))

    records = list(read_lines(folder / TEACHER))
    issued = [record["uid"] for record in records if record["event"] == "task"]
    assert len(set(issued)) == len(issued) == 2 * NUM_STEPS
    assert issued == [record["task"] for record in records if record["event"] == "outcome"]
    steps = list(read_lines(folder / METRICS))
    assert [line["step"] for line in steps] == list(range(1, NUM_STEPS + 1))
    assert 1 <= max(line["off_policy/max"] for line in steps) <= 2
    assert all(line["off_policy/dropped"] == 0 for line in steps)
    dialogues = list(read_lines(folder / DIALOGUES))
    assert sum(line["num_tokens"] for line in dialogues) == json.loads((folder / "summary.json").read_text())["policy_tokens"]
    for line in dialogues:
        versions = line.get("reply_versions", line["policy_versions"])
        assert line["policy_versions"] == [min(versions), max(versions)] and versions == sorted(versions)


@pytest.mark.parametrize("kind", ["rloo", "reinforce_pp"])
def test_other_algorithms_train_by_their_name_alone(place, kind):
    finish(start(place, f"algorithm.kind={kind}", "algorithm.turn_credit=0.5", f"name={kind}", "budget.steps=2", "probe.num_dialogues=0"))
    lines = list(read_lines(place / "smoke" / kind / METRICS))
    assert lines[-1]["training/policy_version"] == 2 and lines[-1]["actor/grad_norm"] > 0
    assert json.loads((place / "smoke" / kind / "summary.json").read_text())["algorithm"] == kind


def test_a_run_with_a_critic_goes_on_where_it_stopped(place):
    """The critic's weights and optimiser are in no model folder, so they must come back with the state."""
    ppo = ("algorithm.kind=ppo", "algorithm.turn_credit=0.5", "algorithm.critic_warmup_steps=1", "probe.num_dialogues=0")
    finish(start(place, *ppo, "name=ppo", "budget.steps=4"))
    finish(start(place, *ppo, "name=ppo-halves", "budget.steps=2"))
    halfway = json.loads((place / "smoke" / "ppo-halves" / "summary.json").read_text())
    finish(start(place, f"resume={place}/smoke/ppo-halves", "budget.steps=4"))
    assert json.loads((place / "smoke" / "ppo-halves" / "summary.earlier.json").read_text()) == halfway
    pairs = list(zip(*(read_lines(place / "smoke" / name / METRICS) for name in ("ppo", "ppo-halves")), strict=True))
    assert len(pairs) == 4
    for whole_line, ours in pairs:
        assert untimed(ours) == untimed(whole_line)
    lines = [line for line, _ in pairs]
    # The evaluation with which the half ended has gone; one at the same step has its place on the curve.
    looks = [{line["step"] for line in read_lines(place / "smoke" / name / "evaluation.jsonl")} for name in ("ppo", "ppo-halves")]
    assert looks == [{0, 1, 2, 3, 4}] * 2
    assert [line["training/policy_version"] for line in lines] == [0, 1, 2, 3]
    assert all(line["critic/grad_norm"] > 0 for line in lines) and lines[-1]["critic/values/mean"] != 0.0


def untimed(line: dict) -> dict:
    return {key: value for key, value in line.items() if not key.startswith(OF_THE_PROCESS)}


def test_an_interrupted_run_finishes_its_step_and_says_how_to_go_on(place):
    folder = place / "smoke" / "interrupted"
    process = start(place, "name=interrupted", "budget.steps=1000")
    deadline = time.monotonic() + 200
    while len(list(read_lines(folder / METRICS))) < 1 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "must be written by one process at a time" in finish(start(place, f"resume={folder}"), code=2)
    process.terminate()
    output = finish(process, code=130)
    assert f"to go on: python -m experiments smoke resume={folder}" in output
    last = list(read_lines(folder / METRICS))[-1]["step"]
    assert newest_checkpoint(folder).name == f"step_{last}"


def test_a_model_whose_weights_no_engine_takes_is_refused_in_a_sentence_and_leaves_nothing(place):
    model = place / "no-numbers"
    shutil.copytree(place / "prior", model)
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"][0] = float("nan")
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    output = finish(start(place, f"policy.model={model}", "name=refused"), code=2)
    assert "Traceback" not in output
    assert output.splitlines()[-1] == "error: policy weights must be finite, got NaN or infinity in 'model.norm.weight' of version 0"
    assert not (place / "smoke" / "refused").exists()


def test_a_run_that_cannot_write_its_checkpoint_stops_in_a_sentence(whole, place):
    folder = shutil.copytree(whole[0], place / "smoke" / "unsaved")
    (folder / "checkpoints" / ".step_99.new").touch()  # a file where half of a checkpoint would be
    output = finish(start(place, f"resume={folder}", f"budget.steps={NUM_STEPS + 1}"), code=1)
    assert f"stopped in step {NUM_STEPS + 1}: [Errno 20] Not a directory" in output and "Traceback" not in output
    assert f"to go on: python -m experiments smoke resume={folder}" in output


BREAKS = ("rollout.deterministic=false", "rollout.dialogue_timeout_s=0.001", "rollout.retries=0")


def test_a_run_whose_evaluation_breaks_stops_with_the_first_traceback_and_records_nothing_of_it(place):
    folder = place / "smoke" / "unjudged"
    output = finish(start(place, "name=unjudged", *BREAKS), code=1)
    assert "at most 1 of 18 held-out dialogues may break, got 18; nothing was recorded" in output and "the first:\nTraceback" in output
    assert f"to go on: python -m experiments smoke resume={folder}" in output
    assert list(read_lines(folder / EVALUATION)) == [] and newest_checkpoint(folder) is None


def test_a_run_whose_dialogues_break_stops_with_the_first_traceback_and_can_go_on(place):
    folder = place / "smoke" / "broken"
    output = finish(start(place, "name=broken", *BREAKS, "rollout.max_error_share=1", "budget.steps=20"), code=1)
    assert "10 steps in a row must not come back empty" in output and "the first error:\nTraceback" in output
    assert f"to go on: python -m experiments smoke resume={folder}" in output
    assert newest_checkpoint(folder).name == "step_8"
    step = next(read_lines(folder / METRICS))
    assert step["dialogue/error_share"] == 1.0 and step["reward/mean"] is None and step["training/policy_version"] == 0
