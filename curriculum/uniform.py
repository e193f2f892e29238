"""Every strictness alike: uniform domain randomisation.

    d ~ U[low, high]     for each group; with axes = 3 strictness, reserve and impatience are each drawn so, on their own

It never adapts: a student that learns where success is near one half gets from it about half of what it could learn from, and the rest
of the budget goes to the extremes. What it cannot do is forget, and it is hard to beat where tasks differ little.

Source: Tobin et al. 2017 (arXiv 1703.06907).
"""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.checks import require_between, require_one_of
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig
from curriculum.points import point_choice
from curriculum.teacher import FamilyKey, Mode


@dataclass
class UniformConfig(TeacherConfig):
    """Settings of `UniformTeacher`."""

    low: float = 0.0
    """[0, high]: the least strictness issued."""
    high: float = 1.0
    """[low, 1]: the greatest strictness issued."""
    axes: int = 1
    """{1, 3}: 1 draws a point on the line of difficulty, 3 draws each axis on its own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.high", self.high, 0.0, 1.0)
        require_between("teacher.low", self.low, 0.0, self.high)
        require_one_of("teacher.axes", self.axes, (1, 3))


class UniformTeacher(LedgerTeacher):
    """d ~ U[low, high] for each group, families in turn."""

    kind = "uniform"
    config: UniformConfig

    def choose(self, family: FamilyKey) -> Choice:
        """A fresh draw."""
        point = self.rng.uniform(self.config.low, self.config.high, self.config.axes).tolist()
        return point_choice(point, Mode.UNIFORM, 1.0)
