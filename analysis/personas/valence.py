"""Whether a user's words fit how it feels: a reader of mood that knows no emotion and no rule, only words."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulator.dialogue import Turn
from simulator.scenario import Scenario

LEXICON = Path(__file__).parent / "valence.toml"
AT_EASE_FROM, HURT_BELOW = 70, 30
"""Emotion from which a user must not sound low, and below which it must not sound high; 70 is where SAGE's users are at ease."""


@dataclass(frozen=True, kw_only=True)
class Mood:
    """What a line sounds like; both or neither may be."""

    low: tuple[str, ...]
    """Words of somebody close to giving up."""
    high: tuple[str, ...]
    """Words of somebody at ease."""


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    with LEXICON.open("rb") as file:
        table = tomllib.load(file)
    classes = table.pop("classes")
    filled = {name: [re.sub(r"\{(\w+)\}", lambda found: classes[found[1]], item) for item in items] for name, items in table.items()}
    return {name: re.compile(rf"\b(?:{'|'.join(items)})\b", re.IGNORECASE) for name, items in filled.items()}


def mood_of(line: str, scenario: Scenario | None = None) -> Mood:
    """How a line sounds.

    Args:
        scenario: whose facts are story and not mood.
    """
    for fact in scenario.facts if scenario else ():
        line = line.replace(fact.text, " ")
    patterns = _patterns()
    taken_back = [found.span() for found in patterns["unless"].finditer(line)]

    def heard(kind: str) -> tuple[str, ...]:
        found = patterns[kind].finditer(line)
        return tuple(one.group().lower() for one in found if not any(one.start() < end and begin < one.end() for begin, end in taken_back))

    return Mood(low=heard("low"), high=heard("high"))


def contradicts_emotion(turn: Turn, scenario: Scenario) -> tuple[str, ...]:
    """The words of a user's turn that cannot be those of somebody who feels so; empty where they can."""
    if turn.emotion is None or AT_EASE_FROM > turn.emotion >= HURT_BELOW:
        return ()
    mood = mood_of(turn.text, scenario)
    return mood.low if turn.emotion >= AT_EASE_FROM else mood.high
