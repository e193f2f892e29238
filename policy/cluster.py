"""Where the rollout pool runs, apart from the pool so that reading it imports neither ray nor torch."""

from __future__ import annotations

from dataclasses import dataclass


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
