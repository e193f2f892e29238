"""Contempt in ordinary English: insults, incitement to self-harm, blame, sneers and refusals, which hurt whatever stands beside them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

from simulator.spelling import LEXICON

WITHIN = 2
"""Words that may stand between a word that excuses an expression and the expression."""
REPORTED = re.compile(r"(said|says|say|told you|think|thinks|thought|heard),")


@lru_cache(maxsize=65536)
def contempt_in(sentence: str) -> tuple[str, ...]:
    """Kinds of contempt in one plain sentence, in the order of the lexicon's file."""
    clauses = [clause.strip(" .!?;") for clause in re.split(r"[,:]", REPORTED.sub(r"\1", sentence))]
    excused, own = _excuses()
    return tuple(
        kind
        for kind, pattern in _patterns().items()
        if any(
            own.search(before := clause[: found.start()]) or not excused.search(before)
            for clause in clauses
            for found in pattern.finditer(clause)
        )
    )


@cache
def _table() -> Mapping[str, Any]:
    with (LEXICON / "contempt_en.toml").open("rb") as file:
        return tomllib.load(file)


@cache
def _patterns() -> dict[str, re.Pattern[str]]:
    kinds = _table()["kinds"]
    return {kind: re.compile(rf"(?<![a-z'-])(?:{'|'.join(entry['patterns'])})(?![a-z'-])") for kind, entry in kinds.items()}


@cache
def _excuses() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What takes an expression back when it stands shortly before it, and what does not because the agent speaks of itself."""
    table = _table()["excused"]
    gap = rf"(?: [a-z'-]+){{0,{WITHIN}}} *$"
    words = "|".join(table["words"].split(", "))
    return re.compile(rf"(?<![a-z])(?:{words}){gap}"), re.compile(rf"(?<![a-z]){table['own']}{gap}")
