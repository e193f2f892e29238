"""A learner on several devices of one machine: the first rank here, the others in Ray actors that do what this one does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from policy.batch import Batch
from policy.config import ClusterConfig, LearnerConfig
from policy.files import OwnFolder
from policy.learner import Learner
from policy.ranks import Ranks
from policy.rollout.session import runtime_env

START_S = 300
"""Seconds within which the processes of all ranks must be there."""
BuildLearner = Callable[[LearnerConfig, Ranks], Learner]
"""A learner that is the same on all ranks, but for its device."""


def config_of_rank(config: LearnerConfig, rank: int) -> LearnerConfig:
    """Settings of one rank: GPUs are taken in order from `device` on."""
    from dataclasses import replace

    from policy.engine.factory import gpu_number

    if config.device == "cpu" or not rank:
        return config
    return replace(config, device=f"cuda:{gpu_number(config.device) + rank}")


class FollowingRank:
    """A rank in its own process; a Ray actor."""

    def __init__(self, build: BuildLearner, config: LearnerConfig, rank: int, meeting: Path) -> None:
        self._build, self._config, self._rank, self._meeting = build, config, rank, meeting

    def start(self, num_threads: int) -> None:
        """Meets the others and builds the learner."""
        torch.set_num_threads(num_threads)
        own = config_of_rank(self._config, self._rank)
        ranks = Ranks.join(self._rank, own.ranks, self._meeting, device=own.device, sharded=own.sharded)
        self._learner = self._build(own, ranks)

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def follow(self, method: str, *arguments: Any, **settings: Any) -> None:
        """Calls a method of the learner, whose result is the first rank's, too."""
        found = getattr(self._learner, method)(*arguments, **settings)
        for _ in found if isinstance(found, Iterator) else ():
            pass


class LearnerGroup:
    """Learns as one `Learner` does, with `learner.ranks` of them. What it does not have is the first rank's.

    A run is saved, measured and sent to engines from the first rank, where parts of a sharded model become whole one by one. Ray must run.

    Raises:
        ValueError: the learner cannot be built with these settings.
        RuntimeError: a rank did not start, or was lost in an update; a run can be resumed from its newest checkpoint.
    """

    def __init__(self, build: BuildLearner, config: LearnerConfig, cluster: ClusterConfig) -> None:
        self._folder = OwnFolder("attune-ranks-")
        self._why_lost: list[str] = []
        meeting, size = Path(self._folder.name) / "meeting", config.ranks
        self._threads_before = torch.get_num_threads()
        num_threads = max(1, self._threads_before // size) if config.device == "cpu" else self._threads_before
        environment = runtime_env(cluster, num_threads=num_threads)
        # On this machine, whatever its engines take: cores are shared in turn, and GPUs are those of `learner.device`.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(FollowingRank).options(num_cpus=0, scheduling_strategy=here, runtime_env=environment)
        self._followers = [actor.remote(build, config, rank, meeting) for rank in range(1, size)]
        self._watcher: threading.Thread | None = None
        try:
            # One that cannot even begin would be waited for at the meeting.
            ray.get([follower.pid.remote() for follower in self._followers], timeout=START_S)
            with self._together("start", num_threads):
                torch.set_num_threads(num_threads)
                self._ranks = Ranks.join(0, size, meeting, device=config.device, sharded=config.sharded)
                self.learner = build(config, self._ranks)
        except ray.exceptions.RayError as error:
            self.close()
            reason = str(error).strip().partition("\n")[0]
            raise RuntimeError(f"all processes of learner.ranks={size} must start within {START_S} s, got {reason}") from error
        except BaseException:
            self.close()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["learner"], name)

    def prepare(self, batch: Batch) -> Batch:
        with self._together("prepare", batch):
            return self.learner.prepare(batch)

    def update(self, batch: Batch, *, budget_fraction: float = 0.0) -> dict[str, float]:
        with self._together("update", batch, budget_fraction=budget_fraction):
            return self.learner.update(batch, budget_fraction=budget_fraction)

    def score(self, token_ids: Sequence[int]) -> list[float]:
        with self._together("score", token_ids):
            return self.learner.score(token_ids)

    def live_weights(self) -> Iterator[tuple[str, Tensor]]:
        with self._together("live_weights"):
            yield from self.learner.live_weights()

    def weights(self) -> list[tuple[str, Tensor]]:
        return [(name, parameter.to("cpu", copy=True)) for name, parameter in self.live_weights()]

    def model_state(self) -> dict[str, Tensor] | None:
        with self._together("model_state", keep=False):
            return self.learner.model_state()

    def state_dict(self) -> dict[str, Any]:
        with self._together("state_dict", keep=False):
            return self.learner.state_dict()

    def give_back_memory(self) -> None:
        with self._together("give_back_memory"):
            self.learner.give_back_memory()

    def close(self) -> None:
        """Ends the other ranks' processes."""
        for follower in self._followers if ray.is_initialized() else ():
            ray.kill(follower)
        if self._watcher is not None:  # it may not ask a Ray that has ended
            self._watcher.join(timeout=10.0)
        if "_ranks" in self.__dict__:
            self._ranks.leave()
        torch.set_num_threads(self._threads_before)
        self._folder.cleanup()

    @contextmanager
    def _together(self, method: str, *arguments: Any, **settings: Any) -> Iterator[None]:
        """While entered, the other ranks do the same as this one. Where one fails all are ended, since they would wait for it for ever."""
        name = "start" if method == "start" else "follow"
        words = arguments if method == "start" else (method, *map(ray.put, arguments))
        calls = [getattr(follower, name).remote(*words, **settings) for follower in self._followers]
        self._watcher = watch = threading.Thread(target=self._watch, args=(calls,), daemon=True)
        watch.start()
        try:
            yield
        except ValueError:
            raise  # all ranks have the same settings
        except Exception as error:
            watch.join(timeout=10.0)
            if self._why_lost:
                raise RuntimeError(self._why_lost[0]) from error
            raise
        watch.join()
        if self._why_lost:
            raise RuntimeError(self._why_lost[0])

    def _watch(self, calls: list[Any]) -> None:
        """Waits until all calls are done; at the first that fails it ends all ranks."""
        done, waiting = list[Any](), list(calls)
        while waiting and not self._failures(calls, done):
            new, waiting = ray.wait(waiting, num_returns=1)
            done += new
        if self._failures(calls, done):
            # Those that wait for a lost rank fail, too, and may be heard of first.
            ray.wait(calls, num_returns=len(calls), timeout=5.0)
            reasons = self._failures(calls, [call for call in calls if ray.wait([call], timeout=0)[0]])
            self._why_lost += sorted(reasons, key=lambda reason: "was lost" not in reason)
            for follower in self._followers:
                ray.kill(follower)

    def _failures(self, calls: list[Any], done: list[Any]) -> list[str]:
        """Why these calls failed, those that did."""
        found = list[str]()
        for call in done:
            try:
                ray.get(call)
            except ray.exceptions.RayError as error:
                cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
                reason, rank = str(cause).strip().partition("\n")[0], calls.index(call) + 1
                if isinstance(cause, ray.exceptions.RayError):
                    reason = f"rank {rank} of learner.ranks={len(calls) + 1} was lost: {reason}; resume from the newest checkpoint"
                found.append(reason)
        return found
