"""A file is written whole or not at all: a draft beside it takes its place once it is finished.

What the exit code of a command says.

Figures as JSON can say them, whoever writes them down.

JSON Lines as every command reads them: plain or gzipped, and what is broken is named with its file and line.

Where a command may write, asked before any work is done.

A bar on the terminal for what takes a while, with the time left; where no terminal is, a line now and then.

The streams of a run's folder as records: JSON Lines as a run appends them.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, TextIO, TypeVar
from uuid import uuid4

import numpy as np


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Where to write what is to stand at `path`; it is put there on leaving, and dropped where something went wrong.

    Every draft has a name of its own, so that processes that write the same file at once do not meet: the last one counts.
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> Path:
    """Writes a file whole or not at all, text as UTF-8; returns its path."""
    with draft_of(path) as draft:
        draft.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


class ExitCode(IntEnum):
    """How a command, or the attempt to start it, ended."""

    FINISHED = 0
    FAILED = 1
    """The world outside failed; the message says how to go on."""
    REFUSED = 2
    """The request cannot be run; nothing was started."""
    INTERRUPTED = 130
    """Somebody stopped it."""
    READER_GONE = 141
    """Whoever read its output has seen enough, as of a program that SIGPIPE ends."""


def ended(work: Callable[[], int], *, refused: type[Exception] | tuple[type[Exception], ...], if_interrupted: str) -> int:
    """Does the work and returns its exit code; what it raises becomes one sentence on the error stream, and the code that says so.

    A polite kill is taken like Ctrl-C, so that what was half done is cleared away.

    Args:
        refused: what `work` raises for a request that cannot be met; other errors but a RuntimeError are faults of ours and go on up.
        if_interrupted: what there is to say when somebody stops it.
    """
    open_streams()
    settle_home()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if on_main_thread() else None
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.READER_GONE
    except refused as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.REFUSED
    except (RecursionError, NotImplementedError):
        # Faults of ours, though Python counts them among runtime errors.
        raise
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        print(if_interrupted, file=sys.stderr)
        return ExitCode.INTERRUPTED
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def open_streams() -> None:
    """Opens what was closed of standard input, output and errors (`>&-`), so that no file takes its number and printing is no error."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def settle_home() -> None:
    """Sees to it that libraries find a home that can be written: where there is none, a folder of this user's among temporary files.

    They keep caches and settings there, and ask for the name of a user whom the system may not know.
    """
    os.environ.setdefault("USER", str(os.getuid()))
    home = Path(os.path.expanduser("~"))
    if home.is_absolute() and os.access(home, os.W_OK | os.X_OK):
        return
    for place in ("/tmp", "/var/tmp", "/dev/shm", os.environ.get("TMPDIR", "/tmp")):
        instead = Path(place) / f"attune-home-{os.getuid()}"
        try:
            instead.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            continue
        # Another user may have made it first.
        if not instead.is_symlink() and instead.stat().st_uid == os.getuid() and os.access(instead, os.W_OK | os.X_OK):
            if (home / ".cache" / "huggingface").is_dir():
                os.environ.setdefault("HF_HUB_CACHE", str(home / ".cache" / "huggingface" / "hub"))
            os.environ["HOME"] = str(instead)
            return


def on_main_thread() -> bool:
    """Whether this is the thread that may say what a signal does."""
    return threading.current_thread() is threading.main_thread()


def jsonable(value: Any) -> Any:
    """The value with NaN and infinities as None, which JSON can say, and tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


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


def check_out(path: Path | None) -> None:
    """Refuses an `--out` that could not be written; None is fine.

    Raises:
        ValueError: it is a folder, or lies in none.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ValueError(f"--out must be a file in a folder that is there, got {str(path)!r}")


CELLS = 30
EVERY_S = 60.0
"""Between two lines where there is no terminal; what is over sooner says nothing there."""

Item = TypeVar("Item")


class Progress:
    """Counts towards a total.

    Args:
        before: so many were done earlier, and say nothing of the pace.
        out: where it is drawn.
        clock: seconds from whenever.
    """

    def __init__(
        self, what: str, total: int, *, before: int = 0, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._total, self._before, self._done = what, max(total, 1), before, before
        self._out = sys.stderr if out is None else out
        self._shown = -1
        self._clock = clock
        self._began = self._told = clock()

    def __enter__(self) -> Progress:
        self._draw()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()

    def add(self, num: int = 1) -> None:
        """So many more are done."""
        self._done += num
        self._draw()

    def _draw(self) -> None:
        filled = CELLS * min(self._done, self._total) // self._total
        percent = 100 * self._done // self._total
        if not self._out.isatty():
            self._tell()
        elif percent != self._shown:
            self._shown = percent
            self._out.write(f"\r{self._what} {'#' * filled}{'.' * (CELLS - filled)} {self._done}/{self._total}{self._left()}\x1b[K")
            self._out.flush()

    def _tell(self) -> None:
        if self._clock() - self._told >= EVERY_S:
            self._told = self._clock()
            self._out.write(f"{self._what} {self._done}/{self._total}{self._left()}\n")
            self._out.flush()

    def _left(self) -> str:
        """How long the rest takes at the pace so far; empty before there is a pace, and at the end."""
        if not self._before < self._done < self._total:
            return ""
        pace_s = (self._clock() - self._began) / (self._done - self._before)
        return f"  {as_clock(pace_s * (self._total - self._done))} left"


def progress(items: Iterable[Item], *, total: int, what: str) -> Iterator[Item]:
    """The items, counted as they are taken."""
    with Progress(what, total) as bar:
        for item in items:
            yield item
            bar.add()


def as_clock(seconds: float) -> str:
    """A duration as m:ss, from an hour on as h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


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


def say_torn(path: Path, number: int) -> None:
    """Says that the last line of a file is left out."""
    print(f"note: {path} breaks off within line {number}, as a kill leaves it; that line is left out", file=sys.stderr)
