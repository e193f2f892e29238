"""Toy students: exact policy-gradient learners of a few numbers, whose success at every (family, strictness) is known in closed form.

A student plays the groups that came back, learns by A * d log pi / d theta with A = reward - mean of the group's survivors, and is examined
exactly. Strictness d is in [0, 1]; sigma(x) = 1 / (1 + exp(-x)); N groups, G rollouts in each, F families.

Source: constants are those of a published comparison unless they are called ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from curriculum.signals import reward_density

GRID = np.linspace(0.0, 1.0, 11)  # strictness at which students are examined


@dataclass(frozen=True)
class Batch:
    """The groups of one update."""

    family_N: np.ndarray
    strictness_N: np.ndarray
    rewards_NG: np.ndarray
    """In [0, 1]; NaN where a rollout was lost on the way."""
    successes_NG: np.ndarray
    """bool; meaningless where the reward is NaN."""
    choices_NG: np.ndarray
    """Choices of the policy, in the student's own terms."""

    @property
    def came_N(self) -> np.ndarray:
        """[N] whether any rollout of the group came back."""
        return ~np.isnan(self.rewards_NG).all(axis=1)


@dataclass
class Outages:
    """Simulators that fail for a while, in outages of heavy-tailed length; one instance a run.

    An outage starts with probability `start_prob` at each update and lasts ceil(Pareto(`tail`)) updates, at most `longest`. While it lasts
    each group is hit with probability `hit_prob`; a hit group, with equal chances, never returns, keeps one survivor, or loses half of its
    rollouts. The constants are ours: 23 % of the updates lie in an outage, and one run of 200 in three has one of 20 updates or more.
    """

    start_prob: float = 0.06
    tail: float = 1.1
    longest: int = 50
    hit_prob: float = 0.8
    expire_after: int = 10
    """Updates after which a lost group is given up."""
    left: int = 0

    def strike(self, batch: Batch, rng: np.random.Generator) -> Batch:
        """The next update's batch, NaN for every rollout lost; draws equally many random numbers whether there is an outage or not."""
        starts, length = rng.random(2)
        hits_N, fates_N = rng.random(len(batch.family_N)) < self.hit_prob, rng.integers(1, 4, len(batch.family_N))
        if self.left > 0:
            self.left -= 1
        elif starts < self.start_prob:
            # Inverse of the Pareto tail P(X > x) = x^-tail.
            self.left = min(math.ceil((1.0 - length) ** (-1.0 / self.tail)), self.longest)
        rewards_NG = batch.rewards_NG.copy()
        if self.left > 0:
            rewards_NG[hits_N & (fates_N == 1)] = np.nan
            rewards_NG[hits_N & (fates_N == 2), 1:] = np.nan
            rewards_NG[hits_N & (fates_N == 3), ::2] = np.nan
        return replace(batch, rewards_NG=rewards_NG)


@dataclass
class Student:
    """Base of all students; a fresh one is made for each run."""

    num_updates: int = 200
    delay: int = 0
    """Updates between a task's issue and its rollout, from which student and teacher learn at once."""
    num_groups: int = 32
    outages: Outages | None = None
    update: int = 0

    families: ClassVar[Sequence[str]] = ("dialogue",)
    noise: ClassVar[frozenset[str]] = frozenset()  # families whose reward is independent of the policy
    group_size: ClassVar[int] = 8
    by_strictness: ClassVar[bool] = True
    """Whether `scores` runs from the easiest strictness to the hardest; otherwise it is by learnable family."""
    watched: ClassVar[bool] = False  # whether it can collapse, so that alarms are among its figures

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        """Rolls out one group per row with the present policy; the number of random draws depends on the shape alone."""
        raise NotImplementedError

    def improve(self, batch: Batch) -> None:
        """One policy-gradient step, per rollout that was issued, lost ones included."""

    def learn(self, batch: Batch) -> None:
        self.improve(batch)
        self.update += 1

    def scores(self) -> np.ndarray:
        """Exact present success, whose mean is the score and whose minimum the worst cell."""
        raise NotImplementedError

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        """[N] exact entropy of the policy's choice in nats; NaN where the policy has no say."""
        raise NotImplementedError

    def frontier(self) -> np.ndarray | None:
        """[F] strictness that a perfect tracker would issue now; None where the yardstick is learning."""
        return None


