"""vLLM in this process: sampled ids and their logprobs over the full vocabulary, with weights replaced in place."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from policy.config import EngineConfig, EngineDtype
from policy.engine.engine import Completion, Engine, Request, Sampling
from policy.engine.weights import CheckedTensors, WeightPieces, WeightUpdate, engine_names, files_of
from policy.files import OwnFolder
from policy.model import has_tied_head, load_tokenizer, num_positions
from policy.process import binding_children, end_with_parent
from simulator.tokens import Chat

# An engine's own process imports this module for `WorkerExtension`, before it loads a model: nothing of ours runs in it earlier.
end_with_parent()


def import_vllm(dtype: EngineDtype | None = None) -> ModuleType:
    """Imports vLLM with the environment that it, and Triton under it, read. ImportError, OSError or RuntimeError where it does not fit.

    Args:
        dtype: of an engine of this process; None where there will be none.
    """
    import torch

    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine runs in this process: up in seconds, and tensors reach it directly
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if torch.cuda.is_available():
        environment["VLLM_USE_FLASHINFER_SAMPLER"] = "0"  # for top-k and top-p, which nothing here asks for; compiles kernels
    else:
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # two engines bound "automatically" end up on the same core
        # Else one small sampling function is compiled with a C++ compiler on the first prompt: 10 s and 1 GB.
        environment["TORCH_COMPILE_DISABLE"] = "1"
    if dtype is EngineDtype.FLOAT32:
        # Else attention on a GPU multiplies in TF32, up to 4e-3 nats from the learner: no proof of new weights.
        environment["TRITON_F32_DEFAULT"] = "ieee"
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    import vllm

    return vllm


def serve(model_folder: Path, options: Sequence[str]) -> None:
    """Serves a model by vLLM's OpenAI server with these options until this process is told to end."""
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
    os.environ.pop("VLLM_API_KEY", None)  # users of this server send none
    import_vllm()
    from vllm.entrypoints.launchers.api_server.entry import main

    sys.argv = ["vllm", "--model", str(model_folder), *options]
    with binding_children():
        main()


