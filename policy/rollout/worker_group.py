"""The workers of a pool as Ray actors that are asked, watched and restarted.

Ray's own max_restarts does not serve here: it would bring a worker back with the weights of the model folder, and cannot see a hang.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from policy.config import ClusterConfig, EngineConfig, RolloutConfig
from policy.engine.engine import EngineError
from policy.engine.weights import PackedWeights, WeightAck, WeightPieces, WeightUpdate
from policy.rollout.session import reason_of, runtime_env
from policy.rollout.worker import RolloutWorker

log = logging.getLogger(__name__)

LOST = (
    *(ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError),
    EngineError,
)
"""How a call ends whose worker, or the machine under it, is gone, or whose engine is broken."""


@dataclass(frozen=True)
class StoredPiece:
    """A piece of new weights in Ray's object store."""

    ref: Any

    def get(self) -> PackedWeights:
        """On the machine that asks, where it is fetched once."""
        return ray.get(self.ref)


def put(weights: WeightUpdate) -> Any:
    """A reference to weights in Ray's object store; RuntimeError where it is full."""
    try:
        return ray.put(weights)
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        remedy = "free its disk or raise cluster.object_store_mb"
        raise RuntimeError(f"Ray's object store must have room for the weights, got {reason_of(error)}; {remedy}") from error


class WorkerLostError(RuntimeError):
    """A call will not be answered: its worker died, or its engine broke."""


