"""Contempt in ordinary language: insults, incitement to self-harm, blame, sneers and refusals, which hurt whatever stands beside them.

Whether a reply is mostly the user's own sentences.

Whether an agent says goodbye, or only tells of one.

Answers kept for what belongs to a scenario, found by which object it is: to hash eight facts costs more than most answers.

Which words name things: those that the training world says after a determiner, where a noun ends the phrase.

How closely a user listens to the words themselves: as to anybody's English, or as to the small language of the built-in world.

What a listener hears in a reply: support strategies, facts taken up, repetition, fluency and length.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, lru_cache, wraps
from itertools import chain, pairwise
from typing import TypeVar

from simulator.lexicon import MAX_READ, lexicon
from simulator.scenario import Fact, Scenario, Split
from simulator.text import (
    CHARACTERS_PER_WORD,
    END,
    FUNCTION_WORDS,
    LEXICON,
    as_seen,
    by_language,
    characters_of,
    content_words,
    fluency,
    fluency_in_chinese,
    num_words,
    words_of,
)
from simulator.world import load_bank, read_toml

REPORTED = re.compile(r"(said|says|say|told you|think|thinks|thought|heard),|(说|说过|骂|骂你|讲|觉得|认为|以为)[，：]")
"""What reports the clause behind it, and so belongs to it."""
ENDS = " .!?;。！？；"


@dataclass(frozen=True, kw_only=True)
class Contempt:
    """A language's file, ready to be applied."""

    kinds: Mapping[str, re.Pattern[str]]
    excused: re.Pattern[str]
    """What takes an expression back when it stands shortly before it."""
    own: re.Pattern[str]
    """What does not, because the agent speaks of itself."""

    def holds(self, kind: str, clause: str) -> bool:
        """Whether a clause holds that kind, and means it."""
        befores = (clause[: found.start()] for found in self.kinds[kind].finditer(clause))
        return any(self.own.search(before) or not self.excused.search(before) for before in befores)


@lru_cache(maxsize=65536)
def contempt_in(sentence: str, language: str = "en") -> tuple[str, ...]:
    """Kinds of contempt in one plain sentence, in the order of the lexicon's file."""
    contempt = _lexicon(language)
    clauses = [clause.strip(ENDS) for clause in re.split(r"[,:，：]", REPORTED.sub(_as_one, sentence))]
    return tuple(kind for kind in contempt.kinds if any(contempt.holds(kind, clause) for clause in clauses))


@lru_cache(maxsize=65536)
def without_contempt(reply: str, language: str) -> tuple[str, tuple[str, ...]]:
    """A reply less the sentences that hold contempt, and its kinds."""
    ears = lexicon(language)
    found = {sentence: contempt_in(sentence, language) for sentence in ears.sentences(ears.plain(reply[:MAX_READ]))}
    if not any(found.values()):
        return reply, ()
    return "".join(sentence for sentence, kinds in found.items() if not kinds), tuple(dict.fromkeys(chain(*found.values())))


def _as_one(reported: re.Match[str]) -> str:
    return reported[0][:-1]


@cache
def _lexicon(language: str) -> Contempt:
    with (LEXICON / f"contempt_{language}.toml").open("rb") as file:
        table = tomllib.load(file)
    # Words stand apart, and two of them may stand between an excuse and what it excuses; in Chinese six characters.
    before, after, gap = ("", "", ".{0,6}$") if language == "zh" else ("(?<![a-z'-])", "(?![a-z'-])", "(?: [a-z'-]+){0,2} *$")
    start, excused = "" if language == "zh" else "(?<![a-z])", table["excused"]
    return Contempt(
        kinds={kind: re.compile(f"{before}(?:{'|'.join(entry['patterns'])}){after}") for kind, entry in table["kinds"].items()},
        excused=re.compile(f"{start}(?:{'|'.join(excused['words'].split(', '))}){gap}"),
        own=re.compile(f"{start}{excused['own']}{gap}"),
    )


ECHO_WORDS = 6
"""Words in a row that a reply has from the user, from which on they count as copied; CHARACTERS_PER_WORD times as many characters."""
ECHO_AT = 0.5
"""Share of copied words from which a reply says nothing of its own."""
SAME_IN_COPY = {"me": "i", "you": "i", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "我": "你"}
"""Whoever copies may exchange these."""


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


def tells_of_goodbye(reply: str) -> bool:
    """Whether every goodbye in it is one that is told of: somebody else's, or a thing."""
    ears = lexicon()
    saying = [sentence for sentence in ears.sentences(ears.plain(reply)) if not FAREWELLS.isdisjoint(words_of(sentence))]
    return bool(saying) and all(
        FAREWELLS.isdisjoint(words_of(FAREWELL_TOLD.sub(" ", sentence))) and not OWN_FAREWELL.search(sentence) for sentence in saying
    )


