"""Weights as one file that every engine can read: written whole under another name, then renamed, so that nobody meets half of it."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from policy.disk import as_os_error, flush
from policy.weights import PackedWeights


class WeightFileError(RuntimeError):
    """An engine cannot read what the trainer wrote."""


@dataclass(frozen=True, kw_only=True)
class WeightFile:
    """A shipment that lies in a safetensors file; what crosses process boundaries is only where."""

    version: int
    path: str
    names: Sequence[str]
    checksum: int
    """Of what was written, in the order of the names."""

    def digest(self) -> int:
        """As it was when the file was written: what was damaged since then comes to another."""
        return self.checksum

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Read one after the other, so that a reader holds one parameter at a time.

        Raises:
            WeightFileError: the file is not there or not whole, as this machine sees it.
        """
        try:
            with safe_open(self.path, framework="pt") as file:
                for name in self.names:
                    yield name, file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            where = f"{Path(self.path).name} of {str(Path(self.path).parent)!r} on {socket.gethostname()}"
            raise WeightFileError(
                f"policy.weight_folder must be a folder that every engine sees, got none that holds {where} whole ({error}); "
                "name one on a shared file system, or set policy.weight_transport=rpc"
            ) from error


def write_weights(packed: PackedWeights, folder: Path, *, name: str) -> WeightFile:
    """Writes a file so that its name stands for the whole of it, even after a loss of power.

    Raises:
        OSError: there is no room, or the folder cannot be written.
    """
    path, unfinished = folder / name, folder / f".{name}.unfinished"
    try:
        with as_os_error():
            save_file(dict(packed.tensors()), unfinished)
        flush(unfinished)
        unfinished.replace(path)
        flush(folder)
    finally:
        unfinished.unlink(missing_ok=True)
    return WeightFile(version=packed.version, path=str(path.absolute()), names=packed.names, checksum=packed.digest())
