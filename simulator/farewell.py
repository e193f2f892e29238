"""Whether an agent says goodbye, or only tells of one."""

from __future__ import annotations

import re

from simulator.ears import lexicon
from simulator.fluency import words_of
from simulator.seen import as_seen

FAREWELLS = frozenset(("goodbye", "bye", "farewell"))
FAREWELL_TOLD = re.compile(
    r"\b(?:say|says|saying|said|wave|waved|waving|kiss|kissed|bid|a|the|your|his|her|their|that|this|last|final|proper|no|of|without)"
    r" (?:[a-z]+ )?(?:goodbye|bye|farewell)\b"
    r"|\b(?:goodbye|bye|farewell) (?:to (?!you\b)|party|dinner|letter|card|drinks|speech|present|hug|kiss)"
)
"""A goodbye that is told of, or asked about."""
OWN_FAREWELL = re.compile(
    r"(?:^|,) *(?:(?:and|so|well|okay|now|then|but),? )*(?:i|we|let us|let me|time to|it is time to)"
    r" (?:(?:now|just|must|have to|will|should|shall|need to|want to|would like to|am going to|are going to) )*"
    r"(?:say|wave|bid you) (?:[a-z]+ )?(?:goodbye|bye|farewell)\b(?! to (?!you\b))"
)
"""A goodbye that the agent says, in words that could tell of one."""
FAREWELL_IN_CHINESE = re.compile(r"(?<![说道声的])(?:再见|拜拜)[啦了吧哦呀]?(?=[,.。!~\s]|$)")


def tells_of_goodbye(reply: str) -> bool:
    """Whether every goodbye in it is one that is told of: somebody else's, or a thing."""
    ears = lexicon()
    saying = [sentence for sentence in ears.sentences(ears.plain(reply)) if not FAREWELLS.isdisjoint(words_of(sentence))]
    return bool(saying) and all(
        FAREWELLS.isdisjoint(words_of(FAREWELL_TOLD.sub(" ", sentence))) and not OWN_FAREWELL.search(sentence) for sentence in saying
    )


def says_goodbye(reply: str) -> bool:
    """Whether a goodbye is in it, whoever says it."""
    return not FAREWELLS.isdisjoint(words_of(reply)) or (not reply.isascii() and bool(FAREWELL_IN_CHINESE.search(as_seen(reply))))
