"""How often each family succeeds at each strictness: discounted Beta counts on bins, one grid for all families behind one for each.

A group of family f, issued at strictness d while the policy was at version v, adds its successes to `wins` and its failures to `losses`

    of f's own grid, in the bin of d, and of the shared grid, in the bin of clip(d - offset_f, 0, 1)

with weight discount^(v_now - v), v_now being the newest version an outcome has come from: old evidence fades as the policy moves on,
and late evidence counts for no more than it is worth. Each bin also hears its neighbours, corrected for the slope s by which success is
assumed to fall, so that a bin long unvisited is judged by them and not drawn for ever. With n_j rollouts of share p_j in bin j:

    heard_k = own counts + at most `neighbour_prior` rollouts of sum_{j != k} exp(-(d_k - d_j)^2 / (2 smoothing^2)) n_j (p_kj, 1 - p_kj)
    p_kj = clip(p_j - s (d_k - d_j), 0, 1)
    shared posterior of bin k:    (2 (1 - d_k), 2 d_k) + heard_k in the shared grid
    posterior of family f, bin k: the shared one at d_k - offset_f, worth at most `family_prior` rollouts, + heard_k in f's own grid

(2 (1 - d), 2 d) says that stricter is harder, and is outweighed by one group. Families share the curve and differ by an offset, learned
from how much better a group fared than the shared curve says: offset_f += gain_f (p - expected) / s, with mean over families kept at 0
and gain_f = max(1 / (n_f + offset_prior), offset_rate), n_f groups of the family having come before. A family that has groups enough is
judged by its own grid, whatever its shape.

Source: our own. Thompson draws on it are `curriculum.beta_thompson`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curriculum.checks import require_between, require_fields, settle_types
from curriculum.ledger import success_share
from curriculum.teacher import FamilyKey, GroupOutcome


@dataclass
class BinsConfig:
    """How evidence fades, spreads and is shared."""

    num_bins: int = 20
    """[2, 100]: bins of equal width over [0, 1]."""
    discount: float = 0.9
    """[0, 1]: weight that evidence keeps at each new version of the policy."""
    smoothing: float = 0.1
    """[.001, 1]: width of the kernel by which a bin hears its neighbours, in strictness."""
    neighbour_prior: float = 30.0
    """[0, 1000]: the most that a bin's neighbours count for beside its own evidence, in rollouts; larger hides what is local."""
    family_prior: float = 100.0
    """[0, 1000]: worth, in rollouts, of the belief that a family is like all others, shifted; 0 leaves each to its own grid."""
    offset_prior: float = 2.0
    """[1, 100]: worth, in groups, of the belief that a family's offset is 0."""
    offset_rate: float = 0.1
    """[0, 1]: least weight of a new group in its family's offset; larger forgets faster."""
    slope: float = 2.0
    """[.1, 20]: assumed fall of success per unit of strictness, by which a surprise becomes an offset."""

    def __post_init__(self) -> None:
        settle_types(self, "teacher.bins")
        require_between("teacher.bins.num_bins", self.num_bins, 2, 100)
        require_between("teacher.bins.discount", self.discount, 0.0, 1.0)
        require_between("teacher.bins.smoothing", self.smoothing, 0.001, 1.0)
        require_between("teacher.bins.neighbour_prior", self.neighbour_prior, 0.0, 1000.0)
        require_between("teacher.bins.family_prior", self.family_prior, 0.0, 1000.0)
        require_between("teacher.bins.offset_prior", self.offset_prior, 1.0, 100.0)
        require_between("teacher.bins.offset_rate", self.offset_rate, 0.0, 1.0)
        require_between("teacher.bins.slope", self.slope, 0.1, 20.0)


