"""Runs of a teacher with a toy student: the simulation, the series it records, and the figures of a run."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import yaml
from pydantic import ValidationError

from curriculum import TEACHERS
from curriculum.collapse.history import INDICATOR_METRICS, CollapseConfig
from curriculum.collapse.monitor import Alarm, CollapseMonitor
from curriculum.collapse.quality import collapse_onset, is_undecided
from curriculum.signals import reward_density, zero_variance_share
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec, Teacher, UpdateStats
from curriculum.toy.students import STUDENTS, Batch, Fate, Student, after_outage
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


PROBE_SIZE = 25
PROBE_EVERY = 5
"""The probe panel as training runs have it: so many points, one rollout each, every so many updates."""
NUM_SCENARIOS = 20
"""Scenarios per family; a toy student does not distinguish them."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The observable part of one update, before the student learns from it."""

    student: Student
    batch: Batch
    probes: Batch | None
    """The probe panel, one rollout a row, when it was due."""


SERIES: dict[str, Callable[[Observation], float]] = {
    "entropy": lambda seen: _mean(seen.student.entropy(seen.batch.family_N, seen.batch.strictness_N)[seen.batch.came_N]),
    "reward_density": lambda seen: density(seen.batch.rewards_NG),
    "all_low_share": lambda seen: zero_variance(seen.batch.rewards_NG)[0],
    "all_high_share": lambda seen: zero_variance(seen.batch.rewards_NG)[1],
    "success_rate": lambda seen: _mean(seen.batch.successes_NG[~np.isnan(seen.batch.rewards_NG)]),
    "probe_reward": lambda seen: math.nan if seen.probes is None else float(seen.probes.rewards_NG.mean()),
}
"""Series to record, by name: add one here, and if its name is in `INDICATOR_METRICS`, the monitor observes it."""


@dataclass
class Trace:
    """The record of a run."""

    student: Student
    series: dict[str, list[float]] = field(default_factory=dict)
    """By update: `score` and `worst` of the exact examination, and each of `SERIES`."""
    tasks: list[list[TaskSpec]] = field(default_factory=list)
    """Proposed for each update."""
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
    series: Mapping[str, Callable[[Observation], float]] = SERIES,
) -> Trace:
    """Runs a teacher with a student.

    With a delay of tau, tasks are issued tau updates before they are rolled out by the policy of that later moment; student and teacher
    then observe them at once. The first tau + 1 updates thus play tasks that the teacher issued before any outcome.

    Args:
        student: a name in `STUDENTS`.
        kind: a name in `TEACHERS`.
        settings: of the teacher, by dotted name; the others are at their defaults.
        seed: decides, independently, the chance of the student (the same for all teachers) and of the teacher.
        series: series to record, with at least `SERIES`.
    """
    # A generator each for rollouts, probes and losses, so that none of them shifts the others.
    constants, *streams, teaching = np.random.SeedSequence(seed).spawn(5)
    rollouts, probing, losses = map(np.random.default_rng, streams)
    learner = STUDENTS[student](np.random.default_rng(constants))
    teacher = build_teacher(
        kind,
        settings or {},
        scenarios={family: [f"{family}-{i}" for i in range(NUM_SCENARIOS)] for family in learner.families},
        group_size=learner.group_size,
        seed=int(teaching.generate_state(1)[0]) >> 1,
    )
    trace = Trace(learner, {name: [] for name in ("score", "worst", *series)})
    panel, lost = probe_panel(learner.families), deque[tuple[int, list[str]]]()

    def propose(policy_version: int) -> None:
        started = time.process_time()
        trace.tasks.append(teacher.propose(learner.num_groups, policy_version=policy_version))
        trace.teacher_cpu_s += time.process_time() - started
        frontier_F = learner.frontier()
        if frontier_F is not None:
            trace.frontiers.append(frontier_F)

    for _ in range(min(learner.delay, learner.num_updates)):
        propose(0)
    for update in range(learner.num_updates):
        if update + learner.delay < learner.num_updates:
            propose(update)
        tasks = trace.tasks[update]
        batch = play(learner, tasks, learner.group_size, rollouts)
        if learner.outages:
            fate_N = learner.outages.fates(len(tasks), losses)
            gone = [task.uid for task, fate in zip(tasks, fate_N, strict=True) if fate == Fate.LOST]
            lost.append((update + learner.outages.expire_after, gone))
            batch = after_outage(batch, fate_N)
        outcomes = [outcome for outcome, came in zip(outcomes_of(tasks, batch), batch.came_N, strict=True) if came]
        probes = None
        if update % PROBE_EVERY == 0:
            examined = [replace(task, policy_version=update) for task in panel]
            probes = play(learner, examined, 1, probing)
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
        scores = learner.scores()
        for name, value in {**seen, "score": float(scores.mean()), "worst": float(scores.min())}.items():
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
            )
        )
    return trace


def play(student: Student, tasks: Sequence[TaskSpec], group_size: int, rng: np.random.Generator) -> Batch:
    """Groups of the student on tasks of its families."""
    index = {family: i for i, family in enumerate(student.families)}
    family_N = np.array([index[str(task.family)] for task in tasks])
    return student.play(family_N, np.array([task.strictness for task in tasks]), group_size, rng)


