"""Contempt in ordinary language: insults, incitement to self-harm, blame, sneers and refusals, which hurt whatever stands beside them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain

from simulator.ears import MAX_READ, lexicon
from simulator.spelling import LEXICON

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