class StrictnessBins:
    """Beta posteriors of success by family and bin. Shapes: F families, K bins, 2 for (wins, losses)."""

    def __init__(
        self, config: BinsConfig, families: Sequence[FamilyKey], *, fared: Callable[[GroupOutcome], float] = success_share
    ) -> None:
        """Args:
        fared: what of a group counts as successes, as a share in [0, 1].
        """
        self.config, self._fared = config, fared
        self.centres_K = (np.arange(config.num_bins) + 0.5) / config.num_bins
        self._index = {family: f for f, family in enumerate(families)}
        self._prior_K2 = 2.0 * np.stack([1.0 - self.centres_K, self.centres_K], axis=-1)
        distances_KK = self.centres_K[:, None] - self.centres_K[None, :]
        self._kernel_KK = np.exp(-0.5 * np.square(distances_KK / config.smoothing)) * (1.0 - np.eye(config.num_bins))
        self._fall_KK = config.slope * distances_KK
        self._version = 0
        self._own_FK2 = np.zeros((len(families), config.num_bins, 2))
        self._shared_K2 = np.zeros((config.num_bins, 2))
        self._offsets_F = np.zeros(len(families))
        self._num_seen_F = np.zeros(len(families))
        self._curve_K2 = self._shared_posterior()

    def bin(self, strictness: float) -> int:
        """The bin of a strictness; what lies outside [0, 1] belongs to the first or the last."""
        return min(max(int(strictness * self.config.num_bins), 0), self.config.num_bins - 1)

    def offset(self, family: FamilyKey) -> float:
        """How much stronger than the mean family the agent is here, in strictness."""
        return float(self._offsets_F[self._index[family]])

    def shared(self) -> np.ndarray:
        """[K, 2] Beta parameters of success at a strictness relative to the family's offset."""
        return self._curve_K2.copy()

    def posterior(self, family: FamilyKey) -> np.ndarray:
        """[K, 2] Beta parameters of success of `family` in each bin, all above 0."""
        f = self._index[family]
        relative_K = self.centres_K - self._offsets_F[f]
        wins_K = np.interp(relative_K, self.centres_K, self._curve_K2[:, 0])
        losses_K = np.interp(relative_K, self.centres_K, self._curve_K2[:, 1])
        # Never below the two rollouts of the first belief, so that Beta stays proper without any sharing.
        worth_K = np.minimum(1.0, max(self.config.family_prior, 2.0) / (wins_K + losses_K))
        posterior_K2 = self._heard(self._own_FK2[f])
        posterior_K2[:, 0] += worth_K * wins_K
        posterior_K2[:, 1] += worth_K * losses_K
        return posterior_K2

    def _shared_posterior(self) -> np.ndarray:
        return self._prior_K2 + self._heard(self._shared_K2)

    def _heard(self, counts_K2: np.ndarray) -> np.ndarray:
        num_K = counts_K2.sum(axis=-1)
        share_K = counts_K2[:, 0] / np.maximum(num_K, 1e-12)
        share_KK = np.minimum(np.maximum(share_K - self._fall_KK, 0.0), 1.0)
        near_K, near_wins_K = self._kernel_KK @ num_K, (self._kernel_KK * share_KK) @ num_K
        worth_K = np.minimum(1.0, self.config.neighbour_prior / np.maximum(near_K, 1e-12))
        heard_K2 = counts_K2.copy()
        heard_K2[:, 0] += worth_K * near_wins_K
        heard_K2[:, 1] += worth_K * np.maximum(near_K - near_wins_K, 0.0)
        return heard_K2

    def draw(self, family: FamilyKey, target: float, rng: np.random.Generator) -> float:
        """A Thompson draw: a strictness from the bin whose success, drawn from its posterior, comes closest to `target`."""
        posterior_K2 = self.posterior(family)
        success_K = rng.beta(posterior_K2[:, 0], posterior_K2[:, 1])
        k = int(np.argmin(np.abs(success_K - target)))
        return float((k + rng.random()) / self.config.num_bins)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Takes in groups, each at the strictness and version with which it was issued."""
        newest = max([self._version, *(group.task.policy_version for group in groups)])
        faded = self.config.discount ** (newest - self._version)
        self._own_FK2 *= faded
        self._shared_K2 *= faded
        self._version = newest
        shares = [self._fared(group) for group in groups]
        for group, share in zip(groups, shares, strict=True):
            self._count(group, share)
        for group, share in zip(groups, shares, strict=True):
            self._learn_offset(group, share)
        self._offsets_F -= self._offsets_F.mean()
        self._curve_K2 = self._shared_posterior()

    def _count(self, group: GroupOutcome, share: float) -> None:
        f = self._index[group.task.family]
        weight = self.config.discount ** (self._version - group.task.policy_version) * len(group.surviving)
        counts_2 = weight * np.array([share, 1.0 - share])
        self._own_FK2[f, self.bin(group.task.strictness)] += counts_2
        self._shared_K2[self.bin(group.task.strictness - self._offsets_F[f])] += counts_2

    def _learn_offset(self, group: GroupOutcome, share: float) -> None:
        f = self._index[group.task.family]
        wins, losses = self._curve_K2[self.bin(group.task.strictness - self._offsets_F[f])]
        surprise = share - wins / (wins + losses)
        gain = max(1.0 / (self._num_seen_F[f] + self.config.offset_prior), self.config.offset_rate)
        self._offsets_F[f] = min(max(self._offsets_F[f] + gain * surprise / self.config.slope, -1.0), 1.0)
        self._num_seen_F[f] += 1.0

    def state_dict(self) -> dict[str, Any]:
        """Counts, offsets and the version they are faded to."""
        arrays = {name: array.tolist() for name, array in self._arrays().items()}
        return {"version": self._version, **arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; refuses arrays of other shapes."""
        require_fields("teacher state's bins", state, ("version", *self._arrays()))
        arrays = {name: np.array(state[name], dtype=float) for name in self._arrays()}
        for name, array in arrays.items():
            if array.shape != (expected := self._arrays()[name].shape):
                raise ValueError(
                    f"teacher state's bins.{name} must have shape {expected}, got {array.shape}; resume with the same settings"
                )
        self._version = state["version"]
        self._own_FK2, self._shared_K2, self._offsets_F, self._num_seen_F = arrays.values()
        self._curve_K2 = self._shared_posterior()

    def _arrays(self) -> dict[str, np.ndarray]:
        return {"own": self._own_FK2, "shared": self._shared_K2, "offsets": self._offsets_F, "num_seen": self._num_seen_F}
