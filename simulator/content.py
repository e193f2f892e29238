"""What carries a text's meaning, in English and in Chinese."""

from __future__ import annotations

from functools import lru_cache

from simulator.chinese import content_grams
from simulator.fluency import FUNCTION_WORDS, words_of


@lru_cache(maxsize=65536)
def content_words(text: str) -> frozenset[str]:
    """What carries a text's meaning: lower-case words, and of Chinese pairs of neighbouring characters."""
    return (frozenset(words_of(text)) - FUNCTION_WORDS) | content_grams(text)
