"""JSON Lines as every command reads them: plain or gzipped, and what is broken is named with its file and line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GZIP = b"\x1f\x8b"
"""How a gzipped file begins, whatever its name."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How the small text begins that git leaves in the place of a large file that it did not fetch."""
MAX_QUOTED = 60
"""Bytes of a broken line that a complaint repeats."""


def read_jsonl(path: Path, *, what: str, blank: bool = False, on_torn: Callable[[int], None] | None = None) -> Iterator[tuple[int, Any]]:
    """The number and the content of each line.

    Args:
        what: what a line is to be, with its article, for the complaint.
        blank: pass blank lines over; else they are broken ones.
        on_torn: told the number of a last line that a kill tore, in a file that a run wrote, which is then passed over; without it such a
            line is a broken one.

    Raises:
        ValueError: the file cannot be read, or a line is no JSON.
    """
    for number, line in _lines(path):
        if number == 1:
            _refuse_other(path, line)
        if blank and not line.strip():
            continue
        try:
            yield number, json.loads(line.decode("utf-8"))
        except RecursionError as error:
            raise ValueError(f"{path} line {number} must be {what}, got brackets nested too deeply") from error
        except ValueError as error:
            if on_torn and not line.endswith(b"\n"):
                on_torn(number)
                return
            raise ValueError(f"{path} line {number} must be {what}: {error}, got {line[:MAX_QUOTED]!r}") from error


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is what git leaves in the place of one that it did not fetch."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def _refuse_other(path: Path, line: bytes) -> None:
    """Raises where the first line shows that the file is none of lines."""
    if line.startswith(LFS_POINTER):
        raise ValueError(f"{path} must be JSON Lines, got a Git LFS pointer; run `git lfs pull` where it lies")
    if line.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        raise ValueError(f"{path} must be JSON Lines, one object a line, got a JSON array; write each of its items on a line of its own")


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
