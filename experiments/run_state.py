"""What a run has used up and measured so far; it is part of every checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from policy.rollout.dialogue import RolloutGroup
from policy.rollout.pool import RolloutPool


@dataclass
class RunState:
    """Counts of a run, JSON-able."""

    step: int = 0
    """Optimiser steps taken."""
    policy_tokens: int = 0
    """Sampled in training and on the probe panel."""
    simulator_calls: int = 0
    """Turns of simulated users, openings among them."""
    simulator_cost: float = 0.0
    """Of the simulated users, in the unit of their prices, evaluations among it."""
    num_evaluations: int = 0
    budget_decile: int = -1
    """Of the latest evaluation; -1 before the first."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    alarms: list[dict[str, Any]] = field(default_factory=list)
    in_flight: list[dict[str, Any]] = field(default_factory=list)
    """Steps whose dialogues were being rolled out when this was written; counted when they return."""

    def count(self, groups: Sequence[RolloutGroup]) -> None:
        """Adds tokens and calls of these groups."""
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        self.policy_tokens += sum(rollout.num_sampled for rollout in rollouts)
        self.simulator_calls += sum(1 + rollout.dialogue.num_replies for rollout in rollouts)


class Usage:
    """How busy the pool was and what the simulated users used up since the last step; adds time and cost to the run's state."""

    def __init__(self, pool: RolloutPool, state: RunState) -> None:
        self._pool, self._state = pool, state
        self._pool_before: Mapping[str, float] = pool.stats()
        self._users_before: Mapping[str, float] = pool.user_counts()
        self._cost_before = self._users_before.get("cost", 0.0)
        self._wall_s, self._cpu_s = time.monotonic(), self._cpu_seconds()

    def metrics(self, *, num_engines: int) -> dict[str, float]:
        """Throughput of the pool and counts of the simulated users since the last call; nothing of users that are free.

        The cost is that of the run so far.
        """
        now = self._pool.stats()
        since = {name: value - self._pool_before.get(name, 0.0) for name, value in now.items()}
        self._pool_before = now
        rollout_s = max(since["rollout_s"], 1e-9)
        found = {
            "rollout/tokens_per_s": since["num_tokens"] / rollout_s,
            "rollout/engine_busy_share": since["engine_busy_s"] / rollout_s / num_engines,
            **{f"rollout/num_{name}": float(now[f"num_{name}"]) for name in ("restarts", "dispatched", "lost", "retried", "in_flight")},
        }
        users = self.count_cost()
        found |= {f"simulator/{name}": value - self._users_before.get(name, 0.0) for name, value in users.items()}
        self._users_before = users
        return found | ({"simulator/cost": self._state.simulator_cost} if "cost" in users else {})

    def count_cost(self, *, timeout_s: float | None = None) -> Mapping[str, float]:
        """Adds the users' cost since this was last done; returns their counts.

        Raises:
            RuntimeError: a worker did not answer in time; None waits.
        """
        now = self._pool.user_counts(timeout_s=timeout_s)
        self._state.simulator_cost += now.get("cost", 0.0) - self._cost_before
        self._cost_before = now.get("cost", 0.0)
        return now

    def count_time(self) -> None:
        """Adds wall-clock and CPU seconds since this was last done."""
        wall_s, cpu_s = time.monotonic(), self._cpu_seconds()
        self._state.wall_s += wall_s - self._wall_s
        self._state.cpu_s += max(cpu_s - self._cpu_s, 0.0)
        self._wall_s, self._cpu_s = wall_s, cpu_s

    @staticmethod
    def _cpu_seconds() -> float:
        """CPU time of this process and of its living descendants."""
        me = psutil.Process()
        total = 0.0
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total
