"""Practises where reward is changing most: a mixture of Gaussians over (difficulty, absolute learning progress) says where.

A group issued at difficulty x, of mean reward r, is compared with the earlier group whose difficulty was nearest:

    alp = |r - r_nearest|

Every `fit_rate` groups, mixtures of k = 2..10 Gaussians with full covariance are fitted to the points (x, alp) of the history, and the one
of least AIC is kept. A new x comes from component c with probability in proportion to its mean alp, x ~ N(mean_c, cov_c), clipped to
[0, 1]. A share `random_share` of the groups, and all before the first fit, are uniform.

x is the scalar strictness d, or with axes = 3 the point (strictness, reserve, impatience). The method knows no families: by default all
share one history; with `per_family` each has its own, which takes as many times longer to fill.

With groups of 8 chance alone makes an alp of about .1 to .2 where success is near one half, so that the method is drawn there even when
nothing is learned, and alp of real progress between neighbours in time is small against it: expect little more than uniform in short runs.

Cost: a fit of 500 points takes .15 s of CPU with one axis and .25 s with three: 1.1 ms per group at the default rate, all told.
Needs scikit-learn (`.venv/bin/pip install scikit-learn`).

Defaults: fit_rate 250, k 2..10, random_share .2, as in the public code. That fits the last `fit_rate` points and, as the paper, looks for
the nearest among all groups since the start; here `history` (500) is both: memory stays flat and a fit has more to go by.
Source: Portelas et al. 2019 (arXiv 1910.07224); github.com/flowersteam/teachDeepRL.

Moves a Gaussian over difficulty towards the users that matter in the end, no faster than return allows (self-paced learning).

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

import warnings
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass as settings_dataclass

from curriculum.checks import require_between, require_fields, require_one_of
from curriculum.task import FamilyKey, GroupOutcome, Mode
from curriculum.teacher import Choice, LedgerTeacher, TeacherConfig, mean_reward, point_choice, point_of
from simulator.settings import SETTINGS

MAX_COMPONENTS = 10


@settings_dataclass(config=SETTINGS)
class AlpGmmConfig(TeacherConfig):
    """Settings of `AlpGmmTeacher`."""

    axes: int = 1
    """{1, 3}: 1 samples a point on the line of difficulty, 3 a point of the cube."""
    fit_rate: int = 250
    """[20, 10000]: groups between fits."""
    history: int = 500
    """[20, 10000]: latest groups that are remembered, fitted and compared with."""
    random_share: float = 0.2
    """[0, 1]: share of groups at a uniformly drawn difficulty."""
    per_family: bool = False
    """One history and mixture for each family instead of one for all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("teacher.axes", self.axes, (1, 3))
        require_between("teacher.fit_rate", self.fit_rate, 20, 10_000)
        require_between("teacher.history", self.history, 20, 10_000)
        require_between("teacher.random_share", self.random_share, 0.0, 1.0)


class AlpHistory:
    """Latest groups with their absolute learning progress, and the mixture last fitted to them. D axes, k components."""

    def __init__(self, config: AlpGmmConfig) -> None:
        self.config = config
        self.points: list[list[float]] = []
        """Rows (x_1..x_D, alp), the oldest first."""
        self.rewards: list[float] = []
        self.mixture: dict[str, Any] | None = None
        """`weights` [k] of being chosen, `means` [k, D] and `covariances` [k, D, D]; None before the first fit."""
        self._num_unfitted = 0

    def add(self, x_D: Sequence[float], reward: float, rng: np.random.Generator) -> bool:
        """Takes in a group; returns whether the mixture was fitted anew."""
        alp = 0.0
        if self.points:
            distances_N = np.square(np.array(self.points)[:, :-1] - np.asarray(x_D)).sum(axis=-1)
            alp = abs(reward - self.rewards[int(np.argmin(distances_N))])
        self.points.append([*x_D, alp])
        self.rewards.append(reward)
        del self.points[: -self.config.history], self.rewards[: -self.config.history]
        self._num_unfitted += 1
        if self._num_unfitted < self.config.fit_rate:
            return False
        self._num_unfitted = 0
        self.mixture = fit_mixture(np.array(self.points), seed=int(rng.integers(2**31)))
        return True

    def draw(self, rng: np.random.Generator) -> list[float]:
        """A point from the fitted mixture, in [0, 1]^D."""
        assert self.mixture is not None, "nothing was fitted yet"
        c = rng.choice(len(self.mixture["weights"]), p=self.mixture["weights"])
        drawn_D = rng.multivariate_normal(self.mixture["means"][c], self.mixture["covariances"][c])
        return np.clip(drawn_D, 0.0, 1.0).tolist()

    def state_dict(self) -> dict[str, Any]:
        """Points, rewards and the mixture as it was fitted."""
        rows = [list(point) for point in self.points]
        return {"points": rows, "rewards": list(self.rewards), "mixture": self.mixture, "num_unfitted": self._num_unfitted}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        require_fields("teacher state's history", state, ("points", "rewards", "mixture", "num_unfitted"))
        self.points, self.rewards = [list(point) for point in state["points"]], list(state["rewards"])
        self.mixture, self._num_unfitted = state["mixture"], state["num_unfitted"]


