"""Steps whose dialogues are under way before it is their turn, so that engines work while the learner does.

A step's tasks are submitted at most `rollout.max_staleness` updates before it is trained on, and steps are taken in their order, each with
exactly the tasks that were proposed for it. So the bound holds by construction, and which dialogues are trained on, and when, depends on
nobody's speed.

The training loop: propose, roll out, measure, teach, update, send, record.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from curriculum.collapse.monitor import Alarm
from curriculum.task import GroupOutcome, Mode, TaskSpec
from curriculum.teacher import outcome_to_record, task_from_record, task_to_record
from experiments.build import Parts
from experiments.checks import canaries, largest_difference, require_agreement, require_arrival
from experiments.config import ExperimentConfig
from experiments.evaluation import as_heard, cut_short, probe_tasks
from experiments.metrics import collapse_values, dialogue_metrics, measure, probe_metrics, retrieval_metrics, signal_metrics, update_stats
from experiments.recorder import Recorder, group_records, rollout_record
from policy.batch import admitted, by_segment, pack
from policy.engine.capacity import engines_beside
from policy.rollout.dialogue import Rollout, RolloutGroup, Task
from policy.rollout.pool import is_fresh, off_policy_metrics
from simulator.scenario import Split

LANE = "training"
"""Of the pool; evaluation has another, so neither gets the other's groups."""


class Pool(Protocol):
    """What this needs of the rollout pool."""

    def submit(self, tasks: Sequence[Task], *, lane: str) -> None: ...
    def ready(self, num_groups: int, *, lane: str) -> list[RolloutGroup]: ...


@dataclass
class Planned:
    """The tasks of a step, and those of the probe panel where the step looks at it."""

    step: int
    tasks: list[TaskSpec]
    panel: Sequence[Task]
    is_submitted: bool = False


