"""What a task costs the teacher of the main experiment: CPU time of proposing it and of hearing its outcome."""

from __future__ import annotations

from curriculum.toy.benchmark import simulate
from experiments.benchmarks.figures import Figures, Settings, figure
from experiments.config import DEFAULT_KINDS

STUDENT = "S2_slow"
"""Learns at the pace of a training run."""


def measure(settings: Settings) -> Figures:
    """A run with a toy student per repeat, each with a seed of its own."""
    costs = []
    for seed in range(settings.repeats):
        settings.progress(f"run {seed + 1} of {settings.repeats} with the student {STUDENT}")
        trace = simulate(STUDENT, DEFAULT_KINDS["teacher"], seed=seed)
        costs.append(1e6 * trace.teacher_cpu_s / sum(map(len, trace.tasks)))
    return {"teacher.us_per_task": figure(costs)}