class WorkerGroup:
    """The workers of a pool. A restarted worker gets the newest weights before it does anything.

    Args:
        build: arguments of a worker besides its settings.
        on_restart: called with a worker's number once it is restarted, with all of its calls gone.

    Raises:
        ValueError, RuntimeError: an engine did not start.
    """

    def __init__(
        self,
        config: RolloutConfig,
        engine_config: EngineConfig,
        cluster: ClusterConfig,
        *,
        build: Mapping[str, Any],
        on_restart: Callable[[int], None],
    ) -> None:
        self._config, self._engine_config, self._cluster = config, engine_config, cluster
        self._build, self._on_restart = build, on_restart
        self._latest_weights: Any = None
        self._heartbeats: dict[int, tuple[Any, float]] = {}
        """By worker, a call under way and when it was sent."""
        self._restarts: list[deque[float]] = [deque() for _ in range(config.num_engines)]
        self._counts: list[Counter[str]] = [Counter() for _ in range(config.num_engines)]
        """The latest that each worker counted since its start."""
        self._lost_counts: Counter[str] = Counter()
        """Of workers that were lost; a worker's counts after its latest answer are lost with it."""
        self.num_restarts = 0
        self.workers = [self._create() for _ in range(config.num_engines)]
        """The actors, by number."""
        try:
            # vLLM sizes its cache by the card's free memory before and after a trial, and counts another process's allocations in between
            # as its own: engines that fill a share of the same GPU start one after another.
            if 0 < cluster.gpus_per_engine < 1 and engine_config.gpu_memory_share:
                names = [self._await_start(worker.start.remote()) for worker in self.workers]
            else:
                names = [self._await_start(ref) for ref in [worker.start.remote() for worker in self.workers]]
        except BaseException as error:
            self.close()
            if isinstance(error, WorkerLostError):
                raise RuntimeError(f"a rollout worker must survive its start, got {error}") from error
            raise
        self.engine_name = names[0]

    def wait(self, owners: Mapping[Any, int]) -> list[Any]:
        """Waits until one of these calls, given with their workers, is done; none where a worker hung and was restarted instead."""
        while True:
            done, _ = ray.wait(list(owners), num_returns=1, timeout=min(self._config.hang_timeout_s / 4, 5.0))
            if done:
                return done
            for worker in sorted(set(owners.values())):
                if (silent_s := self._silent_s(worker)) > self._config.hang_timeout_s:
                    self.restart(worker, f"it hung, without a sign of life for {silent_s:.0f} s (rollout.hang_timeout_s)")
                    return []

    def result(self, ref: Any, *, timeout_s: float | None = None) -> Any:
        """The result of a call. Raises WorkerLostError where its worker is gone, and GetTimeoutError."""
        try:
            return ray.get(ref, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise
        except LOST as error:
            raise WorkerLostError(reason_of(error)) from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise RuntimeError(f"Ray must bring back the workers' results, got {type(error).__name__}: {reason_of(error)}") from error

    def cancel(self, ref: Any) -> None:
        ray.cancel(ref)

    def restart(self, worker: int, why: str) -> None:
        """Puts a fresh worker in place of one that is lost. Raises RuntimeError where that happened too often or its engine refuses."""
        # `max_restarts` within `restart_window_s`: a run outlives a fault now and then.
        most, window_s, taken = self._config.max_restarts, self._config.restart_window_s, self._restarts[worker]
        while True:
            now = time.monotonic()
            while taken and now - taken[0] > window_s:
                taken.popleft()
            if len(taken) >= most:
                allowed = f"rollout.max_restarts={most} times in rollout.restart_window_s={window_s:g} s"
                raise RuntimeError(f"rollout worker {worker} must not die or hang more than {allowed}, got one more: {why}")
            taken.append(now)
            log.warning("rollout worker %d is restarted: %s", worker, why)
            self._lost_counts.update(self._counts[worker])
            self._counts[worker] = Counter()
            self._heartbeats.pop(worker, None)
            ray.kill(self.workers[worker])
            self.workers[worker] = self._create()
            self.num_restarts += 1
            try:
                self._await_start(self.workers[worker].start.remote(self._latest_weights))
            except WorkerLostError as error:
                why = str(error)
            except ValueError as error:  # at the first start the settings are at fault, now the state of the machine
                raise RuntimeError(f"rollout worker {worker} must restart after it was lost ({why}), got {reason_of(error)}") from error
            else:
                break
        self._on_restart(worker)

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Every worker's answer; a lost worker is restarted and asked again."""
        refs = [getattr(worker, method).remote(*arguments) for worker in self.workers]
        answers = []
        for worker, ref in enumerate(refs):
            while True:
                if self.wait({ref: worker}):
                    try:
                        answers.append(self.result(ref))
                        break
                    except WorkerLostError as error:
                        self.restart(worker, str(error))
                ref = getattr(self.workers[worker], method).remote(*arguments)
        return answers

    def load_weights(self, weights: WeightUpdate) -> list[WeightAck]:
        """Every engine's acknowledgement of new weights, which restarted workers get from now on."""
        self._latest_weights = None  # the old ones free their room first
        self._latest_weights = weights if isinstance(weights, WeightPieces) else put(weights)
        return self.ask("load_weights", self._latest_weights)

    def store(self, weights: PackedWeights) -> StoredPiece:
        """A piece of new weights, which engines fetch when they come to it."""
        self._latest_weights = None
        return StoredPiece(put(weights))

    def counts(self, *, timeout_s: float | None = None) -> dict[str, float]:
        """The workers' counts by name, over all of them and those that were lost.

        With `timeout_s` it restarts no worker and raises RuntimeError where one does not answer in time; None asks until all have.
        """
        if timeout_s is None:
            answers = self.ask("counts")
        else:
            try:
                answers = self.result([worker.counts.remote() for worker in self.workers], timeout_s=timeout_s)
            except ray.exceptions.GetTimeoutError as error:
                raise RuntimeError(f"all rollout workers must answer within {timeout_s:g} s") from error
        self._counts = [Counter(counts) for counts in answers]
        total = Counter(self._lost_counts)
        for counts in self._counts:
            total.update(counts)  # a sum of Counters would drop those that are 0
        return dict(total)

    def close(self) -> None:
        for worker in self.workers if ray.is_initialized() else ():
            ray.kill(worker)
        self.workers = []

    def _create(self) -> Any:
        remote = ray.remote(RolloutWorker).options(
            num_cpus=self._config.threads_per_engine,
            num_gpus=self._cluster.gpus_per_engine,
            scheduling_strategy="SPREAD",
            max_concurrency=100_000,  # with Ray's 1000 the groups of a long evaluation would keep a worker from answering a heartbeat
            runtime_env=runtime_env(self._cluster, num_threads=self._config.threads_per_engine),
        )
        return remote.remote(self._config, self._engine_config, **self._build)

    def _await_start(self, ref: Any) -> str:
        """The engine's name."""
        timeout_s = self._engine_config.start_timeout_s
        try:
            return self.result(ref, timeout_s=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            needs = f"it needs {self._config.threads_per_engine} free CPUs and {self._cluster.gpus_per_engine:g} GPUs on one machine"
            raise RuntimeError(f"a rollout worker must start within policy.start_timeout_s={timeout_s:g} s; {needs}") from error

    def _silent_s(self, worker: int) -> float:
        """Seconds since the worker's engine, or its process, last made progress with its work."""
        if worker not in self._heartbeats:
            self._heartbeats[worker] = (self.workers[worker].heartbeat.remote(), time.monotonic())
            return 0.0
        ref, sent_at = self._heartbeats[worker]
        if not ray.wait([ref], timeout=0)[0]:
            return time.monotonic() - sent_at
        del self._heartbeats[worker]
        try:
            return ray.get(ref)
        except LOST:
            return 0.0  # its other calls report the loss
