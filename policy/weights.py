"""New weights on their way into the engines, and the proof that all of them arrived."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

TIED_HEAD = "lm_head.weight"
"""A trainer may send it or not when the output head is the embedding; engines derive it."""
PROBE_TOLERANCE = 0.01
"""Nats by which two engines may differ on the same probe; float32 engines differ by 1e-6, stale weights by far more."""


@dataclass(frozen=True, kw_only=True)
class PackedWeights:
    """Weights as plain arrays, which cross process boundaries without being copied."""

    version: int
    arrays: Mapping[str, np.ndarray]
    """By parameter name; bfloat16 as its bits."""
    dtypes: Mapping[str, str]
    """torch's name of each dtype."""


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


def checksum(weights: PackedWeights) -> int:
    """A checksum over names, shapes, dtypes and every bit."""
    value = 0
    for name in weights.arrays:
        value = _checksum_one(weights, name, value)
    return value


def _checksum_one(weights: PackedWeights, name: str, value: int) -> int:
    array = weights.arrays[name]
    value = zlib.crc32(f"{name} {weights.dtypes[name]} {array.shape}".encode(), value)
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, value)


class Delivery:
    """Hands tensors to an engine's loader and keeps the checksum of what the loader took.

    Raises:
        ValueError: the names are not those of the model.
    """

    def __init__(self, weights: PackedWeights, *, expected: set[str]) -> None:
        given = set(weights.arrays) - ({TIED_HEAD} - expected)
        if given != expected:
            missing, unknown = sorted(expected - given)[:3], sorted(given - expected)[:3]
            raise ValueError(
                f"policy weights must name every parameter of the model, got {missing or 'none'} missing and {unknown or 'none'} unknown"
            )
        self._weights = weights
        self.checksum = 0

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, array in self._weights.arrays.items():
            # Arrays from an object store are read-only, which torch cannot express: it gets its own copy.
            tensor = torch.from_numpy(array.copy())
            yield name, tensor.view(torch.bfloat16) if self._weights.dtypes[name] == "bfloat16" else tensor
            self.checksum = _checksum_one(self._weights, name, self.checksum)


def parameter_names(model_folder: Path) -> set[str]:
    """The names of all tensors that a model folder's safetensors files hold, read from their headers."""
    names = set()
    for path in sorted(model_folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        names |= header.keys() - {"__metadata__"}
    return names


def check_receipts(receipts: Sequence[Receipt], sent: PackedWeights) -> None:
    """Compares what the engines acknowledge with what was sent, and with each other.

    Raises:
        RuntimeError: an engine took in something else, or gives other logprobs than its fellows.
    """
    wanted = checksum(sent)
    for i, receipt in enumerate(receipts):
        if (receipt.version, receipt.checksum) != (sent.version, wanted):
            raise RuntimeError(f"engine {i} must hold policy version {sent.version}, got version {receipt.version} with another checksum")
        apart = np.abs(np.subtract(receipt.probe, receipts[0].probe)).max()
        if not apart <= PROBE_TOLERANCE:
            raise RuntimeError(f"engine {i} must agree with engine 0 on policy version {sent.version}, got logprobs {apart:.2g} nats apart")
