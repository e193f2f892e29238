"""Settings and figures of a benchmark, repeated measurements, and dialogues of scripted agents that are as long as real ones."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from policy.config import EMBEDDED, EngineKind, PriorConfig
from simulator.dialogue import Dialogue
from simulator.listener import Register
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

STRICTNESS = (0.1, 0.35, 0.6, 0.85)
"""Of the groups in turn: some dialogues end early, others late."""
LADDER = ("L1", "L3", "L5", "L6")
"""Agents of the siblings in turn."""
Measured = TypeVar("Measured")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure."""

    repeats: int = 5
    """>= 1; of every figure."""
    model: str = EMBEDDED
    """The policy: the embedded prior, or a Hugging Face folder or id."""
    engine: EngineKind = EngineKind.AUTO
    threads: int = 1
    """>= 1; CPU threads of the trainer and of each engine."""
    progress: Callable[[str], None] = lambda line: None
    """Called with a line on what is being measured."""

    def folder(self) -> Path:
        """The policy's folder; the embedded prior is built when the cache does not hold it."""
        from policy.model import find_model
        from policy.prior.prior import build_prior

        return build_prior(PriorConfig()) if self.model == EMBEDDED else find_model(self.model)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number, over its repeats."""

    median: float
    lowest: float
    highest: float
    repeats: int


Figures = dict[str, Figure | str]
"""By dotted key of bench.json; where there is no number, the reason."""


def repeated(measure: Callable[[int], Measured], repeats: int, *, warm_ups: int = 1) -> list[Measured]:
    """Measurements number 0, 1, ..., without the first, which import, allocate and tune."""
    return [measure(number) for number in range(repeats + warm_ups)][warm_ups:]


def figure(values: Iterable[float]) -> Figure:
    """Median and range of repeated measurements, at least one."""
    found = list(values)
    return Figure(median=statistics.median(found), lowest=min(found), highest=max(found), repeats=len(found))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """Median of the ratios repeat by repeat: a slow phase of the machine slows down both sides of a pair."""
    return figure(a / b for a, b in zip(ours, theirs, strict=True))


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """For measurements that are not paired: the range is from our slowest over their fastest to the contrary."""
    middle = statistics.median(ours) / statistics.median(theirs)
    return Figure(median=middle, lowest=min(ours) / max(theirs), highest=max(ours) / min(theirs), repeats=min(len(ours), len(theirs)))


def dialogues(num_groups: int, group_size: int, *, seed: int, user: RuleUser | None = None) -> Iterator[list[Dialogue]]:
    """Groups of dialogues about one scenario each, with the user of the main experiment unless another is given."""
    user = user or RuleUser(RuleUserConfig(register=Register.WORLD))
    scenarios, agents = load_bank().scenarios(Split.TRAIN), itertools.cycle(LADDER)
    for i in range(num_groups):
        scenario = scenarios[(seed * num_groups + i) % len(scenarios)]
        difficulty = Difficulty.along(STRICTNESS[i % len(STRICTNESS)])
        yield [play(AGENTS[next(agents)], scenario, difficulty, seed=1000 * seed + sibling, user=user) for sibling in range(group_size)]
