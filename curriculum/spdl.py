"""Moves a Gaussian over difficulty towards the users that matter in the end, no faster than return allows (self-paced learning).

Difficulty x is drawn from p = N(m, diag(s^2)) truncated to [0, 1]; the target is t = N(target_mean, target_std^2). After every
`groups_per_update` groups, with V_i the mean reward of the group issued at x_i and E_p[V] = sum_i w_i V_i / sum_i w_i,
w_i = p(x_i) / p_issued(x_i):

    E_old[V] >= delta:     p = argmin KL(p || t)     subject to KL(p || old) <= kl_step and E_p[V] >= delta
    E_old[V] <  delta:     p = argmax E_p[V]         subject to KL(p || old) <= kl_step

KL is that of the Gaussians before truncation, in nats. s stays above `min_std` until KL(p || t) < `kl_near`, so that the groups of one
update tell more than one place apart. A solution that breaks a constraint is not taken, and p stays as it was.

p_issued is the distribution in force when the task was issued, so late outcomes are weighed rightly (what
came before the last 25 distributions, as if from the oldest of them). x is the scalar strictness d, or with
axes = 3 the point (strictness, reserve, impatience), each axis with its own mean and width. One distribution serves all families.
It needs a target, so it fits where the difficulty of real users is known; with delta too high it never leaves the easy users.

Cost: an update takes 6 ms of CPU with one axis and 18 ms with three (SLSQP from scipy): .3 and .55 ms per group at the default, all told.

The public code differs: it bounds KL(old || p), the paper (and this) KL(p || old); its objective is the mean of KL(p || t) and an estimate
from samples of t; and once E_old[V] has reached delta it never goes back to the second problem, where this one does whenever return falls
below delta again.

Defaults: kl_step .25, 40 groups per update as the public code has for its point mass; delta and the widths are ours, in units of our
difficulty and reward. In the paper covariances are full, weights are not divided by their sum, and no outcome is late.
Source: Klink et al. 2020, 2021 (arXiv 2004.11812, arXiv 2102.13176); github.com/psclklnk/currot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curriculum.checks import require_between, require_one_of
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, mean_reward
from curriculum.points import point_choice, point_of
from curriculum.teacher import FamilyKey, GroupOutcome, Mode

MAX_STD = 1.0
LEAST_STD = 0.01
TOLERANCE = 1e-3
"""By how much a solution may break a constraint, in nats or reward."""
MAX_PAST = 25
"""Distributions remembered for outcomes that come late."""


@dataclass
class SpdlConfig(TeacherConfig):
    """Settings of `SpdlTeacher`."""

    axes: int = 1
    """{1, 3}: 1 draws a point on the line of difficulty, 3 a point of the cube."""
    target_mean: float = 0.75
    """[0, 1]: mean difficulty of the users that matter, on every axis."""
    target_std: float = 0.1
    """[.01, 1]: standard deviation of their difficulty, on every axis."""
    start_mean: float = 0.15
    """[0, 1]: mean difficulty at first, on every axis."""
    start_std: float = 0.2
    """[.01, 1]: standard deviation at first, on every axis."""
    delta: float = 0.45
    """[0, 1]: mean reward that the distribution must keep while it moves to the target."""
    kl_step: float = 0.25
    """[1e-6, 10]: the farthest that one update moves, in nats."""
    groups_per_update: int = 40
    """[8, 10000]: groups that an update rests on."""
    min_std: float = 0.05
    """[.01, 1]: least standard deviation while the target is far."""
    kl_near: float = 1.0
    """[0, 1000]: divergence from the target, in nats, below which `min_std` no longer holds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("teacher.axes", self.axes, (1, 3))
        require_between("teacher.target_mean", self.target_mean, 0.0, 1.0)
        require_between("teacher.target_std", self.target_std, LEAST_STD, MAX_STD)
        require_between("teacher.start_mean", self.start_mean, 0.0, 1.0)
        require_between("teacher.start_std", self.start_std, LEAST_STD, MAX_STD)
        require_between("teacher.delta", self.delta, 0.0, 1.0)
        require_between("teacher.kl_step", self.kl_step, 1e-6, 10.0)
        require_between("teacher.groups_per_update", self.groups_per_update, 8, 10_000)
        require_between("teacher.min_std", self.min_std, LEAST_STD, MAX_STD)
        require_between("teacher.kl_near", self.kl_near, 0.0, 1000.0)


