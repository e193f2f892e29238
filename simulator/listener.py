"""What the patterns of a lexicon hear, and all that a user reacts to in a reply once it has been read."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from itertools import chain, groupby, pairwise

from simulator.lexicon import Lexicon, lexicon
from simulator.reading import Reading
from simulator.scenario import Fact, Scenario, Split
from simulator.text import (
    CHARACTERS_PER_WORD,
    END,
    FUNCTION_WORDS,
    as_seen,
    characters_of,
    content_words,
    fluency,
    fluency_in_chinese,
    is_scrambled,
    language_of,
    normalized,
    num_words,
    words_of,
)
from simulator.world import load_bank, read_toml


class Register(StrEnum):
    """The language that a user takes as clear."""

    OPEN = "open"
    """Ordinary English or Chinese: for people and for models that speak it."""
    WORLD = "world"
    """The moves of the built-in world about what this user mentioned: for the embedded policy, which speaks nothing else. There, any string
    of words that ordinary English might just bear would be a way to be paid for garble."""


class ListenerKind(StrEnum):
    """How an embedded user understands a reply."""

    RULE = "rule"
    """By the patterns of a lexicon, n-grams and English word vectors: about a millisecond or less, the same on every machine."""
    ENCODER = "encoder"
    """By a small network that was tuned on labelled replies: milliseconds, English only."""
    MODEL = "model"
    """By a language model on an OpenAI-compatible server, asked once a reply."""


@dataclass(frozen=True, kw_only=True)
class ParsedReply(Reading):
    """A reading with what follows from the words and from earlier readings, whoever listens."""

    similarity: float
    """Overlap (Jaccard) of content with the most similar earlier reply, in [0, 1], without small talk and unmentioned nouns."""
    num_words: int
    """Words; CHARACTERS_PER_WORD Chinese characters count as one."""
    farewell: bool
    """The agent says goodbye."""
    earlier_strategies: tuple[tuple[str, ...], ...] = ()
    """Strategies of each earlier reply; none of one that was doubted."""
    last_cues: tuple[tuple[int, ...], ...] = ()
    """Facts that each of the last two replies took up."""
    mentioned: tuple[tuple[int, ...], ...] = ()
    """Facts that each turn of the user states in full."""


def parse(
    reply: str,
    scenario: Scenario,
    earlier: Sequence[str] = (),
    *,
    said: Sequence[str] = (),
    register: Register = Register.OPEN,
    reading: Reading | None = None,
    readings: Sequence[Reading | None] = (),
) -> ParsedReply:
    """Parses a reply in the scenario's language.

    Args:
        scenario: with the facts known by now (`Dialogue.story`).
        earlier: the agent's replies so far.
        said: the user's turns so far.
        reading: of the reply; None has it read by the lexicon.
        readings: of the earlier replies, likewise; a missing one counts as None.
    """
    language = scenario.language
    reading = reading or read_by_rule(reply, scenario, said=said, register=register)
    heard, before = parse_text(reply, language), [parse_text(past, language) for past in earlier]
    known = [*readings, *[None] * (len(earlier) - len(readings))]
    unknown: AbstractSet[str] = frozenset()
    if before and (things := heard.nouns.union(*(past.nouns for past in before))):
        everything = " ".join(said).lower()
        unknown = {thing for thing in things if thing not in everything}
    read = min(1.0, Lexicon.MAX_READ / max(len(reply), 1))
    return ParsedReply(
        **{**vars(reading), "clarity": reading.clarity * read},
        similarity=max((heard.overlap(past, unknown) for past in before), default=0.0),
        num_words=num_words(reply),
        farewell=says_goodbye(reply, ignore_reported=register is Register.OPEN and language == "en"),
        earlier_strategies=tuple(
            () if kept and kept.is_doubted else (kept or past).strategies for kept, past in zip(known, before, strict=True)
        ),
        last_cues=tuple(kept.cues if kept else cues_in(past, scenario) for kept, past in list(zip(known, earlier, strict=True))[-2:]),
        mentioned=tuple(facts_stated(text, scenario.facts) for text in said),
    )


def read_by_rule(reply: str, scenario: Scenario, *, said: Sequence[str] = (), register: Register = Register.OPEN) -> Reading:
    """What the patterns of the lexicon find in a reply; users who hear ordinary language add `simulator.ngrams`.

    A reply that is mostly the user's own sentences, or names facts without saying anything about them, takes up nothing. In ordinary
    language a salad of the user's words makes no sense, there are words for contempt, and only told facts are taken up.
    """
    language, is_open = scenario.language, register is Register.OPEN
    if is_open and is_scrambled(reply, said):
        return Reading(clarity=0.0)
    heard = parse_text(reply, language)
    contempt, strategies = heard.contempt if is_open else ((), heard.strategies)
    named = cues_in(reply, scenario)
    if is_open:
        told = {fact for turn in said for fact in facts_stated(turn, scenario.facts)}
        named = tuple(fact for fact in named if fact in told)
    cues, echo = named, is_echo(reply, said, language)
    if echo:
        strategies, cues = (), ()
    elif cues and not strategies and content_words(reply) <= frozenset().union(*map(content_words, said)):
        cues = ()
    return Reading(
        strategies=strategies,
        cues=cues,
        clarity=clarity(reply, register, facts=scenario.facts, other=scenario.other, language=language),
        contempt=contempt,
        echo=echo,
        dropped=tuple(index for index in named if index not in cues),
    )


@dataclass(frozen=True)
class ParsedText:
    """A text by itself."""

    text: str
    language: str
    strategies: tuple[str, ...]
    """Each once: sentence by sentence, then those that take more than one."""
    content: frozenset[str]
    """Content words of the sentences that show a strategy, or of all where none does."""
    nouns: frozenset[str]
    """Those content words that are nouns of the world."""

    @cached_property
    def contempt(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Kinds of contempt, each once, and the strategies of the sentences without any."""
        known = lexicon(self.language)
        found = {one: known.contempt(one) for one in known.sentences(normalized(self.text[: Lexicon.MAX_READ], self.language))}
        if not any(found.values()):
            return (), self.strategies
        kind = "".join(sentence for sentence, kinds in found.items() if not kinds)
        return tuple(dict.fromkeys(chain(*found.values()))), parse_text(kind, self.language).strategies

    def overlap(self, earlier: ParsedText, unknown: AbstractSet[str] = frozenset()) -> float:
        """Jaccard overlap of content, in [0, 1], without the unknown words."""
        a, b = self.content, earlier.content
        if unknown:
            a, b = a - unknown, b - unknown
        if not a and not b:  # function words only: in Chinese by characters
            a, b = frozenset(characters_of(self.text)), frozenset(characters_of(earlier.text))
        shared = len(a & b)
        return shared / (len(a) + len(b) - shared) if a or b else 1.0


