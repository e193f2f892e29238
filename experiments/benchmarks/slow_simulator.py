"""Users that take their time, as a language model does. Not measured yet."""

from __future__ import annotations

from experiments.benchmarks.figures import Figures, Settings

NOT_BUILT = "not measured: the server that answers after log-normal delays is not part of this benchmark yet"


def measure(settings: Settings) -> Figures:
    """The reason in place of each number."""
    return dict.fromkeys(("slow_simulator.vs_serial", "slow_simulator.vs_lockstep"), NOT_BUILT)
