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
from simulator.fluency import FUNCTION_WORDS, words_of
from simulator.memo import by_facts
from simulator.nouns import nouns_of
from simulator.register import Register, clarity
from simulator.scenario import Fact, Scenario
from simulator.seen import as_seen

LEXICON = Path(__file__).parent / "lexicon"
FAREWELLS = frozenset(("goodbye", "bye", "farewell"))
ECHO_WORDS = 6
"""Words in a row that a reply has from the user, from which on they count as copied."""
ECHO_AT = 0.5
"""Share of copied words from which a reply says nothing of its own."""
SAME_IN_COPY = {"me": "i", "you": "i", "my": "your", "mine": "yours", "myself": "yourself", "am": "are"}
"""Whoever copies may exchange these."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reply as it was heard."""

    strategies: tuple[str, ...]
    """Support strategies, in the order in which they were heard, each once."""
    cues: tuple[int, ...]
    """Indices of the scenario's facts that the reply takes up."""
    similarity: float
    """Content-word overlap (Jaccard) with the most similar earlier reply, in [0, 1]."""
    clarity: float
    """How much of the words could be followed, in [0, 1]."""
    num_words: int
    farewell: bool
    """The agent says goodbye."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Expressions as two: for what a sentence begins with, and for what stands anywhere in it."""

    opening: re.Pattern[str] | None
    anywhere: re.Pattern[str] | None

    def match(self, sentence: str, begin: int = 0) -> bool:
        """Whether one of them is in the sentence: plain text with a space before it.

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

    spelling: tuple[tuple[str, str], ...]
    openings: re.Pattern[str]
    """Words that may stand before what a sentence begins with."""
    ears: tuple[Ear, ...]
    """In the order of the file."""

    def plain(self, text: str) -> str:
        """The text as the expressions expect it: lower case, contractions written out, single spaces."""
        text = " ".join(as_seen(text).lower().split())
        for spelt, written in self.spelling:
            text = text.replace(spelt, written)
        return text

    def heard(self, sentence: str) -> list[str]:
        """Strategies in one plain sentence."""
        sentence = f" {sentence.strip()}"
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
        return (ear.strategy for ear in self.ears if ear.across.match(f" {reply}"))


@cache
def lexicon() -> Lexicon:
    """The English one."""
    with (LEXICON / "en.toml").open("rb") as file:
        table = tomllib.load(file)
    openings = sorted(table["openings"]["words"].split(", "), key=len, reverse=True)
    classes: dict[str, str] = {}
    for name, entries in table["classes"].items():  # a class may name those before it
        classes[name] = f"(?:{either([_filled(entry, classes) for entry in entries.split(', ')])})"
    return Lexicon(
        spelling=tuple(table["spelling"].items()),
        openings=re.compile(f"(?: (?:{'|'.join(openings)}),?(?= ))*"),
        ears=tuple(_ear(strategy, entry, classes) for strategy, entry in table["strategies"].items()),
    )


def _ear(strategy: str, entry: Mapping[str, Any], classes: Mapping[str, str]) -> Ear:
    return Ear(
        strategy=strategy,
        claims=entry.get("claims", False),
        patterns=_shapes(entry["patterns"], classes),
        unless=_shapes(entry.get("unless", ()), classes),
        alone=_shapes(entry.get("alone", ()), classes),
        across=_shapes(entry.get("across", ()), classes),
    )


def _shapes(patterns: Sequence[str], classes: Mapping[str, str]) -> Shapes:
    filled = [_filled(pattern, classes) for pattern in patterns]
    return Shapes(
        opening=_any_of([pattern[1:] for pattern in filled if pattern.startswith("^")]),
        anywhere=_any_of([pattern for pattern in filled if not pattern.startswith("^")]),
    )


def _filled(pattern: str, classes: Mapping[str, str]) -> str:
    return re.sub(r"\{([a-z_]+)\}", lambda name: classes[name[1]], pattern)


def _any_of(patterns: Sequence[str]) -> re.Pattern[str] | None:
    """One expression for all, each a stretch of whole words."""
    return re.compile(f" (?:{either(patterns)})(?<![a-z](?=[a-z]))") if patterns else None


@lru_cache(maxsize=65536)
def strategies_in(text: str) -> tuple[str, ...]:
    """Support strategies heard in a text, each once, in order."""
    ears = lexicon()
    plain = ears.plain(text)
    sentences = re.findall(r"[^.!?;]+[.!?;]*", plain)
    return tuple(dict.fromkeys(chain(*map(ears.heard, sentences), ears.heard_across(plain))))


@lru_cache(maxsize=65536)
def content_words(text: str) -> frozenset[str]:
    """Lower-case words that carry meaning."""
    return frozenset(words_of(text)) - FUNCTION_WORDS


@lru_cache(maxsize=4096)
def cue_heads(facts: tuple[Fact, ...]) -> tuple[str, ...]:
    """The word by which each fact is recognised: the last of its cue."""
    return tuple(words_of(fact.cue)[-1] for fact in facts)


def cues_in(text: str, scenario: Scenario) -> tuple[int, ...]:
    """Indices of the facts that the text takes up: it names the cue, or another thing that only this fact tells of."""
    facts_of = _facts_by_noun(scenario.facts, scenario.other)
    return tuple(sorted({index for word in words_of(text) if word in facts_of for index in facts_of[word]}))


@by_facts(maxsize=4096)
@lru_cache(maxsize=4096)
def _facts_by_noun(facts: tuple[Fact, ...], other: str) -> dict[str, list[int]]:
    """Noun -> the facts that it takes up."""
    table: dict[str, list[int]] = {}
    for index, things in enumerate(nouns_of(facts, other)):
        for thing in things:
            table.setdefault(thing, []).append(index)
    return table


@lru_cache(maxsize=65536)
def stretches(text: str) -> dict[tuple[str, ...], int]:
    """All stretches of ECHO_WORDS words with their last places; I and you are the same."""
    words = [SAME_IN_COPY.get(word, word) for word in words_of(text)]
    return {tuple(words[i : i + ECHO_WORDS]): i for i in range(len(words) - ECHO_WORDS + 1)}


def is_echo(reply: str, said: Sequence[str]) -> bool:
    """Whether a reply is mostly the user's own sentences.

    Args:
        said: the user's turns.
    """
    words, carrying = words_of(reply), content_words(reply)
    everything = " ".join(said)
    if len(words) < ECHO_WORDS or sum(word in everything for word in carrying) < ECHO_AT * len(carrying):
        return False  # found at once, as for nearly all replies
    own = stretches(reply)
    if all(own.keys().isdisjoint(stretches(text)) for text in said):
        return False
    copied = {i + k for text in said for stretch, i in own.items() if stretch in stretches(text) for k in range(ECHO_WORDS)}
    return len(copied) >= ECHO_AT * len(words)


def facts_told(text: str, facts: tuple[Fact, ...]) -> tuple[int, ...]:
    """Indices of the facts that a user's turn tells in full."""
    return _told(facts, text)


