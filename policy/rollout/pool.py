"""What became of every dialogue that was dispatched: each is accounted for exactly once.

The rollout pool: groups rolled out by a crew of workers, behind submit, ready and load_weights.

How old the weights were that sampled what is about to be trained on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from torch import Tensor

from policy.config import ClusterConfig, EngineConfig, EngineKind, RolloutConfig
from policy.engine.capacity import check_capacity, gpus_taken
from policy.engine.engine import Completion, EngineError, Request
from policy.engine.factory import check_engine, check_weight_files
from policy.files import OwnFolder, first_writable
from policy.rollout.dialogue import Conduct, PlainTask, Rollout, RolloutGroup, Task
from policy.rollout.ray_cluster import start_ray, stop_ray
from policy.rollout.weight_sync import Transport, make_transport
from policy.rollout.worker import Scenarios
from policy.rollout.worker_group import Crew, WorkerLostError
from simulator.dialogue import Dialogue, Outcome
from simulator.reward import Shares
from simulator.user import UserSimulator


@dataclass(kw_only=True)
class Accounts:
    """Totals of a pool, which only grow.

    A dispatch of a dialogue to a worker ends in one of five ways: it came back done, as an ERROR of the simulator or of the engine; it was
    lost with its worker (and dispatched again, which is a dispatch of its own); or nobody wanted it any more.
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
    """Sampled by what came back; what was lost with a worker is in no figure."""

    @property
    def num_dialogues(self) -> int:
        """Those that came back."""
        return self.num_done + self.num_simulator_errors + self.num_engine_errors

    @property
    def num_in_flight(self) -> int:
        """Dispatched and not yet settled."""
        return self.num_dispatched - self.num_dialogues - self.num_lost - self.num_abandoned

    def settle(self, groups: Sequence[RolloutGroup]) -> None:
        """Takes in what came back."""
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            self._settle(rollout)

    def _settle(self, rollout: Rollout) -> None:
        failed = rollout.dialogue.outcome is Outcome.ERROR
        by_engine = is_the_engines(rollout.dialogue)
        self.num_done += not failed
        self.num_engine_errors += by_engine
        self.num_simulator_errors += failed and not by_engine
        self.num_retried += rollout.num_attempts - 1
        self.num_replies += rollout.dialogue.num_replies
        self.num_tokens += rollout.num_sampled

    def check(self, *, num_in_flight: int) -> None:
        """Compares the totals with what is in flight by the pool's own tickets."""
        assert self.num_in_flight == num_in_flight, f"dialogues must be accounted for once each, got {num_in_flight} in flight and {self}"

    def totals(self) -> dict[str, float]:
        """All of it by name."""
        return {**asdict(self), "num_dialogues": self.num_dialogues, "num_in_flight": self.num_in_flight}


def is_the_engines(dialogue: Dialogue) -> bool:
    """Whether it was an engine that broke a dialogue, by its traceback; whatever else breaks one is the simulator's."""
    return dialogue.outcome is Outcome.ERROR and EngineError.__name__ in dialogue.error


log = logging.getLogger(__name__)


@dataclass
class _Job:
    """Tasks that one worker rolls out in one call."""

    tasks: list[Task]
    conduct: Conduct
    worker: int
    ref: Any = None
    groups: list[RolloutGroup] | None = None

    @property
    def num_dialogues(self) -> int:
        return sum(task.group_size for task in self.tasks)


