"""Weights from GPU to GPU by vLLM's own NCCL transfer, and what to do when a member of the group does not answer.

Source: vLLM, distributed/weight_transfer (0.32): a trainer-side engine drives the phases init, start, update and finish through a client.
Not run on a GPU yet: what was run is all of it but NCCL itself, with a backend of the tests' own in NCCL's place.

The trainer's end of vLLM's weight transfer: a group of NCCL ranks with the trainer as its first.

Source: vLLM, distributed/weight_transfer (0.32).
Untested on GPUs, like `policy/engine/nccl.py`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from policy.config import EngineDtype
from policy.engine.vllm import import_vllm
from policy.engine.weights import Broadcast, PackedWeights, Receipt, check_receipts, fold_on_device, pack_weights

if TYPE_CHECKING:
    from policy.rollout.worker_group import Crew


GRACE_S = 5.0
"""Seconds by which the trainer waits longer than it lets the engines take."""


class TrainerSide(Protocol):
    """vLLM's trainer-side engine, connected."""

    def send_weights(self) -> None:
        """Drives one whole update."""
        ...

    def shutdown(self) -> None:
        """Leaves the group."""
        ...


Read = Callable[[], Sequence[tuple[str, Tensor]]]
"""The tensors to send now, by name."""


class Connect(Protocol):
    """Joins the trainer and all engines in one group; returns the trainer's side once everybody is there."""

    def __call__(self, client: CrewClient, read: Read, *, address: str, port: int, size: int) -> TrainerSide: ...


