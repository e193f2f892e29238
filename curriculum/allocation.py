"""How much better or worse each family fares than its own past at equal strictness, beyond what chance explains.

A group of family f, issued at strictness d, fares p in [0, 1]: the share that succeeds or, where the teacher follows it, the mean reward.
The family's past is a line through its running means, and the group's surprise e is how far above that line it lies; progress is the
running surprise g as far as it exceeds z standard errors:

    e = p - (P_f + b_f (d - D_f))                          P, D: running means of p and d
    b_f = -s + (C_f + s V_f) / (V_f + v0)                  V, C: running variance of d and covariance of d and p
    g_f += rate (e - g_f)
    progress_f = sqrt(max(0, g_f^2 - z^2 rate/4 S_f))      S: running mean of e^2

Running means are plain means of the first 1/rate groups and take steps of `rate` from then on. rate/4 S is the variance that g has when
e is nothing but noise: g is a running mean of p less a running mean of that, and the squares of this filter's response sum to rate/4.
The slope b is learned where strictness varies by more than sqrt(v0) = .1, and taken as -s = -2 where it hardly does: a teacher that
follows the frontier would otherwise read "the stricter, the later, the stronger" as "strictness does not matter".

It looks at outcomes only, so it holds for any way of choosing strictness. A coin flip, an impossible family and a mastered one have no
progress, whatever their variance; one that is being forgotten has as much as one that is being learned.

Source: our own; learning progress between families after Kanitscheider et al. 2021 (arXiv 2106.14876) and OMNI (arXiv 2306.01711), who
compare a fast with a slow average of success and take neither strictness nor noise out.

Which families get the next groups, by learning progress above an even floor, and which of their scenarios, each once a round.

Source: learning progress between tasks after Kanitscheider et al. 2021 (arXiv 2106.14876) and OMNI (arXiv 2306.01711); how it is
measured here is `curriculum.allocation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic.dataclasses import dataclass

from curriculum.checks import require_between, require_fields
from curriculum.task import FamilyKey
from simulator.settings import SETTINGS

ASSUMED_SLOPE = 2.0
"""s: fall of success per unit of strictness where it cannot be learned; wrong by a factor, it scales all families alike."""
ASSUMED_VARIANCE = 0.01
"""v0: variance of strictness at which the assumed and the learned slope weigh the same."""
COLUMNS = ("num_seen", "success", "strictness", "variance", "covariance", "surprise", "squared_surprise")


class FamilyProgress:
    """Running figures of each family, in rows of `figures_FC`; C as in `COLUMNS`."""

    def __init__(self, num_families: int, *, rate: float, num_errors: float) -> None:
        """
        Args:
            rate: step of the running means, in (0, 1]; 1 / rate groups are remembered.
            num_errors: z, the standard errors that chance is granted; at least 0.
        """
        self._rate = rate
        self._num_errors = num_errors
        self.figures_FC = np.zeros((num_families, len(COLUMNS)))

    def learn(self, f: int, *, strictness: float, fared: float) -> None:
        """Takes in how a group of the family with index `f` fared, in [0, 1]."""
        num_seen, mean_p, mean_d, variance, covariance, running_e, squared_e = self.figures_FC[f].tolist()
        step = max(self._rate, 1.0 / (num_seen + 1.0))
        if num_seen == 0:
            mean_p, mean_d = fared, strictness
        above_d, above_p = strictness - mean_d, fared - mean_p
        slope = -ASSUMED_SLOPE + (covariance + ASSUMED_SLOPE * variance) / (variance + ASSUMED_VARIANCE)
        e = above_p - slope * above_d
        self.figures_FC[f] = (
            num_seen + 1.0,
            mean_p + step * above_p,
            mean_d + step * above_d,
            variance + step * ((1.0 - step) * above_d * above_d - variance),
            covariance + step * ((1.0 - step) * above_d * above_p - covariance),
            running_e + self._rate * (e - running_e),
            squared_e + step * (e * e - squared_e),
        )

    @property
    def num_seen(self) -> np.ndarray:
        """[F] groups of each family so far."""
        return self.figures_FC[:, 0]

    def progress(self) -> np.ndarray:
        """[F] progress of each family, in what `learn` was told, at least 0."""
        running_e_F, squared_e_F = self.figures_FC[:, -2:].T
        return np.sqrt(np.maximum(0.0, running_e_F**2 - self._num_errors**2 * self._rate / 4.0 * squared_e_F))

    def state_dict(self) -> dict[str, list[float]]:
        """The figures by name, each by family."""
        return {name: self.figures_FC[:, c].tolist() for c, name in enumerate(COLUMNS)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        require_fields("teacher state's allocation.progress", state, COLUMNS)
        columns = [np.array(state[name], dtype=float) for name in COLUMNS]
        for name, column_F in zip(COLUMNS, columns, strict=True):
            if column_F.shape != (len(self.figures_FC),):
                raise ValueError(
                    f"teacher state's allocation.progress.{name} must have {len(self.figures_FC)} numbers, got {column_F.size}"
                )
        self.figures_FC = np.stack(columns, axis=-1)


@dataclass(config=SETTINGS)
class AllocationConfig:
    """How groups are shared between families."""

    uniform_floor: float = 0.25
    """[0, 1]: share of the groups that is spread evenly whatever was learned; 1 spreads all of them evenly."""
    rate: float = 0.015
    """(0, 1]: step, per group of a family, of the averages by which its progress is measured; smaller is surer and slower."""
    num_errors: float = 2.0
    """[0, 10]: standard errors by which progress must exceed chance before it counts."""
    prior_progress: float = 0.003
    """(0, 1]: progress granted to every family beside what was measured, as a share of faring at its best; larger is more even."""
    known_after: float = 50.0
    """[0, 10000]: groups of a family after which its own progress counts half; the rest is the mean over families."""
    largest: float = 3.0
    """[1, 1000]: the most that one family gets, as a multiple of an even share."""

    def __post_init__(self) -> None:
        require_between("teacher.allocation.uniform_floor", self.uniform_floor, 0.0, 1.0)
        require_between("teacher.allocation.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.allocation.num_errors", self.num_errors, 0.0, 10.0)
        require_between("teacher.allocation.prior_progress", self.prior_progress, 1e-6, 1.0)
        require_between("teacher.allocation.known_after", self.known_after, 0.0, 10_000.0)
        require_between("teacher.allocation.largest", self.largest, 1.0, 1000.0)


class FamilyAllocation:
    """Shares groups between families: share_f = floor / F + (1 - floor) * w_f / sum w, with w_f = progress_f + prior.

    Families are dealt by accumulated credit, so that after any number of groups each has had its share to within two groups;
    with equal shares this is a shuffled deck. Noise, impossible and mastered families make no progress and fall to the floor;
    families of which little was seen are judged like the mean, so that the first to show progress does not starve the others.
    """

    def __init__(self, config: AllocationConfig, families: Sequence[FamilyKey]) -> None:
        self.config = config
        self.progress = FamilyProgress(len(families), rate=config.rate, num_errors=config.num_errors)
        self._families = tuple(families)
        self._index = {family: i for i, family in enumerate(self._families)}
        self._credit_F = np.zeros(len(self._families))

    def shares(self) -> np.ndarray:
        """[F] long-run share of the groups that each family gets at present, in the order of the families; sums to 1."""
        progress_F, num_seen_F = self.progress.progress(), self.progress.num_seen
        known_F = num_seen_F / np.maximum(num_seen_F + self.config.known_after, 1e-9)
        weights_F = known_F * progress_F + (1.0 - known_F) * progress_F.mean() + self.config.prior_progress
        floor, num_families = self.config.uniform_floor, len(self._families)
        return capped(floor / num_families + (1.0 - floor) * weights_F / weights_F.sum(), self.config.largest / num_families)

    def choose(self, num_groups: int, rng: np.random.Generator) -> list[tuple[FamilyKey, float]]:
        """The families of the next groups, each with its share."""
        shares_F = self.shares()
        chosen = []
        for _ in range(num_groups):
            self._credit_F += shares_F
            # Jitter below one credit shuffles families that are level with each other and never lets one overtake twice.
            i = int(np.argmax(self._credit_F + 0.5 * rng.random(len(self._families))))
            self._credit_F[i] -= 1.0
            chosen.append((self._families[i], float(shares_F[i])))
        return chosen

    def learn(self, family: FamilyKey, *, strictness: float, fared: float) -> None:
        """Takes in how a group of `family` fared, in [0, 1], with the strictness that was issued."""
        self.progress.learn(self._index[family], strictness=strictness, fared=fared)

    def state_dict(self) -> dict[str, Any]:
        """Credits and progress by family."""
        return {"credit": self._credit_F.tolist(), "progress": self.progress.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        require_fields("teacher state's allocation", state, ("credit", "progress"))
        credit_F = np.array(state["credit"], dtype=float)
        if credit_F.shape != self._credit_F.shape:
            raise ValueError(f"teacher state's allocation.credit must have {len(self._families)} numbers, got {credit_F.size}")
        self.progress.load_state_dict(state["progress"])
        self._credit_F = credit_F


def capped(shares_F: np.ndarray, largest: float) -> np.ndarray:
    """The shares with none above `largest`, at least 1 / F; what is cut off goes to the others in proportion."""
    shares_F = shares_F.copy()
    for _ in range(len(shares_F)):
        over_F = shares_F > largest
        if not over_F.any():
            break
        shares_F[over_F] = largest
        below_F = shares_F < largest
        if not below_F.any():
            break
        shares_F[below_F] *= (1.0 - shares_F[~below_F].sum()) / shares_F[below_F].sum()
    return shares_F


class ScenarioDecks:
    """One shuffled deck of scenarios per family; a deck is reshuffled when it has been dealt to the end."""

    def __init__(self, scenarios: Mapping[FamilyKey, Sequence[str]]) -> None:
        self._scenarios = {family: tuple(ids) for family, ids in scenarios.items()}
        self._left: dict[FamilyKey, list[str]] = {family: [] for family in scenarios}

    def draw(self, family: FamilyKey, rng: np.random.Generator) -> str:
        """The next scenario of `family`."""
        left = self._left[family]
        if not left:
            ids = self._scenarios[family]
            left.extend(ids[i] for i in rng.permutation(len(ids)))
        return left.pop()

    def state_dict(self) -> dict[str, Any]:
        """What is left of each deck, the next card last."""
        return {str(family): list(left) for family, left in self._left.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; refuses scenarios that this teacher does not have."""
        require_fields("teacher state's scenarios", state, map(str, self._scenarios))
        left = {family: list(state[str(family)]) for family in self._scenarios}
        for family, ids in left.items():
            if strangers := set(ids) - set(self._scenarios[family]):
                raise ValueError(f"teacher state's scenarios of {family} must be in the scenario bank, got {sorted(strangers)[0]!r}")
        self._left = left
