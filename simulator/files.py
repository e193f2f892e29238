"""Files and commands: atomic writes, JSON Lines, progress bars, exit codes."""

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

Item = TypeVar("Item")


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A draft that replaces `path` on leaving, or is deleted after an error.

    Every draft has its own name, so processes may write the same file at once: the last one counts.
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> Path:
    """Writes a file atomically, text as UTF-8; returns its path."""
    with draft_of(path) as draft:
        draft.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def check_out(path: Path | None) -> None:
    """Refuses an `--out` that could not be written; None is fine.

    Raises:
        ValueError: it is a folder, or its folder does not exist.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise ValueError(f"--out must be a file in a folder that is there, got {str(path)!r}")


def jsonable(value: Any) -> Any:
    """The value for JSON: NaN and infinities become None, tuples lists, numpy's numbers Python's."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if hasattr(value, "dtype"):
        return jsonable(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def read_jsonl(path: Path, *, what: str, blank: bool = False, on_torn: Callable[[int], None] | None = None) -> Iterator[tuple[int, Any]]:
    """The number and the content of each line of a file, plain or gzipped.

    Args:
        what: the kind of a line, with its article, for errors.
        blank: skip blank lines; else they are broken ones.
        on_torn: called with the number of an incomplete last line, which is then skipped; without it such a line is a broken one.

    Raises:
        ValueError: the file cannot be read, or a line is no JSON.
    """
    number = 0
    try:
        if is_lfs_pointer(path):
            raise ValueError(f"{path} must be JSON Lines, got a Git LFS pointer; run `git lfs pull` where it lies")
        with path.open("rb") as file:
            is_gzipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_gzipped else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if number == 1 and line.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
                    raise ValueError(f"{path} must be JSON Lines, one object a line, got a JSON array; write each item on its own line")
                if blank and not line.strip():
                    continue
                try:
                    record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                except (ValueError, RecursionError) as error:
                    if on_torn and not line.endswith(b"\n"):
                        on_torn(number)
                        return
                    raise ValueError(f"{path} line {number} must be {what}: {error}, got {line[:60]!r}") from error
                yield number, record
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file, got one that breaks off after line {number} ({error})") from error
    except OSError as error:
        raise ValueError(f"{path} must be a file that can be read, JSON Lines, plain or gzipped: {error}") from error


def say_torn(path: Path, number: int) -> None:
    """Prints that the incomplete last line of a file is left out."""
    print(f"note: {path} breaks off within line {number}, as a kill leaves it; that line is left out", file=sys.stderr)


def is_lfs_pointer(path: Path) -> bool:
    """Whether a file is git's stand-in for a large one that it did not fetch."""
    if not path.is_file():
        return False
    pointer = b"version https://git-lfs.github.com/spec/"
    with path.open("rb") as file:
        return file.read(len(pointer)) == pointer


def read_lines(path: Path, *, appended: bool = True) -> Iterator[dict[str, Any]]:
    """The records of a stream in a run's folder; none where the file does not exist.

    An incomplete or broken last line, as a kill leaves it, is skipped; anywhere else it is an error.

    Args:
        appended: a run may append to this file; in others a last record counts without the end of its line too.

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
            try:
                record = record_of(line)
            except ValueError as error:
                torn = ValueError(f"{path} must hold a JSON object with a step in line {number}, got {line[:60]!r} ({error})")
                continue
            if line.endswith(b"\n") or not appended:
                yield record


def record_of(line: bytes) -> dict[str, Any]:
    """A line of a stream as a record.

    Raises:
        ValueError: it is no JSON object with a step.
    """
    record = json.loads(line.decode("utf-8"))
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        raise ValueError("no step")
    return record


class Progress:
    """Counts towards a total: `what done/total` with the time left, redrawn on a terminal; without one a line every minute.

    Args:
        before: number done earlier, which does not count for the pace.
        out: the error stream by default.
        clock: seconds, monotonic.
    """

    def __init__(
        self, what: str, total: int, *, before: int = 0, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._total, self._before, self._done = what, max(total, 1), before, before
        self._out, self._clock = out or sys.stderr, clock
        self._every_s = 0.1 if self._out.isatty() else 60.0
        self._began = self._shown = clock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()

    def add(self, num: int = 1) -> None:
        """So many more are done."""
        self._done += num
        now = self._clock()
        if now - self._shown >= self._every_s:
            self._shown = now
            left_s = (now - self._began) / (self._done - self._before) * (self._total - self._done)
            text = f"{self._what} {self._done}/{self._total}" + (f"  {as_clock(left_s)} left" if left_s > 0 else "")
            self._out.write(f"\r{text}\x1b[K" if self._out.isatty() else f"{text}\n")
            self._out.flush()


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


class ExitCode(IntEnum):
    """How a command, or the attempt to start it, ended."""

    FINISHED = 0
    FAILED = 1
    """Something outside failed; the message says how to continue."""
    REFUSED = 2
    """The request cannot be run; nothing was started."""
    INTERRUPTED = 130
    """Ctrl-C or a polite kill."""
    READER_GONE = 141
    """The reader of a pipe closed it, as for a program that SIGPIPE ends."""


def ended(work: Callable[[], int], *, refused: type[Exception] | tuple[type[Exception], ...], if_interrupted: str) -> int:
    """Runs `work` and returns its exit code; an expected error becomes one message on the error stream.

    A polite kill counts as Ctrl-C, so that unfinished work is cleaned up.

    Args:
        refused: errors of a request that cannot be met; other errors except RuntimeError are bugs and are raised.
        if_interrupted: message after an interruption.
    """
    # Closed standard streams (`>&-`) are opened, so that no file gets their number and printing is no error.
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    settle_home()
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_main else None
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.READER_GONE
    except refused as error:
        from pydantic import ValidationError

        from simulator.settings import message

        print(f"error: {message(error) if isinstance(error, ValidationError) else error}", file=sys.stderr)
        return ExitCode.REFUSED
    except (RecursionError, NotImplementedError):
        # Bugs, though Python counts them among runtime errors.
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


def settle_home() -> None:
    """Gives libraries a writable home: where there is none, a private folder among temporary files.

    They keep caches and settings there, and ask for the name of a user whom the system may not know.
    """
    os.environ.setdefault("USER", str(os.getuid()))
    home = Path(os.path.expanduser("~"))
    if home.is_absolute() and os.access(home, os.W_OK | os.X_OK):
        return
    for place in ("/tmp", "/var/tmp", "/dev/shm", os.environ.get("TMPDIR", "/tmp")):
        instead = Path(place) / f"attune-home-{os.getuid()}"
        with suppress(OSError):
            instead.mkdir(mode=0o700, exist_ok=True)
            # Another user may have made it first.
            if not instead.is_symlink() and instead.stat().st_uid == os.getuid() and os.access(instead, os.W_OK | os.X_OK):
                if (home / ".cache" / "huggingface").is_dir():
                    os.environ.setdefault("HF_HUB_CACHE", str(home / ".cache" / "huggingface" / "hub"))
                os.environ["HOME"] = str(instead)
                return
