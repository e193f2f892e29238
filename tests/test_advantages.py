"""Advantages by hand, and every algorithm against naive loops over its published formula, written over dialogues and not tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, stdev

import pytest
import torch
from policy_factories import group, random_talks, rollout

from policy.algorithms.advantages import gae, group_advantages, token_rewards, turns_to_tokens
from policy.algorithms.algorithms import ALGORITHMS
from policy.batch import Batch, collate
from policy.config import GrpoConfig, KlPlace, PolicyLossConfig, PpoConfig, ReinforcePPConfig, RlooConfig, Spread
from simulator.dialogue import Outcome


def advantages_of(rewards: list[float], groups: list[int], valid: list[bool] | None = None, **options: bool) -> list[float]:
    valid_B = torch.tensor([True] * len(rewards) if valid is None else valid)
    return group_advantages(torch.tensor(rewards, dtype=torch.float64), torch.tensor(groups), valid_B, **options).tolist()


def test_deviations_are_divided_by_the_unbiased_std_of_their_own_group() -> None:
    # mean 0.5, unbiased variance (4 x 0.25) / 3
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert advantages_of([0, 1, 0, 1], [0, 0, 0, 0]) == pytest.approx([-expected, expected, -expected, expected], abs=1e-12)
    # group 0: 0.2, 0.4 (std 0.1414); group 1: 0.9, 0.5 (std 0.2828): all at +-1/sqrt(2)
    assert advantages_of([0.2, 0.9, 0.4, 0.5], [0, 1, 0, 1]) == pytest.approx([-0.70710, 0.70710, 0.70710, -0.70710], abs=1e-4)
    assert advantages_of([0.2, 0.9, 0.4, 0.5], [0, 1, 0, 1], std_normalise=False) == pytest.approx([-0.1, 0.2, 0.1, -0.2])


def test_without_anything_to_compare_with_there_is_no_advantage() -> None:
    assert advantages_of([0.1] * 7, [0] * 7) == [0.0] * 7  # in spite of rounding
    assert advantages_of([0.9, math.nan, 0.3], [0, 0, 1], [True, False, True]) == [0.0, 0.0, 0.0]
    got = advantages_of([0.2, math.nan, 0.4], [0, 0, 0], [True, False, True], std_normalise=False)
    assert got == pytest.approx([-0.1, 0.0, 0.1])


def test_a_reply_that_was_never_answered_has_no_advantage_of_a_turn() -> None:
    turn_ids_BT, mask_BT = torch.tensor([[0, 0, 1, 1, 2]]), torch.tensor([[False, True, False, True, True]])
    got = turns_to_tokens(torch.tensor([[0.5, -1.0]], dtype=torch.float64), turn_ids_BT, mask_BT)
    assert got.tolist() == [[0.0, 0.5, 0.0, -1.0, 0.0]]


#             u  a  a  u  u  a  u
MASK = [[0, 1, 1, 0, 0, 1, 0]]
TURNS = [[0, 0, 0, 1, 1, 1, 2]]


def paid(reward: float, turn_rewards: list[float], *, credit: float, mask: list[list[int]] = MASK) -> list[float]:
    columns = (
        torch.tensor([reward], dtype=torch.float64),
        torch.tensor([turn_rewards], dtype=torch.float64),
        torch.tensor(TURNS),
        torch.tensor(mask).bool(),
    )
    return token_rewards(*columns, turn_credit=credit)[0].tolist()


def test_rewards_are_paid_at_the_end_of_the_dialogue_and_of_each_reply_in_units_of_the_final_one() -> None:
    assert paid(0.8, [0.5, -0.2], credit=0.0) == [0, 0, 0, 0, 0, 0.8, 0]
    assert paid(0.8, [0.5, -0.2], credit=1.0) == pytest.approx([0, 0, 0.05, 0, 0, -0.02, 0])
    assert paid(0.8, [0.5, -0.2], credit=0.25) == pytest.approx([0, 0, 0.0125, 0, 0, 0.75 * 0.8 - 0.25 * 0.02, 0])
    assert paid(0.4, [0.5, math.nan], credit=0.5) == pytest.approx([0, 0, 0.025, 0, 0, 0.2, 0])
    # A turn without a sampled token is paid to the tokens before it; a row without any is paid nothing.
    assert paid(0.0, [0.5, -0.2], credit=1.0, mask=[[0, 1, 1, 0, 0, 0, 0]]) == pytest.approx([0, 0, 0.03, 0, 0, 0, 0])
    assert paid(0.4, [0.5, 0.5], credit=0.5, mask=[[0] * 7]) == [0.0] * 7


def estimate(rewards: list[float], values: list[float], **settings: float) -> tuple[list[float], list[float]]:
    columns = (torch.tensor([column], dtype=torch.float64) for column in (rewards, values))
    advantages_BT, returns_BT = gae(*columns, torch.tensor(TURNS), torch.tensor(MASK).bool(), **settings)
    return advantages_BT[0].tolist(), returns_BT[0].tolist()


def test_the_chain_runs_over_sampled_tokens_and_reads_no_others() -> None:
    # sampled tokens carry values 0.1, 0.2, 0.3; the reward 1 comes with the third
    third = 1 - 0.3
    second = 0.5 * 0.3 - 0.2 + 0.25 * third
    first = 0.5 * 0.2 - 0.1 + 0.25 * second
    got, returns = estimate([7, 0, 0, 7, 7, 1, 7], [9, 0.1, 0.2, 9, 9, 0.3, 9], gamma=0.5, lam=0.5)
    assert got == pytest.approx([0, first, second, 0, 0, third, 0])
    assert returns == pytest.approx([0, first + 0.1, second + 0.2, 0, 0, 1.0, 0])


def test_lambda_of_one_judges_by_the_final_return_and_another_reply_is_discounted_once() -> None:
    got, returns = estimate([0, 0, 0.5, 0, 0, 1, 0], [0, 0.1, 0.2, 0, 0, 0.3, 0], gamma=1.0, lam=1.0)
    assert got == pytest.approx([0, 1.4, 1.3, 0, 0, 0.7, 0]) and returns == pytest.approx([0, 1.5, 1.5, 0, 0, 1.0, 0])
    _, returns = estimate([0, 0, 0.5, 0, 0, 1, 0], [0] * 7, gamma=1.0, lam=1.0, turn_discount=0.6)
    assert returns == pytest.approx([0, 1.1, 1.1, 0, 0, 1.0, 0])


Rows = list[list[float]]
"""One number per sampled token of each dialogue."""


class Talk:
    """A row of a batch as plain lists."""

    def __init__(self, batch: Batch, row: int) -> None:
        self.valid = bool(batch.valid_B[row])
        self.group = int(batch.group_ids_B[row])
        self.reward = float(batch.rewards_B[row])
        self.turn_rewards = [r for r in batch.turn_rewards_BK[row].tolist() if r == r] if self.valid else []
        self.where = [t for t, on in enumerate(batch.loss_mask_BT[row].tolist()) if on]
        self.turns = [int(batch.turn_ids_BT[row, t]) for t in self.where]
        ref_BT = batch.rollout_logprobs_BT if batch.ref_logprobs_BT is None else batch.ref_logprobs_BT
        self.kls = [float(batch.rollout_logprobs_BT[row, t] - ref_BT[row, t]) for t in self.where]

    def turn_return(self, k: int, discount: float) -> float:
        return sum(discount**j * reward for j, reward in enumerate(self.turn_rewards[k:]))


def batch_of(*, reference: bool = False) -> Batch:
    batch = random_talks(seed=0)
    noise_BT = torch.randn(batch.loss_mask_BT.shape, generator=torch.Generator().manual_seed(0)) * batch.loss_mask_BT
    return replace(batch, ref_logprobs_BT=batch.rollout_logprobs_BT + noise_BT) if reference else batch


def talks(batch: Batch) -> list[Talk]:
    return [Talk(batch, row) for row in range(batch.num_rollouts)]


def siblings(talk: Talk, among: list[Talk]) -> list[Talk]:
    return [other for other in among if other.valid and other.group == talk.group]


def by_token(batch: Batch, values_BT: torch.Tensor) -> Rows:
    """The values of the sampled tokens; all others must be 0."""
    assert not values_BT[~batch.loss_mask_BT].any()
    return [[float(values_BT[row, t]) for t in talk.where] for row, talk in enumerate(talks(batch))]


def check(config: PolicyLossConfig, batch: Batch, expected: Rows) -> None:
    got = by_token(batch, ALGORITHMS[config.kind](config).add_advantages(batch).advantages_BT)
    assert any(value for row in expected for value in row)
    for a, b in zip(got, expected, strict=True):
        assert a == pytest.approx(b, abs=2e-5)


def per_dialogue(everyone: list[Talk], score: Callable[[Talk, list[Talk]], float]) -> Rows:
    return [[score(talk, siblings(talk, everyone)) if talk.valid else 0.0] * len(talk.where) for talk in everyone]


def per_turn(everyone: list[Talk], score: Callable[[Talk, int, list[Talk]], float]) -> Rows:
    return [[score(talk, k, siblings(talk, everyone)) for k in talk.turns] for talk in everyone]


def whitened(rows: Rows, used: list[list[bool]] | None = None) -> Rows:
    used = used or [[True] * len(row) for row in rows]
    pool = [value for row, on in zip(rows, used, strict=True) for value, counts in zip(row, on, strict=True) if counts]
    center, spread = mean(pool), math.sqrt(stdev(pool) ** 2 + 1e-8)
    return [
        [(value - center) / spread if counts else 0.0 for value, counts in zip(row, on, strict=True)]
        for row, on in zip(rows, used, strict=True)
    ]


def mix(by_end: Rows, by_turn: Rows, credit: float) -> Rows:
    return [[(1 - credit) * a + credit * b for a, b in zip(x, y, strict=True)] for x, y in zip(by_end, by_turn, strict=True)]


def scaled(rows: Rows, by: float) -> Rows:
    return [[by * value for value in row] for row in rows]


def over_rms(rows: Rows) -> Rows:
    return scaled(rows, 1.0 / (math.sqrt(mean(value**2 for row in rows for value in row)) + 1e-6))


def rloo_end(talk: Talk, group: list[Talk]) -> float:
    others = [other.reward for other in group if other is not talk]
    return talk.reward - mean(others) if others else 0.0


def grpo_end(talk: Talk, group: list[Talk]) -> float:
    rewards = [other.reward for other in group]
    return (talk.reward - mean(rewards)) / (stdev(rewards) + 1e-6) if len(rewards) > 1 else 0.0


def baseline_end(talk: Talk, group: list[Talk]) -> float:
    return talk.reward - mean(other.reward for other in group) if len(group) > 1 else 0.0


def turn_score(*, discount: float = 0.6, leave_out: bool = False) -> Callable[[Talk, int, list[Talk]], float]:
    def score(talk: Talk, k: int, group: list[Talk]) -> float:
        reached = [other for other in group if len(other.turn_rewards) > k]
        compared = [other.turn_return(k, discount) for other in reached if not (leave_out and other is talk)]
        return talk.turn_return(k, discount) - mean(compared) if len(reached) > 1 else 0.0

    return score


def over_group_spread(talk: Talk, k: int, group: list[Talk]) -> float:
    """A turn's deviation over the unbiased one of all turns of the group that two siblings reached, each about its own mean."""
    score = turn_score()
    counts = [sum(len(each.turn_rewards) > j for each in group) for j in range(max(len(each.turn_rewards) for each in group))]
    reached = [(other, j) for other in group for j in range(len(other.turn_rewards)) if counts[j] > 1]
    free = sum(count - 1 for count in counts if count > 1)
    spread = math.sqrt(sum(score(other, j, group) ** 2 for other, j in reached) / free) if free else 0.0
    return score(talk, k, group) / (spread + 1e-6)


