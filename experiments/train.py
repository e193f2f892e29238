"""The training loop: propose, roll out, measure, teach, update, synchronise weights, record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from curriculum.collapse.history import INDICATOR_METRICS
from curriculum.collapse.monitor import Alarm
from curriculum.task import GroupOutcome, Mode, TaskSpec, UpdateStats
from experiments.build import Components
from experiments.checks import TOLERANCE, arrival_difference, to_score
from experiments.config import ExperimentConfig
from experiments.metrics import dialogue_metrics, measure, probe_metrics, retrieval_metrics, signal_metrics
from experiments.prefetch import RolloutPrefetcher
from experiments.recorder import Recorder
from experiments.run_state import RunState, Usage
from experiments.tasks import ProbeTask, probe_tasks
from policy.batch import collate, trainable_groups
from policy.engine.factory import card_of
from policy.rollout.dialogue import RolloutGroup
from policy.rollout.pool import is_fresh, off_policy_metrics
from simulator.scenario import Split
from simulator.user import served_by_run


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

    def trainable(self) -> list[tuple[RolloutGroup, GroupOutcome]]:
        """The groups that the policy may learn from, with their outcomes: all but those that a teacher issued for the score alone."""
        pairs = zip(self.groups, self.outcomes, strict=True)
        return [(group, outcome) for group, outcome in pairs if outcome.task.mode is not Mode.UNLEARNED]


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
        card = card_of(config.learner.device, config.rollout, config.cluster, served_by_run(config.simulator))
        self._shares_gpu = bool(config.cluster.address) or card.num_engines + card.num_served > 0

    def step(self) -> tuple[dict[str, float], list[Alarm]]:
        """Trains once; returns the step's metrics and the alarms that fired.

        Raises:
            RuntimeError: too many dialogues broke, too many optimiser steps were skipped, engines sampled by other weights, or new weights
                did not arrive.
        """
        config, components, step = self.config, self.components, self.state.step + 1
        started = time.monotonic()
        data = self.roll_out(step)
        rolled_out = time.monotonic()
        try:
            if config.policy.sleep:
                components.pool.sleep()
            components.teacher.observe([*data.outcomes, *data.probes])  # every group, before any filter
            components.errors.observe(data.groups)
            panel = self.panel_metrics(data.panel)  # before the update
            metrics = self.update(data)
            metrics |= dialogue_metrics(data.groups, success_emotion=config.teacher.success_emotion) | signal_metrics(data.outcomes)
            stats = UpdateStats(
                step=step,
                policy_version=components.learner.policy_version,
                entropy=metrics["actor/entropy"],
                entropy_sampled=metrics["rollout/entropy_sampled"],
                reward_density=metrics["curriculum/reward_density"],
                zero_variance_share=metrics["curriculum/zero_variance_share"],
                kl=metrics["actor/kl_loss"],
                entropy_forking=metrics["actor/entropy_forking"],
                budget_fraction=self.budget_fraction(),
            )
            components.teacher.on_update(stats)
            metrics |= self.sync_weights(data.groups)
        except (RuntimeError, OSError):
            self.recorder.step_dialogues(step, data.groups, data.stale)
            raise

        self.state.step, metrics = step, metrics | panel
        alarms = components.collapse.observe(step, {name: metrics[key] for name, key in INDICATOR_METRICS.items() if key in metrics})
        self.state.alarms += map(asdict, alarms)
        metrics |= components.collapse.metrics() | components.teacher.metrics()
        metrics |= {"curriculum/entropy_affordable": components.collapse.entropy_affordable(stats.budget_fraction)}
        metrics |= self.usage.metrics(num_engines=config.rollout.num_engines)
        metrics |= {"timing_s/gen": rolled_out - started, "timing_s/step": time.monotonic() - started}
        metrics |= {"perf/policy_tokens": float(self.state.policy_tokens)}
        if config.resampling.max_rounds:
            metrics |= {"rollout/num_rounds": float(data.num_rounds), "rollout/num_groups": float(len(data.groups))}

        if data.panel:
            self.recorder.panel(step, self.panel, data.panel)
        self.recorder.step_dialogues(step, data.groups, data.stale)
        self.recorder.metrics(step, metrics)
        for alarm in alarms:
            self.recorder.alarm(step, f"**{alarm.name}**: {alarm.message}")
        self.recorder.teaching(step, data.proposed, data.outcomes, data.probes, asdict(stats), components.teacher.decisions())
        return metrics, alarms

    def roll_out(self, step: int) -> StepData:
        """The dialogues of a step, counted and measured; groups without contrast are replaced where the settings ask for it.

        Raises:
            RuntimeError: the pool broke.
        """
        teacher, pool, version = self.components.teacher, self.components.pool, self.components.learner.policy_version
        proposed = self.prefetcher.fill(step)
        groups, panel = self.prefetcher.take()
        self.state.count([*groups, *panel])

        # Groups that are too old are not trained on, and their tasks expire.
        bound = self.config.rollout.max_staleness
        young = [group for group in groups if is_fresh(group, policy_version=version, max_staleness=bound)]
        stale = [group for group in groups if not is_fresh(group, policy_version=version, max_staleness=bound)]
        teacher.expire([group.task.uid for group in stale], reason=f"older than rollout.max_staleness={bound}")

        data = StepData(proposed=proposed, groups=young, outcomes=self.measure(young), stale=stale, panel=panel)
        if self.config.probe.teaches:
            # The teacher did not issue the panel and does not train on it.
            for group in panel:
                assert isinstance(group.task, ProbeTask)
                probe = group.task.as_observed(step=step, policy_version=group.rollouts[0].policy_versions[1])
                data.probes += self.measure([replace(group, task=probe)])
        wanted = len(data.trainable())
        while data.num_rounds < self.config.resampling.max_rounds and (missing := wanted - len(self.with_contrast(data))) > 0:
            more = teacher.propose(missing, policy_version=version)
            pool.submit(more)
            played = pool.ready(len(more))
            self.state.count(played)
            data.proposed += more
            data.groups += played
            data.outcomes += self.measure(played)
            data.num_rounds += 1
        self.latest = data.groups
        return data

    def update(self, data: StepData) -> dict[str, float]:
        """Updates the policy on a step's groups; returns the update's metrics.

        Raises:
            RuntimeError: too many optimiser steps were skipped, or engines sampled by other weights than the learner's.
        """
        config, learner, algorithm = self.config, self.components.learner, self.components.algorithm
        sampled_by = learner.policy_version
        batch = learner.prepare(collate(trainable_groups(self.with_contrast(data), compares_siblings=algorithm.compares_siblings)))
        batch = algorithm.add_advantages(batch)
        metrics = off_policy_metrics(data.groups, policy_version=sampled_by, num_dropped=len(data.stale))
        metrics |= learner.update(batch, budget_fraction=self.budget_fraction())
        if learner.policy_version != sampled_by:
            for callback in config.callbacks.values():
                callback.after_update(self)
        difference = metrics["training/rollout_logprob_abs_diff_mean"]
        if config.computes_in_float32 and not config.rollout.max_staleness and difference > TOLERANCE:
            raise RuntimeError(
                f"engines must sample by the learner's weights of version {sampled_by}, got logprobs {difference:.2g} nats apart on "
                "average; a prefix cache that outlives its weights does that, or another dtype than policy.dtype"
            )
        return metrics

    def sync_weights(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Sends the learner's weights to the engines, and compares the logprobs of both on dialogues of this step.

        Raises:
            RuntimeError: an engine scores by other weights than the learner's.
        """
        config, pool, learner = self.config, self.components.pool, self.components.learner
        dialogues = to_score(groups, max_context=config.rollout.max_context)
        # Before engines that sleep take their room again.
        scored = [learner.score(token_ids) for token_ids in dialogues]
        if self._shares_gpu:
            learner.give_back_memory()
        started = time.monotonic()
        pool.load_weights(learner.live_weights(), learner.policy_version)
        sent = time.monotonic()
        difference = arrival_difference(scored, [pool.score(token_ids) for token_ids in dialogues])
        if config.computes_in_float32 and difference > TOLERANCE:
            raise RuntimeError(
                f"weights of version {learner.policy_version} must reach every engine, got logprobs {difference:.2g} nats from the "
                "learner's"
            )
        return {"timing_s/update_weights": sent - started, "rollout/arrival_logprob_diff": difference}

    def panel_metrics(self, panel: Sequence[RolloutGroup]) -> dict[str, float]:
        """Rewards of the probe panel, and whether the policy's replies depend on whom they answer; nothing without it."""
        if not panel:
            return {}
        rollouts = [group.rollouts[0] for group in panel]
        metrics = probe_metrics(rollouts)
        return metrics | retrieval_metrics(rollouts, self.components.learner.score, num_contexts=self.config.probe.num_contexts)

    def measure(self, groups: Sequence[RolloutGroup]) -> list[GroupOutcome]:
        """The outcome of each group, as a teacher observes it."""
        return [measure(group, success_emotion=self.config.teacher.success_emotion) for group in groups]

    def with_contrast(self, data: StepData) -> list[RolloutGroup]:
        """The groups to train on: all that may be, and where groups are replaced only those whose sound rollouts differ."""
        resampling, chosen = self.config.resampling, []
        for group, outcome in data.trainable():
            values = outcome.successes if resampling.contrast == "success" else outcome.rewards
            if not resampling.max_rounds or len({values[i] for i in outcome.surviving}) > 1:
                chosen.append(group)
        return chosen

    def budget_fraction(self) -> float:
        """Fraction of the budget that is used up."""
        return self.config.budget.fraction(policy_tokens=self.state.policy_tokens, steps=self.state.step)