class LiveWeights:
    """The trainer's tensors where they are."""

    def __init__(self, named_tensors: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Raises:
        ValueError: a parameter holds NaN or infinity.
        """
        self.version = version
        self.named = [(name, tensor.detach()) for name, tensor in named_tensors]
        for name, tensor in self.named:
            if not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"policy weights must be finite, got NaN or infinity in {name!r} of version {version}")
        self._sent = self._fold()

    @property
    def names(self) -> Sequence[str]:
        """In the order in which they are sent."""
        return [name for name, _ in self.named]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The live tensors, not copies."""
        yield from self.named

    def digest(self) -> int:
        """Of what they held when they were taken up."""
        return self._sent

    def packed(self) -> PackedWeights:
        """A copy for a worker that joins late."""
        assert self._fold() == self._sent, f"the trainer must still hold what it sent as version {self.version}, got other weights"
        return pack_weights(self.named, version=self.version)

    def _fold(self) -> int:
        value = 0
        for name, tensor in self.named:
            value = fold_on_device(value, name, tensor)
        return value


class CrewClient:
    """What vLLM's trainer side talks to: its four calls, each to all engines at once and within a time.

    Every engine is a group of `workers_per_engine` ranks of its own, so each is told another offset. Start, update and finish reach an
    engine as one call, so that no reply is sampled between them.
    """

    def __init__(self, crew: Crew, *, workers_per_engine: int, timeout_s: float) -> None:
        self._crew, self._workers_per_engine, self._timeout_s = crew, workers_per_engine, timeout_s
        self.version = 0
        self.receipts: list[Receipt] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Has every engine join."""
        offsets = [init_info["rank_offset"] + i * self._workers_per_engine for i in range(len(self._crew))]
        infos = [({**init_info, "rank_offset": offset},) for offset in offsets]
        self._crew.ask_each("join_transfer", infos, timeout_s=self._timeout_s)

    def start_weight_update(self) -> None:
        """A part of the update."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Has every engine take in what is being broadcast."""
        broadcast = Broadcast(version=self.version, update_info=update_info)
        self.receipts = self._crew.ask_each("load_weights", [(broadcast,)] * len(self._crew), timeout_s=self._timeout_s)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """A part of the update, too."""


class NcclTransport:
    """Broadcasts to all engines at once; after a worker was replaced the group is joined anew.

    A worker that starts anew gets a copy of the latest weights by RPC before it serves, so the tensors that were sent must stay as they are
    for as long as anything is asked of the engines. Whoever is lost while a broadcast is under way leaves the others waiting in NCCL, which
    knows no timeout: then the run stops, to be resumed.

    Args:
        timeout_s: for joining, and for an update.
        connect: how the trainer and the engines become a group.
        dtype: what the engines compute in.
    """

    def __init__(
        self, crew: Crew, *, workers_per_engine: int, timeout_s: float, connect: Connect, dtype: EngineDtype = EngineDtype.FLOAT32
    ) -> None:
        self._crew, self._workers_per_engine, self._timeout_s = crew, workers_per_engine, timeout_s
        self._connect, self._dtype = connect, dtype
        self._client = CrewClient(crew, workers_per_engine=workers_per_engine, timeout_s=timeout_s)
        self._weights: LiveWeights | None = None
        self._side: TrainerSide | None = None
        self._num_restarts = 0

    def send(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """See `Transport`."""
        self._weights = weights = LiveWeights(named_tensors, version=version)
        self._client.version = version
        if self._side is not None and self._crew.num_restarts != self._num_restarts:
            self.close()
        self._in_time(self._send, device=weights.named[0][1].device)
        check_receipts(self._client.receipts, weights, dtype=self._dtype)
        self._crew.give_newcomers(weights.packed)

    def close(self) -> None:
        """Leaves the group."""
        side, self._side = self._side, None
        if side is not None:
            side.shutdown()

    def _send(self) -> None:
        if self._side is None:
            self._side = self._joined()
            self._num_restarts = self._crew.num_restarts
        self._side.send_weights()

    def _joined(self) -> TrainerSide:
        size = 1 + len(self._crew) * self._workers_per_engine
        return self._connect(self._client, self._read, address=self._crew.own_address(), port=free_port(), size=size)

    def _read(self) -> Sequence[tuple[str, Tensor]]:
        assert self._weights is not None, "there must be weights to send"
        return self._weights.named

    def _in_time(self, call: Callable[[], None], *, device: torch.device) -> None:
        """Calls on a thread of its own, which may stay behind in NCCL for good.

        Raises:
            RuntimeError: it took too long, or failed.
        """
        outcome: list[BaseException | None] = []

        def run() -> None:
            try:
                if device.type == "cuda":
                    torch.cuda.set_device(device)
                call()
            except BaseException as error:  # noqa: BLE001 - it is the caller's to judge
                outcome.append(error)
            else:
                outcome.append(None)

        thread = threading.Thread(target=run, name="weights by NCCL", daemon=True)
        thread.start()
        # The engines' own time runs out first and says more.
        thread.join(timeout=2 * self._timeout_s + GRACE_S)
        if not outcome:
            self._side = None  # whoever is stuck in it is no longer to be asked to leave
            raise RuntimeError(
                f"all engines must take new weights by NCCL within policy.load_timeout_s={self._timeout_s:g} s, got no end of it; "
                "resume the run, with policy.weight_transport=rpc if it happens again"
            )
        if (error := outcome[0]) is not None:
            self._side = None
            raise RuntimeError(f"new weights must reach every engine by NCCL, got {type(error).__name__}: {error}") from error


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as door:
        door.bind(("", 0))
        return int(door.getsockname()[1])


def connect_nccl(client: CrewClient, read: Read, *, address: str, port: int, size: int) -> TrainerSide:
    """Joins the trainer, on its thread's current CUDA device, and all engines in one group.

    Args:
        address: under which the engines' machines reach this one.
        size: of the group: the trainer and every rank of every engine.

    Raises:
        RuntimeError: somebody did not join.
    """
    import_vllm()
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return connect(client, read, NCCLTrainerInitInfo(rank=0, master_address=address, master_port=port, world_size=size))


def connect(client: CrewClient, read: Read, init_info: object) -> TrainerSide:
    """Joins by the backend that the information is for."""
    from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):
        """What `read` gives, anew for each update."""

        def metadata(self) -> list[ParamMeta]:
            return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in read()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(read())

    return WeightTransferTrainerFactory.trainer_init(init_info, client=client, source=Source())
