"""One optimiser step: from a batch and its targets to new weights, and what there is to know about the step."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from policy.advantages import Targets
from policy.algorithms import Algorithm
from policy.batch import Batch, micro_batches
from policy.learner_config import LearnerConfig
from policy.lora import adapter_parameters, make_trainable, merged_parameters
from policy.losses import TokenLoss, TokenScores, Totals
from policy.model import check_head, recompute_layers, token_logprobs_and_entropy
from policy.token_trace import METRICS as TRACE_METRICS
from policy.token_trace import TokenTrace

MAX_SKIPPED_IN_A_ROW = 3
METRICS = (
    "actor/pg_loss",
    "actor/entropy",
    "actor/entropy_sampled",
    "actor/grad_norm",
    "actor/lr",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/pg_clipfrac_upper",
    "actor/ratio_mean",
    "actor/ratio_max",
    "actor/kl_loss",
    "training/rollout_logprob_abs_diff_mean",
    "training/rollout_logprob_abs_diff_max",
    "training/mismatch_kl",
    *TRACE_METRICS,
)
"""Keys that every update reports, NaN where nothing was measured (no reference, nothing to train on)."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A batch with what the loss needs to know of each token."""

    batch: Batch
    advantages_BT: Tensor
    old_logprobs_BT: Tensor | None
    """None when strictly on policy: the current ones, detached, are the old ones."""
    reference_logprobs_BT: Tensor | None

    def rows(self, rows_R: Tensor) -> Work:
        """These rows only, cut to the longest that is needed."""
        batch = self.batch.rows(rows_R)
        length = batch.token_ids_BT.shape[1]
        return Work(
            batch=batch,
            advantages_BT=self.advantages_BT[rows_R, :length],
            old_logprobs_BT=None if self.old_logprobs_BT is None else self.old_logprobs_BT[rows_R, :length],
            reference_logprobs_BT=None if self.reference_logprobs_BT is None else self.reference_logprobs_BT[rows_R, :length],
        )


