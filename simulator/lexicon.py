"""Lexicons: a language's regular expressions for support strategies and for contempt, compiled for fast search."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

from simulator.world import LEXICON, read_toml


class StrategyPattern:
    """The expressions of one support strategy.

    Args:
        entry: of the lexicon's file, its classes filled in.
        writing: how sentences begin and end (`[writing]` of the file).
    """

    def __init__(self, strategy: str, entry: dict[str, Any], writing: dict[str, str]) -> None:
        self.strategy = strategy
        self.claims: bool = entry.get("claims", False)
        """A sentence that shows it shows none of the strategies after it."""
        self._writing, self._entry = writing, entry

    def match(self, kind: str, sentence: str, begin: int = 0) -> bool:
        """Whether an expression matches a normalised sentence (in English with a space before it).

        Args:
            kind: `patterns` shows the strategy, `unless` takes it back, `alone` counts where nothing else is shown, `across` for replies.
            begin: place where the sentence begins behind its opening words.
        """
        opening, anywhere = self._compiled[kind]
        return bool((opening and opening.match(sentence, begin)) or (anywhere and anywhere.search(sentence)))

    @cached_property
    def _compiled(self) -> dict[str, tuple[re.Pattern[str] | None, re.Pattern[str] | None]]:
        """By kind, the expressions for the beginning of a sentence and for any place; compiling a language's takes seconds."""
        compiled = {}
        for kind in ("patterns", "unless", "alone", "across"):
            opening = [pattern[1:] for pattern in self._entry.get(kind, ()) if pattern.startswith("^")]
            anywhere = [pattern for pattern in self._entry.get(kind, ()) if not pattern.startswith("^")]
            first, second = (
                re.compile(f"{self._writing['before']}(?:{either(patterns)}){self._writing['after']}") if patterns else None
                for patterns in (opening, anywhere)
            )
            compiled[kind] = (first, second)
        return compiled


class Lexicon:
    """The strategies and kinds of contempt of one language."""

    MAX_READ = 3000
    """Characters of a reply that are searched."""

    def __init__(self, language: str) -> None:
        table = read_toml(language, LEXICON)
        self.writing, classes = table["writing"], dict[str, str]()

        def filled(pattern: str) -> str:
            return re.sub(r"\{([a-z_]+)\}", lambda name: classes[name[1]], pattern)

        for name, entries in table["classes"].items():  # a class may name those before it
            classes[name] = f"(?:{either([filled(entry) for entry in entries.split(', ')])})"
        filled_in = {
            strategy: {kind: list(map(filled, value)) if isinstance(value, list) else value for kind, value in entry.items()}
            for strategy, entry in table["strategies"].items()
        }
        self.patterns = tuple(StrategyPattern(strategy, entry, self.writing) for strategy, entry in filled_in.items())
        """In the order of the file."""
        before, openings = self.writing["before"], sorted(table["openings"]["words"].split(", "), key=len, reverse=True)
        self._openings = re.compile(f"(?:{before}(?:{'|'.join(openings)})[,，]?(?={before}))*")

        table, is_chinese = read_toml(f"contempt_{language}", LEXICON), language == "zh"
        start, end = ("", "") if is_chinese else ("(?<![a-z'-])", "(?![a-z'-])")
        self._kinds = {kind: re.compile(f"{start}(?:{'|'.join(one['patterns'])}){end}") for kind, one in table["kinds"].items()}
        # Two words may come between an excuse and the expression; in Chinese six characters.
        start, gap = ("", ".{0,6}$") if is_chinese else ("(?<![a-z])", "(?: [a-z'-]+){0,2} *$")
        self._excused = re.compile(f"{start}(?:{'|'.join(table['excused']['words'].split(', '))}){gap}")
        self._own = re.compile(f"{start}{table['excused']['own']}{gap}")

    def sentences(self, text: str) -> list[str]:
        """The sentences of a normalised text, each cut at 400 characters."""
        ends = self.writing["ends"]
        return [sentence[:400] for sentence in re.findall(rf"[^{ends}]+[{ends}]*", text)]

    def strategies(self, sentence: str) -> list[str]:
        """Strategies that one normalised sentence shows."""
        sentence = self.writing["before"] + sentence.strip()
        opening = self._openings.match(sentence)
        begin = opening.end() if opening else 0
        found: list[str] = []
        for pattern in self.patterns:
            if pattern.match("patterns", sentence, begin) and not pattern.match("unless", sentence, begin):
                found.append(pattern.strategy)
                if pattern.claims:
                    break
        if found:
            return found
        alone = (one for one in self.patterns if one.match("alone", sentence, begin) and not one.match("unless", sentence, begin))
        return [pattern.strategy for pattern in alone][:1]

    def strategies_across(self, text: str) -> list[str]:
        """Strategies that take more than one sentence of a normalised text."""
        return [pattern.strategy for pattern in self.patterns if pattern.match("across", self.writing["before"] + text)]

    def contempt(self, sentence: str) -> list[str]:
        """Kinds of contempt in one normalised sentence: insult, incitement, blame, sneer, refusal.

        A clause that denies or reports an expression holds no contempt, unless the agent speaks of itself.
        """
        # A verb that reports the clause behind it forms one clause with it.
        reports = r"(said|says|say|told you|think|thinks|thought|heard),|(说|说过|骂|骂你|讲|觉得|认为|以为)[，：]"
        joined = re.sub(reports, lambda found: found[0][:-1], sentence)
        clauses = [clause.strip(" .!?;。！？；") for clause in re.split(r"[,:，：]", joined)]
        kinds = []
        for kind, pattern in self._kinds.items():
            before = [clause[: found.start()] for clause in clauses for found in pattern.finditer(clause)]
            if any(self._own.search(words) or not self._excused.search(words) for words in before):
                kinds.append(kind)
        return kinds


