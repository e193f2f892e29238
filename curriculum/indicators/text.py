"""How alike the agent's replies are: to its own earlier ones, to its siblings', to what it says to others.

Words are lower-cased, each Han character is one; n-grams never cross replies.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

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


def own_overlap(replies: Sequence[str]) -> float:
    """Mean over the replies of a dialogue, from the second on, of the largest ROUGE-L to an earlier one of the agent's own. Coincident.

    ROUGE-L is the F1 of the longest common subsequence L of words: 2 L / (words of the one + words of the other).

    Source: Lin 2004.

    Returns:
        In [0, 1]; NaN below two replies with words.
    """
    spoken = [tokens for tokens in map(words, replies) if tokens]
    largest = [
        max(2.0 * longest_common_subsequence(tokens, before) / (len(tokens) + len(before)) for before in spoken[:i])
        for i, tokens in enumerate(spoken)
        if i > 0
    ]
    return sum(largest) / len(largest) if largest else math.nan


def longest_common_subsequence(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest sequence of words that both hold in order, not necessarily side by side.

    Source: bit-parallel, Hyyro 2004: one row of the table is one integer, so a pair of replies takes microseconds.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << i
    row = full = (1 << len(a)) - 1
    for word in b:
        matched = row & places.get(word, 0)
        row = ((row + matched) | (row - matched)) & full
    return len(a) - row.bit_count()


def self_bleu(replies: Sequence[str], *, max_n: int = 4) -> float:
    """Mean BLEU of each reply against all the others. Lags: within a group it rises when siblings say the same, across prompts when all do.

    BLEU = exp(mean of log p_n) x brevity penalty, with p_n the share of the reply's n-grams found in another one, each as often as it
    occurs in that one, for n up to `max_n` as far as the reply has such n-grams; p_n is smoothed to (matches + 1) / (n-grams + 1) for
    n > 1. The penalty exp(1 - r / c) is for replies of c words shorter than the r words of the other closest in length.

    Source: Zhu et al. 2018 (arXiv 1802.01886), Papineni et al. 2002, smoothing Lin and Och 2004.

    Returns:
        In [0, 1], 1 where all are alike; NaN below two replies with words.
    """
    spoken = [tokens for tokens in map(words, replies) if tokens]
    if len(spoken) < 2:
        return math.nan
    counts = [[Counter(_runs(tokens, n)) for tokens in spoken] for n in range(1, max_n + 1)]
    log_precisions = [0.0] * len(spoken)
    for n, of_replies in enumerate(counts, start=1):
        others = _largest_elsewhere(of_replies)
        for i, own in enumerate(of_replies):
            matches = sum(min(count, others(gram, i)) for gram, count in own.items())
            smooth = int(n > 1)
            shown = (matches + smooth) / (own.total() + smooth) if own else 1.0
            log_precisions[i] += math.log(shown) / min(max_n, len(spoken[i])) if shown else -math.inf
    lengths = Counter(map(len, spoken))
    return sum(math.exp(p + _brevity(len(tokens), lengths)) for p, tokens in zip(log_precisions, spoken, strict=True)) / len(spoken)


def compression_ratio(replies: Iterable[str], *, num_bytes: int = 10_000) -> float:
    """Bytes over deflated bytes of the first `num_bytes` of all replies, one a line: what repeats, at any length. Coincident to lagging.

    It grows with the amount of text, so shorter texts than `num_bytes` give NaN.

    Source: Shaib et al. 2024 (arXiv 2403.00553).

    Returns:
        About 2 to 4 for natural replies, without bound where they are all alike.
    """
    text = "\n".join(replies).encode()[:num_bytes]
    return len(text) / len(zlib.compress(text)) if len(text) == num_bytes else math.nan


def _runs(tokens: Sequence[str], n: int) -> Iterable[tuple[str, ...]]:
    return zip(*(tokens[i:] for i in range(n)), strict=False)


def _largest_elsewhere(of_replies: Sequence[Mapping[tuple[str, ...], int]]) -> Callable[[tuple[str, ...], int], int]:
    """The largest count of an n-gram in any reply but the i-th: from the two largest of all, so the work is linear in the text."""
    top: dict[tuple[str, ...], tuple[int, int, int]] = {}
    for i, own in enumerate(of_replies):
        for gram, count in own.items():
            first, owner, second = top.get(gram, (0, -1, 0))
            top[gram] = (count, i, first) if count > first else (first, owner, max(second, count))

    def largest(gram: tuple[str, ...], i: int) -> int:
        first, owner, second = top[gram]
        return second if owner == i else first

    return largest


def _brevity(length: int, lengths: Counter[int]) -> float:
    """Log of the brevity penalty of a reply against the closest other length; of two as close, the shorter."""
    others = [other for other, count in lengths.items() if count > (other == length)]
    closest = min(others, key=lambda other: (abs(other - length), other))
    return min(0.0, 1.0 - closest / length)
