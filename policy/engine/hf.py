"""transformers behind the engine contract: slower than vLLM, and there wherever torch is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from policy.config import EngineConfig
from policy.engine.engine import Completion, Engine, Request
from policy.engine.weights import CheckedTensors, WeightUpdate
from policy.model import load_tokenizer
from simulator.tokens import Chat


class HFEngine(Engine):
    """Samples from a transformers model in batches of all waiting requests; a batch runs until its last reply is done."""

    name = "hf"

    def __init__(self, config: EngineConfig, model_folder: str | Path, *, max_context: int) -> None:
        self._config, self._folder, self._max_context = config, Path(model_folder), max_context
        self._admitted: dict[int, Request] = {}
        self._model: Any = None
        super().__init__(start_timeout_s=config.start_timeout_s, load_timeout_s=config.load_timeout_s)

    def _start(self) -> None:
        self.tokenizer = load_tokenizer(self._folder)
        self._chat = Chat(self.tokenizer, thinking=self._config.thinking, keep_thoughts=self._config.keep_thoughts)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = getattr(torch, str(self._config.dtype))
        model = AutoModelForCausalLM.from_pretrained(self._folder, dtype=dtype, trust_remote_code=False)
        self._model = model.to(self._device).eval().requires_grad_(False)
        # Like vLLM, which also stops at the folder's own end tokens.
        ends = getattr(self._model.generation_config, "eos_token_id", None)
        self._stop_ids = {self._chat.end_of_turn_id, self.tokenizer.eos_token_id, *([ends] if isinstance(ends, int) else ends or ())}
        self._score([self._chat.end_of_turn_id] * 2)

    def _admit(self, request_id: int, request: Request) -> None:
        request.check_length(self._max_context)
        self._admitted[request_id] = request

    @torch.inference_mode()
    def _step(self) -> list[tuple[int, Completion]]:
        ids = list(self._admitted)[: self._config.max_running]
        requests = [self._admitted.pop(request_id) for request_id in ids]
        rows = [_Row(request, stop_ids=self._stop_ids, device=self._device) for request in requests]
        longest = max(len(request.prompt_ids) for request in requests)
        gaps = [longest - len(request.prompt_ids) for request in requests]
        prompts = [[0] * gap + list(request.prompt_ids) for gap, request in zip(gaps, requests, strict=True)]
        input_ids_BT = torch.tensor(prompts, device=self._device)
        attention_BT = torch.tensor([[0] * gap + [1] * (longest - gap) for gap in gaps], device=self._device)
        position_ids_BT = (attention_BT.cumsum(dim=1) - 1).clamp(min=0)
        cache, running = None, rows
        while running:
            inputs = {"input_ids": input_ids_BT, "attention_mask": attention_BT, "position_ids": position_ids_BT}
            output = self._model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            self._progressed()
            for row, logits_V in zip(running, output.logits[:, -1].float(), strict=True):
                row.sample(logits_V)
            going_on = [i for i, row in enumerate(running) if not row.finish_reason]
            if len(going_on) < len(running):
                kept_R = torch.tensor(going_on, dtype=torch.int64, device=self._device)
                running = [running[i] for i in going_on]
                attention_BT, position_ids_BT = attention_BT[kept_R], position_ids_BT[kept_R]
                if running:
                    cache.batch_select_indices(kept_R)
            input_ids_BT = torch.tensor([[row.token_ids[-1]] for row in running], device=self._device)
            attention_BT = torch.nn.functional.pad(attention_BT, (0, 1), value=1)
            position_ids_BT = position_ids_BT[:, -1:] + 1
        version = self.policy_version
        return [(request_id, row.completion(self._chat, version)) for request_id, row in zip(ids, rows, strict=True)]

    def _drop(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            self._admitted.pop(request_id, None)

    def _expected_names(self) -> Collection[str]:
        return [name for name, _ in self._model.named_parameters()]

    @torch.no_grad()
    def _load(self, weights: WeightUpdate) -> int:
        self._model.to(self._device)
        parameters, tensors = dict(self._model.named_parameters()), CheckedTensors(weights)
        for name, tensor in tensors:
            if name in parameters:  # else it is a tied head
                parameters[name].copy_(tensor)
        return tensors.checksum

    def _sleep(self) -> None:
        self._model.to("cpu")
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def _score(self, token_ids: Sequence[int]) -> list[float]:
        ids_T = torch.tensor(list(token_ids), device=self._device)
        logprobs_TV = self._model(ids_T[None]).logits[0].float().log_softmax(dim=-1)
        return logprobs_TV[:-1].gather(1, ids_T[1:, None])[:, 0].tolist()

    def _reset_cache(self) -> None:
        """No cache outlives a batch."""

    def _stop(self) -> None:
        self._model = None


class _Row:
    """A reply under way, with its generator: its samples do not depend on the rows next to it."""

    def __init__(self, request: Request, *, stop_ids: set[int], device: torch.device) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason = ""
        self._sampling, self._stop_ids = request.sampling, stop_ids
        self._generator = torch.Generator(device=device).manual_seed(request.seed)

    def completion(self, chat: Chat, policy_version: int) -> Completion:
        ids, logprobs, text = tuple(self.token_ids), tuple(self.logprobs), chat.decode(self.token_ids)
        return Completion(token_ids=ids, logprobs=logprobs, text=text, finish_reason=self.finish_reason, policy_version=policy_version)

    def sample(self, logits_V: Tensor) -> None:
        temperature = self._sampling.temperature
        logprobs_V = (logits_V / (temperature or 1.0)).log_softmax(dim=-1)
        noise_V = torch.empty_like(logprobs_V).exponential_(generator=self._generator) if temperature else torch.ones_like(logprobs_V)
        # The largest of p / Exponential(1) is a draw from p.
        token = int((logprobs_V - noise_V.log()).argmax())
        self.token_ids.append(token)
        self.logprobs.append(float(logprobs_V[token]))
        if token in self._stop_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self._sampling.max_tokens:
            self.finish_reason = "length"
