"""One teacher with one toy student: the run, what it showed at every update, and the figures by which it is judged."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from curriculum.arms import build_teacher
from curriculum.collapse import INDICATORS, Alarm, CollapseConfig, CollapseMonitor
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
SUCCESS_OF_COLLAPSE = 0.8
COLLAPSE_UPDATES = 20
"""Post hoc, a run has collapsed where its score stays below this share of its best so far for so many updates."""


@dataclass
class Trace:
    """What a run showed. Lists by update are as long as the run; `issued` and `misses` go by proposals, of which delay adds some."""

    student: Student
    series: dict[str, list[float]] = field(default_factory=dict)
    """By update: `score` and `worst` of the exact examination, and every indicator of `LOOKS`."""
    issued: list[float] = field(default_factory=list)
    """Mean strictness of each proposal."""
    frontier: list[float] = field(default_factory=list)
    """Mean frontier of the student's families at each proposal; NaN where it has none."""
    misses: list[float] = field(default_factory=list)
    """Strictness less the family's frontier at issue, for every task that the teacher issued at the frontier (all, if it marks none)."""
    num_tasks: int = 0
    num_noise: int = 0
    """Tasks of families whose reward is noise."""
    num_rollouts: int = 0
    num_probes: int = 0
    """Rollouts of the probe panel, which come on top of `num_rollouts`."""
    teacher_cpu_s: float = 0.0
    """CPU time of propose and observe."""


Look = Callable[[Student, Batch], float]
LOOKS: dict[str, Look] = {
    "entropy": lambda student, batch: _mean(student.entropy(batch.family_N, batch.strictness_N)),
    "reward_density": lambda student, batch: density(batch.rewards_NG),
    "all_low_share": lambda student, batch: alike(batch.rewards_NG)[0],
    "all_high_share": lambda student, batch: alike(batch.rewards_NG)[1],
    "success_share": lambda student, batch: _mean(np.where(np.isnan(batch.rewards_NG), np.nan, batch.successes_NG)),
}
"""What is looked at in each update, before the student learns from it; names that `curriculum.collapse` knows reach its monitor."""


def run_one(student: str, kind: str, settings: Mapping[str, Any] | None = None, seed: int = 0) -> dict[str, float]:
    """The figures of one run; see `simulate` and `figures`."""
    return figures(simulate(student, kind, settings, seed))


def simulate(
    student: str, kind: str, settings: Mapping[str, Any] | None = None, seed: int = 0, *, looks: Mapping[str, Look] = LOOKS
) -> Trace:
    """Runs a teacher with a student.

    A delay of tau means that tasks are issued tau updates before they are rolled out, by the policy of that later moment; student and
    teacher then hear of them at once. The first tau updates therefore play what the teacher issued before it had heard of anything.

    Args:
        student: a name in `STUDENTS`.
        kind: a name in `TEACHERS`.
        settings: of the teacher, by dotted name; the others are at their defaults.
        seed: decides, independently, what the student leaves to chance (the same for all teachers) and what the teacher does.
        looks: what to look at in each update, with at least `LOOKS`.
    """
    constants, rollouts, losses, teaching = np.random.SeedSequence(seed).spawn(4)
    learner = STUDENTS[student](np.random.default_rng(constants))
    scenarios = {family: [f"{family}-{i}" for i in range(NUM_SCENARIOS)] for family in learner.families}
    teacher_seed = int(teaching.generate_state(1)[0]) >> 1
    teacher = build_teacher(kind, settings or {}, scenarios=scenarios, group_size=learner.group_size, seed=teacher_seed)
    return _Trial(learner, teacher, np.random.default_rng(rollouts), np.random.default_rng(losses), looks).run()


