"""Where runs are kept, and with them the marks of what the sealed half was opened for."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analysis.runs import SUMMARY
from simulator.drafts import write_whole

RUNS, RESULTS, MARKS = "runs", Path("docs/results"), "sealed.jsonl"


def results_beside(runs: Path) -> Path:
    """Where runs are kept: docs/results, beside the folder of all runs."""
    return runs.parent / RESULTS


def results_of(folder: Path) -> Path:
    """Where the runs of a sweep are kept, of the folder runs/<experiment>/<name>."""
    return results_beside(folder.parent.parent) / folder.parent.name / folder.name


def keep_marks(marks: Path, out: Path, *, opening: str) -> None:
    """Adds what the sealed half was opened for by this sweep's kept runs to what is kept of that.

    A run that has not finished leaves no mark here: where its folder is lost, so is what it was judged by, and it may be begun anew.

    Args:
        out: where the sweep's records are. What is kept of marks lies in docs/results, of this project or another, beside all
            experiments; of records anywhere else it lies among them.
    """
    if not marks.is_file():
        return
    results = out.absolute().parent.parent
    kept = (results if results.parts[-len(RESULTS.parts) :] == RESULTS.parts else out) / MARKS
    with only_one_in(kept.parent):
        before = kept.read_text(encoding="utf-8").splitlines() if kept.is_file() else []
        found = [line for line in marks.read_text(encoding="utf-8").splitlines() if line not in before]
        new = [line for line in found if is_of_a_record(line, out, opening=opening)]
        if new:
            write_whole(kept, "".join(f"{line}\n" for line in [*before, *new]))


@contextmanager
def only_one_in(folder: Path) -> Iterator[None]:
    """While entered, every other process that asks the same of this folder waits."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def is_of_a_record(mark: str, out: Path, *, opening: str) -> bool:
    """Whether a line of marks is of a run of this sweep whose record is in `out`.

    Raises:
        ValueError: it is no mark.
    """
    try:
        read = json.loads(mark)
        cell = Path(str(read["run"])).relative_to(opening) if read["opening"] == opening else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{MARKS} must hold a mark a line, got {mark[:60]!r}") from error
    return cell is not None and (out / cell / SUMMARY).is_file()
