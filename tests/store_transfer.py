"""A backend of vLLM's weight transfer that needs no GPU: a TCP store in NCCL's place, and everything else as it is.

Importing it registers the backend and makes engines of this process take it for `policy.weight_transport=nccl`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from policy.engine import nccl as vllm_transfer
from policy.engine import vllm as vllm_engine
from tests.tiny_policy import NumberingUser

vllm_engine.import_vllm()

from vllm.distributed.utils import StatelessProcessGroup  # noqa: E402 - vLLM is to be imported by its own door first
from vllm.distributed.weight_transfer import WeightTransferEngineFactory, WeightTransferTrainerFactory  # noqa: E402
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload  # noqa: E402
from vllm.distributed.weight_transfer.nccl_engine import (  # noqa: E402
    NCCLTrainerInitInfo,
    NCCLTrainerWeightTransferEngine,
    NCCLWeightTransferEngine,
)


class StoreReceiver(NCCLWeightTransferEngine):
    """Takes each tensor out of the store."""

    def init_transfer_engine(self, init_info):
        rank = self.parallel_config.rank + init_info.rank_offset
        self.group = StatelessProcessGroup.create(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def update_weights(self, update_info):
        for name in self.parse_update_info(update_info).names:
            self.model.load_weights([(name, self.group.broadcast_obj(None, src=0))])

    def shutdown(self):
        self.group = None


class StoreInfo(NCCLTrainerInitInfo):
    backend = "store"


class StoreSender(NCCLTrainerWeightTransferEngine):
    """Puts each tensor into the store."""

    init_info_cls = StoreInfo

    @classmethod
    def trainer_init(cls, init_info, *, client, source=None):
        place = {"master_address": init_info.master_address, "master_port": init_info.master_port, "world_size": init_info.world_size}
        sender = cls(client=client, source=source)
        with ThreadPoolExecutor(max_workers=1) as side:
            joining = side.submit(
                client.init_weight_transfer_engine, worker_init_payload(NCCLWeightTransferInitInfo(rank_offset=1, **place))
            )
            sender.group = StatelessProcessGroup.create(init_info.master_address, init_info.master_port, 0, init_info.world_size)
            joining.result()
        return sender

    def _broadcast(self, source, meta):
        for _, tensor in self._checked_iter(source, meta):
            self.group.broadcast_obj(tensor.clone(), src=0)

    def shutdown(self):
        self.group = None


WeightTransferEngineFactory.register_engine("store", StoreReceiver)
WeightTransferTrainerFactory.register_engine("store", StoreSender)
vllm_engine.TRANSFER_BACKEND = "store"


def connect_store(client, read, *, address, port, size):
    """As `connect_nccl`, by the store."""
    return vllm_transfer.connect(client, read, StoreInfo(rank=0, master_address=address, master_port=port, world_size=size))


class UserBesideStore(NumberingUser):
    """A user of this module: where it is unpickled, the backend is registered."""
