"""When to ask a server again, when to leave it alone, and when to give up."""

from __future__ import annotations

import email.utils
import math
import random
import time
from collections.abc import Callable

LONGEST_OPEN_FACTOR = 8
"""A circuit that fails its probes stays open up to so many times its first pause."""
FIRST_RETRIES = 10.0
"""Retries that a budget holds before any call has succeeded."""


def backoff_s(failures: int, *, first_s: float, longest_s: float, rng: random.Random) -> float:
    """Seconds to wait after so many failures in a row: doubled each time, then drawn from the upper half, so that callers spread out.

    Args:
        failures: at least 1.
    """
    # The exponent is bounded because 2**2000 is no float.
    ceiling = min(longest_s, first_s * 2.0 ** min(failures - 1, 60))
    return ceiling * rng.uniform(0.5, 1.0)


def retry_after_s(value: str | None, *, now: Callable[[], float] = time.time) -> float | None:
    """Seconds that a Retry-After header asks for; None where there is none that can be read.

    Args:
        value: seconds, or an HTTP date.
        now: seconds since the epoch.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - now()
        except (ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


class RetryBudget:
    """Retries that may still be made: each success earns a share of one, so that a failing server is not asked twice as often.

    Args:
        share: retries earned by a success, in [0, 1].
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._left = FIRST_RETRIES

    def earn(self) -> None:
        """A call succeeded."""
        self._left = min(self._left + self._share, max(FIRST_RETRIES, 100.0 * self._share))

    def spend(self) -> bool:
        """Takes a retry; False when none is left."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Circuit:
    """Whether a server is worth asking: closed while it answers, open for a while after some failures in a row, then one probe at a time.

    Args:
        failures: in a row, after which it opens.
        pause_s: how long it stays open first; doubled by each probe that fails.
        clock: seconds, monotonic.
    """

    def __init__(self, *, failures: int, pause_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._first_pause_s, self._clock = failures, pause_s, clock
        self._pause_s = pause_s
        self._failures = 0
        self._asks_again_at: float | None = None
        self._probing = False

    def wait_s(self) -> float:
        """Seconds until it may be asked, 0 for now; while a probe is out, until it is worth looking again."""
        if self._asks_again_at is None:
            return 0.0
        left = self._asks_again_at - self._clock()
        return left if left > 0 else (self._first_pause_s / 4 if self._probing else 0.0)

    def begin(self) -> None:
        """A call starts, which is a probe where the circuit is not closed."""
        self._probing = self._asks_again_at is not None

    def succeeded(self) -> None:
        """The server answered."""
        self._failures, self._asks_again_at, self._probing, self._pause_s = 0, None, False, self._first_pause_s

    def failed(self) -> None:
        """The server did not."""
        self._failures += 1
        if self._asks_again_at is not None and self._probing:
            self._pause_s = min(2 * self._pause_s, LONGEST_OPEN_FACTOR * self._first_pause_s)
        if self._failures >= self._limit:
            self._asks_again_at = self._clock() + self._pause_s
        self._probing = False

    def abandoned(self) -> None:
        """A call was cancelled, which says nothing about the server."""
        self._probing = False
