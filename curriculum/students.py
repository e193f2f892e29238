"""The named students of the benchmark, each made fresh from its own generator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from curriculum.family_students import FewGroups, NoiseFamilies, StrictFamilies
from curriculum.outages import Outages
from curriculum.strictness_students import CollapseProne, Dense, Drifting, Forgetting, Improving, NonMonotone, Stationary
from curriculum.toy import Student


def _few_groups(num_groups: int, num_updates: int) -> Callable[[np.random.Generator], Student]:
    def make(rng: np.random.Generator) -> Student:
        offset_F = rng.normal(0.0, 0.15, len(FewGroups.families))
        return FewGroups(num_groups=num_groups, num_updates=num_updates, offset_F=offset_F)

    return make


STUDENTS: dict[str, Callable[[np.random.Generator], Student]] = {
    "S1_stationary": lambda rng: Stationary(),
    "S1_delay2": lambda rng: Stationary(delay=2, num_updates=300),
    "S1_delay8": lambda rng: Stationary(delay=8, num_updates=300),
    "S1_delay16": lambda rng: Stationary(delay=16, num_updates=300),
    "S2_improving": lambda rng: Improving(),
    "S2_slow": lambda rng: Improving(lr=0.06),
    "S2_noisy_ceiling": lambda rng: Improving(ceiling=0.85),
    "S2_delay16": lambda rng: Improving(delay=16),
    "S3_forgetting": lambda rng: Forgetting(),
    "S4_collapse": lambda rng: CollapseProne(),
    "S5_noise_families": lambda rng: NoiseFamilies(),
    "S6_families": lambda rng: StrictFamilies(),
    "S6_delay8": lambda rng: StrictFamilies(delay=8),
    "S7_few_groups_50": _few_groups(6, 50),
    "S7_few_groups_200": _few_groups(8, 200),
    "outages": lambda rng: Improving(outages=Outages()),
    "non_monotone": lambda rng: NonMonotone(),
    "dense": lambda rng: Dense(),
    "drift": lambda rng: Drifting(),
}
"""Students by name; the generator decides whatever a student's constants leave to chance."""
