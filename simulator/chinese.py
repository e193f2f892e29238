"""Chinese without a model: which language a text is in, what carries its meaning, how long it is, and whether it can be followed."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from simulator.fluency import words_of
from simulator.seen import as_seen

LEXICON = Path(__file__).parent / "lexicon"
CHARACTER = "[\u4e00-\u9fff]"
CHARACTERS_PER_WORD = 1.6
"""Chinese characters that say as much as an English word, roughly: what limits of length are converted by."""
IMPOSSIBLE = 5
"""Characters that a pair of function words that cannot meet spoils."""
MAX_RUN = 10
"""Further characters in a row, without a function word between them, are odd."""
MAX_BARE = 6
"""Further clauses in a row of a few characters, none of them a function word, are odd: a list of bare words is no sentence."""
MAX_SAME = 2
"""A stretch of four characters that a reply holds more often is odd each further time."""
MIN_KNOWN = 0.2
"""Share of a reply's meaningful characters that stand in common words at least; names and rare words do not."""
SLACK = 2
"""Characters that a short reply may lack of that."""
SIGNS = re.compile(r"[\s,.;:!?，。；：！？、…—～~/|·•-]+")
QUOTES = re.compile("[“”‘’\"'「」『』《》（）()【】*#_\\[\\]]")
MAX_FOREIGN = 0.3
"""Share of a reply that may be in Latin letters: names, brands and abbreviations are."""


@cache
def _table() -> dict[str, Any]:
    with (LEXICON / "fluency_zh.toml").open("rb") as file:
        return tomllib.load(file)


@cache
def _function_words() -> re.Pattern[str]:
    return re.compile("|".join(sorted(_table()["function"].split(), key=len, reverse=True)))


@cache
def _common_words() -> frozenset[str]:
    return frozenset(_table()["common"].split())


@cache
def _odd_pairs() -> re.Pattern[str]:
    return re.compile("|".join(_table()["odd"]["patterns"]))


def characters_of(text: str) -> list[str]:
    """Its Chinese characters."""
    return [] if text.isascii() else re.findall(CHARACTER, as_seen(text))


def num_characters(text: str) -> int:
    """How many Chinese characters it has."""
    return len(characters_of(text))


def num_words(text: str) -> int:
    """Words, one for CHARACTERS_PER_WORD Chinese characters."""
    return len(words_of(text)) + round(num_characters(text) / CHARACTERS_PER_WORD)


def language_of(text: str) -> str:
    """`zh` where a text has more Chinese characters than words in Latin letters, else `en`."""
    return "zh" if num_characters(text) > len(words_of(text)) else "en"


def by_language(text: str) -> list[tuple[str, str]]:
    """A text in stretches of whole sentences, each with its language; a sentence that says nothing goes with the one before it."""
    if num_characters(text) == 0:
        return [("en", text)]
    spoken: list[tuple[str, str]] = []
    for sentence in re.findall(r"[^.!?。！？\n]*[.!?。！？\n]+|[^.!?。！？\n]+$", text):
        is_said = num_characters(sentence) or words_of(sentence)
        spoken.append((language_of(sentence) if is_said or not spoken else spoken[-1][0], sentence))
    return [(language, "".join(sentence for _, sentence in run)) for language, run in groupby(spoken, key=lambda pair: pair[0])]


def _stretches(text: str) -> Iterator[str]:
    """Chinese between function words and signs."""
    for run in re.findall(f"{CHARACTER}+", as_seen(text)):
        yield from filter(None, _function_words().split(run))


@lru_cache(maxsize=65536)
def content_grams(text: str) -> frozenset[str]:
    """Pairs of neighbouring Chinese characters that carry a text's meaning, common words kept whole; none of a text without Chinese."""
    return frozenset() if text.isascii() else frozenset(chain.from_iterable(map(_grams, _stretches(text))))


def _grams(stretch: str) -> Iterator[str]:
    i = 0
    while i < len(stretch) - 1:
        gram = stretch[i : i + 2]
        yield gram
        i += 2 if gram in _common_words() else 1


@lru_cache(maxsize=65536)
def fluency_in_chinese(text: str) -> float:
    """1 for ordinary Chinese, falling to 0 as a third of it becomes odd.

    Odd are function words that cannot meet, the same words over and over, characters piled up without a function word among them or that
    make up no common word, and what is in other letters beyond a name or two. A reply with hardly any Chinese cannot be followed.
    """
    text = as_seen(text)
    characters, foreign = num_characters(text), len(words_of(text)) * CHARACTERS_PER_WORD
    if not characters:
        return 0.0
    odd = _num_impossible(text) + _num_repeated(text) + _num_piled_up(text) + _num_unknown(text)
    odd += max(0.0, foreign - MAX_FOREIGN * (characters + foreign))
    return max(0.0, 1.0 - 3.0 * odd / (characters + foreign))


def _clauses(text: str) -> Iterator[str]:
    """What stands between two signs; quotation marks and the like are none."""
    yield from filter(None, SIGNS.split(QUOTES.sub("", text)))


def _num_impossible(text: str) -> int:
    """Characters spoilt by pairs that cannot meet."""
    return sum(IMPOSSIBLE * len(_odd_pairs().findall(clause)) for clause in _clauses(text))


def _num_repeated(text: str) -> int:
    """Characters that are said over and over: laughter and the like may be four in a row."""
    said = "".join(re.findall(CHARACTER, text))
    same = sum(len(run[0]) - 4 for run in re.finditer(r"(.)\1{4,}", said))
    fours = Counter(said[i : i + 4] for i in range(len(said) - 3))
    return same + sum(times - MAX_SAME for times in fours.values() if times > MAX_SAME)


def _num_piled_up(text: str) -> int:
    """Characters beyond MAX_RUN without a function word, and those of bare clauses beyond MAX_BARE."""
    odd = bare = 0
    for clause in _clauses(text):
        runs = [num_characters(run) for run in _function_words().split(clause)]
        odd += sum(2 * max(0, run - MAX_RUN) for run in runs)
        bare = bare + 1 if len(runs) == 1 and 0 < runs[0] <= 4 else 0
        odd += 2 * runs[0] if bare > MAX_BARE else 0
    return odd


def _num_unknown(text: str) -> float:
    """Meaningful characters, times the share by which those in common words fall short of MIN_KNOWN."""
    known = total = 0
    for stretch in _stretches(text):
        total += len(stretch)
        known += len({j for i in range(len(stretch) - 1) if stretch[i : i + 2] in _common_words() for j in (i, i + 1)})
    return max(0.0, MIN_KNOWN * total - known - SLACK) / MIN_KNOWN
