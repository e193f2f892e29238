"""Arms of a comparison: which teachers, with which settings, from a word on the command line to an object.

One teacher with one toy student: the run, and what it showed at every update.

What a teacher's run with a toy student is judged by.

Teachers compared on toy students: many runs side by side, their figures with intervals, and where they are kept.

The benchmark's table: a row for each teacher, a column for each student.
"""

from __future__ import annotations

import ast
import json
import math
import re
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curriculum import NEEDS, TEACHERS
from curriculum.collapse.monitor import INDICATORS, Alarm, CollapseConfig, CollapseMonitor
from curriculum.collapse.quality import collapse_onset, is_undecided
from curriculum.signals import reward_density, zero_variance_share
from curriculum.task import GroupOutcome, Mode, Status, TaskSpec, Teacher, UpdateStats
from curriculum.teacher import task_to_record
from curriculum.toy.students import STUDENTS, Batch, Fate, Student, maim
from simulator.files import write_whole
from simulator.scenario import Difficulty

LENGTHS = {"T": 1.0, "T/2": 0.5, "2T": 2.0}
"""Values of a setting that stand for a share of the student's number of updates."""
RECORDED = "run:"
"""A setting of this and a kind of teacher stands for the tasks that it issued in a run with the same student and another seed."""


@dataclass(frozen=True)
class Arm:
    """A teacher under comparison."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """By dotted name, as text or values; the others are at their defaults."""


SURVEY = (
    Arm("fixed_.2", "fixed", {"strictness": 0.2}),
    Arm("fixed_.5", "fixed", {"strictness": 0.5}),
    Arm("fixed_.9", "fixed", {"strictness": 0.9}),
    Arm("uniform", "uniform"),
    Arm("linear", "linear", {"num_steps": "T"}),
    Arm("linear_T/2", "linear", {"num_steps": "T/2"}),
    Arm("linear_2T", "linear", {"num_steps": "2T"}),
    Arm("linear_reverse", "linear", {"num_steps": "T", "start": 1.0, "end": 0.0}),
    Arm("staged", "staged"),
    Arm("adr", "adr"),
    Arm("adarft", "adarft"),
    Arm("adarft_.05", "adarft", {"eta": 0.05}),
    Arm("adarft_.05_per_family", "adarft", {"eta": 0.05, "per_family": True}),
    Arm("adarft_.05_tagged", "adarft", {"eta": 0.05, "tagged": True}),
    Arm("rlve", "rlve"),
    Arm("rlve_.6", "rlve", {"threshold": 0.6}),
    Arm("rlve_reversible", "rlve", {"reversible": True}),
    Arm("sec", "sec"),
    Arm("sec_flat", "sec", {"scope": "flat"}),
    Arm("dump", "dump"),
    Arm("dump_flat", "dump", {"scope": "flat"}),
    Arm("progress", "progress"),
    Arm("progress_flat", "progress", {"scope": "flat"}),
    Arm("plr", "plr"),
    Arm("plr_robust", "plr", {"robust": True}),
    Arm("beta_thompson", "beta_thompson"),
    Arm("beta_thompson_progress", "beta_thompson", {"allocation.uniform_floor": 0.25}),
    Arm("frontier", "frontier"),
    Arm("frontier_no_guard", "frontier", {"guard.enabled": False}),
    Arm("yoked", "yoked", {"trace": RECORDED + "frontier"}),
    Arm("shuffled", "shuffled", {"trace": RECORDED + "frontier"}),
)
"""Arms with settings of their own, as far as their teachers are registered; a kind that is not here runs at its defaults."""


def all_arms() -> dict[str, Arm]:
    """Every registered teacher at least once, by name; those whose packages are not installed are left out."""
    kinds = [kind for kind in TEACHERS if kind not in NEEDS or find_spec(NEEDS[kind])]
    arms = [arm for arm in SURVEY if arm.kind in kinds]
    arms += [Arm(kind, kind) for kind in kinds if kind not in {arm.kind for arm in arms}]
    return {arm.name: arm for arm in arms}


def parse_arms(words: Sequence[str]) -> list[Arm]:
    """The arms that `words` name: `all`, a name of `all_arms()`, a kind, or a kind with settings as in `fixed:strictness=.2`.

    Raises:
        ValueError: no such teacher or setting, or a setting out of range.
    """
    known = all_arms()
    if "all" in words:
        return list(known.values())
    arms = [known[word] if word in known else _parse(word) for word in dict.fromkeys(words)]
    for arm in arms:
        for name, value in arm.settings.items():
            if isinstance(value, str) and value.startswith(RECORDED) and value.removeprefix(RECORDED) not in TEACHERS:
                raise ValueError(f"teacher.{name} must name one of {', '.join(TEACHERS)} after {RECORDED}, got {value!r}")
        configure(TEACHERS[arm.kind][0](), resolve(arm.settings, num_updates=100))
    return arms


def _parse(word: str) -> Arm:
    kind, _, text = word.partition(":")
    if kind not in TEACHERS:
        names = ", ".join(dict.fromkeys([*TEACHERS, *all_arms()]))
        raise ValueError(f"--teachers must be all, one of {names}, or KIND:SETTING=VALUE,..., got {word!r}")
    settings = {}
    # A comma inside brackets belongs to a list.
    for pair in re.split(r",(?![^\[]*\])", text) if text else []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--teachers must set a teacher as in KIND:SETTING=VALUE,..., got {word!r}")
        settings[name.strip()] = value.strip()
    return Arm(word, kind, settings)


def resolve(settings: Mapping[str, Any], *, num_updates: int) -> dict[str, Any]:
    """`settings` with lengths such as "T/2" made numbers."""
    lengths = {name: LENGTHS[value] for name, value in settings.items() if isinstance(value, str) and value in LENGTHS}
    return {**settings, **{name: round(share * num_updates) for name, share in lengths.items()}}


def build_teacher(kind: str, settings: Mapping[str, Any], *, scenarios: Mapping[Any, Sequence[str]], group_size: int, seed: int) -> Teacher:
    """A teacher of `kind` with `settings` by dotted name over the defaults."""
    config, teacher = TEACHERS[kind]
    return teacher(configure(config(), settings), scenarios=scenarios, group_size=group_size, seed=seed)


def configure(defaults: Any, settings: Mapping[str, Any], prefix: str = "teacher") -> Any:
    """A copy of the config `defaults` with `settings` (dotted names; text or values) changed, checked as a whole.

    Raises:
        ValueError: no such setting, a value of another type, or one out of range.
    """
    known = {item.name: getattr(defaults, item.name) for item in fields(defaults)}
    nested: dict[str, dict[str, Any]] = {}
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        head, _, rest = name.partition(".")
        if head not in known or bool(rest) != is_dataclass(known[head]):
            raise ValueError(f"{prefix}.{name} is no setting of {type(defaults).__name__}; it has {', '.join(known)}")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            changed[head] = _parsed(value) if isinstance(value, str) and not isinstance(known[head], str) else value
    changed |= {head: configure(known[head], inner, f"{prefix}.{head}") for head, inner in nested.items()}
    return replace(defaults, **changed)


def _parsed(text: str) -> Any:
    """What a text says in Python, `true` and `false` included; the text itself where it says nothing."""
    words = {"true": "True", "false": "False"}
    try:
        return ast.literal_eval(words.get(text.lower(), text))
    except (ValueError, SyntaxError):
        return text


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
"""Series to record, by name: add one here, and if `curriculum.collapse.monitor.INDICATORS` knows its name, the monitor is fed with it."""


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


def figures(trace: Trace) -> dict[str, float]:
    """The figures that apply to a run's student, by name; NaN for what did not happen.

    `rmse`: strictness issued against the student's frontier, where that is the yardstick (`tracking`). Otherwise, of the exact
    examination: `final` or, by family, `macro`: its mean at the end; `auc`: the mean of that over all updates; `worst`: the least cell at
    the end; by strictness, `easy` and `hard`: mean of the three easiest and the four hardest cells at the end; `collapsed`: 1 if it fell
    for long (`curriculum.collapse.quality.collapse_onset`), NaN where it ended low before that could be told.

    `noise_share` of the tasks went to families of pure noise. `first_alarm` and `first_collapse_alarm`: update of the collapse monitor's
    first alarm of any name and of the one that asks for two kinds of evidence. `probe_share` of all rollouts were the probe panel's.
    `us_per_task`: CPU time of propose and observe, microseconds; the only figure that differs between repetitions.
    """
    student = trace.student
    num_tasks = sum(map(len, trace.tasks))
    out = tracking(trace) if trace.frontiers else scored(trace)
    if student.noise:
        out["noise_share"] = sum(task.family in student.noise for tasks in trace.tasks for task in tasks) / num_tasks
    if student.watched:
        fired = alarms(trace)
        out["first_alarm"] = min((float(alarm.step) for alarm in fired), default=math.nan)
        out["first_collapse_alarm"] = min((float(alarm.step) for alarm in fired if alarm.name == "collapse"), default=math.nan)
    out["probe_share"] = trace.num_probes / (trace.num_rollouts + trace.num_probes)
    out["us_per_task"] = 1e6 * trace.teacher_cpu_s / num_tasks
    return out


def scored(trace: Trace) -> dict[str, float]:
    """Figures of the exact examination; see `figures`."""
    scores = trace.student.scores()
    name = "final" if trace.student.by_strictness else "macro"
    out = {name: float(scores.mean()), "auc": float(np.mean(trace.series["score"])), "worst": float(scores.min())}
    if trace.student.by_strictness:
        out |= {"easy": float(scores[:3].mean()), "hard": float(scores[-4:].mean())}
    return {**out, "collapsed": collapsed(trace.series["score"])}


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


def alarms(trace: Trace, config: CollapseConfig | None = None) -> list[Alarm]:
    """Every alarm that the collapse monitor raises on what the run showed of the indicators it knows."""
    monitor = CollapseMonitor(config or CollapseConfig())
    names = [name for name in trace.series if name in INDICATORS]
    rows = zip(*(trace.series[name] for name in names), strict=True)
    return [alarm for update, row in enumerate(rows) for alarm in monitor.observe(update, dict(zip(names, row, strict=True)))]


def _rms(misses: Sequence[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(misses))))


Results = dict[str, dict[str, dict[str, dict[str, Any]]]]
"""{student: {teacher: {figure: {"mean", "ci95", "per_seed"}}}}; None for what did not happen or cannot be computed."""


class Job(NamedTuple):
    """One run."""

    student: str
    arm: Arm
    seed: int


def run_one(student: str, kind: str, settings: Mapping[str, Any] | None = None, seed: int = 0) -> dict[str, float]:
    """The figures of one run.

    Args:
        student: a name in `STUDENTS`.
        kind: a name in `TEACHERS`.
        settings: of the teacher, by dotted name; the others are at their defaults. "T", "T/2" and "2T" stand for the student's number of
            updates, "run:KIND" for a file of the tasks that such a teacher issued to the same student with another seed.
        seed: see `simulate`.
    """
    num_updates = STUDENTS[student](np.random.default_rng(0)).num_updates
    chosen = resolve(settings or {}, num_updates=num_updates)
    with tempfile.TemporaryDirectory() as folder:
        for name, value in chosen.items():
            if isinstance(value, str) and value.startswith(RECORDED):
                chosen[name] = str(
                    record_tasks(simulate(student, value.removeprefix(RECORDED), {}, seed + 1), Path(folder) / "teacher.jsonl")
                )
        return figures(simulate(student, kind, chosen, seed))


def record_tasks(trace: Trace, path: Path) -> Path:
    """Writes what was issued as a run's teacher.jsonl has it."""
    events = [{"event": "task", "step": step, **task_to_record(task)} for step, tasks in enumerate(trace.tasks) for task in tasks]
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return path


