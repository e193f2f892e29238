"""The listener: parses a reply once into strategies, facts, repetition, clarity, contempt and everything else that a user reacts to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from itertools import chain, pairwise

from simulator.lexicon import MAX_READ, contempt_in, lexicon
from simulator.scenario import Fact, Scenario, Split
from simulator.text import (
    CHARACTERS_PER_WORD,
    END,
    FUNCTION_WORDS,
    as_seen,
    by_language,
    characters_of,
    content_words,
    fluency,
    fluency_in_chinese,
    normalized,
    num_words,
    words_of,
)
from simulator.world import load_bank, read_toml

ENOUGH_SHARED = 2
"""Words or pairs of characters by which a fact without a cue is recognised; of a fact that has few of them a third."""
ECHO_WORDS = 6
"""Words in a row shared with the user that count as copied; in Chinese CHARACTERS_PER_WORD times as many characters."""
ECHO_AT = 0.5
"""Share of copied words from which a reply is an echo."""
SAME_IN_COPY = {"me": "i", "you": "i", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "我": "你"}
"""Words that a copy may exchange."""
FAREWELLS = frozenset(("goodbye", "bye", "farewell"))
FAREWELL_REPORTED = re.compile(
    r"\b(?:say|says|saying|said|wave|waved|waving|kiss|kissed|bid|a|the|your|his|her|their|that|this|last|final|proper|no|of|without)"
    r" (?:[a-z]+ )?(?:goodbye|bye|farewell)\b"
    r"|\b(?:goodbye|bye|farewell) (?:to (?!you\b)|party|dinner|letter|card|drinks|speech|present|hug|kiss)"
)
"""A goodbye that the sentence is about."""
FAREWELL_OWN = re.compile(
    r"(?:^|,) *(?:(?:and|so|well|okay|now|then|but),? )*(?:i|we|let us|let me|time to|it is time to)"
    r" (?:(?:now|just|must|have to|will|should|shall|need to|want to|would like to|am going to|are going to) )*"
    r"(?:say|wave|bid you) (?:[a-z]+ )?(?:goodbye|bye|farewell)\b(?! to (?!you\b))"
)
"""A goodbye that the agent says itself, in words that could be about one."""
FAREWELL_IN_CHINESE = re.compile(r"(?<![说道声的])(?:再见|拜拜)[啦了吧哦呀]?(?=[,.。!~\s]|$)")


class Register(StrEnum):
    """The language that a user takes as clear."""

    OPEN = "open"
    """Ordinary English or Chinese: for people and for models that speak it."""
    WORLD = "world"
    """The moves of the built-in world about what this user mentioned: for the embedded policy, which speaks nothing else. There, any string
    of words that ordinary English might just bear would be a way to be paid for garble."""


@dataclass(frozen=True, kw_only=True)
class ParsedReply:
    """One reply as it was heard in the light of the conversation before it."""

    strategies: tuple[str, ...]
    """Support strategies, in the order in which they were heard, each once."""
    cues: tuple[int, ...]
    """Indices of the facts that the reply takes up."""
    similarity: float
    """Overlap (Jaccard) of content with the most similar earlier reply, in [0, 1], without small talk and unmentioned nouns."""
    clarity: float
    """Share of the words that can be followed, in [0, 1]."""
    num_words: int
    """Words; CHARACTERS_PER_WORD Chinese characters count as one."""
    farewell: bool
    """The agent says goodbye."""
    contempt: tuple[str, ...] = ()
    """Kinds of contempt, each once; a sentence that holds any shows no strategy."""
    echo: bool = False
    """Mostly the user's own sentences; it shows no strategy and takes up no fact."""
    dropped: tuple[int, ...] = ()
    """Indices of facts that the reply names without saying anything about them."""
    content: frozenset[str] = frozenset()
    """Content words of the sentences that show a strategy, or of all where none does."""
    nouns: frozenset[str] = frozenset()
    """Those content words that are nouns of the world."""
    earlier_strategies: tuple[tuple[str, ...], ...] = ()
    """Strategies of each earlier reply."""
    last_cues: tuple[tuple[int, ...], ...] = ()
    """Facts that each of the last two replies took up."""
    mentioned: tuple[tuple[int, ...], ...] = ()
    """Facts that each turn of the user states in full."""