def probe_panel(families: Sequence[str]) -> list[TaskSpec]:
    """The 25 points that are played again and again: families in turn, strictness spread evenly and dealt to them by chance."""
    strictness_P = (np.random.default_rng(PROBE_SIZE).permutation(PROBE_SIZE) + 0.5) / PROBE_SIZE
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
    rewards, successes = batch.rewards_NG.tolist(), batch.successes_NG.tolist()
    return [
        GroupOutcome(
            task=task,
            rewards=rewards_G,
            successes=successes_G,
            num_tokens=(1,) * len(rewards_G),
            statuses=tuple([Status.OK if reward == reward else Status.SIMULATOR_ERROR for reward in rewards_G]),
        )
        for task, rewards_G, successes_G in zip(tasks, rewards, successes, strict=True)
    ]


def density(rewards_NG: np.ndarray) -> float:
    """`curriculum.signals.reward_density`, for all groups at once where nothing is missing."""
    if np.isnan(rewards_NG).any():
        return reward_density(rewards_NG.tolist())
    return float(4.0 * rewards_NG.var(axis=1, ddof=1).mean())


def zero_variance(rewards_NG: np.ndarray) -> tuple[float, float]:
    """Shares of groups with equal rewards below 0.5 and above, as `curriculum.signals.zero_variance_share` has them."""
    if np.isnan(rewards_NG).any():
        shares = zero_variance_share(rewards_NG.tolist())
        return shares.all_low, shares.all_high
    equal_N, high_N = (rewards_NG == rewards_NG[:, :1]).all(axis=1), rewards_NG[:, 0] >= 0.5
    return float((equal_N & ~high_N).mean()), float((equal_N & high_N).mean())


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else math.nan


def figures(trace: Trace) -> dict[str, float]:
    """The figures that apply to a run's student, by name; NaN for events that did not happen.

    `rmse`: strictness issued against the student's frontier, where that is the yardstick (`tracking`). Otherwise, of the exact
    examination: `final` or, by family, `macro`: its mean at the end; `auc`: the mean of that over all updates; `worst`: the least cell at
    the end; by strictness, `easy` and `hard`: mean of the three easiest and the four hardest cells at the end; `collapsed`: 1 if it fell
    for long (`curriculum.collapse.quality.collapse_onset`), NaN where it ended low too late to decide.

    `noise_share` of the tasks went to families of pure noise. `first_alarm` and `first_collapse_alarm`: update of the collapse monitor's
    first alarm of any name and of the one that asks for two kinds of evidence. `probe_share` of all rollouts were the probe panel's.
    `us_per_task`: CPU time of propose and observe, microseconds; the only figure that differs between repetitions.
    """
    student = trace.student
    num_tasks = sum(map(len, trace.tasks))
    if trace.frontiers:
        out = tracking(trace)
    else:
        scores = student.scores()
        name = "final" if student.by_strictness else "macro"
        out = {name: float(scores.mean()), "auc": float(np.mean(trace.series["score"])), "worst": float(scores.min())}
        if student.by_strictness:
            out |= {"easy": float(scores[:3].mean()), "hard": float(scores[-4:].mean())}
        out["collapsed"] = collapsed(trace.series["score"])
    if student.noise:
        out["noise_share"] = sum(task.family in student.noise for tasks in trace.tasks for task in tasks) / num_tasks
    if student.watched:
        rung = alarms(trace)
        out["first_alarm"] = min((float(alarm.step) for alarm in rung), default=math.nan)
        out["first_collapse_alarm"] = min((float(alarm.step) for alarm in rung if alarm.name == "collapse"), default=math.nan)
    out["probe_share"] = trace.num_probes / (trace.num_rollouts + trace.num_probes)
    out["us_per_task"] = 1e6 * trace.teacher_cpu_s / num_tasks
    return out


def collapsed(scores: Sequence[float]) -> float:
    """1 where a score, one an update, collapsed (`curriculum.collapse.quality`), 0 where it did not, NaN where the run ended undecided."""
    updates = range(len(scores))
    return math.nan if is_undecided(updates, scores) else float(collapse_onset(updates, scores) is not None)


def tracking(trace: Trace) -> dict[str, float]:
    """Root mean square distance of the strictness issued from the frontier at that time.

    With one family: of the mean strictness of each update's tasks. With several: of each task issued at the frontier (of each task, where a
    teacher marks none so) from the frontier of its family. Over the last two thirds of the run; `rmse_whole` is over all of it.
    """
    late = len(trace.tasks) // 3
    issued = list(zip(trace.tasks, trace.frontiers, strict=True))
    if len(trace.student.families) == 1:
        return {"rmse": _rms([np.mean([task.strictness for task in tasks]) - float(f_F[0]) for tasks, f_F in issued[late:]])}
    index = {family: i for i, family in enumerate(trace.student.families)}
    marked = any(task.mode is Mode.FRONTIER for tasks in trace.tasks for task in tasks)
    misses = [
        [task.strictness - float(f_F[index[str(task.family)]]) for task in tasks if task.mode is Mode.FRONTIER or not marked]
        for tasks, f_F in issued
    ]
    return {"rmse": _rms(list(chain.from_iterable(misses[late:]))), "rmse_whole": _rms(list(chain.from_iterable(misses)))}


def _rms(misses: Sequence[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(misses))))


def alarms(trace: Trace, config: CollapseConfig | None = None) -> list[Alarm]:
    """Every alarm that the collapse monitor raises on the indicators among the run's series."""
    monitor = CollapseMonitor(config or CollapseConfig())
    names = [name for name in trace.series if name in INDICATOR_METRICS]
    rows = zip(*(trace.series[name] for name in names), strict=True)
    return [alarm for update, row in enumerate(rows) for alarm in monitor.observe(update, dict(zip(names, row, strict=True)))]
