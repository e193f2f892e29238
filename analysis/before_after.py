"""Held-out dialogues before and after training: the same scenarios, strictness and seeds, compared pair by pair."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from analysis.endpoints import Grade, Look, grade_of, looks
from analysis.stats import mean_interval
from analysis.transcripts import Record, transcript
from simulator.dialogue import Outcome


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
    """A run's evaluations so far."""

    looks: list[Look]
    pairs: list[Pair]
    """Of the full grid at the start and at the last full evaluation; empty while there is only one."""
    gain: Gain | None


def before_after(lines: Iterable[Record]) -> BeforeAfter:
    """Reads a run's evaluations.

    Args:
        lines: of `evaluation.jsonl`; ERROR dialogues count nowhere.

    Raises:
        ValueError: a line lacks something.
    """
    grades: list[Grade] = []
    full: dict[int, list[Record]] = {}
    for line in lines:
        if line.get("outcome") != Outcome.ERROR:
            grades.append(grade := grade_of(line, needs=("outcome", "uid", "scenario_id")))
            if grade.grid == "full":
                full.setdefault(grade.look, []).append(line)
    pairs = paired(full[min(full)], full[max(full)]) if len(full) > 1 else []
    return BeforeAfter(looks=looks(grades), pairs=pairs, gain=mean_gain(pairs) if pairs else None)


def paired(before: Sequence[Record], after: Sequence[Record]) -> list[Pair]:
    """The dialogues that both grids hold, in the order of the first."""
    later = {line["uid"]: line for line in after}
    return [Pair(line, later[line["uid"]]) for line in before if line["uid"] in later]


def mean_gain(pairs: Sequence[Pair], *, seed: int = 0) -> Gain:
    """The mean change with the percentile interval of resampled scenarios: dialogues of one scenario are not independent.

    Args:
        seed: of the bootstrap.
    """
    gains, rng = [pair.gain for pair in pairs], np.random.default_rng(seed)
    low, high = mean_interval(gains, [str(pair.before["scenario_id"]) for pair in pairs], rng=rng, within=(-100.0, 100.0))
    return Gain(mean=statistics.fmean(gains), low=low, high=high, num_pairs=len(pairs))


def typical(pairs: Sequence[Pair]) -> Pair:
    """The pair whose change lies closest to the mean change: an example chosen by rule."""
    mean = statistics.fmean(pair.gain for pair in pairs)
    return min(pairs, key=lambda pair: (abs(pair.gain - mean), pair.before["uid"]))


def extremes(pairs: Sequence[Pair]) -> list[tuple[str, Pair]]:
    """The pairs that lost and gained most, each with a title; neither the typical one nor one twice."""
    ranked, shown = sorted(pairs, key=lambda pair: (pair.gain, pair.before["uid"])), [typical(pairs)]
    found = []
    for pair, ahead, behind in ((ranked[0], "gained least", "lost most"), (ranked[-1], "gained most", "lost least")):
        if pair not in shown:
            shown.append(pair)
            found.append((f"The user who {ahead if pair.gain > 0 else behind} by training", pair))
    return found


def examples(pairs: Sequence[Pair], *, run: str = "", arm: str = "") -> list[dict[str, Any]]:
    """The typical pair, then the extremes, for the template's `example`.

    Args:
        run, arm: whose they are, where the page is about several.
    """
    mean, chosen = statistics.fmean(pair.gain for pair in pairs), typical(pairs)
    whose = f" of {run}" if run else ""
    why = f"Not picked by hand: of {len(pairs)} pairs{whose}, its change of {chosen.gain:+.0f} is the closest to their mean, {mean:+.1f}."
    folded = [(f"{title}: {pair.gain:+.0f}{f' ({run})' if run else ''}", pair) for title, pair in extremes(pairs)]
    return [
        {
            "title": title,
            "about": f"{pair.before['scenario_id']} ({pair.before['family']}), strictness {pair.before['strictness']:g}. {said}",
            "wish": pair.before["hidden_intention"],
            "transcripts": [transcript(pair.before, "Before training"), transcript(pair.after, f"After training{arm and f': {arm}'}")],
        }
        for title, pair, said in (("", chosen, why), *((title, pair, "") for title, pair in folded))
    ]