def parse(
    reply: str, scenario: Scenario, earlier: Sequence[str] = (), *, said: Sequence[str] = (), register: Register = Register.OPEN
) -> ParsedReply:
    """Parses a reply in the scenario's language.

    A reply that is mostly the user's own sentences, or names facts without saying anything about them, takes up nothing. Only ordinary
    language has words for contempt, and for talk about a goodbye.

    Args:
        scenario: with the facts known by now (`Dialogue.story`).
        earlier: the agent's replies so far.
        said: the user's turns so far.
    """
    language, is_open = scenario.language, register is Register.OPEN
    story = _story(scenario.facts, scenario.other if language == "en" else "")
    kind, contempt = _without_contempt(reply, language) if is_open else (reply, ())
    heard = parse_text(reply, language)
    strategies, named = parse_text(kind, language).strategies if contempt else heard.strategies, _cues_in(story, reply)
    cues, echo = named, is_echo(reply, said, language)
    if echo:
        strategies, cues = (), ()
    elif cues and not strategies and content_words(reply) <= frozenset().union(*map(content_words, said)):
        cues = ()
    before = [parse_text(past, language) for past in earlier]
    unknown: AbstractSet[str] = frozenset()
    if before and (things := heard.nouns.union(*(past.nouns for past in before))):
        everything = " ".join(said).lower()
        unknown = {thing for thing in things if thing not in everything}
    return ParsedReply(
        strategies=strategies,
        cues=cues,
        similarity=max((_overlap(heard, past, unknown) for past in before), default=0.0),
        clarity=fluency_in_chinese(reply) if language == "zh" else fluency(reply) if is_open else _world_clarity(story, reply),
        num_words=num_words(reply),
        farewell=says_goodbye(reply, ignore_reported=is_open and language == "en"),
        contempt=contempt,
        echo=echo,
        dropped=tuple(index for index in named if index not in cues),
        content=heard.content,
        nouns=heard.nouns,
        earlier_strategies=tuple(past.strategies for past in before),
        last_cues=tuple(_cues_in(story, past) for past in earlier[-2:]),
        mentioned=tuple(_mentioned_in(story, text) for text in said),
    )


@dataclass(frozen=True)
class ParsedText:
    """A text by itself."""

    text: str
    strategies: tuple[str, ...]
    """Each once: sentence by sentence, then those that take more than one."""
    content: frozenset[str]
    nouns: frozenset[str]


@lru_cache(maxsize=65536)
def parse_text(text: str, language: str) -> ParsedText:
    """The strategies and the content of a text, whatever was said before; small talk counts as content only where no strategy is shown."""
    known = lexicon(language)
    plain = normalized(text[:MAX_READ], language)
    sentences = known.sentences(plain)
    shown = [known.strategies(sentence) for sentence in sentences]
    if plain == text.lower() and all(shown):
        content = content_words(text)  # the same words, cached already
    else:
        carrying = [sentence for sentence, strategies in zip(sentences, shown, strict=True) if strategies] or sentences
        content = frozenset().union(*map(content_words, carrying))
    return ParsedText(text, tuple(dict.fromkeys(chain(*shown, known.strategies_across(plain)))), content, content & nouns())


def strategies_in(text: str, language: str | None = None) -> tuple[str, ...]:
    """Support strategies in a text, each once, in order.

    Args:
        language: `en` or `zh`; None takes each sentence in its own.
    """
    if language:
        return parse_text(text, language).strategies
    return tuple(dict.fromkeys(chain.from_iterable(parse_text(part, spoken).strategies for spoken, part in by_language(text))))


def similarity(reply: str, earlier: str, language: str = "en") -> float:
    """Jaccard overlap of content, in [0, 1]."""
    return _overlap(parse_text(reply, language), parse_text(earlier, language), frozenset())


def _overlap(reply: ParsedText, earlier: ParsedText, unknown: AbstractSet[str]) -> float:
    a, b = reply.content, earlier.content
    if unknown:
        a, b = a - unknown, b - unknown
    if not a and not b:  # function words only: in Chinese by characters
        a, b = frozenset(characters_of(reply.text)), frozenset(characters_of(earlier.text))
    shared = len(a & b)
    return shared / (len(a) + len(b) - shared) if a or b else 1.0


