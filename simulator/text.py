"""A text as a person sees it: letters that look alike are alike, and what cannot be seen is not there.

One spelling for all: a text as the lexicon's expressions and the fluency gate expect it.

The fluency gate: keeps stuffed words and garble from paying, without a language model.

Chinese without a model: which language a text is in, what carries its meaning, how long it is, and whether it can be followed.

What carries a text's meaning, in English and in Chinese.

How numbers and names are written in explanations.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any

from simulator.scenario import Split
from simulator.world import load_bank, read_toml

DOUBLES = str.maketrans(
    # Cyrillic, then Greek, capitals last: only letters that most fonts draw as the Latin one.
    "\u0430\u0441\u0501\u0435\u04bb\u0456\u0458\u043e\u0440\u0455\u0445\u0443\u051d\u0261\u04cf"
    "\u03b1\u03bf\u03c1\u03c5\u03bd\u03b9\u03ba\u03c7\u03f2\u0131"
    "\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u0423"
    "\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03a5\u0396",
    "acdehijopsxywglaopuvikxciABCEHIJKMOPSTXYABEHIKMNOPTXYZ",
)
UNSEEN = ("Cf", "Mn", "Me")
"""Unicode categories of what has no width of its own: formatting, zero-width characters, marks on other letters."""


@lru_cache(maxsize=65536)
def _as_seen(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text.translate(DOUBLES))
    return "".join(character for character in decomposed if unicodedata.category(character) not in UNSEEN)


def as_seen(text: str) -> str:
    """The text in plain letters: full-width and mathematical letters narrow, doubles from other scripts Latin, accents gone.

    Otherwise a reply could change at every turn for whoever counts words, and stay the same for whoever reads.
    """
    return text if text.isascii() else _as_seen(text)


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


END = "</s>"
FUNCTION_WORDS = frozenset(
    "a an and are as at be but can do for from had has have he her him his how i if in is it its me my of on or our she so that the "
    "their them then they this to was we were what when which who will with would you your about not there did does been being".split()
)
"""Words that hold a sentence together; the others carry its meaning."""
BETWEEN = FUNCTION_WORDS.union(
    "after all am any because before both by could down even here into just many may might more most much never no nothing off one only "
    "out over should since some something still than these those through too until up very where while why".split()
)
"""Words that part the content of a clause; FUNCTION_WORDS itself also decides what a reply's content is, in the small world too."""
POSSESSIVE = re.compile(r"'s\b")
MAX_CONTENT_RUN = 4
"""Further content words in a row, without a word of BETWEEN among them, are odd."""
MIN_EXPECTED = 0.75
"""A pair of words never seen is odd once chance alone would have brought it this often in the reference."""


@lru_cache(maxsize=65536)
def words_of(text: str) -> tuple[str, ...]:
    """Lower-case words; a possessive 's is dropped, other apostrophes stay."""
    return tuple(re.findall(r"[a-z]+(?:'(?!s\b)[a-z]+)?|\d+", as_seen(text).lower().replace("\u2019", "'")))


