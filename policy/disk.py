"""What must be true of a file before a rename gives it its name: it is on the disk, and who may read its folder may read it."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError


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
