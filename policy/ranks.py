"""Processes that train one model together: each takes its share of a step's micro-batches, and sums over all make them agree.

`torch.distributed` carries the sums, by gloo between CPUs and NCCL between GPUs, over the loopback of one machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
BUCKET = 1 << 25
"""Numbers that are summed in one message, at most, unless one tensor has more."""


@dataclass(frozen=True)
class Ranks:
    """Which of them this process is; by default the only one, for which nothing below does anything."""

    rank: int = 0
    size: int = 1
    sharded: bool = False
    """Whether each holds a part of the model (`policy.shards`) and not all of it."""

    @classmethod
    def join(cls, rank: int, size: int, meeting: Path, *, device: str = "cpu", sharded: bool = False) -> Ranks:
        """This process among `size`, once all of them have come.

        Args:
            meeting: a file that none of them has yet.
            device: the process's own.
        """
        if device != "cpu":
            torch.cuda.set_device(torch.device(device).index or 0)  # which `cuda` alone does not say
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ[variable] = "lo"
        backend = "cpu:gloo,cuda:nccl" if dist.is_nccl_available() and torch.cuda.is_available() else "gloo"
        store = dist.FileStore(str(meeting), size)
        store.set_timeout(timedelta(minutes=5))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(minutes=30))
        return cls(rank, size, sharded)

    def leave(self) -> None:
        """Ends the process's part in it."""
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def share(self, pieces: Sequence[T]) -> list[tuple[T, bool]]:
        """Those that are this process's, and whether each counts: dealt in turn, so that each process gets long and short ones.

        All make equally many passes of a sharded model. Where they do not come out even the last piece is played again and does not count.
        """
        own = [(piece, True) for piece in pieces[self.rank :: self.size]]
        if self.sharded and len(own) < -(-len(pieces) // self.size):
            own.append((pieces[-1], False))
        return own

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Puts in place of each tensor its sum over all processes, which all give tensors of these shapes in this order."""
        if self.size > 1:
            for bucket in _buckets(tensors):
                flat = torch.cat([tensor.flatten() for tensor in bucket])
                dist.all_reduce(flat)
                for tensor, total in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                    tensor.copy_(total.view_as(tensor))

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """The same for the gradients of trained parameters; one that only some have is 0 on the others. Sharded ones are sums already."""
        if self.size > 1 and not self.sharded:
            trained = [parameter for parameter in parameters if parameter.requires_grad]
            have = zip(*self.gather([parameter.grad is not None for parameter in trained]), strict=True)
            for parameter, of_ranks in zip(trained, have, strict=True):
                if any(of_ranks) and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self.sum([parameter.grad for parameter in trained if parameter.grad is not None])

    def gather(self, value: T) -> list[T]:
        """Every process's value, in the order of ranks."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one type, together at most `BUCKET` numbers."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and (bucket[0].dtype != tensor.dtype or sum(map(Tensor.numel, bucket)) + tensor.numel() > BUCKET):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
