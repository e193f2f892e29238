"""Processes that end with the one that started them, which may be killed and have no time to say so."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

ENDS_WITH = "ATTUNE_ENDS_WITH"
"""Environment variable by which a process is told whose child it is and shall not outlive."""
POLL_S = 1.0


@contextmanager
def binding_children() -> Iterator[None]:
    """Processes that are started within end with this one, if they call `end_with_parent`."""
    os.environ[ENDS_WITH] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(ENDS_WITH, None)


def end_with_parent() -> None:
    """Ends this process at once when its parent is gone, or was before this call, where the parent bound it; its own children are not."""
    parent = os.environ.get(ENDS_WITH, "")
    if parent in ("", str(os.getpid())):
        return
    del os.environ[ENDS_WITH]
    threading.Thread(target=_outlive_nobody, args=(int(parent),), name="parent watch", daemon=True).start()


def _outlive_nobody(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_S)
    os._exit(1)
