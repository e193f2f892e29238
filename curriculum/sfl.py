"""Sampling for learnability (SFL): random difficulty cells are tried, and the cells of the groups nearest to even odds practised again.

With k of a group's G rollouts successes, its learnability is k (G - k) / (G (G - 1)), the unbiased p (1 - p). Every `refresh_steps` steps
the buffer is filled anew with the cells of the `buffer_size` best candidates seen since the last time (as often as each is among them):

    P(c) = rho * (entries of c in the buffer) / (entries of all C cells that c is drawn among) + (1 - rho) / C

Who pays for the candidates: published SFL rolls 5,000 fresh levels every 50 updates only to score them, some 20 % on top of training.
Here the groups are the probes. The 1 - rho random groups, which SFL trains on anyway, are scored as they come back and are the candidates;
nothing is rolled out for the teacher alone, and all of it is billed. The price is fewer and older candidates: with 8 groups a step and rho
.5 they are 4 a step, a score rests on one group of G rollouts (a standard error of .18 in p for G = 8), and it may be `refresh_steps` old.
With `scan_steps` above 0 the last so many steps before each refresh are spent wholly on fresh candidates, as published in spirit.

A family without an entry in the buffer gets random cells: with many families a longer `refresh_steps` and a larger buffer leave fewer of
them out, and `scope=flat` practises the families that are in it, as published.

Nothing tells noise from learning: a family that succeeds by the toss of a coin looks like the best of all.
Defaults: rho .5 as published; a buffer of 16 from 10 steps where published SFL keeps 100 of 5,000.
Source: arXiv 2408.15099, github.com/amacrutherford/sampling-for-learnability.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from curriculum.cells import CellConfig, CellTeacher
from curriculum.checks import require_between
from curriculum.scores import learnability
from curriculum.teacher import GroupOutcome, Mode


@dataclass
class SflConfig(CellConfig):
    """Settings of `SflTeacher`."""

    rho: float = 0.5
    """[0, 1]: share of the groups that come from the buffer, once there is one."""
    buffer_size: int = 16
    """[1, 10000]: best candidates kept at each refresh."""
    refresh_steps: int = 10
    """[1, 100000]: steps between two refreshes of the buffer."""
    scan_steps: int = 0
    """[0, 100000]: steps before each refresh in which all groups are fresh candidates; at `refresh_steps` all of them are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.rho", self.rho, 0.0, 1.0)
        require_between("teacher.buffer_size", self.buffer_size, 1, 10_000)
        require_between("teacher.refresh_steps", self.refresh_steps, 1, 100_000)
        require_between("teacher.scan_steps", self.scan_steps, 0, 100_000)


class SflTeacher(CellTeacher):
    """Half from the buffer of the most learnable, half at random."""

    kind = "sfl"
    plans_by_proposal = True
    adapting = ("buffer", "candidates", "refreshed")
    preferred_mode = Mode.REPLAY
    config: SflConfig

    def __init__(self, config: SflConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.buffer: list[int] = []
        # Learnability and cell of the best since the last refresh, newest first among equals; never more than the buffer holds.
        self.candidates: list[list[float]] = []
        self.refreshed = 0

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] as often as each cell is in the buffer."""
        entries_N = np.bincount(self.buffer, minlength=self.num_cells)[cells]
        return entries_N / max(entries_N.sum(), 1)

    def explore_share(self) -> float:
        """1 - rho; everything while scanning."""
        scanning = self._step - self.refreshed > self.config.refresh_steps - self.config.scan_steps
        return 1.0 if scanning else 1.0 - self.config.rho

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Scores the random groups, and fills the buffer anew when it is time."""
        for group in groups:
            if group.task.mode is Mode.UNIFORM:
                self.candidates.insert(0, [learnability(group), self.cell(group.task)])
        self.candidates.sort(key=lambda candidate: -candidate[0])
        del self.candidates[self.config.buffer_size :]
        if self._step - self.refreshed >= self.config.refresh_steps:
            self._refresh()

    def _restore_all(self, state: Mapping[str, Any]) -> None:
        super()._restore_all(state)
        cells = [*self.buffer, *(int(cell) for _, cell in self.candidates)]
        if cells and max(cells) >= self.num_cells:
            raise ValueError(f"teacher state's buffer must hold cells below {self.num_cells}, got {max(cells)}; resume with the same bins")

    def _refresh(self) -> None:
        worth = [candidate for candidate in self.candidates if candidate[0] > 0.0]
        if worth:
            self.buffer = [int(cell) for _, cell in worth]
            self.decide("refresh", size=len(worth), learnability=float(np.mean([score for score, _ in worth])))
        self.candidates, self.refreshed = [], self._step

    def metrics(self) -> dict[str, float]:
        """The cells' figures and how many entries the buffer has."""
        return {**super().metrics(), "curriculum/sfl_buffer": float(len(self.buffer))}
