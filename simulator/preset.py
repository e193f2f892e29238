"""What in a reply moved the users of the recorded SAGE conversations: named figures that depend on words alone.

They are what `python -m simulator fit` weighs. Every count saturates, so that piling up words brings nothing, and nothing here looks at
how the user's own lines feel: the mood is the user's, not the transcript's.

How a reply is worded: a small learned reader that weighs pieces of one and two characters by hashed buckets.

No text is kept, only a figure for each bucket; which pieces of a reply weighed most can be told all the same, because the reply is at hand.
Source: the hashing of features is Weinberger et al., arXiv 0902.2206; the weights are fitted by `python -m simulator fit`.

The emotion rule of the preset SAGE: a reply is scored by numbers fitted on recorded conversations, and the change is one of SAGE's four.

pull = score of the reply + momentum of the last change + emotion's own pull; three thresholds on it part the changes -10, -5, 5 and 10,
other ones for a first reply.
The numbers stand in `emotion_sage.json` and are written by `python -m simulator fit`.
"""

from __future__ import annotations

import base64
import json
import math
import re
import tomllib
import zlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.dialogue import Dialogue
from simulator.emotion import QUANTA, VERBATIM_AT, against, meets
from simulator.lexicon import MAX_READ
from simulator.listener import Register, clarity, strategies_in
from simulator.scenario import Family, HiddenIntention, PersonaType, Scenario
from simulator.text import as_seen, characters_of

FITTED = Path(__file__).with_name("emotion_sage.json")
"""Where the preset SAGE reads its numbers."""


MANNERS = Path(__file__).parent / "lexicon" / "manner_zh.toml"
SENTENCE = re.compile(r"[^。！!？?\n；;.]+[。！!？?；;.]*")
STOCK_OPENING = re.compile("^.{0,4}(?:听起来|听到|我(?:能|可以|完全|非常|真的)*(?:理解|明白|感受))")
USUAL_LENGTH = 300
"""Characters of an ordinary recorded reply; `length` is the logarithm of its multiples."""
OPENING = 16
"""Characters by which two replies are seen to begin alike."""
MOST_SENTENCES = 3
"""A strategy heard in more sentences than this counts no more."""


@lru_cache(maxsize=65536)
def grams(text: str) -> frozenset[str]:
    """What a text is compared by: neighbouring pairs of Chinese characters, and words of the Latin alphabet."""
    han = "".join(characters_of(text))
    return frozenset([han[i : i + 2] for i in range(len(han) - 1)] + re.findall(r"[a-z]{3,}", as_seen(text).lower()))


@lru_cache(maxsize=65536)
def moves(reply: str, language: str) -> Mapping[str, int]:
    """How many sentences of a reply hold each strategy; strategies that are not heard are left out."""
    return Counter(strategy for sentence in SENTENCE.findall(reply) for strategy in strategies_in(sentence, language))


def signs(reply: str, scenario: Scenario, earlier: Sequence[str]) -> dict[str, float]:
    """The figures of one reply, in [0, 1] but for `length`; a strategy that is not heard is left out.

    Args:
        earlier: the agent's replies before this one.
    """
    heard = moves(reply, scenario.language)
    return {
        **{strategy: min(count, MOST_SENTENCES) / MOST_SENTENCES for strategy, count in heard.items()},
        **_fit(heard, scenario.family),
        **_manner(reply),
        **_repetition(reply, earlier),
    }


def _fit(heard: Mapping[str, int], family: Family) -> dict[str, float]:
    """Whether the moves are those that the hidden intention wants."""
    return {"meets": _share(heard, meets(family)), "against": _share(heard, against(family))}


def _share(heard: Mapping[str, int], strategies: frozenset[str]) -> float:
    """Mean over some strategies of their sentences, two counting in full; 0 without any strategy."""
    return sum(min(heard.get(strategy, 0), 2) / 2 for strategy in strategies) / len(strategies) if strategies else 0.0


def _manner(reply: str) -> dict[str, float]:
    """How it is spoken."""
    length = max(len(re.sub(r"\s", "", reply)), 5)
    density = {name: min(len(words.findall(reply)) * per / length, most) / most for name, (words, per, most) in manners().items()}
    return {
        **density,
        "length": max(-1.0, min(1.5, math.log(length / USUAL_LENGTH))),
        "stock_opening": float(bool(STOCK_OPENING.match(reply.strip()))),
    }


