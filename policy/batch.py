"""From finished rollouts to padded tensors: which groups are trained on, and in what pieces.

What a loss reads of each token, what it gives back, and what two sets of logprobs say of each other.

Losses are summed over tokens: the caller divides by the denominator of the whole optimiser step, so how a batch is cut changes nothing.
Tensors are worked on through their methods: an algorithm and its settings can then be named without importing torch.

What an optimiser step works on: a batch, with all that the loss needs to know of each of its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from policy.rollout.dialogue import Rollout, RolloutGroup
from simulator.dialogue import Outcome

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What an algorithm wants of each token of a batch."""

    advantages_BT: Tensor
    """float32; 0 outside the loss mask."""
    returns_BT: Tensor | None = None
    """float32; what a critic is to predict of each token, 0 outside the loss mask. None where there is no critic."""
    values_BT: Tensor | None = None
    """float32; what the critic predicted before the update, alike."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B rollouts padded on the right to T tokens, on the CPU.

    What the model may read (attention), what it is trained on (loss mask) and when it was said (turn) are three arrays and never stand in
    for each other.
    """

    token_ids_BT: Tensor
    """int64; 0 where padded."""
    attention_BT: Tensor
    """bool; True on every real token, whoever said it."""
    loss_mask_BT: Tensor
    """bool; True on tokens the policy sampled, never on the first of a row."""
    turn_ids_BT: Tensor
    """int16; agent turns that had ended before the token: 0 up to the end of the first reply."""
    rollout_logprobs_BT: Tensor
    """float32 nats, at the sampling temperature; 0 where the loss mask is False."""
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
    """B names, to be told by: the task's and the dialogue's seed."""
    reference_logprobs_BT: Tensor | None = None
    """float32 nats of the reference policy, 0 where the loss mask is False; None before it was asked."""

    @property
    def num_rollouts(self) -> int:
        """B."""
        return len(self.group_ids_B)

    @property
    def num_trained(self) -> int:
        """Tokens under the loss mask: the denominator of the loss."""
        return int(self.loss_mask_BT.sum())

    @property
    def needed_B(self) -> Tensor:
        """Tokens of each row that training must read: up to its last trained one, 0 without any."""
        steps_T = torch.arange(1, self.loss_mask_BT.shape[1] + 1)
        return (self.loss_mask_BT * steps_T).amax(dim=1) if len(steps_T) else torch.zeros(self.num_rollouts, dtype=torch.int64)

    def rows(self, rows_R: Tensor) -> Batch:
        """These rows only, cut to the longest that is needed."""
        length = int(self.needed_B[rows_R].max()) if len(rows_R) else 0
        columns = {name: column for name, column in vars(self).items() if isinstance(column, Tensor)}
        cut = {name: column[rows_R, :length] if name.endswith("_BT") else column[rows_R] for name, column in columns.items()}
        return replace(self, uids=tuple(self.uids[row] for row in rows_R.tolist()), **cut)


def survived(rollout: Rollout) -> bool:
    """Whether a rollout counts: it did not break and has a reward."""
    return rollout.dialogue.outcome is not Outcome.ERROR and bool(np.isfinite(rollout.reward.total))


def admitted(groups: Sequence[RolloutGroup], *, compares_siblings: bool = True) -> list[RolloutGroup]:
    """The groups that can teach the policy, each without its broken rollouts. Teachers observe every group before this.

    Left out are those of fewer than two survivors, as one reward has no baseline, and those whose survivors all ended with the same
    reward, whatever their turns: both have fewer than two different rewards.

    Args:
        compares_siblings: whether rollouts are judged by their group. Otherwise one survivor is enough, however its siblings fared.
    """
    survivors = [replace(group, rollouts=tuple(filter(survived, group.rollouts))) for group in groups]
    least = 2 if compares_siblings else 1
    return [group for group in survivors if len({rollout.reward.total for rollout in group.rollouts}) >= least]


