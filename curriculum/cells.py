"""Cells: difficulty cut into bins, a table of numbers by cell, and the drawing that all teachers over cells share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec
from curriculum.teacher import Axes, Teacher, TeacherConfig
from simulator.settings import SETTINGS


@dataclass(config=SETTINGS)
class CellConfig(TeacherConfig):
    """Settings that every teacher over cells has."""

    num_bins: int = Field(default=8, ge=2, le=100)
    """Bins of each axis, at most 10 with three axes. More place difficulty finer and are each seen less often."""
    scope: Literal["shared", "own", "flat"] = "own"
    """shared: one set of cells for all families, the best in runs of 50 steps or fewer. own: a set for each. flat: a set for each, family
    and cell drawn together, as published: it goes where there is most to learn, or to a family of noise, and no allocation has a say."""
    axes: Axes = 1
    """1 or 3: along the line of difficulty, or strictness, reserve and impatience apart, in num_bins ** 3 cells."""

    def __post_init__(self) -> None:
        if self.axes == 3 and self.num_bins > 10:
            raise ValueError(f"teacher.num_bins must be in [2, 10] with teacher.axes=3, got {self.num_bins}")
        if self.scope == "flat":
            self.refuse_allocation("drawn together with cells (teacher.scope=flat)")


class CellTable:
    """Named numbers of each cell, NaN where there is none yet, and a window of the cell's latest entries (short lists of numbers)."""

    def __init__(self, num_cells: int, columns: Mapping[str, float], *, window: int) -> None:
        self.values_C = {name: np.full(num_cells, start) for name, start in columns.items()}
        self.windows: list[deque[list[float]]] = [deque(maxlen=window) for _ in range(num_cells)]

    def __getitem__(self, name: str) -> np.ndarray:
        """[C] the numbers of a name, by cell."""
        return self.values_C[name]

    def state_dict(self) -> dict[str, Any]:
        """By cell, None for NaN; windows from the oldest entry on."""
        values = {name: [None if v != v else v for v in values_C.tolist()] for name, values_C in self.values_C.items()}
        return {"values": values, "windows": [list(window) for window in self.windows]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.values_C = {name: np.array([math.nan if v is None else v for v in column]) for name, column in state["values"].items()}
        self.windows = [deque(saved, maxlen=window.maxlen) for window, saved in zip(self.windows, state["windows"], strict=True)]


class CellTeacher(Teacher):
    """Difficulty cut into cells, of which a subclass keeps numbers (`columns`) and says its `preferences`.

    With K bins an axis, cell k of the line holds the strictness in [k / K, (k + 1) / K); with three axes a cell is a box of a K x K x K
    cube. For the C cells that are drawn from together (by `scope`), of which a part e of the groups is spread evenly,

        P(cell) = e / C + (1 - e) * preference(cell)

    A cell is drawn from P for each group, and the difficulty evenly inside it. The propensity of a task is the exact probability of its
    family and cell. An outcome is credited to the cell that was *issued*. A task takes about 0.1 ms of CPU to propose and observe.
    """

    config: CellConfig
    adapting: ClassVar[tuple[str, ...]] = ("table",)
    columns: ClassVar[Mapping[str, float]] = {}
    """Start value of each number that is kept of every cell, by name."""
    preferred_mode: ClassVar[Mode] = Mode.FRONTIER
    """Mode of a group drawn by preference."""
    explore_mode: Mode = Mode.UNIFORM
    """Mode of a group that was spread evenly."""

    def start(self) -> None:
        self.num_boxes = self.config.num_bins**self.config.axes
        num_sets = 1 if self.config.scope == "shared" else len(self.families)
        self.num_cells = self.num_boxes * num_sets
        starts = [self.num_boxes * (i % num_sets) for i in range(len(self.families))]
        self._cells = {family: slice(start, start + self.num_boxes) for family, start in zip(self.families, starts, strict=True)}
        self.table = CellTable(self.num_cells, self.columns, window=self.window_size())
        # Shares by the first cell that they were worked out for; valid until the next proposal.
        self._shares: dict[int, tuple[np.ndarray, float]] = {}

    def window_size(self) -> int:
        """Entries that are kept of every cell."""
        return 1

    def preferences(self, cells: slice) -> np.ndarray:
        """[N] how groups should be shared between these cells; sums to 1, or is all 0 where there is nothing to go by yet."""
        raise NotImplementedError(f"{type(self).__name__} must answer preferences(cells)")

    def explore_share(self) -> float:
        """Share e of the next groups that is spread evenly, in [0, 1]."""
        return 0.0

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        """By the allocation, unless family and cell are drawn together."""
        self._shares.clear()
        if self.config.scope != "flat":
            return super().choose_families(num_groups)
        shares_F = np.array([self.shares(family)[0].sum() for family in self.families])
        drawn = [draw(shares_F, self.rng) for _ in range(num_groups)]
        return [(self.families[i], min(float(shares_F[i]), 1.0)) for i in drawn]

    def choose(self, family: FamilyKey) -> TaskSpec:
        """A cell of `family` by its share, and a difficulty evenly inside it."""
        shares_B, even = self.shares(family)
        box = draw(shares_B, self.rng)
        explored = self.rng.random() * shares_B[box] < even
        num_bins = self.config.num_bins
        corner = (box,) if self.config.axes == 1 else (box // num_bins**2, box // num_bins % num_bins, box % num_bins)
        point = [(low + self.rng.random()) / num_bins for low in corner]
        return self.task(family, point, self.explore_mode if explored else self.preferred_mode, float(shares_B[box] / shares_B.sum()))

    def shares(self, family: FamilyKey) -> tuple[np.ndarray, float]:
        """[B] P of the cells of `family` as of the latest proposal, and the part of each that belongs to the even share."""
        cells = self._cells[family]
        together = slice(0, self.num_cells) if self.config.scope == "flat" else cells
        if together.start not in self._shares:
            preferred_N = self.preferences(together)
            explore = self.explore_share() if preferred_N.any() else 1.0
            even = explore / len(preferred_N)
            self._shares[together.start] = even + (1.0 - explore) * preferred_N, even
        shares_N, even = self._shares[together.start]
        return (shares_N[cells] if self.config.scope == "flat" else shares_N), even

    def cell(self, task: TaskSpec) -> int:
        """The cell that `task` was issued in."""
        box = 0
        for value in task.point(self.config.axes):
            box = box * self.config.num_bins + min(int(value * self.config.num_bins), self.config.num_bins - 1)
        return self._cells[task.family].start + box

    def by_cell(self, groups: Sequence[GroupOutcome]) -> list[tuple[int, list[GroupOutcome]]]:
        """The groups of each cell that has any, in the order of the cells."""
        found: dict[int, list[GroupOutcome]] = {}
        for group in groups:
            found.setdefault(self.cell(group.task), []).append(group)
        return sorted(found.items())

    def metrics(self) -> dict[str, float]:
        """With the number of a family's cells over which its groups are in effect spread: exp of the entropy, mean over families."""
        self._shares.clear()
        numbers = []
        for family in self.families:
            shares_B = self.shares(family)[0]
            positive = shares_B[shares_B > 0.0] / shares_B.sum()
            numbers.append(float(np.exp(-np.sum(positive * np.log(positive)))))
        return {**super().metrics(), "curriculum/cells_effective": float(np.mean(numbers))}


def mean_over_rollouts(groups: Sequence[GroupOutcome], score: Callable[[GroupOutcome], float]) -> float:
    """The mean of a score of groups, each group weighted by the number of its survivors."""
    sizes = [len(group.surviving) for group in groups]
    return sum(size * score(group) for size, group in zip(sizes, groups, strict=True)) / sum(sizes)


def softmax(values_C: np.ndarray, temperature: float) -> np.ndarray:
    """[C] shares in proportion to exp(value / temperature)."""
    weights_C = np.exp((values_C - values_C.max()) / temperature)
    return weights_C / weights_C.sum()


def draw(shares: np.ndarray, rng: np.random.Generator) -> int:
    """An index with probability in proportion to its share; never one without any."""
    sums = np.cumsum(shares)
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


def advantages(group: GroupOutcome, *, normalise: bool) -> np.ndarray:
    """[G] advantages of GRPO: each survivor's reward less their mean; all 0 where the rewards are equal.

    Args:
        normalise: divide by the unbiased standard deviation of the group plus 1e-6, which hides whether its odds are even or lopsided.
    """
    rewards_G = np.array([group.rewards[i] for i in group.surviving])
    size = len(rewards_G)
    deviations_G = rewards_G - rewards_G.sum() / size
    if rewards_G.max() == rewards_G.min():
        return np.zeros(size)
    return deviations_G / (math.sqrt(deviations_G @ deviations_G / (size - 1)) + 1e-6) if normalise else deviations_G
