"""What a part of the benchmark is given and what it returns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from policy.config import EMBEDDED, EngineKind, PriorConfig


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure."""

    repeats: int = 5
    """>= 1; of every figure."""
    model: str = EMBEDDED
    """The policy: the embedded prior, or a Hugging Face folder or id."""
    engine: EngineKind = EngineKind.AUTO
    """What generates."""
    threads: int = 1
    """>= 1; CPU threads of the trainer and of each engine."""
    progress: Callable[[str], None] = lambda line: None
    """Told now and then what is being measured."""

    def folder(self) -> Path:
        """The policy's folder; the embedded prior is built when the cache does not hold it, with a progress bar."""
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
"""By dotted key of bench.json; where nothing could be measured, the reason in words."""


def figure(values: Iterable[float]) -> Figure:
    """Median and range of repeated measurements, at least one."""
    found = list(values)
    return Figure(median=statistics.median(found), lowest=min(found), highest=max(found), repeats=len(found))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """The median of ratios repeat by repeat: what slows down the machine for a while slows down both sides of a pair."""
    return figure(a / b for a, b in zip(ours, theirs, strict=True))


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """For what was measured one after the other and not in pairs: the range is from our slowest over their fastest to the contrary."""
    middle = statistics.median(ours) / statistics.median(theirs)
    return Figure(median=middle, lowest=min(ours) / max(theirs), highest=max(ours) / min(theirs), repeats=min(len(ours), len(theirs)))
