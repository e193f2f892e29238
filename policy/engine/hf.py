"""transformers behind the engine contract: slower than vLLM, and there wherever torch is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from policy.config import EngineConfig
from policy.engine.engine import Completion, Request, SteppedEngine, check_length
from policy.engine.weights import TIED_HEAD, Broadcast, Delivery, Shipment
from policy.model import load_tokenizer
from policy.rollout.chat import Chat


class HFEngine(SteppedEngine):
    """Samples from a transformers model in batches of whatever waits; a batch runs until its last reply is done.

    Raises:
        RuntimeError: it did not start in time.
    """

    name = "hf"

    def __init__(self, config: EngineConfig, model_folder: str | Path, *, max_context: int) -> None:
        self._config = config
        self._folder = Path(model_folder)
        self._max_context = max_context
        self._admitted: dict[int, Request] = {}
        self._model: Any = None
        super().__init__(start_timeout_s=config.start_timeout_s, load_timeout_s=config.load_timeout_s)

    def _start(self) -> None:
        self.tokenizer = load_tokenizer(self._folder)
        self._chat = Chat(self.tokenizer, thinking=self._config.thinking, keep_thoughts=self._config.keep_thoughts)
        self._stop_ids = {self._chat.end_of_turn_id, self.tokenizer.eos_token_id}
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        dtype = getattr(torch, str(self._config.dtype))
        self._model = (
            AutoModelForCausalLM.from_pretrained(self._folder, dtype=dtype, trust_remote_code=False)
            .to(self._device)
            .eval()
            .requires_grad_(False)
        )
        # As vLLM, which stops where the folder says, too.
        ends = getattr(self._model.generation_config, "eos_token_id", None)
        self._stop_ids |= {ends} if isinstance(ends, int) else set(ends or ())
        self._score([self._chat.end_of_turn_id] * 2)

    def _admit(self, request_id: int, request: Request) -> None:
        check_length(request, self._max_context)
        self._admitted[request_id] = request

    def _step(self) -> list[tuple[int, Completion]]:
        ids = list(self._admitted)[: self._config.max_running]
        completions = self._continue([self._admitted.pop(request_id) for request_id in ids])
        return list(zip(ids, completions, strict=True))

    @torch.inference_mode()
    def _continue(self, requests: list[Request]) -> list[Completion]:
        rows = [_Row(request, stop_ids=self._stop_ids, device=self._device) for request in requests]
        input_ids_BT, attention_BT = _pad_left([list(row.request.prompt_ids) for row in rows], self._device)
        position_ids_BT = (attention_BT.cumsum(dim=1) - 1).clamp(min=0)
        cache, running = None, rows
        while running:
            output = self._model(
                input_ids=input_ids_BT,
                attention_mask=attention_BT,
                position_ids=position_ids_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            self._got_on()
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
        return [self._completion(row) for row in rows]

    def _completion(self, row: _Row) -> Completion:
        return Completion(
            token_ids=tuple(row.token_ids),
            logprobs=tuple(row.logprobs),
            text=self._chat.decode(row.token_ids),
            finish_reason=row.finish_reason,
            policy_version=self.policy_version,
        )

    def _drop(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            self._admitted.pop(request_id, None)

    def _expected_names(self) -> Collection[str]:
        return [name for name, _ in self._model.named_parameters()]

    @torch.no_grad()
    def _load(self, weights: Shipment | Broadcast) -> int:
        assert not isinstance(weights, Broadcast), "no broadcast may reach an engine that cannot join one"
        parameters = dict(self._model.named_parameters())
        delivery = Delivery(weights)
        for name, tensor in delivery:
            if name in parameters:
                parameters[name].copy_(tensor)
            else:
                assert name == TIED_HEAD, f"only a tied head may be sent without being a parameter, got {name}"
        return delivery.checksum

    @torch.inference_mode()
    def _score(self, token_ids: Sequence[int]) -> list[float]:
        ids_T = torch.tensor(list(token_ids), device=self._device)
        logprobs_TV = self._model(ids_T[None]).logits[0].float().log_softmax(dim=-1)
        return logprobs_TV[:-1].gather(1, ids_T[1:, None])[:, 0].tolist()

    def _reset_cache(self) -> None:
        """Nothing outlives a batch."""

    def _stop(self) -> None:
        self._model = None


class _Row:
    """A reply under way."""

    def __init__(self, request: Request, *, stop_ids: set[int], device: torch.device) -> None:
        self.request = request
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish_reason = ""
        self._stop_ids = stop_ids
        # One generator a row: what a row samples does not depend on the rows beside it.
        self._generator = torch.Generator(device=device).manual_seed(request.seed)

    def sample(self, logits_V: Tensor) -> None:
        temperature = self.request.sampling.temperature
        logprobs_V = (logits_V / (temperature or 1.0)).log_softmax(dim=-1)
        noise_V = torch.empty_like(logprobs_V).exponential_(generator=self._generator) if temperature else torch.ones_like(logprobs_V)
        # The largest of p / Exponential(1) is a draw from p.
        token = int((logprobs_V - noise_V.log()).argmax())
        self.token_ids.append(token)
        self.logprobs.append(float(logprobs_V[token]))
        if token in self._stop_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) >= self.request.sampling.max_tokens:
            self.finish_reason = "length"


def _pad_left(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    input_ids = [[0] * (longest - len(row)) + row for row in rows]
    attention = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(input_ids, device=device), torch.tensor(attention, device=device)
