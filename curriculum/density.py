"""Teachers with a density over difficulty: ALP-GMM's mixture of learning progress, and self-paced learning (SPDL)."""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as settings_dataclass

from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec
from curriculum.teacher import Axes, Teacher, TeacherConfig
from simulator.settings import SETTINGS


@settings_dataclass(config=SETTINGS)
class AlpGmmConfig(TeacherConfig):
    """Settings of `AlpGmmTeacher`."""

    axes: Axes = 1
    """1 samples a point on the line of difficulty, 3 a point of the cube."""
    fit_rate: int = Field(default=250, ge=20, le=10_000)
    """Groups between fits."""
    history: int = Field(default=500, ge=20, le=10_000)
    """Latest groups that are remembered, fitted and compared with."""
    random_share: float = Field(default=0.2, ge=0, le=1)
    """Share of groups at a uniformly drawn difficulty."""


class AlpGmmTeacher(Teacher):
    """Practises where reward is changing most: a mixture of Gaussians over (difficulty, absolute learning progress) finds it.

    A group issued at difficulty x, of mean reward r, is compared with the earlier group whose difficulty was nearest:

        alp = |r - r_nearest|

    Every `fit_rate` groups, mixtures of k = 2..10 Gaussians with full covariance are fitted to the points (x, alp) of the history, and the
    one of least AIC is kept. A new x comes from component c with probability in proportion to its mean alp, x ~ N(mean_c, cov_c), clipped
    to [0, 1]. A share `random_share` of the groups, and all before the first fit, are uniform.

    x is the scalar strictness d, or with axes = 3 the point (strictness, reserve, impatience). All families share one history. With groups
    of 8 chance alone makes an alp of about 0.1 to 0.2 where success is near one half: expect little more than uniform in short runs.

    Cost: a fit of 500 points takes 0.15 s of CPU with one axis and 0.25 s with three. Needs scikit-learn.

    Source: Portelas et al. 2019 (arXiv 1910.07224); github.com/flowersteam/teachDeepRL (defaults; it fits the last `fit_rate` points and
    looks for the nearest among all groups since the start, where `history` bounds both here).
    """

    kind = "alp_gmm"
    adapting = ("history", "mixture", "num_unfitted")
    config: AlpGmmConfig

    def start(self) -> None:
        if find_spec("sklearn") is None:
            raise ValueError("teacher.kind=alp_gmm needs scikit-learn, which is not installed; run `.venv/bin/pip install scikit-learn`")
        # Rows (x_1..x_D, reward, alp), the oldest first; the mixture last fitted to them; groups since.
        self.history: list[list[float]] = []
        self.mixture: dict[str, Any] | None = None
        self.num_unfitted = 0

    def choose(self, family: FamilyKey) -> TaskSpec:
        """A point of the mixture, or any point: now and then, and always before the first fit."""
        mixture, share = self.mixture, self.config.random_share
        if mixture is None or self.rng.random() < share:
            return self.task(family, self.rng.random(self.config.axes).tolist(), Mode.UNIFORM, share if mixture else 1.0)
        c = self.rng.choice(len(mixture["weights"]), p=mixture["weights"])
        drawn_D = self.rng.multivariate_normal(mixture["means"][c], mixture["covariances"][c])
        return self.task(family, np.clip(drawn_D, 0.0, 1.0).tolist(), Mode.FRONTIER, 1.0 - share)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        for group in groups:
            x_D, reward, alp = group.task.point(self.config.axes), group.mean_reward, 0.0
            if self.history:
                nearest = np.argmin(np.square(np.array(self.history)[:, :-2] - np.asarray(x_D)).sum(axis=-1))
                alp = abs(reward - self.history[int(nearest)][-2])
            self.history = [*self.history, [*x_D, reward, alp]][-self.config.history :]
            self.num_unfitted += 1
            if self.num_unfitted == self.config.fit_rate:
                self.num_unfitted = 0
                points_ND = np.delete(np.array(self.history), -2, axis=1)
                self.mixture = fit_mixture(points_ND, seed=int(self.rng.integers(2**31)))
                self.decide("fit", **self.mixture)

    def metrics(self) -> dict[str, float]:
        alp = float(np.mean([row[-1] for row in self.history])) if self.history else 0.0
        num_components = float(len(self.mixture["weights"])) if self.mixture else 0.0
        return {**super().metrics(), "curriculum/alp_gmm/alp": alp, "curriculum/alp_gmm/num_components": num_components}


