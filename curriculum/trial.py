"""One teacher with one toy student: the run, and what it showed at every update."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from curriculum.arms import build_teacher
from curriculum.outages import Fate, maim
from curriculum.signals import reward_density, zero_variance_share
from curriculum.students import STUDENTS
from curriculum.teacher import GroupOutcome, Mode, Status, TaskSpec, Teacher, UpdateStats
from curriculum.toy import Batch, Student
from simulator.difficulty import Difficulty

PROBE_SIZE = 25
PROBE_EVERY = 5
"""The probe panel as training runs have it: so many points, one rollout each, every so many updates."""
NUM_SCENARIOS = 20
"""Scenarios per family; a toy student does not tell them apart."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """What can be seen of one update, before the student learns from it."""

    student: Student
    batch: Batch
    probes: Batch | None
    """The probe panel, one rollout a row, when it was due."""


LOOKS: dict[str, Callable[[Look], float]] = {
    "entropy": lambda look: _mean(look.student.entropy(look.batch.family_N, look.batch.strictness_N)[look.batch.came_N]),
    "reward_density": lambda look: density(look.batch.rewards_NG),
    "all_low_share": lambda look: alike(look.batch.rewards_NG)[0],
    "all_high_share": lambda look: alike(look.batch.rewards_NG)[1],
    "success_share": lambda look: _mean(look.batch.successes_NG[~np.isnan(look.batch.rewards_NG)]),
    "probe_reward": lambda look: math.nan if look.probes is None else float(look.probes.rewards_NG.mean()),
}
"""Series to record, by name: add one here, and if `curriculum.collapse.INDICATORS` knows its name, the monitor is fed with it."""


@dataclass
class Trace:
    """What a run showed."""

    student: Student
    series: dict[str, list[float]] = field(default_factory=dict)
    """By update: `score` and `worst` of the exact examination, and each of `LOOKS`."""
    tasks: list[list[TaskSpec]] = field(default_factory=list)
    """What was proposed for each update."""
    frontiers: list[np.ndarray] = field(default_factory=list)
    """[F] the student's frontier when these were proposed, where it has one."""
    num_rollouts: int = 0
    num_probes: int = 0
    """Rollouts of the probe panel, which come on top of `num_rollouts`."""
    teacher_cpu_s: float = 0.0
    """CPU time of propose and observe."""


def simulate(
    student: str,
    kind: str,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    looks: Mapping[str, Callable[[Look], float]] = LOOKS,
) -> Trace:
    """Runs a teacher with a student.

    With a delay of tau, tasks are issued tau updates before they are rolled out by the policy of that later moment; student and teacher
    then hear of them at once. The first tau + 1 updates thus play what the teacher issued before it had heard of anything.

    Args:
        student: a name in `STUDENTS`.
        kind: a name in `TEACHERS`.
        settings: of the teacher, by dotted name; the others are at their defaults.
        seed: decides, independently, what the student leaves to chance (the same for all teachers) and what the teacher does.
        looks: series to record, with at least `LOOKS`.
    """
    constants, rollouts, probes, losses, teaching = np.random.SeedSequence(seed).spawn(5)
    learner = STUDENTS[student](np.random.default_rng(constants))
    teacher = build_teacher(
        kind,
        settings or {},
        scenarios={family: [f"{family}-{i}" for i in range(NUM_SCENARIOS)] for family in learner.families},
        group_size=learner.group_size,
        seed=int(teaching.generate_state(1)[0]) >> 1,
    )
    return _Trial(learner, teacher, looks, *map(np.random.default_rng, (rollouts, probes, losses))).run()


