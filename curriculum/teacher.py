"""The base of all teachers: a ledger of issued tasks, from which they learn when their outcomes come.

A new teacher subclasses `Teacher`, sets `kind`, answers `choose`, and overrides what it needs of `start`, `learn`, `learn_probes`,
`on_update`, `choose_families` and `metrics`; `adapting` names what it learns.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, field
from numbers import Integral
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from curriculum.allocation import AllocationConfig, FamilyAllocation
from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec, UpdateStats, parse_family, require_same
from simulator.scenario import Difficulty
from simulator.settings import SETTINGS


def evenly() -> AllocationConfig:
    """The same share for every family."""
    return AllocationConfig(uniform_floor=1.0)


@dataclass(config=SETTINGS)
class TeacherConfig:
    """Settings that every teacher has."""

    success_emotion: Annotated[float, Field(ge=0, le=100)] = 70.0  # a plain default, so that a plain dataclass may extend this one
    """Final emotion from which a rollout counts as a success."""
    allocation: AllocationConfig = field(default_factory=evenly)

    def refuse_allocation(self, reason: str) -> None:
        """Raises ValueError where the allocation is set and has no effect.

        Args:
            reason: what decides the families instead, and by which setting.
        """
        if self.allocation != evenly():
            raise ValueError(f"teacher.allocation must be left at its default where families are {reason}, got {self.allocation}")


Axes = Literal[1, 3]
"""Type of the setting `axes`: 1 for the line of difficulty, 3 for strictness, reserve and impatience apart."""


class Teacher:
    """Proposes tasks and learns from their outcomes; a subclass answers `choose`. Never blocks; everything that adapts is in `state_dict`.

    Outcomes may come late, in any order, or never; one that is not outstanding is counted and ignored, and within one `observe` call order
    does not matter. A trainer calls `propose`, `observe` with finished groups before any filter has dropped one, `on_update` after the
    optimiser step, and `expire` for tasks that will never come back.
    """

    kind: ClassVar[str]
    adapting: ClassVar[tuple[str, ...]] = ()
    """Attributes that change with outcomes and updates: JSON-able, or with `state_dict` and `load_state_dict`, and without a reference to
    the teacher, because a state is restored on a copy."""
    plans_by_proposal: ClassVar[bool] = False
    """Whether its plan advances with each proposal, so that more than one in a step would hurry it."""
    state_version: ClassVar[int] = 5

    def __init__(self, config: TeacherConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        """
        Args:
            scenarios: training scenario ids by family, at least one each. Families are Attune's or any text that names none of them.
            group_size: rollouts per task, at least 2.
            seed: decides everything that this teacher leaves to chance, and the seeds of its tasks; at least 0.
        """
        if not scenarios:
            raise ValueError("teacher.scenarios must hold at least one family, got none")
        for family, ids in scenarios.items():
            if parse_family(str(family)) != family:
                raise ValueError(f"teacher.scenarios must name each family by text or, if it is Attune's, by Family, got {family!r}")
            if isinstance(ids, str) or len(ids) == 0:
                raise ValueError(f"teacher.scenarios must give {str(family)!r} a list of scenario ids, got {ids!r}")
        self.config = config
        self.families: tuple[FamilyKey, ...] = tuple(sorted(scenarios, key=str))
        self.group_size = whole("teacher.group_size", group_size, least=2)  # groups of one have no baseline
        self.seed = whole("teacher.seed", seed, least=0)
        self.rng = np.random.default_rng(self.seed)
        self.allocation = FamilyAllocation(config.allocation, self.families)
        self.step = 0
        """Proposals so far; 1 when the first one calls `choose`."""
        self.policy_version = 0
        """Of the latest proposal."""
        self._scenarios = {str(family): list(scenarios[family]) for family in self.families}
        # The rest of each family's shuffled deck of scenarios, the next card last.
        self._decks: dict[str, list[str]] = {family: [] for family in self._scenarios}
        # Slot and share of the family that is being chosen for.
        self._slot, self._share = 0, 1.0
        self._outstanding: dict[str, TaskSpec] = {}
        # Decisions until they are collected; a trainer that never does keeps the latest.
        self._decisions: deque[dict[str, Any]] = deque(maxlen=1000)
        self._counts = {"observed": 0, "ignored": 0, "too_few_survivors": 0, "expired": 0, "probes": 0}
        self._latest: dict[str, float] = {}
        # Strictness of all proposals since the last outcomes: a step may propose several times, for groups in place of others.
        self._issued: list[float] = []
        self.start()

    def start(self) -> None:
        """Gives the attributes that adapt their first values."""

    def choose(self, family: FamilyKey) -> TaskSpec:
        """The next group of `family`, made by `task`."""
        raise NotImplementedError(f"{type(self).__name__} must answer choose(family)")

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        """The families of the next groups, each with the probability of being chosen; `choose` is then asked for each, in order."""
        return self.allocation.choose(num_groups, self.rng)

    def performance(self, group: GroupOutcome) -> float:
        """Performance of a group, in [0, 1], by which progress of families is measured."""
        return group.success_rate

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Takes in groups that were outstanding and have at least two survivors, in the order of their uids."""

    def learn_probes(self, probes: Sequence[GroupOutcome]) -> None:
        """Takes in the probe panel: the same training dialogues each time, mostly groups of one, in the order of their uids."""

    def on_update(self, stats: UpdateStats) -> None:
        """Takes in the measurements of the optimiser step."""

    def task(
        self,
        family: FamilyKey,
        difficulty: float | Sequence[float] | Difficulty,
        mode: Mode = Mode.FRONTIER,
        probability: float = 1.0,
    ) -> TaskSpec:
        """The next group of `family` at a difficulty, with the family's next scenario.

        Args:
            difficulty: a strictness on the line of difficulty, or a point [strictness] or [strictness, reserve, impatience], in [0, 1].
            probability: of choosing in this mode, or this cell, given the family; in (0, 1].
        """
        if not isinstance(difficulty, Difficulty):
            point = [difficulty] if isinstance(difficulty, float | int) else difficulty
            difficulty = (
                Difficulty.along(point[0]) if len(point) == 1 else Difficulty(strictness=point[0], reserve=point[1], impatience=point[2])
            )
        deck, scenarios = self._decks[str(family)], self._scenarios[str(family)]
        if not deck:
            deck.extend(scenarios[i] for i in self.rng.permutation(len(scenarios)))
        return TaskSpec(
            uid=f"step{self.step:07d}-group{self._slot:04d}",
            family=family,
            scenario_id=deck.pop(),
            difficulty=difficulty,
            group_size=self.group_size,
            seed=task_seed(self.seed, self.step, self._slot),
            mode=mode,
            teacher_step=self.step,
            policy_version=self.policy_version,
            propensity=self._share * probability,
        )

    def propose(self, num_groups: int, *, policy_version: int) -> list[TaskSpec]:
        """The next `num_groups` tasks, entered in the ledger.

        Args:
            policy_version: updates that the policy has had. It never falls, also not after a resume: evidence fades with the updates since.
        """
        num_groups = whole("num_groups", num_groups, least=1)
        self.policy_version = whole("policy_version", policy_version, least=self.policy_version)
        self.step += 1
        tasks: list[TaskSpec] = []
        for family, share in self.choose_families(num_groups):
            self._slot, self._share = len(tasks), share
            tasks.append(self.choose(family))
        self._outstanding.update((task.uid, task) for task in tasks)
        self._issued += [task.strictness for task in tasks]
        self._latest.update(strictness=float(np.mean(self._issued)), strictness_std=float(np.std(self._issued)))
        return tasks

    def observe(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Settles outcomes against the ledger and learns from those with two survivors; anything not outstanding is counted and ignored.

        Raises:
            TypeError: an outcome is no GroupOutcome; evaluation never reaches a teacher.
        """
        for outcome in outcomes:
            if not isinstance(outcome, GroupOutcome):
                raise TypeError(f"outcomes must be GroupOutcomes, got {type(outcome).__name__}; evaluation never reaches a teacher")
        self._issued = []
        probes, groups = [], []
        for outcome in sorted(outcomes, key=lambda outcome: outcome.task.uid):
            task = outcome.task
            if task.mode is Mode.PROBE:
                self._counts["probes"] += 1
                probes.append(outcome)
            elif self._outstanding.get(task.uid) != task:
                self._counts["ignored"] += 1
            else:
                del self._outstanding[task.uid]
                self._counts["observed"] += 1
                if len(outcome.surviving) >= 2:
                    groups.append(outcome)
                else:
                    self._counts["too_few_survivors"] += 1
        if probes:
            self.learn_probes(probes)
        if groups:
            self._latest["in_flight_delay"] = float(np.mean([self.step - group.task.teacher_step for group in groups]))
            self._latest["success_share"] = float(np.mean([group.success_rate for group in groups]))
            self.learn(groups)
        for group in groups:
            self.allocation.learn(group.task.family, strictness=group.task.strictness, performance=self.performance(group))

    def expire(self, uids: Sequence[str], *, reason: str) -> None:
        """Removes tasks that will never come back; their outcomes are ignored should they come after all."""
        for uid in uids:
            if self._outstanding.pop(uid, None) is not None:
                self._counts["expired"] += 1
                self.decide("expire", uid=uid, reason=reason)

    def decide(self, decision: str, **inputs: Any) -> None:
        """Records a decision with its inputs, for `decisions()`."""
        self._decisions.append({"decision": decision, "teacher_step": self.step, **inputs})

    def decisions(self) -> list[dict[str, Any]]:
        """Decisions since the last call, each with its inputs."""
        taken = list(self._decisions)
        self._decisions.clear()
        return taken

    def metrics(self) -> dict[str, float]:
        """The ledger's counts; strictness of the proposals since the last outcomes, delay and success share of the latest outcomes."""
        counts = {f"curriculum/outcomes_{name}": float(count) for name, count in self._counts.items()}
        latest = {f"curriculum/{name}": value for name, value in self._latest.items()}
        return {**latest, "curriculum/outstanding": float(len(self._outstanding)), **counts}

    def identity(self) -> dict[str, Any]:
        """Kind, version, and the settings with group size and families, JSON-able: what a saved state must agree with."""
        settings = {**asdict(self.config), "group_size": self.group_size, "families": list(self._scenarios)}
        return {"kind": self.kind, "version": self.state_version, "settings": json.loads(json.dumps(settings))}

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, JSON-able and exact."""
        parts = {name: getattr(self, name) for name in self.adapting}
        state = {
            **self.identity(),
            "seed": self.seed,
            "step": self.step,
            "policy_version": self.policy_version,
            "rng": self.rng.bit_generator.state,
            "outstanding": [task.to_dict() for task in self._outstanding.values()],
            "scenarios": self._decks,
            "allocation": self.allocation.state_dict(),
            "decisions": list(self._decisions),
            "counts": self._counts,
            "latest": self._latest,
            "issued": self._issued,
            "learned": {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()},
        }
        return deepcopy(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; ValueError for another kind, version or settings, which leaves the teacher unchanged."""
        require_same("teacher state", state, self.identity())
        saved, restored = deepcopy(dict(state)), deepcopy(self)
        restored.seed, restored.step, restored.policy_version = saved["seed"], saved["step"], saved["policy_version"]
        restored.rng.bit_generator.state = saved["rng"]
        restored._outstanding = {record["uid"]: TaskSpec.from_dict(record) for record in saved["outstanding"]}
        restored._decks = saved["scenarios"]
        restored.allocation.load_state_dict(saved["allocation"])
        restored._decisions = deque(saved["decisions"], maxlen=self._decisions.maxlen)
        restored._counts, restored._latest, restored._issued = saved["counts"], saved["latest"], saved["issued"]
        learned = saved["learned"]
        for name in self.adapting:
            part = getattr(restored, name)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(learned[name])
            else:
                setattr(restored, name, learned[name])
        self.__dict__.update(restored.__dict__)


def whole(name: str, value: Any, *, least: int) -> int:
    """The value as an int; raises ValueError unless it is a whole number, numpy's included, of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def task_seed(seed: int, step: int, slot: int) -> int:
    """Seed of a task, independent of all draws of the teacher, so that arms of a comparison roll out on the same seeds."""
    return int(np.random.SeedSequence((seed, step, slot)).generate_state(1)[0]) >> 1