class Learner:
    """Owns the model being trained, its optimiser and the version of its weights."""

    def __init__(
        self,
        config: LearnerConfig,
        algorithm: Algorithm,
        model: PreTrainedModel,
        *,
        reference: PreTrainedModel | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Args:
            reference: a frozen model of its own, not `model`; its KL is reported whether or not the loss uses it.
            temperature: at which the rollouts are sampled, > 0.
            seed: of the order of mini-batches.

        Raises:
            ValueError: the device is not there, the algorithm needs a reference that is not given, the model's logits are not
                those of a plain output head, or its layers cannot be recomputed although they shall.
        """
        if algorithm.needs_reference and reference is None:
            raise ValueError("algorithm.kl_coef must be 0 without a reference model, got more; give the learner one")
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0 in training, got {temperature!r}")
        assert reference is not model, "the reference must be a model of its own: it is frozen"
        _require_device(config.device)
        check_head(model)
        self.config, self.algorithm, self.temperature = config, algorithm, temperature
        self.model = model.to(config.device).eval()
        if config.gradient_checkpointing:
            recompute_layers(self.model)
        self.reference = None if reference is None else reference.to(config.device).eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            make_trainable(self.model), lr=config.lr, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay
        )
        self.policy_version = 0
        """Names the weights: +1 with each update that changed them."""
        self.num_steps = 0
        """Optimiser steps taken."""
        self.num_skipped = 0
        """Optimiser steps skipped for a loss or gradient that was not finite."""
        self._skipped_in_a_row = 0
        self._lr = config.lr
        self._recomputes = config.recompute_logprobs is not False
        self._order = torch.Generator().manual_seed(seed)

    # One update ----------------------------------------------------------------------------------------------------------------

    def update(self, batch: Batch, targets: Targets, *, spent: float = 0.0) -> dict[str, float]:
        """Trains on a batch and returns metrics; a batch without trained tokens changes nothing.

        The mismatch with the engine and the entropy are those of the weights before the update: over every trained token, or over the
        first minibatch when logprobs are not recomputed.

        Args:
            spent: share of the run's budget that is used up, by which the step size falls.

        Raises:
            RuntimeError: three optimiser steps in a row were skipped because the loss or the gradient was not finite.
        """
        started, cpu_started = time.perf_counter(), time.process_time()
        self._lr = self.config.lr * (1.0 - (1.0 - self.config.lr_end) * min(1.0, spent))
        steps_before = self.num_steps
        grad_norms: list[float] = []
        before, during = TokenTrace(), Totals()
        if batch.num_trained:
            work = self._prepare(batch, targets, before)
            parts = (work.rows(rows_R) for _ in range(self.config.epochs) for rows_R in self._minibatches(batch))
            # What is trained on first meets the weights that sampled it: its own logprobs are the old ones, and tell the mismatch.
            first = next(parts) if self._recomputes else replace(next(parts), old_logprobs_BT=None)
            grad_norms = [self._step(part, before, during) for part in itertools.chain([first], parts)]
        self.policy_version += self.num_steps > steps_before
        seconds = time.perf_counter() - started
        return {
            **dict.fromkeys(METRICS, math.nan),
            **during.metrics(),
            **before.metrics(),
            "actor/grad_norm": sum(grad_norms) / len(grad_norms) if grad_norms else math.nan,
            "actor/lr": self.optimizer.param_groups[0]["lr"],
            "training/policy_version": float(self.policy_version),
            "training/skipped_steps": float(self.num_skipped),
            "timing_s/update_actor": seconds,
            "perf/update_cpu_s": time.process_time() - cpu_started,
            "perf/total_num_tokens": float(batch.attention_BT.sum()),
            "perf/trained_num_tokens": float(batch.num_trained),
            "perf/update_throughput": float(batch.attention_BT.sum()) / seconds,
        }

    def _prepare(self, batch: Batch, targets: Targets, before: TokenTrace) -> Work:
        old_logprobs_BT: Tensor | None = batch.rollout_logprobs_BT
        if self._recomputes:
            on_policy = self.config.epochs * self.config.num_minibatches == 1
            old_logprobs_BT = None if on_policy else self._logprobs_BT(self.model, batch, targets, before)
        return Work(
            batch=batch,
            advantages_BT=targets.advantages_BT,
            old_logprobs_BT=old_logprobs_BT,
            reference_logprobs_BT=None if self.reference is None else self._logprobs_BT(self.reference, batch, targets, None),
        )

    def _minibatches(self, batch: Batch) -> Sequence[Tensor]:
        rows = batch.needed_B.nonzero().squeeze(1)
        if self.config.num_minibatches == 1:
            return [rows]
        return rows[torch.randperm(len(rows), generator=self._order)].chunk(self.config.num_minibatches)

    def _step(self, work: Work, before: TokenTrace, during: Totals) -> float:
        """One optimiser step over all of `work`; returns the gradient's norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for rows_R in self._micro_batches(work.batch):
            micro = work.rows(rows_R)
            token_loss = self._loss(micro, before)
            (token_loss.total / work.batch.num_trained).backward()
            loss += float(token_loss.total.detach()) / work.batch.num_trained
            during.add(micro.batch.num_trained, token_loss)
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm))
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self._take_step()
        else:
            self._skip_step(f"the loss was {loss} and the gradient's norm {grad_norm}")
        return grad_norm

    def _loss(self, micro: Work, before: TokenTrace) -> TokenLoss:
        batch = micro.batch
        logprobs_N, entropies_N = self._score(self.model, batch, entropy_gradient=self.algorithm.needs_entropy_gradient)

        def flat_N(column_BT: Tensor) -> Tensor:
            return column_BT[batch.loss_mask_BT].to(logprobs_N.device)

        if micro.old_logprobs_BT is None:
            old_N = logprobs_N.detach()
            before.add(flat_N(batch.rollout_logprobs_BT), old_N, entropies_N.detach(), flat_N(micro.advantages_BT))
        else:
            old_N = flat_N(micro.old_logprobs_BT)
        scores = TokenScores(
            logprobs_N=logprobs_N,
            entropies_N=entropies_N,
            old_logprobs_N=old_N,
            advantages_N=flat_N(micro.advantages_BT),
            reference_logprobs_N=None if micro.reference_logprobs_BT is None else flat_N(micro.reference_logprobs_BT),
        )
        return self.algorithm.loss(scores)

    def _take_step(self) -> None:
        self.num_steps += 1
        self._skipped_in_a_row = 0
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr * min(1.0, self.num_steps / (self.config.warmup_steps + 1))
        self.optimizer.step()

    def _skip_step(self, reason: str) -> None:
        self.num_skipped += 1
        self._skipped_in_a_row += 1
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise RuntimeError(
                f"the learner skipped {self._skipped_in_a_row} optimiser steps in a row at policy version {self.policy_version}: "
                f"{reason}; lower learner.lr, or look for a reward that is not a number"
            )

    # Scoring -------------------------------------------------------------------------------------------------------------------

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of one sequence at temperature 1, nats: T - 1 of them, for the tokens after the first."""
        token_ids_BT = torch.tensor([list(token_ids)], dtype=torch.int64, device=self.config.device)
        mask_BT = torch.ones_like(token_ids_BT, dtype=torch.bool)
        scored_BT = mask_BT.clone()
        scored_BT[:, 0] = False
        with torch.no_grad():
            logprobs_N, _ = token_logprobs_and_entropy(
                self.model, token_ids_BT, mask_BT, scored_BT, logit_chunk_mb=self.config.logit_chunk_mb
            )
        return logprobs_N.tolist()

    @torch.no_grad()
    def _logprobs_BT(self, model: PreTrainedModel, batch: Batch, targets: Targets, before: TokenTrace | None) -> Tensor:
        """Logprobs of a whole batch, 0 outside the loss mask, on the CPU."""
        logprobs_BT = torch.zeros_like(batch.rollout_logprobs_BT)
        for rows_R in self._micro_batches(batch):
            micro = batch.rows(rows_R)
            logprobs_N, entropies_N = self._score(model, micro)
            row_RT = torch.zeros_like(micro.rollout_logprobs_BT)
            row_RT[micro.loss_mask_BT] = logprobs_N.cpu()
            logprobs_BT[rows_R, : row_RT.shape[1]] = row_RT
            if before is not None:
                advantages_RT = targets.advantages_BT[rows_R, : row_RT.shape[1]]
                rollout_N = micro.rollout_logprobs_BT[micro.loss_mask_BT].to(logprobs_N.device)
                before.add(rollout_N, logprobs_N, entropies_N, advantages_RT[micro.loss_mask_BT].to(logprobs_N.device))
        return logprobs_BT

    def _score(self, model: PreTrainedModel, batch: Batch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        device = torch.device(self.config.device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.config.autocast):
            return token_logprobs_and_entropy(
                model,
                batch.token_ids_BT.to(device),
                batch.attention_BT.to(device),
                batch.loss_mask_BT.to(device),
                temperature=self.temperature,
                entropy_gradient=entropy_gradient,
                logit_chunk_mb=self.config.logit_chunk_mb,
            )

    def _micro_batches(self, batch: Batch) -> Iterator[Tensor]:
        yield from micro_batches(batch, max_rows=self.config.micro_batch_rows, max_tokens=self.config.micro_batch_tokens)

    # Weights and state ---------------------------------------------------------------------------------------------------------

    def weights(self) -> list[tuple[str, Tensor]]:
        """Every parameter by name, adapters merged, copied to the CPU; of a tied pair only the first is listed."""
        return [(name, parameter.detach().to("cpu", copy=True)) for name, parameter in merged_parameters(self.model)]

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts besides the weights, but with the adapters; its tensors are live, so write them before the next update."""
        state = {
            "policy_version": self.policy_version,
            "num_steps": self.num_steps,
            "num_skipped": self.num_skipped,
            "skipped_in_a_row": self._skipped_in_a_row,
            "parameters": self._shapes(),
            "optimizer": self.optimizer.state_dict(),
            "order_rng": self._order.get_state(),
            "torch_rng": torch.get_rng_state(),
        }
        if adapters := adapter_parameters(self.model):
            state["adapters"] = {name: parameter.detach() for name, parameter in adapters.items()}
        return state | ({"cuda_rng": torch.cuda.get_rng_state(self.config.device)} if self.model.device.type == "cuda" else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; the weights come with the model, which has adapters if the one that was saved had.

        Raises:
            ValueError: the state belongs to another model.
        """
        if state["parameters"] != self._shapes():
            raise ValueError("the learner's state must belong to the same model, got parameters of other names or shapes")
        with torch.no_grad():
            for name, parameter in adapter_parameters(self.model).items():
                parameter.copy_(state["adapters"][name])
        self.policy_version, self.num_steps = state["policy_version"], state["num_steps"]
        self.num_skipped, self._skipped_in_a_row = state["num_skipped"], state["skipped_in_a_row"]
        self.optimizer.load_state_dict(state["optimizer"])
        self._order.set_state(state["order_rng"])
        torch.set_rng_state(state["torch_rng"])
        if "cuda_rng" in state and self.model.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.config.device)

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(parameter.shape) for name, parameter in self.model.named_parameters()}


def _require_device(name: str) -> None:
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
        raise ValueError(f"learner.device must be a device of this machine, got {name!r}; cpu always is") from error