def _repetition(reply: str, earlier: Sequence[str]) -> dict[str, float]:
    """What the agent had said before."""
    said, before = grams(reply), frozenset().union(*map(grams, earlier))
    opening = grams(reply[:OPENING])
    return {
        "said_before": len(said & before) / max(len(said), 1),
        "same_opening": max((_overlap(opening, grams(other[:OPENING])) for other in earlier), default=0.0),
    }


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    """Jaccard."""
    return len(a & b) / len(a | b) if a or b else 0.0


@cache
def manners() -> dict[str, tuple[re.Pattern[str], float, float]]:
    """By manner its words, the characters per which they are counted, and the hits there that count in full."""
    with MANNERS.open("rb") as file:
        table = tomllib.load(file)
    return {name: (re.compile("|".join(entry["words"])), entry["per"], entry["most"]) for name, entry in table.items()}


Floats = NDArray[np.float64]

NUM_BUCKETS = 4096
STEP = 0.001
"""Unit in which weights are stored."""
STORED = np.dtype("<i2")


@dataclass(frozen=True, kw_only=True)
class Wording:
    """What each bucket adds to a score, per unit of its share in a reply."""

    weights: Floats
    """[NUM_BUCKETS]"""
    offset: float
    """What the wording of an ordinary reply comes to, taken off."""

    @classmethod
    def silent(cls) -> Wording:
        """One to which all wording is the same."""
        return cls(weights=np.zeros(NUM_BUCKETS), offset=0.0)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Wording:
        """Reads what `to_dict` wrote."""
        steps = np.frombuffer(base64.b64decode(stored["weights"]), STORED)
        return cls(weights=steps.astype(np.float64) * STEP, offset=stored["offset"])

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record: weights as whole multiples of STEP, 16 bits each, little-endian, in base64."""
        steps = np.clip(np.round(self.weights / STEP), np.iinfo(STORED).min, np.iinfo(STORED).max)
        return {"offset": self.offset, "weights": base64.b64encode(steps.astype(STORED).tobytes()).decode("ascii")}

    def adds(self, reply: str) -> float:
        """What a reply's wording adds to its score."""
        weights = self._plain
        return sum(weights[bucket] * share for bucket, share in shares(reply).items()) - self.offset

    def strongest(self, reply: str, most: int) -> dict[str, float]:
        """The pieces of a reply whose buckets add or take most, with what these do; pieces of one bucket stand together."""
        share, named = shares(reply), dict[int, list[str]]()
        for piece in dict.fromkeys(pieces(reply)):
            named.setdefault(bucket_of(piece), []).append(piece)
        added = {"/".join(named[bucket]): self._plain[bucket] * share[bucket] for bucket in named}
        return {piece: added[piece] for piece in sorted(added, key=lambda piece: -abs(added[piece]))[:most]}

    @cached_property
    def _plain(self) -> Sequence[float]:
        """The weights as Python's own numbers, which are looked up faster one by one."""
        return [float(weight) for weight in self.weights]


def pieces(text: str) -> Iterator[str]:
    """Every character, and every pair of neighbours; spaces do not count."""
    seen = re.sub(r"\s", "", as_seen(text).lower())[:MAX_READ]
    yield from seen
    yield from map("".join, pairwise(seen))


@lru_cache(maxsize=1 << 17)
def bucket_of(piece: str) -> int:
    """The same in every process."""
    return zlib.crc32(piece.encode("utf-8", "surrogatepass")) % NUM_BUCKETS


@lru_cache(maxsize=4096)
def shares(text: str) -> Mapping[int, float]:
    """By bucket its share in a text: logarithms of counts, scaled to length 1 so that a longer text weighs no more."""
    counts = Counter(map(bucket_of, pieces(text)))
    size = math.sqrt(sum(math.log1p(count) ** 2 for count in counts.values()))
    return {bucket: math.log1p(count) / size for bucket, count in counts.items()}


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
    """Score per unit of each figure of `simulator.preset`."""
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
            figures: `simulator.preset` of the reply.
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
