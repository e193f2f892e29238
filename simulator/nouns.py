"""Which words name things: those that the training world says after a determiner, where a noun ends the phrase."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from itertools import chain

from simulator.bank import load_bank, read_toml
from simulator.fluency import END, FUNCTION_WORDS, words_of
from simulator.scenario import Fact, Split

DETERMINERS = frozenset("the a an my your her his their our its that those this these every each no two three".split())
CLOSERS = FUNCTION_WORDS | frozenset(
    "after before from into over under behind without because since until while near every last next again where or up down out off".split()
)
"""Words that a noun phrase does not go on with."""


@cache
def nouns() -> frozenset[str]:
    """Words that stand last in a noun phrase of a training fact, but for those that a reply may hold whatever was told ("a list")."""
    facts = {fact for scenario in load_bank().scenarios(Split.TRAIN) for fact in scenario.facts}
    found: set[str] = set()
    for sentence in chain.from_iterable(re.split(r"[.?!,]", fact.text) for fact in facts):
        words = words_of(sentence)
        found.update(_closing_words((*words, END, END)))
    said_anyway = {word for move in read_toml("moves").values() for line in (*move["grounded"], *move["plain"]) for word in words_of(line)}
    return frozenset(found - said_anyway)


def _closing_words(words: tuple[str, ...]) -> set[str]:
    found = set()
    for first, second, third, fourth in zip(words, words[1:], words[2:], (*words[3:], END), strict=False):
        if first not in DETERMINERS or second in CLOSERS or second == END:
            continue
        if third in CLOSERS or third == END:
            found.add(second)
        elif fourth in CLOSERS or fourth == END:
            found.add(third)
    return found


@lru_cache(maxsize=4096)
def nouns_of(facts: tuple[Fact, ...], other: str) -> tuple[frozenset[str], ...]:
    """Per fact, the things it tells of: its cue's last word, and nouns that no other fact has and that are not the other person."""
    heads = [words_of(fact.cue)[-1] for fact in facts]
    told = [({*words_of(fact.text)} & nouns()) - {*heads, *words_of(other)} for fact in facts]
    times = [word for words in told for word in words]
    return tuple(frozenset({head, *(word for word in words if times.count(word) == 1)}) for head, words in zip(heads, told, strict=True))
