"""The contract of whatever generates tokens: token ids in, token ids and their logprobs out."""

from __future__ import annotations

import importlib.util
import json
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from policy.thinking import ThinkingConfig

if TYPE_CHECKING:
    from policy.weights import Broadcast, Receipt, Shipment

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to sample. Top-p, top-k and penalties do not exist here: they would bias the importance ratio (docs/decisions.md)."""

    max_tokens: int
    temperature: float = 1.0
    """Must be > 0 in training; 0 means greedy and is for evaluation only."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What an engine sampled, verbatim."""

    token_ids: tuple[int, ...]
    """[T], the end-of-turn token included when the model emitted it."""
    logprobs: tuple[float, ...]
    """[T] nats, at the sampling temperature, over the full vocabulary."""
    text: str
    """Decoded without special tokens."""
    finish_reason: str
    """`stop` (end of turn) or `length`."""
    policy_version: int
    """Of the weights that sampled it."""


class Generate(Protocol):
    """One continuation of a prompt. Rollout code receives this callable and cannot learn whether it is local, an actor or a test's fake."""

    async def __call__(self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int) -> Completion: ...


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt to continue, for those who ask for many at once."""

    prompt_ids: Sequence[int]
    sampling: Sampling
    seed: int


def check_length(request: Request, max_context: int) -> None:
    """Refuses a prompt that is empty or leaves no room for its reply.

    Raises:
        ValueError: it is too long, or empty.
    """
    longest = max_context - request.sampling.max_tokens
    if not 0 < len(request.prompt_ids) <= longest:
        raise ValueError(f"a prompt must have 1 to {longest} tokens, got {len(request.prompt_ids)}")


class EngineError(RuntimeError):
    """An engine broke: it will answer nothing any more and must be built anew."""


class Engine(Protocol):
    """An engine in this process. New weights take effect between replies, so every completion is of one policy version."""

    name: str
    """Its kind, `vllm` or `hf`."""
    tokenizer: Any
    """The model's Hugging Face tokenizer."""
    policy_version: int
    """Of the weights it holds."""
    busy_s: float
    """Seconds it has spent computing."""

    @property
    def broken(self) -> bool:
        """Whether it failed and must be built anew."""
        ...

    @property
    def stuck_s(self) -> float:
        """Seconds since it last sampled something, while replies are wanted; 0 while none are."""
        ...

    async def generate(self, prompt_ids: Sequence[int], *, sampling: Sampling, seed: int) -> Completion:
        """One continuation of a prompt."""
        ...

    async def generate_all(self, requests: Sequence[Request]) -> list[Completion]:
        """Continuations of many prompts, taken up together and in this order."""
        ...

    async def load_weights(self, weights: Shipment | Broadcast) -> Receipt:
        """Replaces all weights once the running replies are done."""
        ...

    async def join_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Joins the group in which weights are broadcast, where the engine can."""
        ...

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprob of every token but the first, given those before it: nats, at temperature 1, over the full vocabulary."""
        ...

    async def reset_cache(self) -> None:
        """Forgets all cached prefixes."""
        ...

    def close(self) -> None:
        """Stops the engine's thread; what still waits fails."""
        ...


class EngineKind(StrEnum):
    """Which engine generates."""

    AUTO = "auto"
    """vLLM where it can be imported, else transformers."""
    VLLM = "vllm"
    HF = "hf"


class EngineDtype(StrEnum):
    """What an engine computes in."""

    FLOAT32 = "float32"
    """Agrees with a float32 trainer to about 1e-6 nats."""
    BFLOAT16 = "bfloat16"
    """Agrees to about 4e-3 nats."""


BYTES = {EngineDtype.FLOAT32: 4, EngineDtype.BFLOAT16: 2}
"""Of one number."""


class WeightTransport(StrEnum):
    """How new weights get from the trainer into the engines."""

    AUTO = "auto"
    """rpc."""
    RPC = "rpc"
    """The bytes, through Ray's object store."""
    FILE = "file"
    """A safetensors file in a folder that every engine sees."""
    NCCL = "nccl"
    """From GPU to GPU, by vLLM's own transfer; for vLLM engines on GPUs of their own. Not run on a GPU yet."""


