"""The same strictness always: the baseline that every other teacher has to beat.

    d = strictness; reserve and impatience as on the line of difficulty there, unless they are set apart

Too easy or too hard a value starves the learner of contrast, and the best one is known only in hindsight: a fair comparison reports
several.
"""

from __future__ import annotations

from dataclasses import dataclass

from curriculum.checks import require_between
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig
from curriculum.teacher import FamilyKey, Mode
from simulator.difficulty import Difficulty


@dataclass
class FixedConfig(TeacherConfig):
    """Settings of `FixedTeacher`."""

    strictness: float = 0.5
    """[0, 1]: the strictness of every group."""
    reserve: float | None = None
    """[0, 1]: how little users say of themselves; none means as much as the line of difficulty has at this strictness."""
    impatience: float | None = None
    """[0, 1]: how fast users lose heart; none means as on the line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.strictness", self.strictness, 0.0, 1.0)
        for name, value in (("reserve", self.reserve), ("impatience", self.impatience)):
            if value is not None:
                require_between(f"teacher.{name}", value, 0.0, 1.0)
                setattr(self, name, float(value))


class FixedTeacher(LedgerTeacher):
    """d = `strictness`, families in turn."""

    kind = "fixed"
    config: FixedConfig

    def choose(self, family: FamilyKey) -> Choice:
        """The point of the settings."""
        config = self.config
        apart = {name: value for name, value in (("reserve", config.reserve), ("impatience", config.impatience)) if value is not None}
        if not apart:
            return Choice(config.strictness, Mode.FRONTIER, 1.0)
        return Choice.at(Difficulty(**{**Difficulty.along(config.strictness).to_dict(), **apart}), Mode.FRONTIER, 1.0)
