"""Lexicons: a language's regular expressions for support strategies and for contempt, compiled for fast search."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from simulator.world import LEXICON, read_toml

LANGUAGES = ("en", "zh")
MAX_READ = 3000
"""Characters of a reply that are searched for strategies and contempt."""
MAX_SENTENCE = 400
"""Characters of a sentence that are searched."""
REPORTED = re.compile(r"(said|says|say|told you|think|thinks|thought|heard),|(说|说过|骂|骂你|讲|觉得|认为|以为)[，：]")
"""A verb that reports the clause behind it; both form one clause."""
ENDS = " .!?;。！？；"


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Expressions compiled into two: those that a sentence must begin with, and those that may occur anywhere in it."""

    opening: re.Pattern[str] | None
    anywhere: re.Pattern[str] | None

    def match(self, sentence: str, begin: int = 0) -> bool:
        """Whether one of them matches a normalised sentence (in English with a space before it).

        Args:
            begin: place where the sentence begins behind its opening words.
        """
        return bool((self.opening and self.opening.match(sentence, begin)) or (self.anywhere and self.anywhere.search(sentence)))


@dataclass(frozen=True, kw_only=True)
class StrategyPattern:
    """How one support strategy is recognised."""

    strategy: str
    claims: bool
    """A sentence that shows it shows none of the strategies after it."""
    shown: Shapes
    unless: Shapes
    """Exceptions."""
    alone: Shapes
    """Count only in a sentence that shows no other strategy."""
    across: Shapes
    """Searched in the whole reply, beyond the ends of sentences."""


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """The strategies of one language."""

    writing: Mapping[str, str]
    """How sentences begin and end (`[writing]` of the file)."""
    openings: re.Pattern[str]
    """Words that may come before the opening of a sentence."""
    patterns: tuple[StrategyPattern, ...]
    """In the order of the file."""

    def sentences(self, text: str) -> list[str]:
        """The sentences of a normalised text, each cut at MAX_SENTENCE."""
        ends = self.writing["ends"]
        return [sentence[:MAX_SENTENCE] for sentence in re.findall(rf"[^{ends}]+[{ends}]*", text)]

    def strategies(self, sentence: str) -> list[str]:
        """Strategies that one normalised sentence shows."""
        sentence = self.writing["before"] + sentence.strip()
        opening = self.openings.match(sentence)
        begin = opening.end() if opening else 0
        found: list[str] = []
        for pattern in self.patterns:
            if pattern.shown.match(sentence, begin) and not pattern.unless.match(sentence, begin):
                found.append(pattern.strategy)
                if pattern.claims:
                    break
        if found:
            return found
        alone = (one for one in self.patterns if one.alone.match(sentence, begin) and not one.unless.match(sentence, begin))
        return [pattern.strategy for pattern in alone][:1]

    def strategies_across(self, text: str) -> list[str]:
        """Strategies that take more than one sentence of a normalised text."""
        return [pattern.strategy for pattern in self.patterns if pattern.across.match(self.writing["before"] + text)]


@cache
def lexicon(language: str = "en") -> Lexicon:
    """The lexicon of a language, compiled when it is first needed.

    Raises:
        ValueError: there is none.
    """
    if language not in LANGUAGES:
        raise ValueError(f"scenario.language must be one of {', '.join(LANGUAGES)} to be read, got {language!r}")
    table = read_toml(language, LEXICON)
    writing, classes = table["writing"], dict[str, str]()

    def filled(pattern: str) -> str:
        return re.sub(r"\{([a-z_]+)\}", lambda name: classes[name[1]], pattern)

    def compiled(patterns: list[str]) -> re.Pattern[str] | None:
        return re.compile(f"{writing['before']}(?:{either(patterns)}){writing['after']}") if patterns else None

    def shapes(entry: Mapping[str, Any], kind: str) -> Shapes:
        patterns = [filled(pattern) for pattern in entry.get(kind, ())]
        opening = [pattern[1:] for pattern in patterns if pattern.startswith("^")]
        return Shapes(opening=compiled(opening), anywhere=compiled([pattern for pattern in patterns if not pattern.startswith("^")]))

    for name, entries in table["classes"].items():  # a class may name those before it
        classes[name] = f"(?:{either([filled(entry) for entry in entries.split(', ')])})"
    openings = sorted(table["openings"]["words"].split(", "), key=len, reverse=True)
    return Lexicon(
        writing=writing,
        openings=re.compile(f"(?:{writing['before']}(?:{'|'.join(openings)})[,，]?(?={writing['before']}))*"),
        patterns=tuple(
            StrategyPattern(
                strategy=strategy,
                claims=entry.get("claims", False),
                shown=shapes(entry, "patterns"),
                **{kind: shapes(entry, kind) for kind in ("unless", "alone", "across")},
            )
            for strategy, entry in table["strategies"].items()
        ),
    )


