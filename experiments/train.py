"""The training loop: propose, roll out, measure, teach, update, synchronise weights, record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from curriculum.collapse.monitor import Alarm
from curriculum.task import GroupOutcome, Mode, TaskSpec, UpdateStats
from experiments.build import Components
from experiments.checks import canaries, largest_difference, require_agreement, require_arrival
from experiments.config import Contrast, ExperimentConfig
from experiments.metrics import collapse_values, dialogue_metrics, measure, probe_metrics, retrieval_metrics, signal_metrics, update_stats
from experiments.prefetch import RolloutPrefetcher
from experiments.recorder import Recorder
from experiments.run_state import RunState, Usage
from experiments.tasks import as_observed, probe_tasks
from policy.batch import collate, trainable_groups
from policy.engine.capacity import engines_beside
from policy.rollout.dialogue import RolloutGroup
from policy.rollout.pool import is_fresh, off_policy_metrics
from simulator.scenario import Split

Played = TypeVar("Played", RolloutGroup, GroupOutcome)


@dataclass(kw_only=True)
class StepData:
    """The dialogues of a step."""

    proposed: list[TaskSpec]
    groups: list[RolloutGroup]
    outcomes: list[GroupOutcome]
    """Of each of the groups."""
    stale: list[RolloutGroup]
    """Too old to be trained on."""
    panel: list[RolloutGroup]
    """Of the probe panel; empty in most steps."""
    probes: list[GroupOutcome] = field(default_factory=list)
    """Of the panel, as far as the teacher observes it."""
    num_rounds: int = 0
    """Rounds in which groups without contrast were replaced."""


class TrainingRun:
    """One run, step by step: `components` hold what adapts, `state` what was used up, `recorder` writes the run's folder."""

    def __init__(self, config: ExperimentConfig, components: Components, recorder: Recorder, state: RunState) -> None:
        self.config, self.components, self.recorder, self.state = config, components, recorder, state
        self.usage = Usage(components.pool, state)
        self.latest: list[RolloutGroup] = []
        """Groups of the latest step."""
        self.panel = probe_tasks(config.probe.num_dialogues, components.bank.by_family(Split.TRAIN), seed=config.seed)
        self.prefetcher = RolloutPrefetcher(
            components.pool,
            max_staleness=config.rollout.max_staleness,
            last_step=config.budget.steps,
            propose=lambda: components.teacher.propose(config.groups_per_step, policy_version=components.learner.policy_version),
            panel=lambda step: self.panel if config.probe.is_due(step) else [],
            records=state.in_flight,
        )
        # On a cluster the engines' GPUs are unknown here.
        self._shares_gpu = bool(config.cluster.address) or engines_beside(config.learner.device, config.rollout, config.cluster) > 0

    def step(self) -> tuple[dict[str, float], list[Alarm]]:
        """Trains once; returns the step's metrics and the alarms that fired.

        Raises:
            RuntimeError: too many dialogues broke, too many optimiser steps were skipped, or new weights did not arrive.
        """
        started = time.monotonic()
        data = self.roll_out()
        rolled_out = time.monotonic()
        try:
            metrics, panel, stats = self.learn(data)
        except (RuntimeError, OSError):
            self.recorder.step_dialogues(self.state.step + 1, data.groups, data.stale)
            raise
        self.state.step += 1

        components, usage = self.components, self.usage
        alarms = components.collapse.observe(self.state.step, collapse_values(metrics | panel))
        metrics |= panel | components.collapse.metrics() | components.teacher.metrics()
        metrics |= usage.pool_metrics(num_engines=self.config.rollout.num_engines) | usage.user_metrics()
        metrics |= {"timing_s/gen": rolled_out - started, "timing_s/step": time.monotonic() - started}
        metrics |= {"perf/policy_tokens": float(self.state.policy_tokens)}
        if self.config.resampling.enabled:
            metrics |= {"rollout/num_rounds": float(data.num_rounds), "rollout/num_groups": float(len(data.groups))}
        self.state.add_alarms(alarms)
        self.record(data, metrics, alarms, stats)
        return metrics, alarms

    def roll_out(self) -> StepData:
        """The dialogues of the next step, counted and measured; groups without contrast are replaced where that is asked for.

        Raises:
            RuntimeError: the pool broke.
        """
        proposed = self.prefetcher.fill(self.state.step + 1)
        groups, panel = self.prefetcher.take()
        self.state.count([*groups, *panel])
        groups, stale = self.split_by_age(groups)
        data = StepData(proposed=proposed, groups=groups, outcomes=self.measure(groups), stale=stale, panel=panel)
        wanted = len(trainable(groups))
        while data.num_rounds < self.config.resampling.max_rounds:
            missing = wanted - len(self.with_contrast(data))
            if missing <= 0:
                break
            more = self.components.teacher.propose(missing, policy_version=self.components.learner.policy_version)
            self.components.pool.submit(more)
            played = self.components.pool.ready(len(more))
            self.state.count(played)
            data.proposed += more
            data.groups += played
            data.outcomes += self.measure(played)
            data.num_rounds += 1
        self.latest = data.groups
        return data

    def learn(self, data: StepData) -> tuple[dict[str, float], dict[str, float], UpdateStats]:
        """Teacher and policy learn from a step's dialogues, and the engines get the new weights.

        Returns:
            Metrics of the update and the dialogues, metrics of the probe panel, and what the teacher observed of the update.

        Raises:
            RuntimeError: too many dialogues broke, too many optimiser steps were skipped, engines sampled by other weights, or new weights
                did not arrive.
        """
        config, components, learner = self.config, self.components, self.components.learner
        observed = as_observed(data.panel, step=self.state.step + 1) if config.probe.teaches else []
        data.probes = self.measure(observed)
        components.teacher.observe([*data.outcomes, *data.probes])
        components.errors.observe(data.groups)
        panel = self.panel_metrics(data.panel)

        algorithm, sampled_by = components.algorithm, learner.policy_version
        batch = learner.prepare(collate(trainable_groups(self.with_contrast(data), compares_siblings=algorithm.compares_siblings)))
        batch = algorithm.add_advantages(batch)
        metrics = off_policy_metrics(data.groups, policy_version=sampled_by, num_dropped=len(data.stale))
        metrics |= learner.update(batch, budget_fraction=self.budget_fraction())
        if learner.policy_version != sampled_by:
            for callback in config.callbacks.values():
                callback.after_update(self)
        if self._shares_gpu:
            learner.give_back_memory()
        is_exact = config.computes_in_float32 and not config.rollout.max_staleness
        require_agreement(metrics["training/rollout_logprob_abs_diff_mean"], policy_version=sampled_by, is_exact=is_exact)
        metrics |= dialogue_metrics(data.groups, success_emotion=config.teacher.success_emotion) | signal_metrics(data.outcomes)
        stats = update_stats(metrics, step=self.state.step + 1, policy_version=learner.policy_version)
        components.teacher.on_update(stats)
        return metrics | self.sync_weights(data.groups), panel, stats

    def sync_weights(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Sends the learner's weights to the engines, and compares the logprobs of both on dialogues of this step."""
        pool, learner = self.components.pool, self.components.learner
        started = time.monotonic()
        pool.load_weights(learner.live_weights(), learner.policy_version)
        sent = time.monotonic()
        sequences = canaries(groups, max_context=self.config.rollout.max_context)
        difference = largest_difference(sequences, engines=pool.score, learner=learner.score)
        require_arrival(difference, policy_version=learner.policy_version, is_fp32=self.config.computes_in_float32)
        return {"timing_s/update_weights": sent - started, "rollout/arrival_logprob_diff": difference}

    def measure(self, groups: Sequence[RolloutGroup]) -> list[GroupOutcome]:
        """What a teacher observes of each group."""
        return [measure(group, success_emotion=self.config.teacher.success_emotion) for group in groups]

    def with_contrast(self, data: StepData) -> list[RolloutGroup]:
        """The groups to train on: all that may be, and where groups are replaced only those whose rollouts differ."""
        groups, outcomes, resampling = trainable(data.groups), trainable(data.outcomes), self.config.resampling
        if not resampling.enabled:
            return groups
        return [group for group, outcome in zip(groups, outcomes, strict=True) if has_contrast(outcome, resampling.contrast)]

    def split_by_age(self, groups: Sequence[RolloutGroup]) -> tuple[list[RolloutGroup], list[RolloutGroup]]:
        """Groups that may be trained on, and those that are too old, whose tasks expire."""
        version, bound = self.components.learner.policy_version, self.config.rollout.max_staleness
        is_young = [is_fresh(group, policy_version=version, max_staleness=bound) for group in groups]
        stale = [group for group, young in zip(groups, is_young, strict=True) if not young]
        self.components.teacher.expire([group.task.uid for group in stale], reason=f"older than rollout.max_staleness={bound}")
        return [group for group, young in zip(groups, is_young, strict=True) if young], stale

    def panel_metrics(self, panel: Sequence[RolloutGroup]) -> dict[str, float]:
        """Rewards of the probe panel, and whether the policy's replies depend on whom they answer; measured before the update."""
        if not panel:
            return {}
        rollouts = [group.rollouts[0] for group in panel]
        metrics = probe_metrics(rollouts)
        return metrics | retrieval_metrics(rollouts, self.components.learner.score, num_contexts=self.config.probe.num_contexts)

    def budget_fraction(self) -> float:
        """Fraction of the budget that is used up."""
        return self.config.budget.fraction(policy_tokens=self.state.policy_tokens, steps=self.state.step)

    def record(self, data: StepData, metrics: dict[str, float], alarms: Sequence[Alarm], stats: UpdateStats) -> None:
        """Writes the step's transcripts, metrics and alarms, and everything the teacher issued and observed."""
        step = self.state.step
        if data.panel:
            self.recorder.panel(step, self.panel, data.panel)
        self.recorder.step_dialogues(step, data.groups, data.stale)
        self.recorder.metrics(step, metrics)
        for alarm in alarms:
            self.recorder.alarm(step, f"**{alarm.name}**: {alarm.message}")
        self.recorder.teaching(step, data.proposed, data.outcomes, data.probes, asdict(stats), self.components.teacher.decisions())


def trainable(groups: Sequence[Played]) -> list[Played]:
    """Groups, or their outcomes, that the policy may learn from: all but those that a teacher issued for the score alone."""
    return [group for group in groups if not (isinstance(group.task, TaskSpec) and group.task.mode is Mode.UNLEARNED)]


def has_contrast(outcome: GroupOutcome, contrast: Contrast) -> bool:
    """Whether the sound rollouts of a group differ in success or reward."""
    values = outcome.successes if contrast is Contrast.SUCCESS else outcome.rewards
    return len({values[i] for i in outcome.surviving}) > 1
