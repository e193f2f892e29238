"""From finished rollouts to padded tensors: which groups are trained on, and everything the loss reads of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from policy.config import LearnerConfig
from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Outcome


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B rollouts padded on the right to T tokens, on the CPU until `to` moves a micro-batch.

    The optional columns come step by step: the learner adds those of the reference, the critic and the old policy, the algorithm its own.
    """

    token_ids_BT: Tensor
    """int64; 0 where padded."""
    attention_BT: Tensor
    """bool; True on every real token, the user's or the agent's."""
    loss_mask_BT: Tensor
    """bool; True on tokens the policy sampled, never on the first of a row."""
    turn_ids_BT: Tensor
    """int16; agent turns that had ended before the token: 0 up to the end of the first reply."""
    rollout_logprobs_BT: Tensor
    """float32 nats of the engine, at the sampling temperature; 0 where the loss mask is False."""
    group_ids_B: Tensor
    """int64; equal for siblings."""
    rewards_B: Tensor
    """float64; NaN where not valid."""
    turn_rewards_BK: Tensor
    """float64; the reward of each of the up to K replies, by turn id; NaN where a rollout has no such reply, or none that was answered."""
    valid_B: Tensor
    """bool; False for a rollout that broke, which is in no baseline and not trained on."""
    policy_versions_B2: Tensor
    """int64; oldest and newest weights that sampled a token of the row."""
    segment_ids_BT: Tensor
    """int16; which of its rollout's sequences a token is in, from 0. One sequence never reads another: see `by_segment`."""
    rollout_ids_B: Tensor
    """int64; equal for rows that are sequences of one rollout."""
    uids: tuple[str, ...]
    """B names for messages: the task's and the dialogue's seed."""
    ref_logprobs_BT: Tensor | None = None
    """float32 nats of the reference policy, 0 where the loss mask is False."""
    values_BT: Tensor | None = None
    """float32; the critic's expected return before each trained token, before the update."""
    advantages_BT: Tensor | None = None
    """float32; 0 outside the loss mask."""
    returns_BT: Tensor | None = None
    """float32; the critic's target for each trained token."""
    old_logprobs_BT: Tensor | None = None
    """float32 nats of the policy before the update. None when strictly on policy: the current ones, detached, are the old ones."""
    selected_BT: Tensor | None = None
    """bool; tokens that the surrogate treats separately, picked out of the whole optimiser step."""

    @property
    def num_rollouts(self) -> int:
        """The size B."""
        return len(self.group_ids_B)

    @property
    def num_trained(self) -> int:
        """Tokens under the loss mask: the denominator of a mean over tokens."""
        return int(self.loss_mask_BT.sum())

    @property
    def needed_B(self) -> Tensor:
        """Tokens of each row that training must read: up to its last trained one, 0 without any."""
        steps_T = torch.arange(1, self.loss_mask_BT.shape[1] + 1)
        return (self.loss_mask_BT * steps_T).amax(dim=1) if len(steps_T) else torch.zeros(self.num_rollouts, dtype=torch.int64)

    def rows(self, rows_R: Tensor) -> Batch:
        """These rows only, cut to the longest that is needed."""
        length = int(self.needed_B[rows_R].max()) if len(rows_R) else 0
        return self._mapped(rows_R, lambda name, column: column[rows_R, :length] if name.endswith("_BT") else column[rows_R])

    def to(self, device: torch.device | str) -> Batch:
        """The same on another device."""
        return self._mapped(torch.arange(self.num_rollouts), lambda _, column: column.to(device))

    def by_segment(self) -> Batch:
        """A row for each sequence of a rollout, which a model may read as one; per-row columns are repeated.

        Advantages come before, from whole dialogues, each of which counts once in its group's statistics.
        """
        if not self.segment_ids_BT.any():
            return self
        cuts = []
        for row in range(self.num_rollouts):
            lengths = self.segment_ids_BT[row, self.attention_BT[row]].unique_consecutive(return_counts=True)[1].tolist()
            cuts += [(row, sum(lengths[:number]), length) for number, length in enumerate(lengths)]
        rows_R, starts_R, lengths_R = torch.tensor(cuts, dtype=torch.int64).unbind(1)
        steps_T = torch.arange(int(lengths_R.max()))
        index_RT = (starts_R[:, None] + steps_T).clamp(max=self.token_ids_BT.shape[1] - 1)
        inside_RT = steps_T < lengths_R[:, None]
        return self._mapped(
            rows_R, lambda name, column: column[rows_R[:, None], index_RT] * inside_RT if name.endswith("_BT") else column[rows_R]
        )

    def score_by_segment(self, score: Callable[[Batch], Tensor]) -> Tensor:
        """`score` of each trained token, [B, T] float32, where each sequence is read by itself; 0 outside the loss mask."""
        sequences = self.by_segment()
        scores_BT = torch.zeros_like(self.rollout_logprobs_BT)
        scores_BT[self.loss_mask_BT] = score(sequences)[sequences.loss_mask_BT]
        return scores_BT

    def micro_batches(self, config: LearnerConfig) -> list[Tensor]:
        """Rows (int64 [R]) in pieces of at most `micro_batch_rows` rows and `micro_batch_tokens` tokens, padding included, longest first.

        A longer row is a piece of its own; rows without a trained token are in none.
        """
        needed_B = self.needed_B
        order = torch.argsort(needed_B, descending=True, stable=True)
        rows, pieces = order[needed_B[order] > 0], []
        while len(rows):
            size = min(config.micro_batch_rows, max(1, config.micro_batch_tokens // int(needed_B[rows[0]])))
            pieces.append(rows[:size])
            rows = rows[size:]
        return pieces

    def _mapped(self, rows_R: Tensor, change: Callable[[str, Tensor], Tensor]) -> Batch:
        columns = {name: change(name, column) for name, column in vars(self).items() if isinstance(column, Tensor)}
        return replace(self, uids=tuple(self.uids[row] for row in rows_R.tolist()), **columns)


def is_valid(rollout: Rollout) -> bool:
    """Whether a rollout counts: it did not break and has a reward."""
    return rollout.dialogue.outcome is not Outcome.ERROR and bool(np.isfinite(rollout.reward.total))


def trainable_groups(groups: Sequence[RolloutGroup], *, compares_siblings: bool = True) -> list[RolloutGroup]:
    """The groups that can teach the policy, each without its broken rollouts. Teachers observe every group before this.

    Left out are groups whose valid rollouts have fewer than two different rewards; where no siblings are compared, one is enough.
    """
    valid = [replace(group, rollouts=tuple(filter(is_valid, group.rollouts))) for group in groups]
    least = 2 if compares_siblings else 1
    return [group for group in valid if len({rollout.reward.total for rollout in group.rollouts}) >= least]


def collate(groups: Sequence[RolloutGroup]) -> Batch:
    """All rollouts of `groups` as one batch, in order; a broken one becomes a row that nothing is learned from."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    for rollout in rollouts:
        arrays = (rollout.turn_ids, rollout.loss_mask, rollout.rollout_logprobs)
        assert {len(array) for array in arrays} == {len(rollout.token_ids)}, "a rollout's arrays must be of one length"
        assert not any(rollout.loss_mask[each][:1].any() for each in rollout.segments), "a sequence's first token cannot have been sampled"
    lengths_B = torch.tensor([len(rollout.token_ids) for rollout in rollouts], dtype=torch.int64)
    num_tokens = int(lengths_B.max()) if rollouts else 0
    valid_B = np.array([is_valid(rollout) for rollout in rollouts], dtype=bool)

    def padded(rows: Sequence[np.ndarray], dtype: type, *, length: int = num_tokens, pad: float = 0) -> Tensor:
        values: np.ndarray = np.full((len(rows), length), pad, dtype=dtype)
        for row, found in enumerate(rows):
            values[row, : len(found)] = found
        return torch.from_numpy(values)

    turn_rewards = [np.array(rollout.turn_rewards if valid else ()) for rollout, valid in zip(rollouts, valid_B, strict=True)]
    num_turns = max((len(rollout.turn_rewards) for rollout in rollouts), default=0)
    return Batch(
        token_ids_BT=padded([rollout.token_ids for rollout in rollouts], np.int64),
        attention_BT=torch.arange(num_tokens)[None] < lengths_B[:, None],
        loss_mask_BT=padded([rollout.loss_mask for rollout in rollouts], np.bool_) & torch.from_numpy(valid_B)[:, None],
        turn_ids_BT=padded([rollout.turn_ids for rollout in rollouts], np.int16),
        rollout_logprobs_BT=padded([rollout.rollout_logprobs for rollout in rollouts], np.float32),
        group_ids_B=torch.tensor([i for i, group in enumerate(groups) for _ in group.rollouts], dtype=torch.int64),
        turn_rewards_BK=padded(turn_rewards, np.float64, length=num_turns, pad=np.nan),
        rewards_B=torch.from_numpy(np.where(valid_B, [rollout.reward.total for rollout in rollouts], np.nan)),
        valid_B=torch.from_numpy(valid_B),
        segment_ids_BT=padded([rollout.segment_ids for rollout in rollouts], np.int16),
        rollout_ids_B=torch.arange(len(rollouts)),
        policy_versions_B2=torch.tensor([rollout.policy_versions for rollout in rollouts], dtype=torch.int64).reshape(-1, 2),
        uids=tuple(f"{group.task.uid} (seed {rollout.dialogue.seed})" for group in groups for rollout in group.rollouts),
    )