@pytest.mark.parametrize("credit", [0.0, 0.9])
@pytest.mark.parametrize("spread", Spread)
def test_grpo_and_dr_grpo_with_turn_credit_by_each_spread(credit: float, spread: Spread) -> None:
    everyone = talks(batch := batch_of())
    by_turn = per_turn(everyone, turn_score())
    expected = {
        Spread.GROUP: (per_dialogue(everyone, grpo_end), per_turn(everyone, over_group_spread)),
        Spread.BATCH: (over_rms(per_dialogue(everyone, baseline_end)), over_rms(by_turn)),
        # Ten points of emotion are a turn reward of 1 and a tenth of the final one.
        Spread.NONE: (per_dialogue(everyone, baseline_end), scaled(by_turn, 0.1)),
    }
    check(GrpoConfig(normalise_by=spread, turn_credit=credit), batch, mix(*expected[spread], credit))


@pytest.mark.parametrize("credit", [0.0, 0.4])
def test_rloo(credit: float) -> None:
    everyone = talks(batch := batch_of())
    by_turn = scaled(per_turn(everyone, turn_score(leave_out=True)), 0.1)
    check(RlooConfig(turn_credit=credit), batch, mix(per_dialogue(everyone, rloo_end), by_turn, credit))


def test_a_kl_in_the_reward_of_rloo_is_taken_off_whole_dialogues() -> None:
    everyone = talks(batch := batch_of(reference=True))
    for talk in everyone:
        talk.reward -= 0.05 * sum(talk.kls)
    check(RlooConfig(kl_coef=0.05, kl_in=KlPlace.REWARD), batch, per_dialogue(everyone, rloo_end))


