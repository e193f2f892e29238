"""What a model thinks of tokens: their logprobs and entropies, micro-batch by micro-batch, as rollouts were sampled."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from policy.advantages import Targets
from policy.batch import Batch, micro_batches
from policy.learner_config import LearnerConfig
from policy.model import token_logprobs_and_entropy
from policy.token_trace import TokenTrace


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
