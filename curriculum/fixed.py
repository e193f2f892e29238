"""The same strictness always: the baseline that every other teacher has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.checks import require_between
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig
from curriculum.teacher import FamilyKey, Mode


@dataclass
class FixedConfig(TeacherConfig):
    """Settings of `FixedTeacher`."""

    strictness: float = 0.5
    """[0, 1]: the strictness of every group."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.strictness", self.strictness, 0.0, 1.0)


class FixedTeacher(LedgerTeacher):
    """d = `strictness`, families in turn."""

    kind = "fixed"
    config: FixedConfig

    def choose(self, family: FamilyKey) -> Choice:
        """The strictness of the settings."""
        return Choice(self.config.strictness, Mode.FRONTIER, 1.0)
