"""The base of all teachers: a ledger of issued tasks, from which they learn when their outcomes come.

A new teacher subclasses `LedgerTeacher`, sets `kind`, answers `choose`, and overrides what it needs of `learn`, `learn_probes`,
`on_update`, `choose_families` and `metrics`; `adapting` names what it learns.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, field
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from curriculum.allocation import AllocationConfig, FamilyAllocation, ScenarioDecks
from curriculum.checks import require_same, require_whole
from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec, UpdateStats, parse_family, task_from_record, task_to_record
from simulator.scenario import Difficulty
from simulator.settings import SETTINGS

STATE_VERSION = 5
MAX_PENDING_DECISIONS = 1000
"""Decisions kept until they are collected; older ones are dropped so that memory stays flat."""


def evenly() -> AllocationConfig:
    """The same share for every family."""
    return AllocationConfig(uniform_floor=1.0)


@dataclass(config=SETTINGS)
class TeacherConfig:
    """Settings that every teacher has."""

    success_emotion: Annotated[float, Field(ge=0, le=100)] = 70.0  # a plain default, so that a plain dataclass may extend this one
    """Final emotion from which a rollout counts as a success."""
    allocation: AllocationConfig = field(default_factory=evenly)


def _one_or_three(axes: int) -> int:
    if axes not in (1, 3):
        raise ValueError(f"teacher.axes must be 1 or 3, got {axes!r}")
    return axes


Axes = Annotated[int, AfterValidator(_one_or_three)]
"""Type of the setting `axes`: 1 for the line of difficulty, 3 for strictness, reserve and impatience apart."""


def refuse_allocation(config: TeacherConfig, reason: str) -> None:
    """Raises ValueError where the allocation is set and has no effect.

    Args:
        reason: what decides the families instead, and by which setting.
    """
    if config.allocation != evenly():
        raise ValueError(f"teacher.allocation must be left at its default where families are {reason}, got {config.allocation}")


class Choice(NamedTuple):
    """A teacher's answer to: how difficult, for this family, now?"""

    difficulty: float | Difficulty
    """A strictness on the line of difficulty, in [0, 1], or a point off it."""
    mode: Mode = Mode.FRONTIER
    probability: float = 1.0
    """Of choosing in this mode, or this cell, given the family; in (0, 1]."""

    @classmethod
    def of_point(cls, point: Sequence[float], mode: Mode, probability: float) -> Choice:
        """The choice of a point of one coordinate (strictness) or three (strictness, reserve, impatience), each in [0, 1]."""
        if len(point) == 1:
            return cls(point[0], mode, probability)
        return cls(Difficulty(strictness=point[0], reserve=point[1], impatience=point[2]), mode, probability)


def point_of(task: TaskSpec, axes: int) -> list[float]:
    """Where a task was issued: [strictness], or with 3 axes [strictness, reserve, impatience]."""
    return [task.strictness] if axes == 1 else list(task.difficulty.to_dict().values())


