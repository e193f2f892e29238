"""Every estimator beside a naive loop over its published formula, written over dialogues, not tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, stdev

import pytest
import torch
from policy_factories import group, pack, random_talks, rollout

from policy.algorithms.algorithms import make_algorithm
from policy.batch import Batch
from policy.config import GrpoConfig, KlPlace, PpoConfig, ReinforcePPConfig, RlooConfig, Spread
from simulator.dialogue import Outcome

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
        reference_BT = batch.rollout_logprobs_BT if batch.reference_logprobs_BT is None else batch.reference_logprobs_BT
        self.kls = [float(batch.rollout_logprobs_BT[row, t] - reference_BT[row, t]) for t in self.where]

    def turn_return(self, k: int, discount: float) -> float:
        return sum(discount**j * reward for j, reward in enumerate(self.turn_rewards[k:]))


def with_reference(batch: Batch, *, seed: int) -> Batch:
    noise_BT = torch.randn(batch.loss_mask_BT.shape, generator=torch.Generator().manual_seed(seed))
    return replace(batch, reference_logprobs_BT=batch.rollout_logprobs_BT + noise_BT * batch.loss_mask_BT)


def talks(batch: Batch) -> list[Talk]:
    return [Talk(batch, row) for row in range(batch.num_rollouts)]


def siblings(talk: Talk, among: list[Talk]) -> list[Talk]:
    return [other for other in among if other.valid and other.group == talk.group]


def by_token(batch: Batch, values_BT: torch.Tensor) -> Rows:
    """What stands on the sampled tokens; everything else must be 0."""
    assert not values_BT[~batch.loss_mask_BT].any()
    return [[float(values_BT[row, t]) for t in talk.where] for row, talk in enumerate(talks(batch))]


def advantages(config: object, batch: Batch, values_BT: torch.Tensor | None = None) -> Rows:
    return by_token(batch, make_algorithm(config).targets(batch, values_BT).advantages_BT)


def check(got: Rows, expected: Rows) -> None:
    assert [len(row) for row in got] == [len(row) for row in expected]
    assert any(value for row in expected for value in row)
    for a, b in zip(got, expected, strict=True):
        assert a == pytest.approx(b, abs=2e-5)


def per_dialogue(batch: Batch, score: Callable[[Talk, list[Talk]], float]) -> Rows:
    everyone = talks(batch)
    return [[score(talk, siblings(talk, everyone)) if talk.valid else 0.0] * len(talk.where) for talk in everyone]


def per_turn(batch: Batch, score: Callable[[Talk, int, list[Talk]], float]) -> Rows:
    everyone = talks(batch)
    return [[score(talk, k, siblings(talk, everyone)) for k in talk.turns] for talk in everyone]


def whitened(rows: Rows, counts: Callable[[int], bool] = lambda row: True) -> Rows:
    pool = [value for i, row in enumerate(rows) if counts(i) for value in row]
    center, spread = mean(pool), math.sqrt(stdev(pool) ** 2 + 1e-8)
    return [[(value - center) / spread if counts(i) else 0.0 for value in row] for i, row in enumerate(rows)]


def mix(by_end: Rows, by_turn: Rows, credit: float) -> Rows:
    return [[(1 - credit) * a + credit * b for a, b in zip(x, y, strict=True)] for x, y in zip(by_end, by_turn, strict=True)]


def scaled(rows: Rows, by: float) -> Rows:
    return [[by * value for value in row] for row in rows]


def rloo_end(talk: Talk, group: list[Talk]) -> float:
    others = [other.reward for other in group if other is not talk]
    return talk.reward - mean(others) if others else 0.0


def grpo_end(talk: Talk, group: list[Talk]) -> float:
    rewards = [other.reward for other in group]
    return (talk.reward - mean(rewards)) / (stdev(rewards) + 1e-6) if len(rewards) > 1 else 0.0


def baseline_end(talk: Talk, group: list[Talk]) -> float:
    return talk.reward - mean(other.reward for other in group) if len(group) > 1 else 0.0


def turn_score(*, discount: float, leave_out: bool) -> Callable[[Talk, int, list[Talk]], float]:
    def score(talk: Talk, k: int, group: list[Talk]) -> float:
        reached = [other for other in group if len(other.turn_rewards) > k]
        compared = [other.turn_return(k, discount) for other in reached if not (leave_out and other is talk)]
        return talk.turn_return(k, discount) - mean(compared) if len(reached) > 1 else 0.0

    return score


@pytest.mark.parametrize("seed", range(5))
def test_grpo_and_dr_grpo(seed: int) -> None:
    batch = random_talks(seed=seed)
    check(advantages(GrpoConfig(), batch), per_dialogue(batch, grpo_end))
    check(advantages(GrpoConfig(normalise_by=Spread.NONE), batch), per_dialogue(batch, baseline_end))
    # Ten points of emotion are a turn reward of 1 and a tenth of the final one.
    by_turn = scaled(per_turn(batch, turn_score(discount=0.6, leave_out=False)), 0.1)
    got = advantages(GrpoConfig(normalise_by=Spread.NONE, turn_credit=0.7), batch)
    check(got, mix(per_dialogue(batch, baseline_end), by_turn, 0.7))


def over_rms(rows: Rows) -> Rows:
    rms = math.sqrt(mean(value**2 for row in rows for value in row))
    return scaled(rows, 1.0 / (rms + 1e-6))


def over_group_spread(talk: Talk, k: int, group: list[Talk]) -> float:
    """A turn's deviation over the unbiased one of all turns of the group that two siblings reached, each about its own mean."""
    score = turn_score(discount=0.6, leave_out=False)
    siblings = [sum(len(each.turn_rewards) > j for each in group) for j in range(max(len(each.turn_rewards) for each in group))]
    reached = [(other, j) for other in group for j in range(len(other.turn_rewards)) if siblings[j] > 1]
    free = sum(count - 1 for count in siblings if count > 1)
    spread = math.sqrt(sum(score(other, j, group) ** 2 for other, j in reached) / free) if free else 0.0
    return score(talk, k, group) / (spread + 1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("credit", [0.0, 0.4, 0.9, 1.0])
@pytest.mark.parametrize("spread", Spread)
def test_grpo_with_turn_credit_by_each_spread(seed: int, credit: float, spread: Spread) -> None:
    """The main job's own advantage among them: by the batch, with credit .9."""
    batch = random_talks(seed=seed)
    by_turn = per_turn(batch, turn_score(discount=0.6, leave_out=False))
    expected = {
        Spread.GROUP: (per_dialogue(batch, grpo_end), per_turn(batch, over_group_spread)),
        Spread.BATCH: (over_rms(per_dialogue(batch, baseline_end)), over_rms(by_turn)),
        Spread.NONE: (per_dialogue(batch, baseline_end), scaled(by_turn, 0.1)),
    }
    check(advantages(GrpoConfig(normalise_by=spread, turn_credit=credit), batch), mix(*expected[spread], credit))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("credit", [0.0, 0.4, 1.0])
def test_rloo(seed: int, credit: float) -> None:
    batch = random_talks(seed=seed)
    by_turn = scaled(per_turn(batch, turn_score(discount=0.5, leave_out=True)), 0.1)
    got = advantages(RlooConfig(turn_credit=credit, **({"turn_discount": 0.5} if credit else {})), batch)
    check(got, mix(per_dialogue(batch, rloo_end), by_turn, credit))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("credit", [0.0, 0.4, 1.0])
def test_reinforce_pp_without_a_baseline(seed: int, credit: float) -> None:
    batch = random_talks(seed=seed)
    by_end = whitened(per_dialogue(batch, lambda talk, group: talk.reward))
    by_turn = whitened(per_turn(batch, lambda talk, k, group: talk.turn_return(k, 0.6)))
    check(advantages(ReinforcePPConfig(turn_credit=credit), batch), mix(by_end, by_turn, credit))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("credit", [0.0, 0.4, 1.0])
def test_reinforce_pp_with_a_groups_baseline(seed: int, credit: float) -> None:
    batch = random_talks(seed=seed)
    everyone = talks(batch)
    by_end = whitened(per_dialogue(batch, baseline_end), lambda row: len(siblings(everyone[row], everyone)) > 1)

    score = turn_score(discount=0.6, leave_out=False)
    compared = [[sum(len(other.turn_rewards) > k for other in siblings(talk, everyone)) > 1 for k in talk.turns] for talk in everyone]
    raw = per_turn(batch, score)
    pool = [value for row, on in zip(raw, compared, strict=True) for value, used in zip(row, on, strict=True) if used]
    center, spread = mean(pool), math.sqrt(stdev(pool) ** 2 + 1e-8)
    by_turn = [
        [(value - center) / spread if used else 0.0 for value, used in zip(row, on, strict=True)]
        for row, on in zip(raw, compared, strict=True)
    ]
    check(advantages(ReinforcePPConfig(group_baseline=True, turn_credit=credit), batch), mix(by_end, by_turn, credit))


@pytest.mark.parametrize("seed", range(3))
def test_a_kl_in_the_reward_is_taken_off_where_each_algorithm_publishes_it(seed: int) -> None:
    batch, kl = with_reference(random_talks(seed=seed), seed=seed), {"kl_coef": 0.05, "kl_in": KlPlace.REWARD}

    def less(talk: Talk) -> float:
        return talk.reward - 0.05 * sum(talk.kls)

    def rloo(talk: Talk, group: list[Talk]) -> float:
        others = [less(other) for other in group if other is not talk]
        return less(talk) - mean(others) if others else 0.0

    check(advantages(RlooConfig(**kl), batch), per_dialogue(batch, rloo))
    to_go = [[talk.reward - 0.05 * sum(talk.kls[i:]) for i in range(len(talk.where))] for talk in talks(batch)]
    check(advantages(ReinforcePPConfig(**kl), batch), whitened(to_go))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("group_baseline", [False, True])
def test_a_kl_in_the_reward_of_reinforce_pp_with_turn_credit(seed: int, group_baseline: bool) -> None:
    batch = with_reference(random_talks(seed=seed), seed=seed)
    everyone = talks(batch)
    end = baseline_end if group_baseline else lambda talk, group: talk.reward
    counts = [talk.valid and (not group_baseline or len(siblings(talk, everyone)) > 1) for talk in everyone]
    to_go = [[0.05 * sum(talk.kls[i:]) for i in range(len(talk.where))] for talk in everyone]
    ends = [[a - b for a, b in zip(x, y, strict=True)] for x, y in zip(per_dialogue(batch, end), to_go, strict=True)]
    # Of a turn its own tokens' KL is taken off, in the unit of turns; then turns are discounted and compared.
    for talk in everyone:
        for k in range(len(talk.turn_rewards)):
            talk.turn_rewards[k] -= 0.05 * 10 * sum(kl for kl, turn in zip(talk.kls, talk.turns, strict=True) if turn == k)
    score = turn_score(discount=0.6, leave_out=False) if group_baseline else lambda talk, k, group: talk.turn_return(k, 0.6)
    raw = [[score(talk, k, siblings(talk, everyone)) for k in talk.turns] for talk in everyone]
    fewest = 2 if group_baseline else 1
    used = [[sum(len(o.turn_rewards) > k for o in siblings(talk, everyone)) >= fewest for k in talk.turns] for talk in everyone]
    pool = [value for row, on in zip(raw, used, strict=True) for value, counted in zip(row, on, strict=True) if counted]
    center, spread = mean(pool), math.sqrt(stdev(pool) ** 2 + 1e-8)
    by_turn = [
        [(value - center) / spread if counted else 0.0 for value, counted in zip(row, on, strict=True)]
        for row, on in zip(raw, used, strict=True)
    ]
    config = ReinforcePPConfig(group_baseline=group_baseline, turn_credit=0.4, kl_coef=0.05, kl_in=KlPlace.REWARD)
    check(advantages(config, batch), mix(whitened(ends, lambda row: counts[row]), by_turn, 0.4))


def naive_gae(talk: Talk, values: list[float], *, credit: float, gamma: float, lam: float, turn_discount: float, kl_coef: float) -> Rows:
    """Advantages and returns of one dialogue, by the sum over what follows: A_t = sum_l (prod of g lam) delta_(t+l)."""
    num = len(talk.where)
    rewards = [-kl_coef * kl for kl in talk.kls]
    rewards[-1] += (1 - credit) * talk.reward
    for k, change in enumerate(talk.turn_rewards):
        rewards[max(i for i in range(num) if talk.turns[i] == k)] += credit * change / 10
    steps = [gamma * (turn_discount if i + 1 < num and talk.turns[i + 1] > talk.turns[i] else 1.0) for i in range(num)]
    deltas = [rewards[i] + (steps[i] * values[i + 1] if i + 1 < num else 0.0) - values[i] for i in range(num)]
    advantages = [sum(math.prod(lam * step for step in steps[i:j]) * deltas[j] for j in range(i, num)) for i in range(num)]
    return [advantages, [a + v for a, v in zip(advantages, values, strict=True)]]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lam": 0.0},
        {"gamma": 0.97, "lam": 0.9},
        {"gamma": 0.99, "lam": 0.95, "turn_credit": 0.7, "turn_discount": 0.6},
        {"turn_credit": 1.0},
        {"lam": 0.95, "kl_coef": 0.05, "kl_in": KlPlace.REWARD},
    ],
)
def test_ppo_chains_over_one_dialogues_sampled_tokens(seed: int, settings: dict[str, float]) -> None:
    config = PpoConfig(**settings)
    batch = random_talks(seed=seed) if config.kl_coef == 0 else with_reference(random_talks(seed=seed), seed=seed)
    values_BT = torch.rand(batch.loss_mask_BT.shape, generator=torch.Generator().manual_seed(seed)) * batch.loss_mask_BT
    plain, returns = [], []
    for row, talk in enumerate(talks(batch)):
        if not talk.valid:
            plain, returns = [*plain, []], [*returns, []]
            continue
        values = [float(values_BT[row, t]) for t in talk.where]
        names = {"gamma": config.gamma, "lam": config.lam, "turn_discount": config.turn_discount, "kl_coef": config.kl_coef}
        a, r = naive_gae(talk, values, credit=config.turn_credit, **names)
        plain, returns = [*plain, a], [*returns, r]
    targets = make_algorithm(config).targets(batch, values_BT)
    check(by_token(batch, targets.returns_BT), returns)
    check(by_token(batch, targets.advantages_BT), whitened(plain))


