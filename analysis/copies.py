"""Runs that replay another run's tasks: which ones they copied, and whether that is the run that lies here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analysis.runs import TEACHER, Run, read_lines, setting

COPIED = "copied_tasks"
"""In a run's provenance: a digest of the tasks that it was given to replay."""


def digest_of_tasks(lines: Iterable[Mapping[str, Any]]) -> str | None:
    """A digest of the tasks in a teacher's log, in their order; None without any."""
    digest, num = hashlib.sha256(), 0
    for line in lines:
        if line.get("event") == "task":
            what = [line.get(name) for name in ("teacher_step", "family", "mode", "strictness", "difficulty")]
            digest.update(json.dumps(what, sort_keys=True).encode())
            num += 1
    return digest.hexdigest()[:16] if num else None


def tasks_copied(run: Run) -> str | None:
    """The digest of what a run was given to replay; None where it replays nothing, or that was not recorded."""
    found = run.provenance.get(COPIED)
    return None if found is None else str(found)


def tasks_issued(folder: Path) -> str | None:
    """The digest of what a run's teacher issued."""
    return digest_of_tasks(read_lines(folder / TEACHER))


def why_no_copy(run: Run) -> str:
    """Why a run is no replay of the run of its sweep that it names; empty where it is, or where that cannot be told.

    Raises:
        ValueError: what is there of either cannot be read.
    """
    trace = setting(run.config, "teacher.trace")
    copied = tasks_copied(run)
    if not trace or not isinstance(trace, str) or copied is None:
        return ""
    arm, seed = Path(trace).parts[-3:-1] if len(Path(trace).parts) > 2 else ("", "")
    source = run.folder.parent.parent / arm / seed
    if not (source / TEACHER).is_file() or tasks_issued(source) == copied:
        return ""
    return f"it replays another {arm}/{seed} than the one that is here, and must be run anew"