@cache
def lexicon(language: str = "en") -> Lexicon:
    """The lexicon of a language, compiled when it is first needed.

    Raises:
        ValueError: there is none.
    """
    if language not in ("en", "zh"):
        raise ValueError(f"scenario.language must be one of en, zh to be read, got {language!r}")
    return Lexicon(language)


# Many alternatives as one expression that fails fast: Python tries those of `a|b|c` one after the other at every position; sorted by their
# first characters nearly all are passed over at once (2.5 times as fast on English replies).


def either(patterns: Sequence[str], *, depth: int = 2) -> str:
    """An expression that matches where one of the patterns does, though it may choose another of them than `|` would.

    Args:
        depth: number of first characters to sort by.
    """
    patterns = [part for pattern in patterns for part in _split(pattern, "|")]
    if depth == 0 or len(patterns) == 1:
        return "|".join(patterns)
    same_group: dict[str, list[str]] = defaultdict(list)
    for pattern in patterns:
        group, rest = "", pattern
        if pattern.startswith("(?:"):
            inner, rest = _split(pattern, ")", 1)
            group, rest = ("", pattern) if rest.startswith(("*", "+", "{", "?")) else (f"{inner})", rest)
        same_group[group].append(rest)
    tails = _by_first([*same_group.pop("", []), *(f"{group}(?:{either(rests)})" for group, rests in same_group.items())])
    others = tails.pop("", [])
    return "|".join([*(f"{first}(?:{either(rest, depth=depth - 1)})" for first, rest in sorted(tails.items())), *others])


def _by_first(patterns: Sequence[str]) -> dict[str, list[str]]:
    """Rests of the patterns by each first character that a match can have; whole patterns under "" where it is not known."""
    tails: dict[str, list[str]] = defaultdict(list)
    for pattern in patterns:
        if pattern.startswith("(?:"):
            inner, rest = _split(pattern, ")", 1)
            if rest.startswith("?") and not rest.startswith("??"):
                rest = rest[1:]
                for first, more in _by_first([rest]).items():
                    tails[first] += more
            elif rest.startswith(("*", "+", "{", "?")) or len(rest) > 600:  # a longer rest is not copied behind each first character
                tails[""].append(pattern)
                continue
            for first, ends in _by_first(_split(inner[3:], "|")).items():
                tails[first].append(f"(?:{'|'.join(ends)}){rest}")
        elif re.match(r"[a-z ,'\u4e00-\u9fff]", pattern) and not pattern[1:].startswith(("*", "+", "{", "?")):
            tails[pattern[0]].append(pattern[1:])
        else:
            tails[""].append(pattern)
    return tails


def _split(pattern: str, sign: str, most: int = -1) -> list[str]:
    """The pattern split at a sign outside of groups, brackets and escapes, at most so often; `)` ends the first group."""
    parts, begin, depth = list[str](), 0, 0
    for found in re.finditer(r"\\.|\[(?:\\.|[^\]\\])*\]|.", pattern):
        depth += (found[0] == "(") - (found[0] == ")")
        if found[0] == sign and depth == 0:
            parts.append(pattern[begin : found.start()])
            begin = found.end()
            if len(parts) == most:
                break
    return [*parts, pattern[begin:]]
