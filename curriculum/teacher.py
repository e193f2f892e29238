"""The part all teachers share: tasks enter a ledger when issued and are struck when their outcome comes, and nothing else teaches.

A new teacher subclasses `LedgerTeacher`, sets `kind`, answers `choose`, perhaps `learn`, `learn_probes` and `on_update`, and names in
`adapting` what it learns. Which family comes next is the allocation's business, unless a teacher chooses family and strictness together
and answers `choose_families` as well.

Difficulty as a point of one or three coordinates, for teachers that may move the axes apart.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, field, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic.dataclasses import dataclass

from curriculum.allocation import AllocationConfig, FamilyAllocation, ScenarioDecks
from curriculum.checks import require_alike, require_between, require_equal, require_fields, require_whole
from curriculum.task import FamilyKey, GroupOutcome, Mode, TaskSpec, UpdateStats
from simulator.scenario import Difficulty, Family
from simulator.settings import SETTINGS

STATE_VERSION = 4
MAX_PENDING_DECISIONS = 1000
"""Decisions kept when nobody collects them; older ones are dropped so that memory stays flat."""


def evenly() -> AllocationConfig:
    """All families alike, whatever they have learned."""
    return AllocationConfig(uniform_floor=1.0)


@dataclass(config=SETTINGS)
class TeacherConfig:
    """Settings that every teacher has."""

    success_emotion: float = 70.0
    """[0, 100]: final emotion from which a rollout counts as a success."""
    allocation: AllocationConfig = field(default_factory=evenly)

    def __post_init__(self) -> None:
        require_between("teacher.success_emotion", self.success_emotion, 0.0, 100.0)


def refuse_allocation(config: TeacherConfig, whose: str) -> None:
    """Raises ValueError where the allocation is set and has no say.

    Args:
        whose: what decides the families instead, and with which setting.
    """
    usual = asdict(evenly())
    changed = {name: value for name, value in asdict(config.allocation).items() if value != usual[name]}
    if changed:
        raise ValueError(f"teacher.allocation must be left alone where families are {whose}, got {changed}")


class Choice(NamedTuple):
    """A teacher's answer to: how strict, for this family, now?"""

    strictness: float
    mode: Mode
    share: float
    """Probability, given the family, of choosing in this mode, in (0, 1]."""
    difficulty: Difficulty | None = None
    """Where the axes are moved apart; None is `Difficulty.along(strictness)`."""

    @classmethod
    def at(cls, difficulty: Difficulty, mode: Mode, share: float) -> Choice:
        """A point off the line; its strictness is the mean of the axes."""
        axes = difficulty.to_dict().values()
        return cls(sum(axes) / len(axes), mode, share, difficulty)


