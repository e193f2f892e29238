"""Tasks that no teacher issues: the held-out grid of an evaluation, and the probe panel, a fixed yardstick every few steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from curriculum.task import Mode, TaskSpec
from simulator.scenario import Difficulty, Family, Scenario


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """One dialogue of the grid. It is no TaskSpec, so it can never reach a teacher."""

    uid: str
    scenario_id: str
    strictness: float
    difficulty: Difficulty
    seed: int
    group_size: int = 1


def grid_tasks(scenarios: Iterable[Scenario], strictness: Sequence[float]) -> list[EvaluationTask]:
    """Every scenario at every strictness, scenarios outermost.

    A task's seed in [0, 2^31) depends on its cell alone, so that every arm and every step meets the same users.
    """
    tasks = []
    for scenario in scenarios:
        for d in strictness:
            digest = hashlib.sha256(f"{scenario.scenario_id}@{d:.4f}".encode()).digest()
            tasks.append(
                EvaluationTask(
                    uid=f"eval:{scenario.scenario_id}@{d:g}",
                    scenario_id=scenario.scenario_id,
                    strictness=d,
                    difficulty=Difficulty.along(d),
                    seed=int.from_bytes(digest[:4], "big") >> 1,
                )
            )
    return tasks


def spread(scenarios: Sequence[Scenario], num_scenarios: int) -> list[Scenario]:
    """A fixed choice that visits the families in turn; 0, or more than there are, means all of them."""
    ordered = sorted(scenarios, key=lambda scenario: scenario.scenario_id)
    if num_scenarios == 0 or num_scenarios >= len(scenarios):
        return ordered
    by_family: dict[str, list[Scenario]] = {}
    for scenario in ordered:
        by_family.setdefault(str(scenario.family), []).append(scenario)
    rounds = max(len(members) for members in by_family.values())
    in_turn = [members[i] for i in range(rounds) for _, members in sorted(by_family.items()) if i < len(members)]
    return in_turn[:num_scenarios]


@dataclass(frozen=True, kw_only=True)
class ProbeTask(EvaluationTask):
    """One dialogue of the panel, which reaches a teacher only by `as_observed`."""

    family: Family

    def as_observed(self, *, step: int, policy_version: int) -> TaskSpec:
        """It as a probe of this step, which the teacher did not issue and does not train on."""
        return TaskSpec(
            uid=f"step{step:07d}-{self.uid}",
            family=self.family,
            scenario_id=self.scenario_id,
            difficulty=self.difficulty,
            group_size=self.group_size,
            seed=self.seed,
            mode=Mode.PROBE,
            teacher_step=0,
            policy_version=policy_version,
            propensity=1.0,
        )


def probe_tasks(num_dialogues: int, scenarios: Mapping[Family, Sequence[str]], *, seed: int) -> list[ProbeTask]:
    """The panel: families in turn, strictness spread evenly over [0, 1] and shuffled over them; the same for the same seed."""
    rng = np.random.default_rng([seed, num_dialogues])
    families = [family for family in scenarios if scenarios[family]]
    grid = (rng.permutation(num_dialogues) + 0.5) / max(num_dialogues, 1)
    return [
        ProbeTask(
            uid=f"probe{i:03d}",
            family=families[i % len(families)],
            scenario_id=str(rng.choice(sorted(scenarios[families[i % len(families)]]))),
            strictness=float(d),
            difficulty=Difficulty.along(float(d)),
            seed=int(rng.integers(2**31)),
        )
        for i, d in enumerate(grid)
    ]
