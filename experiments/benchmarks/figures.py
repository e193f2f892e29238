"""Settings, figures and inputs of the benchmarks."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from curriculum.task import Mode, TaskSpec
from policy.config import EngineKind
from policy.prior import EMBEDDED, PriorConfig
from simulator.dialogue import Dialogue
from simulator.listener import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Scenario, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

Measured = TypeVar("Measured")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure."""

    repeats: int = 5
    """>= 1; of every figure."""
    model: str = EMBEDDED
    """The policy: the embedded prior, or a Hugging Face folder or id."""
    engine: EngineKind = EngineKind.AUTO
    threads: int = 1
    """>= 1; CPU threads of the trainer and of each engine."""

    def folder(self) -> Path:
        from policy.model import find_model
        from policy.prior.prior import build_prior

        return build_prior(PriorConfig()) if self.model == EMBEDDED else find_model(self.model)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number, over its repeats."""

    median: float
    lowest: float
    highest: float
    repeats: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        found = list(values)
        return cls(median=statistics.median(found), lowest=min(found), highest=max(found), repeats=len(found))

    @classmethod
    def ratio(cls, ours: Sequence[float], theirs: Sequence[float]) -> Figure:
        """The ratios repeat by repeat: a slow phase of the machine slows down both sides of a pair."""
        return cls.of(a / b for a, b in zip(ours, theirs, strict=True))


Figures = dict[str, Figure | str]
"""By dotted key of bench.json; where there is no number, the reason."""


def repeated(measure: Callable[[int], Measured], repeats: int, *, warm_ups: int = 1) -> list[Measured]:
    """Measurements number 0, 1, ..., without the first, which import, allocate and tune."""
    return [measure(number) for number in range(repeats + warm_ups)][warm_ups:]


def make_task(scenario: Scenario, difficulty: Difficulty, *, uid: str, group_size: int, seed: int) -> TaskSpec:
    """A task of no teacher."""
    of_teacher: dict[str, Any] = {"mode": Mode.UNIFORM, "teacher_step": 0, "policy_version": 0, "propensity": 1.0}
    about: dict[str, Any] = {"family": scenario.family, "scenario_id": scenario.scenario_id, "difficulty": difficulty}
    return TaskSpec(uid=uid, group_size=group_size, seed=seed, **about, **of_teacher)


def tasks_of_round(number: int, num_groups: int, group_size: int) -> list[TaskSpec]:
    """Tasks at strictness 0.35, with other scenarios and seeds than other rounds'."""
    scenarios, difficulty = load_bank().scenarios(Split.TRAIN), Difficulty.along(0.35)
    return [
        make_task(
            scenarios[(num_groups * number + i) % len(scenarios)],
            difficulty,
            uid=f"{number}-{i}",
            group_size=group_size,
            seed=1000 * number + i,
        )
        for i in range(num_groups)
    ]


def dialogues(num_groups: int, group_size: int, *, seed: int, user: RuleUser | None = None) -> Iterator[list[Dialogue]]:
    """Groups of dialogues about one scenario each, by weak and strong scripted agents, so that some end early and others late."""
    user = user or RuleUser(RuleUserConfig(register=Register.WORLD))
    scenarios, agents = load_bank().scenarios(Split.TRAIN), itertools.cycle(("L1", "L3", "L5", "L6"))
    strictness = itertools.cycle((0.1, 0.35, 0.6, 0.85))
    for i in range(num_groups):
        scenario, difficulty = scenarios[(seed * num_groups + i) % len(scenarios)], Difficulty.along(next(strictness))
        yield [play(AGENTS[next(agents)], scenario, difficulty, seed=1000 * seed + sibling, user=user) for sibling in range(group_size)]
