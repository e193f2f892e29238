"""What a person sees while a run goes on: a line now and then, how long it will take, and a log of it in the run's folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tqdm import tqdm

LOG = "log.txt"
EVERY = 10
"""Steps between two lines where there is no terminal to draw a bar on."""
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
        total: policy tokens the run may sample.
        done: of them, how many a resumed run has sampled before.
    """

    def __init__(self, folder: Path, *, total: int, done: int) -> None:
        self._log = (folder / LOG).open("a", encoding="utf-8")
        self._bar = tqdm(total=total, initial=done, unit="tok", unit_scale=True, disable=not sys.stderr.isatty(), dynamic_ncols=True)
        self._total, self._start = total, done
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """A message for the person, kept in the log."""
        self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self._log.flush()
        tqdm.write(text, file=sys.stderr)

    def step(self, step: int, metrics: Mapping[str, float], *, policy_tokens: int) -> None:
        """One step is done."""
        shown = "  ".join(f"{label} {metrics[key]:.2f}" for label, key in SHOWN.items() if key in metrics)
        if self._bar.disable and step % EVERY == 0:
            self.say(f"step {step:>4}  {policy_tokens / self._total:>4.0%}  {shown}  {self.left(policy_tokens)} left")
        self._bar.set_postfix_str(shown, refresh=False)
        self._bar.update(policy_tokens - self._bar.n)

    def left(self, policy_tokens: int) -> str:
        """How long the rest of the budget will take at the pace so far, as m:ss."""
        pace_s = (time.monotonic() - self._began) / max(policy_tokens - self._start, 1)
        seconds = round(pace_s * max(self._total - policy_tokens, 0))
        return f"{seconds // 60}:{seconds % 60:02d}"

    def close(self) -> None:
        """Ends the line and the log."""
        self._bar.close()
        self._log.close()
