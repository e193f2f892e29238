"""The process that builds a prior: `python -m policy.prior_process FOLDER`, with the pickled recipe on standard input."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from policy.alike import alike_everywhere
from policy.parent_watch import ENDS_WITH, end_with_parent

if TYPE_CHECKING:
    from policy.prior_config import PriorConfig

INTERRUPTED = 128 + signal.SIGINT
QUIET = "--quiet"


def build_apart(config: PriorConfig, folder: Path, *, progress: bool) -> None:
    """Trains a prior in a process of its own, which computes alike on every processor and ends with this one, and saves it in a folder.

    Raises:
        RuntimeError: it failed; what it said of it stands on standard error.
        KeyboardInterrupt: it was interrupted.
    """
    command = [sys.executable, "-m", __name__, str(folder), *([] if progress else [QUIET])]
    root = str(Path(__file__).parents[1])
    environment = alike_everywhere()
    environment[ENDS_WITH] = str(os.getpid())
    environment["PYTHONPATH"] = ":".join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    try:
        code = subprocess.run(command, input=pickle.dumps(config), env=environment, check=False).returncode
    except OSError as error:
        raise RuntimeError(f"the prior could not be built: its process could not be started ({error})") from error
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code:
        raise RuntimeError(f"the prior could not be built: its process ended with exit code {code}, and what it printed says why")


def main(arguments: list[str]) -> int:
    """Trains the prior whose recipe stands on standard input; returns the exit code."""
    end_with_parent()
    config = pickle.load(sys.stdin.buffer)
    from policy.prior import save_prior

    try:
        save_prior(config, Path(arguments[0]), progress=QUIET not in arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