def says_goodbye(reply: str) -> bool:
    """Whether a goodbye is in it, whoever says it."""
    return not FAREWELLS.isdisjoint(words_of(reply)) or (not reply.isascii() and bool(FAREWELL_IN_CHINESE.search(as_seen(reply))))


Answer = TypeVar("Answer")


def by_facts(maxsize: int) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Keeps the answers of a function of a scenario's facts and of texts; all are dropped once there are too many."""

    def keep(function: Callable[..., Answer]) -> Callable[..., Answer]:
        kept: dict[tuple[int, tuple[str, ...]], tuple[tuple[Fact, ...], Answer]] = {}

        @wraps(function)
        def answer(facts: tuple[Fact, ...], *texts: str) -> Answer:
            # An id is somebody's only as long as they live: the entry keeps its facts alive.
            found = kept.get((id(facts), texts))
            if found is not None:
                return found[1]
            if len(kept) >= maxsize:
                kept.clear()
            value = function(facts, *texts)
            kept[id(facts), texts] = (facts, value)
            return value

        return answer

    return keep


DETERMINERS = frozenset("the a an my your her his their our its that those this these every each no two three".split())
CLOSERS = FUNCTION_WORDS | frozenset(
    "after before from into over under behind without because since until while near every last next again where or up down out off".split()
)
"""Words that a noun phrase does not go on with."""


@cache
def nouns() -> frozenset[str]:
    """Words that stand last in a noun phrase of a training fact, but for those that a reply may hold whatever was told ("a list")."""
    facts = {fact for scenario in load_bank().scenarios(Split.TRAIN) for fact in scenario.facts}
    found: set[str] = set()
    for sentence in chain.from_iterable(re.split(r"[.?!,]", fact.text) for fact in facts):
        words = words_of(sentence)
        found.update(_closing_words((*words, END, END)))
    said_anyway = {word for move in read_toml("moves").values() for line in (*move["grounded"], *move["plain"]) for word in words_of(line)}
    return frozenset(found - said_anyway)


def _closing_words(words: tuple[str, ...]) -> set[str]:
    found = set()
    for first, second, third, fourth in zip(words, words[1:], words[2:], (*words[3:], END), strict=False):
        if first not in DETERMINERS or second in CLOSERS or second == END:
            continue
        if third in CLOSERS or third == END:
            found.add(second)
        elif fourth in CLOSERS or fourth == END:
            found.add(third)
    return found


@lru_cache(maxsize=4096)
def nouns_of(facts: tuple[Fact, ...], other: str) -> tuple[frozenset[str], ...]:
    """Per fact, the things it tells of: its cue's last word, and nouns that no other fact has and that are not the other person."""
    heads = [words_of(fact.cue)[-1] for fact in facts]
    told = [({*words_of(fact.text)} & nouns()) - {*heads, *words_of(other)} for fact in facts]
    times = [word for words in told for word in words]
    return tuple(frozenset({head, *(word for word in words if times.count(word) == 1)}) for head, words in zip(heads, told, strict=True))


CUE, OTHER, FEELING, START = "<cue>", "<other>", "<feeling>", "<s>"
Phrases = Sequence[Mapping[tuple[str, ...], str]]
"""Tables from the words of a phrase to the slot that it fills; the first that has it counts."""
REGISTER_DETERMINERS = frozenset(["the", "your", "that", "those", "this", "these", "her", "his", "their", "its", "a", "an"])
MAX_PHRASE = 5
"""Words in the longest phrase that fills a slot."""
STRICTNESS = 3.0
"""Fluency lost per share of word triples that the world's language does not have."""


class Register(StrEnum):
    """Which language a user takes as fluent."""

    OPEN = "open"
    """Ordinary English or Chinese: for people and for models that speak it."""
    WORLD = "world"
    """The moves of the built-in world about what this user told: for the embedded policy, which speaks nothing else. There, any string of
    words that ordinary English might just bear would be a way to be paid for garble."""


def clarity(text: str, register: Register, *, facts: tuple[Fact, ...], other: str, language: str = "en") -> float:
    """How much of a reply can be followed, in [0, 1].

    Args:
        facts: the scenario's.
        other: the scenario's other person.
        language: what the user understands, `en` or `zh`; the embedded world's own language is English.
    """
    if language == "zh":
        return fluency_in_chinese(text)
    return _world_clarity(facts, other, text) if register is Register.WORLD else fluency(text)


@by_facts(maxsize=65536)
def _world_clarity(facts: tuple[Fact, ...], other: str, text: str) -> float:
    """1 less STRICTNESS times the share of word triples, slots counting as words, that no move has."""
    known, strange, total = _triples(), 0, 0
    for sentence in re.split(r"[.?!]", as_seen(text)):
        words = words_of(sentence)
        if words:
            phrases = _phrases(facts, other)
            slotted = _with_slots(words, phrases)
            total += len(slotted)
            num_strange = sum(triple not in known for triple in _triples_of(slotted))
            if num_strange:
                # "the rest" may be a thing that was told or a part of the move itself; the kinder reading counts.
                literal = _with_slots(words, phrases, keep=_literal_pairs())
                num_strange = min(num_strange, sum(triple not in known for triple in _triples_of(literal)))
            strange += num_strange
    return max(0.0, 1.0 - STRICTNESS * strange / total) if total else 0.0


