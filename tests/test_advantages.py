"""Advantages worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from policy.algorithms.advantages import (
    group_advantages,
    leave_one_out_advantages,
    to_tokens,
    turn_advantages,
    turn_deviations,
    turn_returns,
    turns_to_tokens,
    whiten,
)


def advantages(rewards: list[float], groups: list[int], valid: list[bool] | None = None, **options: bool) -> list[float]:
    valid_B = torch.tensor([True] * len(rewards) if valid is None else valid)
    return group_advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), valid_B, **options).tolist()


def test_deviations_are_divided_by_the_unbiased_std() -> None:
    # mean 0.5, unbiased variance (4 x 0.25) / 3
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert advantages([0, 1, 0, 1], [0, 0, 0, 0]) == pytest.approx([-expected, expected, -expected, expected], abs=1e-12)


def test_each_group_is_its_own_baseline_wherever_its_members_lie() -> None:
    # group 0: 0.2, 0.4 (std 0.1414); group 1: 0.9, 0.5 (std 0.2828): all at +-1/sqrt(2)
    got = advantages([0.2, 0.9, 0.4, 0.5], [0, 1, 0, 1])
    assert got == pytest.approx([-0.70710, 0.70710, 0.70710, -0.70710], abs=1e-4)


def test_without_std_advantages_are_plain_deviations() -> None:
    assert advantages([0.2, 0.9, 0.4, 0.5], [0, 1, 0, 1], std_normalise=False) == pytest.approx([-0.1, 0.2, 0.1, -0.2])


def test_group_that_fared_alike_has_no_advantage_in_spite_of_rounding() -> None:
    assert advantages([0.1] * 7, [0] * 7) == [0.0] * 7


def test_group_with_one_survivor_has_no_advantage() -> None:
    assert advantages([0.9, math.nan, 0.3], [0, 0, 1], [True, False, True]) == [0.0, 0.0, 0.0]


def test_broken_rollout_is_in_no_baseline() -> None:
    got = advantages([0.2, math.nan, 0.4], [0, 0, 0], [True, False, True], std_normalise=False)
    assert got == pytest.approx([-0.1, 0.0, 0.1])


def test_tokens_carry_their_rollouts_advantage_only_under_the_mask() -> None:
    mask_BT = torch.tensor([[0, 1, 1], [0, 0, 1]], dtype=torch.bool)
    got = to_tokens(torch.tensor([0.5, -2.0], dtype=torch.float64), mask_BT)
    assert got.dtype == torch.float32
    assert got.tolist() == [[0, 0.5, 0.5], [0, 0, -2.0]]


def turns(rewards: list[list[float]], groups: list[int], *, discount: float, std_normalise: bool = False) -> list[list[float]]:
    rewards_BK = torch.tensor(rewards, dtype=torch.float64)
    valid_B = torch.tensor([True] * len(rewards))
    return turn_advantages(rewards_BK, torch.tensor(groups), valid_B, discount=discount, std_normalise=std_normalise).tolist()


def test_a_turn_is_compared_with_its_siblings_same_turn() -> None:
    # returns with discount 0.5: (0.4 + 0.1, 0.2) and (-0.2 + 0.2, 0.4); means 0.25 and 0.3
    got = turns([[0.4, 0.2], [-0.2, 0.4]], [0, 0], discount=0.5)
    assert got == [pytest.approx([0.25, -0.1]), pytest.approx([-0.25, 0.1])]


def test_without_discount_a_turn_answers_for_its_own_change_only() -> None:
    assert turns([[0.4, 0.2], [-0.2, 0.4]], [0, 0], discount=0.0) == [pytest.approx([0.3, -0.1]), pytest.approx([-0.3, 0.1])]


def test_a_turn_that_only_one_sibling_reached_has_no_advantage_and_no_part_in_the_mean() -> None:
    got = turns([[0.4, 0.2], [-0.2, math.nan]], [0, 0], discount=0.0)
    assert got == [pytest.approx([0.3, 0.0]), pytest.approx([-0.3, 0.0])]


def test_turn_advantages_are_divided_by_the_groups_spread() -> None:
    # deviations +-0.3, +-0.1, of two turns with one degree of freedom each: sqrt(2 (0.09 + 0.01) / 2)
    got = turns([[0.4, 0.2], [-0.2, 0.4]], [0, 0], discount=0.0, std_normalise=True)
    assert got[0] == pytest.approx([0.3 / math.sqrt(0.1), -0.1 / math.sqrt(0.1)], rel=1e-4)
    # A turn that nobody else reached has no deviation and no part in the spread.
    alone = turns([[0.4, 0.2], [-0.2, math.nan]], [0, 0], discount=0.0, std_normalise=True)
    assert alone[0] == pytest.approx([math.sqrt(0.5), 0.0], rel=1e-4)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_ends_and_turns_are_measured_by_one_spread(size: int) -> None:
    # Dialogues of one turn: what it brought is how they ended, so any share of turn credit gives the same advantages.
    rewards = [i * i / 100 for i in range(size)]
    by_turn = turns([[reward] for reward in rewards], [0] * size, discount=0.0, std_normalise=True)
    assert [turn for (turn,) in by_turn] == pytest.approx(advantages(rewards, [0] * size), rel=1e-9)


def test_turn_advantages_fall_on_the_tokens_of_their_turn() -> None:
    turn_ids_BT = torch.tensor([[0, 0, 1, 1, 2]])
    mask_BT = torch.tensor([[False, True, False, True, True]])
    got = turns_to_tokens(torch.tensor([[0.5, -1.0]], dtype=torch.float64), turn_ids_BT, mask_BT)
    assert got.tolist() == [[0.0, 0.5, 0.0, -1.0, 0.0]]


def test_left_out_of_its_own_baseline_a_reward_is_compared_with_the_others() -> None:
    rewards_B, groups_B = torch.tensor([0.0, 0.3, 0.9, 0.5, 0.7]), torch.tensor([0, 0, 0, 1, 1])
    got = leave_one_out_advantages(rewards_B, groups_B, torch.tensor([True] * 5)).tolist()
    assert got == pytest.approx([-0.6, -0.15, 0.75, -0.2, 0.2], abs=1e-7)
    broken = leave_one_out_advantages(rewards_B, groups_B, torch.tensor([True, True, False, False, True])).tolist()
    assert broken == pytest.approx([-0.3, 0.3, 0.0, 0.0, 0.0], abs=1e-7)


def test_whitened_values_have_mean_0_and_unbiased_variance_1_under_the_mask() -> None:
    mask_BT = torch.tensor([[True, False, True], [True, False, False]])
    got = whiten(torch.tensor([[1.0, 99.0, 2.0], [3.0, 99.0, 99.0]]), mask_BT)
    assert got.tolist() == [pytest.approx([-1.0, 0.0, 0.0], abs=1e-6), pytest.approx([1.0, 0.0, 0.0], abs=1e-6)]
    assert not whiten(torch.tensor([[5.0, 5.0]]), torch.tensor([[True, False]])).any()
    assert not whiten(torch.tensor([[0.1, 0.1]]), torch.tensor([[True, True]])).any()


def test_a_turns_tokens_answer_for_its_own_return_alone() -> None:
    # What happened before turn 1, and how many turns followed elsewhere, leaves its advantage as it is.
    calm = turns([[0.1, 0.4, 0.2], [0.3, -0.2, math.nan]], [0, 0], discount=0.5)
    wild = turns([[-0.9, 0.4, 0.2], [0.7, -0.2, math.nan]], [0, 0], discount=0.5)
    # returns from turn 1 on: 0.4 + 0.1 and -0.2
    assert [row[1] for row in calm] == [row[1] for row in wild] == pytest.approx([0.35, -0.35])


def test_where_the_agent_decides_when_to_stop_turn_advantages_keep_the_gradient() -> None:
    """All outcomes of two siblings that stop at once (probability 1 - go) or go on to a second turn, which works with probability win.

    Turn 1 brings 0.3; stopping brings nothing more, a second turn 1 where it works and -0.2 where not. With one parameter a turn (logits of
    `go` and `win`), the policy gradient of the expected total is
        turn 1    go (1 - go) (win - 0.2 (1 - win))
        turn 2    go win (1 - win) (1 + 0.2), of which a sibling's being there as well leaves the share go
    """
    go, win, first = 0.4, 0.7, 0.3
    # turn rewards, probability, and the derivatives of the log-probability by either logit
    outcomes = [
        ([first, math.nan], 1 - go, (-go, 0.0)),
        ([first, 1.0], go * win, (1 - go, 1 - win)),
        ([first, -0.2], go * (1 - win), (1 - go, -win)),
    ]
    gradient = torch.zeros(2, dtype=torch.float64)
    for mine, p_mine, slopes in outcomes:
        for other, p_other, _ in outcomes:
            rewards_BK = torch.tensor([mine, other], dtype=torch.float64)
            returns_BK, has_BK = turn_returns(rewards_BK, torch.tensor([True, True]), discount=1.0)
            deviations_BK, _ = turn_deviations(returns_BK, has_BK, torch.tensor([0, 0]), leave_one_out=True)
            gradient += p_mine * p_other * deviations_BK[0] * torch.tensor(slopes, dtype=torch.float64)
    by_hand = [go * (1 - go) * (win - 0.2 * (1 - win)), go * go * win * (1 - win) * 1.2]
    assert gradient.tolist() == pytest.approx(by_hand, abs=1e-12)
