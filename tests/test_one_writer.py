"""A run that two processes go on with at once is refused to the second, and to nobody once the first is gone, however it went."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from analysis.runs import CONFIG
from experiments.config import load
from experiments.errors import ConfigError
from experiments.preflight import check
from experiments.run_lock import begin, check_no_writer, only_writer

HOLD = """import sys, time
from pathlib import Path
from experiments.run_folder import only_writer
with only_writer(Path(sys.argv[1])):
    print("holds it", flush=True)
    time.sleep(600)
"""


def test_a_run_is_refused_while_another_process_writes_it_and_free_when_that_was_killed(tmp_path):
    check_no_writer(tmp_path / "nothing there")
    (tmp_path / CONFIG).touch()
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "holds it\n"
        one_at_a_time = (
            rf"{tmp_path} must be written by one process at a time, got another one that still does \(process {other.pid}\); wait"
        )
        with pytest.raises(ConfigError, match=one_at_a_time), only_writer(tmp_path):
            pass
        with pytest.raises(ConfigError, match=one_at_a_time):
            check(load("smoke"), tmp_path, resuming=True)
        other.send_signal(signal.SIGKILL)
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    with only_writer(tmp_path):
        (tmp_path / CONFIG).write_text("seed: 1\n")
    check_no_writer(tmp_path)


def test_the_lock_is_asked_for_by_a_descriptor_that_may_write_as_network_file_systems_want(tmp_path, monkeypatch):
    (tmp_path / CONFIG).write_text("seed: 1\n")
    asked = []

    def as_nfs_does(file, operation):
        asked.append(operation)
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("experiments.run_folder.fcntl.flock", as_nfs_does)
    check_no_writer(tmp_path)
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB] and (tmp_path / CONFIG).read_text() == "seed: 1\n"


def test_of_two_that_begin_one_run_at_once_the_slower_is_refused(tmp_path):
    folder = tmp_path / "run"
    begin(folder, "seed: 1\n", must_be_new=True)
    with pytest.raises(ConfigError, match=r"name must be new, got 'run'; another process began .*/run meanwhile: take another name"):
        begin(folder, "seed: 2\n", must_be_new=True)
    begin(folder, "seed: 2\n")
    assert [path.name for path in folder.iterdir()] == [CONFIG] and (folder / CONFIG).read_text() == "seed: 1\n"
