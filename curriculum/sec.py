"""A bandit over difficulty cells that seeks large advantages: Self-Evolving Curriculum (SEC).

With r(c) the mean |advantage| over the rollouts of cell c that came back together, Q(c) its running value (0 at first), a the `rate` and
T the `temperature`, both in units of an advantage (standard deviations of a group, or reward where `normalise` is off):

    Q(c) <- a r(c) + (1 - a) Q(c)                for cells that were heard of
    P(c) = exp(Q(c) / T) / sum exp(Q / T)

Advantages are those of GRPO, divided by the standard deviation of their group, as published. With binary rewards r is then about
2 sqrt(p (1 - p)); with dense rewards it hardly depends on difficulty, and `normalise=false` with a `temperature` of about .03 keeps the
signal (a toy student with dense rewards ended at .82 instead of .66). Nothing tells noise from learning: where cells of all families are
drawn together, a family that succeeds by the toss of a coin looks like the best of all.

A cell that was not heard of keeps its value, as for the categories that the paper updates. The public code gives it a reward of 0 instead,
so that its Q decays by 1 - a a step: there all of a few categories come each step, here most of many cells do not, and their values would
be gone before they came again.

Defaults: rate .5 as in all public scripts; they set the temperature to 1, .4 or .2 by task, ours is .2.
Source: arXiv 2505.14970; public scripts (a 0.5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curriculum.cells import CellConfig, CellTeacher, CellValues, mean_over_rollouts, softmax
from curriculum.checks import require_between
from curriculum.scores import mean_abs_advantage
from curriculum.teacher import GroupOutcome


@dataclass
class SecConfig(CellConfig):
    """Settings of `SecTeacher`."""

    rate: float = 0.5
    """(0, 1]: weight a of the newest mean |advantage| in a cell's value."""
    temperature: float = 0.2
    """[.001, 100]: T of the softmax; lower is greedier."""
    normalise: bool = True
    """Whether advantages are divided by the standard deviation of their group (as published), or left in units of reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.rate", self.rate, 1e-6, 1.0)
        require_between("teacher.temperature", self.temperature, 1e-3, 100.0)


class SecTeacher(CellTeacher):
    """Softmax over running values of mean |advantage|."""

    kind = "sec"
    adapting = ("q",)
    config: SecConfig

    def __init__(self, config: SecConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.q = CellValues(self.num_cells, start=0.0)

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] P."""
        return softmax(self.q.values_C[cells], self.config.temperature)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """One TD(0) step for each cell that was heard of."""
        for cell, heard in self.by_cell(groups):
            reward = mean_over_rollouts(heard, lambda group: mean_abs_advantage(group, normalise=self.config.normalise))
            self.q.values_C[cell] += self.config.rate * (reward - self.q.values_C[cell])

    def metrics(self) -> dict[str, float]:
        """The cells' figures and the greatest value of any."""
        return {**super().metrics(), "curriculum/sec_best_q": float(self.q.values_C.max())}
