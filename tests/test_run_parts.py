"""Small parts of a run: the probe panel, the proof of arrival, the closing words, progress and interruption."""

from __future__ import annotations

import asyncio
import io
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from policy_factories import group, rollout
from tiny_student import make_task, make_teacher

from curriculum.frontier import FrontierConfig, FrontierTeacher
from curriculum.task import Mode
from experiments.checks import canaries, largest_difference, require_arrival
from experiments.config import ProbeConfig
from experiments.errors import ConfigError
from experiments.evaluation import mean
from experiments.metrics import measure
from experiments.progress import Progress
from experiments.run_folder import closing_words, ends, series
from experiments.run_lock import Interruption
from experiments.tasks import as_observed, probe_tasks
from experiments.train import trainable
from policy.config import EngineConfig, EngineKind
from policy.engine.factory import make_engine
from simulator.dialogue import Outcome
from simulator.files import ExitCode, ended
from simulator.scenario import Split
from simulator.world import load_bank
from tests.tiny_policy import save_tiny_policy


def test_the_panel_spreads_over_families_and_strictness_and_never_changes():
    scenarios = load_bank().by_family(Split.TRAIN)
    tasks = probe_tasks(25, scenarios, seed=0)
    assert tasks == probe_tasks(25, scenarios, seed=0) != probe_tasks(25, scenarios, seed=1)
    assert sorted(task.strictness for task in tasks) == pytest.approx([(i + 0.5) / 25 for i in range(25)])
    families = {load_bank().scenario(task.scenario_id).family for task in tasks}
    assert len(families) == 24


def test_the_panel_is_looked_at_every_few_steps_or_never():
    assert [step for step in range(1, 11) if ProbeConfig(every=5).is_due(step)] == [5, 10]
    assert [step for step in range(1, 11) if ProbeConfig(every=5, at_start=True).is_due(step)] == [1, 5, 10]
    assert not ProbeConfig(num_dialogues=0).is_due(5)


def test_a_teacher_hears_the_panel_as_probes_that_it_did_not_issue():
    scenarios = load_bank().by_family(Split.TRAIN)
    tasks = probe_tasks(2, scenarios, seed=0)
    played = [replace(group(rollout([1, 2], [0, 1], policy_versions=(3, 4))), task=task) for task in tasks]
    outcomes = [measure(each, success_emotion=70.0) for each in as_observed(played, step=5)]
    assert [outcome.task.uid for outcome in outcomes] == ["step0000005-probe000", "step0000005-probe001"]
    assert [outcome.task.strictness for outcome in outcomes] == [task.strictness for task in tasks]
    teacher = FrontierTeacher(FrontierConfig(), scenarios=scenarios, group_size=8, seed=0)
    teacher.observe(outcomes)
    assert teacher.metrics()["curriculum/outcomes_probes"] == 2.0
    assert teacher.metrics()["curriculum/outcomes_ignored"] == teacher.metrics()["curriculum/outcomes_observed"] == 0.0


def test_canaries_are_dialogues_that_did_not_break():
    broken, first, second = rollout([9], [0], outcome=Outcome.ERROR), rollout([1, 2], [0, 1]), rollout([3, 4], [0, 1])
    groups = [group(broken, first), group(broken), group(second), group(first)]
    assert [ids.tolist() for ids in canaries(groups, max_context=3)] == [[1, 2], [3, 4]]


@pytest.mark.engine
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_a_canary_that_fills_every_position_of_the_model_can_be_scored_by_vllm(tmp_path):
    longest = 64
    engine = make_engine(EngineConfig(engine=EngineKind.VLLM), save_tiny_policy(tmp_path, positions=longest), max_context=longest)
    try:
        [ids] = canaries([group(rollout([7] * longest, [0] * 60 + [1] * 4))], max_context=longest)
        assert len(asyncio.run(engine.score(ids.tolist()))) == longest - 2
    finally:
        engine.close()


def test_groups_that_a_teacher_only_wanted_scored_are_not_learned_from():
    teacher = make_teacher("plr")
    tasks = [make_task(teacher, 0.5, mode=mode) for mode in (Mode.UNLEARNED, Mode.REPLAY, Mode.UNIFORM)]
    groups = [replace(group(rollout([1, i], [0, 1])), task=task) for i, task in enumerate(tasks)]
    assert [kept.task for kept in trainable(groups)] == tasks[1:]


