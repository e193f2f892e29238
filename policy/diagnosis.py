"""Error messages of an update: why a step is not finite, by the names of the rollouts, and which settings make it take less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from policy.batch import Batch
from policy.config import LearnerConfig
from policy.lora import adapter_parameters

NUM_NAMED = 3


@contextmanager
def naming_settings_for_memory(config: LearnerConfig, model: nn.Module) -> Iterator[None]:
    """Names the settings to change where a GPU has too little memory for the computation within.

    Raises:
        RuntimeError: it has.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        switch = "" if config.gradient_checkpointing else "set learner.gradient_checkpointing=true, "
        adapters = "" if adapter_parameters(model) else ", or train adapters in a new run (policy.lora.rank)"
        raise RuntimeError(
            f"learner.micro_batch_tokens must be such that an update fits into the memory of {config.device}, got "
            f"{config.micro_batch_tokens} ({'. '.join(str(error).split('. ')[:2])}); lower it, learner.micro_batch_rows="
            f"{config.micro_batch_rows} or learner.logit_chunk_mb={config.logit_chunk_mb}, {switch}"
            f"or lower policy.gpu_memory_share where engines are on the same GPU, and go on{adapters}"
        ) from error


def why_not_finite(
    batch: Batch,
    columns: Sequence[tuple[str, Tensor | None]],
    suspects: Sequence[Batch],
    *,
    score: Callable[[Batch], Tensor],
    gradients: Iterable[tuple[str, Tensor | None]],
) -> str:
    """The cause, looked for in the loss's inputs, then in the weights' scores of its tokens, then in the gradient.

    Args:
        batch: of the optimiser step.
        columns: the loss's inputs by name, [B] or [B, T], most likely culprit first.
        suspects: the micro-batches whose loss is not finite.
        score: scores of a micro-batch's trained tokens by the weights, [N].
        gradients: by parameter.
    """
    for name, column in columns:
        if column is not None and (broken_B := _broken_rows(batch, column)).any():
            return f"the {name} of {_rollouts(batch, broken_B)} is not finite"
    for micro in suspects:
        with torch.no_grad():
            scores_BT = torch.zeros(micro.loss_mask_BT.shape).masked_scatter(micro.loss_mask_BT.cpu(), score(micro).cpu())
        if (broken_B := _broken_rows(micro.to("cpu"), scores_BT)).any():
            return f"the score of {_rollouts(micro, broken_B)} by the weights being trained is not finite"
    if suspects:
        every_B = torch.ones(suspects[0].num_rollouts, dtype=torch.bool)
        return f"the loss of {_rollouts(suspects[0], every_B)} is not finite although all its inputs are"
    names = [name for name, gradient in gradients if gradient is not None and not gradient.isfinite().all()]
    return f"the loss is finite, but the gradient of {_listed(names)} is not" if names else "the gradient's norm overflows"


def _broken_rows(batch: Batch, column: Tensor) -> Tensor:
    """[B] bool: where a row that is trained on holds a value that is not finite."""
    if column.dim() == 1:
        return ~column.isfinite() & batch.loss_mask_BT.any(dim=1)
    return (~column.isfinite() & batch.loss_mask_BT).any(dim=1)


def _rollouts(batch: Batch, rows_B: Tensor) -> str:
    return f"rollout {_listed([batch.uids[row] for row in rows_B.nonzero().squeeze(1).tolist()])}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
