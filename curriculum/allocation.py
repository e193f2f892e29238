"""Allocation of groups to families by learning progress.

Source: learning progress between tasks after Kanitscheider et al. 2021 (arXiv 2106.14876) and OMNI (arXiv 2306.01711), who compare a fast
with a slow average of success; removing strictness and noise from it is our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.task import FamilyKey
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class AllocationConfig:
    """How groups are shared between families."""

    uniform_floor: float = Field(default=0.25, ge=0, le=1)
    """Share of the groups that is spread evenly; 1 spreads all of them evenly."""
    rate: float = Field(default=0.015, gt=0, le=1)
    """Step, per group of a family, of the averages by which its progress is measured; smaller is surer and slower."""
    num_errors: float = Field(default=2.0, ge=0, le=10)
    """Standard errors by which progress must exceed chance before it counts."""
    prior_progress: float = Field(default=0.003, gt=0, le=1)
    """Progress granted to every family in addition to the measured one, in units of performance; larger is more even."""
    known_after: float = Field(default=50.0, ge=0, le=10_000)
    """Groups of a family after which its progress counts half; the rest is the mean over families."""
    largest: float = Field(default=3.0, ge=1, le=1000)
    """The most that one family gets, as a multiple of an even share."""


class FamilyAllocation:
    """Shares groups between families: share_f = floor / F + (1 - floor) * w_f / sum w, with w_f = progress_f + prior.

    Progress is how much better or worse a family performs than it used to at equal strictness, beyond chance. A group of family f,
    issued at strictness d, has performance p in [0, 1]: its success rate or, where the teacher follows it, its mean reward. The family's
    past is a line through its running means. The residual e of the group is its height above that line; progress is the running residual g
    as far as it exceeds z standard errors:

        e = p - (P_f + b_f (d - D_f))                          P, D: running means of p and d
        b_f = -s + (C_f + s V_f) / (V_f + v0)                  V, C: running variance of d and covariance of d and p
        g_f += rate (e - g_f)
        progress_f = sqrt(max(0, g_f^2 - z^2 rate/4 S_f))      S: running mean of e^2

    Running means are plain means of the first 1/rate groups and take steps of `rate` from then on. rate/4 S is the variance that g has when
    e is pure noise. The slope b is learned where strictness varies by more than sqrt(v0) = 0.1, and is -s = -2 where it hardly varies: a
    teacher that follows the frontier would otherwise read "the stricter, the later, the stronger" as "strictness does not matter".

    A coin flip, an impossible family and a mastered one have no progress and fall to the floor; a family that is being forgotten has as
    much as one that is being learned. Families of which little was seen are judged like the mean. Families are dealt by accumulated credit:
    after any number of groups each has had its share to within two groups; with equal shares this is a shuffled deck.
    """

    ASSUMED_SLOPE: float = 2.0
    """s: fall of success per unit of strictness where it cannot be learned; wrong by a factor, it scales all families equally."""
    ASSUMED_VARIANCE: float = 0.01
    """v0: variance of strictness at which the assumed and the learned slope weigh the same."""

    def __init__(self, config: AllocationConfig, families: Sequence[FamilyKey]) -> None:
        self.config = config
        self._index = {family: i for i, family in enumerate(families)}
        self._credit_F = np.zeros(len(self._index))
        # [F, 7] number of groups, P, D, V, C, g, S.
        self.figures_FC = np.zeros((len(self._index), 7))

    def learn(self, family: FamilyKey, *, strictness: float, performance: float) -> None:
        """Takes in the performance of a group of `family`, in [0, 1], with the strictness that was issued."""
        f, rate, assumed = self._index[family], self.config.rate, self.ASSUMED_SLOPE
        num_seen, mean_p, mean_d, variance, covariance, running_e, squared_e = self.figures_FC[f].tolist()
        step = max(rate, 1.0 / (num_seen + 1.0))
        if num_seen == 0:
            mean_p, mean_d = performance, strictness
        above_d, above_p = strictness - mean_d, performance - mean_p
        slope = -assumed + (covariance + assumed * variance) / (variance + self.ASSUMED_VARIANCE)
        e = above_p - slope * above_d
        self.figures_FC[f] = (
            num_seen + 1.0,
            mean_p + step * above_p,
            mean_d + step * above_d,
            variance + step * ((1.0 - step) * above_d * above_d - variance),
            covariance + step * ((1.0 - step) * above_d * above_p - covariance),
            running_e + rate * (e - running_e),
            squared_e + step * (e * e - squared_e),
        )

    def progress(self) -> np.ndarray:
        """[F] progress of each family in units of performance, at least 0."""
        running_e_F, squared_e_F = self.figures_FC[:, -2:].T
        return np.sqrt(np.maximum(0.0, running_e_F**2 - self.config.num_errors**2 * self.config.rate / 4.0 * squared_e_F))

    def shares(self) -> np.ndarray:
        """[F] present long-run share of the groups of each family, in the order of the families; sums to 1."""
        progress_F, num_seen_F, num_families = self.progress(), self.figures_FC[:, 0], len(self._index)
        known_F = num_seen_F / np.maximum(num_seen_F + self.config.known_after, 1e-9)
        weights_F = known_F * progress_F + (1.0 - known_F) * progress_F.mean() + self.config.prior_progress
        floor, largest = self.config.uniform_floor, self.config.largest / num_families
        shares_F = floor / num_families + (1.0 - floor) * weights_F / weights_F.sum()
        # The excess above the largest share goes to the others in proportion, which may lift another above it.
        while (over_F := shares_F > largest).any():
            shares_F[over_F] = largest
            below_F = shares_F < largest
            if not below_F.any():
                break
            shares_F[below_F] *= (1.0 - shares_F[~below_F].sum()) / shares_F[below_F].sum()
        return shares_F

    def choose(self, num_groups: int, rng: np.random.Generator) -> list[tuple[FamilyKey, float]]:
        """The families of the next groups, each with its share."""
        families, shares_F, chosen = list(self._index), self.shares(), []
        for _ in range(num_groups):
            self._credit_F += shares_F
            # Jitter below one credit shuffles families that are level with each other and never lets one overtake twice.
            i = int(np.argmax(self._credit_F + 0.5 * rng.random(len(families))))
            self._credit_F[i] -= 1.0
            chosen.append((families[i], float(shares_F[i])))
        return chosen

    def state_dict(self) -> dict[str, Any]:
        """Credits [F] and figures of progress [F, 7]."""
        return {"credit": self._credit_F.tolist(), "figures": self.figures_FC.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._credit_F, self.figures_FC = (np.array(state[name], dtype=float) for name in ("credit", "figures"))