def check_jobs(students: Iterable[str], arms: Sequence[Arm]) -> None:
    """Builds every teacher for every student once, so that what cannot run is refused before anything does.

    Raises:
        ValueError: a teacher refuses its settings or a student's families.
    """
    for name in students:
        student = STUDENTS[name](np.random.default_rng(0))
        scenarios = {family: [family] for family in student.families}
        for arm in arms:
            settings = resolve(arm.settings, num_updates=student.num_updates)
            if not any(isinstance(value, str) and value.startswith(RECORDED) for value in settings.values()):
                build_teacher(arm.kind, settings, scenarios=scenarios, group_size=student.group_size, seed=0)


def run_jobs(jobs: Sequence[Job], *, num_processes: int) -> Iterator[tuple[Job, dict[str, float]]]:
    """The figures of all jobs, as they finish."""
    if num_processes == 1:
        yield from ((job, _run(job)) for job in jobs)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        running = {pool.submit(_run, job): job for job in jobs}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run(job: Job) -> dict[str, float]:
    try:
        return run_one(job.student, job.arm.kind, job.arm.settings, job.seed)
    except Exception as error:
        error.add_note(f"in the run of {job.arm.name} with {job.student}, seed {job.seed}")
        raise


def summarise(done: Mapping[Job, Mapping[str, float]]) -> Results:
    """Means and intervals over the seeds of each student and teacher."""
    by_pair: dict[tuple[str, str], list[tuple[int, Mapping[str, float]]]] = defaultdict(list)
    for job, values in done.items():
        by_pair[job.student, job.arm.name].append((job.seed, values))
    results: Results = {}
    for (student, arm), runs in by_pair.items():
        rows = [values for _, values in sorted(runs, key=lambda run: run[0])]
        results.setdefault(student, {})[arm] = {name: summary([row[name] for row in rows]) for name in rows[0]}
    return results


