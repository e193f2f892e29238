"""The trainer's end of vLLM's weight transfer: a group of NCCL ranks with the trainer as its first.

Source: vLLM, distributed/weight_transfer (0.32).
Untested on GPUs, like `policy/nccl.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from policy.nccl import CrewClient, Read, TrainerSide
from policy.vllm_engine import import_vllm


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
