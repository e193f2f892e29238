"""Many regular expressions as one that fails fast: alternatives that begin with the same letters are tried together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

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