class LedgerTeacher:
    """The `Teacher` contract less the idea: `choose` is what a teacher must say, `learn` and `on_update` what it may hear."""

    kind: ClassVar[str]
    adapting: ClassVar[tuple[str, ...]] = ()
    """Attributes that change with what is observed: JSON-able, or with a `state_dict` and `load_state_dict` of their own.

    A JSON-able one must keep its make, because a saved value is held against the present one: numbers that may have a fraction begin as
    floats, and a dict has text for keys and all of them from the start. What grows otherwise is an object with a state of its own.
    """
    plans_by_proposal: ClassVar[bool] = False
    """Whether its plan goes on with each proposal, so that more than one in a step would hurry it."""

    def __init__(
        self,
        config: TeacherConfig,
        *,
        scenarios: Mapping[Any, Sequence[str]],
        group_size: int,
        seed: int,
    ) -> None:
        """
        Args:
            scenarios: training scenario ids, text, by family; every family needs at least one. Families are Attune's or any text that is
                not the name of one of them.
            group_size: rollouts per task, at least 2.
            seed: decides everything this teacher leaves to chance, and the seeds of its tasks; at least 0.
        """
        require_scenarios(scenarios)
        seed = require_whole("teacher.seed", seed, 0)
        self.config = config
        self.families: tuple[FamilyKey, ...] = tuple(sorted(scenarios, key=str))
        self.rng = np.random.default_rng(seed)
        self.allocation = FamilyAllocation(config.allocation, self.families)
        # Groups of one have no baseline.
        self._group_size = require_whole("teacher.group_size", group_size, 2)
        self._seed = seed
        self._decks = ScenarioDecks({family: scenarios[family] for family in self.families})
        self._step = 0
        self.policy_version = 0
        """Of the latest proposal."""
        self._outstanding: dict[str, TaskSpec] = {}
        self._decisions: deque[dict[str, Any]] = deque(maxlen=MAX_PENDING_DECISIONS)
        self._counts = {"observed": 0, "ignored": 0, "too_few_survivors": 0, "expired": 0, "probes": 0}
        self._latest: dict[str, float] = {}
        # Strictness of all that was proposed since outcomes last came: a step may propose several times, for groups in place of others.
        self._issued: list[float] = []

    def choose(self, family: FamilyKey) -> Choice:
        """The strictness of the next group of `family`, in [0, 1]."""
        raise NotImplementedError(f"{type(self).__name__} must answer choose(family)")

    def choose_families(self, num_groups: int) -> list[tuple[FamilyKey, float]]:
        """The families of the next groups, each with the probability of being chosen; `choose` is then asked for each, in order."""
        return self.allocation.choose(num_groups, self.rng)

    def fared(self, group: GroupOutcome) -> float:
        """How well a group fared, in [0, 1]: what a family's progress is measured in."""
        return success_share(group)

    def learn(self, groups: Sequence[GroupOutcome]) -> None:
        """Takes in groups that were outstanding and have at least two survivors, in the order of their uids."""

    def learn_probes(self, probes: Sequence[GroupOutcome]) -> None:
        """Takes in how the probe panel fared: the same training dialogues each time, mostly groups of one, in the order of their uids.

        A teacher does not issue probes, so they are in no ledger and count as often as they are handed in.
        """

    def on_update(self, stats: UpdateStats) -> None:
        """Takes in what the optimiser step did."""

    def propose(self, num_groups: int, *, policy_version: int) -> list[TaskSpec]:
        """The next `num_groups` tasks, entered in the ledger.

        Args:
            policy_version: updates that the policy has had, one more with each. It never falls, also not after a resume: what was observed
                fades with the updates since.
        """
        num_groups = require_whole("num_groups", num_groups, 1)
        policy_version = require_whole("policy_version", policy_version, self.policy_version)
        if self._step == 0 and (strangers := [name for name in self.adapting if not hasattr(self, name)]):
            raise ValueError(f"{type(self).__name__}.adapting must name attributes of the teacher, got {strangers}")
        before = self.policy_version, self._step
        self.policy_version, self._step = policy_version, self._step + 1
        try:
            families = self.choose_families(num_groups)
        except ValueError:
            self.policy_version, self._step = before
            raise
        tasks = [self._issue(slot, family, share, policy_version) for slot, (family, share) in enumerate(families)]
        self._outstanding.update((task.uid, task) for task in tasks)
        self._issued += [task.strictness for task in tasks]
        self._latest.update(strictness=float(np.mean(self._issued)), strictness_std=float(np.std(self._issued)))
        return tasks

    def _issue(self, slot: int, family: FamilyKey, share: float, policy_version: int) -> TaskSpec:
        choice = self.choose(family)
        return TaskSpec(
            uid=f"step{self._step:07d}-group{slot:04d}",
            family=family,
            scenario_id=self._decks.draw(family, self.rng),
            difficulty=choice.difficulty or Difficulty.along(choice.strictness),
            strictness=choice.strictness,
            group_size=self._group_size,
            seed=task_seed(self._seed, self._step, slot),
            mode=choice.mode,
            teacher_step=self._step,
            policy_version=policy_version,
            propensity=share * choice.share,
        )

    def observe(self, outcomes: Sequence[GroupOutcome]) -> None:
        """Settles outcomes against the ledger and learns from those that teach; anything not outstanding is counted and ignored."""
        for outcome in outcomes:
            if not isinstance(outcome, GroupOutcome):
                raise TypeError(f"outcomes must be GroupOutcomes, got {type(outcome).__name__}; evaluation never reaches a teacher")
        self._issued = []
        in_order = sorted(outcomes, key=lambda outcome: outcome.task.uid)
        if probes := [outcome for outcome in in_order if outcome.task.mode is Mode.PROBE]:
            self._counts["probes"] += len(probes)
            self.learn_probes(probes)
        settled = [outcome for outcome in in_order if outcome.task.mode is not Mode.PROBE and self._settle(outcome)]
        groups = [outcome for outcome in settled if len(outcome.surviving) >= 2]
        self._counts["too_few_survivors"] += len(settled) - len(groups)
        if not groups:
            return
        delays = [self._step - group.task.teacher_step for group in groups]
        shares = [success_share(group) for group in groups]
        self._latest.update(in_flight_delay=float(np.mean(delays)), success_share=float(np.mean(shares)))
        self.learn(groups)
        for group in groups:
            self.allocation.learn(group.task.family, strictness=group.task.strictness, fared=self.fared(group))

    def _settle(self, outcome: GroupOutcome) -> bool:
        if self._outstanding.get(outcome.task.uid) != outcome.task:
            self._counts["ignored"] += 1
            return False
        del self._outstanding[outcome.task.uid]
        self._counts["observed"] += 1
        return True

    def expire(self, uids: Sequence[str], *, reason: str) -> None:
        """Strikes tasks that will never come back; their outcomes are ignored should they come after all."""
        if isinstance(uids, str):
            raise TypeError(f"uids must be a sequence of uids, got the text {uids!r}")
        for uid in uids:
            if self._outstanding.pop(uid, None) is not None:
                self._counts["expired"] += 1
                self.decide("expire", uid=uid, reason=reason)

    def decide(self, decision: str, **inputs: Any) -> None:
        """Notes a decision and what it rests on, for `decisions()`."""
        self._decisions.append({"decision": decision, "teacher_step": self._step, **inputs})

    def decisions(self) -> list[dict[str, Any]]:
        """Decisions since the last call, each with its inputs."""
        taken = list(self._decisions)
        self._decisions.clear()
        return taken

    def metrics(self) -> dict[str, float]:
        """The ledger's figures; strictness is that of the proposals since outcomes last came, success share that of the outcomes."""
        counts = {f"curriculum/outcomes_{name}": float(count) for name, count in self._counts.items()}
        latest = {f"curriculum/{name}": value for name, value in self._latest.items()}
        return {**latest, "curriculum/outstanding": float(len(self._outstanding)), **counts}

    def state_dict(self) -> dict[str, Any]:
        """Everything that adapts, JSON-able and exact."""
        return {
            "kind": self.kind,
            "version": STATE_VERSION,
            "settings": self._settings(),
            "seed": self._seed,
            "step": self._step,
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
        """Restores `state_dict()`.

        Raises:
            ValueError: another kind, version or settings, missing or unknown fields, or values that no teacher writes; the teacher is then
                unchanged.
        """
        if not isinstance(state, Mapping):
            raise ValueError(f"teacher state must be a mapping, got {type(state).__name__}")
        require_equal("teacher state's kind", state.get("kind"), self.kind)
        require_equal("teacher state's version", state.get("version"), STATE_VERSION)
        own = self.state_dict()
        # It may lack: a run saves between its steps, when nothing is in it.
        state = {"issued": [], **state}
        require_fields("teacher state", state, own)
        require_fields("teacher state's counts", state["counts"], self._counts)
        require_fields("teacher state's learned", state["learned"], self.adapting)
        require_fields("teacher state's settings", state["settings"], own["settings"])
        for name, value in own["settings"].items():
            require_equal(f"teacher state's settings.{name}", state["settings"][name], value)
        require_alike("teacher state", {**state, "learned": {}}, {**own, "issued": [0.0]})
        for name in self.adapting:
            may_lack = getattr(getattr(self, name), "may_lack", False)
            require_alike(f"teacher state.learned.{name}", state["learned"][name], own["learned"][name], may_lack=may_lack)
        try:
            # On a copy first: one that is refused half-way must leave this teacher as it was. The copy's parts would call the copy back.
            deepcopy(self)._restore_all(state)
        except (TypeError, KeyError, AttributeError, IndexError) as error:
            raise ValueError(f"teacher state must hold what state_dict() writes, got something else: {error!r}") from error
        self._restore_all(state)

    def _settings(self) -> dict[str, Any]:
        """What a state belongs to: the settings and the group size, JSON-able."""
        return {**json.loads(json.dumps(asdict(self.config))), "group_size": self._group_size}

    def _restore_all(self, state: Mapping[str, Any]) -> None:
        for name in self.adapting:
            self._restore(name, state["learned"][name])
        self.allocation.load_state_dict(state["allocation"])
        self._decks.load_state_dict(state["scenarios"])
        self.rng.bit_generator.state = deepcopy(state["rng"])
        self._seed = state["seed"]
        self._step = state["step"]
        self.policy_version = state["policy_version"]
        self._outstanding = {record["uid"]: task_from_record(record) for record in state["outstanding"]}
        self._decisions = deque(deepcopy(state["decisions"]), maxlen=MAX_PENDING_DECISIONS)
        self._counts = dict(state["counts"])
        self._latest = dict(state["latest"])
        self._issued = list(state["issued"])

    def _restore(self, name: str, saved: Any) -> None:
        current = getattr(self, name)
        if hasattr(current, "load_state_dict"):
            current.load_state_dict(saved)
            return
        if isinstance(current, dict):
            require_fields(f"teacher state's {name}", saved, current)
        setattr(self, name, deepcopy(saved))


def require_scenarios(scenarios: Mapping[Any, Sequence[str]]) -> None:
    """Raises ValueError unless every family has a name that a saved state can hold, and at least one scenario."""
    if not isinstance(scenarios, Mapping):
        raise ValueError(f"teacher.scenarios must be a mapping from families to scenario ids, got {type(scenarios).__name__}")
    for family, ids in scenarios.items():
        if not isinstance(family, Family | str):
            raise ValueError(f"teacher.scenarios must name each family by text, got {family!r}")
        if isinstance(family, str) and str(family) != family:
            raise ValueError(f"teacher.scenarios must name each family by text that a saved state can hold, got {family!r}")
        if isinstance(family, str) and parse_family(family) != family:
            raise ValueError(f"teacher.scenarios must give Attune's own families as Family.parse(...), got the text {family!r}")
        if isinstance(ids, str) or not isinstance(ids, Sequence) or not all(isinstance(each, str) for each in ids):
            raise ValueError(f"teacher.scenarios must give each family a list of ids, each of them text, got {ids!r} for {str(family)!r}")
    empty = [str(family) for family, ids in scenarios.items() if not ids]
    if not scenarios or empty:
        raise ValueError(f"teacher.scenarios must hold at least one scenario in each family, got none in {empty or 'any'}")


def task_seed(seed: int, step: int, slot: int) -> int:
    """Seed of a task; it does not hang on what the teacher drew before, so that arms of a comparison roll out on the same seeds."""
    return int(np.random.SeedSequence((seed, step, slot)).generate_state(1)[0]) >> 1


def success_share(group: GroupOutcome) -> float:
    """Share of successes among a group's survivors, in [0, 1]."""
    return group.success_share


def mean_reward(group: GroupOutcome) -> float:
    """Mean reward of a group's survivors, in [0, 1]."""
    return sum(group.rewards[i] for i in group.surviving) / len(group.surviving)


def task_to_record(task: TaskSpec) -> dict[str, Any]:
    """A JSON-able record of a task; `task_from_record` reads it back."""
    return {**asdict(task), "family": str(task.family), "mode": str(task.mode)}


def task_from_record(record: Mapping[str, Any]) -> TaskSpec:
    """Reads what `task_to_record` wrote."""
    require_fields("task record", record, [field.name for field in fields(TaskSpec)])
    parsed = {"family": parse_family(record["family"]), "mode": Mode(record["mode"]), "difficulty": Difficulty(**record["difficulty"])}
    return TaskSpec(**{**record, **parsed})


def outcome_to_record(outcome: GroupOutcome) -> dict[str, Any]:
    """A JSON-able record of an outcome with its share of successes, NaN without survivors.

    The task is named by its uid, under which a record holds it already; a probe, which no teacher issued, comes with its whole task.
    """
    task = task_to_record(outcome.task) if outcome.task.mode is Mode.PROBE else outcome.task.uid
    columns = {column.name: getattr(outcome, column.name) for column in fields(GroupOutcome)}
    return {**columns, "task": task, "signals": dict(outcome.signals), "success_share": outcome.success_share}


def parse_family(text: str) -> FamilyKey:
    """One of Attune's families where `text` names one, otherwise the name itself."""
    try:
        return Family.parse(text)
    except ValueError:
        return text


def _saved(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else deepcopy(value)


def point_of(task: TaskSpec, axes: int) -> list[float]:
    """Where a task was issued: its strictness, or with 3 axes (strictness, reserve, impatience)."""
    return [task.strictness] if axes == 1 else list(task.difficulty.to_dict().values())


def point_choice(point: Sequence[float], mode: Mode, share: float) -> Choice:
    """The choice of a point of 1 or 3 coordinates in [0, 1]."""
    if len(point) == 1:
        return Choice(point[0], mode, share)
    strictness, reserve, impatience = point
    return Choice.at(Difficulty(strictness=strictness, reserve=reserve, impatience=impatience), mode, share)
