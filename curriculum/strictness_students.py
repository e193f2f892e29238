"""Toy students of one family of tasks: stationary, improving, forgetting, prone to collapse, and some whose users misbehave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from curriculum.toy import GRID, Batch, Student, advantages, bernoulli_entropy, sigmoid


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
        """Actions, paid or not."""
        shape = (len(strictness_N), group_size)
        actions_NG = rng.random(shape) < self.skill(strictness_N)[:, None]
        paid_NG = actions_NG & (rng.random(shape) < self.pay(strictness_N)[:, None])
        return Batch(family_N, strictness_N, paid_NG.astype(float), paid_NG, actions_NG)

    def scores(self) -> np.ndarray:
        """Success on the grid of 11 points."""
        return self.pay(GRID) * self.skill(GRID)

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        """Of the action."""
        return bernoulli_entropy(self.skill(strictness_N))


@dataclass
class Improving(OneFamily):
    """S2: p = c sigma(theta - 8 d), theta += lr * mean(A (a - sigma)), from theta = 1 with lr .18, c = 1. 200 updates.

    Slow: lr .06. Noisy ceiling: c = .85, what the right action is paid with.
    """

    theta: float = 1.0
    lr: float = 0.18
    ceiling: float = 1.0

    slope: ClassVar[float] = 8.0

    def skill(self, strictness: np.ndarray) -> np.ndarray:
        """sigma(theta - 8 d)."""
        return sigmoid(self.theta - self.slope * strictness)

    def pay(self, strictness: np.ndarray) -> np.ndarray:
        """c, whatever the strictness."""
        return np.full_like(strictness, self.ceiling)

    def improve(self, batch: Batch) -> None:
        """One step of theta."""
        score_NG = batch.choices_NG - self.skill(batch.strictness_N)[:, None]
        self.theta += self.lr * float(np.sum(advantages(batch.rewards_NG) * score_NG)) / batch.rewards_NG.size


@dataclass
class Stationary(Improving):
    """S1: p = sigma(4 - 8 d), never learns; the frontier (p = .5) lies at d = .5. 150 updates, 300 when delayed."""

    theta: float = 4.0
    lr: float = 0.0
    num_updates: int = 150

    def frontier(self) -> np.ndarray | None:
        """d at which p = .5."""
        return np.array([self.theta / self.slope])


@dataclass
class Drifting(Stationary):
    """S1 whose users soften: strictness d acts as d - .2 t/T, so that the frontier (p = .5) rises from .5 to .7 without any learning.

    300 updates.
    """

    num_updates: int = 300
    drift: float = 0.2

    @property
    def shift(self) -> float:
        """By how much users are softer than commanded now."""
        return self.drift * self.update / self.num_updates

    def skill(self, strictness: np.ndarray) -> np.ndarray:
        """At the strictness that the user really has."""
        return super().skill(strictness - self.shift)

    def frontier(self) -> np.ndarray | None:
        """d at which p = .5, in commanded strictness."""
        return np.array([self.theta / self.slope + self.shift])


@dataclass
class NonMonotone(Improving):
    """S2 with c(d) = 1 - .5 exp(-((d - .3) / .1)^2): once the agent is able, users at .3 are harder to please than those at .45.

    Stands for a simulator that plays one middling strictness badly. The constants are ours: at the bottom an able agent still gets .5.
    """

    depth: float = 0.5
    dip: float = 0.3
    width: float = 0.1

    def pay(self, strictness: np.ndarray) -> np.ndarray:
        """c(d) with its dip."""
        return 1.0 - self.depth * np.exp(-(((strictness - self.dip) / self.width) ** 2))


@dataclass
class Dense(Improving):
    """S2 in dialogues of 8 turns: each is good with p = sigma(theta - 8 d), reward = share of good turns, success = reward >= .7.

    d log pi / d theta = sum over turns of (a - p), so the expected step is that of S2, while rewards vary eight times less. Scores are
    mean rewards. Eight turns are ours; .7 is Attune's final emotion of 70.
    """

    num_turns: int = 8
    success_reward: float = 0.7

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        """Numbers of good turns."""
        turns_NGT = rng.random((len(strictness_N), group_size, self.num_turns)) < self.skill(strictness_N)[:, None, None]
        good_NG = turns_NGT.sum(axis=2)
        rewards_NG = good_NG / self.num_turns
        return Batch(family_N, strictness_N, rewards_NG, rewards_NG >= self.success_reward, good_NG)

    def improve(self, batch: Batch) -> None:
        """One step of theta."""
        expected_N = self.num_turns * self.skill(batch.strictness_N)
        steps_NG = advantages(batch.rewards_NG) * (batch.choices_NG - expected_N[:, None])
        self.theta += self.lr * float(np.sum(steps_NG)) / batch.rewards_NG.size


NODES = (np.arange(10) + 0.5) / 10.0
"""Strictness at the middle of each of S3's nodes."""