@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
@pytest.mark.parametrize("credit", [0.0, 0.4])
@pytest.mark.parametrize("baseline", [False, True])
def test_reinforce_pp_with_and_without_a_groups_baseline(kl_coef: float, credit: float, baseline: bool) -> None:
    everyone = talks(batch := batch_of(reference=True))
    ends = per_dialogue(everyone, baseline_end if baseline else lambda talk, group: talk.reward)
    to_go = [[kl_coef * sum(talk.kls[i:]) for i in range(len(talk.where))] for talk in everyone]
    ends = [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(ends, to_go, strict=True)]
    compared = [[talk.valid and (not baseline or len(siblings(talk, everyone)) > 1)] * len(talk.where) for talk in everyone]
    # Of a turn its own tokens' KL is taken off, in the unit of turns; then turns are discounted and compared.
    for talk in everyone:
        for k in range(len(talk.turn_rewards)):
            talk.turn_rewards[k] -= kl_coef * 10 * sum(kl for kl, turn in zip(talk.kls, talk.turns, strict=True) if turn == k)
    by_turn = per_turn(everyone, turn_score() if baseline else lambda talk, k, group: talk.turn_return(k, 0.6))
    least = 2 if baseline else 1
    reached = [[sum(len(o.turn_rewards) > k for o in siblings(talk, everyone)) >= least for k in talk.turns] for talk in everyone]
    kl = {"kl_coef": kl_coef, "kl_in": KlPlace.REWARD} if kl_coef else {}
    config = ReinforcePPConfig(group_baseline=baseline, turn_credit=credit, **kl)
    check(config, batch, mix(whitened(ends, compared), whitened(by_turn, reached), credit))