class AlpGmmTeacher(LedgerTeacher):
    """Samples difficulty where a Gaussian mixture expects absolute learning progress."""

    kind = "alp_gmm"
    adapting = ("histories",)
    config: AlpGmmConfig

    def __init__(self, config: AlpGmmConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        require_sklearn()
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        names = [str(family) for family in self.families] if config.per_family else ["all"]
        self.histories = Histories({name: AlpHistory(config) for name in names})

    def history(self, family: FamilyKey) -> AlpHistory:
        """The history that `family` belongs to."""
        return self.histories.by_name[str(family) if self.config.per_family else "all"]

    def choose(self, family: FamilyKey) -> Choice:
        """A point of the mixture, now and then and at first any."""
        history, share = self.history(family), self.config.random_share
        if history.mixture is None:
            return point_choice(self.rng.random(self.config.axes).tolist(), Mode.UNIFORM, 1.0)
        if self.rng.random() < share:
            return point_choice(self.rng.random(self.config.axes).tolist(), Mode.UNIFORM, share)
        return point_choice(history.draw(self.rng), Mode.FRONTIER, 1.0 - share)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Adds each group to its history, which fits itself when it is due."""
        for group in groups:
            history = self.history(group.task.family)
            if history.add(point_of(group.task, self.config.axes), mean_reward(group), self.rng):
                assert history.mixture is not None, "a fit leaves a mixture"
                self.decide("fit", family=str(group.task.family) if self.config.per_family else "all", **history.mixture)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, the mean progress remembered and the components of the mixtures."""
        histories = self.histories.by_name.values()
        alps = [point[-1] for history in histories for point in history.points]
        own = {
            "curriculum/alp_gmm/alp": float(np.mean(alps)) if alps else 0.0,
            "curriculum/alp_gmm/num_components": float(sum(len(h.mixture["weights"]) for h in histories if h.mixture)),
        }
        return {**super().metrics(), **own}


class Histories:
    """Histories by name, saved together."""

    may_lack = True
    """Whether None may stand in a saved state, here for a mixture before its first fit (`checks.require_alike`)."""

    def __init__(self, by_name: dict[str, AlpHistory]) -> None:
        self.by_name = by_name

    def state_dict(self) -> dict[str, Any]:
        """Each history's state."""
        return {name: history.state_dict() for name, history in self.by_name.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; refuses other names, as when `per_family` was another."""
        require_fields("teacher state's histories", state, self.by_name)
        for name, history in self.by_name.items():
            history.load_state_dict(state[name])


def require_sklearn() -> None:
    """Raises ValueError unless scikit-learn can be imported."""
    if find_spec("sklearn") is None:
        raise ValueError("teacher.kind=alp_gmm needs scikit-learn, which is not installed; run `.venv/bin/pip install scikit-learn`")


def fit_mixture(points_ND: np.ndarray, *, seed: int) -> dict[str, Any]:
    """The mixture of least AIC on rows (x, alp), as JSON-able `weights`, `means` and `covariances` over x; weights follow mean alp."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture
    from threadpoolctl import threadpool_limits

    # A few hundred rows: threads beside busy engines only wait for each other (minutes for what takes seconds).
    with warnings.catch_warnings(), threadpool_limits(limits=1):
        # More components than distinct points, or no convergence in 100 steps: AIC then chooses another.
        warnings.simplefilter("ignore", ConvergenceWarning)
        ks = range(2, MAX_COMPONENTS + 1)
        fitted = [GaussianMixture(k, covariance_type="full", random_state=seed).fit(points_ND) for k in ks]
        best = min(fitted, key=lambda mixture: mixture.aic(points_ND))
    alps_k = np.maximum(best.means_[:, -1], 1e-9)
    return {
        "weights": (alps_k / alps_k.sum()).tolist(),
        "means": best.means_[:, :-1].tolist(),
        "covariances": best.covariances_[:, :-1, :-1].tolist(),
    }


MAX_STD = 1.0
LEAST_STD = 0.01
TOLERANCE = 1e-3
"""By how much a solution may break a constraint, in nats or reward."""
MAX_PAST = 25
"""Distributions remembered for outcomes that come late."""


@settings_dataclass(config=SETTINGS)
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