@lru_cache(maxsize=65536)
def parse_text(text: str, language: str) -> ParsedText:
    """The strategies and the content of a text by itself; small talk counts as content only where no strategy is shown."""
    known = lexicon(language)
    plain = normalized(text[: Lexicon.MAX_READ], language)
    sentences = known.sentences(plain)
    shown = [known.strategies(sentence) for sentence in sentences]
    if plain == text.lower() and all(shown):
        content = content_words(text)  # the same words, cached already
    else:
        carrying = [sentence for sentence, strategies in zip(sentences, shown, strict=True) if strategies] or sentences
        content = frozenset().union(*map(content_words, carrying))
    return ParsedText(text, language, tuple(dict.fromkeys(chain(*shown, known.strategies_across(plain)))), content, content & nouns())


def strategies_in(text: str, language: str | None = None) -> tuple[str, ...]:
    """Support strategies in a text, each once, in order.

    Args:
        language: `en` or `zh`; None takes each sentence in its own, and one without words in that of the sentence before it.
    """
    if language or not characters_of(text):
        return parse_text(text, language or "en").strategies
    spoken: list[tuple[str, str]] = []
    for sentence in re.findall(r"[^.!?。！？\n]*[.!?。！？\n]+|[^.!?。！？\n]+$", text):
        has_words = characters_of(sentence) or words_of(sentence)
        spoken.append((language_of(sentence) if has_words or not spoken else spoken[-1][0], sentence))
    stretches = groupby(spoken, key=lambda pair: pair[0])
    return tuple(dict.fromkeys(chain(*(parse_text("".join(one for _, one in run), zh_or_en).strategies for zh_or_en, run in stretches))))


