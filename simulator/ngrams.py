"""How the rule listener hears ordinary English and Chinese: by a classifier over n-grams and word vectors, in a millisecond or less."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from simulator.dialogue import Dialogue
from simulator.emotion import meets
from simulator.lexicon import Lexicon, lexicon
from simulator.listener import Moves, Register, facts_stated, read_by_rule, strategies_in
from simulator.reading import Reading
from simulator.text import CHARACTER, FUNCTION_WORDS, as_seen, content_words, num_words
from simulator.world import LEXICON, read_toml

VECTORS = LEXICON / "vectors_en.npz"
"""Made by `python -m simulator.encoder.train --vectors`."""
SHORT = 8
"""Replies of fewer words are short: they are heard by weights of their own, or where there are none (Chinese) by the lexicon alone."""
FEWEST_WORDS = 3
"""Still shorter replies are always read by the lexicon alone."""
MOST_OF_SHORT = 2
"""Strategies of a short reply that the classifier hears, the likeliest ones, beside the lexicon's; 13 of 2,038 in training make more."""
MOST_MOVES = 3
"""Strategies of a reply in ordinary language. A reply with more is stuffed, and all of them are heard."""
WANTED = "wanted"
"""Name of one more threshold, of the strategies that meet the user's wish."""
SLOPE, SHIFT = "doubt_slope", "doubt_shift"
"""Names, among the thresholds, of the curve that corrects `doubt`."""
MOST_WORDS = 24
"""Of a user's turn that the encoder hears; facts of the built-in world have at most 20."""
MOST_MARKS = 3
"""Question or exclamation marks that count; 9 of 16,144 training replies have more."""
FEWEST_KNOWN = 0.45
"""Share of known words below which a reply is in another language than the user's; 5 of 106 sentences in 36 other languages have more."""
LEXICON_COUNTS, VECTOR_COUNTS = 3.0, 3.0
"""Size of the features that the lexicon hears, and of word vectors, so that the penalty on weights bears less on them."""


def weights_file(language: str) -> Path:
    """Of the classifier of a language, `en` or `zh`; made by `python -m simulator.encoder.train --ngrams LANGUAGE`."""
    return LEXICON / f"ngrams_{language}.npz"


@lru_cache(maxsize=4096)
def tokens(text: str, language: str = "en") -> tuple[str, ...]:
    """Words, in Chinese each character, and marks, in lower case; question and exclamation marks in a row are one."""
    plain = as_seen(text[: Lexicon.MAX_READ]).lower().replace("\u2019", "'")
    plain = re.sub(r"[?!](?:\s*[?!])+", lambda run: "?" if "?" in run[0] else "!", plain)
    one = rf"{CHARACTER}|(?:(?!{CHARACTER})[\w'])+" if language == "zh" else r"[\w']+"
    return tuple(re.findall(rf"{one}|[?!.,;:。]", plain))


def ngrams(words: Sequence[str]) -> Iterable[str]:
    """Stretches of one to three."""
    yield from words
    yield from map(" ".join, pairwise(words))
    yield from map(" ".join, zip(words, words[1:], words[2:], strict=False))


def vocabulary(replies: Sequence[str], language: str = "en", at_least: int = 3) -> dict[str, float]:
    """Inverse document frequency, 1 + ln((1 + N) / (1 + n)), of each n-gram that so many of the replies have."""
    counts = Counter(gram for reply in replies for gram in set(ngrams(tokens(reply, language))))
    known = sorted(gram for gram, n in counts.items() if n >= at_least)
    return {gram: 1.0 + math.log((1 + len(replies)) / (1 + counts[gram])) for gram in known}