def sentences_of(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each clause, contractions written out and the possessive 's left away."""
    for line in text.splitlines():
        plain = POSSESSIVE.sub("", spelling("en").plain(line))
        yield from filter(None, map(words_of, re.split(r"[.?!,;:]", plain)))


@cache
def reference() -> tuple[Counter[str], frozenset[tuple[str, str]]]:
    """Word counts and all neighbouring pairs of the training world's texts, slots filled with every phrase they can take."""
    counts: Counter[str] = Counter()
    pairs: set[tuple[str, str]] = set()
    for sentence in _sentences():
        counts.update(sentence)
        pairs.update(pairwise((*sentence, END)))
    fillers = _fillers()
    for name, phrases in fillers.items():
        pairs.update(pair for phrase in phrases for pair in pairwise(phrase))
        counts.update({f"<{name}>": 0})
    for template in _templates():
        tokens = re.findall(r"\{\w+\}|[a-z]+|[.?!]", POSSESSIVE.sub("", spelling("en").plain(template)))
        counts.update(token for token in tokens if token.isalpha())
        pairs.update(_template_pairs(tokens, fillers))
    return counts, frozenset(pairs)


@cache
def _num_reference_words() -> int:
    return sum(reference()[0].values())


def _template_pairs(tokens: list[str], fillers: dict[str, list[tuple[str, ...]]]) -> Iterator[tuple[str, str]]:
    """Neighbours across a template, slots standing for the first or last word of each filler."""
    ends = [END if token in ".?!" else token for token in tokens]
    for left, right in pairwise([*ends, END]):
        lasts = {phrase[-1] for phrase in fillers.get(left.strip("{}"), [])} if left.startswith("{") else {left}
        firsts = {phrase[0] for phrase in fillers.get(right.strip("{}"), [])} if right.startswith("{") else {right}
        yield from ((a, b) for a in lasts for b in firsts)


def _fillers() -> dict[str, list[tuple[str, ...]]]:
    scenarios = load_bank().scenarios(Split.TRAIN)
    others = sorted({scenario.other for scenario in scenarios})
    people = [words_of(f"{owner} {other}") for owner in ("your", "the", "my") for other in others]
    return {
        "cue": sorted({words_of(fact.cue) for scenario in scenarios for fact in scenario.facts}),
        "feeling": sorted({words_of(feeling) for scenario in scenarios for feeling in scenario.feelings}),
        "other": people,
        "other_cap": people,
    }


def _templates() -> Iterator[str]:
    for move in read_toml("moves").values():
        yield from chain(move["grounded"], move["plain"])
    yield from read_toml("phrases")["feelings"]["said"]


def _sentences() -> Iterator[tuple[str, ...]]:
    phrases = read_toml("phrases")
    lines = [line for group in ("hints", "reactions") for pools in phrases[group].values() for pool in pools.values() for line in pool]
    facts = {fact.text for scenario in load_bank().scenarios(Split.TRAIN) for fact in scenario.facts}
    for text in chain(lines, sorted(facts)):
        yield from sentences_of(text)


@cache
def _even() -> frozenset[tuple[str, str]]:
    return frozenset((first, second) for first, followers in _table()["even"].items() if first != "why" for second in followers)


@cache
def _table() -> dict[str, Any]:
    with (LEXICON / "fluency_en.toml").open("rb") as file:
        return tomllib.load(file)


@cache
def _odd_classes() -> tuple[dict[str, frozenset[str]], dict[str, frozenset[str]]]:
    table = _table()
    classes: dict[str, set[str]] = {}
    for name, members in table["classes"].items():
        for word in members:
            classes.setdefault(word, set()).add(name)
    odd = {name: frozenset(followers) for name, followers in table["odd"].items() if name != "why"}
    return {word: frozenset(names) for word, names in classes.items()}, odd


@lru_cache(maxsize=65536)
def _is_odd(first: str, second: str) -> bool:
    """Whether ordinary English hardly ever has these neighbours."""
    counts, pairs = reference()
    if (first, second) in pairs or (first, second) in _even():
        return False
    classes, odd = _odd_classes()
    followers = {"END"} if second == END else classes.get(second, frozenset())
    if first == second or any(followers & odd.get(name, frozenset()) for name in classes.get(first, frozenset())):
        return True
    total = _num_reference_words()
    times = total / 10 if second == END else counts[second]
    return counts[first] * times / total >= MIN_EXPECTED


def _stuffed(words: tuple[str, ...]) -> int:
    """Content words beyond MAX_CONTENT_RUN in a row."""
    runs = (len(list(run)) for content, run in groupby(words, key=lambda word: word not in BETWEEN) if content)
    return sum(2 * max(0, length - MAX_CONTENT_RUN) for length in runs)


@lru_cache(maxsize=65536)
def fluency(text: str) -> float:
    """1 for ordinary English, falling to 0 as a third of the neighbouring words become odd.

    A pair is odd when closed-class words meet that do not meet in English, or when the world's own texts would have shown it
    by chance at least MIN_EXPECTED times and never did; so are content words piled up without a function word between them.
    Words the world does not know carry no evidence against a sentence.
    """
    odd = total = 0
    for words in sentences_of(text):
        total += len(words)
        odd += sum(_is_odd(a, b) for a, b in pairwise((*words, END))) + _stuffed(words)
    return max(0.0, 1.0 - 3.0 * odd / total) if total else 0.0


CHARACTER = "[\u4e00-\u9fff]"
CHARACTERS_PER_WORD = 1.6
"""Chinese characters that say as much as an English word, roughly: what limits of length are converted by."""
IMPOSSIBLE = 5
"""Characters that a pair of function words that cannot meet spoils."""
MAX_RUN = 10
"""Further characters in a row, without a function word between them, are odd."""
MAX_BARE = 6
"""Further clauses in a row of a few characters, none of them a function word, are odd: a list of bare words is no sentence."""
MAX_SAME = 2
"""A stretch of four characters that a reply holds more often is odd each further time."""
MIN_KNOWN = 0.2
"""Share of a reply's meaningful characters that stand in common words at least; names and rare words do not."""
SLACK = 2
"""Characters that a short reply may lack of that."""
SIGNS = re.compile(r"[\s,.;:!?，。；：！？、…—～~/|·•-]+")
QUOTES = re.compile("[“”‘’\"'「」『』《》（）()【】*#_\\[\\]]")
MAX_FOREIGN = 0.3
"""Share of a reply that may be in Latin letters: names, brands and abbreviations are."""


@cache
def _chinese_words() -> dict[str, Any]:
    with (LEXICON / "fluency_zh.toml").open("rb") as file:
        return tomllib.load(file)


@cache
def _function_words() -> re.Pattern[str]:
    return re.compile("|".join(sorted(_chinese_words()["function"].split(), key=len, reverse=True)))


@cache
def _common_words() -> frozenset[str]:
    return frozenset(_chinese_words()["common"].split())


@cache
def _odd_pairs() -> re.Pattern[str]:
    return re.compile("|".join(_chinese_words()["odd"]["patterns"]))


def characters_of(text: str) -> list[str]:
    """Its Chinese characters."""
    return [] if text.isascii() else re.findall(CHARACTER, as_seen(text))


def num_characters(text: str) -> int:
    """How many Chinese characters it has."""
    return len(characters_of(text))


def num_words(text: str) -> int:
    """Words, one for CHARACTERS_PER_WORD Chinese characters."""
    return len(words_of(text)) + round(num_characters(text) / CHARACTERS_PER_WORD)


def language_of(text: str) -> str:
    """`zh` where a text has more Chinese characters than words in Latin letters, else `en`."""
    return "zh" if num_characters(text) > len(words_of(text)) else "en"


def by_language(text: str) -> list[tuple[str, str]]:
    """A text in stretches of whole sentences, each with its language; a sentence that says nothing goes with the one before it."""
    if num_characters(text) == 0:
        return [("en", text)]
    spoken: list[tuple[str, str]] = []
    for sentence in re.findall(r"[^.!?。！？\n]*[.!?。！？\n]+|[^.!?。！？\n]+$", text):
        is_said = num_characters(sentence) or words_of(sentence)
        spoken.append((language_of(sentence) if is_said or not spoken else spoken[-1][0], sentence))
    return [(language, "".join(sentence for _, sentence in run)) for language, run in groupby(spoken, key=lambda pair: pair[0])]


def _stretches(text: str) -> Iterator[str]:
    """Chinese between function words and signs."""
    for run in re.findall(f"{CHARACTER}+", as_seen(text)):
        yield from filter(None, _function_words().split(run))


@lru_cache(maxsize=65536)
def content_grams(text: str) -> frozenset[str]:
    """Pairs of neighbouring Chinese characters that carry a text's meaning, common words kept whole; none of a text without Chinese."""
    return frozenset() if text.isascii() else frozenset(chain.from_iterable(map(_grams, _stretches(text))))


def _grams(stretch: str) -> Iterator[str]:
    i = 0
    while i < len(stretch) - 1:
        gram = stretch[i : i + 2]
        yield gram
        i += 2 if gram in _common_words() else 1


@lru_cache(maxsize=65536)
def fluency_in_chinese(text: str) -> float:
    """1 for ordinary Chinese, falling to 0 as a third of it becomes odd.

    Odd are function words that cannot meet, the same words over and over, characters piled up without a function word among them or that
    make up no common word, and what is in other letters beyond a name or two. A reply with hardly any Chinese cannot be followed.
    """
    text = as_seen(text)
    characters, foreign = num_characters(text), len(words_of(text)) * CHARACTERS_PER_WORD
    if not characters:
        return 0.0
    odd = _num_impossible(text) + _num_repeated(text) + _num_piled_up(text) + _num_unknown(text)
    odd += max(0.0, foreign - MAX_FOREIGN * (characters + foreign))
    return max(0.0, 1.0 - 3.0 * odd / (characters + foreign))


def _clauses(text: str) -> Iterator[str]:
    """What stands between two signs; quotation marks and the like are none."""
    yield from filter(None, SIGNS.split(QUOTES.sub("", text)))


def _num_impossible(text: str) -> int:
    """Characters spoilt by pairs that cannot meet."""
    return sum(IMPOSSIBLE * len(_odd_pairs().findall(clause)) for clause in _clauses(text))


def _num_repeated(text: str) -> int:
    """Characters that are said over and over: laughter and the like may be four in a row."""
    said = "".join(re.findall(CHARACTER, text))
    same = sum(len(run[0]) - 4 for run in re.finditer(r"(.)\1{4,}", said))
    fours = Counter(said[i : i + 4] for i in range(len(said) - 3))
    return same + sum(times - MAX_SAME for times in fours.values() if times > MAX_SAME)


def _num_piled_up(text: str) -> int:
    """Characters beyond MAX_RUN without a function word, and those of bare clauses beyond MAX_BARE."""
    odd = bare = 0
    for clause in _clauses(text):
        runs = [num_characters(run) for run in _function_words().split(clause)]
        odd += sum(2 * max(0, run - MAX_RUN) for run in runs)
        bare = bare + 1 if len(runs) == 1 and 0 < runs[0] <= 4 else 0
        odd += 2 * runs[0] if bare > MAX_BARE else 0
    return odd


def _num_unknown(text: str) -> float:
    """Meaningful characters, times the share by which those in common words fall short of MIN_KNOWN."""
    known = total = 0
    for stretch in _stretches(text):
        total += len(stretch)
        known += len({j for i in range(len(stretch) - 1) if stretch[i : i + 2] in _common_words() for j in (i, i + 1)})
    return max(0.0, MIN_KNOWN * total - known - SLACK) / MIN_KNOWN


@lru_cache(maxsize=65536)
def content_words(text: str) -> frozenset[str]:
    """What carries a text's meaning: lower-case words, and of Chinese pairs of neighbouring characters."""
    return (frozenset(words_of(text)) - FUNCTION_WORDS) | content_grams(text)


def figure(value: float, *, digits: int = 4) -> str:
    """A number without needless zeros."""
    text = f"{value:.{digits}f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "\u2212")


def listed(words: Iterable[str]) -> str:
    """Names with commas, spaces instead of underscores."""
    return ", ".join(word.replace("_", " ") for word in words)


def plus(value: float) -> str:
    """A term of a sum with the sign before it."""
    return f"\u2212 {figure(-value)}" if value < 0 else f"+ {figure(value)}"


def signed(change: int) -> str:
    """A change with its sign."""
    return figure(change) if change < 0 else f"+{change}"
