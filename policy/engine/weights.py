"""New weights on their way into the engines, and the proof that all of them arrived.

Weights as one file that every engine can read: written whole under another name, then renamed, so that nobody meets half of it.
"""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from policy.config import EngineDtype
from policy.files import INDEX, as_os_error, flush, headers

TIED_HEAD = "lm_head.weight"
"""A trainer may send it or not when the output head is the embedding; engines derive it."""
PIECE, PRIME = 1 << 22, 65521
"""Elements that are summed at once, and the period of the weights by which places are told apart."""
PROBE_TOLERANCE = {EngineDtype.FLOAT32: 0.01, EngineDtype.BFLOAT16: 1.0}
"""Nats by which two engines may differ on the same probe. In float32 they differ by 1e-6, stale weights by far more. In bfloat16 the last
bit of one logit is .03 to .125, so that only other weights altogether show; that every bit arrived the checksum proves."""


class Shipment(Protocol):
    """New weights on their way: an engine asks for the tensors, whichever transport brought them (policy/rollout/weight_sync.py)."""

    @property
    def version(self) -> int:
        """Of the policy."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Of the parameters, in the order in which the tensors come."""
        ...

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each parameter by name, as a tensor on the CPU that is the caller's own."""
        ...

    def digest(self) -> int:
        """The checksum that whoever took all of it in must have come to (`fold`)."""
        ...


@dataclass(frozen=True, kw_only=True)
class PackedWeights:
    """A shipment of plain arrays, which cross process boundaries without being copied."""

    version: int
    arrays: Mapping[str, np.ndarray]
    """By parameter name; bfloat16 as its bits."""
    dtypes: Mapping[str, str]
    """torch's name of each dtype."""

    @property
    def names(self) -> Sequence[str]:
        """In the order in which the trainer lists them."""
        return tuple(self.arrays)

    @property
    def num_bytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Copies: arrays from an object store are read-only, which torch cannot express."""
        for name in self.arrays:
            yield name, self._tensor(name, self.arrays[name].copy())

    def digest(self) -> int:
        """Computed anew each time."""
        value = 0
        for name, array in self.arrays.items():
            value = fold(value, name, self._tensor(name, array))
        return value

    def _tensor(self, name: str, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.view(torch.bfloat16) if self.dtypes[name] == "bfloat16" else tensor


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """What an engine is told before tensors come: it takes them in by vLLM's own phases."""

    version: int
    update_info: Mapping[str, Any]
    """vLLM's, with `names`, `dtype_names` and `shapes`."""

    @property
    def names(self) -> Sequence[str]:
        """In the order in which the tensors come."""
        return self.update_info["names"]


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What an engine acknowledges."""

    version: int
    checksum: int
    """Over the tensors in the order in which the engine took them in."""
    probe: tuple[float, ...]
    """Logprobs that it gives to the tokens of `PROBE_IDS` now, nats."""


PROBE_IDS = tuple(range(5, 21))
"""An arbitrary prompt of low token ids, which every vocabulary has."""


def pack_weights(named_tensors: Iterable[tuple[str, Tensor]], *, version: int) -> PackedWeights:
    """Copies weights into plain arrays.

    Raises:
        ValueError: a parameter holds NaN or infinity, which no engine should ever sample from.
    """
    arrays, dtypes = {}, {}
    for name, tensor in named_tensors:
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"policy weights must be finite, got NaN or infinity in {name!r} of version {version}")
        tensor = tensor.detach().to("cpu", copy=True).contiguous()
        dtypes[name] = str(tensor.dtype).removeprefix("torch.")
        arrays[name] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return PackedWeights(version=version, arrays=arrays, dtypes=dtypes)


def fold(value: int, name: str, tensor: Tensor) -> int:
    """A checksum with one more tensor in it: CRC-32 of name, dtype, shape and bits, going on from `value`."""
    value = zlib.crc32(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}".encode(), value)
    return zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, value)


def fold_on_device(value: int, name: str, tensor: Tensor) -> int:
    """The same purpose where the bits must stay on a GPU: a sum of them as integers, each times the number of its place.

    Integer sums come out alike on every device and in every order of summation. Two values that changed places, or one flipped bit, show.
    """
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits_N = tensor.detach().contiguous().reshape(-1).view(whole)
    total = 0
    for first in range(0, len(bits_N), PIECE):
        piece_N = bits_N[first : first + PIECE].long()
        place_N = torch.arange(first, first + len(piece_N), device=piece_N.device) % PRIME + 1
        total += int((piece_N * place_N).sum())
    return zlib.crc32(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} {total}".encode(), value)


class Delivery:
    """Hands tensors to an engine's loader and keeps the checksum of what the loader took."""

    def __init__(self, weights: Shipment) -> None:
        self._weights = weights
        self.checksum = 0

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights.tensors():
            self.checksum = fold(self.checksum, name, tensor)
            yield name, tensor