def test_the_engine_that_differs_most_is_what_counts():
    sequences = [np.array([5, 6, 7])]
    difference = largest_difference(sequences, engines=lambda ids: [[-1.0, -2.0], [-1.0, -2.25]], learner=lambda ids: [-1.0, -2.0])
    assert difference == 0.25
    assert math.isnan(largest_difference([], engines=lambda ids: [], learner=lambda ids: []))
    # An engine whose logprobs are no numbers speaks with no weights at all.
    lost = largest_difference(sequences, engines=lambda ids: [[-1.0, -2.0], [math.nan, -2.0]], learner=lambda ids: [-1.0, -2.0])
    assert lost == math.inf


def test_weights_that_did_not_arrive_stop_a_run_in_full_precision_alone():
    require_arrival(1e-5, policy_version=3, is_fp32=True)
    require_arrival(0.05, policy_version=3, is_fp32=False)
    require_arrival(float("nan"), policy_version=3, is_fp32=True)
    with pytest.raises(RuntimeError, match=r"weights of version 3 must reach every engine, got .* by 0\.05 nats"):
        require_arrival(0.05, policy_version=3, is_fp32=True)


def test_start_and_end_are_means_of_five_steps_that_measured_something():
    lines = [{"step": i, "x": None if i == 2 else float(i)} for i in range(12)]
    values = series(lines, "x")
    assert values == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert ends(values) == {"start": 13 / 5, "end": 9.0}
    assert math.isnan(mean(series(lines, "never measured")))


def test_the_closing_words_say_how_far_towards_the_best_agent_the_policy_came(tmp_path):
    scores = {"score_ci95": [0.0, 0.0], "worst_cell": 5.0}
    summary = {
        "start": {**scores, "score": 20.0},
        "heldout": {**scores, "score": 50.0},
        "reference": {"L6": {"score": 80.0}, "L0": {"score": 15.0}},
        "collapse": {"alarms": [{"name": "repetition", "step": 7}]},
        "steps": 9,
        "policy_tokens": 12345,
        "wall_s": 60.0,
        "cpu_s": 90.0,
    }
    words = closing_words(summary, folder=tmp_path, report=tmp_path / "report.html", runs="runs")
    assert "20.0 [0.0, 0.0] before, 50.0 [0.0, 0.0] after" in words and "L0 15.0, L6 80.0" in words
    assert "of the way to L6  50%" in words
    assert "repetition at step 7" in words and str(tmp_path) in words
    alone = closing_words({**summary, "reference": {}}, folder=tmp_path, report=tmp_path / "report.html", runs="runs")
    assert "\nworst cell 5.0 -> 5.0\n" in alone and "nan" not in alone
    # Nothing to go, beyond it from the start, further from it than before: no share of a way.
    for start, end in ((80.0, 80.0), (95.0, 90.0), (50.0, 20.0), (20.0, math.nan)):
        scored = {"start": {**scores, "score": start}, "heldout": {**scores, "score": end}}
        words = closing_words({**summary, **scored}, folder=tmp_path, report=tmp_path / "report.html", runs="runs")
        assert "L6 80.0)\nworst cell 5.0 -> 5.0\n" in words


def test_the_closing_words_of_a_run_without_a_page_say_how_to_make_it(tmp_path):
    scored = {"score": 20.0, "score_ci95": [0.0, 0.0], "worst_cell": 5.0}
    counts = {"steps": 9, "policy_tokens": 12345, "wall_s": 60.0, "cpu_s": 90.0}
    summary = {"start": scored, "heldout": scored, "reference": {}, "collapse": {"alarms": []}, **counts}
    assert f"\nreport      make report RUN={tmp_path}\n" in closing_words(summary, folder=tmp_path, report=None, runs="runs")


def test_where_there_is_no_terminal_every_tenth_step_gets_a_line_and_a_log(tmp_path, capsys):
    progress = Progress(tmp_path, spent=0.0)
    for step in range(1, 21):
        progress.step(step, {"reward/mean": 0.5}, spent=step / 40)
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["10", "20"]
    assert "25%" in lines[0] and "reward 0.50" in lines[0]
    assert len((tmp_path / "log.txt").read_text().splitlines()) == 2


