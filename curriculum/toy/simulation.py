"""Runs of a teacher with a toy student: the simulation, the series it records, and the figures of a run."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import yaml
from pydantic import ValidationError

from curriculum import TEACHERS
from curriculum.collapse.history import INDICATOR_METRICS, CollapseConfig
from curriculum.collapse.indicators import collapse_onset, is_undecided
from curriculum.collapse.monitor import Alarm, CollapseMonitor
from curriculum.signals import reward_density, zero_variance_share
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec, UpdateStats
from curriculum.teacher import Teacher
from curriculum.toy.students import STUDENTS, Batch, Student
from simulator.scenario import Difficulty
from simulator.settings import message


def configure(defaults: Any, settings: Mapping[str, Any], prefix: str = "teacher") -> Any:
    """A copy of the config `defaults` with `settings` (dotted names; values, or text as YAML has them) changed, checked as a whole.

    Raises:
        ValueError: no such setting, a value of another type, or one out of range.
    """
    tree = asdict(defaults)
    for name, value in settings.items():
        *groups, last = name.split(".")
        node: Any = tree
        for group in groups:
            node = node.get(group) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node or isinstance(node[last], dict):
            raise ValueError(f"{prefix}.{name} is no setting of {type(defaults).__name__}; it has {', '.join(tree)}")
        node[last] = yaml.safe_load(value) if isinstance(value, str) and not isinstance(node[last], str) else value
    try:
        return type(defaults)(**tree)
    except ValidationError as error:
        raise ValueError(message(error, prefix)) from None


def build_teacher(kind: str, settings: Mapping[str, Any], *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> Teacher:
    """A teacher of `kind` with `settings` by dotted name over the defaults."""
    config, teacher = TEACHERS[kind]
    return teacher(configure(config(), settings), scenarios=scenarios, group_size=group_size, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The observable part of one update, before the student learns from it."""

    student: Student
    batch: Batch
    probes: Batch | None  # the panel, one rollout a row, when it was due

    def entropy(self) -> float:
        """Mean entropy of the policy on the groups that came back, nats."""
        entropy_N = self.student.entropy(self.batch.family_N, self.batch.strictness_N)[self.batch.came_N]
        known_N = entropy_N[~np.isnan(entropy_N)]
        return float(known_N.mean()) if known_N.size else math.nan

    def success_rate(self) -> float:
        """Share of the rollouts that came back and succeeded."""
        alive = self.batch.successes_NG[~np.isnan(self.batch.rewards_NG)]
        return float(alive.mean()) if alive.size else math.nan


SERIES: dict[str, Callable[[Observation], float]] = {
    "entropy": Observation.entropy,
    "reward_density": lambda seen: reward_density(seen.batch.rewards_NG),
    "all_low_share": lambda seen: zero_variance_share(seen.batch.rewards_NG).all_low,
    "all_high_share": lambda seen: zero_variance_share(seen.batch.rewards_NG).all_high,
    "success_rate": Observation.success_rate,
    "probe_reward": lambda seen: math.nan if seen.probes is None else float(seen.probes.rewards_NG.mean()),
}
"""Series to record, by name: add one here, and if its name is in `INDICATOR_METRICS`, the monitor observes it."""


@dataclass
class Trace:
    """The record of a run."""

    student: Student
    series: dict[str, list[float]] = field(default_factory=dict)
    """By update: `score`, the mean of the exact examination, and each of `SERIES`."""
    tasks: list[list[TaskSpec]] = field(default_factory=list)
    frontiers: list[np.ndarray] = field(default_factory=list)
    """[F] the student's frontier when these were proposed, where it has one."""
    num_rollouts: int = 0
    num_probes: int = 0  # on top of `num_rollouts`
    teacher_cpu_s: float = 0.0  # of propose and observe


