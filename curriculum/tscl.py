"""Teacher-student curriculum learning (TSCL): practise where reward changes fastest, whether it rises or falls.

With x the mean reward of a cell's groups that came back together, in [0, 1], and t the step they were issued in, a cell's value is, by
`variant`,
    online   Q <- a (x - x before) + (1 - a) Q, with a the `rate`; 0 before the second x
    window   the slope of x over t by least squares through its last `window` pairs, reward a step; 1 before the second t

and the next groups are drawn by the size of the values, e being `epsilon`, T the `temperature` in the units of the value:

    P(c) = e / C + (1 - e) exp(|Q(c)| / T) / sum exp(|Q| / T);    at T = 0 the greatest |Q| takes it all

The fall counts as much as the rise: it is what is being forgotten. Reward changes by chance as well, most at even odds, so with few
rollouts a cell the noise of x (.18 for 8 coins) is most of what is followed.

Defaults: window 10, rate .1, epsilon .1 and T = 0 as in the public code. Reward is there that of all cells, examined after each step;
here it is that of the groups alone, so a cell's value stands still until the cell comes again. T about .003 spreads the groups of a step
over several cells.
Source: arXiv 1707.00183, github.com/tambetm/TSCL (its third variant, a Thompson draw from recent changes, is not here: it has no
propensity in closed form).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from curriculum.cells import CellConfig, CellTeacher, CellValues, CellWindows, mean_over_rollouts, softmax
from curriculum.checks import require_between
from curriculum.ledger import mean_reward
from curriculum.teacher import GroupOutcome


class Variant(StrEnum):
    """How change is measured."""

    ONLINE = "online"
    WINDOW = "window"


@dataclass
class TsclConfig(CellConfig):
    """Settings of `TsclTeacher`."""

    variant: Variant = Variant.ONLINE
    """online or window."""
    rate: float = 0.1
    """(0, 1]: weight a of the newest change (online)."""
    window: int = 10
    """[2, 1000]: latest observations of a cell through which the slope is laid (window)."""
    epsilon: float = 0.1
    """[0, 1]: share of the groups that is spread evenly."""
    temperature: float = 0.0
    """[0, 100]: T of the softmax over |Q|; 0 is greedy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.window", self.window, 2, 1000)
        require_between("teacher.epsilon", self.epsilon, 0.0, 1.0)
        require_between("teacher.temperature", self.temperature, 0.0, 100.0)


class TsclTeacher(CellTeacher):
    """Softmax over the size of each cell's change in reward."""

    kind = "tscl"
    adapting = ("q", "observations")
    config: TsclConfig

    def __init__(self, config: TsclConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        is_online = config.variant is Variant.ONLINE
        self.q = CellValues(self.num_cells, start=0.0 if is_online else 1.0)
        # Step and mean reward; the online variant needs the latest only.
        self.observations = CellWindows(self.num_cells, size=1 if is_online else config.window)

    def explore_share(self) -> float:
        """epsilon."""
        return self.config.epsilon

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] by |Q|."""
        size_N = np.round(np.abs(self.q.values_C[cells]), 9)  # what is equal by algebra may differ in its last bit
        if self.config.temperature == 0.0:
            return (size_N == size_N.max()) / np.count_nonzero(size_N == size_N.max())
        return softmax(size_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Takes in one observation for each cell that was heard of."""
        for cell, heard in self.by_cell(groups):
            observed = [float(np.mean([group.task.teacher_step for group in heard])), mean_over_rollouts(heard, mean_reward)]
            before = self.observations.entries[cell]
            if self.config.variant is Variant.ONLINE:
                if before:
                    self.q.values_C[cell] += self.config.rate * (observed[1] - before[-1][1] - self.q.values_C[cell])
                before.append(observed)
            else:
                before.append(observed)
                self.q.values_C[cell] = slope(np.array(before), unknown=self.q.values_C[cell])

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the fastest change."""
        return {**super().metrics(), "curriculum/tscl_fastest": float(np.abs(self.q.values_C).max())}


def slope(points_N2: np.ndarray, *, unknown: float) -> float:
    """Least-squares slope of the second column over the first; `unknown` where the first does not vary."""
    t_N, x_N = points_N2.T
    deviations_N = t_N - t_N.mean()
    spread = float(deviations_N @ deviations_N)
    return float(deviations_N @ x_N) / spread if spread > 0.0 else unknown
