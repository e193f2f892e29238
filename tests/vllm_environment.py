"""Whether vLLM can be imported here, and the environment in which its server starts on a CPU."""

from __future__ import annotations

import importlib.util


def has_vllm() -> bool:
    """Whether it is installed; whether it also starts shows when it does."""
    return importlib.util.find_spec("vllm") is not None


def server_environment() -> dict[str, str] | None:
    """For a server on a CPU; None where there is a GPU."""
    import torch

    if torch.cuda.is_available():
        return None
    return {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
    }
