"""The fluency gate: keeps stuffed words and garble from paying, without a language model."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import chain, groupby, pairwise
from typing import Any

from simulator.bank import load_bank, read_toml
from simulator.scenario import Split
from simulator.seen import as_seen
from simulator.spelling import LEXICON, spelling

END = "</s>"
FUNCTION_WORDS = frozenset(
    "a an and are as at be but can do for from had has have he her him his how i if in is it its me my of on or our she so that the "
    "their them then they this to was we were what when which who will with would you your about not there did does been being".split()
)
"""Words that hold a sentence together; the others carry its meaning."""
BETWEEN = FUNCTION_WORDS.union(
    "after all am any because before both by could down even here into just many may might more most much never no nothing off one only "
    "out over should since some something still than these those through too until up very where while why".split()
)
"""Words that part the content of a clause; FUNCTION_WORDS itself also decides what a reply's content is, in the small world too."""
POSSESSIVE = re.compile(r"'s\b")
MAX_CONTENT_RUN = 4
"""Further content words in a row, without a word of BETWEEN among them, are odd."""
MIN_EXPECTED = 0.75
"""A pair of words never seen is odd once chance alone would have brought it this often in the reference."""


@lru_cache(maxsize=65536)
def words_of(text: str) -> tuple[str, ...]:
    """Lower-case words; a possessive 's is dropped, other apostrophes stay."""
    return tuple(re.findall(r"[a-z]+(?:'(?!s\b)[a-z]+)?|\d+", as_seen(text).lower().replace("\u2019", "'")))


def sentences_of(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each clause, contractions written out and the possessive 's left away."""
    for line in text.splitlines():
        plain = POSSESSIVE.sub("", spelling("en").plain(line))
        yield from filter(None, map(words_of, re.split(r"[.?!,;:]", plain)))


@cache
def reference() -> tuple[Counter[str], frozenset[tuple[str, str]]]:
    """Word counts and all neighbouring pairs of the training world's texts, slots filled with every phrase they can take."""
    counts: Counter[str] = Counter()
    pairs: set[tuple[str, str]] = set()
    for sentence in _sentences():
        counts.update(sentence)
        pairs.update(pairwise((*sentence, END)))
    fillers = _fillers()
    for name, phrases in fillers.items():
        pairs.update(pair for phrase in phrases for pair in pairwise(phrase))
        counts.update({f"<{name}>": 0})
    for template in _templates():
        tokens = re.findall(r"\{\w+\}|[a-z]+|[.?!]", POSSESSIVE.sub("", spelling("en").plain(template)))
        counts.update(token for token in tokens if token.isalpha())
        pairs.update(_template_pairs(tokens, fillers))
    return counts, frozenset(pairs)


@cache
def _num_reference_words() -> int:
    return sum(reference()[0].values())


def _template_pairs(tokens: list[str], fillers: dict[str, list[tuple[str, ...]]]) -> Iterator[tuple[str, str]]:
    """Neighbours across a template, slots standing for the first or last word of each filler."""
    ends = [END if token in ".?!" else token for token in tokens]
    for left, right in pairwise([*ends, END]):
        lasts = {phrase[-1] for phrase in fillers.get(left.strip("{}"), [])} if left.startswith("{") else {left}
        firsts = {phrase[0] for phrase in fillers.get(right.strip("{}"), [])} if right.startswith("{") else {right}
        yield from ((a, b) for a in lasts for b in firsts)


def _fillers() -> dict[str, list[tuple[str, ...]]]:
    scenarios = load_bank().scenarios(Split.TRAIN)
    others = sorted({scenario.other for scenario in scenarios})
    people = [words_of(f"{owner} {other}") for owner in ("your", "the", "my") for other in others]
    return {
        "cue": sorted({words_of(fact.cue) for scenario in scenarios for fact in scenario.facts}),
        "feeling": sorted({words_of(feeling) for scenario in scenarios for feeling in scenario.feelings}),
        "other": people,
        "other_cap": people,
    }


def _templates() -> Iterator[str]:
    for move in read_toml("moves").values():
        yield from chain(move["grounded"], move["plain"])
    yield from read_toml("phrases")["feelings"]["said"]


def _sentences() -> Iterator[tuple[str, ...]]:
    phrases = read_toml("phrases")
    lines = [line for group in ("hints", "reactions") for pools in phrases[group].values() for pool in pools.values() for line in pool]
    facts = {fact.text for scenario in load_bank().scenarios(Split.TRAIN) for fact in scenario.facts}
    for text in chain(lines, sorted(facts)):
        yield from sentences_of(text)


@cache
def _even() -> frozenset[tuple[str, str]]:
    return frozenset((first, second) for first, followers in _table()["even"].items() if first != "why" for second in followers)


@cache
def _table() -> dict[str, Any]:
    with (LEXICON / "fluency_en.toml").open("rb") as file:
        return tomllib.load(file)


@cache
def _odd_classes() -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    table = _table()
    classes: dict[str, set[str]] = {}
    for name, members in table["classes"].items():
        for word in members:
            classes.setdefault(word, set()).add(name)
    odd = {name: frozenset(followers) for name, followers in table["odd"].items() if name != "why"}
    return {word: frozenset(names) for word, names in classes.items()}, odd


@lru_cache(maxsize=65536)
def _is_odd(first: str, second: str) -> bool:
    """Whether ordinary English hardly ever has these neighbours."""
    counts, pairs = reference()
    if (first, second) in pairs or (first, second) in _even():
        return False
    classes, odd = _odd_classes()
    followers = {"END"} if second == END else classes.get(second, frozenset())
    if first == second or any(followers & odd.get(name, frozenset()) for name in classes.get(first, frozenset())):
        return True
    total = _num_reference_words()
    times = total / 10 if second == END else counts[second]
    return counts[first] * times / total >= MIN_EXPECTED


def _stuffed(words: tuple[str, ...]) -> int:
    """Content words beyond MAX_CONTENT_RUN in a row."""
    runs = (len(list(run)) for content, run in groupby(words, key=lambda word: word not in BETWEEN) if content)
    return sum(2 * max(0, length - MAX_CONTENT_RUN) for length in runs)


@lru_cache(maxsize=65536)
def fluency(text: str) -> float:
    """1 for ordinary English, falling to 0 as a third of the neighbouring words become odd.

    A pair is odd when closed-class words meet that do not meet in English, or when the world's own texts would have shown it
    by chance at least MIN_EXPECTED times and never did; so are content words piled up without a function word between them.
    Words the world does not know carry no evidence against a sentence.
    """
    odd = total = 0
    for words in sentences_of(text):
        total += len(words)
        odd += sum(_is_odd(a, b) for a, b in pairwise((*words, END))) + _stuffed(words)
    return max(0.0, 1.0 - 3.0 * odd / total) if total else 0.0
