"""What a SAGE profile itself says of replies: which part of it tells what raises emotion, which what lowers it, and the strategies named there."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

NAMES = Path(__file__).parent / "lexicon" / "named_zh.toml"
RAISES = re.compile("贴合|上升|提升|升高|回升")
LOWERS = re.compile("偏离|下降|降低|下跌")
ANOTHER_SECTION = re.compile(r"emotion\s*[（(]?(?:高|低|一般|很|较|中)|^\s*#")
NEGATED = re.compile("不|没|未|而非|忽视|忽略|缺乏|避免|无法")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a profile says that the user welcomes and resents."""

    raises: str = ""
    """The sentences on replies that raise emotion, "" where the profile has none."""
    lowers: str = ""
    wished: frozenset[str] = frozenset()
    """Support strategies named as welcome more often than as unwelcome."""
    resented: frozenset[str] = frozenset()


@lru_cache(maxsize=4096)
def wishes_of(background: str) -> Wishes:
    """Reads a profile's background; one that says nothing of replies gives empty wishes."""
    parts: dict[int, list[str]] = {1: [], -1: []}
    sign = 0
    for sentence in re.findall(r"[^。！？!?\n；;]+[。！？!?；;\n]*", background):
        up, down = RAISES.search(sentence), LOWERS.search(sentence)
        if up or down:
            sign = (bool(up) - bool(down)) if not (up and down) else 0
        elif ANOTHER_SECTION.search(sentence):
            sign = 0
        if sign:
            parts[sign].append(sentence)
    named: Counter[str] = Counter()
    for sign, sentences in parts.items():
        for clause in re.split("[，,。；;！？\n]", "".join(sentences)):
            pole = -sign if NEGATED.search(clause) else sign
            for strategy, expression in names().items():
                named[strategy] += pole * bool(expression.search(clause))
    return Wishes(
        raises="".join(parts[1]),
        lowers="".join(parts[-1]),
        wished=frozenset(strategy for strategy, votes in named.items() if votes > 0),
        resented=frozenset(strategy for strategy, votes in named.items() if votes < 0),
    )


@cache
def names() -> dict[str, re.Pattern[str]]:
    """By strategy, how profiles name it."""
    with NAMES.open("rb") as file:
        return {strategy: re.compile("|".join(entry["words"])) for strategy, entry in tomllib.load(file).items()}
