"""Temporary folders that do not outlive their process for long, however it ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

LOCK = ".lock"


class OwnFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder of this process; a killed one cannot remove its own, so whoever next wants one of that name does.

    A lock tells them apart: it goes with the process that holds it. Where the file system has no locks, folders stay.

    Args:
        prefix: how its name begins, and the names of those that are looked through.
        parent: where it lies; where temporary files belong by default.

    Raises:
        OSError: it cannot be made there.
    """

    def __init__(self, prefix: str, *, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        remove_abandoned(prefix, parent)
        super().__init__(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
        self._lock = _locked(Path(self.name))

    def cleanup(self) -> None:
        """Removes the folder with all that is in it, now rather than at the end of the process."""
        super().cleanup()
        if self._lock:
            self._lock.close()


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Removes folders whose names begin so and whose process has ended without doing it. Others' are left."""
    for lock in parent.glob(f"{prefix}*/{LOCK}"):
        with suppress(OSError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _locked(folder: Path) -> IO[bytes] | None:
    """The folder's lock, held until it is closed; None where there are none."""
    # Under another name until it is held: nobody must find it free.
    draft = folder / f"{LOCK}-to-be"
    file = draft.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.replace(draft, folder / LOCK)
    except OSError:
        file.close()
        return None
    return file
