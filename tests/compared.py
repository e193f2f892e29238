"""What tests of comparisons ask of a sweep that was made."""

from __future__ import annotations

from analysis.compare import compare, plan_of
from analysis.endpoints import AUC, Planned
from analysis.sweeps import read_sweep


def compared(folder, *contrasts, seed=0, **plan):
    """A comparison of a sweep's folder, with few draws: bars are looked at by no test."""
    return compare(read_sweep(folder), Planned(contrasts=contrasts, **plan), seed=seed, num_resamples=20)


def as_planned(folder, **options):
    """A comparison of what the sweep's own plan names."""
    sweep = read_sweep(folder, **options)
    return compare(sweep, plan_of(sweep), num_resamples=20)


def on(found, endpoint=AUC, which=0):
    """A contrast's figures on an endpoint."""
    return found["contrasts"][which]["endpoints"][endpoint]
