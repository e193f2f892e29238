"""The critic: what return to expect before each token the agent samples, learned from the returns that came.

Source: value loss with clipping as in PPO's reference code; see arXiv 2005.12729, section 3, on what that adds to the paper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from policy.algorithms.advantages import explained_variance
from policy.batch import Batch, Targets, TokenLoss, Totals, micro_batches
from policy.config import CriticKind, LearnerConfig, PpoConfig
from policy.diagnosis import why_not_finite
from policy.model import recompute_layers

STATE_VERSION = 1
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


def clipped_value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, *, clip: float) -> TokenLoss:
    """Half the squared error, of the value or of the value held within `clip` of the old one, whichever is larger.

    Args:
        clip: 0 does without.
    """
    losses_N = plain_N = (values_N - returns_N).square() / 2
    if clip > 0:
        held_N = values_N.clamp(old_values_N - clip, old_values_N + clip)
        losses_N = plain_N.maximum((held_N - returns_N).square() / 2)
    sums = {
        "critic/vf_loss": losses_N.detach().sum(),
        "critic/vf_clipfrac": (losses_N > plain_N).sum(),
        "critic/vpred_mean": values_N.detach().sum(),
    }
    return TokenLoss(total=losses_N.sum(), sums=sums)


class Critic:
    """A value head on a trunk of its own or on the policy's, its optimiser and what it measured since it was last asked.

    The head starts at zero: until it has learned something, what it expects is nothing.
    """

    def __init__(self, config: PpoConfig, settings: LearnerConfig, model: PreTrainedModel) -> None:
        """Args:
        settings: how batches are cut, what the optimiser remembers, where to compute.
        model: where values are read off; a model of its own unless `config.critic` is shared, then the one being trained.

        Raises:
            ValueError: the layers of a model of its own cannot be recomputed although they shall.
        """
        self.config, self.settings = config, settings
        self.trunk = model.base_model.to(settings.device)
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1, device=settings.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        own = {"head": self.head}
        if config.critic is CriticKind.SEPARATE:
            own["trunk"] = self.trunk.eval().requires_grad_(True)
            if settings.gradient_checkpointing:
                recompute_layers(self.trunk)
        self._own = nn.ModuleDict(own)
        self.optimizer = torch.optim.AdamW(
            self._own.parameters(), lr=config.critic_lr, betas=(settings.beta1, settings.beta2), weight_decay=settings.weight_decay
        )
        self.num_updates = 0
        """Batches learned from."""
        self._during, self._grad_norms, self._seconds = Totals(), list[float](), 0.0
        self._total_norm = torch.zeros(())

    @property
    def is_warming_up(self) -> bool:
        """Whether the policy waits until the critic has seen more."""
        return self.num_updates < self.config.critic_warmup_steps

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """Expected returns before each trained token; [B, T] float32 on the CPU, 0 outside the loss mask."""
        values_BT = torch.zeros_like(batch.rollout_logprobs_BT)
        for rows_R in self._micro_batches(batch):
            micro = batch.rows(rows_R)
            row_RT = torch.zeros_like(micro.rollout_logprobs_BT)
            row_RT[micro.loss_mask_BT] = self._values_N(micro).cpu()
            values_BT[rows_R, : row_RT.shape[1]] = row_RT
        return values_BT

    def backward(self, batch: Batch, returns_BT: Tensor, old_values_BT: Tensor) -> float:
        """Adds the gradient of the mean loss over all trained tokens of `batch` to what is there; returns that loss.

        A shared trunk gets `value_coef` of it, into the gradient that the policy's own loss has left there, and none in the warm-up.
        """
        began, loss = time.perf_counter(), 0.0
        for rows_R in self._micro_batches(batch):
            micro = batch.rows(rows_R)
            length = micro.token_ids_BT.shape[1]
            values_N = self._values_N(micro)
            returns_N, old_N = (
                column_BT[rows_R, :length][micro.loss_mask_BT].to(values_N.device) for column_BT in (returns_BT, old_values_BT)
            )
            token_loss = clipped_value_loss(values_N, old_N, returns_N, clip=self.config.value_clip)
            (token_loss.total / batch.num_trained).backward()
            loss += float(token_loss.total.detach()) / batch.num_trained
            self._during.add(micro.num_trained, token_loss)
        self._seconds += time.perf_counter() - began
        return loss

    def judge(self, batch: Batch, returns_BT: Tensor | None, old_values_BT: Tensor | None) -> str:
        """Leaves the gradient of its loss over a batch for `step`; returns why it cannot be used, by the names of the rollouts, or nothing.

        Args:
            returns_BT: what it is taught, and `old_values_BT` what it expected before the update.
        """
        assert returns_BT is not None and old_values_BT is not None, "a critic must be given values and returns"
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.backward(batch, returns_BT, old_values_BT)
        self._total_norm = nn.utils.get_total_norm([each.grad for each in self._own.parameters() if each.grad is not None])
        self._grad_norms.append(grad_norm := float(self._total_norm))
        if math.isfinite(loss) and math.isfinite(grad_norm):
            return ""
        reason = self._why_not_finite(batch, returns_BT, old_values_BT, loss=loss)
        return f"the critic's loss was {loss} and its gradient's norm {grad_norm}; {reason}"

    def step(self) -> None:
        """One optimiser step, with the gradient last judged scaled down to `learner.max_grad_norm`."""
        began = time.perf_counter()
        nn.utils.clip_grads_with_norm_(self._own.parameters(), self.settings.max_grad_norm, self._total_norm)
        self.optimizer.step()
        self._seconds += time.perf_counter() - began

    def finish_update(self, batch: Batch, targets: Targets) -> dict[str, float]:
        """Counts an update as done and returns what was measured in it; values and returns are those before it."""
        self.num_updates += batch.num_trained > 0
        measured: dict[str, float] = dict.fromkeys(METRICS, math.nan) | self._during.metrics()
        if batch.num_trained:
            assert targets.values_BT is not None and targets.returns_BT is not None, "a critic must be given values and returns"
            values_N, returns_N = targets.values_BT[batch.loss_mask_BT], targets.returns_BT[batch.loss_mask_BT]
            measured["critic/vf_explained_var"] = explained_variance(values_N, returns_N)
            for name, column_N in (("values", values_N), ("returns", returns_N)):
                figures = {"mean": column_N.mean(), "max": column_N.max(), "min": column_N.min()}
                measured |= {f"critic/{name}/{which}": float(figure) for which, figure in figures.items()}
        measured["critic/grad_norm"] = sum(self._grad_norms) / len(self._grad_norms) if self._grad_norms else math.nan
        measured["critic/lr"] = self.config.critic_lr
        measured["timing_s/update_critic"] = self._seconds
        self._during, self._grad_norms, self._seconds = Totals(), [], 0.0
        return measured

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, weights included: the policy's folder holds none of them. Tensors are live."""
        return {
            "version": STATE_VERSION,
            "kind": self.config.critic.value,
            "num_updates": self.num_updates,
            "weights": self._own.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            ValueError: the state is of another version, or of a critic of another kind or shape.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"the critic's state must be of version {STATE_VERSION}, got {state.get('version')!r}; start a new run")
        if state["kind"] != self.config.critic.value:
            raise ValueError(f"the critic's state must be of algorithm.critic={self.config.critic.value}, got {state['kind']}")
        shapes = {name: list(tensor.shape) for name, tensor in self._own.state_dict().items()}
        if {name: list(tensor.shape) for name, tensor in state["weights"].items()} != shapes:
            raise ValueError("the critic's state must belong to the same model, got weights of other names or shapes")
        self._own.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_updates = state["num_updates"]

    def _why_not_finite(self, batch: Batch, returns_BT: Tensor, old_values_BT: Tensor, *, loss: float) -> str:
        columns = (("critic's value before the update", old_values_BT), ("return", returns_BT))
        gradients = ((name, parameter.grad) for name, parameter in self._own.named_parameters())
        return why_not_finite(
            batch,
            columns,
            [] if math.isfinite(loss) else [batch],
            score=lambda rows: (self.values(rows)[rows.loss_mask_BT], torch.zeros(())),
            gradients=gradients,
        )

    def _values_N(self, micro: Batch) -> Tensor:
        """Values of the trained tokens in row-major order, float32: each is read off the state that the token was sampled from."""
        device = torch.device(self.settings.device)
        attention_BT, mask_BT = micro.attention_BT.to(device), micro.loss_mask_BT.to(device)
        on_right = bool((attention_BT[:, 1:] <= attention_BT[:, :-1]).all())
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.settings.autocast):
            states_BTD = self.trunk(
                input_ids=micro.token_ids_BT.to(device), attention_mask=None if on_right else attention_BT.long(), use_cache=False
            ).last_hidden_state
        states_ND = states_BTD[:, :-1][mask_BT[:, 1:]].float()
        if self.config.critic is CriticKind.SHARED:
            coef = 0.0 if self.is_warming_up else self.config.value_coef
            states_ND = _with_gradient_times(states_ND, coef)
        return self.head(states_ND).squeeze(-1)

    def _micro_batches(self, batch: Batch) -> list[Tensor]:
        return micro_batches(batch, max_rows=self.settings.micro_batch_rows, max_tokens=self.settings.micro_batch_tokens)


def _with_gradient_times(states_ND: Tensor, coef: float) -> Tensor:
    """The same states, whose gradient flows back scaled."""
    return states_ND.detach() + coef * (states_ND - states_ND.detach()) if coef else states_ND.detach()
