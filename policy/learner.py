"""One optimiser step: from a batch with advantages to new weights, and the metrics of the step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from policy.algorithms.algorithms import Algorithm
from policy.algorithms.critic import Critic
from policy.batch import Batch
from policy.config import LearnerConfig
from policy.lora import adapter_parameters, merged_parameters, merged_state
from policy.metrics import TokenMeans, TokenTrace, why_not_finite
from policy.model import check_head, recompute_layers, token_logprobs_and_entropy
from policy.process import choose_kernels
from policy.ranks import Ranks
from policy.shards import SCORE, optimizer_parts, own_part, reshard, shard, whole, whole_optimizer, whole_state

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
    "actor/entropy_forking",
    "actor/logprob_advantage_cov",
    "training/mismatch_k1",
    "training/mismatch_chi2",
    "training/effective_share",
)
"""Keys that every update reports, NaN where nothing was measured (no reference, nothing to train on)."""


class Learner:
    """Owns the model being trained, its optimiser and the version of its weights.

    Args:
        reference: a frozen model, not `model` itself; its KL is reported whether or not the loss uses it.
        critic: learns from the same minibatches; exactly where the algorithm needs one.
        temperature: at which the rollouts are sampled, > 0.
        seed: of the order of minibatches.
        ranks: the processes that train this model together. All of them build it alike and call `prepare` and `update` with the same
            batches; each reads its share of the micro-batches, and weights and metrics come out alike on all.

    Raises:
        ValueError: the device, a needed reference, a plain output head or layers that can be recomputed are missing, or the algorithm
            needs other settings of the step.
    """

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
        ranks: Ranks | None = None,
    ) -> None:
        if algorithm.needs_reference and reference is None:
            raise ValueError("algorithm.kl_coef must be 0 without a reference model, got more")
        algorithm.config.require(config)
        assert reference is not model, "the reference must be a model of its own: it is frozen"
        assert (critic is not None) is algorithm.needs_critic, f"a critic must be there exactly where it is needed, got {critic!r}"
        try:
            torch.empty(0, device=config.device)
        except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without CUDA
            raise ValueError(f"learner.device must be a device of this machine, got {config.device!r}; cpu always is") from error
        check_head(model)
        self.config, self.algorithm, self.critic, self._temperature = config, algorithm, critic, temperature
        self._ranks = ranks or Ranks()
        # A sharded one moves to the device part by part.
        place = "cpu" if self._ranks.sharded else config.device
        self.model = model.to(place).eval()
        if config.gradient_checkpointing:
            recompute_layers(self.model)
        self.reference = None if reference is None else reference.to(place).eval().requires_grad_(False)
        adapters = list(adapter_parameters(self.model).values())
        self.model.requires_grad_(not adapters)
        for parameter in adapters:
            parameter.requires_grad_(True)
        if config.device == "cpu":
            choose_kernels(self.model)
        if self._ranks.sharded:
            for each in filter(None, (self.model, self.reference)):
                shard(each, num_ranks=self._ranks.size, device=config.device)
        self._trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self._trained, lr=config.lr, betas=(config.beta1, config.beta2), weight_decay=config.weight_decay
        )
        self.policy_version = 0
        """Names the weights: +1 with each update that changed them."""
        self.num_steps, self.num_skipped, self._skipped_in_a_row = 0, 0, 0  # optimiser steps taken, and skipped as not finite
        self.why_skipped: list[str] = []
        """Of the latest update, a reason for each step that was skipped."""
        self._lr = config.lr
        self._recomputes = config.recompute_logprobs is not False
        self._order = torch.Generator().manual_seed(seed)

    def prepare(self, batch: Batch) -> Batch:
        """The batch with the reference's logprobs and the critic's values, where there are such models and it lacks them."""
        with self._naming_settings_for_memory():
            if (reference := self.reference) is not None and batch.ref_logprobs_BT is None:
                batch = replace(batch, ref_logprobs_BT=batch.score_by_segment(lambda rows: self._logprobs(reference, rows)))
            if self.critic is not None and batch.values_BT is None:
                batch = replace(batch, values_BT=batch.score_by_segment(self.critic.values))
        return batch

    def update(self, batch: Batch, *, budget_fraction: float = 0.0) -> dict[str, float]:
        """Trains on a batch with advantages and returns metrics; a batch without trained tokens changes nothing.

        The mismatch with the engine and the entropy are those of the weights before the update: over every trained token, or over the
        first minibatch when logprobs are not recomputed.

        Args:
            budget_fraction: share of the run's budget that is used up, by which the step size falls.

        Raises:
            RuntimeError: loss or gradient was not finite in three optimiser steps in a row, or the GPU has too little memory.
        """
        batch = self.prepare(batch).by_segment()
        started, cpu_started, steps_before = time.perf_counter(), time.process_time(), self.num_steps
        config, critic = self.config, self.critic
        self._lr = config.lr * (1.0 - (1.0 - config.lr_end) * min(1.0, budget_fraction))
        self.why_skipped = []
        grad_norms: list[float] = []
        trace, means = TokenTrace(), TokenMeans()
        with self._naming_settings_for_memory():
            warms_up = critic is not None and critic.is_warming_up
            is_one_step = config.epochs * config.num_minibatches == 1 and not self.algorithm.selects and not warms_up
            is_traced = False
            if not (self._recomputes or warms_up):
                batch = replace(batch, old_logprobs_BT=batch.rollout_logprobs_BT)
            elif not is_one_step:
                batch, is_traced = replace(batch, old_logprobs_BT=self._logprobs(self.model, batch, trace)), True
            is_own = bool((batch.policy_versions_B2[batch.loss_mask_BT.any(dim=1)] == self.policy_version).all())
            minibatches = [batch.rows(rows_R) for _ in range(config.epochs) for rows_R in self._minibatches(batch)]
            for number, part in enumerate(minibatches):
                if critic is not None and warms_up:
                    if self._may_step(critic.backward(part)):
                        critic.step()
                    continue
                part = self.algorithm.select(part, partial(self._logprobs, self.model, part))
                if number == 0 and not self._recomputes and is_own:
                    # The first minibatch is trained on by the weights that sampled it: their own logprobs are the old ones.
                    part = replace(part, old_logprobs_BT=None)
                grad_norms.append(self._step(part, means, trace if number == 0 and not is_traced else None))
        stepped = self.num_steps > steps_before
        self.policy_version += stepped
        metrics = {**dict.fromkeys(METRICS, math.nan), **means.metrics(), **trace.metrics()}
        metrics |= self.algorithm.observe(batch, metrics, stepped=stepped)
        seconds, num_tokens = time.perf_counter() - started, float(batch.attention_BT.sum())
        return {
            **metrics,
            **(critic.finish_update(batch) if critic else {}),
            "actor/grad_norm": sum(grad_norms) / len(grad_norms) if grad_norms else math.nan,
            "actor/lr": self.optimizer.param_groups[0]["lr"],
            "training/policy_version": float(self.policy_version),
            "training/skipped_steps": float(self.num_skipped),
            "timing_s/update_actor": seconds,
            "perf/update_cpu_s": sum(self._ranks.gather(time.process_time() - cpu_started)),
            "perf/total_num_tokens": num_tokens,
            "perf/trained_num_tokens": float(batch.num_trained),
            "perf/update_throughput": num_tokens / seconds,
        }

    def _minibatches(self, batch: Batch) -> Sequence[Tensor]:
        rows = batch.needed_B.nonzero().squeeze(1)
        if not len(rows) or self.config.num_minibatches == 1:
            return [rows] * (len(rows) > 0)
        shuffled = rows[torch.randperm(len(rows), generator=self._order)]
        return shuffled.tensor_split(min(self.config.num_minibatches, len(rows)))

    def _step(self, part: Batch, means: TokenMeans, trace: TokenTrace | None) -> float:
        """One optimiser step over all of `part`, whose metrics go into `means` and `trace`; returns the gradient's norm before clipping."""
        self.optimizer.zero_grad(set_to_none=True)
        loss, denominator = 0.0, self.algorithm.denominator(part)
        own_means, own_trace = TokenMeans(), TokenTrace()
        for rows_R, counts in self._ranks.share(part.micro_batches(self.config)):
            micro = part.rows(rows_R).to(self.config.device)
            logprobs_N, entropies_N = self._score(self.model, micro, entropy_gradient=self.algorithm.entropy_coef > 0)
            if not counts:
                (0.0 * logprobs_N.sum()).backward()
                continue
            if trace is not None:
                own_trace.add(micro, logprobs_N.detach(), entropies_N.detach())
            total, metrics = self.algorithm.loss(logprobs_N, entropies_N, micro)
            (total / denominator).backward()
            loss += float(total.detach()) / denominator
            own_means.add(metrics)
        reason = self.critic.backward(part) if self.critic else ""
        self._ranks.sum_gradients(self.model.parameters())
        of_ranks, loss = self._ranks.gather((loss, own_means, own_trace)), 0.0
        for of_rank, found, traced in of_ranks:
            loss += of_rank
            means.merge(found)
            if trace is not None:
                trace.merge(traced)
        total_norm = whole(torch.nn.utils.get_total_norm([each.grad for each in self.model.parameters() if each.grad is not None]))
        grad_norm = float(total_norm)
        if not (reason or (math.isfinite(loss) and math.isfinite(grad_norm))):
            columns = {
                "engine's logprob": part.rollout_logprobs_BT,
                "reference's logprob": part.ref_logprobs_BT,
                "reward": part.rewards_B,
                "advantage": part.advantages_BT,
                "logprob before the update": part.old_logprobs_BT,
            }
            gradients = ((name, each.grad if each.grad is None else whole(each.grad)) for name, each in self.model.named_parameters())
            cause = why_not_finite(part, columns, gradients)
            reason = f"the loss was {loss} and the gradient's norm {grad_norm}; {cause}"
        if not self._may_step(reason):
            return grad_norm
        torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), self.config.max_grad_norm, total_norm)
        self.num_steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr * min(1.0, self.num_steps / (self.config.warmup_steps + 1))
        self.optimizer.step()
        if self.critic:
            self.critic.step()
        return grad_norm

    def _may_step(self, reason: str) -> bool:
        """Counts an optimiser step as skipped where there is a reason for it; the third in a row raises a RuntimeError."""
        if not reason:
            self._skipped_in_a_row = 0
            return True
        self.num_skipped += 1
        self._skipped_in_a_row += 1
        self.why_skipped.append(reason)
        if self._skipped_in_a_row >= 3:
            raise RuntimeError(
                f"the learner skipped {self._skipped_in_a_row} optimiser steps in a row at policy version {self.policy_version}: "
                f"{'; then '.join(self.why_skipped)}; lower learner.lr where the weights are at fault, "
                "then resume from the newest checkpoint"
            )
        return False

    @contextmanager
    def _naming_settings_for_memory(self) -> Iterator[None]:
        """Names the settings to change where a GPU has too little memory for the computation within, in a RuntimeError."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise RuntimeError(
                f"learner.micro_batch_tokens must be such that an update fits into the memory of {self.config.device}, got "
                f"{self.config.micro_batch_tokens} ({'. '.join(str(error).split('. ')[:2])}); lower it, learner.micro_batch_rows, "
                "learner.logit_chunk_mb or the policy.gpu_memory_share of engines on that GPU, set learner.gradient_checkpointing=true, "
                "or train adapters in a new run (policy.lora.rank)"
            ) from error

    def _score(self, model: PreTrainedModel, micro: Batch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Logprobs and entropies [N] of the trained tokens of one micro-batch, nats, in one pass of the model."""
        device_type = torch.device(self.config.device).type
        score = getattr(model, SCORE, partial(token_logprobs_and_entropy, model))
        # Autocast's cache would hold all weights in bfloat16 through the pass. Recomputed layers convert theirs again in any case.
        caches = not self.config.gradient_checkpointing
        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=self.config.autocast, cache_enabled=caches):
            return score(
                micro.token_ids_BT,
                micro.attention_BT,
                micro.loss_mask_BT,
                temperature=self._temperature,
                entropy_gradient=entropy_gradient,
                logit_chunk_mb=self.config.logit_chunk_mb,
            )

    @torch.no_grad()
    def _logprobs(self, model: PreTrainedModel, batch: Batch, trace: TokenTrace | None = None) -> Tensor:
        """Logprobs [B, T] of a whole batch, 0 outside the loss mask, on the CPU; traced where there is a trace to write."""
        logprobs_BT, own_trace = torch.zeros_like(batch.rollout_logprobs_BT), TokenTrace()
        for rows_R, counts in self._ranks.share(batch.micro_batches(self.config)):
            micro = batch.rows(rows_R)
            on_device = micro.to(self.config.device)
            logprobs_N, entropies_N = self._score(model, on_device)
            if not counts:
                continue
            row_RT = torch.zeros_like(micro.rollout_logprobs_BT)
            row_RT[micro.loss_mask_BT] = logprobs_N.cpu()
            logprobs_BT[rows_R, : row_RT.shape[1]] = row_RT
            if trace is not None:
                own_trace.add(on_device, logprobs_N, entropies_N)
        reshard(model)
        self._ranks.sum([logprobs_BT])  # exact: a token is of one rank, and 0 on the others
        if trace is not None:
            for traced in self._ranks.gather(own_trace):
                trace.merge(traced)
        return logprobs_BT

    @torch.no_grad()
    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Logprobs of one sequence at temperature 1, nats: T - 1 of them, for the tokens after the first."""
        token_ids_BT = torch.tensor([list(token_ids)], dtype=torch.int64, device=self.config.device)
        mask_BT = torch.ones_like(token_ids_BT, dtype=torch.bool)
        scored_BT = mask_BT.cumsum(1) > 1
        score = getattr(self.model, SCORE, partial(token_logprobs_and_entropy, self.model))
        logprobs_N, _ = score(token_ids_BT, mask_BT, scored_BT, logit_chunk_mb=self.config.logit_chunk_mb)
        reshard(self.model)
        return logprobs_N.tolist()

    def give_back_memory(self) -> None:
        """Frees memory that an update left reserved on its GPU, for engines of the same card that restart or wake."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.optimizer.zero_grad(set_to_none=True)
        if self.model.device.type == "cuda":
            with torch.cuda.device(self.model.device):
                torch.cuda.empty_cache()

    def weights(self) -> list[tuple[str, Tensor]]:
        """Every parameter by name, adapters merged, copied to the CPU; of a tied pair only the first."""
        return [(name, parameter.to("cpu", copy=True)) for name, parameter in self.live_weights()]

    def live_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The same where they are, not copied: they change with the next update. Sharded ones become whole one by one, on all ranks."""
        return ((name, whole(parameter.detach())) for name, parameter in merged_parameters(self.model))

    def model_state(self, *, keep: bool = True) -> dict[str, Tensor] | None:
        """The whole state of a sharded model, on the CPU; None for one that is whole by itself. All ranks must ask.

        Args:
            keep: False where this rank only helps another to it.
        """
        return whole_state(merged_state(self.model) or self.model.state_dict(), keep=keep) if self._ranks.sharded else None

    def state_dict(self, *, keep: bool = True) -> dict[str, Any]:
        """Everything that adapts besides the weights, but with the adapters; its tensors are live, so write them before the next update.

        Args:
            keep: of a sharded model, as in `model_state`.
        """
        optimizer = self.optimizer.state_dict()
        state = {
            "policy_version": self.policy_version,
            "num_steps": self.num_steps,
            "num_skipped": self.num_skipped,
            "skipped_in_a_row": self._skipped_in_a_row,
            "parameters": self._shapes(),
            "optimizer": whole_optimizer(optimizer, keep=keep) if self._ranks.sharded else optimizer,
            "algorithm": self.algorithm.state_dict(),
            "order_rng": self._order.get_state(),
            "torch_rng": torch.get_rng_state(),
        }
        if self.critic is not None:
            state["critic"] = self.critic.state_dict(keep=keep)
        if adapters := adapter_parameters(self.model):
            state["adapters"] = {name: whole(parameter.detach()) for name, parameter in adapters.items()}
        if self.model.device.type == "cuda":
            state["cuda_rng"] = torch.cuda.get_rng_state(self.config.device)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; the weights come with the model. A ValueError refuses the state of another model."""
        if state["parameters"] != self._shapes():
            raise ValueError("policy.model must be that of the checkpoint, got parameters of other names or shapes")
        self.algorithm.load_state_dict(state["algorithm"])
        if self.critic is not None:
            self.critic.load_state_dict(state["critic"])
        with torch.no_grad():
            for name, parameter in adapter_parameters(self.model).items():
                parameter.copy_(own_part(state["adapters"][name], parameter))
        self.policy_version, self.num_steps = state["policy_version"], state["num_steps"]
        self.num_skipped, self._skipped_in_a_row = state["num_skipped"], state["skipped_in_a_row"]
        of_optimizer = state["optimizer"]
        self.optimizer.load_state_dict(optimizer_parts(of_optimizer, self._trained) if self._ranks.sharded else of_optimizer)
        self._order.set_state(state["order_rng"])
        torch.set_rng_state(state["torch_rng"])
        if "cuda_rng" in state and self.model.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_rng"], self.config.device)

    def _shapes(self) -> dict[str, list[int]]:
        return {name: list(parameter.shape) for name, parameter in self.model.named_parameters()}
