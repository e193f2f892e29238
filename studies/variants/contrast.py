"""Where rollouts of one group end differently, by strictness: what a group-relative advantage is made of, measured and not inferred.

A group issued at strictness d to family f, while the policy was at version v, adds the unbiased variance u of its rollouts with weight
discount^(v_now - v) to the bin of clip(d - offset_f, 0, 1), on one grid for all families. With n_j the weight and u_j the mean variance of
bin j, and u the mean over all bins, each bin is judged with its neighbours and a little of what is true everywhere,

    contrast_k = (sum_j w_kj n_j u_j + prior u) / (sum_j w_kj n_j + prior),     w_kj = exp(-(d_k - d_j)^2 / (2 smoothing^2))

and drawn with a probability in proportion to contrast_k^sharpness. Bins that nobody visits fade back to the mean and are tried again.

With rewards of 0 or 1 and users of one strictness that are all alike, contrast is p (1 - p), the learnability of SFL (arXiv 2408.15099).
Where scenarios differ it is not: if half of them are always won and the others always lost, p (1 - p) is largest and nothing can be learnt.

Source: our own; VCRL (arXiv 2509.19803) keeps the prompts whose groups vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.target import TargetConfig, TargetTeacher
from curriculum.task import FamilyKey, GroupOutcome
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class ContrastConfig:
    """How evidence fades and spreads, and how closely draws keep to it."""

    num_bins: int = Field(default=20, ge=2, le=100)
    """Bins of equal width over [0, 1]."""
    discount: float = Field(default=0.9, ge=0, le=1)
    """Weight that evidence keeps at each new version of the policy."""
    smoothing: float = Field(default=0.05, ge=0.001, le=1)
    """Width of the kernel by which a bin's neighbours count for it, in strictness."""
    prior: float = Field(default=1.0, ge=0.01, le=100)
    """Worth, in groups, of the belief that a bin is like all others."""
    sharpness: float = Field(default=2.0, ge=0, le=10)
    """Power of the contrast to which draws are proportional; 0 draws evenly."""


class ContrastCurve:
    """The variance within groups by strictness. Shape: K bins."""

    def __init__(self, config: ContrastConfig) -> None:
        self.config = config
        self.centres_K = (np.arange(config.num_bins) + 0.5) / config.num_bins
        self._kernel_KK = np.exp(-0.5 * np.square((self.centres_K[:, None] - self.centres_K[None, :]) / config.smoothing))
        self._version = 0
        self._num_K = np.zeros(config.num_bins)
        self._sum_K = np.zeros(config.num_bins)

    def contrast(self) -> np.ndarray:
        """[K] mean variance within groups, by strictness relative to the family's offset; the same everywhere before any group came."""
        num = self._num_K.sum()
        everywhere = self._sum_K.sum() / num if num > 0.0 else 1.0
        prior = self.config.prior
        return (self._kernel_KK @ self._sum_K + prior * everywhere) / (self._kernel_KK @ self._num_K + prior)

    def draw(self, rng: np.random.Generator) -> float:
        """A strictness relative to the family's offset, in [0, 1); anywhere while no group differed at all."""
        # A draw from the running sum: rng.choice checks its weights, which takes longer than all the rest.
        sum_K = np.cumsum(np.power(self.contrast(), self.config.sharpness))
        if not sum_K[-1] > 0.0:
            return float(rng.random())
        k = int(np.searchsorted(sum_K, rng.random() * sum_K[-1], side="right"))
        return float((min(k, self.config.num_bins - 1) + rng.random()) / self.config.num_bins)

    def learn(self, groups: Sequence[GroupOutcome], values: Sequence[Sequence[float]], *, offsets: Sequence[float]) -> None:
        """Takes in groups of at least two survivors, each at the strictness and version with which it was issued.

        Args:
            values: of each group's survivors, in [0, 1], of which the variance is taken.
            offsets: of each group's family, in strictness.
        """
        newest = max([self._version, *(group.task.policy_version for group in groups)])
        faded = self.config.discount ** (newest - self._version)
        self._num_K *= faded
        self._sum_K *= faded
        self._version = newest
        for group, values_G, offset in zip(groups, values, offsets, strict=True):
            weight = self.config.discount ** (newest - group.task.policy_version)
            k = min(max(int((group.task.strictness - offset) * self.config.num_bins), 0), self.config.num_bins - 1)
            self._num_K[k] += weight
            self._sum_K[k] += weight * float(np.var(values_G, ddof=1))

    def state_dict(self) -> dict[str, Any]:
        """Weights, sums and the version they are faded to."""
        return {"version": self._version, "num": self._num_K.tolist(), "sum": self._sum_K.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`."""
        self._num_K, self._sum_K = (np.array(state[name], dtype=float) for name in ("num", "sum"))
        self._version = state["version"]


@dataclass(config=SETTINGS)
class FrontierByContrastConfig(TargetConfig):
    """Settings of the teacher target, and those of the draws away from the frontier."""

    contrast: ContrastConfig = field(default_factory=ContrastConfig)


class FrontierByContrastTeacher(TargetTeacher):
    """Target, whose groups away from the frontier go where rollouts of one group differed of late, so that few end all alike."""

    kind = "frontier_by_contrast"
    adapting = (*TargetTeacher.adapting, "contrast")
    config: FrontierByContrastConfig

    def start(self) -> None:
        super().start()
        self.contrast = ContrastCurve(self.config.contrast)

    def explored(self, family: FamilyKey) -> float:
        """A strictness at which groups differed, for this family."""
        return float(min(max(self.contrast.draw(self.rng) + self.offset(family), 0.0), 1.0))

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """What target learns, and where these groups differed."""
        super().learn(groups)
        offsets = [self.offset(group.task.family) for group in groups]
        self.contrast.learn(groups, [self.values(group) for group in groups], offsets=offsets)

    def offset(self, family: FamilyKey) -> float:
        """How much stricter than the mean family's its frontier is."""
        return self.offsets[str(family)] - float(np.mean(list(self.offsets.values())))

    def values(self, group: GroupOutcome) -> list[float]:
        """What the measure is a mean of, one for each survivor."""
        column = group.rewards if self.config.measure == "reward" else group.successes
        return [float(column[i]) for i in group.surviving]
