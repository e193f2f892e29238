"""Quality of alarms: runs are labelled after the fact, alarms replayed over their recorded indicators, and the two compared.

A run has collapsed where the score of its probe panel, or of a third of it, stays below 80 % of its best so far, and 0.05 below it, for 20
updates; the label is the first of these. The thirds are needed: a run that trades strict users for lenient ones can rise on the whole. A
run that ends low after fewer updates is undecided, and counts in no share. So is one without a panel.

Source: the label on the whole panel is the survey's; the thirds and the 0.05 are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from curriculum.collapse.history import CollapseConfig
from curriculum.collapse.indicators import LOW_UPDATES, collapse_onset, is_undecided
from curriculum.collapse.monitor import CollapseMonitor

LABELS: Mapping[str, Sequence[str]] = {"whole or a third": CollapseMonitor.PANEL, "whole": CollapseMonitor.PANEL[:1]}
"""Labels by name: the cells of the panel whose fall makes a collapse. The first is the one that the table is about."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """The recorded indicators of one run."""

    name: str
    steps: list[int]
    values: list[dict[str, float]]
    """By step: indicators by their names in `INDICATOR_METRICS`, without those that a step did not measure."""
    same: frozenset[str] = frozenset()
    """Indicators that repeat another one under a second name, so that they are no evidence of their own."""

    def series(self, indicator: str) -> tuple[list[int], list[float]]:
        """Steps that measured an indicator, and its values there."""
        pairs = [(step, values[indicator]) for step, values in zip(self.steps, self.values, strict=True) if indicator in values]
        return [step for step, _ in pairs], [value for _, value in pairs]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One run: when it collapsed, if it did, and when each alarm first rang, if it did."""

    name: str
    onset: int | None
    first: Mapping[str, int]
    undecided: bool = False
    """It ended low before the label could be given, or has no evaluation of its panel."""
    examined: bool = True
    """Whether its panel was ever evaluated."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of counted runs with its Wilson interval."""

    num_hits: int
    num_all: int

    @property
    def value(self) -> float:
        """NaN of nothing."""
        return self.num_hits / self.num_all if self.num_all else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval; (0, 1) of nothing. Source: Wilson 1927."""
        if not self.num_all:
            return 0.0, 1.0
        p, square = self.value, 1.96**2 / self.num_all
        centre, reach = p + square / 2.0, 1.96 * math.sqrt(p * (1.0 - p) / self.num_all + square / (4.0 * self.num_all))
        return max(0.0, (centre - reach) / (1.0 + square)), min(1.0, (centre + reach) / (1.0 + square))


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Precision, recall and lead time of an alarm over many runs."""

    precision: Share
    """Of the decided runs in which it rang, those that collapsed."""
    recall: Share
    """Of the runs that collapsed, those in which it rang before the label could be given, `LOW_UPDATES` updates after the onset."""
    leads: list[int] = field(default_factory=list)
    """Onset minus the first ring, updates, of the runs that count in recall; negative where it rang after the onset."""

    @property
    def median_lead(self) -> float:
        """NaN without any."""
        return float(median(self.leads)) if self.leads else math.nan


def judge(course: Course, config: CollapseConfig, labels: Mapping[str, Sequence[str]]) -> dict[str, Verdict]:
    """Rings of one run, with its onset by each label.

    Args:
        labels: the cells of the panel that each label rests on; the onset is the earliest of any cell.
    """
    first = first_rings(course, config)
    verdicts = {}
    for label, cells in labels.items():
        series = [course.series(cell) for cell in cells]
        onset = min((at for at in (collapse_onset(*each) for each in series) if at is not None), default=None)
        examined = any(steps for steps, _ in series)
        undecided = onset is None and (not examined or any(is_undecided(*each) for each in series))
        verdicts[label] = Verdict(name=course.name, onset=onset, first=first, undecided=undecided, examined=examined)
    return verdicts


def first_rings(course: Course, config: CollapseConfig) -> dict[str, int]:
    """The step at which each alarm first rings when the run's indicators are replayed.

    The composite alarm `collapse` is that of a second replay without the indicators in `course.same`.
    """
    first: dict[str, int] = {}
    whole, apart = CollapseMonitor(config), CollapseMonitor(config)
    for step, values in zip(course.steps, course.values, strict=True):
        rung = [alarm.name for alarm in whole.observe(step, values)]
        if course.same:
            others = {name: value for name, value in values.items() if name not in course.same}
            composite = [alarm.name for alarm in apart.observe(step, others) if alarm.name == "collapse"]
            rung = [name for name in rung if name != "collapse"] + composite
        for name in rung:
            first.setdefault(name, step)
    return first


def quality(alarm: str, verdicts: Sequence[Verdict]) -> Quality:
    """Precision, recall and lead time of one alarm over the runs that are decided."""
    rang = [verdict for verdict in verdicts if alarm in verdict.first and not verdict.undecided]
    collapsed = [(verdict.onset, verdict.first.get(alarm)) for verdict in verdicts if verdict.onset is not None]
    leads = [onset - ring for onset, ring in collapsed if ring is not None and ring < onset + LOW_UPDATES]
    return Quality(
        precision=Share(num_hits=sum(verdict.onset is not None for verdict in rang), num_all=len(rang)),
        recall=Share(num_hits=len(leads), num_all=len(collapsed)),
        leads=leads,
    )
