"""Numbers that change when a policy collapses: pure functions of texts and of short series."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

WORD = re.compile(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+(?:'[^\W\u4e00-\u9fff]+)*")


def words(text: str) -> list[str]:
    """Lower-case words; each Han character is one."""
    return WORD.findall(text.lower())


def ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    """All runs of `n` words, repeats included."""
    tokens = words(text)
    return list(zip(*(tokens[i:] for i in range(n)), strict=False))


def repetition(replies: Sequence[str], n: int = 4) -> float:
    """Share of the agent's n-grams, from its second reply on, that an earlier reply of the same dialogue already held.

    Returns:
        In [0, 1]; NaN when no later reply is `n` words long. Coincident with collapse, not ahead of it.
    """
    said: set[tuple[str, ...]] = set()
    num_later = num_repeated = 0
    for i, reply in enumerate(replies):
        grams = ngrams(reply, n)
        if i > 0:
            num_later += len(grams)
            num_repeated += sum(gram in said for gram in grams)
        said.update(grams)
    return num_repeated / num_later if num_later else math.nan


def distinct(replies: Sequence[str], n: int = 2, *, max_words: int = 2000) -> float:
    """Distinct n-grams over all n-grams of the first `max_words` words of all replies; n-grams do not cross replies. Lags collapse.

    The share falls with the amount of text, so compare only values of the same `max_words`, with at least that many words.

    Source: Li et al. 2016 (arXiv 1510.03055).

    Returns:
        In (0, 1]; NaN when there is no n-gram.
    """
    grams: list[tuple[str, ...]] = []
    budget = max_words
    for reply in replies:
        tokens = words(reply)[:budget]
        budget -= len(tokens)
        grams.extend(zip(*(tokens[i:] for i in range(n)), strict=False))
        if budget <= 0:
            break
    return len(set(grams)) / len(grams) if grams else math.nan


def theil_sen_slope(values: Sequence[float]) -> float:
    """Median slope over all pairs of an evenly spaced series, per step; up to 29 % of the points may be wild. NaN below two points."""
    if len(values) < 2:
        return math.nan
    series_N = np.asarray(values, dtype=float)
    earlier, later = np.triu_indices(len(series_N), k=1)
    return float(np.median((series_N[later] - series_N[earlier]) / (later - earlier)))
