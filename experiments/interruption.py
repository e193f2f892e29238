"""Ctrl-C, a polite kill and a terminal that is closed: the first lets the step at hand finish, the second abandons it."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Those that are sent on to processes which ran for this one."""


class Interruption:
    """While entered, remembers that somebody asked the run to stop.

    Raises:
        KeyboardInterrupt: from wherever the program is, at the second signal; later ones do not break off what is then cleared away.
    """

    def __init__(self) -> None:
        self.requested, self._raised = False, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        # Under nohup a closed terminal is to change nothing.
        heard = SIGNALS if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*SIGNALS, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._on_signal) for number in heard}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested and not self._raised:
            self._raised = True
            raise KeyboardInterrupt
        self.requested = True
