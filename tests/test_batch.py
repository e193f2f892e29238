"""Collating keeps every array apart and in place, and leaves out groups that cannot teach."""

from __future__ import annotations

import math

import pytest
import torch
from policy_factories import group, random_batch, rollout

from policy.batch import collate, trainable_groups
from policy.config import LearnerConfig
from simulator.dialogue import Outcome

# u u a e u a : the agent says 7 8 and later 9
SHORT = ([5, 6, 7, 8, 5, 9], [0, 0, 1, 1, 0, 1])
LONG = ([5, 6, 1, 8, 5, 9, 2, 3], [0, 0, 1, 1, 0, 1, 1, 0])


def test_arrays_are_the_rollouts_padded_on_the_right() -> None:
    a = rollout(*SHORT, reward=0.25, logprobs=[0, 0, -1, -2, 0, -3], policy_versions=(3, 4), turn_rewards=[0.5])
    b = rollout(*LONG, reward=0.75, turn_rewards=[0.1, 0.2])
    batch = collate([group(a, b), group(a)])
    assert batch.token_ids_BT.tolist() == [[5, 6, 7, 8, 5, 9, 0, 0], LONG[0], [5, 6, 7, 8, 5, 9, 0, 0]]
    assert batch.attention_BT.int().tolist() == [[1] * 6 + [0, 0], [1] * 8, [1] * 6 + [0, 0]]
    assert batch.loss_mask_BT.int().tolist()[0] == [0, 0, 1, 1, 0, 1, 0, 0]
    assert batch.turn_ids_BT.tolist()[0] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert batch.rollout_logprobs_BT.tolist()[0] == [0, 0, -1, -2, 0, -3, 0, 0]
    assert batch.group_ids_B.tolist() == [0, 0, 1] and batch.rewards_B.tolist() == [0.25, 0.75, 0.25]
    assert batch.turn_rewards_BK.isnan().tolist() == [[False, True], [False, False], [False, True]]
    assert batch.policy_versions_B2.tolist() == [[3, 4], [0, 0], [3, 4]] and batch.num_trained == 3 + 4 + 3


def test_a_broken_rollout_is_a_row_nothing_is_learned_from() -> None:
    empty = rollout([], [], outcome=Outcome.ERROR, reward=math.nan)
    batch = collate([group(rollout(*SHORT), empty, rollout(*LONG, outcome=Outcome.ERROR))])
    assert batch.valid_B.tolist() == [True, False, False] and batch.loss_mask_BT.sum(1).tolist() == [3, 0, 0]
    assert batch.rewards_B.isnan().tolist() == [False, True, True]
    assert [piece.tolist() for piece in batch.micro_batches(LearnerConfig(micro_batch_rows=8, micro_batch_tokens=100))] == [[0]]
    nothing = collate([])
    assert nothing.num_rollouts == nothing.num_trained == 0 and nothing.micro_batches(LearnerConfig()) == []


def test_a_first_token_that_claims_to_be_sampled_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="first token"):
        collate([group(rollout([5, 6], [1, 1]))])


def rewards_of(groups: list) -> list[list[float]]:
    return [[each.reward.total for each in kept.rollouts] for kept in groups]


def test_groups_that_cannot_teach_are_left_out() -> None:
    good = group(rollout(*SHORT, reward=0.1), rollout(*SHORT, reward=0.2))
    equal = group(rollout(*SHORT, reward=0.3), rollout(*LONG, reward=0.3))
    broken = rollout(*SHORT, reward=math.nan, outcome=Outcome.ERROR)
    lonely = group(rollout(*SHORT, reward=0.1), broken)
    wounded = group(rollout(*SHORT, reward=0.1), broken, rollout(*SHORT, reward=0.9))
    lost = group(broken, broken)
    assert rewards_of(trainable_groups([good, equal, lonely, wounded, lost])) == [[0.1, 0.2], [0.1, 0.9]]
    # Without comparing siblings one valid rollout is enough.
    assert rewards_of(trainable_groups([equal, lonely, lost], compares_siblings=False)) == [[0.3, 0.3], [0.1]]


def test_rows_are_cut_to_their_last_trained_token() -> None:
    batch = collate([group(rollout(*SHORT), rollout(*LONG))])
    assert batch.needed_B.tolist() == [6, 7]
    assert batch.rows(torch.tensor([0])).token_ids_BT.tolist() == [[5, 6, 7, 8, 5, 9]]
    assert batch.rows(torch.tensor([1])).token_ids_BT.tolist() == [LONG[0][:7]]
    assert [piece.tolist() for piece in batch.micro_batches(LearnerConfig(micro_batch_rows=8, micro_batch_tokens=2))] == [[1], [0]]


def test_micro_batches_hold_each_row_once_longest_first_within_their_limits() -> None:
    batch = random_batch(seed=0, num_groups=5)
    pieces = batch.micro_batches(LearnerConfig(micro_batch_rows=3, micro_batch_tokens=80))
    assert sorted(row for piece in pieces for row in piece.tolist()) == list(range(20))
    needed = [int(batch.needed_B[row]) for piece in pieces for row in piece.tolist()]
    assert needed == sorted(needed, reverse=True)
    assert all(len(piece) <= 3 and len(piece) * int(batch.needed_B[piece].max()) <= 80 for piece in pieces)
