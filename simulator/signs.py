"""What in a reply moved the users of the recorded SAGE conversations: named figures that depend on words alone.

They are what `python -m simulator fit` weighs. Every count saturates, so that piling up words brings nothing, and nothing here looks at
how the user's own lines feel: the mood is the user's, not the transcript's.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

from simulator.chinese import characters_of
from simulator.reading import strategies_in
from simulator.scenario import Family, Scenario
from simulator.seen import as_seen
from simulator.skills import against, meets

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
