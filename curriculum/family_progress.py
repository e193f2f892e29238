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
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from curriculum.checks import require_fields

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