def _with_slots(words: tuple[str, ...], phrases: Phrases, keep: frozenset[tuple[str, ...]] = frozenset()) -> list[str]:
    """The words with things, the other person and feelings replaced by their slots, but for those to keep; the longest phrase counts."""
    slotted: list[str] = []
    begins = _first_words()
    i = 0
    while i < len(words):
        word, size = words[i], 1
        if word in begins:
            for n in range(min(MAX_PHRASE, len(words) - i), 0, -1):
                phrase = words[i : i + n]
                slot = next((table[phrase] for table in phrases if phrase in table), None)
                if slot and phrase not in keep:
                    word, size = slot, n
                    break
        slotted.append(word)
        i += size
    return slotted


@by_facts(maxsize=4096)
@lru_cache(maxsize=4096)
def _phrases(facts: tuple[Fact, ...], other: str) -> Phrases:
    """What fills a slot in this scenario: things under any determiner, the other person ("your choir friend", "your friend"), feelings."""
    person = words_of(other)
    return {**_named(facts), ("your", *person): OTHER, ("your", person[-1]): OTHER}, _things_and_feelings()


@cache
def _first_words() -> frozenset[str]:
    """Words with which something that fills a slot can begin: all that is worth looking up."""
    return REGISTER_DETERMINERS | {phrase[0] for phrase in _things_and_feelings()}


@cache
def _things_and_feelings() -> dict[tuple[str, ...], str]:
    """Things of which anybody might speak: to name one that the user did not tell of misses the point, but it can be followed."""
    cues = _named(tuple(fact for scenario in load_bank().scenarios(Split.TRAIN) for fact in scenario.facts))
    things = {(determiner, noun): CUE for noun in nouns() for determiner in REGISTER_DETERMINERS}
    return things | cues | dict.fromkeys(_feelings(), FEELING)


def _named(facts: tuple[Fact, ...]) -> dict[tuple[str, ...], str]:
    bare = {cue[1:] if cue[0] in REGISTER_DETERMINERS else cue for cue in (words_of(fact.cue) for fact in facts)}
    return {(determiner, *words): CUE for words in bare for determiner in REGISTER_DETERMINERS}


@cache
def _feelings() -> frozenset[tuple[str, ...]]:
    return frozenset(words_of(feeling) for scenario in load_bank().scenarios(Split.TRAIN) for feeling in scenario.feelings) | {("hurt",)}


@cache
def _triples() -> frozenset[tuple[str, str, str]]:
    """Neighbouring triples of all moves, sentence by sentence."""
    slots = {"{cue}": CUE, "{other}": OTHER, "{other_cap}": OTHER, "{feeling}": FEELING}
    triples: set[tuple[str, str, str]] = set()
    for move in read_toml("moves").values():
        for line in (*move["grounded"], *move["plain"]):
            for sentence in re.split(r"[.?!]", line):
                words = tuple(slots.get(word, word) for word in _words_and_slots(sentence))
                if words:
                    triples.update(_triples_of(list(words)))
                    triples.update(_triples_of(_with_slots(words, (_things_and_feelings(),))))
    return frozenset(triples)


@cache
def _literal_pairs() -> frozenset[tuple[str, ...]]:
    """Neighbouring words that stand in the moves themselves, and single words of them."""
    lines = [line for move in read_toml("moves").values() for line in (*move["grounded"], *move["plain"])]
    sentences = [_words_and_slots(sentence) for line in lines for sentence in re.split(r"[.?!]", line)]
    return frozenset(chain.from_iterable(((a,), (a, b)) for words in sentences for a, b in pairwise((*words, END))))


def _words_and_slots(sentence: str) -> list[str]:
    return re.findall(r"\{\w+\}|[a-z]+(?:'(?!s\b)[a-z]+)?", sentence.lower())


def _triples_of(words: list[str]) -> Iterator[tuple[str, str, str]]:
    """As many triples as words, each centred on one of them."""
    padded = [START, *words, END]
    return zip(padded, padded[1:], padded[2:], strict=False)


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
        return _named_facts(scenario.facts, scenario.other, text)
    words = content_words(text)
    told = _first_told(scenario.facts)
    return tuple(index for index, things in enumerate(told) if things and len(things & words) >= min(TAKEN_UP_AT, len(things) // 3 + 1))


@by_facts(maxsize=65536)
def _named_facts(facts: tuple[Fact, ...], other: str, text: str) -> tuple[int, ...]:
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