def simulate(
    student: str,
    kind: str,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    *,
    series: Mapping[str, Callable[[Observation], float]] = SERIES,
) -> Trace:
    """Runs a teacher with a student.

    With a delay of tau, tasks are issued tau updates before the policy of that later moment plays them; student and teacher then observe
    them at once.

    Args:
        settings: of the teacher, by dotted name; the others are at their defaults.
        seed: decides, independently, the chance of the student (the same for all teachers) and of the teacher.
    """
    # A generator each for rollouts, probes and losses, so that none of them shifts the others.
    constants, *streams, teaching = np.random.SeedSequence(seed).spawn(5)
    rollouts, probing, losses = map(np.random.default_rng, streams)
    learner = STUDENTS[student](np.random.default_rng(constants))
    teacher = build_teacher(
        kind,
        settings or {},
        scenarios={family: [f"{family}-{i}" for i in range(20)] for family in learner.families},  # which a toy student does not distinguish
        group_size=learner.group_size,
        seed=int(teaching.generate_state(1)[0]) >> 1,
    )
    trace = Trace(learner, {name: [] for name in ("score", *series)})
    panel, lost = probe_panel(learner.families), deque[tuple[int, list[str]]]()
    for update in range(-learner.delay, learner.num_updates):
        if update + learner.delay < learner.num_updates:
            started = time.process_time()
            trace.tasks.append(teacher.propose(learner.num_groups, policy_version=max(update, 0)))
            trace.teacher_cpu_s += time.process_time() - started
            frontier_F = learner.frontier()
            if frontier_F is not None:
                trace.frontiers.append(frontier_F)
        if update < 0:
            continue
        tasks = trace.tasks[update]
        batch = play(learner, tasks, rollouts)
        if learner.outages:
            batch = learner.outages.strike(batch, losses)
            gone = [task.uid for task, came in zip(tasks, batch.came_N, strict=True) if not came]
            lost.append((update + learner.outages.expire_after, gone))
        outcomes = [outcome for outcome, came in zip(outcomes_of(tasks, batch), batch.came_N, strict=True) if came]
        probes = None
        if update % 5 == 0:
            examined = [replace(task, policy_version=update) for task in panel]
            probes = play(learner, examined, probing)
            outcomes.extend(outcomes_of(examined, probes))
            trace.num_probes += len(panel)
        trace.num_rollouts += batch.rewards_NG.size
        started = time.process_time()
        teacher.observe(outcomes)
        trace.teacher_cpu_s += time.process_time() - started
        while lost and lost[0][0] <= update:
            teacher.expire(lost.popleft()[1], reason="lost in an outage")
        seen = {name: measure(Observation(student=learner, batch=batch, probes=probes)) for name, measure in series.items()}
        unlearned_N = np.array([task.mode is Mode.UNLEARNED for task in tasks])
        # Groups that are only played to be scored cost their share of the step, as lost ones do.
        learner.learn(replace(batch, rewards_NG=np.where(unlearned_N[:, None], np.nan, batch.rewards_NG)))
        for name, value in {**seen, "score": float(learner.scores().mean())}.items():
            trace.series[name].append(value)
        teacher.on_update(
            UpdateStats(
                step=update,
                policy_version=update + 1,
                entropy=seen["entropy"],
                entropy_sampled=seen["entropy"],
                reward_density=seen["reward_density"],
                zero_variance_share=seen["all_low_share"] + seen["all_high_share"],
                kl=math.nan,
                budget_fraction=(update + 1) / learner.num_updates,
            )
        )
    return trace


def play(student: Student, tasks: Sequence[TaskSpec], rng: np.random.Generator) -> Batch:
    """Groups of the student on tasks of its families."""
    family_N = np.array([student.families.index(str(task.family)) for task in tasks])
    return student.play(family_N, np.array([task.strictness for task in tasks]), tasks[0].group_size, rng)


