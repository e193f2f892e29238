"""One target strictness, raised when the batch's mean reward is above one half and lowered when it is below.

    T <- clip(T + eta * tanh(alpha * (mean reward - beta)), 0, 1)     once for each batch observed; every group is issued at d = T

    beta   mean reward aimed at, 0-1          (.5)
    alpha  sensitivity, per unit of reward    (2)
    eta    the longest step, in strictness    (.5: the published 50 on a scale of 0 to 100)

As published the batch moves the *current* T, whatever strictness it was issued at, and one T serves all tasks. With outcomes that come
k steps late the loop is stable only while its gain g = eta * alpha * (-d mean reward / dd) stays below 2 sin(pi / (2 (2 k + 1))): 2 at no
delay, .62 at two steps, .095 at sixteen, where the published gain swings from bound to bound. Two repairs, each a flag:

    tagged      T <- clip(mean strictness the batch was issued at + eta * tanh(...), 0, 1): the same without delay, and as stable with any;
                it then gets on once in k + 1 steps, so that eta should stay at .5
    per_family  a T of its own for each family, moved by the mean reward of that family's groups in the batch

Faults of the public code that are not kept: its loader has drawn some sixteen batches ahead, which makes the delay; the target is in no
checkpoint and starts at 0 on resume; a KL penalty, where it is part of the reward, moves the target; at a bound the same few items come at
every step, because it takes the nearest of a fixed, labelled data set (here a scenario is drawn and the user made as strict as T says).

Source: Shi et al. 2025 (arXiv 2504.05520) and the code published with it, an extension of verl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from curriculum.checks import require_between
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig, mean_reward
from curriculum.teacher import FamilyKey, GroupOutcome, Mode

ALL = "all"
"""Key of the one target that all families share."""


@dataclass
class AdarftConfig(TeacherConfig):
    """Settings of `AdarftTeacher`."""

    target_reward: float = 0.5
    """[0, 1]: mean reward beta aimed at."""
    alpha: float = 2.0
    """(0, 100]: sensitivity to the difference from it."""
    eta: float = 0.5
    """(0, 1]: the longest step, in strictness; .05 swings less and follows more slowly, too slowly with `tagged` and a delay."""
    start: float = 0.0
    """[0, 1]: target before anything was observed."""
    per_family: bool = False
    """Whether each family has a target of its own; published: false."""
    tagged: bool = False
    """Whether a batch moves the strictness it was issued at and not the present target; published: false."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.target_reward", self.target_reward, 0.0, 1.0)
        require_between("teacher.alpha", self.alpha, 1e-6, 100.0)
        require_between("teacher.eta", self.eta, 1e-6, 1.0)
        require_between("teacher.start", self.start, 0.0, 1.0)


class AdarftTeacher(LedgerTeacher):
    """d = T, families in turn."""

    kind = "adarft"
    adapting = ("targets",)
    config: AdarftConfig

    def __init__(self, config: AdarftConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.targets = dict.fromkeys(map(self.key, self.families), config.start)

    def key(self, family: FamilyKey) -> str:
        """Whose target this family follows."""
        return str(family) if self.config.per_family else ALL

    def choose(self, family: FamilyKey) -> Choice:
        """The target."""
        return Choice(self.targets[self.key(family)], Mode.FRONTIER, 1.0)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """One step of each target that the batch says anything about."""
        batches: dict[str, list[GroupOutcome]] = {}
        for group in groups:
            batches.setdefault(self.key(group.task.family), []).append(group)
        for key, batch in batches.items():
            reward = sum(map(mean_reward, batch)) / len(batch)
            issued = sum(group.task.strictness for group in batch) / len(batch)
            step = self.config.eta * math.tanh(self.config.alpha * (reward - self.config.target_reward))
            self.targets[key] = min(max((issued if self.config.tagged else self.targets[key]) + step, 0.0), 1.0)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, the mean target, and the share of targets that stand at a bound."""
        targets = self.targets.values()
        at_bound = sum(target in (0.0, 1.0) for target in targets)
        own = {"target": sum(targets) / len(targets), "at_bound": at_bound / len(targets)}
        return {**super().metrics(), **{f"curriculum/adarft/{name}": value for name, value in own.items()}}
