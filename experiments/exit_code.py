"""What the exit code of a run says."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """How a run, or the attempt to start one, ended."""

    FINISHED = 0
    FAILED = 1
    """The world outside failed; the message says how to go on."""
    REFUSED = 2
    """The request cannot be run; nothing was started."""
    INTERRUPTED = 130
    """Somebody stopped it."""