class RolloutPool:
    """Rolls out groups on several engines at once. Whole groups stay together, on the engine with the least to do when they are submitted.

    What is submitted comes back in order, lane by lane: who evaluates in between does not get in the way of who trains.

    Args:
        model_folder: Hugging Face folder of the initial policy.
        user_factory: builds the simulated user; called in each worker, so it must pickle.
        scenarios: builds what looks up scenarios by id; called in each worker, so it must pickle.
        seed: of the run; runs with different seeds sample independently even on the same tasks.
        system_prompt: what the agent is told before a dialogue.
        reward_terms: what else than the final emotion has a share of the reward; must pickle, by reference.

    Raises:
        ValueError: something that the user can set does not work here; nothing was started.
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
        check_pool(config, engine_config, cluster, model_folder)
        self._config = config
        self._lanes: dict[str, list[tuple[_Job, int]]] = {}
        self._accounts = Accounts()
        self._rollout_s, self._busy_since = 0.0, 0.0
        build = {
            "model_folder": Path(model_folder).absolute(),
            "user_factory": user_factory,
            "scenarios": scenarios,
            "seed": seed,
            "system_prompt": system_prompt,
            "reward_terms": reward_terms,
        }
        # $TMPDIR comes late: it may be too long for the names of sockets.
        places = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path(os.environ.get("TMPDIR", "/tmp")))
        self._folder = OwnFolder("attune-", parent=first_writable(*dict.fromkeys(places)))
        # Room for one worker more, so that one in place of another need not wait until Ray has buried that.
        num_cpus = (config.num_engines + 1) * config.threads_per_engine
        # Not more GPUs than engines need: the learner's is no place for one that starts anew.
        num_gpus = gpus_taken(config, cluster) if cluster.gpus_per_engine else None
        self._started_ray = start_ray(cluster, num_cpus=num_cpus, num_gpus=num_gpus, folder=Path(self._folder.name))
        self._crew: Crew | None = None
        self._transport: Transport | None = None
        try:
            self._crew = Crew(config, engine_config, cluster, build=build, on_restart=self._recover)
            self._transport = make_transport(engine_config, self._crew, folder=Path(self._folder.name) / "weights")
        except BaseException:
            self.close()
            raise
        self.engine_name = self.crew.engine_name
        if engine_config.engine is EngineKind.AUTO and self.engine_name != EngineKind.VLLM:
            log.warning("vLLM cannot be imported: rolling out with the slower transformers engine")

    @property
    def crew(self) -> Crew:
        """Who does the work."""
        assert self._crew is not None, "a pool that was closed has nobody to do its work"
        return self._crew

    def submit(self, tasks: Sequence[Task], *, lane: str = "", temperature: float | None = None, max_turns: int | None = None) -> None:
        """Starts rolling out tasks; never waits.

        Args:
            lane: whose order they come back in.
            temperature: instead of `rollout.temperature`; 0 is greedy and for evaluation only.
            max_turns: instead of `rollout.max_turns`.
        """
        conduct = Conduct(temperature=temperature, max_turns=max_turns)
        waiting = [ticket for tickets in self._lanes.values() for ticket in tickets]
        if not waiting:
            self._busy_since = time.perf_counter()
        load = [sum(job.tasks[i].group_size for job, i in waiting if job.worker == worker) for worker in range(len(self.crew))]
        jobs: list[_Job] = []
        for task in tasks:
            worker = load.index(min(load))
            load[worker] += task.group_size
            # Deterministic rollouts sample all dialogues of a worker together, so they go there in one call.
            job = next((job for job in jobs if job.worker == worker), None) if self._config.deterministic else None
            if job is None:
                jobs.append(job := _Job(tasks=[], conduct=conduct, worker=worker))
            job.tasks.append(task)
            self._lanes.setdefault(lane, []).append((job, len(job.tasks) - 1))
        for job in jobs:
            self._dispatch(job)

    def ready(self, num_groups: int, *, lane: str = "") -> list[RolloutGroup]:
        """The `num_groups` groups of a lane submitted first, in that order, whichever finished first: quick dialogues get no advantage.

        Raises:
            RuntimeError: workers died or hung more often than may be made good.
        """
        tickets = self._lanes.get(lane, [])
        assert num_groups <= len(tickets), f"ready asks for {num_groups} groups, of which {len(tickets)} were submitted"
        wanted = tickets[:num_groups]
        while pending := {job.ref: job for job, _ in wanted if job.groups is None}:
            for ref in self.crew.wait({ref: job.worker for ref, job in pending.items()}):
                # Where its worker was lost and replaced meanwhile, the job is done or under way in another call.
                if pending[ref].ref is ref:
                    self._collect(pending[ref])
        self._lanes[lane] = tickets[num_groups:]
        now = time.perf_counter()
        self._rollout_s += now - self._busy_since
        self._busy_since = now
        self._accounts.check(num_in_flight=sum(job.num_dialogues for job in self._unfinished()))
        # The task goes out with the group it came in with: what crossed the process boundary is only its copy.
        return [replace(job.groups[i], task=job.tasks[i]) for job, i in wanted if job.groups is not None]

    def abandon(self, lane: str) -> None:
        """Gives up all that was submitted in a lane."""
        tickets = self._lanes.pop(lane, [])
        for job in {id(job): job for job, _ in tickets if job.groups is None}.values():
            self._accounts.num_abandoned += job.num_dialogues
            self.crew.cancel(job.ref)

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Puts new weights into every engine, between replies, and checks that all of them arrived everywhere.

        Raises:
            ValueError: a parameter is missing, unknown or not finite.
            RuntimeError: an engine holds something else than was sent, or could not be made to take it.
        """
        assert self._transport is not None, "a pool that was closed takes no weights"
        self._transport.send(named_tensors, version)

    def score(self, token_ids: Sequence[int]) -> list[list[float]]:
        """Per engine, the logprob of every token but the first: nats, at temperature 1."""
        return self.crew.ask("score", list(token_ids))

    def generate_all(self, requests_by_engine: Sequence[Sequence[Request]]) -> list[list[Completion]]:
        """Plain continuations without dialogues, one call per engine: the ceiling that rollouts are measured against."""
        return self.crew.generate_all(requests_by_engine)

    def reset_cache(self) -> None:
        """Makes every engine forget its cached prefixes."""
        self.crew.ask("reset_cache")

    def stats(self) -> dict[str, float]:
        """Totals since the start: those of `Accounts`, restarts, seconds rolling out (`rollout_s`) and those that all engines computed."""
        lasting = {"num_restarts": self.crew.num_restarts, "engine_busy_s": self.crew.busy_s()}
        return {**self._accounts.totals(), **lasting, "rollout_s": self._rollout_s}

    def user_counts(self, *, timeout_s: float | None = None) -> dict[str, float]:
        """What the simulated users counted since the start, over all workers and those that died; empty where users count nothing.

        Args:
            timeout_s: give up then, and start nobody anew; None asks until all have answered.

        Raises:
            RuntimeError: a worker did not answer in time.
        """
        return self.crew.user_counts(timeout_s=timeout_s)

    def close(self) -> None:
        """Ends the workers, and Ray if this pool started it; where one part fails to close, the others are closed all the same."""
        with contextlib.ExitStack() as parts:  # closed in the opposite order
            parts.callback(self._folder.cleanup)
            if self._started_ray:
                parts.callback(stop_ray)
            if self._crew is not None:
                parts.callback(self._crew.close)
            if self._transport is not None:
                parts.callback(self._transport.close)
            self._transport, self._crew, self._started_ray = None, None, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _dispatch(self, job: _Job) -> None:
        self._accounts.num_dispatched += job.num_dialogues
        job.ref = self.crew.roll_out(job.worker, [PlainTask.of(task) for task in job.tasks], job.conduct)

    def _collect(self, job: _Job) -> None:
        """Takes in what a call that is done came to; a worker that was lost over it is replaced."""
        try:
            job.groups = self.crew.result(job.ref)
        except WorkerLostError as error:
            self.crew.restart(job.worker, str(error))
        else:
            self._accounts.settle(job.groups)

    def _recover(self, worker: int) -> None:
        """Dispatches again what a lost worker still had to do; what it had done already is kept."""
        for job in self._unfinished():
            if job.worker != worker:
                continue
            try:
                job.groups = self.crew.result(job.ref)
            except WorkerLostError:
                self._accounts.num_lost += job.num_dialogues
                self._dispatch(job)
            else:
                self._accounts.settle(job.groups)

    def _unfinished(self) -> list[_Job]:
        """Jobs that did not come back yet, once each and in order."""
        return list({id(job): job for tickets in self._lanes.values() for job, _ in tickets if job.groups is None}.values())