def probe_panel(families: Sequence[str], size: int = 25) -> list[TaskSpec]:
    """The points that are played again and again, as many as in training runs: families in turn, strictness spread evenly over them."""
    strictness_P = (np.random.default_rng(size).permutation(size) + 0.5) / size
    return [
        TaskSpec(
            uid=f"probe{i:03d}",
            family=families[i % len(families)],
            scenario_id=f"{families[i % len(families)]}-0",
            difficulty=Difficulty.along(float(d)),
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
    return [
        GroupOutcome(
            task=task,
            rewards=rewards_G,
            successes=successes_G,
            num_tokens=(1,) * len(rewards_G),
            statuses=tuple([Status.OK if reward == reward else Status.SIMULATOR_ERROR for reward in rewards_G]),
        )
        for task, rewards_G, successes_G in zip(tasks, batch.rewards_NG.tolist(), batch.successes_NG.tolist(), strict=True)
    ]


def figures(trace: Trace) -> dict[str, float]:
    """The figures that apply to a run's student, by name; NaN for events that did not happen.

    `rmse`: strictness issued against the student's frontier, where that is the yardstick (`tracking`). Otherwise, of the exact
    examination: `final` or, by family, `macro`: its mean at the end; `auc`: the mean of that over all updates; `worst`: the least cell at
    the end; by strictness, `easy` and `hard`: mean of the three easiest and the four hardest cells at the end; `collapsed`: 1 if it fell
    for long (`curriculum.collapse.indicators.collapse_onset`), NaN where it ended low too late to decide.

    `noise_share` of the tasks went to families of pure noise. `first_alarm` and `first_collapse_alarm`: update of the collapse monitor's
    first alarm, and of its first composite one. `probe_share` of all rollouts were the probe panel's. `us_per_task`: CPU time of propose
    and observe, microseconds; the only figure that differs between repetitions.
    """
    student = trace.student
    num_tasks = sum(map(len, trace.tasks))
    if trace.frontiers:
        out = tracking(trace)
    else:
        scores, course = student.scores(), trace.series["score"]
        name = "final" if student.by_strictness else "macro"
        out = {name: float(scores.mean()), "auc": float(np.mean(course)), "worst": float(scores.min())}
        if student.by_strictness:
            out |= {"easy": float(scores[:3].mean()), "hard": float(scores[-4:].mean())}
        updates = range(len(course))
        out["collapsed"] = math.nan if is_undecided(updates, course) else float(collapse_onset(updates, course) is not None)
    if student.noise:
        out["noise_share"] = sum(task.family in student.noise for tasks in trace.tasks for task in tasks) / num_tasks
    if student.watched:
        rung = alarms(trace)
        out["first_alarm"] = min((float(alarm.step) for alarm in rung), default=math.nan)
        out["first_collapse_alarm"] = min((float(alarm.step) for alarm in rung if alarm.name == "collapse"), default=math.nan)
    out["probe_share"] = trace.num_probes / (trace.num_rollouts + trace.num_probes)
    out["us_per_task"] = 1e6 * trace.teacher_cpu_s / num_tasks
    return out


def tracking(trace: Trace) -> dict[str, float]:
    """Root mean square distance of the strictness issued from the frontier at that time, over the last two thirds of the run.

    With one family: of each update's mean strictness. With several: of each task that is marked as at the frontier (of all, where none is)
    from the frontier of its family; `rmse_whole` is over all of the run.
    """
    late, families = len(trace.tasks) // 3, trace.student.families
    issued = list(zip(trace.tasks, trace.frontiers, strict=True))
    if len(families) == 1:
        misses = [float(np.mean([task.strictness for task in tasks])) - float(f_F[0]) for tasks, f_F in issued[late:]]
        return {"rmse": float(np.sqrt(np.mean(np.square(misses))))}
    marked = any(task.mode is Mode.FRONTIER for tasks in trace.tasks for task in tasks)
    rms = {}
    for name, part in (("rmse", issued[late:]), ("rmse_whole", issued)):
        pairs = [(task, f_F) for tasks, f_F in part for task in tasks if task.mode is Mode.FRONTIER or not marked]
        misses = [task.strictness - float(f_F[families.index(str(task.family))]) for task, f_F in pairs]
        rms[name] = float(np.sqrt(np.mean(np.square(misses))))
    return rms


def alarms(trace: Trace) -> list[Alarm]:
    """Every alarm that the collapse monitor raises on the indicators among the run's series."""
    monitor = CollapseMonitor(CollapseConfig())
    names = [name for name in trace.series if name in INDICATOR_METRICS]
    rows = zip(*(trace.series[name] for name in names), strict=True)
    return [alarm for update, row in enumerate(rows) for alarm in monitor.observe(update, dict(zip(names, row, strict=True)))]
