"""Where the rollout pool runs, apart from the pool so that reading it imports neither ray nor torch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True)
class ClusterConfig:
    """Where the workers run (`cluster.*`)."""

    address: str = ""
    """Of an existing Ray cluster (host:port, or auto); empty starts a local one that only this machine can reach."""
    gpus_per_engine: float = 0.0
    """At least 0; what each engine reserves."""

    object_store_mb: int = 128
    """At least 80; MiB in which a local Ray keeps weights and results on their way. What does not fit waits on disk."""

    def __post_init__(self) -> None:
        if self.object_store_mb < 80:
            raise ValueError(f"cluster.object_store_mb must be at least 80, which Ray itself asks for, got {self.object_store_mb!r}")
        if self.gpus_per_engine < 0:
            raise ValueError(f"cluster.gpus_per_engine must be at least 0, got {self.gpus_per_engine!r}")


def require_plain_python() -> None:
    """Raises where Ray could not start processes with the Python of this checkout: it writes command lines and takes them apart again.

    Raises:
        ValueError: its path holds a quotation mark, a backslash, a colon or a letter that is not ASCII.
    """
    for path in (sys.executable, str(Path(__file__).parents[1])):
        if not path.isascii() or set(path) & set("'\"\\:$`\n"):
            raise ValueError(
                f"the checkout must lie where Ray can start workers, without quotes, colons and letters beyond ASCII, got {path!r}"
            )