class LedgerTeacher:
    """The `Teacher` contract without the idea: a subclass answers `choose`."""

    kind: ClassVar[str]
    adapting: ClassVar[tuple[str, ...]] = ()
    """Attributes that change with outcomes and updates: JSON-able, or with `state_dict` and `load_state_dict`, and without a reference to
    the teacher, because a state is restored on a copy."""
    plans_by_proposal: ClassVar[bool] = False
    """Whether its plan advances with each proposal, so that more than one in a step would hurry it."""

    def __init__(self, config: TeacherConfig, *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> None:
        """
        Args:
            scenarios: training scenario ids by family; every family needs at least one. Families are Attune's or any text that is not the
                name of one of them.
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
        self.group_size = require_whole("teacher.group_size", group_size, 2)  # groups of one have no baseline
        self.seed = require_whole("teacher.seed", seed, 0)
        self.rng = np.random.default_rng(self.seed)
        self.allocation = FamilyAllocation(config.allocation, self.families)
        self.step = 0
        """Proposals so far."""
        self.policy_version = 0
        """Of the latest proposal."""
        self._decks = ScenarioDecks({family: scenarios[family] for family in self.families})
        self._outstanding: dict[str, TaskSpec] = {}
        self._decisions: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING_DECISIONS)
        self._counts = {"observed": 0, "ignored": 0, "too_few_survivors": 0, "expired": 0, "probes": 0}
        self._latest: dict[str, float] = {}
        # Strictness of all proposals since the last outcomes: a step may propose several times, for groups in place of others.
        self._issued: list[float] = []
        self.start()

    def start(self) -> None:
        """Gives the attributes that adapt their first values."""

    def choose(self, family: FamilyKey) -> Choice:
        """The difficulty of the next group of `family`."""
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
        """Takes in the probe panel: the same training dialogues each time, mostly groups of one, in the order of their uids.

        A teacher does not issue probes, so they are in no ledger and every one that is observed counts.
        """

    def on_update(self, stats: UpdateStats) -> None:
        """Takes in the measurements of the optimiser step."""

    def propose(self, num_groups: int, *, policy_version: int) -> list[TaskSpec]:
        """The next `num_groups` tasks, entered in the ledger.

        Args:
            policy_version: updates that the policy has had, one more with each. It never falls, also not after a resume: evidence fades
                with the updates since.
        """
        num_groups = require_whole("num_groups", num_groups, 1)
        self.policy_version = require_whole("policy_version", policy_version, self.policy_version)
        self.step += 1
        tasks = [self._issue(slot, family, share) for slot, (family, share) in enumerate(self.choose_families(num_groups))]
        self._outstanding.update((task.uid, task) for task in tasks)
        self._issued += [task.strictness for task in tasks]
        self._latest.update(strictness=float(np.mean(self._issued)), strictness_std=float(np.std(self._issued)))
        return tasks

    def _issue(self, slot: int, family: FamilyKey, share: float) -> TaskSpec:
        difficulty, mode, probability = self.choose(family)
        return TaskSpec(
            uid=f"step{self.step:07d}-group{slot:04d}",
            family=family,
            scenario_id=self._decks.draw(family, self.rng),
            difficulty=difficulty if isinstance(difficulty, Difficulty) else Difficulty.along(difficulty),
            group_size=self.group_size,
            seed=task_seed(self.seed, self.step, slot),
            mode=mode,
            teacher_step=self.step,
            policy_version=self.policy_version,
            propensity=share * probability,
        )

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
                probes.append(outcome)
            elif self._outstanding.get(task.uid) != task:
                self._counts["ignored"] += 1
            else:
                del self._outstanding[task.uid]
                self._counts["observed"] += 1
                groups.append(outcome)
        if probes:
            self._counts["probes"] += len(probes)
            self.learn_probes(probes)
        num_settled, groups = len(groups), [group for group in groups if len(group.surviving) >= 2]
        self._counts["too_few_survivors"] += num_settled - len(groups)
        if not groups:
            return
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

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, JSON-able and exact."""
        return {
            **self._identity(),
            "seed": self.seed,
            "step": self.step,
            "policy_version": self.policy_version,
            "rng": deepcopy(self.rng.bit_generator.state),
            "outstanding": [task_to_record(task) for task in self._outstanding.values()],
            "scenarios": self._decks.state_dict(),
            "allocation": self.allocation.state_dict(),
            "decisions": deepcopy(list(self._decisions)),
            "counts": dict(self._counts),
            "latest": dict(self._latest),
            "issued": list(self._issued),
            "learned": {name: _saved(getattr(self, name)) for name in self.adapting},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`; a state that cannot be restored leaves the teacher unchanged.

        Raises:
            ValueError: it is of another kind, version or other settings.
        """
        require_same("teacher state", state, self._identity())
        restored = deepcopy(self)
        restored._restore(deepcopy(dict(state)))
        self.__dict__.update(restored.__dict__)

    def _identity(self) -> dict[str, Any]:
        """Whose state it is: kind, version, and the settings with group size and families, JSON-able."""
        settings = json.loads(json.dumps(asdict(self.config)))
        families = [str(family) for family in self.families]
        return {
            "kind": self.kind,
            "version": STATE_VERSION,
            "settings": {**settings, "group_size": self.group_size, "families": families},
        }

    def _restore(self, state: dict[str, Any]) -> None:
        self.seed, self.step, self.policy_version = state["seed"], state["step"], state["policy_version"]
        self.rng.bit_generator.state = state["rng"]
        self._outstanding = {record["uid"]: task_from_record(record) for record in state["outstanding"]}
        self._decks.load_state_dict(state["scenarios"])
        self.allocation.load_state_dict(state["allocation"])
        self._decisions = deque(state["decisions"], maxlen=MAX_PENDING_DECISIONS)
        self._counts, self._latest, self._issued = state["counts"], state["latest"], state["issued"]
        learned = state["learned"]
        for name in self.adapting:
            part, saved = getattr(self, name), learned[name]
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(saved)
            else:
                setattr(self, name, saved)


def _saved(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else deepcopy(part)


def task_seed(seed: int, step: int, slot: int) -> int:
    """Seed of a task, independent of all draws of the teacher, so that arms of a comparison roll out on the same seeds."""
    return int(np.random.SeedSequence((seed, step, slot)).generate_state(1)[0]) >> 1
