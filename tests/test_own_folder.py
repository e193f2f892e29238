"""Temporary folders: what a killed process left goes with the next one; what is in use, or nobody's, stays."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from policy.own_folder import LOCK, OwnFolder, _empty, remove_abandoned

HOLDS_ONE = textwrap.dedent("""
    import sys, time
    from pathlib import Path
    from policy.own_folder import OwnFolder
    folder = OwnFolder("attune-", parent=Path(sys.argv[1]))
    (Path(folder.name) / "weights").write_text("many")
    print(folder.name, flush=True)
    time.sleep(600)
""")


@pytest.fixture
def holder(tmp_path):
    """A process that has such a folder, and the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDS_ONE, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
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
        ("attune-venv", ".lock", ""),
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


@pytest.mark.parametrize("stuck", ["cleanup", "remove_abandoned"])
def test_what_a_broken_off_removal_left_goes_with_the_next(stuck, holder, tmp_path, monkeypatch):
    process, left = holder
    (left / "more").mkdir()
    (left / "more" / "weights").touch()
    process.kill()
    process.wait()
    # Killed in the midst of it: whatever had gone before, the lock has not.
    with monkeypatch.context() as patched:
        patched.setattr("policy.own_folder.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_abandoned("attune-", tmp_path) if stuck == "remove_abandoned" else _empty(left)
    assert (left / "more").exists()
    with OwnFolder("attune-", parent=tmp_path):
        assert not left.exists()


def killed(*args: object, **options: object) -> None:
    raise KeyboardInterrupt


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
