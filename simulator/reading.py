"""What a listener hears in a reply: support strategies, facts taken up, repetition, fluency and length."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from simulator.chinese import by_language, characters_of, num_words
from simulator.contempt import without_contempt
from simulator.content import content_words
from simulator.ears import MAX_READ, lexicon
from simulator.echo import is_echo
from simulator.farewell import says_goodbye, tells_of_goodbye
from simulator.fluency import words_of
from simulator.memo import by_facts
from simulator.nouns import nouns, nouns_of
from simulator.register import Register, clarity
from simulator.scenario import Fact, Scenario

TAKEN_UP_AT = 2
"""Words or pairs of characters by which something told is recognised; of what has few of them a third."""


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

    What is mostly the user's own sentences, or names things without saying anything about them, is heard to say nothing. Contempt
    is heard in ordinary language, and in English whether a goodbye is only told of; the world's small language has words for neither.

    Args:
        earlier: the agent's replies so far.
        said: the user's turns so far.
    """
    is_open = register is Register.OPEN
    kind, contempt = without_contempt(reply, scenario.language) if is_open else (reply, ())
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
        farewell=says_goodbye(reply) and not (is_open and scenario.language == "en" and tells_of_goodbye(reply)),
        contempt=contempt,
        echo=echo,
        dropped=tuple(index for index in named if index not in cues),
    )
