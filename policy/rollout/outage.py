"""A simulated user that is away for a while: the dialogues pause, instead of breaking one after the other."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from simulator.dialogue import Dialogue
from simulator.llm.client import SimulatorAwayError
from simulator.scenario import Difficulty, Scenario
from simulator.user import Reaction, UserSimulator

T = TypeVar("T")

AWAY = (ConnectionError, TimeoutError, socket.gaierror, SimulatorAwayError)
"""How a user fails that is not there: refused connections, calls without an answer. Whatever else it raises is about the dialogue."""
NO_WAY_THERE = (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH)
"""The same of the network, for which Python has no exceptions of their own."""
PAUSED = "paused_s"
"""Under which a worker counts the seconds of all outages that are over."""
MOST_AGAIN = 3
"""How often one question is asked again though others were answered since: as many outages as it can sit through."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
"""Between two probes; doubled by each that fails."""
ALONE_S = 8.0
"""How long a question that failed while others were answered is asked further where nobody else asks; then it is taken to be at fault."""


def is_away(error: Exception) -> bool:
    """Whether a user that failed so is not there; a file that is missing or locked is no outage."""
    return isinstance(error, AWAY) or (isinstance(error, OSError) and error.errno in NO_WAY_THERE)


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
        self._pause_s = FIRST_PAUSE_S
        self.next_probe_at = 0.0
        """During an outage, when somebody asks again."""
        self.paused_s = 0.0
        """Length of all outages that are over."""
        self.num_failing = 0
        """Questions that failed and were not answered yet."""

    @property
    def is_on(self) -> bool:
        """Whether the last that was heard of the user is that it answers nobody."""
        return self._since is not None

    def answered(self) -> None:
        """Somebody was: the outage is over, if there was one."""
        self._answered_at = self._clock()
        if self._since is not None:
            self.paused_s += self._answered_at - self._since
        self._since, self._pause_s = None, FIRST_PAUSE_S

    def answered_since(self, asked_s: float) -> bool:
        """Whether anybody was answered after that."""
        return self._answered_at > asked_s

    def failed(self, first_asked_s: float) -> bool:
        """Somebody was not; whether that is worth waiting for.

        Args:
            first_asked_s: when the same question was asked first. Where others were answered since, the failure is about the question.
        """
        if self.answered_since(first_asked_s):
            return False
        now = self._clock()
        if self._since is None:
            self._since, self.next_probe_at = first_asked_s, now + self._pause_s
        return now - self._since < self._longest_s

    def was_none(self) -> None:
        """What failed was about one question: there is nothing for others to wait for."""
        self._since, self._pause_s = None, FIRST_PAUSE_S

    async def turn(self) -> None:
        """Waits until this caller may ask: at once, unless there is an outage; then as its next probe, or when it is over or counts."""
        if self._since is None:
            return
        # In line, so that a question which fails for reasons of its own lets the others try before it is asked again.
        async with self._line:
            if self._since is None:
                return
            left_s = self._since + self._longest_s - self._clock()
            wait_s = min(self.next_probe_at - self._clock(), left_s)
            if wait_s > 0:
                await self._sleep(wait_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            self.next_probe_at = self._clock() + self._pause_s


class PatientUser:
    """The user, whose outages are waited out: a question that found it away is asked again, and the dialogue goes on where it stood.

    Args:
        limit: of the dialogue's time, which stands still during an outage: each probe has all of it, and what follows has what was
            left when the question was asked first.
    """

    def __init__(
        self, user: UserSimulator, outage: Outage, *, limit: asyncio.Timeout | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._user, self._outage, self._limit, self._clock = user, outage, limit, clock
        self._whole_s = self._left_s()

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
        left_s, has_waited, has_failed, was_alone, num_again = self._left_s(), False, False, False, 0
        try:
            while True:
                if asks and self._outage.is_on:
                    has_waited = True
                    self._allow(None)
                    await self._outage.turn()
                    # No more than that, because a user may hang without an error.
                    self._allow(self._whole_s)
                first_asked_s = self._clock() if first_asked_s is None else first_asked_s
                try:
                    answer = await ask()
                except (OSError, SimulatorAwayError) as error:
                    asks = True
                    if not is_away(error):
                        raise
                    self._outage.num_failing += not has_failed
                    has_failed, is_alone = True, self._outage.num_failing < 2
                    if self._outage.answered_since(first_asked_s) and num_again < MOST_AGAIN and not (was_alone and is_alone):
                        # Others were answered while this one was asked: it is about this question, or the user went away just now. One
                        # more call tells, if then nobody is answered and others fail as well.
                        first_asked_s, num_again, was_alone = None, num_again + 1, False
                    elif not self._outage.failed(first_asked_s):
                        raise
                    elif num_again and is_alone:
                        # Either still, for nobody else asks. Whoever does will tell.
                        was_alone = True
                        if self._outage.next_probe_at > first_asked_s + ALONE_S:
                            self._outage.was_none()
                            raise
                else:
                    if asks:
                        self._outage.answered()
                    return answer
        finally:
            self._outage.num_failing -= has_failed
            if has_waited:
                self._allow(left_s)

    def _left_s(self) -> float | None:
        """Seconds until the dialogue's limit; None without one."""
        until = None if self._limit is None else self._limit.when()
        return None if until is None else until - asyncio.get_running_loop().time()

    def _allow(self, seconds: float | None) -> None:
        """Lets the dialogue take so many seconds from now; None for as many as it likes."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)