class WordFeatures:
    """Features of a reply, float32[F]: n-grams by sublinear tf-idf at unit length, then seven numbers.

    The numbers: length, share of content words that are the user's and that are of the latest turn, question and exclamation marks, turns
    so far, whether a question ends it.
    """

    NUM_NUMBERS = 7

    def __init__(self, known: dict[str, float], language: str = "en") -> None:
        self.known, self.language = known, language
        self.place = {gram: k for k, gram in enumerate(known)}

    def is_foreign(self, text: str) -> bool:
        """Whether a text of some words is in another language: few of them occurred in training.

        Addresses on the web and what stands in braces count as no words.
        """
        words = [word for word in tokens(re.sub(r"\S*(?:://|www\.)\S*|\{[^{}]*\}", " ", text), self.language) if word[0].isalpha()]
        return num_words(text) >= FEWEST_WORDS and sum(word in self.place for word in words) < max(FEWEST_KNOWN * len(words), 1)

    def __len__(self) -> int:
        return len(self.known) + self.NUM_NUMBERS

    def __call__(self, turns: Sequence[str], reply: str) -> np.ndarray:
        """
        Args:
            turns: of the user before the reply, the first one first.
        """
        words = tokens(reply, self.language)
        features_F = np.zeros(len(self), dtype=np.float32)
        for gram, count in Counter(ngrams(words)).items():
            if gram in self.place:
                features_F[self.place[gram]] = (1.0 + math.log(count)) * self.known[gram]
        features_F /= max(float(np.linalg.norm(features_F)), 1e-9)
        content = [word for word in words if word not in FUNCTION_WORDS and word[0].isalnum()]
        latest, theirs = set(tokens(turns[-1], self.language)), set().union(*(tokens(turn, self.language) for turn in turns))
        features_F[-self.NUM_NUMBERS :] = (
            math.log1p(len(words)) / 4.0,
            sum(word in theirs for word in content) / (len(content) + 1),
            sum(word in latest for word in content) / (len(content) + 1),
            min(words.count("?"), MOST_MARKS) / 2.0,
            min(words.count("!"), MOST_MARKS) / 2.0,
            min(len(turns), 4) / 4.0,
            float(words[-1:] == ("?",)),
        )
        return features_F


class WordVectors:
    """Static vectors of English words, of length 1, so that words of like sense count alike.

    Source: what all-MiniLM-L6-v2 (Apache 2.0) makes of each word alone, in its first principal components; after Tulkens & van Dongen 2024
    (Model2Vec).

    Args:
        vectors_WD: int8, 127 for 1.
    """

    def __init__(self, words: Sequence[str], vectors_WD: np.ndarray) -> None:
        self.place = {word: k for k, word in enumerate(words)}
        self.vectors_WD = vectors_WD

    def mean(self, text: str) -> np.ndarray:
        """[D] mean over the content words that are known; 0 for none."""
        known = [self.place[word] for word in tokens(text) if word in self.place and word not in FUNCTION_WORDS]
        return self.vectors_WD[known].sum(0, dtype=np.int64) / (127.0 * max(len(known), 1))

    def save(self, path: Path) -> None:
        """Writes it."""
        np.savez_compressed(path, words=np.array(" ".join(self.place)), vectors_WD=self.vectors_WD)

    @classmethod
    @cache
    def shipped(cls) -> WordVectors:
        """Those that come with the package."""
        with np.load(VECTORS) as file:
            return cls(str(file["words"]).split(), file["vectors_WD"])


def told(dialogue: Dialogue) -> list[str]:
    """What the user told, turn by turn: the facts, without the reaction, the feeling and the hint around them.

    How a reply is read then depends on what it answers, and not on how strict the user is. Turns that state no fact, and those of users who
    press or come from a profile, lose their reaction alone.
    """
    facts, turns = () if dialogue.scenario.pressure else dialogue.scenario.facts, list[str]()
    for turn in dialogue.said():
        if stated := facts_stated(turn, facts):
            turns.append(" ".join(facts[index].text for index in stated))
        else:
            turns.append(next((turn[len(line) :].lstrip() or turn for line in reactions() if turn.startswith(line)), turn))
    return turns


def told_and_wished(dialogue: Dialogue) -> list[str]:
    """`told`, with the wish in plain words behind the first and the latest turn: a user hears with it in mind, said or not.

    Turns are cut after `MOST_WORDS`, so that the wish is not cut off.
    """
    turns = [" ".join(turn.split()[:MOST_WORDS]) for turn in told(dialogue)]
    first, second = read_toml("phrases")["hints"][dialogue.scenario.family.intention]["overt"][:2]
    return [f"{turns[0]} {first}", *turns[1:-1], *([f"{turns[-1]} {second}"] if len(turns) > 1 else [])]


@cache
def reactions() -> tuple[str, ...]:
    """All of them, the longest first."""
    phrases = read_toml("phrases")
    groups = (*phrases["reactions"].values(), *phrases["reactions_by_state"].values())
    return tuple(sorted({line for group in groups for pool in group.values() for line in pool}, key=len, reverse=True))


@cache
def strategies() -> tuple[str, ...]:
    """The support strategies."""
    return tuple(sorted(pattern.strategy for pattern in lexicon("en").patterns))


@cache
def questions() -> tuple[str, ...]:
    """What is asked about every reply."""
    return (*strategies(), "irony", "contempt", "senseless", "unclear", "takes_up", "ties_back")


def margins(values: Mapping[str, float], thresholds: Mapping[str, float], *, wanted: AbstractSet[str]) -> dict[str, float]:
    """How far each question is above its threshold. Strategies that meet the user's wish share one of their own.

    Args:
        wanted: the strategies that meet the wish.
    """
    return {name: value - thresholds[WANTED if name in wanted else name] for name, value in values.items()}


