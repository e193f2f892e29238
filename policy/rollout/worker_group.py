"""How often a worker may be started anew, and what is left of those that died.

The workers of a pool as Ray actors: started, asked, watched, and started anew when they die or hang.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from policy.config import ClusterConfig, EngineConfig, RolloutConfig
from policy.engine.engine import Completion, EngineError, Request
from policy.engine.weights import PackedWeights, Receipt, Shipment, WeightFileError
from policy.rollout.dialogue import Conduct, PlainTask, RolloutGroup
from policy.rollout.worker import RolloutWorker


class RestartBudget:
    """Restarts of each worker within a sliding window: a run outlives a fault now and then, and no worker dies at every start for ever.

    Args:
        most: restarts of one worker in `window_s` seconds.
        clock: seconds, monotonic.
    """

    def __init__(self, *, most: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._window_s, self._clock = most, window_s, clock
        self._taken: dict[int, deque[float]] = {}

    def spend(self, worker: int, why: str) -> None:
        """Takes one of the worker's restarts.

        Args:
            why: it is started anew.

        Raises:
            RuntimeError: there is none left.
        """
        now = self._clock()
        taken = self._taken.setdefault(worker, deque())
        while taken and now - taken[0] > self._window_s:
            taken.popleft()
        if len(taken) >= self._most:
            allowed = f"rollout.max_restarts={self._most} times in rollout.restart_window_s={self._window_s:g} s"
            raise RuntimeError(f"rollout worker {worker} must not die or hang more than {allowed}, got one more: {why}")
        taken.append(now)


class LastingCounts:
    """The sum of what workers count, over those that died too; what one counted after it was last asked dies with it."""

    def __init__(self, num_workers: int) -> None:
        self._latest: list[Mapping[str, float]] = [{} for _ in range(num_workers)]
        self._of_the_dead: dict[str, float] = {}

    def observe(self, counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Takes in what each worker says now; returns the sums."""
        self._latest = list(counts)
        return summed([*self._latest, self._of_the_dead])

    def bury(self, worker: int) -> None:
        """A worker died: the next in its place counts from zero."""
        self._of_the_dead = summed([self._of_the_dead, self._latest[worker]])
        self._latest[worker] = {}


