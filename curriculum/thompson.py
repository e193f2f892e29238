"""Thompson sampling of strictness: discounted Beta posteriors of success on bins, and the teacher that draws on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec
from curriculum.teacher import Teacher, TeacherConfig
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class BinsConfig:
    """How evidence fades, spreads and is shared."""

    num_bins: int = Field(default=20, ge=2, le=100)
    """Bins of equal width over [0, 1]."""
    discount: float = Field(default=0.9, ge=0, le=1)
    """Weight that evidence keeps at each new version of the policy."""
    smoothing: float = Field(default=0.1, ge=0.001, le=1)
    """Width of the kernel by which a bin's neighbours count for it, in strictness."""
    neighbour_prior: float = Field(default=30.0, ge=0, le=1000)
    """The most that a bin's neighbours count in addition to its own evidence, in rollouts; larger hides local effects."""
    family_prior: float = Field(default=100.0, ge=0, le=1000)
    """Worth, in rollouts, of the belief that a family is like all others, shifted; 0 leaves each to its own grid."""
    offset_prior: float = Field(default=2.0, ge=1, le=100)
    """Worth, in groups, of the belief that a family's offset is 0."""
    offset_rate: float = Field(default=0.1, ge=0, le=1)
    """Least weight of a new group in its family's offset; larger forgets faster."""
    slope: float = Field(default=2.0, ge=0.1, le=20)
    """Assumed fall of success per unit of strictness, by which an error in success becomes an offset."""


