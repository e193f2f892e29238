"""Whether a reply is mostly the user's own sentences."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.chinese import CHARACTERS_PER_WORD, characters_of
from simulator.content import content_words
from simulator.fluency import words_of

ECHO_WORDS = 6
"""Words in a row that a reply has from the user, from which on they count as copied; CHARACTERS_PER_WORD times as many characters."""
ECHO_AT = 0.5
"""Share of copied words from which a reply says nothing of its own."""
SAME_IN_COPY = {"me": "i", "you": "i", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "我": "你"}
"""Whoever copies may exchange these."""


def stretches(text: str, language: str) -> list[tuple[str, ...]]:
    """All stretches that are long enough to be copied, in order; I and you are the same."""
    words = [SAME_IN_COPY.get(word, word) for word in units(text, language)]
    long = stretch_length(language)
    return [tuple(words[i : i + long]) for i in range(len(words) - long + 1)]


def units(text: str, language: str) -> Sequence[str]:
    """What a text is made of: words, in Chinese characters."""
    return characters_of(text) if language == "zh" else words_of(text)


def stretch_length(language: str) -> int:
    """Units in a row that count as copied."""
    return round(ECHO_WORDS * CHARACTERS_PER_WORD) if language == "zh" else ECHO_WORDS


def is_echo(reply: str, said: Sequence[str], language: str = "en") -> bool:
    """Whether a reply is mostly the user's own sentences.

    Args:
        said: the user's turns.
    """
    words, carrying, long = units(reply, language), content_words(reply), stretch_length(language)
    everything = " ".join(said).lower()
    if len(words) < long or sum(word in everything for word in carrying) < ECHO_AT * len(carrying):
        return False  # found at once, as for nearly all replies
    theirs = {stretch for text in said for stretch in stretches(text, language)}
    copied = {i + k for i, stretch in enumerate(stretches(reply, language)) if stretch in theirs for k in range(long)}
    return len(copied) >= ECHO_AT * len(words)
