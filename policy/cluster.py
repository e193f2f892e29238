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

    def __post_init__(self) -> None:
        if self.gpus_per_engine < 0:
            raise ValueError(f"cluster.gpus_per_engine must be at least 0, got {self.gpus_per_engine!r}")
