"""Held-out dialogues before and after training: the same scenarios, strictness and seeds, compared pair by pair."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from analysis.clusters import mean_interval
from analysis.grades import Grade, Look, grade_of, looks
from simulator.dialogue import Outcome

OF_A_PAIR = ("uid", "scenario_id")
"""What the same dialogue before and after is found and resampled by."""
Record = Mapping[str, Any]
"""A line of `evaluation.jsonl`."""


class Pair(NamedTuple):
    """The same held-out dialogue before and after training."""

    before: Record
    after: Record

    @property
    def gain(self) -> float:
        """Points of final emotion."""
        return float(self.after["emotion"]) - float(self.before["emotion"])


@dataclass(frozen=True, kw_only=True)
class Gain:
    """By how much training changed the held-out score."""

    mean: float
    low: float
    high: float
    """Bounds of the 95 % interval over scenarios; it says nothing of other training seeds."""
    num_pairs: int


@dataclass(frozen=True, kw_only=True)
class BeforeAfter:
    """What a run's evaluations say, as far as they were taken."""

    looks: list[Look]
    pairs: list[Pair]
    """Of the full grid at the start and at the last full evaluation; empty while there is only one."""
    gain: Gain | None
    num_last: int = 0
    """Dialogues of the last full evaluation, ERROR ones aside; 0 while there is only one."""


def before_after(lines: Iterable[Record]) -> BeforeAfter:
    """Reads a run's evaluations.

    Args:
        lines: of `evaluation.jsonl`; ERROR dialogues count nowhere.

    Raises:
        ValueError: a line lacks something.
    """
    by_look: dict[int, list[tuple[Grade, Record]]] = {}
    for line in lines:
        if line.get("outcome") != Outcome.ERROR:
            grade = grade_of(line, needs=("outcome", *OF_A_PAIR))
            by_look.setdefault(grade.look, []).append((grade, line))
    groups = [group for _, group in sorted(by_look.items())]
    full = [[line for _, line in group] for group in groups if group[0][0].grid == "full"]
    pairs = paired(full[0], full[-1]) if len(full) > 1 else []
    grades = [grade for group in groups for grade, _ in group]
    num_last = len(full[-1]) if len(full) > 1 else 0
    return BeforeAfter(looks=looks(grades), pairs=pairs, gain=mean_gain(pairs) if pairs else None, num_last=num_last)


def paired(before: Sequence[Record], after: Sequence[Record]) -> list[Pair]:
    """The dialogues that both grids hold, in the order of the first."""
    later = {line["uid"]: line for line in after}
    return [Pair(line, later[line["uid"]]) for line in before if line["uid"] in later]


def mean_gain(pairs: Sequence[Pair], *, seed: int = 0) -> Gain:
    """The mean change with the percentile interval of resampled scenarios: dialogues of one scenario are not independent.

    Args:
        seed: of the bootstrap.
    """
    gains = [pair.gain for pair in pairs]
    low, high = mean_interval(
        gains, [str(pair.before["scenario_id"]) for pair in pairs], rng=np.random.default_rng(seed), within=(-100.0, 100.0)
    )
    return Gain(mean=statistics.fmean(gains), low=low, high=high, num_pairs=len(pairs))


def typical(pairs: Sequence[Pair]) -> Pair:
    """The pair whose change lies closest to the mean change of all: an example that was not picked by hand."""
    mean = statistics.fmean(pair.gain for pair in pairs)
    return min(pairs, key=lambda pair: (abs(pair.gain - mean), pair.before["uid"]))


def why_this_one(pair: Pair, pairs: Sequence[Pair], *, whose: str = "") -> str:
    """How the typical pair was found among all of them, in words."""
    mean = statistics.fmean(pair.gain for pair in pairs)
    return f"Not picked by hand: of {len(pairs)} pairs{whose}, its change of {pair.gain:+.0f} is the closest to their mean, {mean:+.1f}."
