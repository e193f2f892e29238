"""What the words of a reply say by themselves: weighted word n-grams, which hear turns of phrase better than a small network does."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from simulator.lexicon import Lexicon
from simulator.text import FUNCTION_WORDS, as_seen


def tokens(text: str) -> list[str]:
    """Words and marks in lower case."""
    return re.findall(r"[\w']+|[?!.,;:]", as_seen(text[: Lexicon.MAX_READ]).lower().replace("\u2019", "'"))


def ngrams(words: Sequence[str]) -> Iterable[str]:
    """Stretches of one to three."""
    yield from words
    yield from map(" ".join, pairwise(words))
    yield from map(" ".join, zip(words, words[1:], words[2:], strict=False))


def vocabulary(replies: Sequence[str], at_least: int = 3) -> dict[str, float]:
    """Inverse document frequency, 1 + ln((1 + N) / (1 + n)), of each n-gram that so many of the replies have."""
    counts = Counter(gram for reply in replies for gram in set(ngrams(tokens(reply))))
    known = sorted(gram for gram, n in counts.items() if n >= at_least)
    return {gram: 1.0 + math.log((1 + len(replies)) / (1 + counts[gram])) for gram in known}


class WordFeatures:
    """Features of a reply, float32[F]: n-grams by sublinear tf-idf at unit length, then seven numbers.

    The numbers: length, share of content words that are the user's and that are of the latest turn, question and exclamation marks, turns
    so far, whether a question ends it.
    """

    NUM_NUMBERS = 7

    def __init__(self, known: dict[str, float]) -> None:
        self.known = known
        self.place = {gram: k for k, gram in enumerate(known)}

    def __len__(self) -> int:
        return len(self.known) + self.NUM_NUMBERS

    def __call__(self, turns: Sequence[str], reply: str) -> np.ndarray:
        """
        Args:
            turns: of the user before the reply, the first one first.
        """
        words = tokens(reply)
        features_F = np.zeros(len(self), dtype=np.float32)
        for gram, count in Counter(ngrams(words)).items():
            if gram in self.place:
                features_F[self.place[gram]] = (1.0 + math.log(count)) * self.known[gram]
        features_F /= max(float(np.linalg.norm(features_F)), 1e-9)
        content = [word for word in words if word not in FUNCTION_WORDS and word[0].isalnum()]
        theirs, latest = (set(tokens(text)) - FUNCTION_WORDS for text in (" ".join(turns), turns[-1]))
        features_F[-self.NUM_NUMBERS :] = (
            math.log1p(len(words)) / 4.0,
            sum(word in theirs for word in content) / (len(content) + 1),
            sum(word in latest for word in content) / (len(content) + 1),
            words.count("?") / 2.0,
            words.count("!") / 2.0,
            min(len(turns), 4) / 4.0,
            float(words[-1:] == ["?"]),
        )
        return features_F
