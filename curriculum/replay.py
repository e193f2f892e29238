"""Teachers that replay the best cells of those that random groups have tried: VCRL's bank, SFL's buffer, prioritised level replay (PLR)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.cells import CellConfig, CellTeacher, advantages, mean_over_rollouts
from curriculum.task import GroupOutcome, Mode
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class VcrlConfig(CellConfig):
    """Settings of `VcrlTeacher`."""

    kappa_first: float = Field(default=0.3, ge=0, le=1)
    """Normalised variance from which a group is worth training on, at first."""
    kappa: float = Field(default=0.8, ge=0, le=1)
    """The same from `strict_step` on."""
    strict_step: int = Field(default=20, ge=0, le=1_000_000)
    """Teacher step after which the stricter threshold holds."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Weight of the previous value in a cell's priority."""


class VcrlTeacher(CellTeacher):
    """Random cells, and in place of groups that varied too little cells from a bank of those that varied most: VCRL for a teacher.

    With k of a group's G rollouts successes, v = k (G - k) / (G (G - 1)) their variance and v_max the greatest that G allows:

        u = v / v_max in [0, 1];    a group is worth training on where u >= kappa, kappa = 0.3 at first, 0.8 from `strict_step` on
        priority(c) <- m priority(c) + (1 - m) u    for each group of a cell c in the bank (m = `momentum`)
        a cell enters the bank with priority u when one of its groups has u >= kappa, and leaves it when its priority falls below kappa
        P(c) = q priority(c) / sum of priorities in the bank + (1 - q) / C

    q is the running share of groups below kappa. The paper takes such groups out of the batch and refills it with old prompts; here they
    are trained on, and in the mean as many groups of the next batch come from the bank, with fresh rollouts, so nothing is off-policy.
    Variance is that of success: dense rewards hardly vary by the 0.3 that the thresholds are made for.

    Source: arXiv 2509.19803; kappa 0.3, 0.8, momentum 0.9 and 20 steps after published descriptions of the method.
    """

    kind = "vcrl"
    plans_by_proposal = True
    adapting = (*CellTeacher.adapting, "dropped_share")
    columns: ClassVar = {"priority": math.nan}
    preferred_mode = Mode.REPLAY
    config: VcrlConfig

    def start(self) -> None:
        super().start()
        self.dropped_share = 0.0

    def preferences(self, cells: slice) -> np.ndarray:
        priorities_N = np.nan_to_num(self.table["priority"][cells])
        return priorities_N / max(priorities_N.sum(), 1e-300)

    def explore_share(self) -> float:
        return 1.0 - self.dropped_share

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        priorities_C, momentum = self.table["priority"], self.config.momentum
        kappa = self.config.kappa_first if self.step <= self.config.strict_step else self.config.kappa
        for group in groups:
            cell, size, num_successes = self.cell(group.task), len(group.surviving), sum(group.successes[i] for i in group.surviving)
            variance = num_successes * (size - num_successes) / ((size // 2) * (size - size // 2))
            self.dropped_share += 0.05 * (float(variance < kappa) - self.dropped_share)
            if not np.isnan(priorities_C[cell]):
                priorities_C[cell] = momentum * priorities_C[cell] + (1.0 - momentum) * variance
            elif variance >= kappa:
                priorities_C[cell] = variance
        priorities_C[priorities_C < kappa] = np.nan

    def metrics(self) -> dict[str, float]:
        held = float(np.count_nonzero(~np.isnan(self.table["priority"])))
        return {**super().metrics(), "curriculum/vcrl_bank": held, "curriculum/vcrl_dropped_share": self.dropped_share}


@dataclass(config=SETTINGS)
class SflConfig(CellConfig):
    """Settings of `SflTeacher`."""

    rho: float = Field(default=0.5, ge=0, le=1)
    """Share of the groups that come from the buffer, once there is one."""
    buffer_size: int = Field(default=16, ge=1, le=10_000)
    """Best candidates kept at each refresh."""
    refresh_steps: int = Field(default=10, ge=1, le=100_000)
    """Steps between two refreshes of the buffer."""


class SflTeacher(CellTeacher):
    """Sampling for learnability (SFL): tries random difficulty cells, and replays the cells of the groups nearest to even odds.

    With k of a group's G rollouts successes, its learnability is k (G - k) / (G (G - 1)), the unbiased p (1 - p). Every `refresh_steps`
    steps the buffer is refilled with the cells of the `buffer_size` best candidates seen since the last time (as often as each is among
    them):

        P(c) = rho * (entries of c in the buffer) / (entries of all C cells that c is drawn among) + (1 - rho) / C

    Published SFL rolls 5,000 fresh levels every 50 updates only to score them and keeps 100. Here the random groups, which are trained on
    anyway, are the candidates: fewer and older, with a standard error of 0.18 in p for G = 8. A family without an entry in the buffer gets
    random cells; `scope=flat` practises the families that are in it, as published.

    Source: arXiv 2408.15099, github.com/amacrutherford/sampling-for-learnability (rho 0.5).
    """

    kind = "sfl"
    plans_by_proposal = True
    adapting = (*CellTeacher.adapting, "buffer", "candidates", "refreshed")
    preferred_mode = Mode.REPLAY
    config: SflConfig

    def start(self) -> None:
        super().start()
        self.buffer: list[int] = []
        self.candidates: list[list[float]] = []
        """Learnability and cell of the best since the last refresh, newest first among equals; never more than the buffer holds."""
        self.refreshed = 0

    def preferences(self, cells: slice) -> np.ndarray:
        entries_N = np.bincount(self.buffer, minlength=self.num_cells)[cells]
        return entries_N / max(entries_N.sum(), 1)

    def explore_share(self) -> float:
        return 1.0 - self.config.rho

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        for group in groups:
            if group.task.mode is Mode.UNIFORM:
                size, num_successes = len(group.surviving), sum(group.successes[i] for i in group.surviving)
                learnability = num_successes * (size - num_successes) / (size * (size - 1))
                self.candidates.insert(0, [learnability, self.cell(group.task)])
        self.candidates.sort(key=lambda candidate: -candidate[0])
        del self.candidates[self.config.buffer_size :]
        if self.step - self.refreshed >= self.config.refresh_steps:
            worth = [candidate for candidate in self.candidates if candidate[0] > 0.0]
            if worth:
                self.buffer = [int(cell) for _, cell in worth]
                self.decide("refresh", size=len(worth), learnability=float(np.mean([score for score, _ in worth])))
            self.candidates, self.refreshed = [], self.step

    def metrics(self) -> dict[str, float]:
        return {**super().metrics(), "curriculum/sfl_buffer": float(len(self.buffer))}


@dataclass(config=SETTINGS)
class PlrConfig(CellConfig):
    """Settings of `PlrTeacher`."""

    replay: float = Field(default=0.8, ge=0, le=1)
    """Share of the groups that are replayed."""
    staleness: float = Field(default=0.3, ge=0, le=1)
    """Share rho of the replayed groups that is drawn by staleness."""
    beta: float = Field(default=0.3, ge=0.01, le=100)
    """Temperature of the ranks; lower keeps to the best."""
    fill: float = Field(default=0.5, ge=0, le=1)
    """Share of the cells that must have been seen before any is replayed."""
    robust: bool = False
    """Whether the policy is kept from learning on the random share."""


class PlrTeacher(CellTeacher):
    """Prioritised level replay (PLR): replays cells by the rank of their score and by their staleness.

    With S the latest score of each cell that was seen (the mean of its groups that came back together), rank 1 the highest, c the groups
    observed so far and c_l that count when l was last observed, over the cells l that were seen:

        P_replay(l) = (1 - rho) rank(S_l) ** (-1 / beta) / Z + rho (c - c_l) / Z',     P(l) = replay P_replay(l) + (1 - replay) / C

    The score is mean max(r - mean r, 0), from the group alone without a critic: the analogue of positive value loss, in [0, 1/4]; p (1 - p)
    where rewards are 0 or 1. Scores that are equal to nine digits share their ranks. Nothing is replayed before a share `fill` of all
    cells, of each family's own with scope=own, has been seen: until then all groups are of the random share.

    Staleness counts from the latest outcome of a cell; in the paper and in dcd from its latest draw. `robust` is robust PLR: groups of the
    random share are marked `Mode.UNLEARNED`, and the trainer leaves them out of its batch; a trainer that ignores the mode gets plain PLR.

    Source: arXiv 2010.03934; robust: arXiv 2110.02439; github.com/facebookresearch/dcd (beta 0.1), github.com/DramaCow/jaxued (defaults).
    """

    kind = "plr"
    adapting = (*CellTeacher.adapting, "num_seen")
    columns: ClassVar = {"score": math.nan, "last_seen": math.nan}
    preferred_mode = Mode.REPLAY
    config: PlrConfig

    def start(self) -> None:
        super().start()
        # Groups observed so far; `last_seen` is this count when a cell was last observed.
        self.num_seen = 0
        self.explore_mode = Mode.UNLEARNED if self.config.robust else Mode.UNIFORM

    def explore_share(self) -> float:
        return 1.0 - self.config.replay

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] P_replay; 0 for cells that were never seen."""
        from scipy.stats import rankdata  # here, so that a list of teachers need not wait for scipy

        scores_N = self.table["score"][cells]
        seen_N = ~np.isnan(scores_N)
        shares_N = np.zeros(len(scores_N))
        if seen_N.sum() >= max(1.0, self.config.fill * len(scores_N)):
            # Scores that are equal by algebra, such as those of 3 and of 5 successes in 8, may differ in their last bit.
            by_rank = rankdata(-np.round(scores_N[seen_N], 9)) ** (-1.0 / self.config.beta)
            by_age = self.num_seen - self.table["last_seen"][cells][seen_N]
            rho = self.config.staleness if by_age.sum() > 0.0 else 0.0
            shares_N[seen_N] = (1.0 - rho) * by_rank / by_rank.sum() + rho * by_age / max(by_age.sum(), 1.0)
        return shares_N

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        self.num_seen += len(groups)
        for cell, members in self.by_cell(groups):
            gain = mean_over_rollouts(members, lambda group: np.maximum(advantages(group, normalise=False), 0.0).mean())
            self.table["score"][cell], self.table["last_seen"][cell] = gain, self.num_seen

    def metrics(self) -> dict[str, float]:
        scores_C = self.table["score"]
        filled = float(np.mean(~np.isnan(scores_C)))
        return {**super().metrics(), "curriculum/plr_filled": filled, "curriculum/plr_best_score": float(np.nan_to_num(scores_C).max())}