def is_echo(reply: str, said: Sequence[str], language: str = "en") -> bool:
    """Whether at least half of a reply is copied from the user: six words, or ten Chinese characters, in a row; I and you are the same.

    Args:
        said: the user's turns.
    """
    length = round(6 * CHARACTERS_PER_WORD) if language == "zh" else 6
    same = {"me": "i", "you": "i", "my": "your", "mine": "yours", "myself": "yourself", "am": "are", "我": "你"}

    def stretches(text: str) -> list[tuple[str, ...]]:
        units = [same.get(unit, unit) for unit in (characters_of(text) if language == "zh" else words_of(text))]
        return [tuple(units[i : i + length]) for i in range(len(units) - length + 1)]

    num_units, carrying = len(characters_of(reply) if language == "zh" else words_of(reply)), content_words(reply)
    everything = " ".join(said).lower()
    if num_units < length or sum([word in everything for word in carrying]) < 0.5 * len(carrying):
        return False  # decided at once for nearly all replies
    theirs = set(chain.from_iterable(map(stretches, said)))
    copied = {i + k for i, stretch in enumerate(stretches(reply)) if stretch in theirs for k in range(length)}
    return len(copied) >= 0.5 * num_units


def says_goodbye(reply: str, *, ignore_reported: bool = True) -> bool:
    """Whether the agent says goodbye.

    Args:
        ignore_reported: an English goodbye that the reply is only about does not count.
    """
    farewells = frozenset(("goodbye", "bye", "farewell"))
    if farewells.isdisjoint(words_of(reply)):
        return not reply.isascii() and bool(re.search(r"(?<![说道声的])(?:再见|拜拜)[啦了吧哦呀]?(?=[,.。!~\s]|$)", as_seen(reply)))
    if not ignore_reported:
        return True
    reported = (
        r"\b(?:say|says|saying|said|wave|waved|waving|kiss|kissed|bid|a|the|your|his|her|their|that|this|last|final|proper|no|of|without)"
        r" (?:[a-z]+ )?(?:goodbye|bye|farewell)\b"
        r"|\b(?:goodbye|bye|farewell) (?:to (?!you\b)|party|dinner|letter|card|drinks|speech|present|hug|kiss)"
    )
    # In words that could be about one, the agent may still say it itself.
    own = (
        r"(?:^|,) *(?:(?:and|so|well|okay|now|then|but),? )*(?:i|we|let us|let me|time to|it is time to)"
        r" (?:(?:now|just|must|have to|will|should|shall|need to|want to|would like to|am going to|are going to) )*"
        r"(?:say|wave|bid you) (?:[a-z]+ )?(?:goodbye|bye|farewell)\b(?! to (?!you\b))"
    )
    sentences = [one for one in lexicon().sentences(normalized(reply, "en")) if not farewells.isdisjoint(words_of(one))]
    return not sentences or any(
        not farewells.isdisjoint(words_of(re.sub(reported, " ", one))) or bool(re.search(own, one)) for one in sentences
    )


# Facts and nouns


