"""What a listener hears in a reply: support strategies, facts taken up, repetition, fluency and length."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import Any

from simulator.alternatives import either
from simulator.chinese import CHARACTERS_PER_WORD, by_language, characters_of, content_grams, num_words
from simulator.contempt import contempt_in
from simulator.fluency import FUNCTION_WORDS, words_of
from simulator.memo import by_facts
from simulator.nouns import nouns, nouns_of
from simulator.register import Register, clarity
from simulator.scenario import Fact, Scenario
from simulator.seen import as_seen
from simulator.spelling import LEXICON, Spelling, spelling

LANGUAGES = ("en", "zh")
MAX_READ = 3000
"""Characters of a reply in which moves are heard: nobody reads an endless one to its end."""
MAX_SENTENCE = 400
"""Characters of a sentence in which moves are heard."""
TAKEN_UP_AT = 2
"""Words or pairs of characters by which something told is recognised; of what has few of them a third."""
FAREWELLS = frozenset(("goodbye", "bye", "farewell"))
FAREWELL_TOLD = re.compile(
    r"\b(?:say|says|saying|said|wave|waved|waving|kiss|kissed|bid|a|the|your|his|her|their|that|this|last|final|proper|no|of|without)"
    r" (?:[a-z]+ )?(?:goodbye|bye|farewell)\b"
    r"|\b(?:goodbye|bye|farewell) (?:to (?!you\b)|party|dinner|letter|card|drinks|speech|present|hug|kiss)"
)
"""A goodbye that is told of, or asked about."""
OWN_FAREWELL = re.compile(
    r"(?:^|,) *(?:(?:and|so|well|okay|now|then|but),? )*(?:i|we|let us|let me|time to|it is time to)"
    r" (?:(?:now|just|must|have to|will|should|shall|need to|want to|would like to|am going to|are going to) )*"
    r"(?:say|wave|bid you) (?:[a-z]+ )?(?:goodbye|bye|farewell)\b(?! to (?!you\b))"
)
"""A goodbye that the agent says, in words that could tell of one."""
FAREWELL_IN_CHINESE = re.compile(r"(?<![说道声的])(?:再见|拜拜)[啦了吧哦呀]?(?=[,.。!~\s]|$)")
ECHO_WORDS = 6
"""Words in a row that a reply has from the user, from which on they count as copied; CHARACTERS_PER_WORD times as many characters."""
ECHO_AT = 0.5
"""Share of copied words from which a reply says nothing of its own."""
SAME_IN_COPY = {"me": "i", "you": "i", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "我": "你"}
"""Whoever copies may exchange these."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reply as it was heard."""

    strategies: tuple[str, ...]
    """Support strategies, in the order in which they were heard, each once."""
    cues: tuple[int, ...]
    """Indices of the scenario's facts that the reply takes up."""
    similarity: float
    """Overlap (Jaccard) of content with the most similar earlier reply, in [0, 1]; small talk and things never told are passed over."""
    clarity: float
    """How much of the words could be followed, in [0, 1]."""
    num_words: int
    """Words, of which a language without spaces has one in `chinese.CHARACTERS_PER_WORD` characters."""
    farewell: bool
    """The agent says goodbye."""
    contempt: tuple[str, ...] = ()
    """Kinds of contempt, each once; a sentence that holds any is heard as nothing else."""
    echo: bool = False
    """It is mostly the user's own sentences, and so heard to say nothing."""
    dropped: tuple[int, ...] = ()
    """Indices of facts that the reply names without being heard to say anything about them."""


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
    spelling: Spelling
    openings: re.Pattern[str]
    """Words that may stand before what a sentence begins with."""
    ears: tuple[Ear, ...]
    """In the order of the file."""

    def plain(self, text: str) -> str:
        """The text as the expressions expect it."""
        return self.spelling.plain(text)

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
        spelling=spelling(language),
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
    if language:
        return _heard(text, language).moves
    return tuple(dict.fromkeys(chain.from_iterable(_heard(part, spoken).moves for spoken, part in by_language(text))))


@dataclass(frozen=True)
class Heard:
    """What is heard in a text, and what of it counts when it is compared with others."""

    moves: tuple[str, ...]
    """Strategies, each once: sentence by sentence, then those that take more than one."""
    gist: frozenset[str]
    """Content of the sentences in which a move is heard, or of all where none is: small talk beside it makes nothing new of a reply."""
    things: frozenset[str]
    """Words of the gist that name things."""