def summed(counts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The sum by name."""
    total: dict[str, float] = {}
    for part in counts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


log = logging.getLogger(__name__)

LONGEST_LOOK_S = 5.0
"""Seconds between two looks at whether workers are alive, at most."""
MOST_CALLS = 100_000
"""Under way at one worker; with Ray's 1000 the groups of a long evaluation would keep it from answering whether it is alive."""
LOST = (
    *(ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError),
    EngineError,
)
"""How a call ends whose worker, or the machine under it, is gone or good for nothing."""
NO_ROOM = (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError)


class WorkerLostError(RuntimeError):
    """A call will not be answered: its worker died, or its engine broke."""


@dataclass(frozen=True)
class _Pulse:
    """A question whether a worker is alive, on its way."""

    ref: Any
    sent_at: float


class Crew:
    """Who does the work of a pool. A worker in another's place gets the newest weights before it does anything.

    Args:
        build: what a worker is made from, beside its settings.
        on_restart: called with a worker's number once another is in its place, with all of its calls gone.

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
        self._newest: Callable[[], Any] = lambda: None
        self._pulses: dict[int, _Pulse] = {}
        self._budget = RestartBudget(most=config.max_restarts, window_s=config.restart_window_s)
        self._busy, self._users = LastingCounts(config.num_engines), LastingCounts(config.num_engines)
        self._look_every_s = min(config.hang_timeout_s / 4, LONGEST_LOOK_S)
        self.num_restarts = 0
        self._workers = [self._hire() for _ in range(config.num_engines)]
        try:
            self.engine_name, *_ = self._start_all()
        except WorkerLostError as error:
            self.close()
            raise RuntimeError(f"a rollout worker must survive its start, got {error}") from error
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def workers(self) -> Sequence[Any]:
        """The actors, by number."""
        return self._workers

    def roll_out(self, worker: int, tasks: Sequence[PlainTask], conduct: Conduct) -> Any:
        """Starts a call; its result is a list of groups."""
        return self._workers[worker].roll_out.remote(list(tasks), conduct)

    def wait(self, owners: Mapping[Any, int]) -> list[Any]:
        """Waits until one of these calls is done; returns those that are.

        None are where a worker hung and was started anew instead: all of its calls are gone.

        Args:
            owners: by call, the worker that does it.

        Raises:
            RuntimeError: a worker died or hung too often.
        """
        while True:
            done, _ = ray.wait(list(owners), num_returns=1, timeout=self._look_every_s)
            if done or self._restart_hung(set(owners.values())):
                return done

    def result(self, ref: Any) -> list[RolloutGroup]:
        """What a call that is done came to.

        Raises:
            WorkerLostError: nothing, its worker is gone.
            RuntimeError: the result did not get here.
        """
        try:
            return ray.get(ref)
        except LOST as error:
            raise WorkerLostError(_reason(error)) from error
        except NO_ROOM as error:
            raise _no_room("what workers send back", error) from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, WeightFileError):
                raise error.cause from None  # says all there is to say, on one line
            raise  # of our own making, and no fault of the world's
        except ray.exceptions.RayError as error:
            raise RuntimeError(f"Ray must bring back what workers did, got {type(error).__name__}: {_reason(error)}") from error

    def restart(self, worker: int, why: str) -> None:
        """Puts a fresh worker in place of one that is good for nothing.

        Raises:
            RuntimeError: that happened too often, there is nowhere to start one, or its engine refuses.
        """
        while True:
            self._budget.spend(worker, why)
            log.warning("rollout worker %d is started anew: %s", worker, why)
            for counts in (self._busy, self._users):
                counts.bury(worker)
            self._pulses.pop(worker, None)
            ray.kill(self._workers[worker])
            self._workers[worker] = self._hire()
            self.num_restarts += 1
            try:
                self._await_start(self._workers[worker].start.remote(self._newest()))
            except WorkerLostError as error:
                why = str(error)
            except ValueError as error:  # at the first start it is the settings', now what has become of the machine
                raise RuntimeError(f"rollout worker {worker} must start anew after it was lost ({why}), got {_reason(error)}") from error
            else:
                break
        self._on_restart(worker)

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """What every worker answers; one that cannot is started anew and asked again."""
        refs = [getattr(worker, method).remote(*arguments) for worker in self._workers]
        return [self._answer(worker, ref, method, *arguments) for worker, ref in enumerate(refs)]

    def generate_all(self, requests_by_worker: Sequence[Sequence[Request]]) -> list[list[Completion]]:
        """What each engine makes of requests of its own."""
        calls = zip(self._workers, requests_by_worker, strict=True)
        return ray.get([worker.generate_all.remote(list(requests)) for worker, requests in calls])

    def cancel(self, ref: Any) -> None:
        """Ends a call whose result nobody wants."""
        ray.cancel(ref)

    def ask_each(self, method: str, arguments_by_worker: Sequence[Sequence[Any]], *, timeout_s: float) -> list[Any]:
        """What every worker answers to a question of its own, all of them in time; nobody is started anew over it.

        Raises:
            RuntimeError: one of them did not answer in time, refused, or is gone.
        """
        calls = zip(self._workers, arguments_by_worker, strict=True)
        refs = [getattr(worker, method).remote(*arguments) for worker, arguments in calls]
        try:
            return ray.get(refs, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise RuntimeError(f"all rollout workers must answer {method} within policy.load_timeout_s={timeout_s:g} s") from error
        except LOST as error:
            raise WorkerLostError(_reason(error)) from error
        except ray.exceptions.RayTaskError as error:
            raise RuntimeError(_reason(error)) from error

    def load_weights(self, weights: Shipment) -> list[Receipt]:
        """Every engine's receipt for new weights, which those that start anew get from now on.

        Raises:
            ValueError: they are not those of the model.
            RuntimeError: they fit neither into Ray's object store nor on its disk, or an engine cannot read them.
        """
        self._newest = lambda: None  # so that the old ones are given up before the new ones need their room
        put = self._put(weights)
        self._newest = lambda: put
        try:
            return self.ask("load_weights", put)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ValueError):
                raise error.cause from error
            raise

    def give_newcomers(self, weights: Callable[[], Shipment]) -> None:
        """Says what a worker that starts anew is to hold, made when one does."""
        self._newest = lambda: self._put(weights())

    def own_address(self) -> str:
        """Of this process's machine, as the others reach it."""
        return ray.util.get_node_ip_address()

    def busy_s(self) -> float:
        """Seconds all engines have computed."""
        return self._busy.observe([{"busy_s": seconds} for seconds in self.ask("busy_s")])["busy_s"]

    def user_counts(self, *, timeout_s: float | None = None) -> dict[str, float]:
        """What the simulated users of all workers count.

        Args:
            timeout_s: give up then, and start nobody anew; None asks until all have answered.

        Raises:
            RuntimeError: somebody did not answer in time.
        """
        nothing = [()] * len(self)
        return self._users.observe(
            self.ask("user_counts") if timeout_s is None else self.ask_each("user_counts", nothing, timeout_s=timeout_s)
        )

    def close(self) -> None:
        """Ends the workers."""
        for worker in self._workers if ray.is_initialized() else ():
            ray.kill(worker)
        self._workers = []

    def _put(self, weights: Shipment) -> Any:
        try:
            return ray.put(weights)
        except NO_ROOM as error:
            size = f" of {weights.num_bytes >> 20} MiB" if isinstance(weights, PackedWeights) else ""
            raise _no_room(f"weights{size}", error) from error

    def _answer(self, worker: int, ref: Any, method: str, *arguments: Any) -> Any:
        while True:
            if self.wait({ref: worker}):
                try:
                    return self.result(ref)
                except WorkerLostError as error:
                    self.restart(worker, str(error))
            ref = getattr(self._workers[worker], method).remote(*arguments)

    def _hire(self) -> Any:
        threads = str(self._config.threads_per_engine)
        # Workers of a cluster that was there before do not look where this process found the project.
        path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment: dict[str, Any] = {
            "env_vars": {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(path)}
        }
        if not self._cluster.address:
            # Ray starts workers through bash and leaves this one word unquoted.
            environment["py_executable"] = shlex.quote(sys.executable)
        remote = ray.remote(RolloutWorker).options(
            num_cpus=self._config.threads_per_engine,
            num_gpus=self._cluster.gpus_per_engine,
            scheduling_strategy="SPREAD",
            max_concurrency=MOST_CALLS,
            runtime_env=environment,
        )
        return remote.remote(self._config, self._engine_config, **self._build)

    def _start_all(self) -> list[str]:
        """The engines' names.

        Engines that fill a share of the same GPU start one after another: vLLM sizes its cache by the card's free memory before and after a
        trial, and takes for its own what anybody else allocates in between.
        """
        if 0 < self._cluster.gpus_per_engine < 1 and self._engine_config.gpu_memory_share:
            return [self._await_start(worker.start.remote()) for worker in self._workers]
        return [self._await_start(ref) for ref in [worker.start.remote() for worker in self._workers]]

    def _await_start(self, ref: Any) -> str:
        """The engine's name."""
        timeout_s = self._engine_config.start_timeout_s
        try:
            return ray.get(ref, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            needs = f"it needs {self._config.threads_per_engine} free CPUs and {self._cluster.gpus_per_engine:g} GPUs on one machine"
            got = f"got nothing in {timeout_s:g} s; {needs}"
            raise RuntimeError(f"a rollout worker must start within policy.start_timeout_s, {got}") from error
        except LOST as error:
            raise WorkerLostError(_reason(error)) from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error

    def _restart_hung(self, workers: set[int]) -> bool:
        """Starts the first of these workers anew that hangs, if one does."""
        for worker in sorted(workers):
            if (silent_s := self._silent_s(worker)) > self._config.hang_timeout_s:
                self.restart(worker, f"it hung, without a sign of life for {silent_s:.0f} s (rollout.hang_timeout_s)")
                return True
        return False

    def _silent_s(self, worker: int) -> float:
        """Seconds since the worker's engine, or its process, last did something that it was asked to do."""
        pulse = self._pulses.get(worker)
        if pulse is None:
            self._pulses[worker] = _Pulse(self._workers[worker].pulse.remote(), time.monotonic())
            return 0.0
        if not ray.wait([pulse.ref], timeout=0)[0]:
            return time.monotonic() - pulse.sent_at
        del self._pulses[worker]
        try:
            return ray.get(pulse.ref)
        except LOST:
            return 0.0  # that it is gone, its calls say themselves


def _reason(error: Exception) -> str:
    """The first line of what went wrong, without the traceback that Ray puts before it."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    return str(cause).strip().partition("\n")[0] or type(cause).__name__


def _no_room(what: str, error: Exception) -> RuntimeError:
    remedy = "free its disk or raise cluster.object_store_mb"
    return RuntimeError(f"Ray's object store must have room for {what}, got {_reason(error)}; {remedy}")