@dataclass(frozen=True)
class Gaussian:
    """Independent normals, one for each axis. D axes, N points."""

    mean_D: np.ndarray
    std_D: np.ndarray

    @classmethod
    def of(cls, parameters_2D: Sequence[float] | np.ndarray) -> Gaussian:
        """From means and logarithms of standard deviations in one row, as the solver has them."""
        mean_D, log_std_D = np.split(np.asarray(parameters_2D, dtype=float), 2)
        return cls(mean_D, np.exp(log_std_D))

    @property
    def parameters(self) -> np.ndarray:
        """[2 D] means, then logarithms of standard deviations."""
        return np.concatenate([self.mean_D, np.log(self.std_D)])

    def kl(self, other: Gaussian) -> float:
        """KL(self || other) without truncation, in nats."""
        squares_D = (np.square(self.std_D) + np.square(self.mean_D - other.mean_D)) / (2.0 * np.square(other.std_D))
        return float((np.log(other.std_D / self.std_D) + squares_D - 0.5).sum())

    def log_density(self, x_ND: np.ndarray) -> np.ndarray:
        """[N] log density of the truncated Gaussian at points of [0, 1]^D, less a constant that all Gaussians share."""
        mass_D = normal_cdf((1.0 - self.mean_D) / self.std_D) - normal_cdf(-self.mean_D / self.std_D)
        scores_ND = -0.5 * np.square((x_ND - self.mean_D) / self.std_D)
        return (scores_ND - np.log(self.std_D * mass_D)).sum(axis=-1)

    def draw(self, rng: np.random.Generator) -> list[float]:
        """A point of the truncated Gaussian, by its quantile function."""
        low_D, high_D = normal_cdf(-self.mean_D / self.std_D), normal_cdf((1.0 - self.mean_D) / self.std_D)
        quantiles_D = low_D + (high_D - low_D) * rng.random(len(self.mean_D))
        return np.clip(self.mean_D + self.std_D * normal_quantile(quantiles_D), 0.0, 1.0).tolist()


def normal_cdf(x_D: np.ndarray) -> np.ndarray:
    """Probability below x of a standard normal."""
    from scipy.special import ndtr

    return ndtr(x_D)


def normal_quantile(p_D: np.ndarray) -> np.ndarray:
    """The inverse of `normal_cdf`."""
    from scipy.special import ndtri

    return ndtri(p_D)


