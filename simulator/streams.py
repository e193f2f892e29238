"""The streams of a run's folder as records: JSON Lines as a run appends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any


def read_lines(path: Path, *, appended: bool = True) -> Iterator[dict[str, Any]]:
    """The records of a stream; nothing where there is no file.

    A last line without its end, or one that is no record, is what a kill leaves and is passed over; anywhere else it is an error.

    Args:
        appended: whether a run may go on with this file; in others a last record counts without the end of its line too.

    Raises:
        ValueError: another line is not a JSON object with a step.
    """
    if not path.is_file():
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


def record_of(line: bytes) -> dict[str, Any]:
    """A line of a stream as a record.

    Raises:
        ValueError: it is none.
    """
    record = json.loads(line.decode("utf-8"))
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        raise ValueError("no step")
    return record
