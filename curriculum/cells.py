"""Cells: difficulty cut into bins, for all families together or for each apart, and the drawing that teachers over such cells share.

With K bins an axis, cell k of the line holds the strictness in [k / K, (k + 1) / K); with three axes a cell is a box of a K x K x K
cube. Families share one set of cells or have one each (`scope`). For the C cells that are drawn from together (a family's, or all of them
where family and cell are drawn at once) a teacher says how it would like to share the next groups, and the part e it spreads evenly:

    P(cell) = e / C + (1 - e) * preference(cell)

A cell is drawn from P for each group, and the difficulty evenly inside it. The propensity of a task is the exact probability of its family
and cell. An outcome is credited to the cell that was *issued*. A task takes about .1 ms of CPU to propose and observe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np

from curriculum.checks import require_between
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, refuse_allocation
from curriculum.points import point_choice, point_of
from curriculum.teacher import FamilyKey, GroupOutcome, Mode, TaskSpec

MAX_BINS = {1: 100, 3: 10}
"""Bins an axis may have, by the number of axes."""


class Scope(StrEnum):
    """Which families a cell is for."""

    SHARED = "shared"
    OWN = "own"
    FLAT = "flat"


@dataclass
class CellConfig(TeacherConfig):
    """Settings that every teacher over cells has."""

    num_bins: int = 8
    """[2, 100], with three axes [2, 10]: bins of each axis. More place difficulty finer and are each seen less often."""
    scope: Scope = Scope.OWN
    """shared: one set of cells for all families, the best in runs of 50 steps or fewer. own: a set for each. flat: a set for each, family
    and cell drawn together, as published: it goes where there is most to learn, or to a family of noise, and no allocation has a say."""
    axes: int = 1
    """1 or 3: along the line of difficulty, or strictness, reserve and impatience apart, in num_bins ** 3 cells."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.axes", self.axes, 1, 3)
        if self.axes not in MAX_BINS:
            raise ValueError(f"teacher.axes must be 1 or 3, got {self.axes!r}")
        require_between("teacher.num_bins", self.num_bins, 2, MAX_BINS[self.axes])
        if self.scope is Scope.FLAT:
            refuse_allocation(self, "drawn together with cells (teacher.scope=flat)")


class CellTeacher(LedgerTeacher):
    """A teacher that is asked for `preferences`, perhaps for its `explore_share`, and for what it learns."""

    config: CellConfig
    preferred_mode: ClassVar[Mode] = Mode.FRONTIER
    """Why a group was issued that the preferences asked for."""

    def __init__(self, config: CellConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.num_boxes = config.num_bins**config.axes
        num_sets = 1 if config.scope is Scope.SHARED else len(self.families)
        self.num_cells = self.num_boxes * num_sets
        starts = [self.num_boxes * (i % num_sets) for i in range(len(self.families))]
        self._cells = {family: slice(start, start + self.num_boxes) for family, start in zip(self.families, starts, strict=True)}
        # Shares by the slice they were worked out for; good until the next proposal.
        self._shares: dict[tuple[int, int], tuple[np.ndarray, float]] = {}

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] how groups should be shared between these cells; sums to 1, or is all 0 where there is nothing to go by yet."""
        raise NotImplementedError(f"{type(self).__name__} must answer preferences(cells)")

    def explore_share(self) -> float:
        """Share e of the next groups that is spread evenly, in [0, 1]."""
        return 0.0

    @property
    def explore_mode(self) -> Mode:
        """Why a group was issued that was spread evenly."""
        return Mode.UNIFORM

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        """By the allocation, unless family and cell are drawn together."""
        self._shares.clear()
        if self.config.scope is not Scope.FLAT:
            return super().choose_families(num_groups)
        shares_F = np.array([self.shares(family)[0].sum() for family in self.families])
        drawn = [draw(shares_F, self.rng) for _ in range(num_groups)]
        return [(self.families[i], min(float(shares_F[i]), 1.0)) for i in drawn]

    def choose(self, family: FamilyKey) -> Choice:
        """A cell of `family` by its share, and a difficulty evenly inside it."""
        shares_B, even = self.shares(family)
        box = draw(shares_B, self.rng)
        explored = self.rng.random() * shares_B[box] < even
        mode = self.explore_mode if explored else self.preferred_mode
        return self._inside(box, mode, float(shares_B[box] / shares_B.sum()))

    def shares(self, family: FamilyKey) -> tuple[np.ndarray, float]:
        """[B] P of the cells of `family` as of the latest proposal, and how much of each is its part of the even share."""
        own, together = self._cells[family], slice(0, self.num_cells)
        if self.config.scope is not Scope.FLAT:
            return self._mixed(own)
        shares_C, even = self._mixed(together)
        return shares_C[own], even

    def _mixed(self, cells: slice) -> tuple[np.ndarray, float]:
        key = (cells.start, cells.stop)
        if key not in self._shares:
            preferred_N = self.preferences(cells)
            explore = self.explore_share() if preferred_N.any() else 1.0
            even = explore / len(preferred_N)
            self._shares[key] = even + (1.0 - explore) * preferred_N, even
        return self._shares[key]

    def _inside(self, box: int, mode: Mode, share: float) -> Choice:
        num_bins = self.config.num_bins
        corner = (box,) if self.config.axes == 1 else (box // num_bins**2, box // num_bins % num_bins, box % num_bins)
        return point_choice([(low + self.rng.random()) / num_bins for low in corner], mode, share)

    def cell(self, task: TaskSpec) -> int:
        """The cell that `task` was issued in."""
        box = 0
        for value in point_of(task, self.config.axes):
            box = box * self.config.num_bins + min(int(value * self.config.num_bins), self.config.num_bins - 1)
        return self._cells[task.family].start + box

    def by_cell(self, groups: Sequence[GroupOutcome]) -> Iterator[tuple[int, list[GroupOutcome]]]:
        """The groups of each cell that has any, in the order of the cells."""
        sorted_in: dict[int, list[GroupOutcome]] = {}
        for group in groups:
            sorted_in.setdefault(self.cell(group.task), []).append(group)
        yield from sorted(sorted_in.items())

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, and over how many of a family's cells its groups are in effect spread (mean over families)."""
        self._shares.clear()
        spread = np.mean([effective_number(self.shares(family)[0]) for family in self.families])
        return {**super().metrics(), "curriculum/cells_effective": float(spread)}


