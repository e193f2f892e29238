"""Files of the policy: temporary folders that do not outlive their process, writing that survives a power cut, a model's weights."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

LOCK = ".attune-own-folder"
"""Not `.lock`: other programs leave a free one in folders that they keep, such as uv in every environment."""


class OwnFolder(tempfile.TemporaryDirectory[str]):
    """A temporary folder of this process; if it is killed, the next process that wants one with the same prefix removes it.

    A lock goes with its process and so separates a living owner from a dead one. It names the machine, since not all shared file systems
    lock across machines.
    """

    def __init__(self, prefix: str, *, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        for lock in parent.glob(f"{prefix}*/{LOCK}"):
            with suppress(OSError), lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = lock.parent.lstat().st_uid == os.geteuid() and not lock.parent.is_symlink()
                if is_ours and file.read() == platform.node().encode():
                    shutil.rmtree(lock.parent, ignore_errors=True)
        super().__init__(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
        draft = Path(self.name) / f"{LOCK}-to-be"  # so that the lock is never found free
        self._lock = draft.open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock.write(platform.node().encode())
            self._lock.flush()
            draft.replace(Path(self.name) / LOCK)
        except OSError:
            self._lock.close()

    def cleanup(self) -> None:
        """Removes the folder with all that is in it, now rather than at the end of the process."""
        self._lock.close()  # first: NFS keeps open files under another name
        super().cleanup()


@contextmanager
def whole_folder(folder: Path, *, prefix: str) -> Iterator[Path]:
    """While entered, an unfinished folder; afterwards it is `folder`, whole and on the disk, unless somebody made that meanwhile."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with OwnFolder(prefix, parent=folder.parent) as closed:
        # A folder within, since that one is for this user alone.
        unfinished = Path(closed) / folder.name
        unfinished.mkdir()
        yield unfinished
        for path in unfinished.iterdir():
            share_like_folder(path)
            flush(path)
        flush(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.exists():
                raise
        flush(folder.parent)


def first_writable(*folders: Path) -> Path:
    """The first of these folders that can be written; raises ValueError where none can."""
    for folder in folders:
        with suppress(OSError), tempfile.TemporaryDirectory(prefix=".attune-", dir=folder):
            return folder
    raise ValueError(f"a folder for temporary files must be writable, got none among {', '.join(map(str, folders))}")


def folder_for_sockets(prefix: str) -> OwnFolder:
    """A folder whose path is short enough for the names of sockets in it."""
    # $TMPDIR comes late: it may be too long.
    places = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp")))
    return OwnFolder(prefix, parent=first_writable(*dict.fromkeys(places)))


def share_like_folder(path: Path) -> None:
    """Gives a file the permissions of its folder: safetensors closes its files to all but this user. Some file systems refuse."""
    with suppress(OSError):
        path.chmod(path.parent.stat().st_mode & 0o666)


def why_full(error: BaseException, folder: Path) -> str:
    """A sentence that the disk under a folder is full and what to do; empty for another error."""
    # As torch, safetensors and tokenizers report it.
    message = r"inline_container|PytorchStreamWriter|iostream error|No space left|os error (28|122|27)\b|quota exceeded"
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno:
            is_full = seen.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        else:
            is_full = bool(re.search(message, str(seen), re.IGNORECASE))
        if is_full:
            return f"the disk must have room for {getattr(seen, 'filename', None) or folder}, got a full one; make room"
        seen = seen.__cause__ or seen.__context__
    return ""


@contextmanager
def as_os_error() -> Iterator[None]:
    """While entered, a SafetensorError, as of a full disk, becomes an OSError."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def flush(path: Path) -> None:
    """Forces a file or a folder to the disk: a rename may otherwise survive a power cut that its contents do not."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems know it of files alone.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def headers(model_folder: Path) -> dict[str, dict[str, Any]]:
    """By tensor its dtype, shape and offsets, from the headers of safetensors files: those that an index names, where there is one.
    Raises ValueError for a missing or damaged file.
    """
    index, found = model_folder / "model.safetensors.index.json", dict[str, dict[str, Any]]()
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else None
        for path in sorted(model_folder.glob("*.safetensors")) if named is None else [model_folder / name for name in sorted(named)]:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                found |= json.loads(file.read(min(length, path.stat().st_size)))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"policy.model must hold safetensors files that can be read, got {str(model_folder)!r}: {error}") from error
    found.pop("__metadata__", None)
    return found


def weights_of(folder: Path) -> Iterator[Path]:
    """The files of a model's weights, in order."""
    yield from sorted(path for pattern in ("*.safetensors", "pytorch_model*.bin") for path in folder.glob(pattern))


def fingerprint(folder: Path) -> str:
    """16 hex digits over a model's config.json and the name, size and both ends (1 MiB) of each file of weights: training moves all."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weights_of(folder):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(2**20))
            file.seek(max(0, size - 2**20))
            digest.update(file.read(2**20))
    return digest.hexdigest()[:16]