@by_facts(maxsize=65536)
def _told(facts: tuple[Fact, ...], text: str) -> tuple[int, ...]:
    return tuple(index for index, fact in enumerate(facts) if fact.text in text)


def similarity(reply: str, earlier: str) -> float:
    """Jaccard overlap of content words, in [0, 1]."""
    a, b = content_words(reply), content_words(earlier)
    return len(a & b) / len(a | b) if a or b else 1.0


def read(
    reply: str, scenario: Scenario, earlier: Sequence[str], *, said: Sequence[str] = (), register: Register = Register.OPEN
) -> Reading:
    """Reads a reply in the light of the scenario's facts, of the agent's earlier replies and of what the user said.

    What is mostly the user's own sentences, or names things without saying anything about them, is heard to say nothing.

    Args:
        earlier: the agent's replies.
        said: the user's turns.
    """
    strategies, cues = strategies_in(reply), cues_in(reply, scenario)
    if is_echo(reply, said):
        strategies, cues = (), ()
    elif cues and not strategies and content_words(reply) <= frozenset().union(*map(content_words, said)):
        cues = ()
    return Reading(
        strategies=strategies,
        cues=cues,
        similarity=max((similarity(reply, past) for past in earlier), default=0.0),
        clarity=clarity(reply, register, facts=scenario.facts, other=scenario.other),
        num_words=len(words_of(reply)),
        farewell=not FAREWELLS.isdisjoint(words_of(reply)),
    )