class _Trial:
    """The run of `simulate`, with a generator each for rollouts, probes and losses so that none of them shifts the others."""

    def __init__(
        self,
        student: Student,
        teacher: Teacher,
        looks: Mapping[str, Callable[[Look], float]],
        rollouts: np.random.Generator,
        probes: np.random.Generator,
        losses: np.random.Generator,
    ) -> None:
        self.student, self.teacher, self.looks = student, teacher, looks
        self.rollouts, self.probes, self.losses = rollouts, probes, losses
        self.index = {family: i for i, family in enumerate(student.families)}
        self.trace = Trace(student, {name: [] for name in ("score", "worst", *looks)})
        self.panel = probe_panel(student.families)
        self.lost: deque[tuple[int, list[str]]] = deque()

    def run(self) -> Trace:
        """Every update proposes for the one that lies a delay ahead."""
        num_updates, delay = self.student.num_updates, self.student.delay
        for _ in range(min(delay, num_updates)):
            self._propose(0)
        for update in range(num_updates):
            if update + delay < num_updates:
                self._propose(update)
            self._update(update, self.trace.tasks[update])
        return self.trace

    def _propose(self, policy_version: int) -> None:
        started = time.process_time()
        tasks = self.teacher.propose(self.student.num_groups, policy_version=policy_version)
        self.trace.teacher_cpu_s += time.process_time() - started
        self.trace.tasks.append(tasks)
        frontier_F = self.student.frontier()
        if frontier_F is not None:
            self.trace.frontiers.append(frontier_F)

    def _update(self, update: int, tasks: list[TaskSpec]) -> None:
        batch = self._lose(update, tasks, self._play(tasks, self.student.group_size, self.rollouts))
        outcomes = [outcome for outcome, came in zip(outcomes_of(tasks, batch), batch.came_N, strict=True) if came]
        probes = None
        if update % PROBE_EVERY == 0:
            panel = [replace(task, policy_version=update) for task in self.panel]
            probes = self._play(panel, 1, self.probes)
            outcomes.extend(outcomes_of(panel, probes))
            self.trace.num_probes += len(panel)
        self.trace.num_rollouts += batch.rewards_NG.size
        started = time.process_time()
        self.teacher.observe(outcomes)
        self.trace.teacher_cpu_s += time.process_time() - started
        while self.lost and self.lost[0][0] <= update:
            self.teacher.expire(self.lost.popleft()[1], reason="lost in an outage")
        seen = {name: look(Look(student=self.student, batch=batch, probes=probes)) for name, look in self.looks.items()}
        self.student.learn(to_learn_from(tasks, batch))
        self._report(update, seen)

    def _play(self, tasks: Sequence[TaskSpec], group_size: int, rng: np.random.Generator) -> Batch:
        family_N = np.array([self.index[str(task.family)] for task in tasks])
        strictness_N = np.array([task.strictness for task in tasks])
        return self.student.play(family_N, strictness_N, group_size, rng)

    def _lose(self, update: int, tasks: Sequence[TaskSpec], batch: Batch) -> Batch:
        """What outages leave of a batch; tasks that will never come back are noted for their expiry."""
        outages = self.student.outages
        if outages is None:
            return batch
        fate_N = outages.fates(len(tasks), self.losses)
        gone = [task.uid for task, fate in zip(tasks, fate_N, strict=True) if fate == Fate.LOST]
        self.lost.append((update + outages.expire_after, gone))
        return replace(batch, rewards_NG=maim(batch.rewards_NG, fate_N))

    def _report(self, update: int, seen: Mapping[str, float]) -> None:
        scores = self.student.scores()
        for name, value in {**seen, "score": float(scores.mean()), "worst": float(scores.min())}.items():
            self.trace.series[name].append(value)
        stats = UpdateStats(
            step=update,
            policy_version=update + 1,
            entropy=seen["entropy"],
            entropy_sampled=seen["entropy"],
            reward_density=seen["reward_density"],
            zero_variance_share=seen["all_low_share"] + seen["all_high_share"],
            kl=math.nan,
        )
        self.teacher.on_update(stats)


def probe_panel(families: Sequence[str]) -> list[TaskSpec]:
    """The 25 points that are played again and again: families in turn, strictness spread evenly and dealt to them by chance."""
    strictness_P = (np.random.default_rng(PROBE_SIZE).permutation(PROBE_SIZE) + 0.5) / PROBE_SIZE
    return [
        TaskSpec(
            uid=f"probe{i:03d}",
            family=families[i % len(families)],
            scenario_id=f"{families[i % len(families)]}-0",
            difficulty=Difficulty.along(float(d)),
            strictness=float(d),
            group_size=1,
            seed=i,
            mode=Mode.PROBE,
            teacher_step=0,
            policy_version=0,
            propensity=1.0,
        )
        for i, d in enumerate(strictness_P)
    ]


def outcomes_of(tasks: Sequence[TaskSpec], batch: Batch) -> list[GroupOutcome]:
    """The outcome of each task; NaN rewards are rollouts that a simulator broke."""
    rewards, successes = batch.rewards_NG.tolist(), batch.successes_NG.tolist()
    group_size = batch.rewards_NG.shape[1]
    fine = None if np.isnan(batch.rewards_NG).any() else (Status.OK,) * group_size
    return [
        GroupOutcome(
            task=task,
            rewards=tuple(rewards_G),
            successes=tuple(successes_G),
            num_tokens=(1,) * group_size,
            statuses=fine or tuple([Status.OK if reward == reward else Status.SIMULATOR_ERROR for reward in rewards_G]),
        )
        for task, rewards_G, successes_G in zip(tasks, rewards, successes, strict=True)
    ]


def to_learn_from(tasks: Sequence[TaskSpec], batch: Batch) -> Batch:
    """`batch` with the groups that are only played to be scored gone; they cost their share of the step, as lost ones do."""
    unlearned_N = np.array([task.mode is Mode.UNLEARNED for task in tasks])
    if not unlearned_N.any():
        return batch
    return replace(batch, rewards_NG=np.where(unlearned_N[:, None], np.nan, batch.rewards_NG))


def density(rewards_NG: np.ndarray) -> float:
    """`curriculum.signals.reward_density`, for all groups at once where nothing is missing."""
    if np.isnan(rewards_NG).any():
        return reward_density(rewards_NG.tolist())
    return float(4.0 * rewards_NG.var(axis=1, ddof=1).mean())


def alike(rewards_NG: np.ndarray) -> tuple[float, float]:
    """Shares of groups alike below .5 and alike above, as `curriculum.signals.zero_variance_share` has them."""
    if np.isnan(rewards_NG).any():
        shares = zero_variance_share(rewards_NG.tolist())
        return shares.all_low, shares.all_high
    alike_N = (rewards_NG == rewards_NG[:, :1]).all(axis=1)
    high_N = rewards_NG[:, 0] >= 0.5
    return float((alike_N & ~high_N).mean()), float((alike_N & high_N).mean())


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan
