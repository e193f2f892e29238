"""How new weights travel from the trainer to the engines: one contract, three transports.

Whichever brings them, an engine takes them in between two replies, in one call on its own thread: the running replies are finished (the
pause), the weights are replaced, cached prefixes are forgotten, the version is set, a probe is scored. Only then does the next reply
begin. Pause and resumption are the two ends of one call, so neither can be left out when something in between fails; an engine that was
left with half of the weights samples nothing more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from policy.config import EngineConfig, EngineDtype, WeightTransport
from policy.engine.nccl import NcclTransport
from policy.engine.weights import WeightFile, check_receipts, pack_weights, write_weights
from policy.rollout.worker_group import Crew


class Transport(Protocol):
    """Brings weights to all engines of a crew, and to those that are started anew later."""

    def send(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Returns when every engine has them; the tensors may change from then on.

        Raises:
            ValueError: a parameter is missing, unknown or not finite.
            RuntimeError: an engine holds something else than was sent, or could not be made to take it in time.
        """
        ...

    def close(self) -> None:
        """Leaves nothing behind."""
        ...


class RpcTransport:
    """The bytes themselves, once through Ray's object store: every engine of a machine reads the same copy."""

    def __init__(self, crew: Crew, *, dtype: EngineDtype) -> None:
        self._crew, self._dtype = crew, dtype

    def send(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Transport`."""
        packed = pack_weights(named_tensors, version=version)
        check_receipts(self._crew.load_weights(packed), packed, dtype=self._dtype)

    def close(self) -> None:
        """Ray's own store goes with it."""


class FileTransport:
    """A safetensors file in a folder that all engines see; there is one version in it at a time, and while it changes two.

    Args:
        folder: made where it is not there.
    """

    def __init__(self, crew: Crew, folder: Path, *, dtype: EngineDtype) -> None:
        self._crew, self._folder, self._dtype = crew, folder, dtype
        self._prefix = f"attune-{uuid.uuid4().hex[:8]}"
        self._current: WeightFile | None = None

    def send(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Transport`."""
        packed = pack_weights(named_tensors, version=version)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new = write_weights(packed, self._folder, name=f"{self._prefix}-v{version:08d}.safetensors")
        except OSError as error:
            size = f"{packed.num_bytes >> 20} MiB of weights"
            raise RuntimeError(f"policy.weight_folder must take {size}, got {str(self._folder)!r}, which does not: {error}") from error
        old, self._current = self._current, new
        # A worker that is lost meanwhile starts anew from the new file, so nobody needs the old one after this.
        check_receipts(self._crew.load_weights(new), new, dtype=self._dtype)
        if old is not None and old.path != new.path:
            Path(old.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Deletes what is left of this run's files."""
        for path in self._folder.glob(f"{self._prefix}-*") if self._folder.is_dir() else ():
            path.unlink(missing_ok=True)


def make_transport(config: EngineConfig, crew: Crew, *, folder: Path) -> Transport:
    """The transport that `policy.weight_transport` names.

    Args:
        folder: for files, where the settings name none.
    """
    match config.weight_transport:
        case WeightTransport.AUTO | WeightTransport.RPC:
            return RpcTransport(crew, dtype=config.dtype)
        case WeightTransport.FILE:
            return FileTransport(crew, Path(config.weight_folder).expanduser() if config.weight_folder else folder, dtype=config.dtype)
        case WeightTransport.NCCL:
            from policy.engine.nccl import connect_nccl

            ranks, timeout_s = config.tensor_parallel, config.load_timeout_s
            return NcclTransport(crew, workers_per_engine=ranks, timeout_s=timeout_s, connect=connect_nccl, dtype=config.dtype)