@cache
def nouns() -> frozenset[str]:
    """Nouns that end a noun phrase of a training fact, except those that the world's moves use anyway ("a list")."""
    determiners = frozenset("the a an my your her his their our its that those this these every each no two three".split())
    closers = FUNCTION_WORDS | {END}
    closers |= set("after before into over under behind without because since until while near every last next again where or up".split())
    closers |= {"down", "out", "off"}
    facts = {fact for scenario in load_bank().scenarios(Split.TRAIN) for fact in scenario.facts}
    found: set[str] = set()
    for sentence in chain.from_iterable(re.split(r"[.?!,]", fact.text) for fact in facts):
        words = (*words_of(sentence), END, END)
        for first, second, third, fourth in zip(words, words[1:], words[2:], (*words[3:], END), strict=False):
            if first in determiners and second not in closers and (third in closers or fourth in closers):
                found.add(second if third in closers else third)
    lines = (line for move in read_toml("moves").values() for line in (*move["grounded"], *move["plain"]))
    return frozenset(found).difference(*map(words_of, lines))


@lru_cache(maxsize=4096)
def cue_heads(facts: tuple[Fact, ...]) -> tuple[str, ...]:
    """The noun by which each fact is recognised: the last word of its cue."""
    return tuple(words_of(fact.cue)[-1] for fact in facts)


