"""Progress of a run on the terminal, and its log."""

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
"""Steps between two lines where there is no terminal for a bar."""
SHOWN = {
    "reward": "reward/mean",
    "strictness": "curriculum/strictness",
    "density": "curriculum/reward_density",
    "entropy": "actor/entropy",
}
"""Label -> metric on the line."""


class Progress:
    """Prints to stderr, and keeps messages in the run's `log.txt`.

    Args:
        fraction: of the budget that a resumed run has used before.
    """

    def __init__(self, folder: Path, *, fraction: float) -> None:
        self._log = (folder / LOG).open("a", encoding="utf-8")
        self._bar = tqdm(
            total=100,
            initial=round(100 * fraction),
            bar_format="{bar:20} {desc}",
            leave=False,
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )
        self._fraction_before, self._began = fraction, time.monotonic()

    def note(self, text: str) -> None:
        """A message for the log alone; a full disk does not stop a run here."""
        with suppress(OSError):
            self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            self._log.flush()

    def say(self, text: str) -> None:
        """A message for terminal and log; a closed terminal does not stop a run."""
        self.note(text)
        with suppress(OSError):
            tqdm.write(text, file=sys.stderr)

    def step(self, step: int, metrics: Mapping[str, float], *, fraction: float) -> None:
        """Shows a step and the fraction of the budget used."""
        shown = "  ".join(f"{label} {metrics[key]:.2f}" for label, key in SHOWN.items() if key in metrics)
        line = f"step {step:>4}  {fraction:>4.0%}  {shown}  {self.left(fraction)} left"
        if self._bar.disable and step % EVERY == 0:
            self.say(line)
        self._bar.set_description_str(line, refresh=False)
        self._bar.update(round(100 * fraction) - self._bar.n)

    def left(self, fraction: float) -> str:
        """Time that the rest of the budget takes at the pace so far, as m:ss; a question mark before the first step."""
        if fraction <= self._fraction_before:
            return "?"
        pace_s = (time.monotonic() - self._began) / (fraction - self._fraction_before)
        return as_clock(pace_s * max(1.0 - fraction, 0.0))

    def close(self) -> None:
        """Closes the bar and the log."""
        self._bar.close()
        with suppress(OSError):
            self._log.close()