@dataclass(kw_only=True)
class EngineConfig(ThinkingConfig):
    """How an engine is built, and in which mode its policy speaks (`policy.*`)."""

    engine: EngineKind = EngineKind.AUTO
    """auto, vllm or hf (transformers: several times slower, needs no vLLM)."""
    dtype: EngineDtype = EngineDtype.FLOAT32
    """float32 or bfloat16."""
    kv_cache_mb: int = 96
    """At least 1; MiB for the keys and values of running and remembered dialogues, on a CPU or with gpu_memory_share=0."""
    gpu_memory_share: float = 0.5
    """In [0, 1]; the part of a GPU that an engine fills. With 0 it takes its weights, its activations and kv_cache_mb, whatever others hold
    there, so that several runs can share a card."""
    block_size: int = 32
    """Tokens of a shared prefix are remembered in blocks of this size; vLLM's 128 would share nothing in short dialogues."""
    max_running: int = 128
    """At least 1; replies sampled at the same time."""
    start_timeout_s: float = 300.0
    """Above 0; seconds an engine may take to start and to answer a first prompt."""
    load_timeout_s: float = 120.0
    """Above 0; seconds new weights may take to arrive."""
    weight_transport: WeightTransport = WeightTransport.AUTO
    """auto, rpc, file or nccl; by which way they do."""
    weight_folder: str = ""
    """Where their files lie on the way, with weight_transport=file: a folder that the machines of all engines see under this path. Empty
    takes a folder of the run's own, which only this machine sees."""
    engine_process: bool = False
    """Run vLLM's engine in a process of its own beside its users and their dialogues, which otherwise share one interpreter with it: more
    tokens a second where a core is free for them, for some more memory."""
    tensor_parallel: int = 1
    """At least 1; GPUs that share the matrices of one vLLM engine (its tensor parallel size). Needs as many `cluster.gpus_per_engine`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kv_cache_mb", "block_size", "max_running", "tensor_parallel"):
            if getattr(self, name) < 1:
                raise ValueError(f"policy.{name} must be at least 1, got {getattr(self, name)!r}")
        for name in ("start_timeout_s", "load_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"policy.{name} must be above 0, got {getattr(self, name)!r}")
        if not 0 <= self.gpu_memory_share <= 1:
            raise ValueError(f"policy.gpu_memory_share must be in [0, 1], got {self.gpu_memory_share!r}")
        if self.weight_folder and self.weight_transport is not WeightTransport.FILE:
            raise ValueError(
                f"policy.weight_folder must be empty with policy.weight_transport={self.weight_transport}, got {self.weight_folder!r}; "
                "files are for policy.weight_transport=file"
            )
        if self.engine_process:
            self._check_process()
        if self.engine is EngineKind.HF and self.weight_transport is WeightTransport.NCCL:
            raise ValueError(
                "policy.weight_transport must be auto, rpc or file with policy.engine=hf, got 'nccl': it is vLLM's; take policy.engine=vllm"
            )
        if self.engine is EngineKind.HF and self.tensor_parallel > 1:
            raise ValueError(
                f"policy.tensor_parallel must be 1 with policy.engine=hf, got {self.tensor_parallel!r}: that is vLLM's; "
                "take policy.engine=vllm"
            )

    def _check_process(self) -> None:
        if self.engine is EngineKind.HF:
            raise ValueError("policy.engine_process must be false with policy.engine=hf, got true: it is vLLM's; take policy.engine=vllm")
        if self.tensor_parallel > 1:
            raise ValueError(
                f"policy.engine_process must be false with policy.tensor_parallel={self.tensor_parallel}, got true: "
                "the parts of such an engine are processes already; leave it out"
            )

    @property
    def may_be_vllm(self) -> bool:
        """Whether vLLM will sample, as far as can be told without importing it."""
        return self.engine is not EngineKind.HF and importlib.util.find_spec("vllm") is not None

    @property
    def without_vllm(self) -> str:
        """What must be otherwise where vLLM cannot be had, with a gap for why not; empty where another engine may take its place."""
        if self.engine is EngineKind.VLLM:
            return "policy.engine must be auto or hf where vLLM {}, got 'vllm'"
        if self.tensor_parallel > 1:
            return f"policy.tensor_parallel must be 1 where vLLM {{}}, got {self.tensor_parallel}"
        if self.engine_process:
            return "policy.engine_process must be false where vLLM {}, got true"
        if self.weight_transport is WeightTransport.NCCL:
            return "policy.weight_transport must be auto, rpc or file where vLLM {}, got 'nccl'"
        return ""


def check_engine(config: EngineConfig, model_folder: str | Path, *, max_context: int) -> None:
    """Refuses what cannot work, without starting or importing anything.

    Raises:
        ValueError: the model folder is not there, its model is made for shorter dialogues, or vLLM is asked for and not installed.
    """
    if not (Path(model_folder) / "config.json").is_file():
        raise ValueError(
            f"policy.model must be a folder with a Hugging Face model, got {str(model_folder)!r}, which is none on {socket.gethostname()}; "
            "it must be at this path on every machine with an engine, by a copy there or a file system that they share (docs/cluster.md)"
        )
    if max_context > (positions := num_positions(model_folder, otherwise=max_context)):
        raise ValueError(f"rollout.max_context must be at most the {positions} tokens that the model is made for, got {max_context!r}")
    if (rule := config.without_vllm) and importlib.util.find_spec("vllm") is None:
        raise ValueError(f"{rule.format('is not installed')}; {vllm_remedy()}")


def vllm_remedy() -> str:
    """What installs vLLM beside the torch that is here: a build for the CPU calls itself +cpu."""
    try:
        name = "cpu" if metadata.version("torch").endswith("+cpu") else "gpu"
    except metadata.PackageNotFoundError:
        name = "cpu"
    return f"pip install -r requirements/{name}.txt"


def check_weight_files(config: EngineConfig, model_folder: str | Path) -> None:
    """Refuses a model without safetensors where vLLM will sample and be sent weights: their headers say which are to come.

    Raises:
        ValueError: there are none.
    """
    if config.may_be_vllm and not any(Path(model_folder).glob("*.safetensors")):
        raise ValueError(
            f"policy.model must have its weights in *.safetensors where vLLM samples, got {str(model_folder)!r} with *.bin alone; "
            "save it anew with transformers, or set policy.engine=hf"
        )


def num_positions(model_folder: str | Path, *, otherwise: int) -> int:
    """The longest context that a model folder claims, in tokens."""
    config = json.loads((Path(model_folder) / "config.json").read_text())
    return config.get("max_position_embeddings") or otherwise


def cache_bytes(model_folder: str | Path, *, num_tokens: int, dtype: EngineDtype) -> int:
    """What the keys and values of so many tokens take in all layers, each head at its full width; 0 where config.json does not say."""
    config = json.loads((Path(model_folder) / "config.json").read_text())
    config = config.get("text_config") or config
    try:
        heads = config.get("num_key_value_heads") or config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return 2 * int(config["num_hidden_layers"]) * int(heads) * int(width) * BYTES[dtype] * num_tokens
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0


def make_engine(config: EngineConfig, model_folder: str | Path, *, max_context: int) -> Engine:
    """Builds the engine that `config.engine` names and waits until it answers.

    Args:
        max_context: tokens of the longest dialogue.

    Raises:
        ValueError: see `check_engine`, or vLLM is asked for and cannot be imported.
        RuntimeError: it did not start.
    """
    check_engine(config, model_folder, max_context=max_context)
    if config.engine is not EngineKind.HF:
        from policy import vllm_engine

        try:
            vllm_engine.import_vllm(config.dtype)
        except (ImportError, OSError, RuntimeError) as error:
            if rule := config.without_vllm:
                reason = rule.format(f"cannot be imported ({error})")
                raise ValueError(f"{reason}; {vllm_remedy()}") from error
            log.warning("vLLM cannot be imported (%s): rolling out with the slower transformers engine", error)
        else:
            return vllm_engine.VLLMEngine(config, model_folder, max_context=max_context)
    from policy.hf_engine import HFEngine

    return HFEngine(config, model_folder, max_context=max_context)
