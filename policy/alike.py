"""A process whose sums come out alike on every x86-64 processor with AVX2, whatever it was started from.

What decides that is read once, when torch is imported: which kernels are used, and with how many threads.
"""

from __future__ import annotations

import os
import platform

import torch

NUM_THREADS = 2
"""With another number sums are taken in another order."""
THREADS = {"OMP_NUM_THREADS": str(NUM_THREADS), "MKL_NUM_THREADS": str(NUM_THREADS), "OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}
WAITING = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Of no weight for the numbers; threads that spin at barriers take a shared core from each other."""
KERNELS = {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Torch's own kernels, those of MKL and of oneDNN. MKL promises the same results on processors of all makers under `COMPATIBLE` alone."""


def alike_everywhere() -> dict[str, str]:
    """The environment of a process that computes alike wherever it runs; where a processor lacks AVX2, with the kernels it has."""
    has_avx2 = platform.machine() in ("x86_64", "AMD64") and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    return {**os.environ, **THREADS, **WAITING, **(KERNELS if has_avx2 else {})}
