"""Temporary folders: what a killed process left goes with the next one; what is in use, or nobody's, stays."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from policy.files import LOCK, OwnFolder, remove_abandoned

HOLDS_ONE = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from policy.files import OwnFolder
    folder = OwnFolder("attune-", parent=Path(sys.argv[1]))
    (Path(folder.name) / "weights").write_text("many")
    print(folder.name, flush=True)
    time.sleep(600)
""")


@pytest.fixture
def holder(tmp_path):
    """A process that has such a folder, and the folder."""
    words = [sys.executable, "-c", HOLDS_ONE, tmp_path]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    try:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert name, "the process that holds a folder has not started"
        yield process, Path(name)
    finally:
        process.kill()
        process.wait()


def test_what_a_killed_process_left_goes_with_the_next(holder, tmp_path):
    process, left = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (left / "weights").exists()
    with OwnFolder("attune-", parent=tmp_path) as own:
        assert not left.exists()
        assert Path(own).is_dir()


def test_what_a_living_process_uses_stays(holder, tmp_path):
    _, used = holder
    with OwnFolder("attune-", parent=tmp_path):
        assert (used / "weights").read_text() == "many"


def test_two_in_one_process_leave_each_other_alone(tmp_path):
    with OwnFolder("attune-", parent=tmp_path) as one, OwnFolder("attune-", parent=tmp_path) as other:
        assert Path(one).is_dir()
        assert Path(other).is_dir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "lock", "machine"),
    [
        ("attune-without-a-lock", None, ""),
        # As uv leaves it in an environment.
        ("attune-venv", ".lock", platform.node()),
        ("attune-of-another-machine", LOCK, "elsewhere"),
        ("others-abandoned", LOCK, platform.node()),
    ],
)
def test_what_is_not_such_a_folder_of_this_machine_stays(name, lock, machine, tmp_path):
    kept = tmp_path / name / "kept"
    kept.parent.mkdir()
    kept.touch()
    if lock:
        (kept.parent / lock).write_text(machine)
    with OwnFolder("attune-", parent=tmp_path):
        assert kept.exists()


@pytest.mark.parametrize("who", ["its own process", "the next"])
def test_the_lock_goes_last_so_that_a_removal_that_was_broken_off_can_go_on(who, holder, tmp_path, monkeypatch):
    process, folder = holder
    own = OwnFolder("attune-", parent=tmp_path)
    place = Path(own.name) if who == "its own process" else folder
    for number in range(50):
        (place / f"weights-{number}").touch()
    process.kill()
    process.wait()
    removed, unlink = [], os.unlink

    def watched(path: str, **options: int) -> None:
        removed.append(Path(path).name)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", watched)
    own.cleanup() if who == "its own process" else remove_abandoned("attune-", tmp_path)
    own.cleanup()
    assert removed.index(LOCK) >= 50
    assert not place.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_stays(tmp_path):
    theirs = tmp_path / "attune-theirs"
    theirs.mkdir()
    (theirs / LOCK).write_text(platform.node())
    os.chown(theirs, 65534, 65534)
    with OwnFolder("attune-", parent=tmp_path):
        assert (theirs / LOCK).exists()


def test_a_link_to_a_folder_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK).write_text(platform.node())
    (tmp_path / "attune-link").symlink_to(elsewhere)
    with OwnFolder("attune-", parent=tmp_path):
        assert (elsewhere / LOCK).exists()


def test_a_place_where_nothing_can_be_made_is_named(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        OwnFolder("attune-", parent=tmp_path / "nowhere")
