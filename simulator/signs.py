"""What in a reply moved the users of the recorded SAGE conversations: named figures, most of them in [0, 1], that depend on words alone.

They are what `python -m simulator fit` weighs. Counts saturate, so that piling up words brings nothing, and nothing here looks at how
the user's own lines feel: the mood is the user's, not the transcript's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

from simulator.reading import strategies_in
from simulator.scenario import Scenario
from simulator.skills import against, meets
from simulator.wishes import wishes_of

SENTENCE = re.compile(r"[^。！!？?\n；;.]+[。！!？?；;.]*")
LISTED = re.compile(r"(?m)^\s*(?:\d+[.、)]|[-*•])")
EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]")
GESTURE = re.compile(r"(?m)^\s*[（(*][^）)*\n]{2,60}[）)*]")
CASUAL = re.compile("[啊呀呢吧嘛啦哦诶哎唉]")
USUAL_LENGTH = 300
"""Characters of an ordinary recorded reply."""
TOLD_ENOUGH = 30
"""Pairs of characters taken up from earlier turns beyond which more count no more."""


@lru_cache(maxsize=65536)
def grams(text: str) -> frozenset[str]:
    """What a text is compared by: neighbouring pairs of Chinese characters, and words of the Latin alphabet."""
    han = re.sub(r"[^\u4e00-\u9fff]", "", text)
    return frozenset([han[i : i + 2] for i in range(len(han) - 1)] + re.findall(r"[a-z]{3,}", text.lower()))


@lru_cache(maxsize=65536)
def moves(reply: str, language: str) -> Mapping[str, int]:
    """How many sentences of a reply hold each strategy; strategies that are not heard are left out."""
    return Counter(strategy for sentence in SENTENCE.findall(reply) for strategy in strategies_in(sentence, language))


def signs(reply: str, scenario: Scenario, told: Sequence[str], earlier: Sequence[str]) -> dict[str, float]:
    """The figures of one reply; a strategy that is not heard is left out.

    Args:
        told: the user's turns so far, the opening first.
        earlier: the agent's replies before this one.
    """
    heard = moves(reply, scenario.language)
    return {
        **{strategy: min(count, 3) / 3 for strategy, count in heard.items()},
        **_form(reply),
        **_ties(reply, told, earlier, scenario.language),
        **_aim(reply, heard, scenario, told),
    }


def _form(reply: str) -> dict[str, float]:
    length = max(len(re.sub(r"\s", "", reply)), 5)
    return {
        "length": math.log(length / USUAL_LENGTH),
        "short": float(length < 60),
        "long": max(0.0, math.log(length / 450)),
        "listed": min(len(LISTED.findall(reply)), 5) / 5,
        "bold": float("**" in reply),
        "exclaimed": min(len(re.findall("[!！]", reply)), 4) / 4,
        "emoji": min(len(EMOJI.findall(reply)), 2) / 2,
        "gesture": float(bool(GESTURE.search(reply))),
        "ends_asking": float(bool(re.search(r"[?？][^。！]{0,6}$", reply.strip()))),
        "casual": min(len(CASUAL.findall(reply)), 5) / 5,
        "you": min(reply.count("你") / length * 30, 2.0) / 2,
        "together": float("我们" in reply or "咱" in reply),
        "quoted": min(len(re.findall("[“\"「]", reply)), 3) / 3,
        "understood": float(bool(re.search("(?:理解|明白|懂)你", reply))),
    }


def _ties(reply: str, told: Sequence[str], earlier: Sequence[str], language: str) -> dict[str, float]:
    """To what the user said, and to what the agent said before."""
    said, last = grams(reply), grams(told[-1])
    before = frozenset().union(*map(grams, told[:-1])) - last
    past = [grams(reply_) for reply_ in earlier]
    own = frozenset().union(*past)
    kinds = set(moves(reply, language))
    return {
        "echo": len(last & said) / max(len(last), 1),
        "taken_up": min(len(said & before), TOLD_ENOUGH) / TOLD_ENOUGH,
        "repetition": max((_overlap(said, other) for other in past), default=0.0),
        "said_before": len(said & own) / max(len(said), 1),
        "same_opening": max((_overlap(grams(reply[:16]), grams(other[:16])) for other in earlier), default=0.0),
        "same_moves": max((_overlap(kinds, set(moves(other, language))) for other in earlier[-2:]), default=0.0),
    }


def _aim(reply: str, heard: Mapping[str, int], scenario: Scenario, told: Sequence[str]) -> dict[str, float]:
    """How the reply meets the hidden intention, by kind and by what the profile says of it."""
    wishes, said = wishes_of(scenario.background), grams(reply)
    shown = frozenset().union(*map(grams, told))
    up, down = grams(wishes.raises), grams(wishes.lowers)
    return {
        "meets": _share(heard, meets(scenario.family)),
        "against": _share(heard, against(scenario.family)),
        "wished": _share(heard, wishes.wished),
        "resented": _share(heard, wishes.resented),
        "near_raises": min(len(said & (up - down - shown)), 10) / 10,
        "near_lowers": min(len(said & (down - up - shown)), 10) / 10,
        "near_story": min(len(said & (grams(scenario.background) - up - down - shown)), 60) / 60,
    }


def _share(heard: Mapping[str, int], strategies: frozenset[str]) -> float:
    """Mean saturated count over some strategies, in [0, 1]; 0 without any."""
    return sum(min(heard.get(strategy, 0), 2) / 2 for strategy in strategies) / len(strategies) if strategies else 0.0


def _overlap(a: frozenset[str] | set[str], b: frozenset[str] | set[str]) -> float:
    """Jaccard."""
    return len(a & b) / len(a | b) if a or b else 0.0