@lru_cache(maxsize=65536)
def _heard(text: str, language: str) -> Heard:
    ears = lexicon(language)
    plain = ears.plain(text[:MAX_READ])
    sentences = ears.sentences(plain)
    heard = [ears.heard(sentence) for sentence in sentences]
    if plain == text.lower() and all(heard):
        gist = content_words(text)  # the same words, known already
    else:
        carrying = [sentence for sentence, moves in zip(sentences, heard, strict=True) if moves] or sentences
        gist = frozenset().union(*map(content_words, carrying))
    return Heard(moves=tuple(dict.fromkeys(chain(*heard, ears.heard_across(plain)))), gist=gist, things=gist & nouns())


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
        return _named(scenario.facts, scenario.other, text)
    words = content_words(text)
    told = _first_told(scenario.facts)
    return tuple(index for index, things in enumerate(told) if things and len(things & words) >= min(TAKEN_UP_AT, len(things) // 3 + 1))


@by_facts(maxsize=65536)
def _named(facts: tuple[Fact, ...], other: str, text: str) -> tuple[int, ...]:
    facts_of = _facts_by_noun(facts, other)
    return tuple(sorted({index for word in words_of(text) if word in facts_of for index in facts_of[word]}))


@lru_cache(maxsize=4096)
def _first_told(facts: tuple[Fact, ...]) -> tuple[frozenset[str], ...]:
    """Per fact, the content that no fact before it had."""
    new: list[frozenset[str]] = []
    for fact in facts:
        new.append(content_words(fact.text).difference(*new))
    return tuple(new)


@by_facts(maxsize=4096)
@lru_cache(maxsize=4096)
def _facts_by_noun(facts: tuple[Fact, ...], other: str) -> dict[str, list[int]]:
    """Noun -> the facts that it takes up."""
    table: dict[str, list[int]] = {}
    for index, things in enumerate(nouns_of(facts, other)):
        for thing in things:
            table.setdefault(thing, []).append(index)
    return table


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


def facts_told(text: str, facts: tuple[Fact, ...]) -> tuple[int, ...]:
    """Indices of the facts that a user's turn tells in full."""
    return _told(facts, text)


@by_facts(maxsize=65536)
def _told(facts: tuple[Fact, ...], text: str) -> tuple[int, ...]:
    return tuple(index for index, fact in enumerate(facts) if fact.text in text)


def similarity(reply: str, earlier: str, language: str = "en", *, untold: Set[str] = frozenset()) -> float:
    """Jaccard overlap of content, in [0, 1].

    Args:
        untold: words to pass over.
    """
    a, b = _heard(reply, language).gist, _heard(earlier, language).gist
    if untold:
        a, b = a - untold, b - untold
    if not a and not b:  # function words only: in Chinese by characters
        a, b = frozenset(characters_of(reply)), frozenset(characters_of(earlier))
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if a or b else 1.0


def untold_things(replies: Sequence[str], said: Sequence[str], language: str) -> frozenset[str]:
    """Words for things that replies name and the user never did."""
    things = frozenset().union(*(_heard(reply, language).things for reply in replies))
    everything = " ".join(said).lower() if things else ""
    return frozenset(thing for thing in things if thing not in everything)


def read(
    reply: str, scenario: Scenario, earlier: Sequence[str], *, said: Sequence[str] = (), register: Register = Register.OPEN
) -> Reading:
    """Reads a reply, in the scenario's language, in the light of its facts and of what was said before.

    What is mostly the user's own sentences, or names things without saying anything about them, is heard to say nothing. Contempt, and
    whether a goodbye is only told of, is heard in ordinary English; the world's small language has words for neither.

    Args:
        earlier: the agent's replies so far.
        said: the user's turns so far.
    """
    is_open = register is Register.OPEN and scenario.language == "en"
    kind, contempt = _without_contempt(reply) if is_open else (reply, ())
    strategies, named = strategies_in(kind, scenario.language), cues_in(reply, scenario)
    cues, echo = named, is_echo(reply, said, scenario.language)
    if echo:
        strategies, cues = (), ()
    elif cues and not strategies and content_words(reply) <= frozenset().union(*map(content_words, said)):
        cues = ()
    untold = untold_things((reply, *earlier), said, scenario.language) if earlier else frozenset()
    return Reading(
        strategies=strategies,
        cues=cues,
        similarity=max((similarity(reply, past, scenario.language, untold=untold) for past in earlier), default=0.0),
        clarity=clarity(reply, register, facts=scenario.facts, other=scenario.other, language=scenario.language),
        num_words=num_words(reply),
        farewell=_says_goodbye(reply) and not (is_open and _tells_of_goodbye(reply)),
        contempt=contempt,
        echo=echo,
        dropped=tuple(index for index in named if index not in cues),
    )


@lru_cache(maxsize=65536)
def _without_contempt(reply: str) -> tuple[str, tuple[str, ...]]:
    """A reply less the sentences that hold contempt, and its kinds."""
    ears = lexicon()
    found = {sentence: contempt_in(sentence) for sentence in ears.sentences(ears.plain(reply[:MAX_READ]))}
    if not any(found.values()):
        return reply, ()
    return "".join(sentence for sentence, kinds in found.items() if not kinds), tuple(dict.fromkeys(chain(*found.values())))


def _tells_of_goodbye(reply: str) -> bool:
    """Whether every goodbye in it is one that is told of: somebody else's, or a thing."""
    ears = lexicon()
    saying = [sentence for sentence in ears.sentences(ears.plain(reply)) if not FAREWELLS.isdisjoint(words_of(sentence))]
    return bool(saying) and all(
        FAREWELLS.isdisjoint(words_of(FAREWELL_TOLD.sub(" ", sentence))) and not OWN_FAREWELL.search(sentence) for sentence in saying
    )


def _says_goodbye(reply: str) -> bool:
    return not FAREWELLS.isdisjoint(words_of(reply)) or (not reply.isascii() and bool(FAREWELL_IN_CHINESE.search(as_seen(reply))))