@lru_cache(maxsize=65536)
def contempt_in(sentence: str, language: str = "en") -> tuple[str, ...]:
    """Kinds of contempt in one normalised sentence: insult, incitement, blame, sneer, refusal.

    A clause that denies or reports an expression holds no contempt, unless the agent speaks of itself.
    """
    kinds, excused, own = _contempt(language)
    clauses = [clause.strip(ENDS) for clause in re.split(r"[,:，：]", REPORTED.sub(lambda found: found[0][:-1], sentence))]

    def is_meant(before: str) -> bool:
        return bool(own.search(before)) or not excused.search(before)

    return tuple(
        kind
        for kind, pattern in kinds.items()
        if any(is_meant(clause[: found.start()]) for clause in clauses for found in pattern.finditer(clause))
    )


@cache
def _contempt(language: str) -> tuple[Mapping[str, re.Pattern[str]], re.Pattern[str], re.Pattern[str]]:
    """Expressions by kind, those that excuse an expression shortly before it, and those that do not because the agent means itself."""
    table = read_toml(f"contempt_{language}", LEXICON)
    # Two words may come between an excuse and the expression; in Chinese six characters.
    before, after, gap = ("", "", ".{0,6}$") if language == "zh" else ("(?<![a-z'-])", "(?![a-z'-])", "(?: [a-z'-]+){0,2} *$")
    start, excused = "" if language == "zh" else "(?<![a-z])", table["excused"]
    return (
        {kind: re.compile(f"{before}(?:{'|'.join(entry['patterns'])}){after}") for kind, entry in table["kinds"].items()},
        re.compile(f"{start}(?:{'|'.join(excused['words'].split(', '))}){gap}"),
        re.compile(f"{start}{excused['own']}{gap}"),
    )


# Many alternatives as one expression that fails fast: Python tries those of `a|b|c` one after the other at every position; sorted by their
# first characters nearly all are passed over at once (2.5 times as fast on English replies).

LITERALS = frozenset("abcdefghijklmnopqrstuvwxyz ,'")
REPEATS = ("*", "+", "{", "?")
MAX_COPIED = 600
"""Longest rest of a pattern that is copied behind each first character."""


def either(patterns: Sequence[str], *, depth: int = 2) -> str:
    """An expression that matches where one of the patterns does, though it may choose another of them than `|` would.

    Args:
        depth: number of first characters to sort by.
    """
    patterns = [part for pattern in patterns for part in _alternatives(pattern)]
    if depth == 0 or len(patterns) == 1:
        return "|".join(patterns)
    same_group: dict[str, list[str]] = defaultdict(list)
    for pattern in patterns:
        group, rest = _group(pattern) if pattern.startswith("(?:") else ("", pattern)
        if rest.startswith(REPEATS):
            group, rest = "", pattern
        same_group[group].append(rest)
    tails = _by_first([*same_group.pop("", []), *(f"{group}(?:{either(rests)})" for group, rests in same_group.items())])
    others = tails.pop("", [])
    return "|".join([*(f"{first}(?:{either(rest, depth=depth - 1)})" for first, rest in sorted(tails.items())), *others])


def _by_first(patterns: Sequence[str]) -> dict[str, list[str]]:
    """Rests of the patterns by their first character; "" where it is not known."""
    tails: dict[str, list[str]] = defaultdict(list)
    for pattern in patterns:
        for first, tail in _begins(pattern):
            tails[first].append(tail)
    return tails


def _begins(pattern: str) -> Iterator[tuple[str, str]]:
    """Each first character that a match can have, with the rest behind it; ("", pattern) where the beginning does not tell."""
    if pattern.startswith("(?:"):
        inner, rest = _group(pattern)
        if rest.startswith("?") and not rest.startswith("??"):
            yield from _begins(rest[1:])
            rest = rest[1:]
        elif rest.startswith(REPEATS) or len(rest) > MAX_COPIED:
            yield "", pattern
            return
        for first, tails in _by_first(_alternatives(inner[3:-1])).items():
            yield first, f"(?:{'|'.join(tails)}){rest}"
    elif pattern and (pattern[0] in LITERALS or "\u4e00" <= pattern[0] <= "\u9fff") and not pattern[1:].startswith(REPEATS):
        yield pattern[0], pattern[1:]
    else:
        yield "", pattern


def _group(pattern: str) -> tuple[str, str]:
    """The group with which a pattern begins, and the rest."""
    depth = 0
    for i, character in _unescaped(pattern):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return pattern[: i + 1], pattern[i + 1 :]
    raise ValueError(f"pattern must close its groups, got {pattern!r}")


def _alternatives(pattern: str) -> list[str]:
    """The parts between `|` at the top level."""
    parts, begin, depth = [], 0, 0
    for i, character in _unescaped(pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            parts.append(pattern[begin:i])
            begin = i + 1
    return [*parts, pattern[begin:]]


def _unescaped(pattern: str) -> Iterator[tuple[int, str]]:
    """Characters with their places, except escaped ones and those within brackets."""
    return ((found.start(), found[0]) for found in re.finditer(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern) if len(found[0]) == 1)
