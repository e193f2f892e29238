"""What an optimiser step works on: a batch, with all that the loss needs to know of each of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from policy.batch import Batch
from policy.losses import TokenScores


@dataclass(frozen=True, kw_only=True)
class Work:
    """A batch with its targets; all columns [B, T] on the CPU."""

    batch: Batch
    advantages_BT: Tensor
    old_logprobs_BT: Tensor | None
    """None when strictly on policy: the current ones, detached, are the old ones."""
    reference_logprobs_BT: Tensor | None
    returns_BT: Tensor | None = None
    """None without a critic, like the values."""
    values_BT: Tensor | None = None
    selected_BT: Tensor | None = None
    """What the algorithm picked out of the optimiser step."""

    def rows(self, rows_R: Tensor) -> Work:
        """These rows only, cut to the longest that is needed."""
        batch = self.batch.rows(rows_R)
        length = batch.token_ids_BT.shape[1]
        columns = {field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_BT")}
        given = {name: column[rows_R, :length] for name, column in columns.items() if column is not None}
        return replace(self, batch=batch, **given)

    def with_selection(self, select: Callable[..., Tensor], logprobs_BT: Tensor | None = None) -> Work:
        """The same with a mark on the tokens that are picked.

        Args:
            select: (logprobs before the update [N], advantages [N], and by the present weights [N] where these are given) -> bool [N].
        """
        assert self.old_logprobs_BT is not None, "tokens are picked by their logprobs before the update"
        mask_BT = self.batch.loss_mask_BT
        selected_BT = torch.zeros_like(mask_BT)
        columns = (self.old_logprobs_BT, self.advantages_BT, *(() if logprobs_BT is None else (logprobs_BT,)))
        selected_BT[mask_BT] = select(*(column_BT[mask_BT] for column_BT in columns))
        return replace(self, selected_BT=selected_BT)

    def scores(self, logprobs_N: Tensor, entropies_N: Tensor) -> TokenScores:
        """What a loss is made of: the model's view of the trained tokens now, and everything else that is known of them.

        Args:
            logprobs_N: by the current weights, nats, on the device of the model, where the rest is brought to; entropies alike.
        """

        def flat_N(column_BT: Tensor) -> Tensor:
            return column_BT[self.batch.loss_mask_BT].to(logprobs_N.device)

        return TokenScores(
            logprobs_N=logprobs_N,
            entropies_N=entropies_N,
            old_logprobs_N=logprobs_N.detach() if self.old_logprobs_BT is None else flat_N(self.old_logprobs_BT),
            advantages_N=flat_N(self.advantages_BT),
            reference_logprobs_N=None if self.reference_logprobs_BT is None else flat_N(self.reference_logprobs_BT),
            rollout_logprobs_N=flat_N(self.batch.rollout_logprobs_BT),
            rows_N=self.batch.loss_mask_BT.nonzero()[:, 0].to(logprobs_N.device),
            selected_N=None if self.selected_BT is None else flat_N(self.selected_BT),
        )

    def figures(self) -> tuple[tuple[str, Tensor | None], ...]:
        """What may not be finite, by name, in the order in which it is to be suspected."""
        return (
            ("engine's logprob", self.batch.rollout_logprobs_BT),
            ("reference's logprob", self.reference_logprobs_BT),
            ("reward", self.batch.rewards_B),
            ("advantage", self.advantages_BT),
            ("logprob before the update", self.old_logprobs_BT),
        )
