"""What a person sees while a run goes on: a line now and then, how long it will take, and a log of it in the run's folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tqdm import tqdm

from simulator.files import as_clock

LOG = "log.txt"
EVERY = 10
"""Steps between two lines where there is no terminal to draw a bar on."""
BAR = "{bar:20} {desc}"
SHOWN = {
    "reward": "reward/mean",
    "strictness": "curriculum/strictness",
    "density": "curriculum/reward_density",
    "entropy": "actor/entropy",
}
"""Label -> metric of what stands in the line."""


class Progress:
    """Prints to stderr and keeps what it said in the run's `log.txt`.

    Args:
        spent: share of the budget that a resumed run has used before.
    """

    def __init__(self, folder: Path, *, spent: float) -> None:
        self._log = (folder / LOG).open("a", encoding="utf-8")
        self._bar = tqdm(
            total=100, initial=round(100 * spent), bar_format=BAR, leave=False, disable=not sys.stderr.isatty(), dynamic_ncols=True
        )
        self._spent_before, self._began = spent, time.monotonic()

    def note(self, text: str) -> None:
        """What the log alone keeps, where the disk takes it: what there is to say, a full disk for one, is said all the same."""
        with suppress(OSError):
            self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            self._log.flush()

    def say(self, text: str) -> None:
        """A message for the person, kept in the log."""
        self.note(text)
        # Whoever reads may be gone (a pipe, a terminal); the log has it, and a run does not end for that before it has saved.
        with suppress(OSError):
            tqdm.write(text, file=sys.stderr)

    def step(self, step: int, metrics: Mapping[str, float], *, spent: float) -> None:
        """One step is done, and so much of the budget with it."""
        shown = "  ".join(f"{label} {metrics[key]:.2f}" for label, key in SHOWN.items() if key in metrics)
        line = f"step {step:>4}  {spent:>4.0%}  {shown}  {self.left(spent)} left"
        if self._bar.disable and step % EVERY == 0:
            self.say(line)
        self._bar.set_description_str(line, refresh=False)
        self._bar.update(round(100 * spent) - self._bar.n)

    def left(self, spent: float) -> str:
        """How long the rest of the budget will take at the pace so far, as m:ss; a question mark before there is a pace."""
        if spent <= self._spent_before:
            return "?"
        pace_s = (time.monotonic() - self._began) / (spent - self._spent_before)
        return as_clock(pace_s * max(1.0 - spent, 0.0))

    def close(self) -> None:
        """Ends the line and the log."""
        self._bar.close()
        with suppress(OSError):
            self._log.close()