def probability(logit: float) -> float:
    """The logistic function."""
    return 1.0 / (1.0 + math.exp(-logit))


def doubt(probabilities: Mapping[str, float]) -> float:
    """Logit of the probability that a reply is ironic, contemptuous or senseless, as if these were independent."""
    sincere = math.prod(1.0 - probabilities[name] for name in ("irony", "contempt", "senseless"))
    sincere = min(max(sincere, 1e-6), 1.0 - 1e-6)
    return math.log((1.0 - sincere) / sincere)


def sincerity(probabilities: Mapping[str, float], thresholds: Mapping[str, float]) -> float:
    """Probability that a reply is meant and makes sense, where half of all replies are and do (`rule`), or a third (the encoder).

    Source: Platt 1999, a logistic curve through a classifier's own figures.
    """
    return round(probability(-thresholds[SLOPE] * doubt(probabilities) - thresholds[SHIFT]), 2)


def reading_from(heard: AbstractSet[str], cues: Iterable[int], *, sincerity: float, contempt: Sequence[str] = ()) -> Reading:
    """The reading of which questions have a yes, by name; contempt and lack of sense leave no strategy.

    Args:
        cues: indices of the facts taken up.
        contempt: kinds that were heard otherwise.
    """
    kinds = tuple(dict.fromkeys([*contempt, *(kind for kind in ("irony", "contempt") if kind in heard)]))
    is_rejected = bool(kinds) or "senseless" in heard
    return Reading(
        strategies=() if is_rejected else tuple(name for name in strategies() if name in heard),
        cues=tuple(sorted(cues)),
        clarity=0.0 if "senseless" in heard else 0.5 if "unclear" in heard else 1.0,
        sincerity=1.0 if is_rejected else sincerity,
        contempt=kinds,
        ties_back="ties_back" in heard,
    )


def split_moves(dialogue: Dialogue, reply: str) -> tuple[str, str]:
    """The sentences of a reply that are moves of the built-in world, and the others."""
    story, sentences = dialogue.story, re.findall(r"[^.!?]+[.!?]*", reply)
    # Users from profiles have no other person, and no moves are made for them; nor in Chinese.
    has_moves = story.other and story.language == "en"
    moves = [one for one in sentences if has_moves and Moves.clarity(one, story.facts, story.other) == 1.0]
    return ("".join(moves), "".join(one for one in sentences if one not in moves).strip()) if moves else ("", reply)


def without_invented(heard: set[str], dialogue: Dialogue, reply: str) -> set[str]:
    """What was heard, without a restatement that shares no content word with the user: "You have no garden." to whoever has none.

    One that is asked ("So, you have no garden?") is no question either. If nothing else was heard, the reply takes up nothing.
    """
    if "restatement" not in heard or content_words(reply) & frozenset().union(*map(content_words, dialogue.said())):
        return heard
    kept = heard - ({"restatement", "question"} if "question" in heard else {"restatement"})
    return kept if kept.intersection(strategies()) else kept - {"takes_up"}


@dataclass(frozen=True, kw_only=True)
class Regressions:
    """Logistic regressions, one a question, and when their answer is a yes."""

    weights_FQ: np.ndarray
    """A column a question."""
    thresholds: dict[str, float]
    """Of the logits, by question and of what is `WANTED`, with `SLOPE` and `SHIFT`."""


class Asked(NamedTuple):
    """What is asked about a reply."""

    by_lexicon: Reading
    moves: str
    """The sentences that are moves of the built-in world."""
    logits: dict[str, float]
    """By question, about the other sentences; none where the lexicon alone reads."""
    by: Regressions | None
    """What gave the logits."""


