"""Which round numbers label an axis, and how a long series is thinned and smoothed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

MAX_POINTS = 300
"""Longer series are averaged in bins, so that a page stays small."""


def ticks_between(low: float, high: float, *, at_most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers in [low, high], two to `at_most` of them where the range allows.

    Args:
        whole: only whole numbers, for what is counted.
    """
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / at_most))
    steps = [power * factor for factor in (1, 2, 2.5, 5, 10, 20) if span / (power * factor) <= at_most - 1 + 1e-9]
    step = next((step for step in steps if math.isclose(step, round(step))), 1.0) if whole else steps[0]
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """A short form: 250k, 1.5M, 0.05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


def binned(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most `MAX_POINTS` points, each the mean of as many neighbours."""
    size = math.ceil(len(xs) / MAX_POINTS)
    cuts = [*range(0, len(xs), size), len(xs)]
    means = [(float(np.mean(xs[i:j])), float(np.mean(ys[i:j]))) for i, j in pairwise(cuts)]
    return [x for x, _ in means], [y for _, y in means]


def running_mean(ys: Sequence[float]) -> list[float]:
    """The mean over a twelfth of the series around each point, narrower at the ends so that it stays centred."""
    half = len(ys) // 24
    return [float(np.mean(ys[i - reach : i + reach + 1])) for i in range(len(ys)) for reach in (min(half, i, len(ys) - 1 - i),)]
