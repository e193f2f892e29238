"""The rollout pool: Ray actors that roll out whole groups, behind submit, ready and load_weights."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import ray
from ray._common.network_utils import is_localhost
from ray._private import ray_constants
from torch import Tensor

from policy.cluster import ClusterConfig
from policy.engine import Completion, EngineConfig, EngineError, EngineKind, Request, check_engine
from policy.rollout import Conduct, PlainTask, RolloutConfig, RolloutGroup, Task
from policy.weights import Receipt, check_receipts, pack_weights
from policy.worker import RolloutWorker, Scenarios
from simulator.dialogue import Outcome
from simulator.user import UserSimulator

log = logging.getLogger(__name__)

MAX_RESTARTS = 2
"""Workers that may die over the life of a pool."""
TOTALS = ("num_dialogues", "num_replies", "num_tokens", "num_simulator_errors", "num_engine_errors", "num_restarts")
ENGINE_MB = 900
"""Resident MiB of a worker before its weights and its cache, as measured with the embedded policy."""
OBJECT_STORE_BYTES = 128 << 20
"""Of a local Ray; weights larger than this spill to disk."""


@dataclass
class _Job:
    """Tasks that one worker rolls out in one call."""

    tasks: list[Task]
    conduct: Conduct
    worker: int
    ref: Any = None
    groups: list[RolloutGroup] | None = None


class RolloutPool:
    """Rolls out groups on several engines at once. Whole groups stay together, on the engine with the least to do when they are submitted.

    Args:
        model_folder: Hugging Face folder of the initial policy.
        user_factory: builds the simulated user; called in each worker, so it must pickle.
        scenarios: builds what looks up scenarios by id; called in each worker, so it must pickle.
        seed: of the run; runs with different seeds sample independently even on the same tasks.
        system_prompt: what the agent is told before a dialogue.

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
    ) -> None:
        self._config, self._engine_config = config, engine_config
        self._cluster = cluster or ClusterConfig()
        check_pool(config, engine_config, self._cluster, model_folder)
        self._build = {
            "model_folder": Path(model_folder).absolute(),
            "user_factory": user_factory,
            "scenarios": scenarios,
            "seed": seed,
            "system_prompt": system_prompt,
        }
        self._tickets: list[tuple[_Job, int]] = []
        self._weights: Any = None
        self._totals = dict.fromkeys(
            ("num_dialogues", "num_replies", "num_tokens", "num_simulator_errors", "num_engine_errors", "num_restarts"), 0
        )
        self._rollout_s, self._busy_since = 0.0, 0.0
        self._user_counts: list[dict[str, float]] = [{} for _ in range(config.num_engines)]
        self._counts_of_the_dead: dict[str, float] = {}
        # Not in $TMPDIR, which may be too long for the names of sockets.
        self._folder = tempfile.TemporaryDirectory(prefix="attune-", dir="/tmp", ignore_cleanup_errors=True)
        self._started_ray = _start_ray(config, self._cluster, Path(self._folder.name))
        try:
            self._workers = [self._new_worker() for _ in range(config.num_engines)]
            starting = [worker.start.remote() for worker in self._workers]
            started = [self._await_start(ref) for ref in starting]
        except BaseException:
            self.close()
            raise
        self.engine_name = started[0][0]
        if engine_config.engine is EngineKind.AUTO and self.engine_name != EngineKind.VLLM:
            log.warning("vLLM cannot be imported: rolling out with the slower transformers engine")

    def submit(self, tasks: Sequence[Task], *, temperature: float | None = None, max_turns: int | None = None) -> None:
        """Starts rolling out tasks; never waits.

        Args:
            temperature: instead of `rollout.temperature`; 0 is greedy and for evaluation only.
            max_turns: instead of `rollout.max_turns`.
        """
        conduct = Conduct(temperature=temperature, max_turns=max_turns)
        if not self._tickets:
            self._busy_since = time.perf_counter()
        load = [sum(job.tasks[i].group_size for job, i in self._tickets if job.worker == worker) for worker in range(len(self._workers))]
        jobs: list[_Job] = []
        for task in tasks:
            worker = load.index(min(load))
            load[worker] += task.group_size
            # Deterministic rollouts sample all dialogues of a worker together, so they go there in one call.
            job = next((job for job in jobs if job.worker == worker), None) if self._config.deterministic else None
            if job is None:
                jobs.append(job := _Job(tasks=[], conduct=conduct, worker=worker))
            job.tasks.append(task)
            self._tickets.append((job, len(job.tasks) - 1))
        for job in jobs:
            self._dispatch(job)

    def ready(self, num_groups: int, *, on_progress: Callable[[int, int], None] | None = None) -> list[RolloutGroup]:
        """The `num_groups` groups submitted first, in that order, whichever finished first: quick dialogues get no advantage.

        Args:
            on_progress: called with (groups done, groups wanted) whenever the former grows.

        Raises:
            RuntimeError: workers died more often than may be made good.
        """
        assert num_groups <= len(self._tickets), f"ready asks for {num_groups} groups, of which {len(self._tickets)} were submitted"
        wanted, self._tickets = self._tickets[:num_groups], self._tickets[num_groups:]
        while pending := {job.ref: job for job, _ in wanted if job.groups is None}:
            done, _ = ray.wait(list(pending), num_returns=1)
            for ref in done:
                self._collect(pending[ref], others=list(pending.values()))
            if on_progress:
                on_progress(sum(job.groups is not None for job, _ in wanted), num_groups)
        # The task goes out with the group it came in with: what crossed the process boundary is only its copy.
        groups = [replace(job.groups[i], task=job.tasks[i]) for job, i in wanted if job.groups is not None]
        self._count(groups)
        return groups

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Puts new weights into every engine, between replies, and checks that all of them arrived everywhere.

        Raises:
            RuntimeError: an engine holds something else than was sent, or did not answer in `policy.load_timeout_s`.
        """
        packed = pack_weights(named_tensors, version=version)
        self._weights = ray.put(packed)
        refs = [worker.load_weights.remote(self._weights) for worker in self._workers]
        receipts = [self._receipt(i, ref) for i, ref in enumerate(refs)]
        check_receipts(receipts, packed)

    def score(self, token_ids: Sequence[int]) -> list[list[float]]:
        """Per engine, the logprob of every token but the first: nats, at temperature 1."""
        return ray.get([worker.score.remote(list(token_ids)) for worker in self._workers], timeout=self._engine_config.load_timeout_s)

    def generate_all(self, requests_by_engine: Sequence[Sequence[Request]]) -> list[list[Completion]]:
        """Plain continuations without dialogues, one call per engine: the ceiling that rollouts are measured against."""
        calls = zip(self._workers, requests_by_engine, strict=True)
        return ray.get([worker.generate_all.remote(list(requests)) for worker, requests in calls])

    def reset_cache(self) -> None:
        """Makes every engine forget its cached prefixes."""
        ray.get([worker.reset_cache.remote() for worker in self._workers])

    def stats(self) -> dict[str, float]:
        """Totals since the start: `TOTALS`, seconds rolling out (`rollout_s`) and seconds all engines computed (`engine_busy_s`)."""
        busy = ray.get([worker.busy_s.remote() for worker in self._workers], timeout=self._engine_config.load_timeout_s)
        return {**self._totals, "rollout_s": self._rollout_s, "engine_busy_s": sum(busy)}

    def user_counts(self) -> dict[str, float]:
        """What the simulated users counted since the start, over all workers and those that died; empty where users count nothing."""
        calls = [worker.user_counts.remote() for worker in self._workers]
        self._user_counts = ray.get(calls, timeout=self._engine_config.load_timeout_s)
        return summed([*self._user_counts, self._counts_of_the_dead])

    def close(self) -> None:
        """Ends the workers, and Ray if this pool started it."""
        if ray.is_initialized():
            for worker in getattr(self, "_workers", []):
                ray.kill(worker)
            if self._started_ray:
                ray.shutdown()
        self._workers = []
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _new_worker(self) -> Any:
        threads = str(self._config.threads_per_engine)
        # Workers of a cluster that was there before do not look where this process found the project.
        path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        remote = ray.remote(RolloutWorker).options(
            num_cpus=self._config.threads_per_engine,
            num_gpus=self._cluster.gpus_per_engine,
            runtime_env={"env_vars": {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(path)}},
        )
        return remote.remote(self._config, self._engine_config, **self._build)

    def _await_start(self, ref: Any) -> tuple[str, Receipt | None]:
        timeout_s = self._engine_config.start_timeout_s
        try:
            return ray.get(ref, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise RuntimeError(f"a rollout worker must start within policy.start_timeout_s, got nothing in {timeout_s:g} s") from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayActorError as error:
            raise RuntimeError(f"a rollout worker must survive its start, got {error}") from error

    def _dispatch(self, job: _Job) -> None:
        job.ref = self._workers[job.worker].roll_out.remote([PlainTask.of(task) for task in job.tasks], job.conduct)

    def _collect(self, job: _Job, *, others: list[_Job]) -> None:
        try:
            job.groups = ray.get(job.ref)
        except (ray.exceptions.RayActorError, EngineError) as error:
            self._restart(job.worker, error)
            unfinished = {id(other): other for other in [*others, *(other for other, _ in self._tickets)]}
            for other in unfinished.values():
                if other.worker == job.worker and other.groups is None:
                    self._dispatch(other)

    def _receipt(self, worker: int, ref: Any) -> Receipt:
        try:
            return ray.get(ref, timeout=self._engine_config.load_timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise RuntimeError(f"engine {worker} must take new weights within policy.load_timeout_s, got no answer") from error
        except (ray.exceptions.RayActorError, EngineError) as error:
            receipt = self._restart(worker, error)
            assert receipt is not None, "a worker that starts with weights acknowledges them"
            return receipt

    def _restart(self, worker: int, error: Exception) -> Receipt | None:
        """A fresh worker in place of a dead one, with the newest weights; its tasks are for the caller to dispatch again."""
        self._totals["num_restarts"] += 1
        if self._totals["num_restarts"] > MAX_RESTARTS:
            raise RuntimeError(f"rollout workers must not die more than {MAX_RESTARTS} times, got one more: {error}") from error
        log.warning("rollout worker %d died (%s): starting it again", worker, str(error).splitlines()[0])
        # What it counted since it was last asked is lost.
        self._counts_of_the_dead = summed([self._counts_of_the_dead, self._user_counts[worker]])
        self._user_counts[worker] = {}
        ray.kill(self._workers[worker])
        self._workers[worker] = self._new_worker()
        return self._await_start(self._workers[worker].start.remote(self._weights))[1]

    def _count(self, groups: Sequence[RolloutGroup]) -> None:
        now = time.perf_counter()
        self._rollout_s += now - self._busy_since
        self._busy_since = now
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            failed = rollout.dialogue.outcome is Outcome.ERROR
            by_engine = failed and EngineError.__name__ in rollout.dialogue.error
            self._totals["num_dialogues"] += 1
            self._totals["num_replies"] += rollout.dialogue.num_replies
            self._totals["num_tokens"] += rollout.num_sampled
            self._totals["num_engine_errors"] += by_engine
            self._totals["num_simulator_errors"] += failed and not by_engine


def summed(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum by name."""
    total: dict[str, float] = {}
    for part in counts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def check_pool(config: RolloutConfig, engine_config: EngineConfig, cluster: ClusterConfig, model_folder: str | Path) -> None:
    """Refuses what cannot work before anything is started.

    Raises:
        ValueError: no model there, vLLM asked for and not installed, or too little free memory on this machine.
    """
    check_engine(engine_config, model_folder, max_context=config.max_context)
    if cluster.address:
        return
    weights_mb = sum(path.stat().st_size for path in Path(model_folder).glob("*.safetensors")) >> 20
    needed_mb = config.num_engines * (ENGINE_MB + engine_config.kv_cache_mb + 2 * weights_mb)
    free_mb = psutil.virtual_memory().available >> 20
    if cluster.gpus_per_engine == 0 and needed_mb > free_mb:
        raise ValueError(
            f"rollout.num_engines must fit into memory with policy.kv_cache_mb of cache each ({needed_mb} MiB, {free_mb} MiB free), "
            f"got {config.num_engines!r}; lower one of them"
        )


