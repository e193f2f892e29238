"""What is seen of a command that takes a while: on a terminal and where there is none."""

from __future__ import annotations

import io

from simulator.files import Progress, as_clock


class Terminal(io.StringIO):
    """Text that a person would see."""

    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, *, total: int, each_s: float, before: int = 0) -> str:
    """What is written while one after another is done, each in so many seconds."""
    now = 0.0
    with Progress("dialogues", total, before=before, out=out, clock=lambda: now) as bar:
        for _ in range(total - before):
            now += each_s
            bar.add()
    return out.getvalue()


def test_where_there_is_no_terminal_a_line_is_written_each_minute_with_the_time_left():
    assert shown(io.StringIO(), total=5, each_s=30.0) == "dialogues 2/5  1:30 left\ndialogues 4/5  0:30 left\n"


def test_what_is_over_within_a_minute_says_nothing_where_there_is_no_terminal():
    assert shown(io.StringIO(), total=2, each_s=20.0) == ""


def test_a_bar_shows_the_time_left_at_the_pace_of_this_sitting():
    words = shown(Terminal(), total=4, before=2, each_s=10.0)
    assert "2/4\x1b[K" in words and "3/4  0:10 left" in words and words.endswith("4/4\x1b[K\r\x1b[K")


def test_a_clock_has_hours_from_one_on():
    assert [as_clock(seconds) for seconds in (5, 65, 3605)] == ["0:05", "1:05", "1:00:05"]
