"""What must be true of a file before a rename gives it its name: it is on the disk, and who may read its folder may read it."""

from __future__ import annotations

import errno
import os
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