class NgramClassifier:
    """Logistic regressions over n-grams, word vectors, what the lexicon hears, and the share of the user's own words.

    Args:
        short: those of short replies; without them the lexicon alone reads these.
    """

    def __init__(self, words: WordFeatures, regressions: Regressions, short: Regressions | None) -> None:
        self.words, self.regressions, self.short = words, regressions, short

    def read(self, dialogue: Dialogue, reply: str) -> Reading:
        """The reading of a reply that is not yet in the dialogue."""
        by_lexicon, moves, answers, by = self.asked(dialogue, reply)
        if not by:
            kept = by_lexicon.strategies if moves else without_invented(set(by_lexicon.strategies), dialogue, reply)
            return replace(by_lexicon, strategies=tuple(name for name in by_lexicon.strategies if name in kept))
        over = margins(answers, by.thresholds, wanted=meets(dialogue.scenario.family))
        heard = {name for name, margin in over.items() if margin >= 0.0} | set(strategies_in(moves, "en") if moves else ())
        if by is self.short:
            likeliest = sorted(strategies(), key=lambda name: -over[name])
            heard = without_invented(heard - set(likeliest[MOST_OF_SHORT:]) | set(by_lexicon.strategies), dialogue, reply)
        if len(by_lexicon.strategies) > MOST_MOVES:
            heard |= set(by_lexicon.strategies)  # stuffed: it makes them all
        latest = facts_stated(dialogue.said()[-1], dialogue.story.facts) if "takes_up" in heard and "senseless" not in heard else ()
        cues = {*by_lexicon.cues, *latest}
        probabilities = {name: probability(logit) for name, logit in answers.items()}
        reading = reading_from(heard, cues, sincerity=sincerity(probabilities, by.thresholds), contempt=by_lexicon.contempt)
        return replace(reading, dropped=tuple(index for index in by_lexicon.dropped if index not in cues))

    def asked(self, dialogue: Dialogue, reply: str) -> Asked:
        """The answers about a reply.

        The lexicon alone reads those whose lack of sense it sees, the shortest, short Chinese ones, and a few words beside moves.
        """
        if self.words.is_foreign(reply):
            return Asked(Reading(clarity=0.0), "", {}, None)
        by_lexicon = read_by_rule(reply, dialogue.story, said=dialogue.said(), register=Register.OPEN)
        moves, rest = split_moves(dialogue, reply)
        length = num_words(rest)
        regressions = self.regressions if length >= SHORT else None if moves else self.short
        if by_lexicon.echo or not by_lexicon.clarity or length < FEWEST_WORDS or not regressions:
            return Asked(by_lexicon, moves, {}, None)
        of_rest = read_by_rule(rest, dialogue.story, said=dialogue.said(), register=Register.OPEN) if moves else by_lexicon
        features_F = self.features(dialogue, rest, of_rest)
        known = np.flatnonzero(features_F)
        logits_Q = features_F[known].astype(float) @ regressions.weights_FQ[known].astype(float)  # in double precision the same everywhere
        logits = dict(zip(questions(), logits_Q.tolist(), strict=True))
        # Either contempt, or the likeliest move, or neither (multinomial): kindness may come in blunt words.
        logits["contempt"] -= math.log1p(math.exp(max(logits[name] for name in strategies())))
        return Asked(by_lexicon, moves, logits, regressions)

    def features(self, dialogue: Dialogue, reply: str, by_lexicon: Reading) -> np.ndarray:
        """[F] of words, of what the lexicon hears, the mean vector of the reply, its product with that of the latest turn, and 1."""
        heard = [float(name in by_lexicon.strategies) for name in strategies()]
        heard += [float(bool(by_lexicon.contempt)), 1.0 - by_lexicon.clarity, float(bool(by_lexicon.cues))]
        turns, vectors = told(dialogue), WordVectors.shipped()
        reply_D, latest_D = vectors.mean(reply), vectors.mean(turns[-1])
        sense = VECTOR_COUNTS * np.concatenate([reply_D, 4.0 * reply_D * latest_D])  # products of means are small
        parts = (self.words(turns, reply), LEXICON_COUNTS * np.array(heard), sense, np.ones(1))
        return np.concatenate(parts).astype(np.float32)

    def save(self, path: Path) -> None:
        """Writes it."""
        parts = {"regressions": self.regressions} | ({"short": self.short} if self.short else {})
        kept = {"idf": self.words.known, **{name: one.thresholds for name, one in parts.items()}}
        weights: dict[str, Any] = {"regressions": self.regressions.weights_FQ.astype(np.float16)}
        if self.short:  # mostly like the others, so their difference is small when packed
            weights["short"] = (self.short.weights_FQ - weights["regressions"]).astype(np.float16)
        np.savez_compressed(path, kept=np.array(json.dumps(kept)), **weights)

    @classmethod
    def load(cls, path: Path, language: str = "en") -> NgramClassifier:
        """A trained one.

        Raises:
            ValueError: the file is missing or damaged.
        """
        try:
            with np.load(path) as file:
                kept = json.loads(str(file["kept"]))
                weights = {name: file[name].astype(np.float32) for name in ("regressions", "short") if name in kept}
        except (OSError, BadZipFile) as error:  # each part has a checksum
            raise ValueError(f"{path} must be the rule listener's weights, got {error}; reinstall Attune") from None
        if "short" in weights:
            weights["short"] += weights["regressions"]
        parts = {name: Regressions(weights_FQ=weights_FQ, thresholds=kept[name]) for name, weights_FQ in weights.items()}
        return cls(WordFeatures(kept["idf"], language), parts["regressions"], parts.get("short"))


@cache
def shipped(language: str) -> NgramClassifier:
    """With the weights that come with the package."""
    return NgramClassifier.load(weights_file(language), language)
