"""What a model thinks of tokens: their logprobs and entropies, micro-batch by micro-batch, as rollouts were sampled.

One optimiser step: from a batch and its targets to new weights, and what there is to know about the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from policy.algorithms.algorithms import Algorithm
from policy.algorithms.critic import Critic
from policy.algorithms.loss import TRACE_METRICS, TokenTrace
from policy.batch import Batch, Targets, TokenLoss, Totals, Work, micro_batches, scored_by_segment
from policy.config import LearnerConfig
from policy.diagnosis import naming_settings_for_memory, why_not_finite
from policy.lora import adapter_parameters, make_trainable, merged_parameters
from policy.model import check_head, recompute_layers, token_logprobs_and_entropy
from policy.process import choose_kernels


class Scorer:
    """Scores batches within the limits of `learner.*`: rows and tokens of a micro-batch, precision, chunks of logits."""

    def __init__(self, config: LearnerConfig, *, temperature: float) -> None:
        """Args:
        temperature: at which the rollouts were sampled, > 0.
        """
        self._config, self._temperature = config, temperature

    def micro_batches(self, batch: Batch) -> list[Tensor]:
        """Row numbers [R] of each micro-batch."""
        return micro_batches(batch, max_rows=self._config.micro_batch_rows, max_tokens=self._config.micro_batch_tokens)

    def tokens(self, model: PreTrainedModel, batch: Batch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies [N] of the trained tokens of one micro-batch, nats, in one pass of the model."""
        device = torch.device(self._config.device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self._config.autocast):
            return token_logprobs_and_entropy(
                model,
                batch.token_ids_BT.to(device),
                batch.attention_BT.to(device),
                batch.loss_mask_BT.to(device),
                temperature=self._temperature,
                entropy_gradient=entropy_gradient,
                logit_chunk_mb=self._config.logit_chunk_mb,
            )

    @torch.no_grad()
    def logprobs(self, model: PreTrainedModel, batch: Batch, targets: Targets | None = None, trace: TokenTrace | None = None) -> Tensor:
        """Logprobs [B, T] of a whole batch, 0 outside the loss mask, on the CPU; traced where there is a trace to write."""
        logprobs_BT = torch.zeros_like(batch.rollout_logprobs_BT)
        for rows_R in self.micro_batches(batch):
            micro = batch.rows(rows_R)
            logprobs_N, entropies_N = self.tokens(model, micro)
            row_RT = torch.zeros_like(micro.rollout_logprobs_BT)
            row_RT[micro.loss_mask_BT] = logprobs_N.cpu()
            logprobs_BT[rows_R, : row_RT.shape[1]] = row_RT
            if trace is not None and targets is not None:
                advantages_RT = targets.advantages_BT[rows_R, : row_RT.shape[1]]
                rollout_N = micro.rollout_logprobs_BT[micro.loss_mask_BT].to(logprobs_N.device)
                trace.add(rollout_N, logprobs_N, entropies_N, advantages_RT[micro.loss_mask_BT].to(logprobs_N.device))
        return logprobs_BT

    @torch.no_grad()
    def sequence(self, model: PreTrainedModel, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of one sequence at temperature 1, nats: T - 1 of them, for the tokens after the first."""
        token_ids_BT = torch.tensor([list(token_ids)], dtype=torch.int64, device=self._config.device)
        mask_BT = torch.ones_like(token_ids_BT, dtype=torch.bool)
        scored_BT = mask_BT.clone()
        scored_BT[:, 0] = False
        logprobs_N, _ = token_logprobs_and_entropy(model, token_ids_BT, mask_BT, scored_BT, logit_chunk_mb=self._config.logit_chunk_mb)
        return logprobs_N.tolist()


MAX_SKIPPED_IN_A_ROW = 3
METRICS = (
    "actor/pg_loss",
    "actor/entropy",
    "actor/entropy_sampled",
    "actor/grad_norm",
    "actor/lr",
    "actor/approx_kl",
    "actor/clip_fraction",
    "actor/clip_fraction_negative",
    "actor/clip_fraction_positive",
    "actor/ratio_mean",
    "actor/ratio_max",
    "actor/kl_loss",
    "training/rollout_logprob_abs_diff_mean",
    "training/rollout_logprob_abs_diff_max",
    "training/mismatch_kl",
    *TRACE_METRICS,
)
"""Keys that every update reports, NaN where nothing was measured (no reference, nothing to train on)."""


class Learner:
    """Owns the model being trained, its optimiser and the version of its weights."""

    def __init__(
        self,
        config: LearnerConfig,
        algorithm: Algorithm,
        model: PreTrainedModel,
        *,
        reference: PreTrainedModel | None = None,
        critic: Critic | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Args:
            reference: a frozen model of its own, not `model`; its KL is reported whether or not the loss uses it.
            critic: learns beside the policy, from the same minibatches; for an algorithm that needs one and no other.
            temperature: at which the rollouts are sampled, > 0.
            seed: of the order of mini-batches.

        Raises:
            ValueError: the device is not there, the algorithm needs a reference that is not given or other settings of the step, the
                model's logits are not those of a plain output head, or its layers cannot be recomputed although they shall.
        """
        if algorithm.needs_reference and reference is None:
            raise ValueError("algorithm.kl_coef must be 0 without a reference model, got more; give the learner one")
        algorithm.require(config)
        if not temperature > 0:
            raise ValueError(f"temperature must be > 0 in training, got {temperature!r}")
        assert reference is not model, "the reference must be a model of its own: it is frozen"
        assert (critic is not None) is algorithm.needs_critic, f"a critic must be there exactly where it is needed, got {critic!r}"
        _require_device(config.device)
        check_head(model)
        self.config, self.algorithm = config, algorithm
        self.scorer = Scorer(config, temperature=temperature)
        self.model = model.to(config.device).eval()
        if config.gradient_checkpointing:
            recompute_layers(self.model)
        self.reference = None if reference is None else reference.to(config.device).eval().requires_grad_(False)
        self.critic = critic
        self.optimizer = torch.optim.AdamW(
            make_trainable(self.model), lr=config.lr, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay
        )
        choose_kernels(self.model)
        self.policy_version = 0
        """Names the weights: +1 with each update that changed them."""
        self.num_steps = 0
        """Optimiser steps taken."""
        self.num_skipped = 0
        """Optimiser steps skipped for a loss or gradient that was not finite."""
        self.why_skipped: list[str] = []
        """Of the latest update, a reason for each step that was skipped."""
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
            RuntimeError: three optimiser steps in a row were skipped because the loss or the gradient was not finite; it says why, of all
                that this update skipped. Or the GPU has too little memory.
        """
        with self._naming_settings_for_memory():
            return self._update(batch, targets, spent)

    def _update(self, batch: Batch, targets: Targets, spent: float) -> dict[str, float]:
        started, cpu_started = time.perf_counter(), time.process_time()
        self._lr = self.config.lr * (1.0 - (1.0 - self.config.lr_end) * min(1.0, spent))
        steps_before, self.why_skipped = self.num_steps, []
        grad_norms: list[float] = []
        before, during = TokenTrace(), Totals()
        if batch.num_trained:
            work = self._prepare(batch, targets, before)
            parts = (work.rows(rows_R) for _ in range(self.config.epochs) for rows_R in self._minibatches(batch))
            if self.critic is not None and self.critic.is_warming_up:
                self._teach_critic(parts)
            else:
                chosen = map(self._with_selection, parts)
                first, measures = next(chosen), not self._recomputes or work.old_logprobs_BT is None
                if not self._recomputes and self._is_own(batch):
                    # What is trained on first meets the weights that sampled it: its own logprobs are the old ones.
                    first = replace(first, old_logprobs_BT=None)
                grad_norms = [self._step(first, during, before if measures else None)]
                grad_norms += [self._step(part, during) for part in chosen]
        stepped = self.num_steps > steps_before
        if stepped:
            self.policy_version += 1
        measured = {**dict.fromkeys(METRICS, math.nan), **during.metrics(), **before.metrics()}
        adapted = self.algorithm.observe(batch, measured, stepped=stepped)
        seconds = time.perf_counter() - started
        return {
            **measured,
            **adapted,
            **(self.critic.finish_update(batch, targets) if self.critic else {}),
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
        policy_waits = self.critic is not None and self.critic.is_warming_up
        if self._recomputes or policy_waits:
            on_policy = self.config.epochs * self.config.num_minibatches == 1 and not self.algorithm.selects and not policy_waits
            old_logprobs_BT = None if on_policy else self.scorer.logprobs(self.model, batch, targets, before)
        return Work(
            batch=batch,
            advantages_BT=targets.advantages_BT,
            old_logprobs_BT=old_logprobs_BT,
            reference_logprobs_BT=self.with_reference(batch).reference_logprobs_BT,
            returns_BT=targets.returns_BT,
            values_BT=targets.values_BT,
        )

    def _is_own(self, batch: Batch) -> bool:
        """Whether all of it was sampled by the present weights."""
        return bool((batch.policy_versions_B2[batch.loss_mask_BT.any(dim=1)] == self.policy_version).all())

    def _with_selection(self, work: Work) -> Work:
        """The work of one optimiser step, with what the algorithm picks out of all its tokens."""
        if not self.algorithm.selects:
            return work
        logprobs_BT = self.scorer.logprobs(self.model, work.batch) if self.algorithm.selects_unclipped else None
        return work.with_selection(self.algorithm.select, logprobs_BT)

    def _minibatches(self, batch: Batch) -> Sequence[Tensor]:
        rows = batch.needed_B.nonzero().squeeze(1)
        if self.config.num_minibatches == 1:
            return [rows]
        shuffled = rows[torch.randperm(len(rows), generator=self._order)]
        return shuffled.tensor_split(min(self.config.num_minibatches, len(rows)))

    def _step(self, work: Work, during: Totals, before: TokenTrace | None = None) -> float:
        """One optimiser step over all of `work`; returns the gradient's norm before clipping.

        Args:
            before: takes in the tokens as the present weights have them, where nothing else has measured these.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss, denominator = 0.0, self.algorithm.denominator(work.batch)
        suspects: list[Batch] = []
        for rows_R in self.scorer.micro_batches(work.batch):
            micro = work.rows(rows_R)
            token_loss = self._loss(micro, before)
            (token_loss.total / denominator).backward()
            micro_loss = float(token_loss.total.detach()) / denominator
            suspects += [] if math.isfinite(micro_loss) else [micro.batch]
            loss += micro_loss
            during.add(micro.batch.num_trained, token_loss)
        critic_reason = self._judge(work)
        total_norm = torch.nn.utils.get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None])
        grad_norm = float(total_norm)
        if math.isfinite(loss) and math.isfinite(grad_norm) and not critic_reason:
            torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.max_grad_norm, total_norm)
            self._take_step()
            if self.critic is not None:
                self.critic.step()
        else:
            reason = critic_reason or f"the loss was {loss} and the gradient's norm {grad_norm}; {self._why_not_finite(work, suspects)}"
            self._skip_step(reason)
        return grad_norm

    def _judge(self, work: Work) -> str:
        """The critic's gradient over all of `work`, if there is a critic; returns why it cannot be used, or nothing."""
        return "" if self.critic is None else self.critic.judge(work.batch, work.returns_BT, work.values_BT)

    def _teach_critic(self, parts: Iterator[Work]) -> None:
        """Optimiser steps of the critic alone."""
        assert self.critic is not None, "there must be a critic to teach"
        for part in parts:
            if reason := self._judge(part):
                self._skip_step(reason)
            else:
                self._skipped_in_a_row = 0
                self.critic.step()

    def _why_not_finite(self, work: Work, suspects: Sequence[Batch]) -> str:
        gradients = ((name, parameter.grad) for name, parameter in self.model.named_parameters())
        return why_not_finite(work.batch, work.figures(), suspects, score=partial(self.scorer.tokens, self.model), gradients=gradients)

    def _loss(self, micro: Work, before: TokenTrace | None) -> TokenLoss:
        logprobs_N, entropies_N = self.scorer.tokens(self.model, micro.batch, entropy_gradient=self.algorithm.needs_entropy_gradient)
        scores = micro.scores(logprobs_N, entropies_N)
        if before is not None:
            assert scores.rollout_logprobs_N is not None, "a batch must say how likely the engine held its tokens"
            before.add(scores.rollout_logprobs_N, logprobs_N.detach(), entropies_N.detach(), scores.advantages_N)
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
        self.why_skipped.append(reason)
        if self._skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise RuntimeError(
                f"the learner skipped {self._skipped_in_a_row} optimiser steps in a row at policy version {self.policy_version}: "
                f"{'; then '.join(self.why_skipped)}; lower learner.lr where the weights are at fault, "
                "then resume from the newest checkpoint"
            )

    # Scoring -------------------------------------------------------------------------------------------------------------------

    def values(self, batch: Batch) -> Tensor | None:
        """What the critic expects before each trained token, [B, T]; None without a critic."""
        if self.critic is None:
            return None
        with self._naming_settings_for_memory():
            return scored_by_segment(batch, self.critic.values)

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of one sequence at temperature 1, nats: T - 1 of them, for the tokens after the first."""
        return self.scorer.sequence(self.model, token_ids)

    def with_reference(self, batch: Batch) -> Batch:
        """The batch with the reference's logprobs, where there is a reference and the batch does not have them yet."""
        if self.reference is None or batch.reference_logprobs_BT is not None:
            return batch
        reference = self.reference
        with self._naming_settings_for_memory():
            return replace(batch, reference_logprobs_BT=scored_by_segment(batch, lambda rows: self.scorer.logprobs(reference, rows)))

    def _naming_settings_for_memory(self) -> AbstractContextManager[None]:
        return naming_settings_for_memory(self.config, self.model)

    def give_back_memory(self) -> None:
        """Lets others have what an update left in reserve on its GPU: an engine of the same card that starts anew wants it free."""
        if self.model.device.type == "cuda":
            with torch.cuda.device(self.model.device):
                torch.cuda.empty_cache()

    # Weights and state ---------------------------------------------------------------------------------------------------------

    def weights(self) -> list[tuple[str, Tensor]]:
        """Every parameter by name, adapters merged, copied to the CPU; of a tied pair only the first is listed."""
        return [(name, parameter.to("cpu", copy=True)) for name, parameter in self.live_weights()]

    def live_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The same where they are and as they will change, for who is done with them before the next update."""
        return ((name, parameter.detach()) for name, parameter in merged_parameters(self.model))

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts besides the weights, but with the adapters; its tensors are live, so write them before the next update."""
        state = {
            "policy_version": self.policy_version,
            "num_steps": self.num_steps,
            "num_skipped": self.num_skipped,
            "skipped_in_a_row": self._skipped_in_a_row,
            "parameters": self._shapes(),
            "optimizer": self.optimizer.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "order_rng": self._order.get_state(),
            "torch_rng": torch.get_rng_state(),
            **({"critic": self.critic.state_dict()} if self.critic else {}),
        }
        if adapters := adapter_parameters(self.model):
            state["adapters"] = {name: parameter.detach() for name, parameter in adapters.items()}
        return state | ({"cuda_rng": torch.cuda.get_rng_state(self.config.device)} if self.model.device.type == "cuda" else {})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; the weights come with the model, which has adapters if the one that was saved had.

        Raises:
            ValueError: the state belongs to another model or algorithm.
        """
        if state["parameters"] != self._shapes():
            raise ValueError("the learner's state must belong to the same model, got parameters of other names or shapes")
        if "algorithm" not in state:
            raise ValueError("the learner's state must hold the algorithm's, got none; it was written by another version")
        if ("critic" in state) is not (self.critic is not None):
            raise ValueError("the learner's state must hold a critic's exactly where the algorithm needs one; start a new run")
        self.algorithm.load_state_dict(state["algorithm"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
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