def test_the_first_signal_is_remembered_and_the_second_breaks_off():
    before = signal.getsignal(signal.SIGINT)  # ignored where the tests run in the background
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_terminal_that_is_closed_is_a_first_signal_and_nothing_under_nohup():
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, heard in ((signal.SIG_DFL, True), (signal.SIG_IGN, False)):
            signal.signal(signal.SIGHUP, handler)
            with Interruption() as interruption:
                os.kill(os.getpid(), signal.SIGHUP)
                assert interruption.requested is heard
            assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)


HANG_UP = """
import os, signal, sys
from pathlib import Path
import numpy as np, ray
from experiments.run_folder import Interruption
from policy.config import ClusterConfig
from policy.rollout.ray_cluster import start_ray, stop_ray
# The tests themselves may run under nohup.
signal.signal(signal.SIGHUP, before := signal.SIG_DFL)
start_ray(ClusterConfig(), num_cpus=1, folder=Path(sys.argv[1]))
assert signal.getsignal(signal.SIGHUP) == before
with Interruption() as interruption:
    ray.get(ray.remote(lambda: 0).remote())
    os.killpg(0, signal.SIGHUP)
    weights = ray.put(np.ones(1_000_000))
    print(interruption.requested, ray.get(ray.remote(lambda array: array.sum()).remote(weights)))
stop_ray()
"""


def test_ray_outlives_a_terminal_that_is_closed_so_that_the_step_at_hand_is_finished():
    """The signal goes to the whole group of processes, as a terminal's does."""
    with tempfile.TemporaryDirectory(prefix="hup-", dir="/tmp") as folder:
        done = subprocess.run(
            [sys.executable, "-c", HANG_UP, folder], capture_output=True, text=True, start_new_session=True, timeout=120, check=False
        )
    assert done.stdout.split() == ["True", "1000000.0"], done.stderr[-2000:]


CLOSED_MEANWHILE = """
import fcntl, signal, termios, time
from policy.rollout.ray_cluster import _deaf_to_hangups, _has_terminal
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
heard = []
signal.signal(signal.SIGHUP, lambda number, frame: heard.append("heard"))
with _deaf_to_hangups():
    print("within", flush=True)
    while _has_terminal():
        time.sleep(0.01)
    print("closed", *heard, flush=True)
print("after", *heard, flush=True)
"""


def test_a_terminal_that_is_closed_while_ray_starts_is_heard_of_afterwards():
    ours, its = os.openpty()
    words = [sys.executable, "-c", CLOSED_MEANWHILE]
    with subprocess.Popen(words, stdin=its, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            os.close(its)
            assert process.stdout is not None and process.stdout.readline() == "within\n"
            os.close(ours)
            assert process.communicate(timeout=60)[0] == "closed\nafter heard\n"
        finally:
            process.kill()


def test_a_reader_that_is_gone_ends_no_run(tmp_path, monkeypatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    progress = Progress(tmp_path, spent=0.0)
    progress.say("step 10")
    progress.close()
    assert "step 10" in (tmp_path / "log.txt").read_text(encoding="utf-8")


def test_a_full_disk_takes_no_line_of_the_log_and_the_person_hears_it_all_the_same(tmp_path, capsys):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    progress = Progress(tmp_path, spent=0.0)
    progress.say("stopped in step 3: no space left on device")
    progress.close()
    assert capsys.readouterr().err == "stopped in step 3: no space left on device\n"


def test_a_third_signal_does_not_break_off_what_the_second_has_cleared_away():
    with Interruption():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_polite_kill_before_a_run_clears_away_what_was_half_done(tmp_path, capsys):
    def build() -> int:
        with tempfile.TemporaryDirectory(dir=tmp_path):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return 0

    before = signal.getsignal(signal.SIGTERM)
    assert ended(build, refused=ConfigError, if_interrupted="nothing was written") == ExitCode.INTERRUPTED
    assert not list(tmp_path.iterdir()) and capsys.readouterr().err == "nothing was written\n"
    assert signal.getsignal(signal.SIGTERM) is before