def mean_over_rollouts(groups: Sequence[GroupOutcome], score: Callable[[GroupOutcome], float]) -> float:
    """The mean of a score of groups, each group counted by its survivors."""
    sizes = [len(group.surviving) for group in groups]
    return sum(size * score(group) for size, group in zip(sizes, groups, strict=True)) / sum(sizes)


def softmax(values_C: np.ndarray, temperature: float) -> np.ndarray:
    """[C] shares in proportion to exp(value / temperature)."""
    weights_C = np.exp((values_C - values_C.max()) / temperature)
    return weights_C / weights_C.sum()


def effective_number(shares: np.ndarray) -> float:
    """exp of the entropy of what is in proportion to `shares`: 1 where one has it all, their number where they are even."""
    positive = shares[shares > 0.0] / shares.sum()
    return float(np.exp(-np.sum(positive * np.log(positive))))


def draw(shares: np.ndarray, rng: np.random.Generator) -> int:
    """An index with probability in proportion to its share; never one without any."""
    sums = np.cumsum(shares)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


class CellValues:
    """One number for each cell, NaN where there is none yet; saved as a plain list with None for NaN."""

    may_lack = True
    """Whether None may stand in a saved state, here for a cell that nobody had seen (`checks.require_alike`)."""

    def __init__(self, num_cells: int, start: float = float("nan")) -> None:
        self.values_C = np.full(num_cells, start)

    def state_dict(self) -> list[float | None]:
        """By cell."""
        return [None if value != value else value for value in self.values_C.tolist()]

    def load_state_dict(self, state: Sequence[float | None]) -> None:
        """Restores `state_dict()`."""
        _require_cells(state, len(self.values_C))
        self.values_C = np.array([float("nan") if value is None else value for value in state], dtype=float)


class CellWindows:
    """The latest entries of each cell, each a short list of numbers."""

    def __init__(self, num_cells: int, size: int) -> None:
        self._size = int(size)
        self.entries: list[deque[list[float]]] = [deque(maxlen=self._size) for _ in range(num_cells)]

    def state_dict(self) -> list[list[list[float]]]:
        """By cell, oldest first."""
        return [[list(entry) for entry in window] for window in self.entries]

    def load_state_dict(self, state: Sequence[Sequence[Sequence[float]]]) -> None:
        """Restores `state_dict()`."""
        _require_cells(state, len(self.entries))
        self.entries = [deque((list(entry) for entry in window), maxlen=self._size) for window in state]


def _require_cells(state: Sequence[Any], num_cells: int) -> None:
    if len(state) != num_cells:
        raise ValueError(f"teacher state's cells must number {num_cells}, got {len(state)}; resume with the bins it was saved with")