class StrictnessBins:
    """Success of each family at each strictness: discounted Beta counts on bins, one grid for each family and one that all share.

    A group of family f, issued at strictness d while the policy was at version v, adds its successes to `wins` and its failures to `losses`

        of f's own grid, in the bin of d, and of the shared grid, in the bin of clip(d - offset_f, 0, 1)

    with weight discount^(v_now - v), v_now being the newest version an outcome has come from. Each bin also counts its neighbours,
    corrected for the slope s by which success is assumed to fall, so that a bin long unvisited is judged by them and not drawn for ever.

        smooth_k = own counts + at most `neighbour_prior` rollouts of sum_{j != k} w_kj n_j (p_kj, 1 - p_kj)
        w_kj = exp(-(d_k - d_j)^2 / (2 smoothing^2))
        p_kj = clip(p_j - s (d_k - d_j), 0, 1)
        shared posterior of bin k:    (2 (1 - d_k), 2 d_k) + smooth_k in the shared grid
        posterior of family f, bin k: the shared one at d_k - offset_f, worth at most `family_prior` rollouts, + smooth_k in f's own grid

    (2 (1 - d), 2 d) is the belief that stricter is harder, and is outweighed by one group. Families share the curve and differ by offsets
    with mean 0, learned from a group's success p against the curve: offset_f += gain_f (p - expected) / s, with
    gain_f = max(1 / (n_f + offset_prior), offset_rate), n_f groups of the family having come before.

    Shapes: F families, K bins, 2 for (wins, losses). Source: our own. `BetaThompsonTeacher` draws on it alone.
    """

    def __init__(self, config: BinsConfig, families: Sequence[FamilyKey]) -> None:
        self.config = config
        self.centres_K = (np.arange(config.num_bins) + 0.5) / config.num_bins
        self._index = {family: f for f, family in enumerate(families)}
        self._prior_K2 = 2.0 * np.stack([1.0 - self.centres_K, self.centres_K], axis=-1)
        distances_KK = self.centres_K[:, None] - self.centres_K[None, :]
        self._kernel_KK = np.exp(-0.5 * np.square(distances_KK / config.smoothing)) * (1.0 - np.eye(config.num_bins))
        self._fall_KK = config.slope * distances_KK
        self._version = 0
        self._own_FK2 = np.zeros((len(families), config.num_bins, 2))
        self._shared_K2 = np.zeros((config.num_bins, 2))
        self.offsets_F = np.zeros(len(families))
        """How much stronger the agent is with each family than with the mean one, in strictness."""
        self._num_seen_F = np.zeros(len(families))
        self.curve_K2 = self._prior_K2 + self._smoothed(self._shared_K2)
        """[K, 2] Beta parameters of success at a strictness relative to the family's offset."""

    def bin(self, strictness: float) -> int:
        """The bin of a strictness; values outside [0, 1] belong to the first or the last."""
        return min(max(int(strictness * self.config.num_bins), 0), self.config.num_bins - 1)

    def posterior(self, family: FamilyKey) -> np.ndarray:
        """[K, 2] Beta parameters of success of `family` in each bin, all above 0."""
        f = self._index[family]
        relative_K = self.centres_K - self.offsets_F[f]
        wins_K = np.interp(relative_K, self.centres_K, self.curve_K2[:, 0])
        losses_K = np.interp(relative_K, self.centres_K, self.curve_K2[:, 1])
        # Never below the two rollouts of the first belief, so that Beta stays proper without any sharing.
        worth_K = np.minimum(1.0, max(self.config.family_prior, 2.0) / (wins_K + losses_K))
        posterior_K2 = self._smoothed(self._own_FK2[f])
        posterior_K2[:, 0] += worth_K * wins_K
        posterior_K2[:, 1] += worth_K * losses_K
        return posterior_K2

    def _smoothed(self, counts_K2: np.ndarray) -> np.ndarray:
        num_K = counts_K2.sum(axis=-1)
        share_K = counts_K2[:, 0] / np.maximum(num_K, 1e-12)
        share_KK = np.minimum(np.maximum(share_K - self._fall_KK, 0.0), 1.0)
        near_K, near_wins_K = self._kernel_KK @ num_K, (self._kernel_KK * share_KK) @ num_K
        worth_K = np.minimum(1.0, self.config.neighbour_prior / np.maximum(near_K, 1e-12))
        smooth_K2 = counts_K2.copy()
        smooth_K2[:, 0] += worth_K * near_wins_K
        smooth_K2[:, 1] += worth_K * np.maximum(near_K - near_wins_K, 0.0)
        return smooth_K2

    def draw(self, family: FamilyKey, target: float, rng: np.random.Generator) -> float:
        """A Thompson draw: a strictness from the bin whose success, drawn from its posterior, comes closest to `target`."""
        posterior_K2 = self.posterior(family)
        success_K = rng.beta(posterior_K2[:, 0], posterior_K2[:, 1])
        k = int(np.argmin(np.abs(success_K - target)))
        return float((k + rng.random()) / self.config.num_bins)

    def learn(self, groups: Sequence[GroupOutcome], performances: Sequence[float]) -> None:
        """Takes in groups, each at the strictness and version with which it was issued, and the performance of each, in [0, 1]."""
        newest = max([self._version, *(group.task.policy_version for group in groups)])
        faded = self.config.discount ** (newest - self._version)
        self._own_FK2 *= faded
        self._shared_K2 *= faded
        self._version = newest
        pairs = list(zip(groups, performances, strict=True))
        for group, share in pairs:
            f, d = self._index[group.task.family], group.task.strictness
            weight = self.config.discount ** (self._version - group.task.policy_version) * len(group.surviving)
            counts_2 = weight * np.array([share, 1.0 - share])
            self._own_FK2[f, self.bin(d)] += counts_2
            self._shared_K2[self.bin(d - self.offsets_F[f])] += counts_2
        for group, share in pairs:
            f = self._index[group.task.family]
            wins, losses = self.curve_K2[self.bin(group.task.strictness - self.offsets_F[f])]
            error = share - wins / (wins + losses)
            gain = max(1.0 / (self._num_seen_F[f] + self.config.offset_prior), self.config.offset_rate)
            self.offsets_F[f] = min(max(self.offsets_F[f] + gain * error / self.config.slope, -1.0), 1.0)
            self._num_seen_F[f] += 1.0
        self.offsets_F -= self.offsets_F.mean()
        self.curve_K2 = self._prior_K2 + self._smoothed(self._shared_K2)

    def state_dict(self) -> dict[str, Any]:
        """Counts, offsets and the version they are faded to."""
        arrays = {"own": self._own_FK2, "shared": self._shared_K2, "offsets": self.offsets_F, "num_seen": self._num_seen_F}
        return {"version": self._version, **{name: array.tolist() for name, array in arrays.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        names = ("own", "shared", "offsets", "num_seen")
        self._own_FK2, self._shared_K2, self.offsets_F, self._num_seen_F = (np.array(state[name], dtype=float) for name in names)
        self._version = state["version"]
        self.curve_K2 = self._prior_K2 + self._smoothed(self._shared_K2)


@dataclass(config=SETTINGS)
class BetaThompsonConfig(TeacherConfig):
    """Settings of `BetaThompsonTeacher`."""

    target_success: float = Field(default=0.45, ge=0.05, le=0.95)
    """Success rate p* to aim at."""
    explore: float = Field(default=0.05, ge=0, le=1)
    """Share of groups at a uniformly drawn strictness."""
    bins: BinsConfig = field(default_factory=BinsConfig)


class BetaThompsonTeacher(Teacher):
    """Samples success at every strictness and practises where the sample meets the target: returns to users that were forgotten.

    For each group, with the Beta posteriors (w_k, l_k) of its family's success in the K bins of strictness (`StrictnessBins`):

        q_k ~ Beta(w_k, l_k),     k = argmin_k |q_k - p*|,     d ~ U(bin k)

    A bin of uncertain success is now and then drawn at the target and so visited, and one where success has fallen to the target is
    practised again wherever it lies: the curve may have any shape, unlike a tracker's. A share `explore` of the groups is uniform. Outcomes
    are credited to the strictness and the version that were issued, so delay costs only the freshness of the evidence.

    Source: our own; Thompson sampling after Chapelle & Li 2011. Measured in docs/teachers.md.
    """

    kind = "beta_thompson"
    adapting = ("bins",)
    config: BetaThompsonConfig

    def start(self) -> None:
        self.bins = StrictnessBins(self.config.bins, self.families)

    def choose(self, family: FamilyKey) -> TaskSpec:
        explore = self.config.explore
        if self.rng.random() < explore:
            return self.task(family, self.rng.random(), Mode.UNIFORM, explore)
        return self.task(family, self.bins.draw(family, self.config.target_success, self.rng), Mode.FRONTIER, 1.0 - explore)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        self.bins.learn(groups, [group.success_rate for group in groups])

    def metrics(self) -> dict[str, float]:
        success_K = self.bins.curve_K2[:, 0] / self.bins.curve_K2.sum(axis=-1)
        success = {f"curriculum/beta_thompson/success_at_{d}": float(success_K[self.bins.bin(d)]) for d in (0.25, 0.75)}
        return {**super().metrics(), **success, "curriculum/beta_thompson/offset_std": float(np.std(self.bins.offsets_F))}
