"""Why an optimiser step is not finite: said of the first thing that explains it, by the names of the rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from policy.batch import Batch

NUM_NAMED = 3


def why_not_finite(
    batch: Batch,
    columns: Sequence[tuple[str, Tensor | None]],
    suspects: Sequence[Batch],
    *,
    score: Callable[[Batch], tuple[Tensor, Tensor]],
    gradients: Iterable[tuple[str, Tensor | None]],
) -> str:
    """The cause, looked for in what the loss was made from, then in what the weights say of its tokens, then in the gradient.

    Args:
        batch: of the optimiser step.
        columns: what the loss reads besides, [B] or [B, T], in the order in which one follows from another; None where it does not.
        suspects: the micro-batches whose loss is not finite.
        score: logprobs and entropies of a micro-batch's trained tokens.
        gradients: by parameter.
    """
    for name, column in columns:
        if column is not None and (broken_B := _broken_rows(batch, column)).any():
            return f"the {name} of {_named(batch, broken_B)} is not finite"
    for micro in suspects:
        with torch.no_grad():
            values_N = sum(score(micro), start=torch.zeros(())).cpu()
        values_BT = torch.zeros(micro.loss_mask_BT.shape).masked_scatter(micro.loss_mask_BT, values_N)
        if (broken_B := _broken_rows(micro, values_BT)).any():
            return f"what the weights being trained give {_named(micro, broken_B)} is not finite"
    if suspects:
        every_B = torch.ones(suspects[0].num_rollouts, dtype=torch.bool)
        return f"the loss of {_named(suspects[0], every_B)} is not finite although all it is made from is"
    names = [name for name, gradient in gradients if gradient is not None and not gradient.isfinite().all()]
    if not names:
        return "the gradient's norm is too large to be told"
    return f"the loss is finite, but the gradient of {_listed(names)} is not"


def _broken_rows(batch: Batch, column: Tensor) -> Tensor:
    """[B] bool: where a row that is trained on holds something that is not finite."""
    if column.dim() == 1:
        return ~column.isfinite() & batch.loss_mask_BT.any(dim=1)
    return (~column.isfinite() & batch.loss_mask_BT).any(dim=1)


def _named(batch: Batch, rows_B: Tensor) -> str:
    return f"rollout {_listed([batch.uids[row] for row in rows_B.nonzero().squeeze(1).tolist()])}"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {more} more" if more > 0 else "")