def summary(per_seed: Sequence[float]) -> dict[str, Any]:
    """Mean and 95 % t interval over the seeds that have a value, and the values; None where there are too few."""
    from scipy.special import stdtrit  # here, so that --help need not wait for scipy

    known = [value for value in per_seed if math.isfinite(value)]
    mean = float(np.mean(known)) if known else None
    interval = None
    if mean is not None and len(known) > 1:
        half = float(stdtrit(len(known) - 1, 0.975) * np.std(known, ddof=1) / math.sqrt(len(known)))
        interval = [mean - half, mean + half]
    return {"mean": mean, "ci95": interval, "per_seed": [value if math.isfinite(value) else None for value in per_seed]}


def write(results: Results, path: Path) -> None:
    """Writes `path` at once or not at all."""
    write_whole(path, json.dumps(results, indent=1) + "\n")


def read(path: Path, *, option: str) -> Results:
    """Reads what `write` wrote.

    Args:
        option: the one that named it, for the complaint.

    Raises:
        ValueError: there is no such file, or it holds something else.
    """
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        _ = [values["mean"] for arms in results.values() for metrics in arms.values() for values in metrics.values()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{option} must be a file that `benchmark --out` wrote, got {str(path)!r}") from None
    return results


COLUMNS_AT_ONCE = 5
"""Students side by side; more follow in a table below."""
LEGEND = (
    "Where a frontier is to be tracked: rmse of the strictness issued. Otherwise final/worst (auc): mean success over all cells at the end,"
    " the worst cell's, and the mean over the run; with families macro/worst, then the share of tasks spent on noise if there is any."
    " us: CPU of the teacher for each task, microseconds. Means over seeds."
)
Row = Mapping[str, Mapping[str, Any]]


def tables(results: Mapping[str, Mapping[str, Row]], *, markdown: bool = False) -> str:
    """All results as text or as Markdown."""
    students = iter(results)
    blocks = []
    while block := list(islice(students, COLUMNS_AT_ONCE)):
        arms = list(dict.fromkeys(arm for student in block for arm in results[student]))
        head = ["teacher", *block, "us"]
        rows = [[arm, *(cell(results[student].get(arm)) for student in block), _cost(results, block, arm)] for arm in arms]
        blocks.append("\n".join(_markdown([head, *rows]) if markdown else _plain([head, *rows])))
    return "\n\n".join([*blocks, LEGEND])


def cell(row: Row | None) -> str:
    """The figures of one teacher with one student."""
    if row is None:
        return ""
    if "rmse" in row:
        return _number(row, "rmse", 3)
    if "macro" in row:
        noise = f" {_number(row, 'noise_share', 2)}" if "noise_share" in row else ""
        return f"{_number(row, 'macro', 3)}/{_number(row, 'worst', 2)}{noise}"
    return f"{_number(row, 'final', 2)}/{_number(row, 'worst', 2)} ({_number(row, 'auc', 2)})"


def _number(row: Row, name: str, digits: int) -> str:
    mean = row[name]["mean"]
    return "-" if mean is None else f"{mean:.{digits}f}"


def _cost(results: Mapping[str, Mapping[str, Row]], students: Sequence[str], arm: str) -> str:
    costs = [results[student][arm]["us_per_task"]["mean"] for student in students if arm in results[student]]
    return f"{sum(costs) / len(costs):.0f}"


def _plain(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in body)
