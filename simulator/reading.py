"""What a listener hears in a reply: support strategies, facts taken up, repetition, fluency and length."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from simulator.alternatives import either
from simulator.chinese import by_language, content_grams, num_words
from simulator.fluency import FUNCTION_WORDS, words_of
from simulator.nouns import nouns_of
from simulator.register import Register, clarity
from simulator.scenario import Fact, Scenario

LEXICON = Path(__file__).parent / "lexicon"
LANGUAGES = ("en", "zh")
MAX_READ = 3000
"""Characters of a reply in which moves are heard: nobody reads an endless one to its end."""
MAX_SENTENCE = 400
"""Characters of a sentence in which moves are heard."""
TAKEN_UP_AT = 2
"""Words or pairs of characters by which something told is recognised; of what has few of them a third."""
FAREWELL = re.compile(r"\b(?:goodbye|bye|farewell)\b|(?<![说道声的])(?:再见|拜拜)[啦了吧哦呀]?(?=[，。！!~～\s]|$)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reply as it was heard."""

    strategies: tuple[str, ...]
    """Support strategies, in the order in which they were heard, each once."""
    cues: tuple[int, ...]
    """Indices of the scenario's facts that the reply takes up."""
    similarity: float
    """Overlap (Jaccard) of content with the most similar earlier reply, in [0, 1]."""
    taken_up: float
    """Share of the content of the user's latest turn that the reply takes up, in [0, 1]."""
    echo: float
    """Share of the reply's own content that the user has said before, in [0, 1]."""
    first_move: float
    """How much of the reply comes before the first strategy, by its sentences, in [0, 1]; 1 where none is heard."""
    clarity: float
    """How much of the words could be followed, in [0, 1]."""
    num_words: int
    """Words, of which a language without spaces has one in `chinese.CHARACTERS_PER_WORD` characters."""
    farewell: bool
    """The agent says goodbye."""


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
    spelling: tuple[tuple[str, str], ...]
    openings: re.Pattern[str]
    """Words that may stand before what a sentence begins with."""
    ears: tuple[Ear, ...]
    """In the order of the file."""

    def plain(self, text: str) -> str:
        """The text as the expressions expect it: lower case, one spelling, single spaces or none."""
        text = " ".join(text.lower().replace("\n", self.writing["line"]).split())
        for spelt, written in self.spelling:
            text = text.replace(spelt, written)
        return text

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
        spelling=tuple(table["spelling"].items()),
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


@lru_cache(maxsize=65536)
def strategies_in(text: str, language: str | None = None) -> tuple[str, ...]:
    """Support strategies heard in a text, each once, in order.

    Args:
        language: what the listener understands, `en` or `zh`; None hears each sentence in its own.
    """
    heard = [_moves(part, spoken) for spoken, part in ([(language, text)] if language else by_language(text))]
    return tuple(dict.fromkeys(chain.from_iterable(chain(*by_sentence, across) for by_sentence, across in heard)))


def first_move(text: str, language: str) -> float:
    """Share of a text's sentences that come before the first in which a strategy is heard, in [0, 1]; 1 where none is."""
    by_sentence, _ = _moves(text, language)
    return next((number / len(by_sentence) for number, heard in enumerate(by_sentence) if heard), 1.0)


@lru_cache(maxsize=65536)
def _moves(text: str, language: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Strategies sentence by sentence, and those that take more than one."""
    ears = lexicon(language)
    plain = ears.plain(text[:MAX_READ])
    return tuple(tuple(ears.heard(sentence)) for sentence in ears.sentences(plain)), tuple(ears.heard_across(plain))


@lru_cache(maxsize=65536)
def content_words(text: str) -> frozenset[str]:
    """What carries a text's meaning: lower-case words, and of Chinese pairs of neighbouring characters."""
    return (frozenset(words_of(text)) - FUNCTION_WORDS) | content_grams(text)


@lru_cache(maxsize=4096)
def cue_heads(facts: tuple[Fact, ...]) -> tuple[str, ...]:
    """The word by which each fact is recognised: the last of its cue."""
    return tuple(words_of(fact.cue)[-1] for fact in facts)


def cues_in(text: str, scenario: Scenario) -> tuple[int, ...]:
    """Indices of the facts that the text takes up.

    An English one is known by its cue, or by another thing that only this fact tells of; one in Chinese, and what the user told where the
    scenario has no list of facts (`Dialogue.story`), by TAKEN_UP_AT of the words or pairs of characters that came up with it.
    """
    if scenario.other and scenario.language == "en":
        words = frozenset(words_of(text))
        return tuple(index for index, things in enumerate(nouns_of(scenario.facts, scenario.other)) if things & words)
    words = content_words(text)
    told = _first_told(scenario.facts)
    return tuple(index for index, things in enumerate(told) if things and len(things & words) >= min(TAKEN_UP_AT, len(things) // 3 + 1))


@lru_cache(maxsize=4096)
def _first_told(facts: tuple[Fact, ...]) -> tuple[frozenset[str], ...]:
    """Per fact, the content that no fact before it had."""
    new: list[frozenset[str]] = []
    for fact in facts:
        new.append(content_words(fact.text).difference(*new))
    return tuple(new)


def facts_told(text: str, facts: tuple[Fact, ...]) -> tuple[int, ...]:
    """Indices of the facts that a user's turn tells in full."""
    return tuple(index for index, fact in enumerate(facts) if fact.text in text)


def similarity(reply: str, earlier: str) -> float:
    """Jaccard overlap of content words, in [0, 1]."""
    a, b = content_words(reply), content_words(earlier)
    return len(a & b) / len(a | b) if a or b else 1.0


def read(
    reply: str, scenario: Scenario, earlier: Sequence[str], *, told: Sequence[str] = (), register: Register = Register.OPEN
) -> Reading:
    """Reads a reply, in the scenario's language, in the light of its facts and of what was said before.

    Args:
        earlier: the agent's replies so far.
        told: the user's turns so far.
    """
    content, latest = content_words(reply), content_words(told[-1]) if told else frozenset()
    return Reading(
        strategies=strategies_in(reply, scenario.language),
        cues=cues_in(reply, scenario),
        similarity=max((similarity(reply, past) for past in earlier), default=0.0),
        taken_up=len(content & latest) / len(latest) if latest else 0.0,
        echo=len(content.intersection(frozenset().union(*map(content_words, told)))) / len(content) if content else 0.0,
        first_move=first_move(reply, scenario.language),
        clarity=clarity(reply, register, facts=scenario.facts, other=scenario.other, language=scenario.language),
        num_words=num_words(reply),
        farewell=bool(FAREWELL.search(reply)),
    )