@lru_cache(maxsize=65536)
def _without_contempt(reply: str, language: str) -> tuple[str, tuple[str, ...]]:
    """A reply less the sentences that hold contempt, and the kinds in them."""
    sentences = lexicon(language).sentences(normalized(reply[:MAX_READ], language))
    found = {sentence: contempt_in(sentence, language) for sentence in sentences}
    if not any(found.values()):
        return reply, ()
    return "".join(sentence for sentence, kinds in found.items() if not kinds), tuple(dict.fromkeys(chain(*found.values())))


def is_echo(reply: str, said: Sequence[str], language: str = "en") -> bool:
    """Whether a reply is mostly the user's own sentences.

    Args:
        said: the user's turns.
    """
    length = _echo_length(language)
    num_units, carrying = len(characters_of(reply) if language == "zh" else words_of(reply)), content_words(reply)
    everything = " ".join(said).lower()
    if num_units < length or sum([word in everything for word in carrying]) < ECHO_AT * len(carrying):
        return False  # decided at once for nearly all replies
    theirs = set(chain.from_iterable(_stretches(text, language) for text in said))
    copied = {i + k for i, stretch in enumerate(_stretches(reply, language)) if stretch in theirs for k in range(length)}
    return len(copied) >= ECHO_AT * num_units


def _echo_length(language: str) -> int:
    """Words, or Chinese characters, in a row that count as copied."""
    return round(ECHO_WORDS * CHARACTERS_PER_WORD) if language == "zh" else ECHO_WORDS


@lru_cache(maxsize=65536)
def _stretches(text: str, language: str) -> tuple[tuple[str, ...], ...]:
    """All stretches of a text that are long enough to be copied, in order; I and you are the same."""
    length, units = _echo_length(language), characters_of(text) if language == "zh" else words_of(text)
    same = [SAME_IN_COPY.get(word, word) for word in units]
    return tuple(tuple(same[i : i + length]) for i in range(len(same) - length + 1))


def says_goodbye(reply: str, *, ignore_reported: bool = True) -> bool:
    """Whether the agent says goodbye.

    Args:
        ignore_reported: an English goodbye that the reply is only about does not count.
    """
    if FAREWELLS.isdisjoint(words_of(reply)):
        return not reply.isascii() and bool(FAREWELL_IN_CHINESE.search(as_seen(reply)))
    if not ignore_reported:
        return True
    sentences = [one for one in lexicon().sentences(normalized(reply, "en")) if not FAREWELLS.isdisjoint(words_of(one))]
    return not sentences or any(
        not FAREWELLS.isdisjoint(words_of(FAREWELL_REPORTED.sub(" ", one))) or FAREWELL_OWN.search(one) for one in sentences
    )


# Facts and nouns

DETERMINERS = frozenset("the a an my your her his their our its that those this these every each no two three".split())
CLOSERS = FUNCTION_WORDS | frozenset(
    "after before from into over under behind without because since until while near every last next again where or up down out off".split()
)
"""Words that end a noun phrase."""


@cache
def nouns() -> frozenset[str]:
    """Nouns that end a noun phrase of a training fact, except those that the world's moves use anyway ("a list")."""
    facts = {fact for scenario in load_bank().scenarios(Split.TRAIN) for fact in scenario.facts}
    found: set[str] = set()
    for sentence in chain.from_iterable(re.split(r"[.?!,]", fact.text) for fact in facts):
        words = (*words_of(sentence), END, END)
        for first, second, third, fourth in zip(words, words[1:], words[2:], (*words[3:], END), strict=False):
            if first in DETERMINERS and second not in CLOSERS and second != END:
                if third in CLOSERS or third == END:
                    found.add(second)
                elif fourth in CLOSERS or fourth == END:
                    found.add(third)
    return frozenset(found - {word for line in _lines_of_moves() for word in words_of(line)})


@cache
def _lines_of_moves() -> tuple[str, ...]:
    return tuple(line for move in read_toml("moves").values() for line in (*move["grounded"], *move["plain"]))


