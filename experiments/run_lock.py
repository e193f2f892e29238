"""One process writes a run's folder at a time, and ends it cleanly on Ctrl-C, SIGTERM and a closed terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from analysis.runs import CONFIG
from experiments.errors import ConfigError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that a sweep passes on to its runs."""


def begin(folder: Path, settings: str, *, must_be_new: bool = False) -> None:
    """Makes a run's folder with its `config.yaml`; an existing one is left as it is, or raises ConfigError where it must be new."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with (folder / CONFIG).open("x", encoding="utf-8") as file:
            file.write(settings)
    except FileExistsError as error:
        if must_be_new:
            raise ConfigError(f"name must be new, got {folder.name!r}; another process began {folder}: take another name") from error


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds the lock on a run's `config.yaml`, which ends with the process; raises ConfigError where another process writes the run."""
    # NFS locks byte ranges, which needs a descriptor that may write.
    with (folder / CONFIG).open("r+b" if os.access(folder / CONFIG, os.W_OK) else "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{folder} must be written by one process at a time, got another one; wait until it ends") from error
        except OSError:
            pass  # a file system without locks
        yield


def check_no_writer(folder: Path) -> None:
    """Refuses a run that another process writes; raises as `only_writer`."""
    if (folder / CONFIG).is_file():
        with only_writer(folder):
            pass


class Interruption:
    """A context in which the first signal sets `requested`, so that the current step can finish.

    Raises:
        KeyboardInterrupt: at the second signal; later ones do not disturb the clean-up.
    """

    def __init__(self) -> None:
        self.requested, self._raised = False, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        # Under nohup a closed terminal changes nothing.
        numbers = SIGNALS if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*SIGNALS, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self._raised:
            self._raised = True
            raise KeyboardInterrupt
        self.requested = True
