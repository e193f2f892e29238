"""The emotion rule of the preset SAGE: a reply is scored by numbers fitted on recorded conversations, and the change is one of SAGE's four.

pull = score of the reply + momentum of the last change + emotion's own pull; three thresholds on it part the changes -10, -5, 5 and 10,
other ones for a first reply.
The numbers stand in `emotion_sage.json` and are written by `python -m simulator fit`.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.dialogue import Dialogue
from simulator.emotion import QUANTA, VERBATIM_AT
from simulator.options import FITTED
from simulator.register import Register, clarity
from simulator.scenario import HiddenIntention, PersonaType, Scenario
from simulator.signs import signs
from simulator.wording import Wording

T = TypeVar("T", float, NDArray[np.float64])
Thresholds = tuple[float, float, float]

CONTEXT = ("intention", "persona", "turn", "offset")
"""Terms that are not the reply's."""
FEELINGS = {-10: "That was wide of the mark.", -5: "That did not help.", 5: "That helped a little.", 10: "That was what I needed."}
WORDING = "wording"
"""The term of a reply's wording."""
UNCLEAR, VERBATIM = "unclear", "verbatim"
FOLLOWED_FROM = 0.3
"""Clarity below which a reply is as bad as can be: it is empty, in another language or mostly garble."""
WATERSHED = 40
"""Emotion at which the user leans neither way by itself: SAGE's start."""


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """How the state pulls, in standard deviations of the named figures' score."""

    last: float
    """Times the last change / 10."""
    emotion: float
    """Times (emotion - 40) / 30."""

    def pull(self, last: T, emotion: T) -> T:
        """What the state adds to a score.

        Args:
            last: the change before, points.
            emotion: that the reply meets, 0-100.
        """
        return self.last * last / 10 + self.emotion * (emotion - WATERSHED) / 30


@dataclass(frozen=True, kw_only=True)
class SageNumbers:
    """The fitted numbers."""

    offset: float
    signs: Mapping[str, float]
    """Score per unit of each figure of `simulator.signs`."""
    by_intention: Mapping[HiddenIntention, Mapping[str, float]]
    """What a strategy counts more or less under a hidden intention."""
    intention: Mapping[HiddenIntention, float]
    persona: Mapping[PersonaType, float]
    first: float
    """Of the first reply."""
    turn: float
    """For each reply before this one."""
    wording: Wording
    """Of replies after the first."""
    momentum: Momentum
    first_thresholds: Thresholds
    """Scores at which the first change becomes -5, 5 and 10; without wording and momentum, first replies lie closer together."""
    thresholds: Thresholds
    """Pulls at which a later one does."""

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> SageNumbers:
        """Reads what `to_dict` wrote; other keys (the provenance) are passed over."""
        return cls(
            offset=numbers["offset"],
            signs=dict(numbers["signs"]),
            by_intention={HiddenIntention(name): dict(weights) for name, weights in numbers["by_intention"].items()},
            intention={HiddenIntention(name): weight for name, weight in numbers["intention"].items()},
            persona={PersonaType(name): weight for name, weight in numbers["persona"].items()},
            first=numbers["first"],
            turn=numbers["turn"],
            wording=Wording.from_dict(numbers["wording"]),
            momentum=Momentum(**numbers["momentum"]),
            first_thresholds=tuple(numbers["first_thresholds"]),
            thresholds=tuple(numbers["thresholds"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record."""
        thresholds = {"first_thresholds": list(self.first_thresholds), "thresholds": list(self.thresholds)}
        return {**vars(self), "wording": self.wording.to_dict(), "momentum": vars(self.momentum), **thresholds}

    def thresholds_at(self, num_before: int) -> Thresholds:
        """Those that hold after so many replies."""
        return self.thresholds if num_before else self.first_thresholds

    def terms(self, figures: Mapping[str, float], scenario: Scenario, num_before: int, reply: str) -> dict[str, float]:
        """What each thing adds to the score of a reply; what adds nothing is left out.

        Args:
            figures: `simulator.signs` of the reply.
            num_before: replies before this one.
        """
        family = scenario.family
        own = self.by_intention.get(family.intention, {})
        found = {name: (self.signs.get(name, 0.0) + own.get(name, 0.0)) * figure for name, figure in figures.items() if figure}
        found |= {"intention": self.intention[family.intention], "persona": self.persona[family.persona]}
        found |= {"turn": self.turn * num_before + (self.first if num_before == 0 else 0.0), "offset": self.offset}
        found[WORDING] = self.wording.adds(reply) if num_before else 0.0
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """One reply as a user of the preset SAGE took it."""

    guarded: str = ""
    """Why the reply could not please whatever its score: `unclear` or `verbatim`; recorded agents hardly ever are either."""
    terms: Mapping[str, float]
    """What each thing added to the score."""
    last: int
    """The change before."""
    emotion: int
    """That the reply met."""
    pull: float
    thresholds: Thresholds
    """That the pull met."""
    change: int

    @property
    def score(self) -> float:
        """Of this reply."""
        return sum(self.terms.values())

    @property
    def thought(self) -> str:
        """What helped most and what hurt most, in words."""
        told = {name.replace("_", " "): value for name, value in self.terms.items() if name not in CONTEXT}
        best, worst = max(told, key=told.__getitem__, default=""), min(told, key=told.__getitem__, default="")
        helped = f" What helped most: {best}." if best and told[best] > 0 else ""
        hurt = f" What hurt most: {worst}." if worst and told[worst] < 0 else ""
        return f"{FEELINGS[self.change]}{helped}{hurt}"


def weigh(dialogue: Dialogue, reply: str, given: SageNumbers | None = None) -> Weighed:
    """Weighs a reply that is not yet in the dialogue, by the committed numbers unless others are given."""
    numbers = given or calibrated()
    scenario, earlier = dialogue.scenario, dialogue.replies()
    figures = signs(reply, scenario, earlier)
    terms = numbers.terms(figures, scenario, len(earlier), reply)
    last, emotion = dialogue.turns[-1].change or 0, dialogue.emotion
    pull = sum(terms.values()) + numbers.momentum.pull(last, emotion)
    thresholds = numbers.thresholds_at(len(earlier))
    change, guarded = QUANTA[bisect(thresholds, pull)], ""
    if clarity(reply, Register.OPEN, facts=scenario.facts, other=scenario.other, language=scenario.language) < FOLLOWED_FROM:
        change, guarded = QUANTA[0], UNCLEAR
    elif figures["said_before"] >= VERBATIM_AT:
        change, guarded = min(change, QUANTA[1]), VERBATIM
    return Weighed(terms=terms, last=last, emotion=emotion, pull=pull, thresholds=thresholds, change=change, guarded=guarded)


def change_by_sage(dialogue: Dialogue, reply: str, given: SageNumbers | None = None) -> int:
    """Points, one of SAGE's four changes."""
    return weigh(dialogue, reply, given).change


@cache
def calibrated() -> SageNumbers:
    """The committed numbers."""
    return SageNumbers.from_dict(json.loads(FITTED.read_text(encoding="utf-8")))