def require_names(names: Iterable[str], *, expected: Collection[str]) -> None:
    """Refuses weights that are not those of the model, before any of them is loaded.

    Raises:
        ValueError: a parameter is missing, or unknown.
    """
    wanted = set(expected)
    given = set(names) - ({TIED_HEAD} - wanted)
    if given != wanted:
        missing, unknown = sorted(wanted - given)[:3], sorted(given - wanted)[:3]
        raise ValueError(
            f"policy weights must name every parameter of the model, got {missing or 'none'} missing and {unknown or 'none'} unknown"
        )


def check_weight_names(names: Iterable[str], model_folder: Path, *, is_tied: bool) -> None:
    """Refuses a model that vLLM would not know again from the trainer's weights: it takes them by the names that the folder's files have.

    Args:
        names: of the trainer's parameters.
        is_tied: whether the folder's settings make the output head the embedding.

    Raises:
        ValueError: the trainer has other names, or a head of its own.
    """
    wanted, given = engine_names(model_folder, is_tied=is_tied), set(names)
    if is_tied and TIED_HEAD in given:
        raise ValueError(
            f"policy.model must have one matrix for words in and out where its config.json ties them, got {str(model_folder)!r}, whose "
            f"{TIED_HEAD} is another; set tie_word_embeddings to false there, or policy.engine=hf"
        )
    if given != wanted:
        lacking, besides = sorted(given - wanted)[:3], sorted(wanted - given)[:3]
        raise ValueError(
            f"policy.model must be stored under the names that its weights have in training where vLLM samples, got {str(model_folder)!r}, "
            f"whose files lack {lacking or 'none'} and hold {besides or 'none'} besides (joined experts and stored buffers do that); "
            "save it anew with transformers, or set policy.engine=hf"
        )


def engine_names(model_folder: Path, *, is_tied: bool) -> set[str]:
    """The names of all weights that a vLLM engine must be sent: a head that is the embedding goes with it, stored or not."""
    return parameter_names(model_folder) - ({TIED_HEAD} if is_tied else set())


def parameter_names(model_folder: Path) -> set[str]:
    """The names of all tensors that a model folder's safetensors files hold: from their index where there is one, else their headers."""
    index = model_folder / INDEX
    if index.is_file():
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    return set(headers(model_folder))


def check_receipts(receipts: Sequence[Receipt], sent: Shipment, *, dtype: EngineDtype = EngineDtype.FLOAT32) -> None:
    """Compares what the engines acknowledge with what was sent, and with each other.

    Args:
        dtype: what the engines compute in.

    Raises:
        RuntimeError: an engine took in something else, or gives other logprobs than its fellows.
    """
    wanted = sent.digest()
    for i, receipt in enumerate(receipts):
        if (receipt.version, receipt.checksum) != (sent.version, wanted):
            got = f"got version {receipt.version} with {receipt.checksum}; resume the run, and the engines get all weights anew"
            raise RuntimeError(f"engine {i} must hold policy version {sent.version} with checksum {wanted}, {got}")
        apart = np.abs(np.subtract(receipt.probe, receipts[0].probe)).max()
        if not apart <= PROBE_TOLERANCE[dtype]:
            raise RuntimeError(f"engine {i} must agree with engine 0 on policy version {sent.version}, got logprobs {apart:.2g} nats apart")


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