def cues_in(text: str, scenario: Scenario) -> tuple[int, ...]:
    """Indices of the facts that a text takes up.

    An English fact is recognised by its cue, or by another noun that only this fact has. A Chinese one, and what the user said where
    the scenario has no list of facts (`Dialogue.story`), by two of the words or pairs of characters that came up with it, or by a third of
    few.
    """
    if scenario.language == "en" and scenario.other:
        by_noun = _facts_by_noun(scenario.facts, scenario.other)
        return tuple(sorted({index for word in words_of(text) for index in by_noun.get(word, ())}))
    words, found, seen = content_words(text), list[int](), frozenset[str]()
    for index, fact in enumerate(scenario.facts):
        new = content_words(fact.text) - seen
        seen |= new
        if new and len(new & words) >= min(2, len(new) // 3 + 1):
            found.append(index)
    return tuple(found)


@lru_cache(maxsize=4096)
def _facts_by_noun(facts: tuple[Fact, ...], other: str) -> Mapping[str, list[int]]:
    """Noun -> facts that it takes up: the head of the cue, and nouns that no other fact has and that are not the other person."""
    heads = cue_heads(facts)
    things = [({*words_of(fact.text)} & nouns()) - {*heads, *words_of(other)} for fact in facts]
    times = Counter(chain.from_iterable(things))
    table: dict[str, list[int]] = defaultdict(list)
    for index, (head, words) in enumerate(zip(heads, things, strict=True)):
        for noun in {head, *(word for word in words if times[word] == 1)}:
            table[noun].append(index)
    return dict(table)


def facts_stated(text: str, facts: tuple[Fact, ...]) -> tuple[int, ...]:
    """Indices of the facts that a user's turn states in full."""
    return tuple([index for index, fact in enumerate(facts) if fact.text in text])


# Clarity


def clarity(text: str, register: Register, *, facts: tuple[Fact, ...], other: str, language: str = "en") -> float:
    """Share of a reply that can be followed, in [0, 1].

    Args:
        facts: the scenario's.
        other: the scenario's other person.
        language: `en` or `zh`; the world's own language is English.
    """
    if language == "zh":
        return fluency_in_chinese(text)
    return fluency(text) if register is Register.OPEN else Moves.clarity(text, facts, other)


class Moves:
    """The world's own language: the sentences of its moves as triples of neighbouring words, and the phrases that fill their slots."""

    DETERMINERS = frozenset("the your that those this these her his their its a an".split())
    """Words before a cue."""

    @staticmethod
    @lru_cache(maxsize=65536)
    def clarity(text: str, facts: tuple[Fact, ...], other: str) -> float:
        """1 less three times the share of word triples, slots counting as words, that no move has."""
        moves, person = Moves.known(), words_of(other)
        own = {**Moves.cue_phrases(facts), ("your", *person): "<other>", ("your", person[-1]): "<other>"}
        strange = total = 0
        for words in filter(None, map(words_of, re.split(r"[.?!]", as_seen(text)))):
            slotted = moves.slotted(words, own)
            total += len(slotted)
            num_strange = sum(triple not in moves.triples for triple in moves.triples_of(slotted))
            if num_strange:
                # "the rest" may be something that was mentioned or a part of the move itself; the kinder parse counts.
                literal = moves.slotted(words, own, keep=moves.literal)
                num_strange = min(num_strange, sum(triple not in moves.triples for triple in moves.triples_of(literal)))
            strange += num_strange
        return max(0.0, 1.0 - 3.0 * strange / total) if total else 0.0

    @staticmethod
    @lru_cache(maxsize=4096)
    def cue_phrases(facts: tuple[Fact, ...]) -> Mapping[tuple[str, ...], str]:
        """The cues of facts under any determiner, each with its slot."""
        bare = {cue[1:] if cue[0] in Moves.DETERMINERS else cue for cue in (words_of(fact.cue) for fact in facts)}
        return {(determiner, *words): "<cue>" for words in bare for determiner in Moves.DETERMINERS}

    @staticmethod
    @cache
    def known() -> Moves:
        """Built once."""
        return Moves()

    def __init__(self) -> None:
        scenarios = load_bank().scenarios(Split.TRAIN)
        # Nouns, cues and feelings of the training world: one that the user did not mention misses the point, but can be followed.
        feelings = {words_of(feeling) for scenario in scenarios for feeling in scenario.feelings} | {("hurt",)}
        self.phrases: dict[tuple[str, ...], str] = {
            **{(determiner, noun): "<cue>" for noun in nouns() for determiner in self.DETERMINERS},
            **self.cue_phrases(tuple(fact for scenario in scenarios for fact in scenario.facts)),
            **dict.fromkeys(feelings, "<feeling>"),
        }
        self.first_words = self.DETERMINERS | {phrase[0] for phrase in self.phrases}
        lines = (line for move in read_toml("moves").values() for line in (*move["grounded"], *move["plain"]))
        parts = chain.from_iterable(re.split(r"[.?!]", line.lower()) for line in lines)
        sentences = [re.findall(r"\{\w+\}|[a-z]+(?:'(?!s\b)[a-z]+)?", part) for part in parts]
        self.literal = frozenset(chain.from_iterable(((a,), (a, b)) for words in sentences for a, b in pairwise((*words, END))))
        """Single words of the moves and pairs of neighbours."""
        slots = {"{cue}": "<cue>", "{other}": "<other>", "{other_cap}": "<other>", "{feeling}": "<feeling>"}
        self.triples: set[tuple[str, ...]] = set()
        for sentence in filter(None, sentences):
            words = tuple(slots.get(word, word) for word in sentence)
            self.triples.update(self.triples_of(words), self.triples_of(self.slotted(words, {})))

    def slotted(
        self, words: tuple[str, ...], own: Mapping[tuple[str, ...], str], keep: AbstractSet[tuple[str, ...]] = frozenset()
    ) -> list[str]:
        """The words with phrases replaced by the slots that they fill, except those to keep; the longest phrase counts.

        Args:
            own: phrases of the scenario.
        """
        slotted: list[str] = []
        i = 0
        while i < len(words):
            word, size = words[i], 1
            if word in self.first_words:
                for n in range(min(5, len(words) - i), 0, -1):
                    phrase = words[i : i + n]
                    slot = own.get(phrase) or self.phrases.get(phrase)
                    if slot and phrase not in keep:
                        word, size = slot, n
                        break
            slotted.append(word)
            i += size
        return slotted

    @staticmethod
    def triples_of(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """As many triples as words, each centred on one of them."""
        padded = ["<s>", *words, END]
        return zip(padded, padded[1:], padded[2:], strict=False)