class VLLMEngine(Engine):
    """A vLLM engine and the thread that steps it.

    Logprobs are vLLM's `processed_logprobs`: at the sampling temperature, which its default ignores.
    """

    name = "vllm"

    def __init__(self, config: EngineConfig, model_folder: str | Path, *, max_context: int) -> None:
        self._config, self._folder, self._max_context = config, Path(model_folder), max_context
        super().__init__(start_timeout_s=config.start_timeout_s, load_timeout_s=config.load_timeout_s)

    def _start(self) -> None:
        vllm = import_vllm(self._config.dtype)
        from vllm.sampling_params import RequestOutputKind

        config, on_cpu = self._config, vllm.platforms.current_platform.is_cpu()
        self._parameters, self._final_only = vllm.SamplingParams, RequestOutputKind.FINAL_ONLY
        arguments: dict[str, Any] = {
            "model": str(self._folder),
            "dtype": str(config.dtype),
            # One more than a dialogue has, where the model allows: scoring a whole dialogue takes the room of a further token.
            "max_model_len": min(self._max_context + 1, num_positions(self._folder, otherwise=self._max_context + 1)),
            "max_num_seqs": config.max_running,
            "block_size": config.block_size,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",
            "disable_log_stats": True,
            "seed": 0,
            "worker_extension_cls": f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}",
        }
        if config.tensor_parallel > 1:
            arguments |= {"tensor_parallel_size": config.tensor_parallel, "distributed_executor_backend": "mp"}
        if on_cpu or not config.gpu_memory_share:
            arguments["kv_cache_memory_bytes"] = config.kv_cache_mb << 20
        if not on_cpu:
            # vLLM wants a share of the card free even where the cache has a size, and does not hold itself to it.
            arguments["gpu_memory_utilization"] = config.gpu_memory_share or 0.01
            arguments["enable_sleep_mode"] = config.sleep
        else:
            # Prompts in one piece: vLLM cannot rewind a CPU generator, which a seeded request whose prompt was split would need.
            arguments |= {"enforce_eager": True, "enable_chunked_prefill": False}
            arguments["max_num_batched_tokens"] = max(2048, self._max_context + 1)
        if config.engine_process:
            os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # not a copy of a process with threads
        try:
            with binding_children() if config.engine_process else contextlib.nullcontext():
                self._engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments), enable_multiprocessing=config.engine_process)
        except (ValueError, RuntimeError) as error:
            if rule := too_little_memory(error, config, on_cpu=on_cpu):
                raise ValueError(f"{rule}; {error}") from error
            raise
        # Not the engine's, which follows the architecture and may split words otherwise; prompts reach it as ids.
        self.tokenizer = load_tokenizer(self._folder)
        self._chat = Chat(self.tokenizer, thinking=config.thinking, keep_thoughts=config.keep_thoughts)
        self._parameter_names = engine_names(self._folder, is_tied=has_tied_head(self._folder))
        self._admit(-1, Request(prompt_ids=[self._chat.end_of_turn_id] * 2, sampling=Sampling(max_tokens=2), seed=0))
        while self._engine.has_unfinished_requests():
            self._engine.step()
        self._reset_cache()

    def _admit(self, request_id: int, request: Request) -> None:
        request.check_length(self._max_context)
        parameters = self._parameters(
            max_tokens=request.sampling.max_tokens,
            temperature=request.sampling.temperature,
            seed=request.seed,
            stop_token_ids=[self._chat.end_of_turn_id],
            logprobs=0,
            detokenize=False,
            output_kind=self._final_only,
        )
        self._engine.add_request(str(request_id), {"type": "token", "prompt_token_ids": list(request.prompt_ids)}, parameters)

    def _step(self) -> list[tuple[int, Completion]]:
        completions = []
        for output in self._engine.step():
            if output.finished:
                sampled, token_ids = output.outputs[0], tuple(output.outputs[0].token_ids)
                completion = Completion(
                    token_ids=token_ids,
                    logprobs=tuple(position[token].logprob for position, token in zip(sampled.logprobs, token_ids, strict=True)),
                    text=self._chat.decode(token_ids),
                    finish_reason=sampled.finish_reason,
                    policy_version=self.policy_version,
                )
                completions.append((int(output.request_id), completion))
        return completions

    def _drop(self, request_ids: list[int]) -> None:
        self._engine.abort_request([str(request_id) for request_id in request_ids])

    def _expected_names(self) -> Collection[str]:
        return self._parameter_names

    def _load(self, weights: WeightUpdate) -> int:
        if self._engine.is_sleeping():
            self._engine.wake_up(["weights"])  # its room, to be filled; the cache follows, so that both do not peak together
        with contextlib.ExitStack() as until_taken:
            reachable: WeightUpdate | bytes = weights
            in_process = not (self._config.engine_process or (self._config.tensor_parallel > 1 and isinstance(weights, WeightPieces)))
            if not in_process:
                # Other processes hold the model: they get files, and their paths.
                folder = until_taken.enter_context(OwnFolder("attune-weights-"))
                reachable = pickle.dumps(files_of(weights, Path(folder)))
            taken = self._engine.collective_rpc("take_attune_weights", kwargs={"weights": reachable})
        if len(set(taken)) > 1:
            raise RuntimeError(f"all {len(taken)} ranks of an engine must take in the same weights, got checksums that differ")
        if self._engine.is_sleeping():
            self._engine.wake_up(["kv_cache"])
        return taken[0]

    def _sleep(self) -> None:
        self._engine.sleep(level=2)  # new weights come, so the old ones need not be kept

    def _score(self, token_ids: Sequence[int]) -> list[float]:
        request = Request(prompt_ids=token_ids, sampling=Sampling(max_tokens=1), seed=0)
        request.check_length(self._engine.model_config.max_model_len)
        parameters = self._parameters(max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=self._final_only)
        self._engine.add_request("score", {"type": "token", "prompt_token_ids": list(token_ids)}, parameters)
        outputs: list[Any] = []
        while self._engine.has_unfinished_requests():
            outputs += self._engine.step()
        scored = zip(outputs[0].prompt_logprobs[1:], token_ids[1:], strict=True)
        return [position[token].logprob for position, token in scored]

    def _reset_cache(self) -> None:
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("the vllm engine must forget its cached prefixes, got a refusal; something still runs in it")

    def _stop(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.engine_core.shutdown()


def too_little_memory(error: Exception, config: EngineConfig, *, on_cpu: bool) -> str:
    """A rule about the setting that vLLM found too small or too large; empty for an error that vLLM (0.32) or torch words otherwise."""
    if not any(sign in str(error) for sign in ("KV cache", "memory for the cache", "Free memory on device", "CUDA out of memory")):
        return ""
    if on_cpu or not config.gpu_memory_share:
        return f"policy.kv_cache_mb must hold a whole dialogue and be free, got {config.kv_cache_mb!r}"
    return f"policy.gpu_memory_share must be free on the engine's GPU and hold the model and a dialogue, got {config.gpu_memory_share!r}"


class WorkerExtension:
    """A method more for vLLM's workers, one for each rank: vLLM mixes this class into its own by name."""

    def take_attune_weights(self: Any, weights: WeightUpdate | bytes) -> int:
        """Replaces all weights, pickled ones too; returns the checksum of those that came."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        # Pickled by the process that started this one.
        tensors = CheckedTensors(pickle.loads(weights) if isinstance(weights, bytes) else weights)
        self.reload_weights(weights_iterator=tensors)
        if self.device.type == "cpu":
            # A reload leaves an output head that is the embedding with its old packed copy, silently.
            for module in self.get_model().modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
        return tensors.checksum