def naive_gae(talk: Talk, values: list[float], config: PpoConfig) -> Rows:
    """Advantages and returns of one dialogue, by the sum over later tokens: A_t = sum_l (prod of g lam) delta_(t+l)."""
    num = len(talk.where)
    rewards = [-config.kl_coef * kl for kl in talk.kls]
    rewards[-1] += (1 - config.turn_credit) * talk.reward
    for k, change in enumerate(talk.turn_rewards):
        rewards[max(i for i in range(num) if talk.turns[i] == k)] += config.turn_credit * change / 10
    begins = [i + 1 < num and talk.turns[i + 1] > talk.turns[i] for i in range(num)]
    steps = [config.gamma * (config.turn_discount if new else 1.0) for new in begins]
    deltas = [rewards[i] + (steps[i] * values[i + 1] if i + 1 < num else 0.0) - values[i] for i in range(num)]
    chained = [sum(math.prod(config.lam * step for step in steps[i:j]) * deltas[j] for j in range(i, num)) for i in range(num)]
    return [chained, [a + v for a, v in zip(chained, values, strict=True)]]


@pytest.mark.parametrize(
    "settings",
    [
        {"lam": 0.0},
        {"gamma": 0.99, "lam": 0.95, "turn_credit": 0.7, "turn_discount": 0.6},
        {"lam": 0.95, "kl_coef": 0.05, "kl_in": KlPlace.REWARD},
    ],
)
def test_ppo_chains_over_one_dialogues_sampled_tokens(settings: dict[str, float]) -> None:
    config, batch = PpoConfig(**settings), batch_of(reference="kl_coef" in settings)
    # The critic's values of the user's tokens are of no weight.
    values_BT = torch.rand(batch.loss_mask_BT.shape, generator=torch.Generator().manual_seed(0))
    rows = [
        naive_gae(talk, [float(values_BT[row, t]) for t in talk.where], config) if talk.valid else [[], []]
        for row, talk in enumerate(talks(batch))
    ]
    batch = replace(batch, values_BT=values_BT)
    check(config, batch, whitened([chained for chained, _ in rows]))
    for got, (_, expected) in zip(by_token(batch, ALGORITHMS[config.kind](config).add_advantages(batch).returns_BT), rows, strict=True):
        assert got == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("config", [GrpoConfig, RlooConfig, ReinforcePPConfig])
@pytest.mark.parametrize("credit", [0.0, 0.5])
def test_a_broken_dialogue_is_in_no_baseline_and_teaches_nothing(config: type, credit: float) -> None:
    def row(reward: float, *, broken: bool = False):
        outcome = Outcome.ERROR if broken else Outcome.MAX_TURNS
        return rollout([5, 6, 7, 8], [0, 0, 1, 1], reward=reward, outcome=outcome, turn_rewards=[0.5, reward])

    settings = {"turn_credit": credit, **({"group_baseline": True} if config is ReinforcePPConfig else {})}
    algorithm, lost = ALGORITHMS[config.kind](config(**settings)), row(math.nan, broken=True)
    assert not algorithm.add_advantages(collate([group(row(0.9), lost)])).advantages_BT.any()
    among = algorithm.add_advantages(collate([group(row(0.9), lost, row(0.3)), group(row(0.7), lost)])).advantages_BT
    whole = algorithm.add_advantages(collate([group(row(0.9), row(0.3)), group(row(0.7))])).advantages_BT
    torch.testing.assert_close(among[[0, 2, 3]], whole)
    assert not among[[1, 4]].any()
