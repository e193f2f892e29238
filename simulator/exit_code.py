"""What the exit code of a command says."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path


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