@pytest.mark.parametrize("config", [GrpoConfig(), RlooConfig(), ReinforcePPConfig(group_baseline=True)])
@pytest.mark.parametrize("credit", [0.0, 0.5])
def test_a_group_with_one_survivor_yields_no_advantage_and_a_broken_dialogue_is_in_no_baseline(config: object, credit: float) -> None:
    def row(reward: float, *, broken: bool = False):
        outcome = Outcome.ERROR if broken else Outcome.MAX_TURNS
        return rollout([5, 6, 7, 8], [0, 0, 1, 1], reward=reward, outcome=outcome, turn_rewards=[0.5, reward])

    config.turn_credit = credit
    alone = pack([group(row(0.9), row(math.nan, broken=True))])
    assert not make_algorithm(config).targets(alone).advantages_BT.any()
    among = pack([group(row(0.9), row(math.nan, broken=True), row(0.3)), group(row(0.7), row(math.nan, broken=True))])
    without = pack([group(row(0.9), row(0.3))])
    got, expected = (make_algorithm(config).targets(batch).advantages_BT for batch in (among, without))
    assert torch.equal(got[[0, 2]], expected)
    assert not got[[1, 3, 4]].any()


def test_reinforce_pp_alone_in_a_batch_has_nothing_to_compare_with() -> None:
    lone = pack([group(rollout([5, 6, 7], [0, 1, 1], reward=0.9))])
    assert not make_algorithm(ReinforcePPConfig()).targets(lone).advantages_BT.any()


@pytest.mark.parametrize("config", [GrpoConfig(), RlooConfig(), ReinforcePPConfig(), ReinforcePPConfig(group_baseline=True), PpoConfig()])
def test_nothing_at_all_to_learn_from_is_no_error(config: object) -> None:
    config.turn_credit = 0.5
    batch = pack([])
    assert make_algorithm(config).targets(batch, torch.zeros(batch.loss_mask_BT.shape)).advantages_BT.shape == batch.loss_mask_BT.shape
