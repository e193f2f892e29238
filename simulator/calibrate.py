"""What `python -m simulator calibrate` prints and writes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from simulator.bank import load_bank
from simulator.calibration import (
    DISPLEASED,
    LEVELS,
    MIN_SPEARMAN,
    PLEASED,
    Curve,
    Frozen,
    Place,
    Scores,
    from_run,
    in_order,
    panel,
    places,
    rescored,
    sample,
)
from simulator.calibration_figure import figure
from simulator.dialogue import Outcome
from simulator.drafts import write_whole
from simulator.fingerprint import world_of
from simulator.replay import recorded_config, require_feelings, settings_of, transcript_file, user_settings
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.scenario import Family, HiddenIntention, Split
from simulator.shown import read_dialogues

MISSED = 1
"""Exit code when a bound is not kept."""
IN_THE_PANEL, IN_A_RUN = 4, 24
"""Scenarios of each family that the panel is about, and dialogues of each family that are taken from a run."""
CLIMBS = 4
"""So many times the panel's scenarios show the rungs' places, where one dialogue tells little."""
TABLE, FIGURE = "calibration.json", "calibration.svg"


def calibrate(options: argparse.Namespace) -> int:
    """Judges the frozen conversations, prints the table, writes what was asked for; returns the exit code."""
    levels = checked_levels(options.levels)
    if options.per_family is None:
        options.per_family = IN_A_RUN if options.dialogues else IN_THE_PANEL
    if options.per_family < 1:
        raise ValueError(f"--per-family must be at least 1, got {options.per_family}")
    if options.out and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder, got {str(options.out)!r}, which is a file")
    frozen, config, found = conversations(options)
    scores = rescored(frozen, levels, config)
    result = Calibration(scores, levels, found)
    print(*result.lines(by_family=options.by_family, source=str(options.dialogues or f"{options.split} scenarios")), sep="\n")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        source = str(options.dialogues.name) if options.dialogues else options.split
        record = {"world": world_of(config), "source": source, "seed": options.seed, **result.record()}
        write_whole(options.out / TABLE, json.dumps(record, indent=1) + "\n")
        title = f"Commanded and realised strictness, {source}"
        write_whole(options.out / FIGURE, figure(result.overall, result.families, found, title=title))
        print(f"{options.out / TABLE}, {options.out / FIGURE}")
    return 0 if result.is_kept else MISSED


def checked_levels(levels: Sequence[float] | None) -> tuple[float, ...]:
    """The levels to judge at.

    Raises:
        ValueError: fewer than three, one twice, or one that is no strictness.
    """
    chosen = tuple(levels) if levels else LEVELS
    if len(chosen) < 3:
        raise ValueError(f"--levels must be at least three strictnesses, got {len(chosen)}: a rank correlation of fewer says nothing")
    for level in chosen:
        if not 0.0 <= level <= 1.0:
            raise ValueError(f"--levels must be in [0, 1], got {level!r}")
    if any(low >= high for low, high in pairwise(chosen)):
        raise ValueError(f"--levels must rise, got {' '.join(map(str, chosen))}")
    return chosen


def conversations(options: argparse.Namespace) -> tuple[list[Frozen], RuleUserConfig, Mapping[Family, Mapping[str, Place]]]:
    """The frozen conversations, how the user was set, and the rungs' places where the ladder itself is looked at.

    Raises:
        ValueError: the file is not there, is no transcript of this world, or holds nothing to judge.
    """
    flags = {"register": options.register}
    if not options.dialogues:
        config = user_settings(flags)
        user = RuleUser(config)
        scenarios = load_bank().scenarios(Split(options.split))
        chosen = sample(scenarios, options.per_family, seed=options.seed)
        climbed = sample(scenarios, CLIMBS * options.per_family, seed=options.seed)
        return panel(chosen, user=user, seed=options.seed), config, places(climbed, user=user, seed=options.seed)
    path = transcript_file(options.dialogues, evaluation=False)
    found = list(read_dialogues(path, load_bank()))
    own = [settings_of(record) for record, _ in found]
    if any(settings != own[0] for settings in own):
        raise ValueError(f"{path} must hold dialogues of users that were set alike, got several settings: split it")
    config = user_settings(flags, *own[:1], settings_of(recorded_config(path)))
    if config.preset is Preset.SAGE:
        raise ValueError(f"{path} must be of users of the preset training, got sage: there difficulty does not enter")
    recorded = [dialogue for _, dialogue in found if dialogue.outcome is not Outcome.ERROR]
    frozen = from_run(recorded, options.per_family, seed=options.seed)
    if not frozen:
        raise ValueError(f"{path} must hold a dialogue in which the user answers a reply, got none")
    for one in frozen:
        require_feelings(one.dialogue)
    return frozen, config, {}


class Calibration:
    """All figures, and whether the bounds are kept."""

    def __init__(self, scores: Scores, levels: Sequence[float], found: Mapping[Family, Mapping[str, Place]]) -> None:
        self.overall: Curve = scores.curve(levels)
        self.families = scores.by_family(levels)
        self.places = found
        self.order = {family: scores.by_rung(family) for family in self.families} if found else {}

    @property
    def misplaced(self) -> list[str]:
        """Rungs that are not where they belong, and families in which they do not come in order."""
        wrong = [f"{family} {rung}" for family, rungs in self.places.items() for rung, place in rungs.items() if not place.is_kept]
        return wrong + [f"{family} order" for family, rungs in self.order.items() if not in_order(rungs, is_advice=_is_advice(family))]

    @property
    def unfaithful(self) -> list[str]:
        """Families whose users are not what was commanded, and `all` if that holds for all together."""
        curves = {"all": self.overall, **{str(family): curve for family, curve in self.families.items()}}
        return [name for name, curve in curves.items() if not curve.is_faithful]

    @property
    def is_kept(self) -> bool:
        """Whether every bound is."""
        return not self.misplaced and not self.unfaithful

    def lines(self, *, by_family: bool, source: str) -> list[str]:
        """The table."""
        overall = self.overall
        worst, lowest = min(((curve.spearman, str(family)) for family, curve in self.families.items()))
        lines = [
            f"{source}: {overall.num_dialogues:,} frozen dialogues of {len(self.families)} families judged again",
            "",
            "commanded  realised  emotion   realised by family, lowest and highest",
        ]
        for i, level in enumerate(overall.levels):
            spread = [curve.realised[i] for curve in self.families.values()]
            lines.append(f"{level:9.2f}  {overall.realised[i]:8.3f}  {overall.emotion[i]:7.1f}  {min(spread):9.3f}  {max(spread):9.3f}")
        lines += ["", f"Spearman {overall.spearman:.3f} overall, {worst:.3f} in the worst family ({lowest}); at least {MIN_SPEARMAN}"]
        if by_family:
            lines += ["", "family                  dialogues  Spearman  realised at .25 .5 .75 of the levels"]
            for family, curve in self.families.items():
                quarters = [curve.realised[round(q * (len(curve.levels) - 1))] for q in (0.25, 0.5, 0.75)]
                shown = "  ".join(f"{value:.3f}" for value in quarters)
                lines.append(f"{family!s:22}  {curve.num_dialogues:9}  {curve.spearman:8.3f}  {shown}")
        if self.places:
            lines += ["", *self._ladder(by_family=by_family)]
        verdict = "all bounds kept" if self.is_kept else f"MISSED: {', '.join([*self.unfaithful, *self.misplaced])}"
        return [*lines, "", verdict]

    def _ladder(self, *, by_family: bool) -> list[str]:
        lines = [
            f"each rung in its place. below: just below the next skill's onset (L6: at .9), at least {PLEASED:.0f};",
            f"above: just above the onset after it, below {DISPLEASED:.0f};",
            "lead: over the rung below on frozen dialogues, from the level on at which its own skill counts, above 0",
            "",
            "rung   family                   below   above    lead",
        ]
        for rung in next(iter(self.places.values())):
            rows = [(str(family), rungs[rung], self._lead(family, rung)) for family, rungs in self.places.items()]
            if not by_family:
                below = min((place.below for _, place, _ in rows if place.below is not None), default=None)
                above = max((place.above for _, place, _ in rows if place.above is not None), default=None)
                lead = min((lead for *_, lead in rows if lead is not None), default=None)
                rows = [("worst of each", Place(below=below, above=above), lead)]
            lines += [f"{rung:5}  {name:22}  {_shown(place.below)}  {_shown(place.above)}  {_shown(lead)}" for name, place, lead in rows]
        return lines

    def _lead(self, family: Family, rung: str) -> float | None:
        if rung not in self.order[family] or (_is_advice(family) and rung == "L1"):
            return None
        own, below = self.order[family][rung]
        return own - below

    def record(self) -> dict[str, Any]:
        """A JSON-able record."""
        return {
            "is_kept": self.is_kept,
            "missed": [*self.unfaithful, *self.misplaced],
            "min_spearman": MIN_SPEARMAN,
            "overall": asdict(self.overall),
            "families": {str(family): asdict(curve) for family, curve in self.families.items()},
            "places": {str(family): {rung: asdict(place) for rung, place in rungs.items()} for family, rungs in self.places.items()},
            "frozen_rung_and_rung_below": {str(family): by_rung for family, by_rung in self.order.items()},
        }


def _is_advice(family: Family) -> bool:
    return family.intention is HiddenIntention.ADVICE


def _shown(value: float | None) -> str:
    return "     -" if value is None else f"{value:6.1f}"
