"""What a listener hears in a reply: support strategies, facts taken up, repetition, fluency and length."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from simulator.fluency import FUNCTION_WORDS, words_of
from simulator.nouns import nouns_of
from simulator.register import Register, clarity
from simulator.scenario import Fact, Scenario

LEXICON = Path(__file__).parent / "lexicon"


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


@cache
def lexicon() -> dict[str, tuple[bool, re.Pattern[str]]]:
    """Strategy -> (whether it claims the sentence for itself, its patterns as one), in the order of the file."""
    with (LEXICON / "en.toml").open("rb") as file:
        table = tomllib.load(file)
    return {
        strategy: (entry.get("claims", False), re.compile("|".join(f"(?:{pattern})" for pattern in entry["patterns"]), re.IGNORECASE))
        for strategy, entry in table.items()
    }


@lru_cache(maxsize=65536)
def strategies_in(text: str) -> tuple[str, ...]:
    """Support strategies heard in a text, each once, in order."""
    heard: dict[str, None] = {}
    for sentence in re.findall(r"[^.!?]+[.!?]*", text):
        for strategy, (claims, patterns) in lexicon().items():
            if patterns.search(sentence.strip()):
                heard[strategy] = None
                if claims:
                    break
    return tuple(heard)


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
    words = frozenset(words_of(text))
    return tuple(index for index, things in enumerate(nouns_of(scenario.facts, scenario.other)) if things & words)


def facts_told(text: str, facts: tuple[Fact, ...]) -> tuple[int, ...]:
    """Indices of the facts that a user's turn tells in full."""
    return tuple(index for index, fact in enumerate(facts) if fact.text in text)


def similarity(reply: str, earlier: str) -> float:
    """Jaccard overlap of content words, in [0, 1]."""
    a, b = content_words(reply), content_words(earlier)
    return len(a & b) / len(a | b) if a or b else 1.0


def read(reply: str, scenario: Scenario, earlier: Sequence[str], *, register: Register = Register.OPEN) -> Reading:
    """Reads a reply in the light of the scenario's facts and of the agent's earlier replies."""
    return Reading(
        strategies=strategies_in(reply),
        cues=cues_in(reply, scenario),
        similarity=max((similarity(reply, past) for past in earlier), default=0.0),
        clarity=clarity(reply, register, facts=scenario.facts, other=scenario.other),
        num_words=len(words_of(reply)),
        farewell=bool(re.search(r"\b(?:goodbye|bye|farewell)\b", reply, re.IGNORECASE)),
    )
