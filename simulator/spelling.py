"""One spelling for all: a text as the lexicon's expressions and the fluency gate expect it."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from simulator.seen import as_seen

LEXICON = Path(__file__).parent / "lexicon"


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """What a language's file rewrites before anything is heard."""

    line: str
    """What a line's end stands for."""
    rewritten: tuple[tuple[str, str], ...]
    """In the order of the file."""
    found: re.Pattern[str]
    """Whatever `rewritten` would change."""

    def plain(self, text: str) -> str:
        """The text in lower case, one spelling, single spaces or none."""
        text = " ".join(as_seen(text).lower().replace("\n", self.line).split())
        if self.found.search(text):
            for spelt, written in self.rewritten:
                text = text.replace(spelt, written)
        return text


@cache
def spelling(language: str) -> Spelling:
    """That of a language's lexicon."""
    with (LEXICON / f"{language}.toml").open("rb") as file:
        table = tomllib.load(file)
    rewritten = table["spelling"]
    return Spelling(
        line=table["writing"]["line"],
        rewritten=tuple(rewritten.items()),
        found=re.compile("|".join(map(re.escape, rewritten))),
    )
