"""The same numbers on a busy machine: every function of a training step is called once by a single thread before several call it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel


@contextmanager
def threads(num_threads: int) -> Iterator[None]:
    """torch with this many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_kernels(model: PreTrainedModel) -> None:
    """A pass of the model and its gradient by one thread, thrown away; changes neither weights nor generators. Nothing on a GPU.

    The first call of some vector functions chooses how they are computed on this processor. Two threads that make it at once, as happens
    on a busy machine, may have that call computed otherwise (seen with logsumexp in one process of eight), and the run is another one.
    """
    if model.device.type != "cpu":
        return
    ids_BT = torch.zeros((2, 8), dtype=torch.int64)
    with threads(1), torch.enable_grad():
        logits_NV = model(input_ids=ids_BT).logits.float().flatten(0, 1)
        entropy = logits_NV.logsumexp(-1) - (logits_NV.softmax(-1) * logits_NV).sum(-1)
        loss = F.cross_entropy(logits_NV, ids_BT.flatten()) + entropy.mean() + logits_NV.log_softmax(-1).exp().log().mean()
        loss.backward()
    model.zero_grad(set_to_none=True)
