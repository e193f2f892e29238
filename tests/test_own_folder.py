"""Temporary folders, full disks and odd places: the remains of a killed process are removed, and errors name the folder."""

from __future__ import annotations

import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from policy import config
from policy.files import LOCK, OwnFolder, first_writable, why_full
from simulator.files import settle_home

HOLDS_ONE = """
import sys, time
from pathlib import Path
from policy.files import OwnFolder
folder = OwnFolder("attune-", parent=Path(sys.argv[1]))
(Path(folder.name) / "weights").write_text("many")
print(folder.name, flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that has such a folder, and the folder."""
    words = [sys.executable, "-c", HOLDS_ONE, tmp_path]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        name = process.stdout.readline().strip()
        assert name, "the process that holds a folder has not started"
        yield process, Path(name)
    finally:
        process.kill()
        process.wait()


def test_a_folder_stays_while_its_process_lives_and_goes_with_the_next_process_after_it_was_killed(holder, tmp_path):
    process, folder = holder
    with OwnFolder("attune-", parent=tmp_path) as one, OwnFolder("attune-", parent=tmp_path) as other:
        assert (folder / "weights").read_text() == "many" and Path(one).is_dir() and Path(other).is_dir()
    process.kill()
    process.wait()
    with OwnFolder("attune-", parent=tmp_path) as own:
        assert not folder.exists() and Path(own).is_dir()
        (Path(own) / "weights").touch()
    assert list(tmp_path.iterdir()) == []


KEPT = [("attune-venv", ".lock", platform.node()), ("attune-elsewhere", LOCK, "elsewhere"), ("others", LOCK, platform.node())]


@pytest.mark.parametrize(("name", "lock", "machine"), KEPT)
def test_a_folder_that_is_not_of_this_machine_or_no_such_folder_stays(name, lock, machine, tmp_path):
    kept = tmp_path / name / "kept"
    kept.parent.mkdir()
    kept.touch()
    (kept.parent / lock).write_text(machine)
    (tmp_path / "attune-link").symlink_to(kept.parent)
    with OwnFolder("attune-", parent=tmp_path):
        assert kept.exists()


# Disks -----------------------------------------------------------------------------------------------------------------------------


def test_the_messages_of_torch_and_the_causes_of_errors_are_known_and_other_errors_are_not(tmp_path):
    assert str(tmp_path) in why_full(RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), tmp_path)
    error = RuntimeError("no checkpoint")
    error.__cause__ = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(tmp_path / "x"))
    assert str(tmp_path / "x") in why_full(error, tmp_path)
    assert why_full(RuntimeError("an engine died"), tmp_path) == why_full(OSError(errno.EACCES, "no"), tmp_path) == ""


# Places ----------------------------------------------------------------------------------------------------------------------------


def test_the_first_folder_that_can_be_written_is_home_and_takes_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    settle_home()
    assert os.environ["HOME"] == str(tmp_path)
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.delenv("USER", raising=False)
    settle_home()
    home = Path(os.environ["HOME"])
    assert home.is_dir() and home.stat().st_mode & 0o077 == 0 and os.environ["USER"]
    assert first_writable(Path("/proc"), tmp_path) == tmp_path
    with pytest.raises(ValueError, match="/proc"):
        first_writable(Path("/proc"))


def test_a_checkout_whose_path_ray_cannot_take_is_refused(monkeypatch):
    monkeypatch.setattr(config.sys, "executable", "/a b (1)/python")
    config.require_plain_python()
    for path in ("/a/b'c/python", "/a/é/python", "/a:b/python"):
        monkeypatch.setattr(config.sys, "executable", path)
        with pytest.raises(ValueError, match="the checkout"):
            config.require_plain_python()
