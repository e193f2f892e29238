"""The rollout pool: groups rolled out by a group of workers, behind submit, ready and load_weights."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig
from policy.engine.engine import Completion, Request
from policy.engine.factory import check_capacity, check_engine, check_weight_files, ray_needs
from policy.engine.weights import WeightSync, rounded_names
from policy.files import folder_for_sockets
from policy.rollout.dialogue import Rollout, RolloutGroup, SamplingOverrides, Task, is_the_engines
from policy.rollout.session import ray_session
from policy.rollout.worker import ENGINE_BUSY_S, Scenarios
from policy.rollout.worker_group import WorkerGroup, WorkerLostError
from policy.versions import to_compare
from simulator.dialogue import Outcome, UserSimulator
from simulator.reward import Shares

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class DialogueCounts:
    """Totals of a pool. A dispatch of a dialogue to a worker ends in one of five ways: it came back done, as an ERROR of the simulator or
    of the engine; it was lost with its worker (and dispatched again, which is another dispatch); or it was abandoned.
    """

    num_dispatched: int = 0
    num_done: int = 0
    num_simulator_errors: int = 0
    num_engine_errors: int = 0
    num_lost: int = 0
    num_abandoned: int = 0
    num_retried: int = 0
    """Further attempts that workers made at dialogues that broke, within a dispatch."""
    num_replies: int = 0
    num_tokens: int = 0
    """Sampled in the dialogues that came back."""

    @property
    def num_dialogues(self) -> int:
        return self.num_done + self.num_simulator_errors + self.num_engine_errors

    @property
    def num_in_flight(self) -> int:
        return self.num_dispatched - self.num_dialogues - self.num_lost - self.num_abandoned

    def settle(self, groups: Sequence[RolloutGroup]) -> None:
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            failed, by_engine = rollout.dialogue.outcome is Outcome.ERROR, is_the_engines(rollout.dialogue)
            self.num_done += not failed
            self.num_engine_errors += by_engine
            self.num_simulator_errors += failed and not by_engine
            self.num_retried += rollout.num_attempts - 1
            self.num_replies += rollout.dialogue.num_replies
            self.num_tokens += rollout.num_sampled


@dataclass
class _Job:
    """Tasks that one worker rolls out in one call."""

    worker: int
    overrides: SamplingOverrides
    tasks: list[Task] = field(default_factory=list)
    ref: Any = None
    groups: list[RolloutGroup] | None = None

    @property
    def num_dialogues(self) -> int:
        return sum(task.group_size for task in self.tasks)


class RolloutPool:
    """Rolls out groups on several engines at once. Whole groups stay together, on the engine with the least to do when they are submitted.

    Groups come back in the order of submission, lane by lane, so that evaluation does not disturb training.

    Args:
        user_factory, scenarios: build the simulated user and the scenario bank in each worker, so they must pickle.
        seed: of the run; runs with different seeds sample independently even on the same tasks.
        reward_terms: other terms than the final emotion with a share of the reward; must pickle, by reference.

    Raises:
        ValueError: the model, vLLM, the memory or the GPUs that the settings ask for are not there; nothing was started.
        RuntimeError: an engine did not start.
    """

    def __init__(
        self,
        config: RolloutConfig,
        engine_config: EngineConfig,
        *,
        model_folder: str | Path,
        user_factory: Callable[[], UserSimulator],
        scenarios: Callable[[], Scenarios],
        seed: int,
        cluster: ClusterConfig | None = None,
        system_prompt: str = "",
        reward_terms: Shares = (),
    ) -> None:
        cluster = cluster or ClusterConfig()
        check_engine(engine_config, model_folder, max_context=config.max_context)
        check_weight_files(engine_config, model_folder)
        check_capacity(config, engine_config, cluster, Path(model_folder))
        self._config = config
        self._lanes: dict[str, list[tuple[_Job, int]]] = {}
        """By lane, each submitted task's job and its place there."""
        self._counts = DialogueCounts()
        self._rollout_s, self._busy_since = 0.0, 0.0
        build = {"model_folder": Path(model_folder).absolute(), "user_factory": user_factory, "scenarios": scenarios, "seed": seed}
        build |= {"system_prompt": system_prompt, "reward_terms": reward_terms, "versions": to_compare() if cluster.address else None}
        self._folder = folder_for_sockets("attune-")
        self._opened = contextlib.ExitStack()  # closed in the opposite order
        self._opened.callback(self._folder.cleanup)
        try:
            self._opened.enter_context(ray_session(cluster, folder=Path(self._folder.name), **ray_needs(config, cluster)))
            self.workers = WorkerGroup(config, engine_config, cluster, build=build, on_restart=self._recover)
            self._opened.callback(self.workers.close)
            self._sync = WeightSync(
                engine_config,
                self.workers.load_weights,
                folder=Path(self._folder.name) / "weights",
                store=self.workers.store,
                rounded=rounded_names(engine_config, Path(model_folder)),
            )
            self._opened.callback(self._sync.close)
        except BaseException:
            self.close()
            raise
        self.engine_name = self.workers.engine_name
        if engine_config.engine is EngineKind.AUTO and self.engine_name != EngineKind.VLLM:
            log.warning("vLLM cannot be imported: rolling out with the slower transformers engine")

    def submit(self, tasks: Sequence[Task], *, lane: str = "", temperature: float | None = None, max_turns: int | None = None) -> None:
        """Starts rolling out tasks, which come back in the order of their lane; never waits.

        Temperature and max_turns are instead of those of `rollout`; 0 is greedy and for evaluation only.
        """
        overrides = SamplingOverrides(temperature=temperature, max_turns=max_turns)
        waiting = [ticket for tickets in self._lanes.values() for ticket in tickets]
        if not waiting:
            self._busy_since = time.perf_counter()
        load = [sum(job.tasks[i].group_size for job, i in waiting if job.worker == worker) for worker in range(self._config.num_engines)]
        jobs: list[_Job] = []
        for task in tasks:
            worker = load.index(min(load))
            load[worker] += task.group_size
            # Deterministic rollouts sample all dialogues of a worker together, so they go there in one call.
            job = next((job for job in jobs if job.worker == worker), None) if self._config.deterministic else None
            if job is None:
                jobs.append(job := _Job(worker, overrides))
            job.tasks.append(task)
            self._lanes.setdefault(lane, []).append((job, len(job.tasks) - 1))
        for job in jobs:
            self._dispatch(job)

    def ready(self, num_groups: int, *, lane: str = "") -> list[RolloutGroup]:
        """The `num_groups` groups of a lane submitted first, in that order, whichever finished first: quick dialogues get no advantage."""
        tickets = self._lanes.get(lane, [])
        assert num_groups <= len(tickets), f"ready asks for {num_groups} groups, of which {len(tickets)} were submitted"
        wanted = tickets[:num_groups]
        while pending := {job.ref: job for job, _ in wanted if job.groups is None}:
            for ref in self.workers.wait({ref: job.worker for ref, job in pending.items()}):
                job = pending[ref]
                if job.ref is not ref:
                    continue  # its worker was restarted meanwhile: the job is done, or under way in another call
                try:
                    job.groups = self.workers.result(ref)
                except WorkerLostError as error:
                    self.workers.restart(job.worker, str(error))
                else:
                    self._counts.settle(job.groups)
        self._lanes[lane] = tickets[num_groups:]
        now = time.perf_counter()
        self._rollout_s += now - self._busy_since
        self._busy_since = now
        in_flight = sum(job.num_dialogues for job in self._unfinished())
        assert self._counts.num_in_flight == in_flight, f"dialogues must be counted once each, got {in_flight} in flight and {self._counts}"
        # The task that was submitted, and not the copy that crossed the process boundary.
        return [replace(job.groups[i], task=job.tasks[i]) for job, i in wanted if job.groups is not None]

    def abandon(self, lane: str) -> None:
        """Gives up all that was submitted in a lane."""
        tickets = self._lanes.pop(lane, [])
        for job in {id(job): job for job, _ in tickets if job.groups is None}.values():
            self._counts.num_abandoned += job.num_dialogues
            self.workers.cancel(job.ref)

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Puts new weights into every engine, between replies, and checks that all of them arrived everywhere (`WeightSync.send`)."""
        self._sync.send(named_tensors, version)

    def sleep(self) -> None:
        """Every engine gives up the memory of its weights and cache until the next `load_weights`; nothing may be under way."""
        self.workers.ask("sleep")

    def score(self, token_ids: Sequence[int]) -> list[list[float]]:
        """Per engine, the logprob of every token but the first: nats, at temperature 1."""
        return self.workers.ask("score", list(token_ids))

    def generate_all(self, requests_by_engine: Sequence[Sequence[Request]]) -> list[list[Completion]]:
        """Plain continuations without dialogues, one call per engine: the ceiling that rollouts are measured against."""
        calls = zip(self.workers.workers, requests_by_engine, strict=True)
        return self.workers.result([worker.generate_all.remote(list(requests)) for worker, requests in calls])

    def reset_cache(self) -> None:
        self.workers.ask("reset_cache")

    def stats(self) -> dict[str, float]:
        """Totals since the start: `DialogueCounts`, restarts, seconds rolling out (`rollout_s`) and seconds that all engines computed."""
        counts = self._counts
        return {
            **asdict(counts),
            "num_dialogues": counts.num_dialogues,
            "num_in_flight": counts.num_in_flight,
            "num_restarts": self.workers.num_restarts,
            ENGINE_BUSY_S: self.workers.counts()[ENGINE_BUSY_S],
            "rollout_s": self._rollout_s,
        }

    def user_counts(self, *, timeout_s: float | None = None) -> dict[str, float]:
        """The simulated users' counts since the start, see `WorkerGroup.counts`; empty where users count nothing."""
        return {name: value for name, value in self.workers.counts(timeout_s=timeout_s).items() if name != ENGINE_BUSY_S}

    def close(self) -> None:
        """Ends the workers, and Ray if this pool started it; where one part fails to close, the others are closed nevertheless."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _dispatch(self, job: _Job) -> None:
        self._counts.num_dispatched += job.num_dialogues
        job.ref = self.workers.workers[job.worker].roll_out.remote(job.tasks, job.overrides)

    def _recover(self, worker: int) -> None:
        """Dispatches the unfinished jobs of a lost worker again; results that it had already sent are kept."""
        for job in self._unfinished():
            if job.worker != worker:
                continue
            try:
                job.groups = self.workers.result(job.ref)
            except WorkerLostError:
                self._counts.num_lost += job.num_dialogues
                self._dispatch(job)
            else:
                self._counts.settle(job.groups)

    def _unfinished(self) -> list[_Job]:
        """Jobs that did not come back yet, once each and in order."""
        return list({id(job): job for tickets in self._lanes.values() for job, _ in tickets if job.groups is None}.values())


def is_fresh(group: RolloutGroup, *, policy_version: int, max_staleness: int) -> bool:
    """Whether the oldest weights that sampled a token of a group are at most `max_staleness` updates old, dialogues that broke aside."""
    oldest = [rollout.policy_versions[0] for rollout in _valid([group]) if rollout.num_sampled]
    return policy_version - min(oldest, default=policy_version) <= max_staleness


def off_policy_metrics(groups: Sequence[RolloutGroup], *, policy_version: int, num_dropped: int) -> dict[str, float]:
    """Ages of these groups' tokens, in updates, without dialogues that broke; `num_dropped` groups were too old to be among them."""
    ages = policy_version - np.concatenate([np.zeros(0, dtype=np.int64), *(rollout.token_versions for rollout in _valid(groups))])
    return {
        "off_policy/mean": float(ages.mean()) if ages.size else float("nan"),
        "off_policy/max": float(ages.max()) if ages.size else float("nan"),
        "off_policy/dropped": float(num_dropped),
    }


def _valid(groups: Sequence[RolloutGroup]) -> list[Rollout]:
    """Those that are trained on: no ERROR dialogues."""
    return [rollout for group in groups for rollout in group.rollouts if rollout.dialogue.outcome is not Outcome.ERROR]
