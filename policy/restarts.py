"""How often a worker may be started anew, and what is left of those that died."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence


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
