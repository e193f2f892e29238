"""Toy students with several families of tasks: what a teacher spends on noise, and how families share strength (`curriculum.toy`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from curriculum.toy import GRID, Batch, Student, advantages, bernoulli_entropy, sigmoid


@dataclass
class SeveralFamilies(Student):
    """Families that can be learned, p_f = sigma(theta_f - slope d), then those whose success share nobody changes (`constant`)."""

    theta_F: np.ndarray = field(default_factory=lambda: np.zeros(0))

    constant: ClassVar[Mapping[str, float]] = {}
    slope: ClassVar[float] = 8.0
    by_strictness: ClassVar[bool] = False

    def skill(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        """Success share."""
        constant = list(self.constant.values())
        logit_N = np.append(self.theta_F, np.zeros(len(constant)))[family_N] - self.slope * strictness_N
        constant_N = np.append(np.full(len(self.theta_F), np.nan), constant)[family_N]
        return np.where(np.isnan(constant_N), sigmoid(logit_N), constant_N)

    def play(self, family_N: np.ndarray, strictness_N: np.ndarray, group_size: int, rng: np.random.Generator) -> Batch:
        """Actions, each of them a success or not."""
        actions_NG = rng.random((len(strictness_N), group_size)) < self.skill(family_N, strictness_N)[:, None]
        return Batch(family_N, strictness_N, actions_NG.astype(float), actions_NG, actions_NG)

    def gradient(self, batch: Batch) -> np.ndarray:
        """[F] sum of A (a - p) over the rollouts of each learnable family, per rollout of the whole batch."""
        score_NG = batch.choices_NG - self.skill(batch.family_N, batch.strictness_N)[:, None]
        steps_N = (advantages(batch.rewards_NG) * score_NG).sum(axis=1) / batch.rewards_NG.size
        return self.by_family(batch, steps_N)

    def by_family(self, batch: Batch, values_N: np.ndarray) -> np.ndarray:
        """[F] sum of `values_N` over the groups of each learnable family."""
        return np.bincount(batch.family_N, weights=values_N, minlength=len(self.families))[: len(self.theta_F)]

    def scores(self) -> np.ndarray:
        """[F] success of each learnable family, mean over the grid of strictness."""
        return sigmoid(self.theta_F[:, None] - self.slope * GRID).mean(axis=1)

    def entropy(self, family_N: np.ndarray, strictness_N: np.ndarray) -> np.ndarray:
        """Of the action; NaN in families that cannot be learned."""
        entropy_N = bernoulli_entropy(self.skill(family_N, strictness_N))
        return np.where(family_N < len(self.theta_F), entropy_N, np.nan)


@dataclass
class NoiseFamilies(SeveralFamilies):
    """S5: strictness is without effect, families differ. 200 updates; the score is the mean over the four that can be learned.

    p_f = sigma(z_f), z from (.5, -.7, -2, -3.5); z_f += .9 (g_f + .35 g_(f-1)), g the gradient per rollout of the batch: what is learned
    in one family helps the next. Beside them noise (p = .5), impossible (0) and mastered (.99).
    """

    theta_F: np.ndarray = field(default_factory=lambda: np.array([0.5, -0.7, -2.0, -3.5]))
    lr: float = 0.9
    transfer: float = 0.35

    families: ClassVar[Sequence[str]] = ("chain1", "chain2", "chain3", "chain4", "noise", "impossible", "mastered")
    noise: ClassVar[frozenset[str]] = frozenset({"noise"})
    constant: ClassVar[Mapping[str, float]] = {"noise": 0.5, "impossible": 0.0, "mastered": 0.99}
    slope: ClassVar[float] = 0.0

    def improve(self, batch: Batch) -> None:
        """One step of each family and of the next in the chain."""
        gradient_F = self.gradient(batch)
        self.theta_F = self.theta_F + self.lr * (gradient_F + self.transfer * np.append(0.0, gradient_F[:-1]))


@dataclass
class StrictFamilies(SeveralFamilies):
    """S6: families with a strictness each. 300 updates; the score is the mean over the four that can be learned.

    p_f = sigma(theta_f - 8 d), theta from theta0 = (1.5, .5, -.5, -2); with w_f the share of groups and lr_f = 1.2 (1.6, 1.1, 1.1, .8),
    theta += (.9 I + .1) (lr g) - .003 (theta - theta0) (1 - min(1, 4 w)). Beside them noise (p = .5) and impossible (0).
    """

    num_updates: int = 300
    theta_F: np.ndarray = field(default_factory=lambda: np.array([1.5, 0.5, -0.5, -2.0]))
    decay: float = 0.003
    transfer: float = 0.1

    families: ClassVar[Sequence[str]] = ("quick", "steady", "middling", "late", "noise", "impossible")
    noise: ClassVar[frozenset[str]] = frozenset({"noise"})
    constant: ClassVar[Mapping[str, float]] = {"noise": 0.5, "impossible": 0.0}
    rates_F: ClassVar[np.ndarray] = 1.2 * np.array([1.6, 1.1, 1.1, 0.8])

    def __post_init__(self) -> None:
        self.start_F = self.theta_F.copy()

    def improve(self, batch: Batch) -> None:
        """One step of all families, and of forgetting those practised in less than a quarter of the groups."""
        steps_F = self.rates_F * self.gradient(batch)
        share_F = self.by_family(batch, batch.came_N) / len(batch.family_N)
        fading_F = self.decay * (self.theta_F - self.start_F) * (1.0 - np.minimum(1.0, 4.0 * share_F))
        self.theta_F = self.theta_F + (1.0 - self.transfer) * steps_F + self.transfer * steps_F.sum() - fading_F


@dataclass
class FewGroups(SeveralFamilies):
    """S7: 24 families whose frontiers rise whatever is practised, and only 6 (50 updates) or 8 (200) groups an update.

    p_f = sigma(8 (c_f - d)), c_f = .15 + .55 t/T + o_f, o_f ~ Normal(0, .15). The yardstick is the distance of each task issued from
    the strictness at which its family succeeds with share .45.
    """

    num_updates: int = 50
    num_groups: int = 6
    offset_F: np.ndarray = field(default_factory=lambda: np.zeros(24))

    families: ClassVar[Sequence[str]] = tuple(f"family{i:02d}" for i in range(24))

    def __post_init__(self) -> None:
        self._move()

    def _move(self) -> None:
        self.theta_F = self.slope * (0.15 + 0.55 * self.update / self.num_updates + self.offset_F)

    def improve(self, batch: Batch) -> None:
        """Nothing is learned."""

    def learn(self, batch: Batch) -> None:
        """Time passes."""
        super().learn(batch)
        self._move()

    def frontier(self) -> np.ndarray | None:
        """[F] d at which each family succeeds with share .45, clipped to [0, 1]."""
        return np.clip((self.theta_F - np.log(0.45 / 0.55)) / self.slope, 0.0, 1.0)
