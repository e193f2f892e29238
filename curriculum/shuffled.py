"""The steps of another run's trace in an order drawn once from this run's seed: what `yoked` is, less the order.

    step t issues step order(t) of the trace, all its groups together;   order ~ uniform over permutations, from the seed alone

The mix of difficulties and families stays what it was, over the whole trace; that early steps were easy and late ones strict is gone. A
run that buys fewer steps than the trace has gets a fair sample of them; one that buys more goes on with a second order, and so on.

Source: see `yoked`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from curriculum.yoked import YokedConfig, YokedTeacher


@dataclass
class ShuffledConfig(YokedConfig):
    """Settings of `ShuffledTeacher`."""


class ShuffledTeacher(YokedTeacher):
    """Follows a trace out of order; learns nothing."""

    kind = "shuffled"
    config: ShuffledConfig

    def step_of_trace(self, step: int) -> int:
        """The step of the trace that this run's `step` repeats, both counted from 0."""
        time_through, place = divmod(step, self.trace.num_steps)
        return int(drawn_order(self._seed, time_through, self.trace.num_steps)[place])


@lru_cache(maxsize=8)
def drawn_order(seed: int, time_through: int, num_steps: int) -> np.ndarray:
    """[S] the order in which a trace is gone through for the n-th time."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(time_through,))).permutation(num_steps)
