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
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from curriculum.checks import require_between, require_fields, require_one_of
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, mean_reward
from curriculum.points import point_choice, point_of
from curriculum.teacher import FamilyKey, GroupOutcome, Mode

MAX_COMPONENTS = 10


@dataclass
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
