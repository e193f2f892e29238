"""Groups in which all siblings fared alike are played anew, until a step has as many with contrast as it wants: DAPO's dynamic sampling.

    round 0     as many groups as a step has
    round k     as many as still lack contrast, from a further proposal of the teacher; at most `max_rounds` of them

The learner gets the groups with contrast alone. All that was played is on the bill, and the teacher hears of every group.

Source: DAPO, arXiv 2503.14476, section 3.2, where contrast is one of right and wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from curriculum import TEACHERS
from curriculum.task import GroupOutcome
from curriculum.teacher import LedgerTeacher
from policy.rollout.dialogue import RolloutGroup


class Contrast(StrEnum):
    """What siblings must differ in."""

    SUCCESS = "success"
    """One pleased its user and another did not, as one answer is right and another wrong."""
    REWARD = "reward"
    """Any two rewards; where these are graded nearly every group has that contrast."""


@dataclass
class ResamplingConfig:
    """Whether groups without contrast are replaced (`resampling.*`)."""

    max_rounds: int = 0
    """>= 0: further rounds of groups that a step may play; 0 trains on what came, all of it."""
    contrast: Contrast = Contrast.SUCCESS
    """What siblings must differ in: success or reward."""

    def __post_init__(self) -> None:
        if self.max_rounds < 0:
            raise ValueError(f"resampling.max_rounds must be >= 0, got {self.max_rounds!r}; 0 replaces no group")

    @property
    def enabled(self) -> bool:
        """Whether any group is replaced."""
        return self.max_rounds > 0

    def with_contrast(self, groups: Sequence[RolloutGroup], outcomes: Sequence[GroupOutcome]) -> list[RolloutGroup]:
        """The groups that may be trained on: all of them where none is replaced.

        Args:
            outcomes: of these groups, in their order.
        """
        pairs = zip(groups, outcomes, strict=True)
        return [group for group, outcome in pairs if not self.enabled or self.differ(outcome)]

    def differ(self, outcome: GroupOutcome) -> bool:
        """Whether survivors of a group fared differently."""
        fared = outcome.successes if self.contrast is Contrast.SUCCESS else outcome.rewards
        return len({fared[i] for i in outcome.surviving}) > 1

    def require(self, teacher_kind: str) -> None:
        """Refuses a teacher whose plan further rounds would hurry.

        Raises:
            ValueError: it is one.
        """
        teacher: type[LedgerTeacher] = TEACHERS[teacher_kind][1]
        if self.enabled and teacher.plans_by_proposal:
            raise ValueError(
                f"resampling.max_rounds must be 0 with teacher.kind={teacher_kind}, got {self.max_rounds!r}: "
                "its plan goes on with each proposal; take a teacher without a plan"
            )
