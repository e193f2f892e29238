"""Rewards on tokens and advantages by a critic, worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from policy.algorithms.advantages import explained_variance, gae, token_rewards

#             u  a  a  u  u  a  u
MASK = [[0, 1, 1, 0, 0, 1, 0]]
TURNS = [[0, 0, 0, 1, 1, 1, 2]]


def tensors(*rows: list[list[float]]) -> list[torch.Tensor]:
    return [torch.tensor(row, dtype=torch.float64) for row in rows]


def estimate(rewards: list[list[float]], values: list[list[float]], **settings: float) -> tuple[list[float], list[float]]:
    rewards_BT, values_BT = tensors(rewards, values)
    advantages_BT, returns_BT = gae(rewards_BT, values_BT, torch.tensor(TURNS), torch.tensor(MASK).bool(), **settings)
    return advantages_BT[0].tolist(), returns_BT[0].tolist()


def paid(reward: float, turn_rewards: list[float], *, credit: float, mask: list[list[int]] = MASK) -> list[float]:
    (rewards_B,), (turn_rewards_BK,) = tensors([reward]), tensors([turn_rewards])
    return token_rewards(rewards_B, turn_rewards_BK, torch.tensor(TURNS), torch.tensor(mask).bool(), turn_credit=credit)[0].tolist()


def test_the_final_reward_is_paid_on_the_last_sampled_token() -> None:
    assert paid(0.8, [0.5, -0.2], credit=0.0) == [0, 0, 0, 0, 0, 0.8, 0]


def test_turn_rewards_are_paid_at_the_end_of_their_reply_in_units_of_the_final_one() -> None:
    assert paid(0.8, [0.5, -0.2], credit=1.0) == pytest.approx([0, 0, 0.05, 0, 0, -0.02, 0])
    assert paid(0.8, [0.5, -0.2], credit=0.25) == pytest.approx([0, 0, 0.0125, 0, 0, 0.75 * 0.8 - 0.25 * 0.02, 0])


def test_a_turn_without_a_sampled_token_is_paid_for_by_what_led_to_it() -> None:
    assert paid(0.0, [0.5, -0.2], credit=1.0, mask=[[0, 1, 1, 0, 0, 0, 0]]) == pytest.approx([0, 0, 0.05 - 0.02, 0, 0, 0, 0])


def test_a_turn_that_was_never_answered_is_paid_nothing() -> None:
    assert paid(0.4, [0.5, math.nan], credit=0.5) == pytest.approx([0, 0, 0.025, 0, 0, 0.2, 0])


def test_a_row_that_nothing_was_sampled_in_is_paid_nothing() -> None:
    assert paid(0.4, [0.5, 0.5], credit=0.5, mask=[[0] * 7]) == [0.0] * 7


def test_what_the_user_says_costs_no_discount() -> None:
    # sampled tokens carry values .1, .2, .3; the reward 1 comes with the third
    got, returns = estimate([[0, 0, 0, 0, 0, 1, 0]], [[0, 0.1, 0.2, 0, 0, 0.3, 0]], gamma=0.5, lam=0.5)
    third = 1 - 0.3
    second = 0.5 * 0.3 - 0.2 + 0.25 * third
    first = 0.5 * 0.2 - 0.1 + 0.25 * second
    assert got == pytest.approx([0, first, second, 0, 0, third, 0])
    assert returns == pytest.approx([0, first + 0.1, second + 0.2, 0, 0, 1.0, 0])


def test_values_of_the_users_tokens_are_not_read() -> None:
    clean = estimate([[0, 0, 0, 0, 0, 1, 0]], [[0, 0.1, 0.2, 0, 0, 0.3, 0]], gamma=0.9, lam=0.8)
    with_others = estimate([[7, 0, 0, 7, 7, 1, 7]], [[9, 0.1, 0.2, 9, 9, 0.3, 9]], gamma=0.9, lam=0.8)
    assert clean == with_others


def test_lambda_of_one_judges_by_what_came_in_the_end() -> None:
    got, returns = estimate([[0, 0, 0.5, 0, 0, 1, 0]], [[0, 0.1, 0.2, 0, 0, 0.3, 0]], gamma=1.0, lam=1.0)
    assert got == pytest.approx([0, 1.4, 1.3, 0, 0, 0.7, 0])
    assert returns == pytest.approx([0, 1.5, 1.5, 0, 0, 1.0, 0])


def test_another_reply_is_discounted_once_however_many_tokens_it_has() -> None:
    _, returns = estimate([[0, 0, 0.5, 0, 0, 1, 0]], [[0] * 7], gamma=1.0, lam=1.0, turn_discount=0.6)
    assert returns == pytest.approx([0, 1.1, 1.1, 0, 0, 1.0, 0])


def test_rows_do_not_meet() -> None:
    generator = torch.Generator().manual_seed(0)
    mask_BT = torch.rand((5, 12), generator=generator) < 0.5
    rewards_BT, values_BT = (torch.rand((5, 12), generator=generator, dtype=torch.float64) for _ in range(2))
    turn_ids_BT = torch.arange(12)[None].expand(5, 12) // 4
    together, _ = gae(rewards_BT, values_BT, turn_ids_BT, mask_BT, gamma=0.9, lam=0.9, turn_discount=0.7)
    for row in range(5):
        columns = (column[row : row + 1] for column in (rewards_BT, values_BT, turn_ids_BT, mask_BT))
        alone, _ = gae(*columns, gamma=0.9, lam=0.9, turn_discount=0.7)
        assert torch.equal(alone[0], together[row])


def test_explained_variance() -> None:
    returns_N = torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert explained_variance(returns_N, returns_N) == 1.0
    assert explained_variance(torch.full((4,), 9.0), returns_N) == pytest.approx(0.0)
    assert explained_variance(returns_N + torch.tensor([0.5, -0.5, -0.5, 0.5]), returns_N) == pytest.approx(1 - 0.25 / 1.25)
    assert explained_variance(-returns_N, returns_N) == pytest.approx(-3.0)
    assert math.isnan(explained_variance(returns_N, torch.ones(4)))
    assert math.isnan(explained_variance(torch.zeros(0), torch.zeros(0)))