def pack(groups: Sequence[RolloutGroup]) -> Batch:
    """All rollouts of `groups` as one batch, in order; a broken one becomes a row that nothing is learned from."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    num_tokens = max((len(rollout.token_ids) for rollout in rollouts), default=0)
    valid_B = np.array([survived(rollout) for rollout in rollouts], dtype=bool)
    for rollout in rollouts:
        _check(rollout)

    def column_BT(name: str, dtype: type) -> Tensor:
        values_BT: np.ndarray = np.zeros((len(rollouts), num_tokens), dtype=dtype)
        for row, rollout in enumerate(rollouts):
            values_BT[row, : len(rollout.token_ids)] = getattr(rollout, name)
        return torch.from_numpy(values_BT)

    lengths_B = torch.tensor([len(rollout.token_ids) for rollout in rollouts], dtype=torch.int64)
    return Batch(
        token_ids_BT=column_BT("token_ids", np.int64),
        attention_BT=torch.arange(num_tokens)[None] < lengths_B[:, None],
        loss_mask_BT=column_BT("loss_mask", np.bool_) & torch.from_numpy(valid_B)[:, None],
        turn_ids_BT=column_BT("turn_ids", np.int16),
        rollout_logprobs_BT=column_BT("rollout_logprobs", np.float32),
        group_ids_B=torch.tensor([i for i, group in enumerate(groups) for _ in group.rollouts], dtype=torch.int64),
        turn_rewards_BK=_turn_rewards(rollouts, valid_B),
        rewards_B=torch.from_numpy(np.where(valid_B, [rollout.reward.total for rollout in rollouts], np.nan)),
        valid_B=torch.from_numpy(valid_B),
        segment_ids_BT=_segment_ids(rollouts, num_tokens),
        rollout_ids_B=torch.arange(len(rollouts)),
        policy_versions_B2=torch.tensor([rollout.policy_versions for rollout in rollouts], dtype=torch.int64).reshape(-1, 2),
        uids=tuple(f"{group.task.uid} (seed {rollout.dialogue.seed})" for group in groups for rollout in group.rollouts),
    )


def _turn_rewards(rollouts: Sequence[Rollout], valid_B: np.ndarray) -> Tensor:
    num_turns = max((len(rollout.turn_rewards) for rollout in rollouts), default=0)
    values_BK = np.full((len(rollouts), num_turns), np.nan)
    for row in np.flatnonzero(valid_B):
        values_BK[row, : len(rollouts[row].turn_rewards)] = rollouts[row].turn_rewards
    return torch.from_numpy(values_BK)


def _segment_ids(rollouts: Sequence[Rollout], num_tokens: int) -> Tensor:
    ids_BT = np.zeros((len(rollouts), num_tokens), dtype=np.int16)
    for row, rollout in enumerate(rollouts):
        for number, segment in enumerate(rollout.segments):
            ids_BT[row, segment] = number
    return torch.from_numpy(ids_BT)


def by_segment(batch: Batch, targets: Targets) -> tuple[Batch, Targets]:
    """Batch and targets with a row for each sequence of a rollout, which is what a model may read as one.

    Targets are made before, from rows that are whole dialogues: there a dialogue counts once in its group's statistics, however many
    sequences it has, and its turns stand in a row. What a row says of its dialogue (reward, group, versions) each sequence repeats.
    """
    if not batch.segment_ids_BT.any():
        return batch, targets
    cut = _Cut.of(batch)
    return cut.apply(batch), cut.apply(targets)


def scored_by_segment(batch: Batch, score: Callable[[Batch], Tensor]) -> Tensor:
    """What `score` says of each token, [B, T], where each sequence is read by itself; 0 outside the loss mask."""
    if not batch.segment_ids_BT.any():
        return score(batch)
    cut = _Cut.of(batch)
    sequences = cut.apply(batch)
    whole_BT = torch.zeros_like(batch.rollout_logprobs_BT)
    whole_BT[batch.loss_mask_BT] = score(sequences)[sequences.loss_mask_BT]
    return whole_BT


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """For each of the R sequences: its row in the batch, its first token and its length."""

    rows_R: Tensor
    starts_R: Tensor
    lengths_R: Tensor

    @classmethod
    def of(cls, batch: Batch) -> _Cut:
        places = []
        for row in range(batch.num_rollouts):
            ids_T = batch.segment_ids_BT[row, batch.attention_BT[row]]
            lengths = ids_T.long().bincount().tolist() if len(ids_T) else [0]
            places += [(row, sum(lengths[:number]), length) for number, length in enumerate(lengths)]
        rows_R, starts_R, lengths_R = torch.tensor(places, dtype=torch.int64).reshape(-1, 3).unbind(1)
        return cls(rows_R=rows_R, starts_R=starts_R, lengths_R=lengths_R)

    def apply(self, whole: Any) -> Any:
        """The same object with its rows cut: what is per token is moved to the front, what is per row is repeated."""
        columns = ((field.name, getattr(whole, field.name)) for field in fields(whole))
        return replace(whole, **{name: self._column(value, per_token=name.endswith("_BT")) for name, value in columns if value is not None})

    def _column(self, values: Any, *, per_token: bool) -> Any:
        if isinstance(values, tuple):
            return tuple(values[row] for row in self.rows_R.tolist())
        if not per_token:
            return values[self.rows_R]
        steps_T = torch.arange(int(self.lengths_R.max()))
        index_RT = (self.starts_R[:, None] + steps_T).clamp(max=values.shape[1] - 1)
        return values[self.rows_R[:, None], index_RT] * (steps_T < self.lengths_R[:, None])


def _check(rollout: Rollout) -> None:
    arrays = ("role_ids", "turn_ids", "loss_mask", "rollout_logprobs")
    lengths = {name: len(getattr(rollout, name)) for name in arrays}
    assert set(lengths.values()) == {len(rollout.token_ids)}, (
        f"a rollout's arrays differ in length: {len(rollout.token_ids)} token ids, {lengths}"
    )
    for segment in rollout.segments:
        assert not rollout.loss_mask[segment][:1].any(), "a sequence's first token cannot have been sampled: nothing comes before it"


def micro_batches(batch: Batch, *, max_rows: int, max_tokens: int) -> list[Tensor]:
    """Rows of `batch` in pieces that fit into memory, longest first, so that padding is small and running out of memory shows at once.

    Args:
        max_rows: rows a piece.
        max_tokens: tokens a piece, padding included; a single longer row is a piece of its own.

    Returns:
        Row indices, int64 [R] each; rows without a trained token are in none.
    """
    needed_B = batch.needed_B
    order = torch.argsort(needed_B, descending=True, stable=True)
    rows, pieces = order[needed_B[order] > 0], []
    while len(rows):
        fitting = max(1, max_tokens // int(needed_B[rows[0]]))
        size = min(max_rows, fitting)
        pieces.append(rows[:size])
        rows = rows[size:]
    return pieces


MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before exp (verl, OpenRLHF)."""


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """What a loss may read of the N trained tokens of a micro-batch; logprobs and entropies in nats at the sampling temperature."""

    logprobs_N: Tensor
    """Of the weights being trained; carries the gradient."""
    entropies_N: Tensor
    """Exact; carries a gradient only where the algorithm asks for one."""
    old_logprobs_N: Tensor
    """Of the weights before this update, recomputed by the trainer."""
    advantages_N: Tensor
    reference_logprobs_N: Tensor | None = None
    rollout_logprobs_N: Tensor | None = None
    """Of the engine, as the tokens were sampled."""
    rows_N: Tensor | None = None
    """int64; which row of the micro-batch each token is of. Rows are never cut."""
    selected_N: Tensor | None = None
    """bool; the tokens that the algorithm picked out of the whole optimiser step."""
    weights_N: Tensor | None = None
    """What each token counts in a sum; unset, 1 each."""
    correction_N: Tensor | None = None
    """Detached; what each token's policy gradient is multiplied by for having been sampled by an engine that differs from the trainer."""

    def summed(self, values_N: Tensor) -> Tensor:
        """Their sum, each counting by its weight."""
        return values_N.sum() if self.weights_N is None else (values_N * self.weights_N).sum()


