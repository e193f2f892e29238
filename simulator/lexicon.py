"""Many regular expressions as one that fails fast: alternatives that begin with the same letters are tried together.

How support strategies are heard: a language's file of expressions, applied to a reply sentence by sentence.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.text import LEXICON, Spelling, spelling

PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz ,'")
"""Characters that stand for themselves."""
CHINESE = ("\u4e00", "\u9fff")
"""The first and the last of the characters that stand for themselves as well."""
REPEATS = ("*", "+", "{", "?")
MAX_COPIED = 600
"""Longest rest that is written out for each first character: speed is paid for in compiling."""


def either(patterns: Sequence[str], *, depth: int = 2) -> str:
    """An expression that matches where one of the patterns does, though it may choose another of them than `|` would.

    Python tries the alternatives of `a|b|c` one after the other at every position; sorted by their first characters, nearly all of them
    are passed over at once.

    Args:
        depth: how many characters to sort by.
    """
    patterns = [part for pattern in patterns for part in _alternatives(pattern)]
    if depth == 0 or len(patterns) == 1:
        return "|".join(patterns)
    tails = _by_first(_joined(patterns))
    others = tails.pop("", [])
    return "|".join([*(f"{first}(?:{either(rest, depth=depth - 1)})" for first, rest in sorted(tails.items())), *others])


def _joined(patterns: Sequence[str]) -> list[str]:
    """The patterns, those that begin with the same group as one."""
    rests: dict[str, list[str]] = defaultdict(list)
    for pattern in patterns:
        group, rest = _group(pattern) if pattern.startswith("(?:") else ("", pattern)
        if rest.startswith(REPEATS):
            group, rest = "", pattern
        rests[group].append(rest)
    alone = rests.pop("", [])
    return [*alone, *(f"{group}(?:{either(rest)})" for group, rest in rests.items())]


def _by_first(patterns: Sequence[str]) -> dict[str, list[str]]:
    """What follows each first character of the patterns."""
    tails: dict[str, list[str]] = defaultdict(list)
    for pattern in patterns:
        for first, tail in _begins(pattern):
            tails[first].append(tail)
    return tails


def _begins(pattern: str) -> Iterator[tuple[str, str]]:
    """Each first character that a match can have, with what follows it; ("", pattern) where that cannot be told from the beginning."""
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
    elif pattern.startswith(("(?<!", "(?<=")):
        look, rest = _group(pattern)
        for first, tail in _begins(rest):
            yield first, (f"{look[:-1]}.){tail}" if first else look + tail)  # seen from one character later
    elif pattern and _is_plain(pattern[0]) and not pattern[1:].startswith(REPEATS):
        yield pattern[0], pattern[1:]
    else:
        yield "", pattern


def _is_plain(character: str) -> bool:
    return character in PLAIN or CHINESE[0] <= character <= CHINESE[1]


def _group(pattern: str) -> tuple[str, str]:
    """The group with which a pattern begins, and the rest."""
    depth = 0
    for i, character in _unescaped(pattern):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return pattern[: i + 1], pattern[i + 1 :]
    raise ValueError(f"pattern must close its groups, got {pattern!r}")


def _alternatives(pattern: str) -> list[str]:
    """What | parts at the top level."""
    parts, begin, depth = [], 0, 0
    for i, character in _unescaped(pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            parts.append(pattern[begin:i])
            begin = i + 1
    return [*parts, pattern[begin:]]


def _unescaped(pattern: str) -> Iterator[tuple[int, str]]:
    """Characters with their places, but for those after a backslash or within brackets."""
    skip = bracket = False
    for i, character in enumerate(pattern):
        if skip:
            skip = False
        elif character == "\\":
            skip = True
        elif bracket:
            bracket = character != "]"
        elif character == "[":
            bracket = True
        else:
            yield i, character


LANGUAGES = ("en", "zh")
MAX_READ = 3000
"""Characters of a reply in which moves are heard: nobody reads an endless one to its end."""
MAX_SENTENCE = 400
"""Characters of a sentence in which moves are heard."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Expressions as two: for what a sentence begins with, and for what stands anywhere in it."""

    opening: re.Pattern[str] | None
    anywhere: re.Pattern[str] | None

    def match(self, sentence: str, begin: int = 0) -> bool:
        """Whether one of them is in the sentence: plain text, in English with a space before it.

        Args:
            begin: where the sentence begins once its opening words are passed over.
        """
        return bool((self.opening and self.opening.match(sentence, begin)) or (self.anywhere and self.anywhere.search(sentence)))


