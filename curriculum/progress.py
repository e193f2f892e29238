"""Learning progress: practise where a fast and a slow average of success differ, whether success rises or falls.

With s the success share of a cell's groups that came back together and a the `rate`:

    fast <- fast + a (s - fast),    slow <- slow + a (fast - slow)        both start at the first s
    w(p) = p (1 - h) / (p + h (1 - 2 p))                                  h = `theta`; small p are told apart best
    progress = |w(fast) - w(slow)|                                        0 for a cell that was never seen
    P(c) = e / C + (1 - e) sigmoid(z(c)) / sum sigmoid(z)                 z = progress less its mean over cells, over its deviation

Success at random teaches nothing to a success that stands still: noise, the impossible and the mastered fall to little more than the even
share e (`uniform_share`). A cell in which nothing has happened keeps a sigmoid of its own, so this never narrows far: over many
cells it is gentle. The public code takes z over the cells with progress alone and leaves the others the even share; here it is as above,
since with few groups a cell that showed nothing yet is no cell that teaches nothing.

With `baseline_groups` above 0 success is counted above the untrained agent's, s <- max(s - b, 0) / (1 - b), b being the mean of the cell's
first so many groups, at most .75. It needs the whole of them before it learns, and takes early progress for part of the baseline.

Defaults: rate .1, h .1, e .25 as in the public code. Source: arXiv 2106.14876, arXiv 2306.01711 (OMNI), Syllabus
(its baseline is measured beforehand with a random policy, which a teacher does not have).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curriculum.cells import CellConfig, CellTeacher, CellValues, mean_over_rollouts
from curriculum.checks import require_between
from curriculum.ledger import success_share
from curriculum.teacher import GroupOutcome

MAX_BASELINE = 0.75


@dataclass
class ProgressConfig(CellConfig):
    """Settings of `ProgressTeacher`."""

    rate: float = 0.1
    """(0, 1]: step a of the fast average, and of the slow one that follows it."""
    theta: float = 0.1
    """(0, .5]: how much more a change near 0 counts than one near 1; .5 weighs all alike."""
    uniform_share: float = 0.25
    """[0, 1]: share e of the groups that is spread evenly."""
    baseline_groups: int = 0
    """[0, 1000]: first groups of a cell that make up its baseline; 0 takes success as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.theta", self.theta, 1e-6, 0.5)
        require_between("teacher.uniform_share", self.uniform_share, 0.0, 1.0)
        require_between("teacher.baseline_groups", self.baseline_groups, 0, 1000)


class ProgressTeacher(CellTeacher):
    """Cells by their learning progress above an even share."""

    kind = "progress"
    adapting = ("fast", "slow", "baseline", "num_baseline")
    config: ProgressConfig

    def __init__(self, config: ProgressConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.fast, self.slow = CellValues(self.num_cells), CellValues(self.num_cells)
        self.baseline, self.num_baseline = CellValues(self.num_cells, start=0.0), CellValues(self.num_cells, start=0.0)

    def explore_share(self) -> float:
        """e."""
        return self.config.uniform_share

    def progress(self, cells: slice) -> np.ndarray:
        """[N] |w(fast) - w(slow)| of these cells, in [0, 1]."""
        fast_N, slow_N = (reweigh(average.values_C[cells], self.config.theta) for average in (self.fast, self.slow))
        return np.nan_to_num(np.abs(fast_N - slow_N))

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] by progress; even where all progress alike."""
        progress_N = self.progress(cells)
        spread = progress_N.std()
        weights_N = 1.0 / (1.0 + np.exp((progress_N.mean() - progress_N) / spread)) if spread > 0.0 else np.ones(len(progress_N))
        return weights_N / weights_N.sum()

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Moves both averages of the cells that were heard of, or their baseline while that is being taken."""
        for cell, heard in self.by_cell(groups):
            missing = max(0, self.config.baseline_groups - int(self.num_baseline.values_C[cell]))
            for group in heard[:missing]:
                self.num_baseline.values_C[cell] += 1.0
                self.baseline.values_C[cell] += (success_share(group) - self.baseline.values_C[cell]) / self.num_baseline.values_C[cell]
            if after := heard[missing:]:
                self._learn_cell(cell, mean_over_rollouts(after, success_share))

    def _learn_cell(self, cell: int, success: float) -> None:
        baseline = min(self.baseline.values_C[cell], MAX_BASELINE)
        success = max(success - baseline, 0.0) / (1.0 - baseline)
        fast_C, slow_C, rate = self.fast.values_C, self.slow.values_C, self.config.rate
        if np.isnan(fast_C[cell]):
            fast_C[cell] = slow_C[cell] = success
        fast_C[cell] += rate * (success - fast_C[cell])
        slow_C[cell] += rate * (fast_C[cell] - slow_C[cell])

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the greatest progress."""
        return {**super().metrics(), "curriculum/progress_best": float(self.progress(slice(None)).max())}


def reweigh(p: np.ndarray, theta: float) -> np.ndarray:
    """w(p): 0 at 0, 1 at 1, slope (1 - theta) / theta at 0."""
    return p * (1.0 - theta) / (p + theta * (1.0 - 2.0 * p))
