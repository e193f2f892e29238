"""Packing keeps every array apart and in place; what cannot teach is left out and counted."""

from __future__ import annotations

import math

import pytest
import torch
from policy_factories import group, random_batch, rollout

from policy.batch import admitted, micro_batches, pack
from simulator.dialogue import Outcome

# u u a e u a : the agent says 7 8 and later 9
SHORT = ([5, 6, 7, 8, 5, 9], [0, 0, 1, 1, 0, 1])
LONG = ([5, 6, 1, 8, 5, 9, 2, 3], [0, 0, 1, 1, 0, 1, 1, 0])


def test_packed_arrays_are_the_rollouts_padded_on_the_right() -> None:
    a = rollout(*SHORT, reward=0.25, logprobs=[0, 0, -1, -2, 0, -3], policy_versions=(3, 4))
    b = rollout(*LONG, reward=0.75)
    batch = pack([group(a, b), group(a)])
    assert batch.token_ids_BT.tolist() == [[5, 6, 7, 8, 5, 9, 0, 0], LONG[0], [5, 6, 7, 8, 5, 9, 0, 0]]
    assert batch.attention_BT.int().tolist() == [[1] * 6 + [0, 0], [1] * 8, [1] * 6 + [0, 0]]
    assert batch.loss_mask_BT.int().tolist()[0] == [0, 0, 1, 1, 0, 1, 0, 0]
    assert batch.turn_ids_BT.tolist()[0] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert batch.rollout_logprobs_BT.tolist()[0] == [0, 0, -1, -2, 0, -3, 0, 0]
    assert batch.group_ids_B.tolist() == [0, 0, 1]
    assert batch.rewards_B.tolist() == [0.25, 0.75, 0.25]
    assert batch.policy_versions_B2.tolist() == [[3, 4], [0, 0], [3, 4]]
    assert batch.num_trained == 3 + 4 + 3


def test_the_agent_reads_what_it_is_not_trained_on() -> None:
    batch = pack([group(rollout(*SHORT), rollout(*SHORT))])
    assert batch.attention_BT.all()
    assert not batch.loss_mask_BT.all()


def test_broken_rollout_is_a_row_nothing_is_learned_from() -> None:
    empty = rollout([], [], outcome=Outcome.ERROR, reward=math.nan)
    batch = pack([group(rollout(*SHORT), empty, rollout(*LONG, outcome=Outcome.ERROR))])
    assert batch.valid_B.tolist() == [True, False, False]
    assert batch.loss_mask_BT.sum(1).tolist() == [3, 0, 0]
    assert batch.rewards_B.isnan().tolist() == [False, True, True]
    assert [piece.tolist() for piece in micro_batches(batch, max_rows=8, max_tokens=100)] == [[0]]


def test_nothing_packs_to_an_empty_batch() -> None:
    batch = pack([])
    assert (batch.num_rollouts, batch.num_trained) == (0, 0)
    assert micro_batches(batch, max_rows=8, max_tokens=100) == []


def test_a_first_token_that_claims_to_be_sampled_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="first token"):
        pack([group(rollout([5, 6], [1, 1]))])


def test_groups_that_cannot_teach_are_left_out() -> None:
    good = group(rollout(*SHORT, reward=0.1), rollout(*SHORT, reward=0.2))
    alike = group(rollout(*SHORT, reward=0.3), rollout(*LONG, reward=0.3))
    broken = rollout(*SHORT, reward=math.nan, outcome=Outcome.ERROR)
    lonely = group(rollout(*SHORT, reward=0.1), broken)
    wounded = group(rollout(*SHORT, reward=0.1), broken, rollout(*SHORT, reward=0.9))
    survivors_alike = group(rollout(*SHORT, reward=0.5), broken, rollout(*SHORT, reward=0.5))
    kept = admitted([good, alike, lonely, wounded, survivors_alike])
    assert [[r.reward.total for r in g.rollouts] for g in kept] == [[0.1, 0.2], [0.1, 0.9]]
    for useless in (alike, lonely, survivors_alike, group(broken, broken)):
        assert admitted([useless]) == []


def test_rows_are_cut_to_their_last_trained_token() -> None:
    batch = pack([group(rollout(*SHORT), rollout(*LONG))])
    assert batch.needed_B.tolist() == [6, 7]
    cut = batch.rows(torch.tensor([0]))
    assert cut.token_ids_BT.tolist() == [[5, 6, 7, 8, 5, 9]]
    assert batch.rows(torch.tensor([1])).token_ids_BT.tolist() == [LONG[0][:7]]


def test_micro_batches_hold_each_row_once_longest_first_within_their_limits() -> None:
    batch = random_batch(seed=0, num_groups=5)
    pieces = micro_batches(batch, max_rows=3, max_tokens=80)
    assert sorted(row for piece in pieces for row in piece.tolist()) == list(range(20))
    needed = [int(batch.needed_B[row]) for piece in pieces for row in piece.tolist()]
    assert needed == sorted(needed, reverse=True)
    for piece in pieces:
        assert len(piece) <= 3
        assert len(piece) * int(batch.needed_B[piece].max()) <= 80


def test_row_longer_than_the_limit_is_a_piece_of_its_own() -> None:
    batch = pack([group(rollout(*SHORT), rollout(*LONG))])
    assert [piece.tolist() for piece in micro_batches(batch, max_rows=8, max_tokens=2)] == [[1], [0]]


def test_without_comparing_siblings_one_survivor_is_enough_however_the_group_fared() -> None:
    alike = group(rollout([1, 2], [0, 1], reward=0.5), rollout([3, 4], [0, 1], reward=0.5))
    lone = group(rollout([5, 6], [0, 1], reward=0.9), rollout([7, 8], [0, 1], outcome=Outcome.ERROR))
    broken = group(rollout([9, 9], [0, 1], outcome=Outcome.ERROR))
    kept = admitted([alike, lone, broken], compares_siblings=False)
    assert [[r.reward.total for r in g.rollouts] for g in kept] == [[0.5, 0.5], [0.9]]
