"""Draws a guess of the success at every strictness and practises where the guess hits the target: finds forgotten easy users again.

For each group, with the Beta posteriors (w_k, l_k) of its family's success in the K bins of strictness (`curriculum.bins`):

    q_k ~ Beta(w_k, l_k),     k = argmin_k |q_k - p*|,     d ~ U(bin k)

A bin of uncertain success is now and then drawn at the target and so visited, and one where success has fallen to the target is
practised again wherever it lies: the curve may have any shape, unlike a tracker's. A share `explore` of the groups is uniform.

Defaults: K = 20, discount .9 per version of the policy, explore .05, p* = .45. Outcomes are credited to the strictness and the version
that were issued, so delay costs only the freshness of the evidence.

Source: our own; Thompson sampling after Chapelle & Li 2011. Measured in docs/teachers.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curriculum.bins import BinsConfig, StrictnessBins
from curriculum.checks import require_between
from curriculum.ledger import Choice, LedgerTeacher, TeacherConfig
from curriculum.teacher import FamilyKey, GroupOutcome, Mode


@dataclass
class BetaThompsonConfig(TeacherConfig):
    """Settings of `BetaThompsonTeacher`."""

    target_success: float = 0.45
    """[.05, .95]: success share p* to aim at."""
    explore: float = 0.05
    """[0, 1]: share of groups at a uniformly drawn strictness."""
    bins: BinsConfig = field(default_factory=BinsConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_between("teacher.target_success", self.target_success, 0.05, 0.95)
        require_between("teacher.explore", self.explore, 0.0, 1.0)


class BetaThompsonTeacher(LedgerTeacher):
    """Thompson draws on discounted strictness bins, aimed at a target success."""

    kind = "beta_thompson"
    adapting = ("bins",)
    config: BetaThompsonConfig

    def __init__(self, config: BetaThompsonConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        super().__init__(config, scenarios=scenarios, group_size=group_size, seed=seed)
        self.bins = StrictnessBins(config.bins, self.families)

    def choose(self, family: FamilyKey) -> Choice:
        """A Thompson draw, now and then anything."""
        explore = self.config.explore
        if self.rng.random() < explore:
            return Choice(float(self.rng.random()), Mode.UNIFORM, explore)
        return Choice(self.bins.draw(family, self.config.target_success, self.rng), Mode.FRONTIER, 1.0 - explore)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Adds the groups to the bins."""
        self.bins.learn(groups)

    def metrics(self) -> dict[str, float]:
        """The ledger's figures, what is expected of the mean family at lenient and at strict users, and how far families differ."""
        shared_K2 = self.bins.shared()
        success_K = shared_K2[:, 0] / shared_K2.sum(axis=-1)
        own = {f"curriculum/beta_thompson/success_at_{d}": float(success_K[self.bins.bin(d)]) for d in (0.25, 0.75)}
        own["curriculum/beta_thompson/offset_std"] = float(np.std([self.bins.offset(family) for family in self.families]))
        return {**super().metrics(), **own}
