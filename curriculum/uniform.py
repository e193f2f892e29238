"""Every strictness alike: uniform domain randomisation.

Source: Tobin et al. 2017 (arXiv 1703.06907).
"""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.checks import require_between
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig
from curriculum.teacher import FamilyKey, Mode


@dataclass
class UniformConfig(TeacherConfig):
    """Settings of `UniformTeacher`."""

    low: float = 0.0
    """[0, high]: the least strictness issued."""
    high: float = 1.0
    """[low, 1]: the greatest strictness issued."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.high", self.high, 0.0, 1.0)
        require_between("teacher.low", self.low, 0.0, self.high)


class UniformTeacher(LedgerTeacher):
    """d ~ U[low, high] for each group, families in turn."""

    kind = "uniform"
    config: UniformConfig

    def choose(self, family: FamilyKey) -> Choice:
        """A fresh draw."""
        return Choice(float(self.rng.uniform(self.config.low, self.config.high)), Mode.UNIFORM, 1.0)
