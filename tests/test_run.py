"""A run around its steps, in one process: what is left behind where it is stopped or refused before the first, and what it cost."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
from parts_in_process import parts_in_process
from tiny_policy import save_tiny_policy

from experiments.config import load
from experiments.run import RunLoop, run
from experiments.run_state import RunState
from simulator.files import ExitCode


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Begins a run of the tiny policy; what else happens when its pool is asked for something goes by the name of that."""
    model = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)

    def begin(*overrides, **happenings):
        config = load("smoke", [f"policy.model={model}", f"runs={tmp_path / 'runs'}", *overrides])
        parts = parts_in_process(config, model)
        for request, happens in happenings.items():
            monkeypatch.setattr(parts.pool, request, after(happens, getattr(parts.pool, request)))
        monkeypatch.setattr("experiments.run.assemble", lambda *_, **__: (parts, None))
        return run(config, tmp_path / "runs" / "smoke" / "made")

    return begin


def after(happens, request):
    """Does what is asked once something else has happened."""

    def asked(*arguments):
        happens()
        return request(*arguments)

    return asked


def sent(number):
    """Sends a signal to this process."""
    return lambda: os.kill(os.getpid(), number)


def test_a_run_that_is_stopped_before_its_folder_is_begun_leaves_none(begin, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        begin(load_weights=sent(signal.SIGINT))
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_stopped_once_it_has_begun_says_how_to_go_on(begin, tmp_path, capsys):
    folder = tmp_path / "runs" / "smoke" / "made"
    assert begin(stats=sent(signal.SIGINT), close=sent(signal.SIGTERM)) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.endswith(f"interrupted; to go on: python -m experiments smoke resume={folder}\n")
    assert (folder / "checkpoints" / "step_0").is_dir()


@pytest.mark.parametrize("workers", ["answer", "are stuck", "broke"])
def test_a_run_that_stops_says_what_its_users_cost_and_waits_for_nobody(workers):
    asked, said = [], []

    def count_cost(*, timeout_s):
        asked.append(timeout_s)
        if workers != "answer":
            raise TypeError("something else") if workers == "broke" else RuntimeError("nobody answers")
        tally.simulator_cost = 2.5

    tally = RunState(simulator_cost=1.25)
    paid = load("smoke", ["simulator.kind=llm", "simulator.model=m", "simulator.price_prompt=1"])
    for config, so_far in ((paid, tally), (load("smoke"), RunState())):
        loop = SimpleNamespace(
            config=config, tally=so_far, training=SimpleNamespace(count_cost=count_cost), progress=SimpleNamespace(say=said.append)
        )
        RunLoop.say_cost(loop, " so far", timeout_s=5.0)
    assert asked == [5.0]
    cost = "2.50" if workers == "answer" else "1.25"
    assert said == [f"the simulated users cost {cost} so far, by simulator.price_prompt and simulator.price_completion"]


def test_a_run_that_has_ended_well_does_so_also_where_its_page_cannot_be_made(tmp_path):
    said, noted = [], []
    loop = SimpleNamespace(folder=tmp_path / "gone", progress=SimpleNamespace(say=said.append, note=noted.append))
    assert RunLoop.report(loop) is None
    assert said[0].startswith("no report: ") and "Traceback" in noted[0]


def test_records_are_on_the_disk_before_a_checkpoint_says_that_they_are_behind_it(begin, tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("experiments.recorder.os.fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    seen = []
    monkeypatch.setattr("experiments.run.save_checkpoint", lambda *_, **__: seen.append(set(synced)))
    begin(stats=sent(signal.SIGINT))
    folder = tmp_path / "runs" / "smoke" / "made"
    assert seen[0] == {str(folder / name) for name in ("metrics.jsonl", "teacher.jsonl", "dialogues.jsonl", "evaluation.jsonl")}