class SpdlTeacher(LedgerTeacher):
    """One Gaussian over difficulty that approaches a target at the pace of return."""

    kind = "spdl"
    adapting = ("parameters", "past", "groups", "expected_return")
    config: SpdlConfig

    def __init__(self, config: SpdlConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        start = Gaussian(np.full(config.axes, config.start_mean), np.full(config.axes, config.start_std))
        self.target = Gaussian(np.full(config.axes, config.target_mean), np.full(config.axes, config.target_std))
        self.parameters: list[float] = start.parameters.tolist()
        # [teacher step, parameters in force after it], the oldest first.
        self.past: list[list[Any]] = [[0, self.parameters]]
        # Rows (x_1..x_D, V, log density at issue) since the last update.
        self.groups: list[list[float]] = []
        self.expected_return = 0.0

    @property
    def gaussian(self) -> Gaussian:
        """The distribution in force, before truncation."""
        return Gaussian.of(self.parameters)

    def choose(self, family: FamilyKey) -> Choice:
        """A draw."""
        return point_choice(self.gaussian.draw(self.rng), Mode.FRONTIER, 1.0)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Keeps groups until there are enough for an update."""
        steps = [step for step, _ in self.past]
        for group in groups:
            x_D = point_of(group.task, self.config.axes)
            # What was issued at step t drew from what was in force after step t - 1.
            issued = Gaussian.of(self.past[max(bisect_right(steps, group.task.teacher_step - 1) - 1, 0)][1])
            self.groups.append([*x_D, mean_reward(group), float(issued.log_density(np.array([x_D]))[0])])
        if len(self.groups) >= self.config.groups_per_update:
            self._update()

    def _update(self) -> None:
        rows_ND = np.array(self.groups)
        old = self.gaussian
        *x_ND, returns_N, log_issued_N = rows_ND.T
        step = Step(self.config, old=old, target=self.target, x_ND=np.stack(x_ND, axis=-1), return_N=returns_N, log_issued_N=log_issued_N)
        self.expected_return = step.expected_return(old)
        aim = "target" if self.expected_return >= self.config.delta else "return"
        new = step.towards_target() if aim == "target" else step.towards_return()
        self.groups = []
        if new is not None:
            self.parameters = new.parameters.tolist()
            self.past = [*self.past, [self._step, self.parameters]][-MAX_PAST:]
        mean, std = self.gaussian.mean_D.tolist(), self.gaussian.std_D.tolist()
        self.decide("move", aim=aim, expected_return=self.expected_return, solved=new is not None, mean=mean, std=std)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, mean and width of the distribution, its distance from the target, and its return at the last update."""
        own = {
            "curriculum/spdl/mean": float(self.gaussian.mean_D.mean()),
            "curriculum/spdl/std": float(self.gaussian.std_D.mean()),
            "curriculum/spdl/kl_to_target": self.gaussian.kl(self.target),
            "curriculum/spdl/expected_return": self.expected_return,
        }
        return {**super().metrics(), **own}


class Step:
    """One constrained step of the distribution, from what a batch of groups returned."""

    def __init__(
        self,
        config: SpdlConfig,
        *,
        old: Gaussian,
        target: Gaussian,
        x_ND: np.ndarray,
        return_N: np.ndarray,
        log_issued_N: np.ndarray,
    ) -> None:
        self._config, self._old, self._target = config, old, target
        self._x_ND, self._return_N, self._log_issued_N = x_ND, return_N, log_issued_N

    def expected_return(self, gaussian: Gaussian) -> float:
        """E_p[V], by weights that sum to 1."""
        log_weights_N = gaussian.log_density(self._x_ND) - self._log_issued_N
        weights_N = np.exp(log_weights_N - log_weights_N.max())
        return float(weights_N @ self._return_N / weights_N.sum())

    def towards_target(self) -> Gaussian | None:
        """The nearest to the target that keeps the return."""
        return self._solve(lambda p: p.kl(self._target), keep_return=True)

    def towards_return(self) -> Gaussian | None:
        """The one of the highest return."""
        return self._solve(lambda p: -self.expected_return(p), keep_return=False)

    def _solve(self, objective: Callable[[Gaussian], float], *, keep_return: bool) -> Gaussian | None:
        slacks: list[Callable[[Gaussian], float]] = [lambda p: self._config.kl_step - p.kl(self._old)]
        if keep_return:
            slacks.append(lambda p: self.expected_return(p) - self._config.delta)
        from scipy.optimize import minimize  # here, so that a list of teachers need not wait for scipy

        solved = minimize(
            lambda row: objective(Gaussian.of(row)),
            self._old.parameters,
            method="SLSQP",
            bounds=self._bounds(),
            constraints=[{"type": "ineq", "fun": lambda row, slack=slack: slack(Gaussian.of(row))} for slack in slacks],
        )
        if not np.all(np.isfinite(solved.x)):
            return None
        new = Gaussian.of(np.clip(solved.x, *np.array(self._bounds()).T))
        better = objective(new) <= objective(self._old)
        return new if better and all(slack(new) >= -TOLERANCE for slack in slacks) else None

    def _bounds(self) -> list[tuple[float, float]]:
        near = self._old.kl(self._target) < self._config.kl_near
        least = LEAST_STD if near else self._config.min_std
        # A start narrower than the least may stay as narrow as it is.
        log_least_D = np.minimum(np.log(least), np.log(self._old.std_D))
        return [(0.0, 1.0)] * len(log_least_D) + [(float(log_least), float(np.log(MAX_STD))) for log_least in log_least_D]
