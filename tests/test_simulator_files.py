"""Atomic writes, numbers for JSON, and progress."""

from __future__ import annotations

import io
import math
import subprocess
import sys

import numpy as np
import pytest

from simulator.files import Progress, as_clock, draft_of, jsonable, write_whole

WRITER = """
import sys
from pathlib import Path
from simulator.files import write_whole
for _ in range(30):
    write_whole(Path(sys.argv[1]), sys.argv[2] * 200_000)
"""


def test_two_processes_that_write_the_same_file_at_once_leave_it_whole(tmp_path):
    path = write_whole(tmp_path / "figures.json", "a" * 200_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "ab"]
    seen = set()
    while any(each.poll() is None for each in writers):
        text = path.read_text(encoding="utf-8")
        seen.add((len(text), *set(text)))
    assert [each.returncode for each in writers] == [0, 0]
    assert seen <= {(200_000, "a"), (200_000, "b")} and list(tmp_path.iterdir()) == [path]


def break_off(path):
    with draft_of(path) as draft:
        draft.write_text("half", encoding="utf-8")
        raise RuntimeError("disk full")


def test_an_error_while_writing_leaves_the_earlier_file_and_no_draft(tmp_path):
    path = write_whole(tmp_path / "page.html", "wörds")
    with pytest.raises(RuntimeError, match="disk"):
        break_off(path)
    assert path.read_bytes() == "wörds".encode() and list(tmp_path.iterdir()) == [path]
    assert write_whole(path, b"\x89PNG\r\n").read_bytes() == b"\x89PNG\r\n"


def test_nan_and_infinities_become_none_at_any_depth_and_numpys_numbers_pythons():
    assert jsonable({"a": {"b": math.nan}, 1: (1, [np.int64(2), np.float32(0.5), np.nan, -math.inf, None, True, "x"])}) == {
        "a": {"b": None},
        "1": [1, [2, 0.5, None, None, None, True, "x"]],
    }


class Terminal(io.StringIO):
    """Text that a person would see."""

    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, *, total: int, each_s: float, before: int = 0) -> str:
    """The output while one item after another is done, each in so many seconds."""
    now = 0.0
    with Progress("dialogues", total, before=before, out=out, clock=lambda: now) as bar:
        for _ in range(total - before):
            now += each_s
            bar.add()
    return out.getvalue()


def test_progress_is_a_line_each_minute_or_a_bar_with_the_time_left():
    assert shown(io.StringIO(), total=5, each_s=30.0) == "dialogues 2/5  1:30 left\ndialogues 4/5  0:30 left\n"
    assert shown(io.StringIO(), total=2, each_s=20.0) == ""
    words = shown(Terminal(), total=4, before=2, each_s=10.0)
    assert "3/4  0:10 left" in words and words.endswith("4/4\x1b[K\r\x1b[K")
    assert [as_clock(seconds) for seconds in (5, 65, 3605)] == ["0:05", "1:05", "1:00:05"]