@lru_cache(maxsize=4096)
def cue_heads(facts: tuple[Fact, ...]) -> tuple[str, ...]:
    """The noun by which each fact is recognised: the last word of its cue."""
    return tuple(words_of(fact.cue)[-1] for fact in facts)


@dataclass(frozen=True, eq=False)
class _Story:
    """The facts of a scenario, prepared for the listener. Compared by identity, so that results cached for it are found quickly."""

    facts: tuple[Fact, ...]
    other: str
    """The other person; "" where facts are recognised by shared content instead of nouns."""

    @cached_property
    def by_noun(self) -> Mapping[str, list[int]]:
        """Noun -> facts that it takes up: the head of the cue, and nouns that no other fact has and that are not the other person."""
        heads = cue_heads(self.facts)
        things = [({*words_of(fact.text)} & nouns()) - {*heads, *words_of(self.other)} for fact in self.facts]
        times = [word for words in things for word in words]
        table: dict[str, list[int]] = {}
        for index, (head, words) in enumerate(zip(heads, things, strict=True)):
            for noun in {head, *(word for word in words if times.count(word) == 1)}:
                table.setdefault(noun, []).append(index)
        return table

    @cached_property
    def new_content(self) -> tuple[frozenset[str], ...]:
        """Per fact, the content that no fact before it had."""
        new: list[frozenset[str]] = []
        for fact in self.facts:
            new.append(content_words(fact.text).difference(*new))
        return tuple(new)

    @cached_property
    def phrases(self) -> Sequence[Mapping[tuple[str, ...], str]]:
        """Tables of phrases and the slots that they fill: cues under any determiner, the other person, nouns, feelings."""
        person = words_of(self.other)
        return {**_cue_phrases(self.facts), ("your", *person): OTHER, ("your", person[-1]): OTHER}, _common_phrases()


@lru_cache(maxsize=4096)
def _story(facts: tuple[Fact, ...], other: str) -> _Story:
    return _Story(facts, other)


def cues_in(text: str, scenario: Scenario) -> tuple[int, ...]:
    """Indices of the facts that a text takes up.

    An English fact is recognised by its cue, or by another noun that only this fact has. A Chinese one, and what the user said where
    the scenario has no list of facts (`Dialogue.story`), by ENOUGH_SHARED of the words or pairs of characters that came up with it.
    """
    return _cues_in(_story(scenario.facts, scenario.other if scenario.language == "en" else ""), text)


