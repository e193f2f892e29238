"""A run around its steps, in one process: what is left behind where it is stopped or refused before the first of them."""

from __future__ import annotations

import os
import signal

import pytest
from parts_in_process import parts_in_process
from tiny_policy import save_tiny_policy

from experiments.config import load
from experiments.exit_code import ExitCode
from experiments.run import run


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Makes a run of the tiny policy whose pool is sent these signals when it is asked for something."""
    model = save_tiny_policy(tmp_path / "tiny", hidden=32, layers=1)

    def begin(*overrides, **signals_by_request):
        config = load("smoke", [f"policy.model={model}", f"runs={tmp_path / 'runs'}", *overrides])
        parts = parts_in_process(config, model)
        for request, number in signals_by_request.items():
            monkeypatch.setattr(parts.pool, request, stopped_in(getattr(parts.pool, request), number))
        monkeypatch.setattr("experiments.run.assemble", lambda *_, **__: (parts, None))
        return run(config, tmp_path / "runs" / "smoke" / "made")

    return begin


def stopped_in(request, number):
    """Does what is asked, with a signal on the way."""

    def stopped(*arguments):
        os.kill(os.getpid(), number)
        return request(*arguments)

    return stopped


def test_a_run_that_is_stopped_before_its_folder_is_begun_leaves_none(begin, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        begin(load_weights=signal.SIGINT)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_is_stopped_once_it_has_begun_says_how_to_go_on(begin, tmp_path, capsys):
    folder = tmp_path / "runs" / "smoke" / "made"
    assert begin(stats=signal.SIGINT, close=signal.SIGTERM) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.endswith(f"interrupted; to go on: python -m experiments smoke resume={folder}\n")
    assert (folder / "checkpoints" / "step_0").is_dir()