@dataclass
class Forgetting(OneFamily):
    """S3: ten nodes along strictness that help their neighbours and fade unless practised. 300 updates; examined at the nodes.

    p = sigma(z_k), k = floor(10 d), z0_k = 2 - 8 x_k at x_k = (k + .5) / 10, and with K_kj = exp(-(x_k - x_j)^2 / (2 * .12^2)), g_k the
    gradient of the rollouts at node k (sum of A (a - p) over all rollouts' number) and w_k the share of groups there:
    z_k += 1.2 (K g)_k - .02 (z_k - z0_k) (1 - min(1, (K w)_k)).
    """

    num_updates: int = 300
    lr: float = 1.2
    fading: float = 0.02
    reach: float = 0.12
    z_K: np.ndarray = field(default_factory=lambda: 2.0 - 8.0 * NODES)

    watched: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.start_K = self.z_K.copy()
        self.kernel_KK = np.exp(-0.5 * ((NODES[:, None] - NODES) / self.reach) ** 2)

    def node(self, strictness: np.ndarray) -> np.ndarray:
        """k of each strictness."""
        return np.minimum((strictness * len(NODES)).astype(int), len(NODES) - 1)

    def skill(self, strictness: np.ndarray) -> np.ndarray:
        """sigma(z) of the node."""
        return sigmoid(self.z_K[self.node(strictness)])

    def improve(self, batch: Batch) -> None:
        """One step of the nodes practised and their neighbours, and of forgetting elsewhere."""
        node_N = self.node(batch.strictness_N)
        score_NG = batch.choices_NG - self.skill(batch.strictness_N)[:, None]
        steps_N = (advantages(batch.rewards_NG) * score_NG).sum(axis=1) / batch.rewards_NG.size
        gradient_K = np.bincount(node_N, weights=steps_N, minlength=len(NODES))
        share_K = np.bincount(node_N, weights=batch.came_N, minlength=len(NODES)) / len(node_N)
        uncovered_K = 1.0 - np.minimum(1.0, self.kernel_KK @ share_K)
        self.z_K = self.z_K + self.lr * (self.kernel_KK @ gradient_K) - self.fading * (self.z_K - self.start_K) * uncovered_K

    def scores(self) -> np.ndarray:
        """Success at the ten nodes."""
        return sigmoid(self.z_K)


@dataclass
class CollapseProne(OneFamily):
    """S4: a softmax over three strategies, the first a shortcut that pays best with lenient users and not at all with strict ones.

    p_m(d) = kappa h_m sigma(9 (c_m - d)), h = (1, .6, .8), c = (.45, .6, .95); pi = softmax(u), u from (0, 0, -.5);
    u += 2.5 mean(A (onehot(m) - pi)); kappa from .45 grows by .02 mean(A r) / .2 up to 1. 300 updates.
    """

    num_updates: int = 300
    lr: float = 2.5
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
        """Strategies, paid or not."""
        shape = (len(strictness_N), group_size)
        chosen_NG = np.searchsorted(np.cumsum(self.strategies())[:-1], rng.random(shape), side="right")
        paid_NG = rng.random(shape) < np.take_along_axis(self.success(strictness_N), chosen_NG, axis=1)
        return Batch(family_N, strictness_N, paid_NG.astype(float), paid_NG, chosen_NG)

    def improve(self, batch: Batch) -> None:
        """One step of the preferences and of kappa."""
        advantages_NG = advantages(batch.rewards_NG)
        by_strategy_M = np.bincount(batch.choices_NG.ravel(), weights=advantages_NG.ravel(), minlength=len(self.u_M))
        # The advantages of a group sum to 0, so the baseline -pi of the score adds nothing.
        self.u_M = self.u_M + self.lr * by_strategy_M / batch.rewards_NG.size
        energy = float(np.nansum(advantages_NG * batch.rewards_NG)) / batch.rewards_NG.size
        self.kappa = min(1.0, self.kappa + 0.02 * energy / 0.2)

    def scores(self) -> np.ndarray:
        """Success of the mixture on the grid of 11 points."""
        return self.success(GRID) @ self.strategies()

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        """Of the strategy; the same wherever it is asked for."""
        strategies_M = self.strategies()
        return np.full(len(strictness_N), float(-np.sum(strategies_M * np.log(strategies_M))))
