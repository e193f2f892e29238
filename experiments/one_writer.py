"""One process writes a run's folder at a time: two that go on with the same run would cut and continue each other's files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from analysis.runs import CONFIG
from experiments.keys import ConfigError

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What a file system says that has none."""


def begin(folder: Path, settings: str, *, must_be_new: bool = False) -> None:
    """Makes a run's folder, unless it is there; its settings are whole from their first moment.

    Args:
        must_be_new: the run was not there when it was checked; if it is by now, another process began it.

    Raises:
        ConfigError: it is there and must be new.
    """
    if not (folder / CONFIG).is_file() and make_folder(folder, settings):
        return
    if must_be_new:
        raise ConfigError(f"name must be new, got {folder.name!r}; another process began {folder} meanwhile: take another name")


def make_folder(folder: Path, settings: str) -> bool:
    """Makes the folder with its settings; False where another process was faster."""
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{CONFIG}.{os.getpid()}.tmp"
    draft.write_text(settings, encoding="utf-8")
    try:
        os.link(draft, folder / CONFIG)
    except FileExistsError:
        return False
    except OSError:
        draft.replace(folder / CONFIG)  # a file system without links
    finally:
        draft.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """While entered, no other process of this machine, or of its shared file system where that has locks, may write the run.

    The lock is on the run's settings and goes with the process that holds it, however that ends.

    Args:
        folder: of the run, with its settings, which may be empty as yet.

    Raises:
        ConfigError: another process writes it.
    """
    # NFS makes of it a lock of bytes, which only a descriptor that may write can have.
    mode = "r+b" if os.access(folder / CONFIG, os.W_OK) else "rb"
    with (folder / CONFIG).open(mode) as settings:
        try:
            fcntl.flock(settings, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{folder} must be written by one process at a time, got another one that still does{who(folder / CONFIG)}; "
                "wait until it has ended, or end it"
            ) from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield


def check_no_writer(folder: Path) -> None:
    """Refuses a run that another process writes.

    Raises:
        ConfigError: there is one.
    """
    if (folder / CONFIG).is_file():
        with only_writer(folder):
            pass


def who(path: Path) -> str:
    """The other processes that hold a file open, as far as they can be seen, in words."""
    holders = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != psutil.Process().pid and any(Path(file.path) == path.absolute() for file in process.open_files()):
                holders.append(str(process.pid))
    return f" (process {', '.join(holders)})" if holders else ""
