"""A simulated user that is away for a while: its dialogues pause, instead of breaking one after the other."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from simulator.dialogue import Dialogue, Reaction, UserSimulator
from simulator.llm.client import SimulatorAwayError
from simulator.scenario import Difficulty, Scenario

T = TypeVar("T")


class Outage:
    """Since when no question was answered, and when to ask again: one probe at a time; after `longest_s` it counts as a failure."""

    FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
    """Between two probes; doubled by each that fails."""

    def __init__(
        self,
        longest_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.clock, self._sleep, self._longest_s = clock, sleep, longest_s
        self._queue = asyncio.Lock()
        self._since: float | None = None
        self._pause_s = self.FIRST_PAUSE_S
        self.answered_at = clock()
        """When a question was last answered."""
        self.next_probe_at = 0.0
        """During an outage, when the next question goes out."""
        self.paused_s = 0.0
        """Length of all outages that are over."""
        self.num_failing = 0
        """Questions that failed and were not answered yet."""

    @property
    def is_on(self) -> bool:
        """Whether the user is taken to be away."""
        return self._since is not None

    def answered(self) -> None:
        """A question was answered: the outage is over, if there was one."""
        self.answered_at = self.clock()
        if self._since is not None:
            self.paused_s += self.answered_at - self._since
        self.dismiss()

    def dismiss(self) -> None:
        """There is no outage: the failure was about one question."""
        self._since, self._pause_s = None, self.FIRST_PAUSE_S

    def failed(self, first_asked_at: float) -> bool:
        """A question was not answered; returns whether that is worth waiting for: not where others were since it was asked first."""
        if self.answered_at > first_asked_at:
            return False
        now = self.clock()
        if self._since is None:
            self._since, self.next_probe_at = first_asked_at, now + self._pause_s
        return now - self._since < self._longest_s

    async def turn(self) -> None:
        """Waits until the caller may ask: at once, unless there is an outage; then as its next probe, or when it is over or counts."""
        # In a queue, so that a question which is at fault itself lets the others try before it is repeated.
        async with self._queue:
            if self._since is None:
                return
            wait_s = min(self.next_probe_at, self._since + self._longest_s) - self.clock()
            if wait_s > 0:
                await self._sleep(wait_s)
            self._pause_s = min(2 * self._pause_s, self.LONGEST_PAUSE_S)
            self.next_probe_at = self.clock() + self._pause_s


class PatientUser:
    """The user, whose outages are waited out: a question that found it away is repeated, and the dialogue goes on from there.

    The limit of the dialogue's time stops during an outage: each probe has all of it, and afterwards the dialogue has what was left.
    """

    MAX_REPEATS = 3
    """How often a question is repeated although others were answered since: as many outages as it can wait out."""
    ALONE_S = 8.0
    """How long a question that failed while others were answered is repeated where no other is asked; then it is taken to be at fault."""

    def __init__(self, user: UserSimulator, outage: Outage, *, limit: asyncio.Timeout | None = None) -> None:
        self._user, self._outage, self._limit = user, outage, limit
        self._whole_s = self._left_s()

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        # Most openings are written already: the success of one is no sign that the user is there.
        return await self._insist(lambda: self._user.open(scenario, difficulty, seed=seed), needs_user=False)

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        return await self._insist(lambda: self._user.react(dialogue, reply), needs_user=True)

    async def _insist(self, ask: Callable[[], Awaitable[T]], *, needs_user: bool) -> T:
        """The answer, repeated through outages. A failure shows that the user has to be there (`needs_user`)."""
        outage, left_s = self._outage, self._left_s()
        first_asked_at: float | None = None
        has_waited, has_failed, was_alone, num_repeats = False, False, False, 0
        try:
            while True:
                if needs_user and outage.is_on:
                    has_waited = True
                    self._allow(None)
                    await outage.turn()
                    self._allow(self._whole_s)  # no more than that: a user may hang without an error
                first_asked_at = outage.clock() if first_asked_at is None else first_asked_at
                try:
                    answer = await ask()
                except (OSError, SimulatorAwayError) as error:
                    needs_user = True
                    # Refused connections, calls without an answer, a network that is down; every other error is about the dialogue.
                    is_away = isinstance(error, (ConnectionError, TimeoutError, socket.gaierror, SimulatorAwayError))
                    unreachable = (errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH)
                    if not is_away and getattr(error, "errno", None) not in unreachable:
                        raise
                    outage.num_failing += not has_failed
                    has_failed, is_alone = True, outage.num_failing < 2
                    if outage.answered_at > first_asked_at and num_repeats < self.MAX_REPEATS and not (was_alone and is_alone):
                        # Others were answered meanwhile: either this question is at fault, or the user went away just now. One more call
                        # decides, if then no question is answered and others fail as well.
                        first_asked_at, num_repeats, was_alone = None, num_repeats + 1, False
                    elif not outage.failed(first_asked_at):
                        raise
                    elif num_repeats and is_alone:
                        # Undecided still, for no other question is asked. The next one will decide.
                        was_alone = True
                        if outage.next_probe_at > first_asked_at + self.ALONE_S:
                            outage.dismiss()
                            raise
                else:
                    if needs_user:
                        outage.answered()
                    return answer
        finally:
            outage.num_failing -= has_failed
            if has_waited:
                self._allow(left_s)

    def _left_s(self) -> float | None:
        """Seconds until the dialogue's limit; None without one."""
        until = None if self._limit is None else self._limit.when()
        return None if until is None else until - asyncio.get_running_loop().time()

    def _allow(self, seconds: float | None) -> None:
        """Sets the dialogue's limit to so many seconds from now; None for no limit."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)