def _start_ray(config: RolloutConfig, cluster: ClusterConfig, folder: Path) -> bool:
    """Connects to Ray, unless this process already is; returns whether it did."""
    if ray.is_initialized():
        return False
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    spans_machines = bool(cluster.address) and not is_localhost(cluster.address.rpartition(":")[0])
    # Otherwise Ray turns a loopback address given to it into that of the network interface, and listens there.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = str(int(spans_machines))
    ray_constants.ENABLE_RAY_CLUSTER = spans_machines
    if cluster.address:
        try:
            ray.init(address=cluster.address, **quiet)
        except ConnectionError as error:
            remedy = "a cluster that asks for a token needs RAY_AUTH_MODE=token"
            raise ValueError(f"cluster.address must be that of a running Ray cluster, got {cluster.address!r}; {remedy}") from error
        return True
    ray.init(
        address="local",
        num_cpus=max(os.cpu_count() or 1, config.num_engines * config.threads_per_engine),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        # Ray opens its folder to everyone; the one around it stays closed.
        _temp_dir=str(folder / "ray"),
        **quiet,
    )
    if not is_localhost(address := ray.util.get_node_ip_address()):
        ray.shutdown()
        raise RuntimeError(f"a local Ray must listen on loopback only, got {address!r}")
    return True
