"""What a dashboard shows besides scalars: maps of what a teacher issued and of held-out scores, and which settings led to which scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.drawing.heat_image import Picture, heat_image
from analysis.runs import PROVENANCE, setting
from analysis.teaching import Group, by_time
from simulator.dialogue import Outcome
from simulator.version import recorded_world

IMAGE_EVERY = 10
"""Steps between two maps of what was issued."""
RECENT_STEPS = 10
"""Steps whose tasks tell how far hidden intentions lie apart: a single step has hardly a group for each hidden intention."""
NUM_BINS = 10
"""Stretches of a run in a map: the images tab shows it small."""
COMPARED = ("algorithm.kind", "arm", "learner.lr", "seed", "teacher.kind", "teacher.strictness", "teacher.target_success", "world")
"""What may explain a score, few enough to be read beside it; `arm` is the folder that a sweep keeps a run in.

The tab sorts them by name and shows the first five, so these are the ones that differ in most comparisons. A sweep adds its own.
"""
JUDGED_BY = ("eval/full_score", "eval/auc", "eval/full_worst_cell", "eval/full_success_rate", "eval/full_failure_rate")
"""Scalars in the table of settings."""


class TeachingBoard:
    """Gathers what was issued, step by step."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def add(self, step: int, records: Iterable[Mapping[str, Any]]) -> dict[str, float]:
        """Takes in the tasks of a step; returns its scalars by hidden intention, if there were any, and how far these lie apart."""
        issued = [
            Group(step, str(record["family"]), float(record["strictness"]), None)
            for record in records
            if record.get("event") == "task" and "family" in record
        ]
        self.groups += issued
        if not issued:
            return {}
        values: dict[str, float] = {}
        for intention, found in strictness_by_intention(issued).items():
            values |= {f"curriculum/strictness_of/{intention}": fmean(found), f"curriculum/groups_of/{intention}": float(len(found))}
        recent = takewhile(lambda group: group.step > step - RECENT_STEPS, reversed(self.groups))
        means = [fmean(found) for found in strictness_by_intention(recent).values()]
        of_recent = {"mean": fmean(means), "mildest": min(means), "strictest": max(means)}
        return values | {f"curriculum/recent/{name}": value for name, value in of_recent.items()}

    def pictures(self) -> dict[str, Picture]:
        """How strict each hidden intention and each family was practised, and how often, so far; nothing before the first task."""
        if not self.groups:
            return {}
        ends, means, counts = by_time(self.groups, num_bins=NUM_BINS)
        intentions = sorted({intention for intention, _ in means})
        _, by_family, counts_by_family = by_time(self.groups, num_bins=NUM_BINS, of=lambda group: group.family)
        families = sorted({family for family, _ in by_family})
        draw = partial(heat_image, columns=ends, x_label="up to step", low=0.0)
        draw_strictness = partial(draw, high=1.0, form="{:.2f}")

        def draw_shares(counts: Mapping[tuple[str, str], int], rows: Sequence[str], title: str) -> Picture:
            shares = shares_of_groups(counts)
            return draw(shares, rows=rows, title=title, high=max(shares.values()))

        return {
            "curriculum/strictness_by_family": draw_strictness(by_family, rows=families, title="mean strictness issued, by family"),
            "curriculum/groups_by_family": draw_shares(counts_by_family, rows=families, title="share of the groups issued, %, by family"),
            "curriculum/strictness_by_intention": draw_strictness(means, rows=intentions, title="mean strictness issued"),
            "curriculum/groups_by_intention": draw_shares(counts, rows=intentions, title="share of the groups issued, %"),
        }


def shares_of_groups(counts: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], float]:
    """Percentages of the groups issued up to the same step, by row and step."""
    totals: Counter[str] = Counter()
    for (_, end), num in counts.items():
        totals[end] += num
    return {cell: 100.0 * num / totals[cell[1]] for cell, num in counts.items()}


def strictness_by_intention(groups: Iterable[Group]) -> dict[str, list[float]]:
    """The strictness of these groups, by what their users secretly want."""
    found: dict[str, list[float]] = {}
    for group in groups:
        found.setdefault(group.intention, []).append(group.strictness)
    return found


def evaluation_picture(records: Iterable[Mapping[str, Any]]) -> Picture | None:
    """Held-out score by hidden intention and strictness; ERROR dialogues count nowhere. None without any."""
    found: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record.get("outcome") != Outcome.ERROR and "family" in record and "strictness" in record:
            cell = (str(record["family"]).partition("/")[0], f"{record['strictness']:g}")
            found.setdefault(cell, []).append(float(record["emotion"]))
    if not found:
        return None
    intentions, levels = sorted({intention for intention, _ in found}), sorted({level for _, level in found}, key=float)
    means = {cell: fmean(emotions) for cell, emotions in found.items()}
    title = "held-out score by hidden intention"
    return heat_image(means, intentions, levels, title=title, x_label="strictness", low=0.0, high=100.0)


def compared_settings(config: Mapping[str, Any], *, folder: Path, names: Iterable[str] = COMPARED) -> dict[str, bool | float | str]:
    """Those of the names that a run has.

    Args:
        config: its `config.yaml`, nested.
        folder: of the run.
    """
    facts = {"arm": folder.absolute().parent.name, "world": recorded_world(config.get(PROVENANCE) or {}, config)}
    found = {name: facts.get(name) or setting(config, name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}
