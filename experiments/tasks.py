"""Tasks that no teacher issues: the held-out grid of an evaluation, and the probe panel, a fixed yardstick every few steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from curriculum.task import Mode, TaskSpec
from policy.rollout.dialogue import RolloutGroup
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


def grid_seed(scenario_id: str, strictness: float) -> int:
    """A seed in [0, 2^31) from the cell alone, so that every arm and every step meets the same users."""
    digest = hashlib.sha256(f"{scenario_id}@{strictness:.4f}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def grid_tasks(scenarios: Iterable[Scenario], strictness: Sequence[float]) -> list[EvaluationTask]:
    """Every scenario at every strictness, scenarios outermost."""
    return [
        EvaluationTask(
            uid=f"eval:{scenario.scenario_id}@{d:g}",
            scenario_id=scenario.scenario_id,
            strictness=d,
            difficulty=Difficulty.along(d),
            seed=grid_seed(scenario.scenario_id, d),
        )
        for scenario in scenarios
        for d in strictness
    ]


def spread(scenarios: Sequence[Scenario], num_scenarios: int) -> list[Scenario]:
    """A fixed choice that visits the families in turn; 0, or more than there are, means all of them."""
    if num_scenarios == 0 or num_scenarios >= len(scenarios):
        return sorted(scenarios, key=lambda scenario: scenario.scenario_id)
    by_family: dict[str, list[Scenario]] = {}
    for scenario in sorted(scenarios, key=lambda scenario: scenario.scenario_id):
        by_family.setdefault(str(scenario.family), []).append(scenario)
    rounds = max(len(members) for members in by_family.values())
    in_turn = [members[i] for i in range(rounds) for _, members in sorted(by_family.items()) if i < len(members)]
    return in_turn[:num_scenarios]


@dataclass(frozen=True, kw_only=True)
class ProbeTask:
    """One dialogue of the panel. It is not a TaskSpec, so it reaches a teacher only by `as_observed`."""

    uid: str
    family: Family
    scenario_id: str
    strictness: float
    difficulty: Difficulty
    seed: int
    group_size: int = 1


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


def as_observed(groups: Sequence[RolloutGroup], *, step: int) -> list[RolloutGroup]:
    """Groups of the panel as probes of this step, which the teacher did not issue and does not train on."""
    observed = []
    for group in groups:
        task = group.task
        assert isinstance(task, ProbeTask), f"the panel is made of ProbeTasks, got {type(task).__name__}"
        version = group.rollouts[0].policy_versions[1]
        spec = TaskSpec(
            uid=f"step{step:07d}-{task.uid}",
            family=task.family,
            scenario_id=task.scenario_id,
            difficulty=task.difficulty,
            group_size=task.group_size,
            seed=task.seed,
            mode=Mode.PROBE,
            teacher_step=0,
            policy_version=version,
            propensity=1.0,
        )
        observed.append(replace(group, task=spec))
    return observed
