"""JSON Lines as every command reads them: plain or gzipped, and what is broken is named with its file and line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GZIP = b"\x1f\x8b"
"""How a gzipped file begins, whatever its name."""
MAX_QUOTED = 60
"""Bytes of a broken line that a complaint repeats."""


def read_jsonl(path: Path, *, what: str, blank: bool = False) -> Iterator[tuple[int, Any]]:
    """The number and the content of each line.

    Args:
        what: what a line is to be, with its article, for the complaint.
        blank: pass blank lines over; else they are broken ones.

    Raises:
        ValueError: the file cannot be read, or a line is no JSON.
    """
    for number, line in _lines(path):
        if blank and not line.strip():
            continue
        try:
            yield number, json.loads(line.decode("utf-8"))
        except RecursionError as error:
            raise ValueError(f"{path} line {number} must be {what}, got brackets nested too deeply") from error
        except ValueError as error:
            raise ValueError(f"{path} line {number} must be {what}: {error}, got {line[:MAX_QUOTED]!r}") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with path.open("rb") as file:
            is_gzipped = file.read(len(GZIP)) == GZIP
        with gzip.open(path, "rb") if is_gzipped else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file, got one that breaks off after line {number} ({error})") from error
    except OSError as error:
        raise ValueError(f"{path} must be a file that can be read, JSON Lines, plain or gzipped: {error}") from error
