"""Teacher-student curriculum learning (TSCL): practise where reward changes fastest, whether it rises or falls.

With x the mean reward of a cell's groups that came back together, in [0, 1], and t the step they were issued in, a cell's value is, by
`variant`,
    online     Q <- a (x - x before) + (1 - a) Q, with a the `rate`; 0 before the second x
    naive      Q <- a s + (1 - a) Q after each `window` steps, s the slope of x over t within them, 1 with fewer than two t; 0 at first
    window     the slope of x over t by least squares through its last `window` pairs, reward a step; 1 before the second t
    sampling   one of its last `window` changes x - x before, drawn evenly for each group; 1 before the second x

and the next groups are drawn by the size of the values, e being `epsilon`, T the `temperature` in the units of the value:

    P(c) = e / C + (1 - e) exp(|Q(c)| / T) / sum exp(|Q| / T);    at T = 0 the greatest |Q| takes it all

With `sampling` there is no T: the greatest of the values drawn takes it, and P(c) is the exact chance that c's is the greatest.

The fall counts as much as the rise: it is what is being forgotten. Reward changes by chance as well, most at even odds, so with few
rollouts a cell the noise of x (.18 for 8 coins) is most of what is followed.

Defaults: window 10, rate .1, epsilon .1 and T = 0 as in the public code, whose own default is sampling. Reward is there that of all cells,
examined after each step; here it is that of the groups alone, so a cell's value stands still until the cell comes again (naive: is 1 as
for a cell that nobody examined). T about .003 spreads the groups of a step over several cells.
Source: arXiv 1707.00183 (its four variants), github.com/tambetm/TSCL.
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
    NAIVE = "naive"
    WINDOW = "window"
    SAMPLING = "sampling"


@dataclass
class TsclConfig(CellConfig):
    """Settings of `TsclTeacher`."""

    variant: Variant = Variant.ONLINE
    """online, naive, window or sampling."""
    rate: float = 0.1
    """(0, 1]: weight a of the newest change (online) or slope (naive)."""
    window: int = 10
    """[2, 1000]: latest observations of a cell through which the slope is laid (window), or from whose changes one is drawn (sampling);
    steps between two updates (naive)."""
    epsilon: float = 0.1
    """[0, 1]: share of the groups that is spread evenly."""
    temperature: float = 0.0
    """[0, 100]: T of the softmax over |Q|; 0 is greedy. Not for sampling."""

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
        starts_at_0 = config.variant in (Variant.ONLINE, Variant.NAIVE)
        self.q = CellValues(self.num_cells, start=0.0 if starts_at_0 else 1.0)
        # Step and mean reward; the online variant needs the latest only, a change is between two.
        sizes = {Variant.ONLINE: 1, Variant.SAMPLING: config.window + 1}
        self.observations = CellWindows(self.num_cells, size=sizes.get(config.variant, config.window))

    def explore_share(self) -> float:
        """epsilon."""
        return self.config.epsilon

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] by |Q|."""
        if self.config.variant is Variant.SAMPLING:
            rewards = ([x for _, x in entries] for entries in self.observations.entries[cells])
            return chances_of_greatest([np.abs(np.diff(x)) if len(x) > 1 else np.ones(1) for x in rewards])
        size_N = np.round(np.abs(self.q.values_C[cells]), 9)  # what is equal by algebra may differ in its last bit
        if self.config.temperature == 0.0:
            return (size_N == size_N.max()) / np.count_nonzero(size_N == size_N.max())
        return softmax(size_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Takes in one observation for each cell that was heard of."""
        if self.config.variant is Variant.NAIVE:
            self._close_block()
        for cell, heard in self.by_cell(groups):
            observed = [float(np.mean([group.task.teacher_step for group in heard])), mean_over_rollouts(heard, mean_reward)]
            seen = self.observations.entries[cell]
            if self.config.variant is Variant.ONLINE and seen:
                self.q.values_C[cell] += self.config.rate * (observed[1] - seen[-1][1] - self.q.values_C[cell])
            seen.append(observed)
            if self.config.variant is Variant.WINDOW:
                self.q.values_C[cell] = slope(np.array(seen), unknown=self.q.values_C[cell])
            if self.config.variant is Variant.SAMPLING and len(seen) > 1:
                self.q.values_C[cell] = float(np.mean(np.diff([x for _, x in seen])))

    def _close_block(self) -> None:
        """Once a block of `window` steps is over, takes in its slopes and begins the next with nothing."""
        steps = [entry[0] for seen in self.observations.entries for entry in seen]
        if steps and (min(steps) - 1) // self.config.window < (self._step - 1) // self.config.window:
            slopes_C = [slope(np.array(seen), unknown=1.0) if seen else 1.0 for seen in self.observations.entries]
            self.q.values_C += self.config.rate * (np.array(slopes_C) - self.q.values_C)
            for seen in self.observations.entries:
                seen.clear()

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the fastest change."""
        return {**super().metrics(), "curriculum/tscl_fastest": float(np.abs(self.q.values_C).max())}


def slope(points_N2: np.ndarray, *, unknown: float) -> float:
    """Least-squares slope of the second column over the first; `unknown` where the first does not vary."""
    t_N, x_N = points_N2.T
    deviations_N = t_N - t_N.mean()
    spread = float(deviations_N @ deviations_N)
    return float(deviations_N @ x_N) / spread if spread > 0.0 else unknown


def chances_of_greatest(values: Sequence[np.ndarray]) -> np.ndarray:
    """[C] chance that a value drawn evenly from a cell's own is the greatest of the C drawn, ties broken evenly.

    With v drawn for a cell, and below and equal the shares of another cell's values that are less than v and the same, the chance that it
    wins is the integral over u in [0, 1] of the product of (below + equal u), as that of u^k, 1 / (k + 1), is the chance among k ties.
    """
    rounded = [np.round(each, 9) for each in values]
    nodes_U, weights_U = np.polynomial.legendre.leggauss(min(len(values) // 2 + 1, 24))
    u_U, weights_U = (nodes_U + 1.0) / 2.0, weights_U / 2.0
    chances_C = np.zeros(len(values))
    for v in np.unique(np.concatenate(rounded)):
        below_C = np.array([np.mean(each < v) for each in rounded])
        equal_C = np.array([np.mean(each == v) for each in rounded])
        factors_CU = below_C[:, None] + equal_C[:, None] * u_U
        for c in np.flatnonzero(equal_C):
            chances_C[c] += equal_C[c] * float(np.delete(factors_CU, c, axis=0).prod(axis=0) @ weights_U)
    return chances_C / chances_C.sum()
