"""Which families get the next groups, by learning progress above an even floor, and which of their scenarios, each once a round.

Source: learning progress between tasks after Kanitscheider et al. 2021 (arXiv 2106.14876) and OMNI (arXiv 2306.01711); how it is
measured here is `curriculum.family_progress`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curriculum.checks import require_between, require_fields, settle_types
from curriculum.family_progress import FamilyProgress
from curriculum.teacher import FamilyKey


@dataclass
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
        settle_types(self, "teacher.allocation")
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
