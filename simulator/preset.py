"""The emotion rule of the preset SAGE: a reply is scored by numbers fitted on recorded conversations.

pull = score of the reply + momentum of the last change + pull of the emotion. Three thresholds on it separate SAGE's changes -10, -5, 5 and
10; a first reply has its own. The numbers are in `emotion_sage.json`, written by `python -m simulator fit`. All features depend on words
alone, and every count saturates, so that piling up words gains nothing.
Source: feature hashing of the wording is Weinberger et al., arXiv 0902.2206.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from simulator.dialogue import Dialogue
from simulator.emotion import QUANTA, VERBATIM_AT, against, meets
from simulator.lexicon import Lexicon
from simulator.listener import Register, clarity, strategies_in
from simulator.scenario import HiddenIntention, PersonaType, Scenario
from simulator.text import as_seen, characters_of
from simulator.world import LEXICON, read_toml

T = TypeVar("T", float, NDArray[np.float64])
Thresholds = tuple[float, float, float]


@lru_cache(maxsize=65536)
def grams(text: str) -> frozenset[str]:
    """Neighbouring pairs of Chinese characters, and words of the Latin alphabet."""
    han = "".join(characters_of(text))
    return frozenset([han[i : i + 2] for i in range(len(han) - 1)] + re.findall(r"[a-z]{3,}", as_seen(text).lower()))


@lru_cache(maxsize=65536)
def moves(reply: str, language: str) -> Mapping[str, int]:
    """How many sentences of a reply show each strategy; strategies that are not shown are left out."""
    sentences = re.findall(r"[^。！!？?\n；;.]+[。！!？?；;.]*", reply)
    return Counter(strategy for sentence in sentences for strategy in strategies_in(sentence, language))


def signs(reply: str, scenario: Scenario, earlier: Sequence[str]) -> dict[str, float]:
    """The features of one reply, in [0, 1] but for `length`; a strategy that is not shown is left out.

    Args:
        earlier: the agent's replies before this one.
    """
    heard = moves(reply, scenario.language)
    found = {strategy: min(count, 3) / 3 for strategy, count in heard.items()}
    for name, wanted in (("meets", meets(scenario.family)), ("against", against(scenario.family))):
        # Mean over these strategies, two sentences counting in full.
        found[name] = sum(min(heard.get(strategy, 0), 2) / 2 for strategy in wanted) / len(wanted) if wanted else 0.0
    length = max(len(re.sub(r"\s", "", reply)), 5)
    # Manners of speaking: the words of each, the characters per which they are counted, and the number that counts in full.
    for name, manner in read_toml("manner_zh", LEXICON).items():
        num_words = len(re.findall("|".join(manner["words"]), reply))
        found[name] = min(num_words * manner["per"] / length, manner["most"]) / manner["most"]
    found["length"] = max(-1.0, min(1.5, math.log(length / 300)))
    stock_opening = "^.{0,4}(?:听起来|听到|我(?:能|可以|完全|非常|真的)*(?:理解|明白|感受))"
    found["stock_opening"] = float(bool(re.match(stock_opening, reply.strip())))
    # The first 16 characters are an opening.
    said, opening, openings = grams(reply), grams(reply[:16]), [grams(other[:16]) for other in earlier]
    found["said_before"] = len(said & frozenset().union(*map(grams, earlier))) / max(len(said), 1)
    overlaps = (len(opening & other) / len(opening | other) if opening or other else 0.0 for other in openings)
    found["same_opening"] = max(overlaps, default=0.0)
    return found


@dataclass(frozen=True, kw_only=True)
class Wording:
    """A linear text regressor over hashed characters and pairs of characters."""

    NUM_BUCKETS: ClassVar = 4096
    STEP: ClassVar = 0.001
    """Unit in which weights are stored."""

    weights: NDArray[np.float64]
    """[NUM_BUCKETS]: what a bucket adds to a score per unit of its share in a reply."""
    offset: float
    """The wording of an ordinary reply, subtracted."""

    @classmethod
    def silent(cls) -> Wording:
        """One that ignores the wording."""
        return cls(weights=np.zeros(cls.NUM_BUCKETS), offset=0.0)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Wording:
        """The inverse of `to_dict`."""
        return cls(weights=np.frombuffer(base64.b64decode(stored["weights"]), "<i2") * cls.STEP, offset=stored["offset"])

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record: weights as whole multiples of STEP, 16 bits each, little-endian, in base64."""
        steps = np.clip(np.round(self.weights / self.STEP), -(2**15), 2**15 - 1).astype("<i2")
        return {"offset": self.offset, "weights": base64.b64encode(steps.tobytes()).decode("ascii")}

    @staticmethod
    def pieces(text: str) -> Iterator[str]:
        """Every character, and every pair of neighbours; spaces do not count."""
        seen = re.sub(r"\s", "", as_seen(text).lower())[: Lexicon.MAX_READ]
        yield from seen
        yield from map("".join, pairwise(seen))

    @staticmethod
    @lru_cache(maxsize=1 << 17)
    def bucket_of(piece: str) -> int:
        """The same in every process."""
        return zlib.crc32(piece.encode("utf-8", "surrogatepass")) % Wording.NUM_BUCKETS

    @staticmethod
    @lru_cache(maxsize=4096)
    def shares(text: str) -> Mapping[int, float]:
        """Share of each bucket in a text: logarithms of counts, scaled to length 1 so that a longer text weighs no more."""
        counts = Counter(map(Wording.bucket_of, Wording.pieces(text)))
        size = math.sqrt(sum(math.log1p(count) ** 2 for count in counts.values()))
        return {bucket: math.log1p(count) / size for bucket, count in counts.items()}

    def adds(self, reply: str) -> float:
        """What a reply's wording adds to its score."""
        return sum(self._plain[bucket] * share for bucket, share in self.shares(reply).items()) - self.offset

    def strongest(self, reply: str, most: int) -> dict[str, float]:
        """The pieces of a reply with the largest contributions, and these; pieces of one bucket are joined."""
        share, named = self.shares(reply), dict[int, list[str]]()
        for piece in dict.fromkeys(self.pieces(reply)):
            named.setdefault(self.bucket_of(piece), []).append(piece)
        added = {"/".join(named[bucket]): self._plain[bucket] * share[bucket] for bucket in named}
        return {piece: added[piece] for piece in sorted(added, key=lambda piece: -abs(added[piece]))[:most]}

    @cached_property
    def _plain(self) -> Sequence[float]:
        """The weights as Python floats, which are faster to look up one by one."""
        return self.weights.tolist()


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """Pull of the user's state, in standard deviations of the score of the named features."""

    WATERSHED: ClassVar = 40
    """Emotion without a pull of its own: SAGE's start."""

    last: float
    """Times the last change / 10."""
    emotion: float
    """Times (emotion - 40) / 30."""

    def pull(self, last: T, emotion: T) -> T:
        """What the state adds to a score.

        Args:
            last: the change before, points.
            emotion: before the reply, 0-100.
        """
        return self.last * last / 10 + self.emotion * (emotion - self.WATERSHED) / 30


