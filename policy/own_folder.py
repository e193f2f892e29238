"""Temporary folders that do not outlive their process for long, however it ends."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

LOCK = ".attune-own-folder"
"""Not `.lock`: others leave a free one in what they keep, such as uv in every environment."""


class OwnFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder of this process; a killed one cannot remove its own, so whoever next wants one of that name does.

    A lock tells them apart: it goes with the process that holds it. It names the machine, since not all shared file systems lock beyond
    one; and where there are no locks at all, folders stay.

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
        folder = Path(self.name)
        _empty(folder)
        # Closed before it is removed: NFS keeps what is open under another name.
        if self._lock:
            self._lock.close()
        with suppress(OSError):
            (folder / LOCK).unlink()
        super().cleanup()


def first_writable(*folders: Path) -> Path:
    """The first of these folders in which something can be written.

    Raises:
        ValueError: none can.
    """
    for folder in folders:
        with suppress(OSError), tempfile.TemporaryDirectory(prefix=".attune-", dir=folder):
            return folder
    raise ValueError(f"a folder for temporary files must be writable, got none among {', '.join(map(str, folders))}")


def remove_abandoned(prefix: str, parent: Path) -> None:
    """Removes folders of this user on this machine whose names begin so and whose process has ended without doing it. Others' are left."""
    for lock in parent.glob(f"{prefix}*/{LOCK}"):
        with suppress(OSError), lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = lock.parent.lstat().st_uid == os.geteuid() and not lock.parent.is_symlink()
            if is_ours and file.read() == _this_machine():
                _empty(lock.parent)
                lock.unlink()
                lock.parent.rmdir()


def _empty(folder: Path) -> None:
    """Removes all but the lock, which goes last: what a removal that was broken off has left can still be told from what is nobody's."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            with suppress(OSError):
                path.unlink()


def _locked(folder: Path) -> IO[bytes] | None:
    """The folder's lock, held until it is closed; None where there are none."""
    # Under another name until it is held: nobody must find it free.
    draft = folder / f"{LOCK}-to-be"
    file = draft.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(_this_machine())
        file.flush()
        os.replace(draft, folder / LOCK)
    except OSError:
        file.close()
        return None
    return file


def _this_machine() -> bytes:
    return platform.node().encode()
