"""Temporary folders that do not outlive their process for long, however it ends.

What must be true of a file before a rename gives it its name: it is on the disk, and who may read its folder may read it.

What the safetensors files of a model folder hold, read from their headers and without torch.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

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


def open_as_its_folder(path: Path) -> None:
    """Lets others do with a file what they may with its folder: safetensors closes its files to all but this user.

    A courtesy, which some file systems refuse.
    """
    with suppress(OSError):
        path.chmod(path.parent.stat().st_mode & 0o666)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TORCH_WROTE = re.compile(
    r"inline_container|PytorchStreamWriter|iostream error|No space left|os error (28|122|27)\b|quota exceeded", re.IGNORECASE
)
"""How torch, safetensors and tokenizers say that what they wrote was not taken."""


def why_full(error: BaseException, folder: Path) -> str:
    """That the disk under a folder is full and what to do, in a sentence; empty for an error that says nothing of the kind."""
    seen: BaseException | None = error
    while seen is not None:
        is_full = seen.errno in FULL if isinstance(seen, OSError) and seen.errno else bool(TORCH_WROTE.search(str(seen)))
        if is_full:
            place = Path(str(seen.filename)) if isinstance(seen, OSError) and seen.filename else folder
            there = next((path for path in (place, *place.absolute().parents) if path.is_dir()), folder)
            with suppress(OSError):
                return f"the disk must have room for {place}, got {shutil.disk_usage(there).free >> 20} MiB free in {there}; make room"
            return f"the disk must have room for {place}; make room"
        seen = seen.__cause__ or seen.__context__
    return ""


@contextmanager
def as_os_error() -> Iterator[None]:
    """While entered, what safetensors says of a disk that is full or gone is an OSError, like everybody else's."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def flush(path: Path) -> None:
    """Forces a file or a folder to the disk: a rename may otherwise survive a power cut that its contents do not.

    Raises:
        OSError: the disk is full or gone.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems know it of files alone.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


INDEX = "model.safetensors.index.json"


def headers(model_folder: Path) -> dict[str, dict[str, Any]]:
    """By name of each tensor its dtype, shape and place in its file; of weights in pieces those that their index names.

    Raises:
        ValueError: a file is missing or damaged.
    """
    index = model_folder / INDEX
    found: dict[str, dict[str, Any]] = {}
    try:
        pieces = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())) if index.is_file() else None
        for path in sorted(model_folder.glob("*.safetensors")) if pieces is None else [model_folder / piece for piece in pieces]:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                found |= json.loads(file.read(min(length, path.stat().st_size)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"policy.model must hold safetensors files that can be read, got {str(model_folder)!r}: {error}") from error
    found.pop("__metadata__", None)
    return found


def num_weights(model_folder: Path) -> int:
    """How many numbers all tensors have together; 0 where there are no safetensors files."""
    return sum(prod(header["shape"]) for header in headers(model_folder).values())
