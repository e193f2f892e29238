"""How new weights travel from the trainer to the engines: through Ray's object store (rpc) or by a shared folder (file).

Either way an engine takes them between two replies, in one call on its own thread: running replies finish, the weights are replaced,
cached prefixes are forgotten, the version is set, a probe is scored. An engine left with half of the weights samples nothing more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torch import Tensor

from policy.config import EngineConfig, WeightTransport
from policy.engine.weights import PackedWeights, WeightAck, WeightFile, WeightUpdate, check_acks, pack_weights, write_weights


class Workers(Protocol):
    """A group of workers, each with an engine."""

    def load_weights(self, weights: WeightUpdate) -> list[WeightAck]:
        """Every engine's acknowledgement; restarted workers get these weights from now on."""
        ...


class WeightSync:
    """Brings weights to all engines of a worker group, and to those that restart later.

    Args:
        folder: for files, where the settings name none; made where it is not there.
    """

    def __init__(self, config: EngineConfig, workers: Workers, *, folder: Path) -> None:
        self._config, self._workers = config, workers
        self._folder = Path(config.weight_folder).expanduser() if config.weight_folder else folder
        self._prefix = f"attune-{uuid.uuid4().hex[:8]}"
        self._current: WeightFile | None = None

    def send(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Returns when every engine has them; the tensors may change from then on.

        Raises:
            ValueError: a parameter is missing, unknown or not finite.
            RuntimeError: an engine holds other weights than were sent, or could not be made to take them in time.
        """
        packed = pack_weights(named_tensors, version=version)
        if self._config.weight_transport is not WeightTransport.FILE:
            check_acks(self._workers.load_weights(packed), packed, dtype=self._config.dtype)
            return
        old, self._current = self._current, self._write(packed)
        # A worker that is lost meanwhile restarts from the new file, so the old one is not needed after this.
        check_acks(self._workers.load_weights(self._current), self._current, dtype=self._config.dtype)
        if old is not None and old.path != self._current.path:
            Path(old.path).unlink(missing_ok=True)

    def close(self) -> None:
        """Deletes this run's remaining files."""
        for path in self._folder.glob(f"{self._prefix}-*") if self._current else ():
            path.unlink(missing_ok=True)

    def _write(self, packed: PackedWeights) -> WeightFile:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return write_weights(packed, self._folder, name=f"{self._prefix}-v{packed.version:08d}.safetensors")
        except OSError as error:
            size = f"{packed.num_bytes >> 20} MiB of weights"
            raise RuntimeError(f"policy.weight_folder must take {size}, got {str(self._folder)!r}, which does not: {error}") from error