@dataclass(frozen=True, kw_only=True)
class SageNumbers:
    """The fitted numbers."""

    FILE: ClassVar = Path(__file__).with_name("emotion_sage.json")

    offset: float
    signs: Mapping[str, float]
    """Score per unit of each feature."""
    by_intention: Mapping[HiddenIntention, Mapping[str, float]]
    """Additional score of a feature under a hidden intention."""
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
    """Pulls at which a later change does."""

    @staticmethod
    @cache
    def calibrated() -> SageNumbers:
        """The shipped numbers."""
        return SageNumbers.from_dict(json.loads(SageNumbers.FILE.read_text(encoding="utf-8")))

    @classmethod
    def from_dict(cls, numbers: Mapping[str, Any]) -> SageNumbers:
        """The inverse of `to_dict`; other keys (the provenance) are ignored."""
        return cls(
            **{name: numbers[name] for name in ("offset", "first", "turn", "signs")},
            by_intention={HiddenIntention(name): weights for name, weights in numbers["by_intention"].items()},
            intention={HiddenIntention(name): weight for name, weight in numbers["intention"].items()},
            persona={PersonaType(name): weight for name, weight in numbers["persona"].items()},
            wording=Wording.from_dict(numbers["wording"]),
            momentum=Momentum(**numbers["momentum"]),
            first_thresholds=tuple(numbers["first_thresholds"]),
            thresholds=tuple(numbers["thresholds"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record."""
        thresholds = {"first_thresholds": list(self.first_thresholds), "thresholds": list(self.thresholds)}
        return {**vars(self), "wording": self.wording.to_dict(), "momentum": vars(self.momentum), **thresholds}

    def terms(self, figures: Mapping[str, float], scenario: Scenario, num_before: int, reply: str) -> dict[str, float]:
        """The terms of a reply's score by name; zeros are left out.

        Args:
            figures: `signs` of the reply.
            num_before: replies before this one.
        """
        family = scenario.family
        own = self.by_intention.get(family.intention, {})
        found = {name: (self.signs.get(name, 0.0) + own.get(name, 0.0)) * figure for name, figure in figures.items() if figure}
        found |= {"intention": self.intention[family.intention], "persona": self.persona[family.persona]}
        found |= {"turn": self.turn * num_before if num_before else self.first, "offset": self.offset}
        found["wording"] = self.wording.adds(reply) if num_before else 0.0
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """One reply as weighed by a user of the preset SAGE."""

    CONTEXT: ClassVar = ("intention", "persona", "turn", "offset")
    """Terms that do not depend on the reply."""

    guarded: str = ""
    """Why the reply could not please whatever its score: `unclear` or `verbatim`; recorded agents hardly ever are either."""
    terms: Mapping[str, float]
    """Terms of the score."""
    last: int
    """The change before."""
    emotion: int
    """Before the reply, 0-100."""
    pull: float
    thresholds: Thresholds
    change: int

    @property
    def score(self) -> float:
        """Of this reply."""
        return sum(self.terms.values())

    @property
    def thought(self) -> str:
        """The feeling, with the features that helped most and hurt most."""
        named = {name.replace("_", " "): value for name, value in self.terms.items() if name not in self.CONTEXT}
        best, worst = max(named, key=named.__getitem__, default=""), min(named, key=named.__getitem__, default="")
        helped = f" What helped most: {best}." if best and named[best] > 0 else ""
        hurt = f" What hurt most: {worst}." if worst and named[worst] < 0 else ""
        feelings = {-10: "That was wide of the mark.", -5: "That did not help.", 5: "That helped a little.", 10: "That was what I needed."}
        return f"{feelings[self.change]}{helped}{hurt}"


def weigh(dialogue: Dialogue, reply: str, given: SageNumbers | None = None) -> Weighed:
    """Weighs a reply that is not yet in the dialogue, by the shipped numbers unless others are given."""
    numbers, scenario, earlier = given or SageNumbers.calibrated(), dialogue.scenario, dialogue.replies()
    figures = signs(reply, scenario, earlier)
    terms = numbers.terms(figures, scenario, len(earlier), reply)
    last, emotion = dialogue.turns[-1].change or 0, dialogue.emotion
    pull = sum(terms.values()) + numbers.momentum.pull(last, emotion)
    thresholds = numbers.thresholds if earlier else numbers.first_thresholds
    change, guarded = QUANTA[bisect(thresholds, pull)], ""
    if clarity(reply, Register.OPEN, facts=scenario.facts, other=scenario.other, language=scenario.language) < 0.3:
        change, guarded = QUANTA[0], "unclear"  # empty, in another language or mostly garble
    elif figures["said_before"] >= VERBATIM_AT:
        change, guarded = min(change, QUANTA[1]), "verbatim"
    return Weighed(terms=terms, last=last, emotion=emotion, pull=pull, thresholds=thresholds, change=change, guarded=guarded)
