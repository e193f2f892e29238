"""The critic: expected return before each token the agent samples, learned from the returns that came.

Source: value loss with clipping as in PPO's reference code; see arXiv 2005.12729, section 3, on its effect.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from policy.batch import Batch
from policy.config import CriticKind, LearnerConfig, PpoConfig
from policy.metrics import TokenMeans, why_not_finite
from policy.model import recompute_layers, token_states
from policy.ranks import Ranks
from policy.shards import layers_of, load_parts, optimizer_parts, reshard, shard_units, whole, whole_optimizer, whole_state

METRICS = (
    "critic/vf_loss",
    "critic/vf_clipfrac",
    "critic/vpred_mean",
    "critic/vf_explained_var",
    "critic/grad_norm",
    "critic/lr",
    *(f"critic/{what}/{which}" for what in ("values", "returns") for which in ("mean", "max", "min")),
)
"""Keys that every update with a critic reports, NaN where nothing was measured."""


class Critic:
    """A value head, at first zero, on a trunk of its own or on the policy's, with its optimiser.

    Args:
        learner: how batches are cut, the optimiser's settings, the device.
        model: whose hidden states are read; a model of its own unless `config.critic` is shared, then the one being trained.
        ranks: as of the learner.
    """

    def __init__(self, config: PpoConfig, learner: LearnerConfig, model: PreTrainedModel, ranks: Ranks | None = None) -> None:
        self.config, self._learner, self._ranks = config, learner, ranks or Ranks()
        is_sharded = self._ranks.sharded
        assert not (is_sharded and config.critic is CriticKind.SHARED), "a shared critic is not sharded"
        # A sharded one moves to the device part by part.
        self.trunk = model.base_model.to("cpu" if is_sharded else learner.device)
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=learner.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        own = {"head": self.head}
        if config.critic is CriticKind.SEPARATE:
            own["trunk"] = self.trunk.eval().requires_grad_(True)
            if learner.gradient_checkpointing:
                recompute_layers(self.trunk)
            if is_sharded:
                for module, layers in ((self.trunk, layers_of(self.trunk)), (self.head, [])):
                    shard_units(module, layers, num_ranks=self._ranks.size, device=learner.device)
        self._own = nn.ModuleDict(own)
        self.optimizer = torch.optim.AdamW(
            self._own.parameters(), lr=config.critic_lr, betas=(learner.beta1, learner.beta2), weight_decay=learner.weight_decay
        )
        self.num_updates = 0
        self._means, self._grad_norms, self._seconds = TokenMeans(), list[float](), 0.0

    @property
    def is_warming_up(self) -> bool:
        """Whether the policy still waits for the critic."""
        return self.num_updates < self.config.critic_warmup_steps

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """Expected returns before each trained token; [B, T] float32 on the CPU, 0 outside the loss mask."""
        values_BT = torch.zeros_like(batch.rollout_logprobs_BT)
        for rows_R, counts in self._ranks.share(batch.micro_batches(self._learner)):
            mask_RT = batch.rows(rows_R).loss_mask_BT
            values_N = self._values_N(batch.rows(rows_R).to(self._learner.device)).cpu()
            if counts:
                values_BT[rows_R, : mask_RT.shape[1]] = torch.zeros(mask_RT.shape).masked_scatter(mask_RT, values_N)
        reshard(self._own)
        self._ranks.sum([values_BT])
        return values_BT

    def _values_N(self, micro: Batch) -> Tensor:
        """Values of the trained tokens in row-major order, float32: each is read off the state that the token was sampled from."""
        with torch.autocast(micro.token_ids_BT.device.type, dtype=torch.bfloat16, enabled=self._learner.autocast):
            states_ND = token_states(self.trunk, micro.token_ids_BT, micro.attention_BT, micro.loss_mask_BT)
        states_ND = states_ND.float()
        if self.config.critic is CriticKind.SHARED:
            coef = 0.0 if self.is_warming_up else self.config.value_coef
            detached_ND = states_ND.detach()
            states_ND = detached_ND + coef * (states_ND - detached_ND) if coef else detached_ND
        return self.head(states_ND).squeeze(-1)

    def backward(self, batch: Batch) -> str:
        """Leaves the gradient of the mean loss over all trained tokens for `step`; returns why it cannot be used, or nothing.

        The loss is half the squared error, of the value or of the value held within `value_clip` of the old one, whichever is larger; a
        `value_clip` of 0 sets no limit. A shared trunk gets `value_coef` of the gradient, and none in the warm-up.
        """
        assert batch.returns_BT is not None and batch.values_BT is not None, "a critic needs values and returns"
        began, loss, clip, own_means = time.perf_counter(), 0.0, self.config.value_clip, TokenMeans()
        self.optimizer.zero_grad(set_to_none=True)
        for rows_R, counts in self._ranks.share(batch.micro_batches(self._learner)):
            micro = batch.rows(rows_R).to(self._learner.device)
            assert micro.returns_BT is not None and micro.values_BT is not None
            old_N, returns_N = micro.values_BT[micro.loss_mask_BT], micro.returns_BT[micro.loss_mask_BT]
            values_N = self._values_N(micro)
            if not counts:
                (0.0 * values_N.sum()).backward()
                continue
            losses_N = plain_N = (values_N - returns_N).square() / 2
            if clip > 0:
                losses_N = plain_N.maximum((values_N.clamp(old_N - clip, old_N + clip) - returns_N).square() / 2)
            total = losses_N.sum()
            (total / batch.num_trained).backward()
            loss += float(total.detach()) / batch.num_trained
            own_means.add(
                {"critic/vf_loss": losses_N.detach(), "critic/vf_clipfrac": losses_N > plain_N, "critic/vpred_mean": values_N.detach()}
            )
        self._ranks.sum_gradients(self._own.parameters())
        of_ranks, loss = self._ranks.gather((loss, own_means)), 0.0
        for of_rank, found in of_ranks:
            loss += of_rank
            self._means.merge(found)
        self._seconds += time.perf_counter() - began
        self._total_norm = whole(nn.utils.get_total_norm([each.grad for each in self._own.parameters() if each.grad is not None]))
        self._grad_norms.append(grad_norm := float(self._total_norm))
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return ""
        columns = {"critic's value before the update": batch.values_BT, "return": batch.returns_BT}
        gradients = ((name, each.grad if each.grad is None else whole(each.grad)) for name, each in self._own.named_parameters())
        reason = why_not_finite(batch, columns, gradients)
        return f"the critic's loss was {loss} and its gradient's norm {grad_norm}; {reason}"

    def step(self) -> None:
        """One optimiser step, with the gradient of the last `backward` scaled down to `learner.max_grad_norm`."""
        began = time.perf_counter()
        nn.utils.clip_grads_with_norm_(self._own.parameters(), self._learner.max_grad_norm, self._total_norm)
        self.optimizer.step()
        self._seconds += time.perf_counter() - began

    def finish_update(self, batch: Batch) -> dict[str, float]:
        """Counts an update as done and returns its metrics; values and returns are those before it.

        The explained variance is 1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one, below 0 for one
        worse than that, NaN without any spread of the returns.
        """
        self.num_updates += batch.num_trained > 0
        metrics: dict[str, float] = dict.fromkeys(METRICS, math.nan) | self._means.metrics()
        if batch.num_trained:
            assert batch.values_BT is not None and batch.returns_BT is not None, "a critic needs values and returns"
            values_N, returns_N = batch.values_BT[batch.loss_mask_BT], batch.returns_BT[batch.loss_mask_BT]
            if spread := float(returns_N.double().var(correction=0)):
                errors_N = returns_N.double() - values_N.double()
                metrics["critic/vf_explained_var"] = 1.0 - float(errors_N.var(correction=0)) / spread
            for name, column_N in (("values", values_N), ("returns", returns_N)):
                for which, value in (("mean", column_N.mean()), ("max", column_N.max()), ("min", column_N.min())):
                    metrics[f"critic/{name}/{which}"] = float(value)
        metrics["critic/grad_norm"] = sum(self._grad_norms) / len(self._grad_norms) if self._grad_norms else math.nan
        metrics["critic/lr"] = self.config.critic_lr
        metrics["timing_s/update_critic"] = self._seconds
        self._means, self._grad_norms, self._seconds = TokenMeans(), [], 0.0
        return metrics

    def state_dict(self, *, keep: bool = True) -> dict[str, Any]:
        """Everything that adapts, weights included: the policy's folder holds none of them. Tensors are live.

        Args:
            keep: of a sharded one, False where this rank only helps another to it; all ranks must ask.
        """
        optimizer, is_sharded = self.optimizer.state_dict(), self._ranks.sharded
        return {
            "kind": self.config.critic.value,
            "num_updates": self.num_updates,
            "weights": whole_state(self._own.state_dict(), keep=keep) if is_sharded else self._own.state_dict(),
            "optimizer": whole_optimizer(optimizer, keep=keep) if is_sharded else optimizer,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; a ValueError refuses that of a critic of another kind."""
        if state["kind"] != self.config.critic.value:
            raise ValueError(f"algorithm.critic must be {state['kind']} as in the checkpoint, got {self.config.critic.value}")
        load_parts(self._own, state["weights"])
        self.optimizer.load_state_dict(optimizer_parts(state["optimizer"], self._own.parameters()))
        self.num_updates = state["num_updates"]