class Ahead:
    """Plans steps, submits them and takes them back in order.

    Args:
        max_staleness: steps that may be under way beyond the next.
        last_step: after which nothing is planned; 0 where nobody knows.
        propose: the tasks of a new step.
        panel: the probe panel of a step; empty in most.
        records: what `records()` said when a checkpoint was written. Those steps are rolled out again, by the weights of the checkpoint.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        max_staleness: int,
        last_step: int,
        propose: Callable[[], list[TaskSpec]],
        panel: Callable[[int], Sequence[Task]],
        records: Sequence[dict[str, Any]] = (),
    ) -> None:
        self._pool, self._propose, self._panel = pool, propose, panel
        self._max_staleness, self._last_step = max_staleness, last_step
        self._planned = deque(
            Planned(record["step"], [task_from_record(task) for task in record["tasks"]], panel(record["step"])) for record in records
        )

    def top_up(self, step: int) -> list[TaskSpec]:
        """Sees to it that this step and those ahead of it are under way; returns the tasks that were proposed for it just now."""
        last = step + self._max_staleness
        if self._last_step:
            last = max(step, min(last, self._last_step))
        proposed = []
        for number in range(step + len(self._planned), last + 1):
            self._planned.append(Planned(number, self._propose(), self._panel(number)))
            proposed += self._planned[-1].tasks
        for planned in self._planned:
            if not planned.is_submitted:
                self._pool.submit([*planned.tasks, *planned.panel], lane=LANE)
                planned.is_submitted = True
        return proposed

    def take(self) -> tuple[Planned, list[RolloutGroup]]:
        """The earliest step under way and its groups, in the order of its tasks and then its panel; waits for all of them."""
        planned = self._planned.popleft()
        return planned, self._pool.ready(len(planned.tasks) + len(planned.panel), lane=LANE)

    def records(self) -> list[dict[str, Any]]:
        """The steps under way, JSON-able. A checkpoint that holds them loses none of their tasks, and bills none twice."""
        return [{"step": planned.step, "tasks": [task_to_record(task) for task in planned.tasks]} for planned in self._planned]


Played = TypeVar("Played", RolloutGroup, GroupOutcome)
NUM_AS_TEXT = 2
"""Transcripts of a step that TensorBoard shows."""


@dataclass
class Tally:
    """What a run has used up and met so far; checkpointed."""

    step: int = 0
    policy_tokens: int = 0
    """Sampled in training and on the probe panel; evaluation is not billed."""
    simulator_calls: int = 0
    simulator_cost: float = 0.0
    """Money, for users that cost any."""
    num_looks: int = 0
    """Evaluations taken."""
    tenth: int = -1
    """Tenth of the budget in which the latest of them fell; -1 before the first."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    alarms: list[dict[str, Any]] = field(default_factory=list)
    in_flight: list[dict[str, Any]] = field(default_factory=list)
    """Steps whose dialogues were under way when this was written; billed when they are taken."""

    def bill(self, groups: Sequence[RolloutGroup]) -> None:
        """Counts what practising these groups took."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        self.policy_tokens += sum(rollout.num_sampled for rollout in rollouts)
        self.simulator_calls += sum(1 + rollout.dialogue.num_replies for rollout in rollouts)


@dataclass(frozen=True, kw_only=True)
class Practice:
    """What was played in a step."""

    issued: list[TaskSpec]
    groups: list[RolloutGroup]
    outcomes: list[GroupOutcome]
    """Of each of the groups."""
    stale: list[RolloutGroup]
    """Too old to be trained on."""
    on_panel: list[RolloutGroup]
    num_rounds: int = 0
    """Rounds in which groups were played anew."""


class TrainingRun:
    """One run, step by step: `parts` hold what adapts, the tally what was used up, the recorder what is left behind."""

    def __init__(self, config: ExperimentConfig, parts: Parts, recorder: Recorder, tally: Tally) -> None:
        self.config, self.parts, self.recorder, self.tally = config, parts, recorder, tally
        self._pool_before: dict[str, float] = parts.pool.stats()
        self._users_before: dict[str, float] = parts.pool.user_counts()
        self.cut_short = cut_short([])
        """Of the latest step."""
        # Where Ray was there before, nobody can tell.
        self._may_share_gpu = bool(config.cluster.address) or engines_beside(config.learner.device, config.rollout, config.cluster) > 0
        self._cost_before = self._users_before.get("cost", 0.0)
        self.panel = probe_tasks(config.probe.num_dialogues, parts.bank.by_family(Split.TRAIN), seed=config.seed)
        self.ahead = Ahead(
            parts.pool,
            max_staleness=config.rollout.max_staleness,
            last_step=config.budget.steps,
            propose=lambda: parts.teacher.propose(config.groups_per_step, policy_version=parts.learner.policy_version),
            panel=lambda step: self.panel if config.probe.is_due(step) else [],
            records=tally.in_flight,
        )

    def step(self) -> tuple[dict[str, float], list[Alarm]]:
        """Practises once; returns what was measured, and the alarms that went off.

        Raises:
            RuntimeError: too many dialogues broke, too many optimiser steps were skipped, or new weights did not arrive.
        """
        started = time.monotonic()
        practice = self.play()
        rolled_out = time.monotonic()
        probes = self.teach(practice)
        panel = self.panel_metrics([group.rollouts[0] for group in practice.on_panel]) if practice.on_panel else {}
        metrics = self.update(practice)
        stats = update_stats(metrics, step=self.tally.step + 1, policy_version=self.parts.learner.policy_version)
        self.parts.teacher.on_update(stats)
        with self.left_behind(practice):
            metrics |= self.send_weights(practice.groups)
        self.tally.step += 1

        alarms = self.parts.collapse.observe(self.tally.step, collapse_values(metrics | panel))
        metrics |= panel | self.parts.collapse.metrics() | self.parts.teacher.metrics() | self.pool_metrics() | self.user_metrics()
        metrics |= {"timing_s/gen": rolled_out - started, "timing_s/step": time.monotonic() - started}
        metrics |= {"perf/policy_tokens": float(self.tally.policy_tokens)}
        if self.config.resampling.enabled:
            metrics |= {"rollout/num_rounds": float(practice.num_rounds), "rollout/num_groups": float(len(practice.groups))}
        self.record(practice, metrics, alarms)
        self.record_teaching(practice.issued, practice.outcomes, probes, asdict(stats))
        return metrics, alarms

    def play(self) -> Practice:
        """Takes the dialogues of the next step, which it bills and measures.

        Raises:
            RuntimeError: the pool broke.
        """
        issued = self.ahead.top_up(self.tally.step + 1)
        planned, played = self.ahead.take()
        self.tally.bill(played)
        groups, stale = self.by_age(played[: len(planned.tasks)])
        outcomes = [measure(group, success_emotion=self.config.teacher.success_emotion) for group in groups]
        on_panel = played[len(planned.tasks) :]
        practice = Practice(issued=issued, groups=groups, outcomes=outcomes, stale=stale, on_panel=on_panel)
        with self.left_behind(practice):
            practice = replace(practice, num_rounds=self.play_anew(issued, groups, outcomes))
        self.cut_short = cut_short([rollout.dialogue for group in groups for rollout in group.rollouts])
        return practice

    def teach(self, practice: Practice) -> list[GroupOutcome]:
        """Tells the teacher how its tasks went; returns what it heard of the probe panel besides.

        Raises:
            RuntimeError: too many dialogues broke.
        """
        heard = as_heard(practice.on_panel, step=self.tally.step + 1) if self.config.probe.teaches else []
        probes = [measure(group, success_emotion=self.config.teacher.success_emotion) for group in heard]
        self.parts.teacher.observe([*practice.outcomes, *probes])
        with self.left_behind(practice):
            self.parts.faults.observe(practice.groups)
        return probes

    def update(self, practice: Practice) -> dict[str, float]:
        """Trains the policy on a step's dialogues; returns how that and they went.

        Raises:
            RuntimeError: too many optimiser steps were skipped, or the engines spoke with other weights than the learner's.
        """
        learner, algorithm, groups, outcomes = self.parts.learner, self.parts.algorithm, practice.groups, practice.outcomes
        chosen = self.config.resampling.with_contrast(learned(groups), learned(outcomes))
        batch = learner.with_reference(pack(admitted(chosen, compares_siblings=algorithm.compares_siblings)))
        targets = algorithm.targets(batch, learner.values(batch))
        ages = off_policy_metrics(groups, policy_version=learner.policy_version, num_dropped=len(practice.stale))
        sampled_by = learner.policy_version
        is_exact = self.config.computes_in_float32 and not self.config.rollout.max_staleness
        with self.left_behind(practice):
            metrics = ages | learner.update(*by_segment(batch, targets), spent=self.spent())
            if learner.policy_version != sampled_by:
                for callback in self.config.callbacks.values():
                    callback.after_update(self)
            if self._may_share_gpu:
                learner.give_back_memory()
            require_agreement(metrics["training/rollout_logprob_abs_diff_mean"], policy_version=sampled_by, is_exact=is_exact)
        return metrics | dialogue_metrics(groups, success_emotion=self.config.teacher.success_emotion) | signal_metrics(outcomes)

    def spent(self) -> float:
        """Share of the budget that is used up, tokens or steps, whichever is more."""
        return self.config.budget.spent(policy_tokens=self.tally.policy_tokens, steps=self.tally.step)

    def by_age(self, groups: Sequence[RolloutGroup]) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
        """The groups that may be trained on, and those that are too old, whose tasks expire."""
        bound = self.config.rollout.max_staleness
        fresh = partial(is_fresh, policy_version=self.parts.learner.policy_version, max_staleness=bound)
        stale = [group for group in groups if not fresh(group)]
        self.parts.teacher.expire([group.task.uid for group in stale], reason=f"older than rollout.max_staleness={bound}")
        return [group for group in groups if fresh(group)], stale

    def play_anew(self, issued: list[TaskSpec], groups: list[RolloutGroup], outcomes: list[GroupOutcome]) -> int:
        """Adds to a step further groups in place of those without contrast, where that is asked for; returns the rounds it took."""
        resampling, teacher = self.config.resampling, self.parts.teacher
        wanted = len(learned(groups))
        for num_rounds in range(resampling.max_rounds):
            missing = wanted - len(resampling.with_contrast(learned(groups), learned(outcomes)))
            if missing <= 0:
                return num_rounds
            more = teacher.propose(missing, policy_version=self.parts.learner.policy_version)
            played = self.roll_out(more)
            issued += more
            groups += played
            outcomes += [measure(group, success_emotion=self.config.teacher.success_emotion) for group in played]
        return resampling.max_rounds

    def roll_out(self, tasks: Sequence[TaskSpec]) -> list[RolloutGroup]:
        """The tasks' groups, in the order of the tasks and on the bill; waits for all of them."""
        self.parts.pool.submit(tasks)
        groups = self.parts.pool.ready(len(tasks))
        self.tally.bill(groups)
        return groups

    def send_weights(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Gives the engines the learner's weights and compares both sides on dialogues of this step."""
        pool, learner = self.parts.pool, self.parts.learner
        started = time.monotonic()
        pool.load_weights(learner.live_weights(), learner.policy_version)
        sent = time.monotonic()
        sequences = canaries(groups, max_context=self.config.rollout.max_context)
        difference = largest_difference(sequences, engines=pool.score, learner=learner.score)
        require_arrival(difference, policy_version=learner.policy_version, is_fp32=self.config.computes_in_float32)
        return {"timing_s/update_weights": sent - started, "rollout/arrival_logprob_diff": difference}

    def pool_metrics(self) -> dict[str, float]:
        """How busy the pool was since the last time this was asked."""
        now = self.parts.pool.stats()
        since = {name: value - self._pool_before.get(name, 0.0) for name, value in now.items()}
        self._pool_before = now
        rollout_s = max(since["rollout_s"], 1e-9)
        return {
            "rollout/tokens_per_s": since["num_tokens"] / rollout_s,
            "rollout/engine_busy_share": since["engine_busy_s"] / rollout_s / self.config.rollout.num_engines,
            **{f"rollout/num_{name}": float(now[f"num_{name}"]) for name in ("restarts", "dispatched", "lost", "retried", "in_flight")},
        }

    def user_metrics(self) -> dict[str, float]:
        """What the simulated users used up since the last time this was asked, and the cost so far; nothing where users are free."""
        now = self.parts.pool.user_counts()
        since = {name: value - self._users_before.get(name, 0.0) for name, value in now.items()}
        self._users_before = now
        self._count_cost(now)
        return {f"simulator/{name}": self.tally.simulator_cost if name == "cost" else value for name, value in since.items()}

    def count_cost(self, *, timeout_s: float | None = None) -> None:
        """Adds to the tally what the simulated users cost since this was last done, in steps and in evaluations.

        Raises:
            RuntimeError: a worker did not answer in time, of which None means as long as it takes.
        """
        self._count_cost(self.parts.pool.user_counts(timeout_s=timeout_s))

    def _count_cost(self, now: Mapping[str, float]) -> None:
        self.tally.simulator_cost += now.get("cost", 0.0) - self._cost_before
        self._cost_before = now.get("cost", 0.0)

    def panel_metrics(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """How the probe panel fared, and how well its replies are told apart by the policy before its update."""
        metrics = probe_metrics(rollouts)
        return metrics | retrieval_metrics(rollouts, self.parts.learner.score, num_contexts=self.config.probe.num_contexts)

    def record_panel(self, groups: Sequence[RolloutGroup]) -> None:
        """Leaves the panel's transcripts."""
        records = [
            rollout_record(group.rollouts[0], kind="probe", uid=task.uid, strictness=task.strictness)
            for task, group in zip(self.panel, groups, strict=True)
        ]
        self.recorder.dialogues(self.tally.step, records)

    @contextmanager
    def left_behind(self, practice: Practice) -> Iterator[None]:
        """Leaves the step's dialogues in the run's folder where they are what stops it."""
        try:
            yield
        except (RuntimeError, OSError):
            self.record_dialogues(self.tally.step + 1, practice)
            raise

    def record_dialogues(self, step: int, practice: Practice) -> None:
        """Leaves a step's transcripts in the run's folder."""
        records = [record for group in practice.groups for record in group_records(group, kind="train")]
        records += [record for group in practice.stale for record in group_records(group, kind="stale")]
        self.recorder.dialogues(step, records, num_as_text=NUM_AS_TEXT)

    def record(self, practice: Practice, metrics: dict[str, float], alarms: Sequence[Alarm]) -> None:
        """Leaves the step's transcripts, metrics and alarms in the run's folder."""
        step = self.tally.step
        if practice.on_panel:
            self.record_panel(practice.on_panel)
        self.record_dialogues(step, practice)
        self.recorder.metrics(step, metrics)
        for alarm in alarms:
            self.tally.alarms.append(asdict(alarm))
            self.recorder.alarm(step, f"**{alarm.name}**: {alarm.message}")

    def record_teaching(
        self, proposed: Sequence[TaskSpec], outcomes: Sequence[GroupOutcome], probes: Sequence[GroupOutcome], stats: dict[str, Any]
    ) -> None:
        """Leaves everything the teacher said and heard, in the order in which it did: enough to replay it."""
        issued = [{"event": "task", **task_to_record(task)} for task in proposed]
        heard = [{"event": "outcome", **outcome_to_record(outcome)} for outcome in outcomes]
        heard += [{"event": "probe", **outcome_to_record(probe)} for probe in probes]
        decided = [{"event": "decision", **decision} for decision in self.parts.teacher.decisions()]
        self.recorder.teacher(self.tally.step, [*issued, *heard, {"event": "update", "update": stats}, *decided])


def learned(groups: Sequence[Played]) -> list[Played]:
    """The groups, or their outcomes, that the policy may learn from: all but those that a teacher had played for the score alone."""
    return [group for group in groups if not (isinstance(group.task, TaskSpec) and group.task.mode is Mode.UNLEARNED)]
