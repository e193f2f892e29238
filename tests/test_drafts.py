"""Files that are written whole or not at all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulator.files import draft_of, write_whole

WRITER = """
import sys
from pathlib import Path
from simulator.files import write_whole
print("ready", flush=True)
sys.stdin.readline()
for _ in range(300):
    write_whole(Path(sys.argv[1]), sys.argv[2] * 200_000)
"""


def writer(path, letter):
    command = [sys.executable, "-c", WRITER, str(path), letter]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_that_write_the_same_file_at_once_leave_it_whole(tmp_path):
    path = write_whole(tmp_path / "figures.json", "a" * 200_000)
    writers = [writer(path, letter) for letter in "ab"]
    assert [each.stdout.readline() for each in writers] == ["ready\n"] * 2
    for each in writers:
        print(file=each.stdin, flush=True)
    seen = set()
    while any(each.poll() is None for each in writers):
        text = path.read_text(encoding="utf-8")
        seen.add((len(text), *set(text)))
    assert [each.communicate()[1] for each in writers] == ["", ""]
    assert [each.returncode for each in writers] == [0, 0]
    assert seen <= {(200_000, "a"), (200_000, "b")}
    assert list(tmp_path.iterdir()) == [path]


def break_off(path):
    with draft_of(path) as draft:
        draft.write_text("half", encoding="utf-8")
        raise RuntimeError("disk full")


def test_what_breaks_while_it_is_written_leaves_the_file_before_it_and_no_draft(tmp_path):
    path = write_whole(tmp_path / "page.html", "wörds")
    with pytest.raises(RuntimeError, match="disk"):
        break_off(path)
    assert path.read_bytes() == "wörds".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_bytes_are_written_as_they_are(tmp_path):
    assert write_whole(tmp_path / "picture.png", b"\x89PNG\r\n").read_bytes() == b"\x89PNG\r\n"
