"""Processes whose numbers are reproducible, and processes that end with their parent. Imports torch where it is needed, in functions."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENDS_WITH = "ATTUNE_ENDS_WITH"
"""Environment variable with the id of the parent that a process must not outlive."""
NUM_THREADS = 2
"""With another number sums are taken in another order."""


@contextmanager
def threads(num_threads: int) -> Iterator[None]:
    """While entered, torch has this many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_kernels(model: PreTrainedModel) -> None:
    """Warms up the kernels of a training step by one thread; changes neither weights nor generators. Nothing on a GPU.

    The first call of some vector functions selects their kernel; two threads that make it at once may have it computed otherwise.
    """
    import torch
    import torch.nn.functional as F

    if model.device.type != "cpu":
        return
    ids_BT = torch.zeros((2, 8), dtype=torch.int64)
    with threads(1), torch.enable_grad():
        logits_NV = model(input_ids=ids_BT).logits.float().flatten(0, 1)
        entropy = logits_NV.logsumexp(-1) - (logits_NV.softmax(-1) * logits_NV).sum(-1)
        loss = F.cross_entropy(logits_NV, ids_BT.flatten()) + entropy.mean() + logits_NV.log_softmax(-1).exp().log().mean()
        loss.backward()
    model.zero_grad(set_to_none=True)


def reproducible_environment() -> dict[str, str]:
    """Environment variables for bit-reproducible math on every x86-64 processor with AVX2; torch reads them when it is imported."""
    import torch

    num = str(NUM_THREADS)
    environment = {"OMP_NUM_THREADS": num, "MKL_NUM_THREADS": num, "OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}
    # Without effect on the numbers: threads that spin at barriers take a shared core from each other.
    environment["OMP_WAIT_POLICY"] = "PASSIVE"
    if platform.machine() in ("x86_64", "AMD64") and torch.backends.cpu.get_cpu_capability() != "DEFAULT":
        # MKL promises the same results on processors of all makers under `COMPATIBLE` alone.
        environment |= {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    return {**os.environ, **environment}


@contextmanager
def binding_children() -> Iterator[None]:
    """Processes that are started within end with this one, if they call `end_with_parent`."""
    os.environ[ENDS_WITH] = str(os.getpid())
    try:
        yield
    finally:
        os.environ.pop(ENDS_WITH, None)


def end_with_parent() -> None:
    """Ends this process at once when the parent that bound it is gone, or was before this call; its own children are not bound."""
    parent = os.environ.get(ENDS_WITH, "")
    if parent in ("", str(os.getpid())):
        return
    del os.environ[ENDS_WITH]

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