@lru_cache(maxsize=65536)
def _cues_in(story: _Story, text: str) -> tuple[int, ...]:
    if story.other:
        return tuple(sorted({index for word in words_of(text) for index in story.by_noun.get(word, ())}))
    words = content_words(text)
    return tuple(
        index
        for index, things in enumerate(story.new_content)
        if things and len(things & words) >= min(ENOUGH_SHARED, len(things) // 3 + 1)
    )


def facts_told(text: str, facts: tuple[Fact, ...]) -> tuple[int, ...]:
    """Indices of the facts that a user's turn states in full."""
    return _mentioned_in(_story(facts, ""), text)


@lru_cache(maxsize=65536)
def _mentioned_in(story: _Story, text: str) -> tuple[int, ...]:
    return tuple(index for index, fact in enumerate(story.facts) if fact.text in text)


# Clarity in the world's own language

CUE, OTHER, FEELING, START = "<cue>", "<other>", "<feeling>", "<s>"
SLOT_DETERMINERS = frozenset("the your that those this these her his their its a an".split())
MAX_PHRASE = 5
"""Words in the longest phrase that fills a slot."""
STRANGENESS = 3.0
"""Clarity lost per share of word triples that the world's language does not have."""


def clarity(text: str, register: Register, *, facts: tuple[Fact, ...], other: str, language: str = "en") -> float:
    """Share of a reply that can be followed, in [0, 1].

    Args:
        facts: the scenario's.
        other: the scenario's other person.
        language: `en` or `zh`; the world's own language is English.
    """
    if language == "zh":
        return fluency_in_chinese(text)
    return _world_clarity(_story(facts, other), text) if register is Register.WORLD else fluency(text)


@lru_cache(maxsize=65536)
def _world_clarity(story: _Story, text: str) -> float:
    """1 less STRANGENESS times the share of word triples, slots counting as words, that no move has."""
    known, strange, total = _triples(), 0, 0
    for sentence in re.split(r"[.?!]", as_seen(text)):
        words = words_of(sentence)
        if words:
            slotted = _with_slots(words, story.phrases)
            total += len(slotted)
            num_strange = sum(triple not in known for triple in _triples_of(slotted))
            if num_strange:
                # "the rest" may be something that was mentioned or a part of the move itself; the kinder parse counts.
                literal = _with_slots(words, story.phrases, keep=_literal_phrases())
                num_strange = min(num_strange, sum(triple not in known for triple in _triples_of(literal)))
            strange += num_strange
    return max(0.0, 1.0 - STRANGENESS * strange / total) if total else 0.0


def _with_slots(
    words: tuple[str, ...], tables: Sequence[Mapping[tuple[str, ...], str]], keep: frozenset[tuple[str, ...]] = frozenset()
) -> list[str]:
    """The words with phrases replaced by the slots that they fill, except those to keep; the longest phrase counts."""
    slotted: list[str] = []
    begins = _first_words()
    i = 0
    while i < len(words):
        word, size = words[i], 1
        if word in begins:
            for n in range(min(MAX_PHRASE, len(words) - i), 0, -1):
                phrase = words[i : i + n]
                slot = next((table[phrase] for table in tables if phrase in table), None)
                if slot and phrase not in keep:
                    word, size = slot, n
                    break
        slotted.append(word)
        i += size
    return slotted


@cache
def _first_words() -> frozenset[str]:
    """Words with which a phrase that fills a slot can begin."""
    return SLOT_DETERMINERS | {phrase[0] for phrase in _common_phrases()}


@cache
def _common_phrases() -> dict[tuple[str, ...], str]:
    """Nouns, cues and feelings of the training world: one that the user did not mention misses the point, but can be followed."""
    scenarios = load_bank().scenarios(Split.TRAIN)
    things = {(determiner, noun): CUE for noun in nouns() for determiner in SLOT_DETERMINERS}
    feelings = {words_of(feeling) for scenario in scenarios for feeling in scenario.feelings} | {("hurt",)}
    return things | _cue_phrases(tuple(fact for scenario in scenarios for fact in scenario.facts)) | dict.fromkeys(feelings, FEELING)


def _cue_phrases(facts: tuple[Fact, ...]) -> dict[tuple[str, ...], str]:
    bare = {cue[1:] if cue[0] in SLOT_DETERMINERS else cue for cue in (words_of(fact.cue) for fact in facts)}
    return {(determiner, *words): CUE for words in bare for determiner in SLOT_DETERMINERS}


@cache
def _sentences_of_moves() -> tuple[tuple[str, ...], ...]:
    """Words and {slots} of each sentence of the moves."""
    sentences = chain.from_iterable(re.split(r"[.?!]", line) for line in _lines_of_moves())
    return tuple(tuple(re.findall(r"\{\w+\}|[a-z]+(?:'(?!s\b)[a-z]+)?", sentence.lower())) for sentence in sentences)


@cache
def _triples() -> frozenset[tuple[str, str, str]]:
    """Neighbouring triples of all moves, sentence by sentence."""
    slots = {"{cue}": CUE, "{other}": OTHER, "{other_cap}": OTHER, "{feeling}": FEELING}
    triples: set[tuple[str, str, str]] = set()
    for sentence in filter(None, _sentences_of_moves()):
        words = tuple(slots.get(word, word) for word in sentence)
        triples.update(_triples_of(list(words)), _triples_of(_with_slots(words, (_common_phrases(),))))
    return frozenset(triples)


@cache
def _literal_phrases() -> frozenset[tuple[str, ...]]:
    """Single words of the moves and pairs of neighbours."""
    return frozenset(chain.from_iterable(((a,), (a, b)) for words in _sentences_of_moves() for a, b in pairwise((*words, END))))


def _triples_of(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """As many triples as words, each centred on one of them."""
    padded = [START, *words, END]
    return zip(padded, padded[1:], padded[2:], strict=False)
