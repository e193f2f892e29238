"""A bandit over difficulty cells that seeks large advantages and cells it seldom tried: DUMP's upper confidence bound.

With L(c) the mean |advantage| over the last `window` rollouts of cell c (0 before any), n(c) the rollouts it had, N their sum over the
cells that are drawn from together, w the `exploration` and T the `temperature`, in standard deviations of a group (in reward where
`normalise` is off):

    score(c) = L(c) + w sqrt(2 ln(N + 1) / (n(c) + 1)),     P(c) = exp(score(c) / T) / sum exp(score / T)

Counts are cumulative, as published, so exploration dies; with `count_decay` below 1 they fade with every `observe` and it does not.
The public code feeds rewards of its validation set in as if they were advantages; here evaluation cannot reach a teacher at all.
Nothing tells noise from learning: a family that succeeds by the toss of a coin looks like the best of all.

A group's rollouts enter the window together, so it holds as many whole groups as `window` rollouts make up, at least one.
Defaults: window 300, T .1, w 1, as in the public code. Source: arXiv 2504.09710, github.com/ZhentingWang/DUMP.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curriculum.cells import CellConfig, CellTeacher, CellValues, CellWindows, softmax
from curriculum.checks import require_between
from curriculum.scores import mean_abs_advantage
from curriculum.teacher import GroupOutcome


@dataclass
class DumpConfig(CellConfig):
    """Settings of `DumpTeacher`."""

    window: int = 300
    """[1, 10000]: latest rollouts of a cell whose |advantage| is averaged."""
    temperature: float = 0.1
    """[.001, 100]: T of the softmax; lower is greedier."""
    exploration: float = 1.0
    """[0, 10]: weight w of the bonus for cells that were seldom tried."""
    normalise: bool = True
    """Whether advantages are divided by the standard deviation of their group (as published), or left in units of reward."""
    count_decay: float = 1.0
    """(0, 1]: what is left of every count after each `observe`; 1 as published, .99 keeps exploring."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.window", self.window, 1, 10_000)
        require_between("teacher.temperature", self.temperature, 1e-3, 100.0)
        require_between("teacher.exploration", self.exploration, 0.0, 10.0)
        require_between("teacher.count_decay", self.count_decay, 1e-6, 1.0)


class DumpTeacher(CellTeacher):
    """Softmax over mean |advantage| of late plus a bonus for few visits."""

    kind = "dump"
    adapting = ("latest", "learnability", "counts")
    config: DumpConfig

    def __init__(self, config: DumpConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.latest = CellWindows(self.num_cells, size=max(1, config.window // group_size))
        self.learnability = CellValues(self.num_cells, start=0.0)
        self.counts = CellValues(self.num_cells, start=0.0)

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] P, these cells alone making up N."""
        counts_N = self.counts.values_C[cells]
        bonus_N = np.sqrt(2.0 * math.log(counts_N.sum() + 1.0) / (counts_N + 1.0))
        return softmax(self.learnability.values_C[cells] + self.config.exploration * bonus_N, self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Moves the windows of the cells that were heard of, and their counts."""
        self.counts.values_C *= self.config.count_decay
        for cell, heard in self.by_cell(groups):
            window = self.latest.entries[cell]
            for group in heard:
                window.append([mean_abs_advantage(group, normalise=self.config.normalise), len(group.surviving)])
                self.counts.values_C[cell] += len(group.surviving)
            sizes = sum(size for _, size in window)
            self.learnability.values_C[cell] = sum(value * size for value, size in window) / sizes

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the fewest rollouts that any cell had."""
        return {**super().metrics(), "curriculum/dump_least_count": float(self.counts.values_C.min())}