def check_pool(config: RolloutConfig, engine_config: EngineConfig, cluster: ClusterConfig, model_folder: str | Path) -> None:
    """Refuses what cannot work before anything is started.

    Raises:
        ValueError: no model there or none whose weights vLLM can be sent, vLLM asked for and not installed, no room for the engines, or no
            folder for their weights.
    """
    check_engine(engine_config, model_folder, max_context=config.max_context)
    check_weight_files(engine_config, model_folder)
    check_capacity(config, engine_config, cluster, Path(model_folder))


def staleness(rollout: Rollout, *, policy_version: int) -> int:
    """Updates between the oldest weights that sampled a token of it and the present ones; 0 where none did."""
    return policy_version - rollout.policy_versions[0] if rollout.num_sampled else 0


def is_fresh(group: RolloutGroup, *, policy_version: int, max_staleness: int) -> bool:
    """Whether none of a group's dialogues is too old; one that broke is not trained on and may be of any age."""
    alive = (rollout for rollout in group.rollouts if rollout.dialogue.outcome is not Outcome.ERROR)
    return all(staleness(rollout, policy_version=policy_version) <= max_staleness for rollout in alive)


def off_policy_metrics(groups: Sequence[RolloutGroup], *, policy_version: int, num_dropped: int) -> dict[str, float]:
    """How old the tokens of these groups are, in updates; dialogues that broke are not looked at.

    Args:
        num_dropped: groups that were too old to be among them.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts if rollout.dialogue.outcome is not Outcome.ERROR]
    ages = policy_version - np.concatenate([rollout.token_versions for rollout in rollouts] or [np.zeros(0, dtype=np.int64)])
    return {
        "off_policy/mean": float(ages.mean()) if ages.size else float("nan"),
        "off_policy/max": float(ages.max()) if ages.size else float("nan"),
        "off_policy/dropped": float(num_dropped),
    }