@dataclass(frozen=True, kw_only=True)
class TokenSums:
    """What to log of a micro-batch; nothing in it is averaged yet."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    """By metric key: sums over tokens, whose means are logged."""
    maxima: dict[str, Tensor] = field(default_factory=dict)
    """By metric key: maxima over tokens."""


@dataclass(frozen=True, kw_only=True)
class TokenLoss(TokenSums):
    """A loss summed over tokens by their weights, with what to log of it."""

    total: Tensor
    """Scalar; differentiable."""


def k3(log_p_N: Tensor, log_q_N: Tensor) -> Tensor:
    """The k3 estimate of KL(p || q) on tokens sampled from p, each >= 0, float64.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    difference_N = (log_q_N.double() - log_p_N.double()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference_N.expm1() - difference_N


def mismatch(rollout_logprobs_N: Tensor, logprobs_N: Tensor, entropies_N: Tensor) -> TokenSums:
    """Engine against trainer on the same tokens, as metrics alone; the KL is k3 of KL(engine || trainer)."""
    differences_N = (logprobs_N - rollout_logprobs_N).abs()
    sums = {
        "actor/entropy": entropies_N.sum(),
        "actor/entropy_sampled": -rollout_logprobs_N.sum(),
        "training/rollout_logprob_abs_diff_mean": differences_N.sum(),
        "training/mismatch_kl": k3(rollout_logprobs_N, logprobs_N).sum(),
    }
    return TokenSums(sums=sums, maxima={"training/rollout_logprob_abs_diff_max": differences_N.max()})


@dataclass
class Totals:
    """Sums and maxima over the tokens of many micro-batches; one that is no number stays one."""

    num_tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, num_tokens: int, token_sums: TokenSums) -> None:
        """Takes in one micro-batch."""
        self.num_tokens += num_tokens
        for key, value in token_sums.sums.items():
            self.sums[key] = self.sums.get(key, 0.0) + float(value)
        for key, value in token_sums.maxima.items():
            before, now = self.maxima.get(key, -math.inf), float(value)
            self.maxima[key] = now if math.isnan(now) or now > before else before

    def metrics(self) -> dict[str, float]:
        """Means over all tokens, and the maxima."""
        return {key: value / self.num_tokens for key, value in self.sums.items()} | self.maxima


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