def sigmoid(x: np.ndarray) -> np.ndarray:
    """The logistic function."""
    return 1.0 / (1.0 + np.exp(-x))


def bernoulli_entropy(p: np.ndarray) -> np.ndarray:
    """Entropy of a coin with success probability `p`, nats."""
    safe = np.clip(p, 1e-12, 1.0 - 1e-12)
    return -safe * np.log(safe) - (1.0 - safe) * np.log1p(-safe)


def advantages(rewards_NG: np.ndarray) -> np.ndarray:
    """[N, G] reward less the mean of the group's survivors; 0 for broken rollouts and for groups with fewer than two survivors."""
    alive_NG = ~np.isnan(rewards_NG)
    if alive_NG.all():
        return rewards_NG - rewards_NG.mean(axis=1, keepdims=True)
    counts_N1 = alive_NG.sum(axis=1, keepdims=True)
    means_N1 = np.nansum(rewards_NG, axis=1, keepdims=True) / np.maximum(counts_N1, 1)
    return np.where(alive_NG & (counts_N1 >= 2), rewards_NG - means_N1, 0.0)


@dataclass
class SeveralFamilies(Student):
    """Families that can be learned, p_f = sigma(theta_f - slope d), then families of constant success (`constant`)."""

    theta_F: np.ndarray = field(default_factory=lambda: np.zeros(0))

    constant: ClassVar[Mapping[str, float]] = {}
    slope: ClassVar[float] = 8.0
    by_strictness: ClassVar[bool] = False

    def skill(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        """[N] probability of success."""
        constant = list(self.constant.values())
        logit_N = np.append(self.theta_F, np.zeros(len(constant)))[family_N] - self.slope * strictness_N
        constant_N = np.append(np.full(len(self.theta_F), np.nan), constant)[family_N]
        return np.where(np.isnan(constant_N), sigmoid(logit_N), constant_N)

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        actions_NG = rng.random((len(strictness_N), group_size)) < self.skill(family_N, strictness_N)[:, None]
        return Batch(family_N, strictness_N, actions_NG.astype(float), actions_NG, actions_NG)

    def gradient(self, batch: Batch) -> np.ndarray:
        """[F] sum of A (a - p) over the rollouts of each learnable family, per rollout of the whole batch."""
        score_NG = batch.choices_NG - self.skill(batch.family_N, batch.strictness_N)[:, None]
        steps_N = (advantages(batch.rewards_NG) * score_NG).sum(axis=1) / batch.rewards_NG.size
        return np.bincount(batch.family_N, weights=steps_N, minlength=len(self.families))[: len(self.theta_F)]

    def scores(self) -> np.ndarray:
        """[F] success of each learnable family, mean over the grid of strictness."""
        return sigmoid(self.theta_F[:, None] - self.slope * GRID).mean(axis=1)

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        entropy_N = bernoulli_entropy(self.skill(family_N, strictness_N))
        return np.where(family_N < len(self.theta_F), entropy_N, np.nan)


@dataclass
class NoiseFamilies(SeveralFamilies):
    """S5: strictness is without effect, families differ. 200 updates; the score is the mean over the four that can be learned.

    p_f = sigma(z_f), z from (0.5, -0.7, -2, -3.5); z_f += 0.9 (g_f + 0.35 g_(f-1)), g the gradient per rollout of the batch: learning in
    one family helps the next. Further families are noise (p = 0.5), impossible (0) and mastered (0.99).
    """

    theta_F: np.ndarray = field(default_factory=lambda: np.array([0.5, -0.7, -2.0, -3.5]))

    families: ClassVar[Sequence[str]] = ("chain1", "chain2", "chain3", "chain4", "noise", "impossible", "mastered")
    noise: ClassVar[frozenset[str]] = frozenset({"noise"})
    constant: ClassVar[Mapping[str, float]] = {"noise": 0.5, "impossible": 0.0, "mastered": 0.99}
    slope: ClassVar[float] = 0.0

    def improve(self, batch: Batch) -> None:
        gradient_F = self.gradient(batch)
        self.theta_F = self.theta_F + 0.9 * (gradient_F + 0.35 * np.append(0.0, gradient_F[:-1]))


@dataclass
class StrictFamilies(SeveralFamilies):
    """S6: families with a strictness each. 300 updates; the score is the mean over the four that can be learned.

    p_f = sigma(theta_f - 8 d), theta from theta0 = (1.5, 0.5, -0.5, -2); with w_f the share of groups and lr_f = 1.2 (1.6, 1.1, 1.1, 0.8),
    theta += (0.9 I + 0.1) (lr g) - 0.003 (theta - theta0) (1 - min(1, 4 w)). Further families are noise (p = 0.5) and impossible (0).
    """

    num_updates: int = 300
    theta_F: np.ndarray = field(default_factory=lambda: np.array([1.5, 0.5, -0.5, -2.0]))

    families: ClassVar[Sequence[str]] = ("quick", "steady", "middling", "late", "noise", "impossible")
    noise: ClassVar[frozenset[str]] = frozenset({"noise"})
    constant: ClassVar[Mapping[str, float]] = {"noise": 0.5, "impossible": 0.0}
    rates_F: ClassVar[np.ndarray] = 1.2 * np.array([1.6, 1.1, 1.1, 0.8])

    def __post_init__(self) -> None:
        self.start_F = self.theta_F.copy()

    def improve(self, batch: Batch) -> None:
        steps_F = self.rates_F * self.gradient(batch)
        share_F = np.bincount(batch.family_N, weights=batch.came_N, minlength=6)[:4] / len(batch.family_N)
        fading_F = 0.003 * (self.theta_F - self.start_F) * (1.0 - np.minimum(1.0, 4.0 * share_F))
        self.theta_F = self.theta_F + (1.0 - 0.1) * steps_F + 0.1 * steps_F.sum() - fading_F


@dataclass
class FewGroups(SeveralFamilies):
    """S7: 24 families whose frontiers rise without learning, and only 6 (50 updates) or 8 (200) groups an update.

    p_f = sigma(8 (c_f - d)), c_f = 0.15 + 0.55 t/T + o_f, o_f ~ Normal(0, 0.15). The yardstick is the distance of each task issued from
    the strictness at which its family succeeds with share 0.45.
    """

    num_updates: int = 50
    num_groups: int = 6
    offset_F: np.ndarray = field(default_factory=lambda: np.zeros(24))

    families: ClassVar[Sequence[str]] = tuple(f"family{i:02d}" for i in range(24))

    def __post_init__(self) -> None:
        self.theta_F = self.slope * (0.15 + 0.55 * self.update / self.num_updates + self.offset_F)

    def learn(self, batch: Batch) -> None:
        super().learn(batch)
        self.__post_init__()

    def frontier(self) -> np.ndarray | None:
        return np.clip((self.theta_F - np.log(0.45 / 0.55)) / self.slope, 0.0, 1.0)


@dataclass
class OneFamily(Student):
    """An action a ~ Bernoulli(skill(d)) that is paid with probability pay(d); 32 groups of 8 an update, examined at 11 strictnesses."""

    def skill(self, strictness: np.ndarray) -> np.ndarray:
        """Probability of the right action."""
        raise NotImplementedError

    def pay(self, strictness: np.ndarray) -> np.ndarray:
        """Probability that the right action is rewarded."""
        return np.ones_like(strictness)

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        shape = (len(strictness_N), group_size)
        actions_NG = rng.random(shape) < self.skill(strictness_N)[:, None]
        paid_NG = actions_NG & (rng.random(shape) < self.pay(strictness_N)[:, None])
        return Batch(family_N, strictness_N, paid_NG.astype(float), paid_NG, actions_NG)

    def scores(self) -> np.ndarray:
        return self.pay(GRID) * self.skill(GRID)

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        return bernoulli_entropy(self.skill(strictness_N))


@dataclass
class Improving(OneFamily):
    """S2: p = c sigma(theta - 8 d), theta += lr * mean(A (a - sigma)), from theta = 1 with lr 0.18, c = 1. 200 updates.

    Slow: lr 0.06. Noisy ceiling: c = 0.85, the pay of the right action.
    S1: never learns (lr 0, theta 4); the yardstick is its frontier (p = 0.5), at d = 0.5. 150 updates, 300 when delayed.
    Drift: S1 whose users soften: d acts as d - 0.2 t/T, so that the frontier rises from 0.5 to 0.7 without any learning.
    Non-monotone: S2 with c(d) = 1 - 0.5 exp(-((d - 0.3) / 0.1)^2), a simulator that plays one middling strictness badly; constants ours.
    """

    theta: float = 1.0
    lr: float = 0.18
    ceiling: float = 1.0
    drift: float = 0.0
    dip: float = 0.0

    slope: ClassVar[float] = 8.0
    num_turns: ClassVar[int] = 1

    @property
    def shift(self) -> float:
        """By how much users are softer than commanded now, in strictness."""
        return self.drift * self.update / self.num_updates

    def skill(self, strictness: np.ndarray) -> np.ndarray:
        return sigmoid(self.theta - self.slope * (strictness - self.shift))

    def pay(self, strictness: np.ndarray) -> np.ndarray:
        return self.ceiling * (1.0 - self.dip * np.exp(-(((strictness - 0.3) / 0.1) ** 2)))

    def improve(self, batch: Batch) -> None:
        score_NG = batch.choices_NG - self.num_turns * self.skill(batch.strictness_N)[:, None]
        self.theta += self.lr * float(np.sum(advantages(batch.rewards_NG) * score_NG)) / batch.rewards_NG.size

    def frontier(self) -> np.ndarray | None:
        """[1] d at which p = 0.5, in commanded strictness, where the student never learns."""
        return None if self.lr else np.array([self.theta / self.slope + self.shift])


@dataclass
class Narrow(Improving):
    """S9: S2 whose window is 0.1 wide, p = sigma(theta - 40 d) from theta = 4 with lr 0.75; it moves by 0.8 if it is practised throughout.

    p lies between 0.12 and 0.88 for strictness within 0.05 of theta / 40: off it a reward of 0 or 1 says nothing. Constants ours.
    """

    theta: float = 4.0
    lr: float = 0.75

    slope: ClassVar[float] = 40.0


@dataclass
class Spent(Improving):
    """S8: S2 that learns by its entropy H, which practice without reward density spends: easing too late is fatal.

    p = sigma(theta - 8 d), theta += 0.3 H mean(A (a - p)) from theta = 0; H *= 1 - 0.03 (1 - min(1, density)) from H = 1 nat, density
    the batch's reward density. Nothing brings entropy back. Constants ours.
    """

    theta: float = 0.0
    lr: float = 0.3
    reserve: float = 1.0
    """H, nats."""

    watched: ClassVar[bool] = True

    def improve(self, batch: Batch) -> None:
        before = self.theta
        super().improve(batch)
        self.theta = before + self.reserve * (self.theta - before)
        density = reward_density(batch.rewards_NG)
        self.reserve *= 1.0 - 0.03 * (1.0 - min(1.0, density if density == density else 0.0))

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        return np.full(len(strictness_N), self.reserve)


@dataclass
class NoisyStrict(Improving):
    """S10: S2 whose users reward the more at random the stricter they are: r = clip(a + e, 0, 1), e ~ Normal(0, d^2), success r >= 0.7.

    Among strict users failures alone vary by two thirds of what even odds do among lenient ones. Scores are those of S2. Constants ours.
    """

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        batch = super().play(family_N, strictness_N, group_size, rng)
        noise_NG = strictness_N[:, None] * rng.standard_normal(batch.rewards_NG.shape)
        rewards_NG = np.clip(batch.rewards_NG + noise_NG, 0.0, 1.0)
        return replace(batch, rewards_NG=rewards_NG, successes_NG=rewards_NG >= 0.7)


@dataclass
class Dense(Improving):
    """S2 in dialogues of 8 turns: each is good with p = sigma(theta - 8 d), reward = share of good turns, success = reward >= 0.7.

    The expected step is that of S2, while rewards vary eight times less; scores are mean rewards. Eight turns are ours.
    """

    num_turns: ClassVar[int] = 8

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        """Choices are numbers of good turns."""
        turns_NGT = rng.random((len(strictness_N), group_size, self.num_turns)) < self.skill(strictness_N)[:, None, None]
        good_NG = turns_NGT.sum(axis=2)
        rewards_NG = good_NG / self.num_turns
        return Batch(family_N, strictness_N, rewards_NG, rewards_NG >= 0.7, good_NG)


@dataclass
class Forgetting(OneFamily):
    """S3: ten nodes along strictness that help their neighbours and fade unless practised. 300 updates; examined at the nodes.

    p = sigma(z_k), k = floor(10 d), z0_k = 2 - 8 x_k at x_k = (k + 0.5) / 10, and with K_kj = exp(-(x_k - x_j)^2 / (2 * 0.12^2)), g_k the
    gradient of the rollouts at node k (sum of A (a - p) over all rollouts' number) and w_k the share of groups there:
    z_k += 1.2 (K g)_k - 0.02 (z_k - z0_k) (1 - min(1, (K w)_k)).
    """

    num_updates: int = 300

    watched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        middles_K = (np.arange(10) + 0.5) / 10.0
        self.z_K = 2.0 - 8.0 * middles_K
        self.start_K = self.z_K.copy()
        self.kernel_KK = np.exp(-0.5 * ((middles_K[:, None] - middles_K) / 0.12) ** 2)

    def node(self, strictness: np.ndarray) -> np.ndarray:
        return np.minimum((strictness * 10).astype(int), 9)

    def skill(self, strictness: np.ndarray) -> np.ndarray:
        return sigmoid(self.z_K[self.node(strictness)])

    def improve(self, batch: Batch) -> None:
        node_N = self.node(batch.strictness_N)
        score_NG = batch.choices_NG - self.skill(batch.strictness_N)[:, None]
        steps_N = (advantages(batch.rewards_NG) * score_NG).sum(axis=1) / batch.rewards_NG.size
        gradient_K = np.bincount(node_N, weights=steps_N, minlength=10)
        share_K = np.bincount(node_N, weights=batch.came_N, minlength=10) / len(node_N)
        uncovered_K = 1.0 - np.minimum(1.0, self.kernel_KK @ share_K)
        self.z_K = self.z_K + 1.2 * (self.kernel_KK @ gradient_K) - 0.02 * (self.z_K - self.start_K) * uncovered_K

    def scores(self) -> np.ndarray:
        return sigmoid(self.z_K)


@dataclass
class CollapseProne(OneFamily):
    """S4: a softmax over three strategies, the first a shortcut that pays best with lenient users and not at all with strict ones.

    p_m(d) = kappa h_m sigma(9 (c_m - d)), h = (1, 0.6, 0.8), c = (0.45, 0.6, 0.95); pi = softmax(u), u from (0, 0, -0.5);
    u += 2.5 mean(A (onehot(m) - pi)); kappa from 0.45 grows by 0.02 mean(A r) / 0.2 up to 1. 300 updates.
    """

    num_updates: int = 300
    kappa: float = 0.45
    u_M: np.ndarray = field(default_factory=lambda: np.array([0.0, 0.0, -0.5]))

    heights_M: ClassVar[np.ndarray] = np.array([1.0, 0.6, 0.8])
    centres_M: ClassVar[np.ndarray] = np.array([0.45, 0.6, 0.95])
    watched: ClassVar[bool] = True

    def strategies(self) -> np.ndarray:
        """[M] probability of each strategy."""
        weights_M = np.exp(self.u_M - self.u_M.max())
        return weights_M / weights_M.sum()

    def success(self, strictness_N: np.ndarray) -> np.ndarray:
        """[N, M] success of each strategy at each strictness."""
        return self.kappa * self.heights_M * sigmoid(9.0 * (self.centres_M - strictness_N[:, None]))

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        """Choices are indices of strategies."""
        shape = (len(strictness_N), group_size)
        chosen_NG = np.searchsorted(np.cumsum(self.strategies())[:-1], rng.random(shape), side="right")
        paid_NG = rng.random(shape) < np.take_along_axis(self.success(strictness_N), chosen_NG, axis=1)
        return Batch(family_N, strictness_N, paid_NG.astype(float), paid_NG, chosen_NG)

    def improve(self, batch: Batch) -> None:
        advantages_NG = advantages(batch.rewards_NG)
        by_strategy_M = np.bincount(batch.choices_NG.ravel(), weights=advantages_NG.ravel(), minlength=len(self.u_M))
        # The advantages of a group sum to 0, so the baseline -pi of the score adds nothing.
        self.u_M = self.u_M + 2.5 * by_strategy_M / batch.rewards_NG.size
        energy = float(np.nansum(advantages_NG * batch.rewards_NG)) / batch.rewards_NG.size
        self.kappa = min(1.0, self.kappa + 0.02 * energy / 0.2)

    def scores(self) -> np.ndarray:
        return self.success(GRID) @ self.strategies()

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        strategies_M = self.strategies()
        return np.full(len(strictness_N), float(-np.sum(strategies_M * np.log(strategies_M))))


STUDENTS: dict[str, Callable[[np.random.Generator], Student]] = {
    "S1_stationary": lambda rng: Improving(theta=4.0, lr=0.0, num_updates=150),
    "S1_delay2": lambda rng: Improving(theta=4.0, lr=0.0, num_updates=300, delay=2),
    "S1_delay8": lambda rng: Improving(theta=4.0, lr=0.0, num_updates=300, delay=8),
    "S1_delay16": lambda rng: Improving(theta=4.0, lr=0.0, num_updates=300, delay=16),
    "S2_improving": lambda rng: Improving(),
    "S2_slow": lambda rng: Improving(lr=0.06),
    "S2_noisy_ceiling": lambda rng: Improving(ceiling=0.85),
    "S2_delay16": lambda rng: Improving(delay=16),
    "S3_forgetting": lambda rng: Forgetting(),
    "S4_collapse": lambda rng: CollapseProne(),
    "S5_noise_families": lambda rng: NoiseFamilies(),
    "S6_families": lambda rng: StrictFamilies(),
    "S6_delay8": lambda rng: StrictFamilies(delay=8),
    "S7_few_groups_50": lambda rng: FewGroups(offset_F=rng.normal(0.0, 0.15, 24)),
    "S7_few_groups_200": lambda rng: FewGroups(num_groups=8, num_updates=200, offset_F=rng.normal(0.0, 0.15, 24)),
    "S8_spent": lambda rng: Spent(),
    "S9_narrow": lambda rng: Narrow(),
    "S10_noisy_strict": lambda rng: NoisyStrict(),
    "outages": lambda rng: Improving(outages=Outages()),
    "non_monotone": lambda rng: Improving(dip=0.5),
    "dense": lambda rng: Dense(),
    "drift": lambda rng: Improving(theta=4.0, lr=0.0, num_updates=300, drift=0.2),
}
"""Students by name; the generator draws the constants that a student leaves to chance."""
