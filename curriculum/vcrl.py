"""Groups too alike to teach are made up for from a bank of difficulty cells whose groups varied most: VCRL, as far as a teacher can.

With k of a group's G rollouts successes, v = k (G - k) / (G (G - 1)) their variance and v_max the greatest that G allows:

    u = v / v_max in [0, 1];    a group is worth training on where u >= kappa, kappa = .3 at first, .8 from `strict_step` on
    priority(c) <- m priority(c) + (1 - m) u    for each group of a cell c in the bank (m = `momentum`)
    a cell enters the bank with priority u when one of its groups has u >= kappa, and leaves it when its priority falls below kappa
    P(c) = q priority(c) / sum of priorities in the bank + (1 - q) / C

q is the running share of groups below kappa, so that in the mean as many groups come from the bank as the paper would have replaced.

Kept of the paper: the normalised variance, both thresholds and their switch, the momentum, a bank that prefers high variance, and that it
fills exactly the room which alike groups leave. What a teacher cannot do: take groups out of the batch that were rolled out already (a
trainer drops only those without any variance, so the others are trained on here), refill the same batch (it is the next one that is), and
put back old rollouts or old prompts (cells are issued anew, with other scenarios and fresh rollouts; so nothing here is off-policy).

Variance is that of success, not of reward: dense rewards hardly vary by the .3 that the thresholds are made for.
Defaults: kappa .3, .8, momentum .9, and 20 steps, after published descriptions of the method. Source: arXiv 2509.19803.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curriculum.cells import CellConfig, CellTeacher, CellValues
from curriculum.checks import require_between
from curriculum.scores import normalised_variance
from curriculum.teacher import GroupOutcome, Mode

DROPPED_RATE = 0.05
"""Weight of the newest group in the running share of groups below kappa."""


@dataclass
class VcrlConfig(CellConfig):
    """Settings of `VcrlTeacher`."""

    kappa_first: float = 0.3
    """[0, 1]: normalised variance from which a group is worth training on, at first."""
    kappa: float = 0.8
    """[0, 1]: the same from `strict_step` on."""
    strict_step: int = 20
    """[0, 1000000]: teacher step after which the stricter threshold holds."""
    momentum: float = 0.9
    """[0, 1): weight of what was known in a cell's priority."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.kappa_first", self.kappa_first, 0.0, 1.0)
        require_between("teacher.kappa", self.kappa, 0.0, 1.0)
        require_between("teacher.strict_step", self.strict_step, 0, 1_000_000)
        require_between("teacher.momentum", self.momentum, 0.0, 1.0 - 1e-6)


class VcrlTeacher(CellTeacher):
    """Random cells, and cells of high variance in place of those that taught too little."""

    kind = "vcrl"
    plans_by_proposal = True
    adapting = ("bank", "dropped_share")
    preferred_mode = Mode.REPLAY
    config: VcrlConfig

    def __init__(self, config: VcrlConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        # Priority by cell; NaN outside the bank.
        self.bank = CellValues(self.num_cells)
        self.dropped_share = 0.0

    @property
    def kappa_now(self) -> float:
        """The threshold that holds at this step."""
        return self.config.kappa_first if self._step <= self.config.strict_step else self.config.kappa

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] in proportion to the priorities in the bank."""
        priorities_N = np.nan_to_num(self.bank.values_C[cells])
        return priorities_N / max(priorities_N.sum(), 1e-300)

    def explore_share(self) -> float:
        """1 - q."""
        return 1.0 - self.dropped_share

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Weighs each group against kappa and its cell's priority."""
        priorities_C, momentum = self.bank.values_C, self.config.momentum
        for group in groups:
            cell, variance = self.cell(group.task), normalised_variance(group)
            self.dropped_share += DROPPED_RATE * (float(variance < self.kappa_now) - self.dropped_share)
            if not np.isnan(priorities_C[cell]):
                priorities_C[cell] = momentum * priorities_C[cell] + (1.0 - momentum) * variance
            elif variance >= self.kappa_now:
                priorities_C[cell] = variance
        priorities_C[priorities_C < self.kappa_now] = np.nan

    def metrics(self) -> dict[str, float]:
        """The cells' figures, how many cells the bank holds, and the share of groups below the threshold."""
        held = float(np.count_nonzero(~np.isnan(self.bank.values_C)))
        return {**super().metrics(), "curriculum/vcrl_bank": held, "curriculum/vcrl_dropped_share": self.dropped_share}
