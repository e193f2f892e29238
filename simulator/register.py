"""How closely a user listens to the words themselves: as to anybody's English, or as to the small language of the built-in world."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cache, lru_cache
from itertools import chain, pairwise

from simulator.bank import load_bank, read_toml
from simulator.chinese import fluency_in_chinese
from simulator.fluency import END, fluency, words_of
from simulator.memo import by_facts
from simulator.nouns import nouns
from simulator.scenario import Fact, Split
from simulator.seen import as_seen

CUE, OTHER, FEELING, START = "<cue>", "<other>", "<feeling>", "<s>"
Phrases = Sequence[Mapping[tuple[str, ...], str]]
"""Tables from the words of a phrase to the slot that it fills; the first that has it counts."""
DETERMINERS = frozenset(["the", "your", "that", "those", "this", "these", "her", "his", "their", "its", "a", "an"])
MAX_PHRASE = 5
"""Words in the longest phrase that fills a slot."""
STRICTNESS = 3.0
"""Fluency lost per share of word triples that the world's language does not have."""


class Register(StrEnum):
    """Which language a user takes as fluent."""

    OPEN = "open"
    """Ordinary English or Chinese: for people and for models that speak it."""
    WORLD = "world"
    """The moves of the built-in world about what this user told: for the embedded policy, which speaks nothing else. There, any string of
    words that ordinary English might just bear would be a way to be paid for garble."""


def clarity(text: str, register: Register, *, facts: tuple[Fact, ...], other: str, language: str = "en") -> float:
    """How much of a reply can be followed, in [0, 1].

    Args:
        facts: the scenario's.
        other: the scenario's other person.
        language: what the user understands, `en` or `zh`; the embedded world's own language is English.
    """
    if language == "zh":
        return fluency_in_chinese(text)
    return _world_clarity(facts, other, text) if register is Register.WORLD else fluency(text)


@by_facts(maxsize=65536)
def _world_clarity(facts: tuple[Fact, ...], other: str, text: str) -> float:
    """1 less STRICTNESS times the share of word triples, slots counting as words, that no move has."""
    known, strange, total = _triples(), 0, 0
    for sentence in re.split(r"[.?!]", as_seen(text)):
        words = words_of(sentence)
        if words:
            phrases = _phrases(facts, other)
            slotted = _with_slots(words, phrases)
            total += len(slotted)
            num_strange = sum(triple not in known for triple in _triples_of(slotted))
            if num_strange:
                # "the rest" may be a thing that was told or a part of the move itself; the kinder reading counts.
                literal = _with_slots(words, phrases, keep=_literal_pairs())
                num_strange = min(num_strange, sum(triple not in known for triple in _triples_of(literal)))
            strange += num_strange
    return max(0.0, 1.0 - STRICTNESS * strange / total) if total else 0.0


def _with_slots(words: tuple[str, ...], phrases: Phrases, keep: frozenset[tuple[str, ...]] = frozenset()) -> list[str]:
    """The words with things, the other person and feelings replaced by their slots, but for those to keep; the longest phrase counts."""
    slotted: list[str] = []
    begins = _first_words()
    i = 0
    while i < len(words):
        word, size = words[i], 1
        if word in begins:
            for n in range(min(MAX_PHRASE, len(words) - i), 0, -1):
                phrase = words[i : i + n]
                slot = next((table[phrase] for table in phrases if phrase in table), None)
                if slot and phrase not in keep:
                    word, size = slot, n
                    break
        slotted.append(word)
        i += size
    return slotted


@by_facts(maxsize=4096)
@lru_cache(maxsize=4096)
def _phrases(facts: tuple[Fact, ...], other: str) -> Phrases:
    """What fills a slot in this scenario: things under any determiner, the other person ("your choir friend", "your friend"), feelings."""
    person = words_of(other)
    return {**_named(facts), ("your", *person): OTHER, ("your", person[-1]): OTHER}, _things_and_feelings()


@cache
def _first_words() -> frozenset[str]:
    """Words with which something that fills a slot can begin: all that is worth looking up."""
    return DETERMINERS | {phrase[0] for phrase in _things_and_feelings()}


@cache
def _things_and_feelings() -> dict[tuple[str, ...], str]:
    """Things of which anybody might speak: to name one that the user did not tell of misses the point, but it can be followed."""
    cues = _named(tuple(fact for scenario in load_bank().scenarios(Split.TRAIN) for fact in scenario.facts))
    things = {(determiner, noun): CUE for noun in nouns() for determiner in DETERMINERS}
    return things | cues | dict.fromkeys(_feelings(), FEELING)


def _named(facts: tuple[Fact, ...]) -> dict[tuple[str, ...], str]:
    bare = {cue[1:] if cue[0] in DETERMINERS else cue for cue in (words_of(fact.cue) for fact in facts)}
    return {(determiner, *words): CUE for words in bare for determiner in DETERMINERS}


@cache
def _feelings() -> frozenset[tuple[str, ...]]:
    return frozenset(words_of(feeling) for scenario in load_bank().scenarios(Split.TRAIN) for feeling in scenario.feelings) | {("hurt",)}


@cache
def _triples() -> frozenset[tuple[str, str, str]]:
    """Neighbouring triples of all moves, sentence by sentence."""
    slots = {"{cue}": CUE, "{other}": OTHER, "{other_cap}": OTHER, "{feeling}": FEELING}
    triples: set[tuple[str, str, str]] = set()
    for move in read_toml("moves").values():
        for line in (*move["grounded"], *move["plain"]):
            for sentence in re.split(r"[.?!]", line):
                words = tuple(slots.get(word, word) for word in _words_and_slots(sentence))
                if words:
                    triples.update(_triples_of(list(words)))
                    triples.update(_triples_of(_with_slots(words, (_things_and_feelings(),))))
    return frozenset(triples)


@cache
def _literal_pairs() -> frozenset[tuple[str, ...]]:
    """Neighbouring words that stand in the moves themselves, and single words of them."""
    lines = [line for move in read_toml("moves").values() for line in (*move["grounded"], *move["plain"])]
    sentences = [_words_and_slots(sentence) for line in lines for sentence in re.split(r"[.?!]", line)]
    return frozenset(chain.from_iterable(((a,), (a, b)) for words in sentences for a, b in pairwise((*words, END))))


def _words_and_slots(sentence: str) -> list[str]:
    return re.findall(r"\{\w+\}|[a-z]+(?:'(?!s\b)[a-z]+)?", sentence.lower())


def _triples_of(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """As many triples as words, each centred on one of them."""
    padded = [START, *words, END]
    return zip(padded, padded[1:], padded[2:], strict=False)
