"""A simulated user that is away for a while: the dialogues pause, instead of breaking one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from simulator.dialogue import Dialogue
from simulator.difficulty import Difficulty
from simulator.endpoints import SimulatorAwayError
from simulator.scenario import Scenario
from simulator.user import Reaction, UserSimulator

T = TypeVar("T")

AWAY = (OSError, SimulatorAwayError)
"""How a user fails that is not there: refused connections, calls without an answer. Whatever else it raises is about the dialogue."""
PAUSED = "paused_s"
"""Under which a worker counts the seconds of all outages that are over."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
"""Between two probes; doubled by each that fails."""


class Outage:
    """Since when nobody has been answered, and when to ask again: one probe at a time, while everyone else waits.

    Args:
        longest_s: after so many seconds an outage counts, and is no longer waited for.
    """

    def __init__(
        self,
        longest_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._longest_s, self._clock, self._sleep = longest_s, clock, sleep
        self._line = asyncio.Lock()
        self._since: float | None = None
        self._answered_at = clock()
        self._next_probe_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self.paused_s = 0.0
        """Length of all outages that are over."""

    def answered(self) -> None:
        """Somebody was: the outage is over, if there was one."""
        self._answered_at = self._clock()
        if self._since is not None:
            self.paused_s += self._answered_at - self._since
        self._since, self._pause_s = None, FIRST_PAUSE_S

    def failed(self, first_asked_s: float) -> bool:
        """Somebody was not; whether that is worth waiting for.

        Args:
            first_asked_s: when the same question was asked first. Where others were answered since, the failure is about the question.
        """
        if self._answered_at > first_asked_s:
            return False
        now = self._clock()
        if self._since is None:
            self._since, self._next_probe_at = first_asked_s, now + self._pause_s
        return now - self._since < self._longest_s

    async def turn(self) -> None:
        """Waits until this caller may ask: at once, unless there is an outage; then as its next probe, or when it is over or counts."""
        if self._since is None:
            return
        # In line, so that a question which fails for reasons of its own lets the others try before it is asked again.
        async with self._line:
            if self._since is None:
                return
            left_s = self._since + self._longest_s - self._clock()
            wait_s = min(self._next_probe_at - self._clock(), left_s)
            if wait_s > 0:
                await self._sleep(wait_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            self._next_probe_at = self._clock() + self._pause_s


class PatientUser:
    """The user, whose outages are waited out: a question that found it away is asked again, and the dialogue goes on where it stood."""

    def __init__(self, user: UserSimulator, outage: Outage, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._user, self._outage, self._clock = user, outage, clock

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue that holds the user's opening turn."""
        # Most openings are written already: that one succeeds does not say that anybody is there.
        return await self._insist(lambda: self._user.open(scenario, difficulty, seed=seed), asks=False)

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer to `reply`."""
        return await self._insist(lambda: self._user.react(dialogue, reply), asks=True)

    async def _insist(self, ask: Callable[[], Awaitable[T]], *, asks: bool) -> T:
        """The answer, however long it takes, if it is an outage that it takes so long.

        Args:
            asks: whether somebody has to be there for an answer; what failed before shows that.
        """
        first_asked_s: float | None = None
        while True:
            if asks:
                await self._outage.turn()
            first_asked_s = self._clock() if first_asked_s is None else first_asked_s
            try:
                answer = await ask()
            except AWAY:
                asks = True
                if not self._outage.failed(first_asked_s):
                    raise
            else:
                if asks:
                    self._outage.answered()
                return answer