@dataclass(frozen=True, kw_only=True)
class Ear:
    """How one strategy is heard."""

    strategy: str
    claims: bool
    """A sentence in which it is heard holds none of the strategies after it."""
    patterns: Shapes
    unless: Shapes
    """What takes a sentence back."""
    alone: Shapes
    """What counts only in a sentence in which nothing else is heard."""
    across: Shapes
    """What is looked for in the whole reply, beyond the ends of sentences."""


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """A language's file of strategies, ready to be applied."""

    writing: Mapping[str, str]
    """How sentences begin and end (`[writing]` of the file)."""
    spelling: Spelling
    openings: re.Pattern[str]
    """Words that may stand before what a sentence begins with."""
    ears: tuple[Ear, ...]
    """In the order of the file."""

    def plain(self, text: str) -> str:
        """The text as the expressions expect it."""
        return self.spelling.plain(text)

    def sentences(self, plain: str) -> list[str]:
        """The sentences of a plain text, each no longer than is heard."""
        ends = self.writing["ends"]
        return [sentence[:MAX_SENTENCE] for sentence in re.findall(rf"[^{ends}]+[{ends}]*", plain)]

    def heard(self, sentence: str) -> list[str]:
        """Strategies in one plain sentence."""
        sentence = self.writing["before"] + sentence.strip()
        opening = self.openings.match(sentence)
        begin = opening.end() if opening else 0
        heard: list[str] = []
        for ear in self.ears:
            if ear.patterns.match(sentence, begin) and not ear.unless.match(sentence, begin):
                heard.append(ear.strategy)
                if ear.claims:
                    break
        return (
            heard or [ear.strategy for ear in self.ears if ear.alone.match(sentence, begin) and not ear.unless.match(sentence, begin)][:1]
        )

    def heard_across(self, reply: str) -> Iterator[str]:
        """Strategies that take more than one sentence of a plain reply."""
        return (ear.strategy for ear in self.ears if ear.across.match(self.writing["before"] + reply))


@cache
def lexicon(language: str = "en") -> Lexicon:
    """That of a language, read and compiled when it is first needed.

    Raises:
        ValueError: there is none.
    """
    if language not in LANGUAGES:
        raise ValueError(f"scenario.language must be one of {', '.join(LANGUAGES)} to be read, got {language!r}")
    with (LEXICON / f"{language}.toml").open("rb") as file:
        table = tomllib.load(file)
    writing = table["writing"]
    openings = sorted(table["openings"]["words"].split(", "), key=len, reverse=True)
    classes: dict[str, str] = {}
    for name, entries in table["classes"].items():  # a class may name those before it
        classes[name] = f"(?:{either([_filled(entry, classes) for entry in entries.split(', ')])})"
    return Lexicon(
        writing=writing,
        spelling=spelling(language),
        openings=re.compile(f"(?:{writing['before']}(?:{'|'.join(openings)})[,，]?(?={writing['before']}))*"),
        ears=tuple(_ear(strategy, entry, classes, writing) for strategy, entry in table["strategies"].items()),
    )


def _ear(strategy: str, entry: Mapping[str, Any], classes: Mapping[str, str], writing: Mapping[str, str]) -> Ear:
    patterns, *others = (_shapes(entry.get(kind, ()), classes, writing) for kind in ("patterns", "unless", "alone", "across"))
    unless, alone, across = others
    return Ear(strategy=strategy, claims=entry.get("claims", False), patterns=patterns, unless=unless, alone=alone, across=across)


def _shapes(patterns: Sequence[str], classes: Mapping[str, str], writing: Mapping[str, str]) -> Shapes:
    filled = [_filled(pattern, classes) for pattern in patterns]
    return Shapes(
        opening=_any_of([pattern[1:] for pattern in filled if pattern.startswith("^")], writing),
        anywhere=_any_of([pattern for pattern in filled if not pattern.startswith("^")], writing),
    )


def _filled(pattern: str, classes: Mapping[str, str]) -> str:
    return re.sub(r"\{([a-z_]+)\}", lambda name: classes[name[1]], pattern)


def _any_of(patterns: Sequence[str], writing: Mapping[str, str]) -> re.Pattern[str] | None:
    """One expression for all, in English each a stretch of whole words."""
    return re.compile(f"{writing['before']}(?:{either(patterns)}){writing['after']}") if patterns else None
