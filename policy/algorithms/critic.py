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
from policy.diagnosis import why_not_finite
from policy.metrics import TokenMeans
from policy.model import recompute_layers, token_states

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


def clipped_value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, *, clip: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Half the squared error, of the value or of the value held within `clip` of the old one, whichever is larger.

    Args:
        clip: 0 sets no limit.

    Returns:
        The loss summed over tokens, and metrics by token, [N] each.
    """
    losses_N = plain_N = (values_N - returns_N).square() / 2
    if clip > 0:
        held_N = values_N.clamp(old_values_N - clip, old_values_N + clip)
        losses_N = plain_N.maximum((held_N - returns_N).square() / 2)
    metrics = {
        "critic/vf_loss": losses_N.detach(),
        "critic/vf_clipfrac": losses_N > plain_N,
        "critic/vpred_mean": values_N.detach(),
    }
    return losses_N.sum(), metrics


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for a constant one, below 0 for one worse than that.

    NaN without any spread of the returns.
    """
    spread = float(returns_N.double().var(correction=0)) if len(returns_N) else 0.0
    return 1.0 - float((returns_N.double() - values_N.double()).var(correction=0)) / spread if spread > 0 else float("nan")


class Critic:
    """A value head on a trunk of its own or on the policy's, with its optimiser.

    The head starts at zero, so an untrained critic expects nothing.

    Args:
        learner: how batches are cut, the optimiser's settings, the device.
        model: whose hidden states are read; a model of its own unless `config.critic` is shared, then the one being trained.

    Raises:
        ValueError: the layers of a model of its own cannot be recomputed although `learner.gradient_checkpointing` asks for it.
    """

    def __init__(self, config: PpoConfig, learner: LearnerConfig, model: PreTrainedModel) -> None:
        self.config, self._learner = config, learner
        self.trunk = model.base_model.to(learner.device)
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=learner.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        own = {"head": self.head}
        if config.critic is CriticKind.SEPARATE:
            own["trunk"] = self.trunk.eval().requires_grad_(True)
            if learner.gradient_checkpointing:
                recompute_layers(self.trunk)
        self._own = nn.ModuleDict(own)
        self.optimizer = torch.optim.AdamW(
            self._own.parameters(), lr=config.critic_lr, betas=(learner.beta1, learner.beta2), weight_decay=learner.weight_decay
        )
        self.num_updates = 0
        """Batches learned from."""
        self._means, self._grad_norms, self._seconds = TokenMeans(), list[float](), 0.0
        self._total_norm = torch.zeros(())

    @property
    def is_warming_up(self) -> bool:
        """Whether the policy waits until the critic has learned from more batches."""
        return self.num_updates < self.config.critic_warmup_steps

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """Expected returns before each trained token; [B, T] float32 on the CPU, 0 outside the loss mask."""
        values_BT = torch.zeros_like(batch.rollout_logprobs_BT)
        for rows_R in self._micro_batches(batch):
            micro = batch.rows(rows_R)
            values_N = self._values_N(micro.to(self._learner.device)).cpu()
            values_BT[rows_R, : micro.loss_mask_BT.shape[1]] = torch.zeros(micro.loss_mask_BT.shape).masked_scatter(
                micro.loss_mask_BT, values_N
            )
        return values_BT

    def backward(self, batch: Batch) -> str:
        """Leaves the gradient of the mean loss over all trained tokens for `step`; returns why it cannot be used, or nothing.

        A shared trunk gets `value_coef` of it, on top of the gradient of the policy's own loss, and none in the warm-up.

        Args:
            batch: with `values_BT` and `returns_BT`.
        """
        assert batch.returns_BT is not None and batch.values_BT is not None, "a critic needs values and returns"
        began, loss = time.perf_counter(), 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for rows_R in self._micro_batches(batch):
            micro = batch.rows(rows_R).to(self._learner.device)
            assert micro.returns_BT is not None and micro.values_BT is not None
            old_N, returns_N = micro.values_BT[micro.loss_mask_BT], micro.returns_BT[micro.loss_mask_BT]
            total, metrics = clipped_value_loss(self._values_N(micro), old_N, returns_N, clip=self.config.value_clip)
            (total / batch.num_trained).backward()
            loss += float(total.detach()) / batch.num_trained
            self._means.add(metrics)
        self._seconds += time.perf_counter() - began
        self._total_norm = nn.utils.get_total_norm([each.grad for each in self._own.parameters() if each.grad is not None])
        self._grad_norms.append(grad_norm := float(self._total_norm))
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return ""
        reason = why_not_finite(
            batch,
            (("critic's value before the update", batch.values_BT), ("return", batch.returns_BT)),
            [] if math.isfinite(loss) else [batch],
            score=lambda rows: self.values(rows)[rows.loss_mask_BT],
            gradients=((name, parameter.grad) for name, parameter in self._own.named_parameters()),
        )
        return f"the critic's loss was {loss} and its gradient's norm {grad_norm}; {reason}"

    def step(self) -> None:
        """One optimiser step, with the gradient of the last `backward` scaled down to `learner.max_grad_norm`."""
        began = time.perf_counter()
        nn.utils.clip_grads_with_norm_(self._own.parameters(), self._learner.max_grad_norm, self._total_norm)
        self.optimizer.step()
        self._seconds += time.perf_counter() - began

    def finish_update(self, batch: Batch) -> dict[str, float]:
        """Counts an update as done and returns its metrics; values and returns are those before it."""
        self.num_updates += batch.num_trained > 0
        metrics: dict[str, float] = dict.fromkeys(METRICS, math.nan) | self._means.metrics()
        if batch.num_trained:
            assert batch.values_BT is not None and batch.returns_BT is not None, "a critic needs values and returns"
            values_N, returns_N = batch.values_BT[batch.loss_mask_BT], batch.returns_BT[batch.loss_mask_BT]
            metrics["critic/vf_explained_var"] = explained_variance(values_N, returns_N)
            for name, column_N in (("values", values_N), ("returns", returns_N)):
                for which, value in (("mean", column_N.mean()), ("max", column_N.max()), ("min", column_N.min())):
                    metrics[f"critic/{name}/{which}"] = float(value)
        metrics["critic/grad_norm"] = sum(self._grad_norms) / len(self._grad_norms) if self._grad_norms else math.nan
        metrics["critic/lr"] = self.config.critic_lr
        metrics["timing_s/update_critic"] = self._seconds
        self._means, self._grad_norms, self._seconds = TokenMeans(), [], 0.0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, weights included: the policy's folder holds none of them. Tensors are live."""
        return {
            "kind": self.config.critic.value,
            "num_updates": self.num_updates,
            "weights": self._own.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: the state is of a critic of another kind.
        """
        if state["kind"] != self.config.critic.value:
            raise ValueError(f"algorithm.critic must be {state['kind']} as in the checkpoint, got {self.config.critic.value}")
        self._own.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_updates = state["num_updates"]

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

    def _micro_batches(self, batch: Batch) -> list[Tensor]:
        return batch.micro_batches(max_rows=self._learner.micro_batch_rows, max_tokens=self._learner.micro_batch_tokens)