def fit_mixture(points_ND: np.ndarray, *, seed: int) -> dict[str, Any]:
    """The mixture of least AIC on rows (x, alp), JSON-able.

    Returns:
        `weights` [k] of being drawn, in proportion to mean alp, `means` [k, D] and `covariances` [k, D, D] over x.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    # A few hundred rows: threads only wait for each other while engines are busy (minutes for what takes seconds).
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        # More components than distinct points, or no convergence in 100 steps: AIC then chooses another.
        warnings.simplefilter("ignore", ConvergenceWarning)
        ks = range(2, 11)
        fitted = [GaussianMixture(k, covariance_type="full", random_state=seed).fit(points_ND) for k in ks]
        best = min(fitted, key=lambda mixture: mixture.aic(points_ND))
    alps_k = np.maximum(best.means_[:, -1], 1e-9)
    return {
        "weights": (alps_k / alps_k.sum()).tolist(),
        "means": best.means_[:, :-1].tolist(),
        "covariances": best.covariances_[:, :-1, :-1].tolist(),
    }


LEAST_STD, MAX_STD = 0.01, 1.0


@settings_dataclass(config=SETTINGS)
class SpdlConfig(TeacherConfig):
    """Settings of `SpdlTeacher`."""

    axes: Axes = 1
    """1 draws a point on the line of difficulty, 3 a point of the cube."""
    target_mean: float = Field(default=0.75, ge=0, le=1)
    """Mean difficulty of the users that matter, on every axis."""
    target_std: float = Field(default=0.1, ge=LEAST_STD, le=MAX_STD)
    """Standard deviation of their difficulty, on every axis."""
    start_mean: float = Field(default=0.15, ge=0, le=1)
    """Mean difficulty at first, on every axis."""
    start_std: float = Field(default=0.2, ge=LEAST_STD, le=MAX_STD)
    """Standard deviation at first, on every axis."""
    delta: float = Field(default=0.45, ge=0, le=1)
    """Mean reward that the distribution must keep while it moves to the target."""
    kl_step: float = Field(default=0.25, gt=0, le=10)
    """The farthest that one update moves, in nats."""
    groups_per_update: int = Field(default=40, ge=8, le=10_000)
    """Groups that an update rests on."""
    min_std: float = Field(default=0.05, ge=LEAST_STD, le=MAX_STD)
    """Least standard deviation while the target is far."""
    kl_near: float = Field(default=1.0, ge=0, le=1000)
    """Divergence from the target, in nats, below which `min_std` has no effect."""


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
        low_D, high_D = self._bounds()
        scores_ND = -0.5 * np.square((x_ND - self.mean_D) / self.std_D)
        return (scores_ND - np.log(self.std_D * (high_D - low_D))).sum(axis=-1)

    def draw(self, rng: np.random.Generator) -> list[float]:
        """A point of the truncated Gaussian, by its quantile function."""
        from scipy.special import ndtri  # here, so that a list of teachers need not wait for scipy

        low_D, high_D = self._bounds()
        quantiles_D = low_D + (high_D - low_D) * rng.random(len(self.mean_D))
        return np.clip(self.mean_D + self.std_D * ndtri(quantiles_D), 0.0, 1.0).tolist()

    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """[D], [D] probabilities below 0 and below 1 without truncation."""
        from scipy.special import ndtr

        return ndtr(-self.mean_D / self.std_D), ndtr((1.0 - self.mean_D) / self.std_D)


class SpdlTeacher(Teacher):
    """Moves a Gaussian over difficulty towards the users that matter in the end, no faster than return allows (self-paced learning).

    Difficulty x is drawn from p = N(m, diag(s^2)) truncated to [0, 1]; the target is t = N(target_mean, target_std^2). After every
    `groups_per_update` groups, with V_i the mean reward of the group issued at x_i and E_p[V] = sum_i w_i V_i / sum_i w_i,
    w_i = p(x_i) / p_issued(x_i):

        E_old[V] >= delta:     p = argmin KL(p || t)     subject to KL(p || old) <= kl_step and E_p[V] >= delta
        E_old[V] <  delta:     p = argmax E_p[V]         subject to KL(p || old) <= kl_step

    KL is that of the Gaussians before truncation, in nats. s stays above `min_std` until KL(p || t) < `kl_near`, so that the groups of one
    update cover more than one place. A solution that breaks a constraint is not taken, and p stays as it was.

    p_issued is the distribution in force when the task was issued, so late outcomes are weighed rightly (those from before the last 25
    distributions, as if from the oldest of them). x is the scalar strictness d, or with axes = 3 the point (strictness, reserve,
    impatience), each axis with its own mean and width. One distribution serves all families. It fits where the difficulty of real users is
    known; with delta too high it never leaves the easy users.

    The public code bounds KL(old || p), the paper (and this) KL(p || old); and once E_old[V] has reached delta it never goes back to the
    second problem. In the paper covariances are full, weights are not divided by their sum, and no outcome is late.

    Source: Klink et al. 2020, 2021 (arXiv 2004.11812, arXiv 2102.13176); github.com/psclklnk/currot (kl_step and 40 groups per update).
    """

    kind = "spdl"
    adapting = ("parameters", "past", "groups", "expected_return")
    config: SpdlConfig

    def start(self) -> None:
        start = Gaussian(np.full(self.config.axes, self.config.start_mean), np.full(self.config.axes, self.config.start_std))
        self.target = Gaussian(np.full(self.config.axes, self.config.target_mean), np.full(self.config.axes, self.config.target_std))
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

    def choose(self, family: FamilyKey) -> TaskSpec:
        return self.task(family, self.gaussian.draw(self.rng))

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        steps = [step for step, _ in self.past]
        for group in groups:
            x_D = group.task.point(self.config.axes)
            # A task of step t was drawn from the distribution in force after step t - 1.
            issued = Gaussian.of(self.past[max(bisect_right(steps, group.task.teacher_step - 1) - 1, 0)][1])
            self.groups.append([*x_D, group.mean_reward, float(issued.log_density(np.array([x_D]))[0])])
        if len(self.groups) < self.config.groups_per_update:
            return
        self.expected_return = self.return_of(self.gaussian)
        aim = "target" if self.expected_return >= self.config.delta else "return"
        new = self.moved(to_target=aim == "target")
        self.groups = []
        if new is not None:
            self.parameters = new.parameters.tolist()
            self.past = [*self.past, [self.step, self.parameters]][-25:]
        mean, std = self.gaussian.mean_D.tolist(), self.gaussian.std_D.tolist()
        self.decide("move", aim=aim, expected_return=self.expected_return, solved=new is not None, mean=mean, std=std)

    def return_of(self, p: Gaussian) -> float:
        """E_p[V] from the groups since the last update, by importance weights that sum to 1."""
        *x_DN, return_N, log_issued_N = np.array(self.groups).T
        log_weights_N = p.log_density(np.stack(x_DN, axis=-1)) - log_issued_N
        weights_N = np.exp(log_weights_N - log_weights_N.max())
        return float(weights_N @ return_N / weights_N.sum())

    def moved(self, *, to_target: bool) -> Gaussian | None:
        """The Gaussian nearest to the target that keeps the return, or the one of the highest return; None where the solver finds none."""
        from scipy.optimize import minimize

        old, config = self.gaussian, self.config
        objective: Callable[[Gaussian], float] = (lambda p: p.kl(self.target)) if to_target else (lambda p: -self.return_of(p))
        slacks: list[Callable[[Gaussian], float]] = [lambda p: config.kl_step - p.kl(old)]
        if to_target:
            slacks.append(lambda p: self.return_of(p) - config.delta)
        least = LEAST_STD if old.kl(self.target) < config.kl_near else config.min_std
        # A start narrower than the least may stay as narrow as it is.
        log_least_D = np.minimum(np.log(least), np.log(old.std_D))
        bounds = [(0.0, 1.0)] * len(log_least_D) + [(float(log_least), float(np.log(MAX_STD))) for log_least in log_least_D]
        solved = minimize(
            lambda row: objective(Gaussian.of(row)),
            old.parameters,
            method="SLSQP",
            bounds=bounds,
            constraints=[{"type": "ineq", "fun": lambda row, slack=slack: slack(Gaussian.of(row))} for slack in slacks],
        )
        if not np.all(np.isfinite(solved.x)):
            return None
        new = Gaussian.of(np.clip(solved.x, *np.array(bounds).T))
        # A solution may break a constraint by 0.001 nats or reward.
        is_kept = all(slack(new) >= -1e-3 for slack in slacks)
        return new if is_kept and objective(new) <= objective(old) else None

    def metrics(self) -> dict[str, float]:
        own = {
            "mean": float(self.gaussian.mean_D.mean()),
            "std": float(self.gaussian.std_D.mean()),
            "kl_to_target": self.gaussian.kl(self.target),
            "expected_return": self.expected_return,
        }
        return {**super().metrics(), **{f"curriculum/spdl/{name}": value for name, value in own.items()}}
