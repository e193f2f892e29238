"""The streams of a run's folder as records: JSON Lines as a run appends them, or the columns that were kept of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from simulator.columns import columns_of, read_columns
from simulator.difficulty import Difficulty


def read_lines(path: Path, *, appended: bool = True) -> Iterator[dict[str, Any]]:
    """The records of a stream, or of the columns that were kept of it; nothing where there is no file.

    A last line without its end, or one that is no record, is what a kill leaves and is passed over; anywhere else it is an error.

    Args:
        appended: whether a run may go on with this file; in others a last record counts without the end of its line too.

    Raises:
        ValueError: another line is not a JSON object with a step.
    """
    if not path.is_file():
        yield from read_kept(path) if columns_of(path).is_file() else ()
        return
    torn: ValueError | None = None
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if torn:
                raise torn
            if not line.endswith(b"\n"):
                with suppress(ValueError):
                    if not appended:
                        yield record_of(line)
                return
            try:
                yield record_of(line)
            except ValueError as error:
                torn = ValueError(f"{path} must hold a JSON object with a step in line {number}, got {line[:60]!r} ({error})")


def read_kept(stream: Path) -> Iterator[dict[str, Any]]:
    """The records of the columns that were kept of a stream, as a run writes them: tasks have their difficulty.

    Raises:
        ValueError: the file holds something else.
    """
    for record in read_columns(columns_of(stream)):
        is_short = record.get("event") == "task" and "difficulty" not in record
        yield {**record, "difficulty": on_the_line(record)} if is_short else record


def on_the_line(task: Mapping[str, Any]) -> dict[str, float]:
    """The difficulty that a strictness stands for where no axis was set by itself; columns leave such a one out."""
    return Difficulty.along(float(task["strictness"])).to_dict()


def record_of(line: bytes) -> dict[str, Any]:
    """A line of a stream as a record.

    Raises:
        ValueError: it is none.
    """
    record = json.loads(line.decode("utf-8"))
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        raise ValueError("no step")
    return record