class _Trial:
    def __init__(
        self, student: Student, teacher: Teacher, rng: np.random.Generator, loss_rng: np.random.Generator, looks: Mapping[str, Look]
    ) -> None:
        self.student, self.teacher, self.looks = student, teacher, looks
        self.rng, self.loss_rng = rng, loss_rng
        self.index = {family: i for i, family in enumerate(student.families)}
        self.trace = Trace(student, {name: [] for name in ("score", "worst", *looks)})
        self.panel = probe_panel(student.families)
        self.to_expire: deque[tuple[int, list[str]]] = deque()

    def run(self) -> Trace:
        """Proposals first by `delay`, then one update for each."""
        waiting: deque[list[TaskSpec]] = deque()
        for proposal in range(self.student.num_updates + self.student.delay):
            update = proposal - self.student.delay
            waiting.append(self._propose(max(update, 0)))
            if update >= 0:
                self._update(update, waiting.popleft())
        return self.trace

    def _propose(self, policy_version: int) -> list[TaskSpec]:
        started = time.process_time()
        tasks = self.teacher.propose(self.student.num_groups, policy_version=policy_version)
        self.trace.teacher_cpu_s += time.process_time() - started
        self._note_issued(tasks)
        return tasks

    def _note_issued(self, tasks: Sequence[TaskSpec]) -> None:
        trace = self.trace
        trace.num_tasks += len(tasks)
        trace.num_noise += sum(task.family in self.student.noise for task in tasks)
        trace.issued.append(sum(task.strictness for task in tasks) / len(tasks))
        if self.student.target is None:
            return
        frontier_F = self.student.frontier()
        trace.frontier.append(float(frontier_F.mean()))
        aimed = [task for task in tasks if task.mode is Mode.FRONTIER] or tasks
        trace.misses.extend(task.strictness - float(frontier_F[self.index[str(task.family)]]) for task in aimed)

    def _update(self, update: int, tasks: list[TaskSpec]) -> None:
        batch = self._play(tasks)
        if self.student.outages is not None:
            fate_N = self.student.outages.fates(len(tasks), self.loss_rng)
            batch = Batch(batch.family_N, batch.strictness_N, maim(batch.rewards_NG, fate_N), batch.successes_NG, batch.choices_NG)
            lost = [task.uid for task, fate in zip(tasks, fate_N, strict=True) if fate == Fate.LOST]
            self.to_expire.append((update + self.student.outages.expire_after, lost))
        outcomes = [outcome for outcome in outcomes_of(tasks, batch) if outcome.surviving]
        self.trace.num_rollouts += batch.rewards_NG.size
        if update % PROBE_EVERY == 0:
            outcomes.extend(self._probe(update))
        started = time.process_time()
        self.teacher.observe(outcomes)
        self.trace.teacher_cpu_s += time.process_time() - started
        while self.to_expire and self.to_expire[0][0] <= update:
            self.teacher.expire(self.to_expire.popleft()[1], reason="lost in an outage")
        seen = {name: look(self.student, batch) for name, look in self.looks.items()}
        self.student.learn(batch, self.student.num_groups)
        self._report(update, seen)

    def _play(self, tasks: Sequence[TaskSpec], group_size: int = 0) -> Batch:
        family_N = np.array([self.index[str(task.family)] for task in tasks])
        strictness_N = np.array([task.strictness for task in tasks])
        return self.student.play(family_N, strictness_N, group_size or self.student.group_size, self.rng)

    def _probe(self, update: int) -> list[GroupOutcome]:
        tasks = [TaskSpec(**{**vars(task), "policy_version": update}) for task in self.panel]
        self.trace.num_probes += len(tasks)
        return outcomes_of(tasks, self._play(tasks, group_size=1))

    def _report(self, update: int, seen: Mapping[str, float]) -> None:
        scores = self.student.scores()
        for name, value in {**seen, "score": float(scores.mean()), "worst": float(scores.min())}.items():
            self.trace.series[name].append(value)
        self.teacher.on_update(
            UpdateStats(
                step=update,
                policy_version=update + 1,
                entropy=seen["entropy"],
                entropy_sampled=seen["entropy"],
                reward_density=seen["reward_density"],
                zero_variance_share=seen["all_low_share"] + seen["all_high_share"],
                kl=math.nan,
            )
        )


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
    fine = (Status.OK,) * batch.rewards_NG.shape[1]
    whole = not np.isnan(batch.rewards_NG).any()
    return [
        GroupOutcome(
            task=task,
            rewards=tuple(rewards_G),
            successes=tuple(successes_G),
            num_tokens=(1,) * len(rewards_G),
            statuses=fine if whole else tuple(Status.OK if r == r else Status.SIMULATOR_ERROR for r in rewards_G),
        )
        for task, rewards_G, successes_G in zip(tasks, rewards, successes, strict=True)
    ]


def density(rewards_NG: np.ndarray) -> float:
    """`curriculum.signals.reward_density`, at once for all groups where nothing is missing."""
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


def figures(trace: Trace) -> dict[str, float]:
    """What a run is judged by; only what applies to its student.

    `rmse` where there is a frontier to be tracked: mean strictness issued against it over the last two thirds (one family), or each task
    against its family's over the whole run (several). Otherwise `final`, `auc`, `worst` and, by strictness, `easy` (three easiest cells)
    and `hard` (four hardest), or, by family, `macro` instead of `final`; `noise_share` of the tasks; `collapsed` and `first_alarm` where
    the student can collapse. For all: `probe_share` of the rollouts, and `us_per_task`, the teacher's CPU time.
    """
    student, series = trace.student, trace.series
    out: dict[str, float] = {}
    if student.target is not None:
        out["rmse"] = tracking_error(trace)
    else:
        scores = student.scores()
        out |= {"final" if student.grid else "macro": float(scores.mean()), "auc": _mean(series["score"]), "worst": float(scores.min())}
        if student.grid:
            out |= {"easy": float(scores[:3].mean()), "hard": float(scores[-4:].mean())}
        onset = collapse_onset(series["score"])
        out["collapsed"] = float(onset is not None)
    if student.noise:
        out["noise_share"] = trace.num_noise / trace.num_tasks
    out["probe_share"] = trace.num_probes / (trace.num_rollouts + trace.num_probes)
    out["us_per_task"] = 1e6 * trace.teacher_cpu_s / trace.num_tasks
    return out


def tracking_error(trace: Trace) -> float:
    """Root mean square distance from the frontier; see `figures`."""
    if len(trace.student.families) > 1:
        return float(np.sqrt(np.mean(np.square(trace.misses))))
    late = len(trace.issued) // 3
    return float(np.sqrt(np.mean(np.square(np.subtract(trace.issued, trace.frontier)[late:]))))


def collapse_onset(scores: Sequence[float]) -> int | None:
    """First update of the first stretch of 20 in which the score stays below 80 % of its best so far; None if there is none."""
    low = np.asarray(scores) < SUCCESS_OF_COLLAPSE * np.maximum.accumulate(scores)
    held = 0
    for update, is_low in enumerate(low):
        held = held + 1 if is_low else 0
        if held == COLLAPSE_UPDATES:
            return update - COLLAPSE_UPDATES + 1
    return None


def alarms(trace: Trace, config: CollapseConfig | None = None) -> list[Alarm]:
    """Every alarm that the collapse monitor raises on the run's indicators."""
    monitor = CollapseMonitor(config or CollapseConfig())
    names = sorted(set(INDICATORS) & set(trace.series))
    fired = []
    for update, values in enumerate(zip(*(trace.series[name] for name in names), strict=True)):
        fired.extend(monitor.observe(update, dict(zip(names, values, strict=True))))
    return fired


def _mean(values: Sequence[float] | np.ndarray) -> float:
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else math.nan
