"""New weights on their way from the trainer into the engines, and the proof that all of them arrived: a checksum and a scored probe."""

from __future__ import annotations

import socket
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from policy.config import EngineConfig, EngineDtype, WeightTransport
from policy.files import as_os_error, flush, headers

TIED_HEAD = "lm_head.weight"
"""A trainer may send it or not when the output head is the embedding; engines derive it."""
PIECE_BYTES = 512 << 20
"""Weights above this size are sent in pieces of it."""
PROBE_IDS = tuple(range(5, 21))
"""An arbitrary prompt of low token ids, which every vocabulary has."""


@dataclass(frozen=True, kw_only=True)
class PackedWeights:
    """New weights of the policy as plain arrays, which cross process boundaries without being copied."""

    version: int
    arrays: Mapping[str, np.ndarray]
    """By parameter name; bfloat16 as its bits."""
    dtypes: Mapping[str, str]
    """torch's name of each dtype."""
    checksum: int
    """Of the tensors in order (`fold`), as they were packed."""

    @property
    def names(self) -> Sequence[str]:
        return tuple(self.arrays)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Copies: arrays from an object store are read-only, which torch cannot express."""
        for name, array in self.arrays.items():
            tensor = torch.from_numpy(array.copy())
            yield name, tensor.view(torch.bfloat16) if self.dtypes[name] == "bfloat16" else tensor


class WeightFileError(RuntimeError):
    """An engine cannot read the trainer's file of weights."""


@dataclass(frozen=True, kw_only=True)
class WeightFile:
    """The same in a safetensors file; only its path crosses process boundaries."""

    version: int
    path: str
    names: Sequence[str]
    checksum: int
    """Of the tensors as they were packed: a file damaged since then has another."""

    def get(self) -> WeightFile:
        """Itself, as a piece."""
        return self

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Read one after the other, so that a reader holds one parameter at a time; WeightFileError for a missing or damaged file."""
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


class Piece(Protocol):
    """Weights that are elsewhere, until they are asked for."""

    def get(self) -> PackedWeights | WeightFile: ...


@dataclass(frozen=True, kw_only=True)
class WeightPieces:
    """The same in pieces, so that neither trainer nor engine holds all of them at once."""

    version: int
    pieces: Sequence[Piece]
    names: Sequence[str]
    checksum: int
    """Of the tensors of all pieces in order."""

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Piece by piece."""
        for piece in self.pieces:
            yield from piece.get().tensors()


WeightUpdate = PackedWeights | WeightFile | WeightPieces


@dataclass(frozen=True, kw_only=True)
class WeightAck:
    """An engine's acknowledgement of new weights."""

    version: int
    checksum: int
    """Over the tensors in the order in which the engine took them."""
    probe: tuple[float, ...]
    """Logprobs that it gives to the tokens of `PROBE_IDS` now, nats."""


def pack_weights(named_tensors: Iterable[tuple[str, Tensor]], *, version: int, checksum: int = 0) -> PackedWeights:
    """Copies weights into plain arrays; raises ValueError for NaN or infinity, which no engine should ever sample from.

    Args:
        checksum: of the pieces before, which it goes on from.
    """
    arrays, dtypes = {}, {}
    for name, tensor in named_tensors:
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"policy weights must be finite, got NaN or infinity in {name!r} of version {version}")
        tensor = tensor.detach().to("cpu", copy=True).contiguous()
        checksum = fold(checksum, name, tensor)
        dtypes[name] = str(tensor.dtype).removeprefix("torch.")
        arrays[name] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return PackedWeights(version=version, arrays=arrays, dtypes=dtypes, checksum=checksum)


def in_pieces(named_tensors: Iterable[tuple[str, Tensor]], *, num_bytes: int) -> Iterator[list[tuple[str, Tensor]]]:
    """Neighbours, together of about that size."""
    piece, size = list[tuple[str, Tensor]](), 0
    for name, tensor in named_tensors:
        if piece and size + tensor.nbytes > num_bytes:
            yield piece
            piece, size = [], 0
        piece.append((name, tensor))
        size += tensor.nbytes
    if piece:
        yield piece


def files_of(weights: WeightUpdate, folder: Path) -> WeightUpdate:
    """The same for a process that cannot reach the trainer's store: written into files of this machine, where they are in none."""
    if isinstance(weights, WeightFile):
        return weights
    if isinstance(weights, PackedWeights):
        return write_weights(weights, folder, name="weights.safetensors")
    pieces = list[Piece]()
    for number, piece in enumerate(weights.pieces):
        found = piece.get()
        pieces.append(found if isinstance(found, WeightFile) else write_weights(found, folder, name=f"weights-{number}.safetensors"))
    return replace(weights, pieces=pieces)


def write_weights(packed: PackedWeights, folder: Path, *, name: str) -> WeightFile:
    """Writes a file under another name and renames it, so that it is whole even after a loss of power; OSError for a full disk."""
    path, unfinished = folder / name, folder / f".{name}.unfinished"
    try:
        with as_os_error():
            save_file(dict(packed.tensors()), unfinished)
        flush(unfinished)
        unfinished.replace(path)
        flush(folder)
    finally:
        unfinished.unlink(missing_ok=True)
    return WeightFile(version=packed.version, path=str(path.absolute()), names=packed.names, checksum=packed.checksum)


def fold(value: int, name: str, tensor: Tensor) -> int:
    """A checksum with one more tensor in it: CRC-32 of name, dtype, shape and bits, continued from `value`."""
    value = zlib.crc32(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}".encode(), value)
    return zlib.crc32(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data, value)


class CheckedTensors:
    """An iterator over an update's tensors for an engine's loader, with the checksum of those it took."""

    def __init__(self, weights: WeightUpdate) -> None:
        self._weights = weights
        self.checksum = 0

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights.tensors():
            self.checksum = fold(self.checksum, name, tensor)
            yield name, tensor


def check_acks(acks: Sequence[WeightAck], sent: WeightUpdate, *, dtype: EngineDtype = EngineDtype.FLOAT32) -> None:
    """Raises RuntimeError where an engine took other weights than were sent, gives other logprobs than the first engine, or NaN."""
    # Nats. In float32 engines differ by 1e-6 on a probe, and stale weights by far more. In bfloat16 the last bit of one logit is 0.03 to
    # 0.125, so that only entirely different weights show; that every bit arrived the checksum proves.
    tolerance = 0.01 if dtype is EngineDtype.FLOAT32 else 1.0
    for i, ack in enumerate(acks):
        if (ack.version, ack.checksum) != (sent.version, sent.checksum):
            got = f"got version {ack.version} with {ack.checksum}; resume the run, which sends all weights again"
            raise RuntimeError(f"engine {i} must hold policy version {sent.version} with checksum {sent.checksum}, {got}")
        apart = np.abs(np.subtract(ack.probe, acks[0].probe)).max()
        if not apart <= tolerance:  # also where it is NaN
            raise RuntimeError(f"engine {i} must agree with engine 0 on policy version {sent.version}, got logprobs {apart:.2g} nats apart")


class WeightSync:
    """Brings weights to all engines of a pool; `load_weights` returns every engine's acknowledgement.

    Args:
        store: keeps a piece of weights that are too large to be sent at once.
        rounded: names of weights that engines keep in bfloat16, and are sent in it.
    """

    def __init__(
        self,
        config: EngineConfig,
        load_weights: Callable[[WeightUpdate], list[WeightAck]],
        *,
        folder: Path,
        store: Callable[[PackedWeights], Piece] | None = None,
        rounded: Collection[str] = (),
    ) -> None:
        self._config, self._load_weights, self._store, self._rounded = config, load_weights, store, rounded
        self._folder = Path(config.weight_folder).expanduser() if config.weight_folder else folder
        self._prefix = f"attune-{uuid.uuid4().hex[:8]}"
        self._files: list[Path] = []

    def send(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Returns when every engine has them; the tensors may change from then on.

        Raises:
            ValueError: a parameter is missing, unknown or not finite.
            RuntimeError: an engine holds other weights than were sent, or did not take them in time.
        """
        named_tensors = ((name, tensor.to(torch.bfloat16) if name in self._rounded else tensor) for name, tensor in named_tensors)
        old, self._files = self._files, []
        packed, names, pieces = pack_weights([], version=version), list[str](), list[Piece]()
        for piece in in_pieces(named_tensors, num_bytes=PIECE_BYTES):
            if names:
                pieces.append(self._keep(packed, f"-{len(pieces):04d}"))
            packed = pack_weights(piece, version=version, checksum=packed.checksum)
            names += packed.names
        update: WeightUpdate = packed
        if pieces:
            pieces.append(self._keep(packed, f"-{len(pieces):04d}"))
            update = WeightPieces(version=version, pieces=pieces, names=names, checksum=packed.checksum)
        elif self._config.weight_transport is WeightTransport.FILE:
            update = self._write(packed)
        check_acks(self._load_weights(update), update, dtype=self._config.dtype)
        # A worker that is lost from now on restarts from the new files.
        for path in set(old) - set(self._files):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Deletes this run's remaining files."""
        for path in self._folder.glob(f"{self._prefix}-*"):
            path.unlink(missing_ok=True)

    def _keep(self, packed: PackedWeights, suffix: str) -> Piece:
        """Where a piece is until engines take it."""
        if self._config.weight_transport is WeightTransport.FILE:
            return self._write(packed, suffix)
        assert self._store is not None, "weights in pieces need a store"
        return self._store(packed)

    def _write(self, packed: PackedWeights, suffix: str = "") -> WeightFile:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = write_weights(packed, self._folder, name=f"{self._prefix}-v{packed.version:08d}{suffix}.safetensors")
        except OSError as error:
            raise RuntimeError(f"policy.weight_folder must have room for weights, got {str(self._folder)!r}: {error}") from error
        self._files.append(Path(file.path))
        return file


def require_names(names: Iterable[str], *, expected: Collection[str]) -> None:
    """Raises ValueError for weights that are not those of the model, before any of them is loaded."""
    wanted = set(expected)
    given = set(names) - ({TIED_HEAD} - wanted)
    if given != wanted:
        missing, unknown = sorted(wanted - given)[:3], sorted(given - wanted)[:3]
        raise ValueError(
            f"policy weights must name every parameter of the model, got {missing or 'none'} missing and {unknown or 'none'} unknown"
        )


def check_weight_names(names: Iterable[str], model_folder: Path, *, is_tied: bool) -> None:
    """Raises ValueError for a model whose files name weights otherwise than the trainer does: vLLM knows them by the files' names.

    Args:
        names: of the trainer's parameters.
        is_tied: whether the folder's settings make the output head the embedding.
    """
    wanted, given = engine_names(model_folder, is_tied=is_tied), set(names)
    if is_tied and TIED_HEAD in given:
        another = f"{str(model_folder)!r}, whose {TIED_HEAD} is another; set tie_word_embeddings to false there, or policy.engine=hf"
        raise ValueError(f"policy.model must have one matrix for words in and out where its config.json ties them, got {another}")
    if given != wanted:
        lacking, surplus = sorted(given - wanted)[:3], sorted(wanted - given)[:3]
        raise ValueError(
            f"policy.model must be stored under the names that its weights have in training where vLLM samples, got {str(model_folder)!r}, "
            f"whose files lack {lacking or 'none'} and also hold {surplus or 'none'}; save it with transformers, or set policy.engine=hf"
        )


def rounded_names(config: EngineConfig, model_folder: Path) -> set[str]:
    """The names of weights that an engine keeps in bfloat16, as the model's files do."""
    found = headers(model_folder).items() if config.dtype is EngineDtype.BFLOAT16 else ()
    return {name for name, header in found if header["dtype"] == "BF16"}


def engine_names(model_folder: Path, *, is_tied: bool) -> set[str]:
    """The names of all weights that a vLLM engine must be sent, from the headers of its safetensors files; without a tied head."""
    return set(headers(model_folder)) - ({TIED_HEAD} if is_tied else set())
