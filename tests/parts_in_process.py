"""A run's components in one process: all are real, but the pool has one worker, here and without Ray."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.build import Components, build
from experiments.config import ExperimentConfig, load
from experiments.run_state import RunState
from experiments.train import TrainingRun
from policy.engine.weights import check_acks, pack_weights
from policy.rollout.dialogue import RolloutGroup, SamplingOverrides
from policy.rollout.worker import RolloutWorker
from tests.tiny_policy import save_tiny_policy

SMALL = (
    *("policy.engine=hf", "groups_per_step=2", "group_size=3", "rollout.max_turns=2", "rollout.max_new_tokens=6"),
    *("probe.num_dialogues=2", "probe.every=2"),
    *("evaluation.num_scenarios=2", "evaluation.during_scenarios=1", "evaluation.strictness=[0.5]"),
)
"""Settings of a run of `smoke` whose steps take a tenth of a second with a tiny policy."""


class InProcessPool:
    """Has the interface of `policy.rollout.pool.RolloutPool`; dialogues are finished when they are submitted."""

    def __init__(self, config: Any, engine_config: Any, *, cluster: Any = None, system_prompt: str = "", **facts: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.worker = RolloutWorker(config, engine_config, system_prompt=system_prompt, **facts)
        self.ask(self.worker.start())
        self.lanes: dict[str, list[RolloutGroup]] = {}
        self.sent: list[int] = []
        """Versions of the weights that were sent."""
        self.cost: float | None = None
        """Of the simulated users so far; None where they are free."""

    @property
    def engine(self) -> Any:
        return self.worker._engine

    def ask(self, question: Any) -> Any:
        return self.loop.run_until_complete(question)

    def submit(self, tasks, *, lane="", temperature=None):
        groups = self.ask(self.worker.roll_out(list(tasks), SamplingOverrides(temperature=temperature)))
        self.lanes.setdefault(lane, []).extend(replace(group, task=task) for group, task in zip(groups, tasks, strict=True))

    def ready(self, num_groups, *, lane=""):
        assert num_groups <= len(self.lanes.get(lane, []))
        taken, self.lanes[lane] = self.lanes[lane][:num_groups], self.lanes[lane][num_groups:]
        return taken

    def load_weights(self, weights, version):
        packed = pack_weights(weights, version=version)
        check_acks([self.ask(self.worker.load_weights(packed))], packed)
        self.sent.append(version)

    def sleep(self):
        self.ask(self.worker.sleep())

    def score(self, token_ids):
        return [self.ask(self.worker.score(list(token_ids)))]

    def abandon(self, lane):
        self.lanes.pop(lane, None)

    def stats(self):
        counts = ("tokens", "restarts", "dispatched", "lost", "retried", "in_flight")
        return dict.fromkeys((*(f"num_{name}" for name in counts), "rollout_s", "engine_busy_s"), 0.0)

    def user_counts(self, *, timeout_s=None):
        return {} if self.cost is None else {"cost": self.cost}

    def close(self):
        self.worker.close()
        self.loop.close()


def components_in_process(config: ExperimentConfig, *, checkpoint: Path | None = None, pool: type = InProcessPool) -> Components:
    """The components of a run, with the state of a checkpoint if there is one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.build.RolloutPool", pool)
        return build(config, checkpoint=checkpoint)[0]


class Recorded:
    """A recorder that keeps what it is given."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}
        self.panels: dict[int, list[RolloutGroup]] = {}
        self.tasks, self.outcomes, self.probes, self.updates, self.decisions = [], [], [], [], []  # type: ignore[var-annotated]
        self.groups, self.stale, self.alarms = [], [], []  # type: ignore[var-annotated]

    def metrics(self, step, values):
        self.steps[step] = dict(values)

    def teaching(self, step, issued, outcomes, probes, update, decisions):
        for kept, new in zip((self.tasks, self.outcomes, self.probes), (issued, outcomes, probes), strict=True):
            kept.extend(new)
        self.updates.append(update)
        self.decisions.extend(decisions)

    def step_dialogues(self, step, groups, stale):
        self.groups.extend(groups)
        self.stale.extend(stale)

    def panel(self, step, tasks, groups):
        self.panels[step] = list(groups)

    def alarm(self, step, text):
        self.alarms.append(text)


def tiny_run(folder: Path, *overrides: str, state: RunState | None = None, pool: type = InProcessPool) -> TrainingRun:
    """A training run of a tiny random policy, whose recorder keeps what it is given."""
    if not folder.exists():
        save_tiny_policy(folder, hidden=32, layers=1)
    config = load("smoke", [f"policy.model={folder}", *SMALL, *overrides])
    recorder: Any = Recorded()
    return TrainingRun(config, components_in_process(config, pool=pool), recorder, state or RunState())
