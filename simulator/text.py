"""Text in English and Chinese without a model: look-alike letters, words, content, length and fluency."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, groupby, pairwise

from simulator.scenario import Split
from simulator.world import LEXICON, load_bank, read_toml

HOMOGLYPHS = str.maketrans(
    # Cyrillic, then Greek, capitals last: only letters that most fonts draw as the Latin one.
    "\u0430\u0441\u0501\u0435\u04bb\u0456\u0458\u043e\u0440\u0455\u0445\u0443\u051d\u0261\u04cf"
    "\u03b1\u03bf\u03c1\u03c5\u03bd\u03b9\u03ba\u03c7\u03f2\u0131"
    "\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u0423"
    "\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03a5\u0396",
    "acdehijopsxywglaopuvikxciABCEHIJKMOPSTXYABEHIKMNOPTXYZ",
)
ZERO_WIDTH = ("Cf", "Mn", "Me")
"""Unicode categories without a width: formatting, zero-width characters, marks on other letters."""
END = "</s>"
FUNCTION_WORDS = frozenset(
    "a an and are as at be but can do for from had has have he her him his how i if in is it its me my of on or our she so that the "
    "their them then they this to was we were what when which who will with would you your about not there did does been being".split()
)
"""Words that hold a sentence together; all others carry content."""
BETWEEN = FUNCTION_WORDS.union(
    "after all am any because before both by could down even here into just many may might more most much never no nothing off one only "
    "out over should since some something still than these those through too until up very where while why".split()
)
"""Words that separate content words within a clause. FUNCTION_WORDS alone decides the content of a reply."""
POSSESSIVE = re.compile(r"'s\b")
MAX_CONTENT_RUN = 4
"""Content words in a row, without a word of BETWEEN, that are still normal."""
MIN_EXPECTED = 0.75
"""An unseen pair of words is odd if chance alone would have produced it this often in the reference texts."""

CHARACTER = "[\u4e00-\u9fff]"
CHARACTERS_PER_WORD = 1.6
"""Chinese characters that say about as much as one English word; converts limits of length."""
IMPOSSIBLE = 5
"""Characters spoilt by a pair of function words that cannot meet."""
MAX_RUN = 10
"""Characters in a row without a function word that are still normal."""
MAX_BARE = 6
"""Clauses in a row of a few characters, none of them a function word, that are still normal."""
MAX_SAME = 2
"""Times that a reply may hold the same four characters in a row."""
MIN_KNOWN = 0.2
"""Minimum share of content characters in common words; names and rare words are in none."""
SLACK = 2
"""Characters by which a short reply may fall short of that."""
MAX_FOREIGN = 0.3
"""Share of a Chinese reply that may be in Latin letters: names, brands and abbreviations."""
SIGNS = re.compile(r"[\s,.;:!?，。；：！？、…—～~/|·•-]+")
QUOTES = re.compile("[“”‘’\"'「」『』《》（）()【】*#_\\[\\]]")


@lru_cache(maxsize=65536)
def _as_seen(text: str) -> str:
    decomposed = unicodedata.normalize("NFKD", text.translate(HOMOGLYPHS))
    return "".join(character for character in decomposed if unicodedata.category(character) not in ZERO_WIDTH)


def as_seen(text: str) -> str:
    """The text in plain letters: full-width and mathematical letters narrow, homoglyphs Latin, accents and invisible characters gone.

    So a reply cannot look new to a counter of words while it reads the same.
    """
    return text if text.isascii() else _as_seen(text)


@cache
def _spelling(language: str) -> tuple[str, Mapping[str, str], re.Pattern[str]]:
    """Replacement for a line's end, spellings with their normal form, and an expression that finds any of them."""
    table = read_toml(language, LEXICON)
    return table["writing"]["line"], table["spelling"], re.compile("|".join(map(re.escape, table["spelling"])))


def normalized(text: str, language: str) -> str:
    """The text in lower case, one spelling, single spaces or none, as expressions of the lexicon expect it."""
    line, spellings, found = _spelling(language)
    text = " ".join(as_seen(text).lower().replace("\n", line).split())
    if found.search(text):
        for spelling, normal in spellings.items():
            text = text.replace(spelling, normal)
    return text


@lru_cache(maxsize=65536)
def words_of(text: str) -> tuple[str, ...]:
    """Lower-case words; a possessive 's is dropped, other apostrophes stay."""
    return tuple(re.findall(r"[a-z]+(?:'(?!s\b)[a-z]+)?|\d+", as_seen(text).lower().replace("\u2019", "'")))


def characters_of(text: str) -> list[str]:
    """The Chinese characters of a text."""
    return [] if text.isascii() else re.findall(CHARACTER, as_seen(text))


def num_words(text: str) -> int:
    """Words, plus one for each CHARACTERS_PER_WORD Chinese characters."""
    return len(words_of(text)) + round(len(characters_of(text)) / CHARACTERS_PER_WORD)


def language_of(text: str) -> str:
    """`zh` where a text has more Chinese characters than words in Latin letters, else `en`."""
    return "zh" if len(characters_of(text)) > len(words_of(text)) else "en"


def by_language(text: str) -> list[tuple[str, str]]:
    """Stretches of whole sentences, each with its language; a sentence without words goes with the one before it."""
    if not characters_of(text):
        return [("en", text)]
    spoken: list[tuple[str, str]] = []
    for sentence in re.findall(r"[^.!?。！？\n]*[.!?。！？\n]+|[^.!?。！？\n]+$", text):
        has_words = characters_of(sentence) or words_of(sentence)
        spoken.append((language_of(sentence) if has_words or not spoken else spoken[-1][0], sentence))
    return [(language, "".join(sentence for _, sentence in run)) for language, run in groupby(spoken, key=lambda pair: pair[0])]


@lru_cache(maxsize=65536)
def content_words(text: str) -> frozenset[str]:
    """The content of a text: lower-case words that are no function words, and pairs of Chinese characters."""
    return (frozenset(words_of(text)) - FUNCTION_WORDS) | content_grams(text)


@lru_cache(maxsize=65536)
def content_grams(text: str) -> frozenset[str]:
    """Pairs of neighbouring Chinese characters between function words; common words are kept whole."""
    if text.isascii():
        return frozenset()
    common, grams = _chinese().common, set()
    for stretch in _stretches(text):
        i = 0
        while i < len(stretch) - 1:
            grams.add(gram := stretch[i : i + 2])
            i += 2 if gram in common else 1
    return frozenset(grams)


@lru_cache(maxsize=65536)
def fluency(text: str) -> float:
    """1 for ordinary English, falling to 0 as a third of the neighbouring words become odd.

    A pair is odd when closed-class words meet that do not meet in English, or when the world's own texts would have shown it
    by chance at least MIN_EXPECTED times and never did. Content words piled up without a word of BETWEEN are odd too.
    Words unknown to the world are no evidence against a sentence.
    """
    odd = total = 0
    for words in _clauses_of(text):
        total += len(words)
        odd += sum(_is_odd(a, b) for a, b in pairwise((*words, END)))
        runs = (len(list(run)) for is_content, run in groupby(words, key=lambda word: word not in BETWEEN) if is_content)
        odd += sum(2 * max(0, length - MAX_CONTENT_RUN) for length in runs)
    return max(0.0, 1.0 - 3.0 * odd / total) if total else 0.0


def _clauses_of(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each clause, contractions written out and possessives dropped."""
    for line in text.splitlines():
        plain = POSSESSIVE.sub("", normalized(line, "en"))
        yield from filter(None, map(words_of, re.split(r"[.?!,;:]", plain)))


@lru_cache(maxsize=65536)
def _is_odd(first: str, second: str) -> bool:
    """Whether ordinary English hardly ever has these neighbours."""
    english = _english()
    if (first, second) in english.pairs:
        return False
    followers = {"END"} if second == END else english.classes.get(second, frozenset())
    if first == second or any(followers & english.odd.get(name, frozenset()) for name in english.classes.get(first, frozenset())):
        return True
    times = english.total / 10 if second == END else english.counts[second]
    return english.counts[first] * times / english.total >= MIN_EXPECTED


@dataclass(frozen=True, kw_only=True)
class _English:
    """Reference statistics of the training world's texts, slots filled with every phrase that they can take."""

    counts: Counter[str]
    total: int
    """Words counted."""
    pairs: frozenset[tuple[str, str]]
    """Neighbouring words that were seen, or that the file of exceptions allows."""
    classes: Mapping[str, frozenset[str]]
    """Closed classes of a word."""
    odd: Mapping[str, frozenset[str]]
    """Classes that do not follow a class."""


@cache
def _english() -> _English:
    counts: Counter[str] = Counter()
    table, phrases, scenarios = read_toml("fluency_en", LEXICON), read_toml("phrases"), load_bank().scenarios(Split.TRAIN)
    pairs = {(first, second) for first, followers in table["even"].items() if first != "why" for second in followers}
    lines = [line for group in ("hints", "reactions") for pools in phrases[group].values() for pool in pools.values() for line in pool]
    for text in (*lines, *{fact.text for scenario in scenarios for fact in scenario.facts}):
        for words in _clauses_of(text):
            counts.update(words)
            pairs.update(pairwise((*words, END)))
    people = {words_of(f"{owner} {scenario.other}") for owner in ("your", "the", "my") for scenario in scenarios}
    fillers = {
        "cue": {words_of(fact.cue) for scenario in scenarios for fact in scenario.facts},
        "feeling": {words_of(feeling) for scenario in scenarios for feeling in scenario.feelings},
        "other": people,
        "other_cap": people,
    }
    pairs.update(pair for phrases_of_slot in fillers.values() for phrase in phrases_of_slot for pair in pairwise(phrase))
    moves = chain.from_iterable((*move["grounded"], *move["plain"]) for move in read_toml("moves").values())
    for template in (*moves, *phrases["feelings"]["said"]):
        tokens = re.findall(r"\{\w+\}|[a-z]+|[.?!]", POSSESSIVE.sub("", normalized(template, "en")))
        counts.update(token for token in tokens if token.isalpha())
        for left, right in pairwise([*(END if token in ".?!" else token for token in tokens), END]):
            lasts = {phrase[-1] for phrase in fillers.get(left.strip("{}"), ())} if left.startswith("{") else {left}
            firsts = {phrase[0] for phrase in fillers.get(right.strip("{}"), ())} if right.startswith("{") else {right}
            pairs.update((a, b) for a in lasts for b in firsts)
    classes: dict[str, set[str]] = {}
    for name, members in table["classes"].items():
        for word in members:
            classes.setdefault(word, set()).add(name)
    return _English(
        counts=counts,
        total=counts.total(),
        pairs=frozenset(pairs),
        classes={word: frozenset(names) for word, names in classes.items()},
        odd={name: frozenset(followers) for name, followers in table["odd"].items() if name != "why"},
    )


@dataclass(frozen=True, kw_only=True)
class _Chinese:
    """Word lists of `lexicon/fluency_zh.toml`."""

    function: re.Pattern[str]
    common: frozenset[str]
    """Words of two characters."""
    impossible: re.Pattern[str]
    """Pairs of function words that cannot meet."""


@cache
def _chinese() -> _Chinese:
    table = read_toml("fluency_zh", LEXICON)
    return _Chinese(
        function=re.compile("|".join(sorted(table["function"].split(), key=len, reverse=True))),
        common=frozenset(table["common"].split()),
        impossible=re.compile("|".join(table["odd"]["patterns"])),
    )


def _stretches(text: str) -> Iterator[str]:
    """Chinese between function words and signs."""
    for run in re.findall(f"{CHARACTER}+", as_seen(text)):
        yield from filter(None, _chinese().function.split(run))


@lru_cache(maxsize=65536)
def fluency_in_chinese(text: str) -> float:
    """1 for ordinary Chinese, falling to 0 as a third of it becomes odd; 0 without any Chinese.

    Odd are function words that cannot meet, repeated words, characters piled up without a function word or that make up no
    common word, and Latin letters beyond a name or two.
    """
    text, chinese = as_seen(text), _chinese()
    said = characters_of(text)
    if not said:
        return 0.0
    clauses = list(filter(None, SIGNS.split(QUOTES.sub("", text))))
    odd: float = IMPOSSIBLE * sum(len(chinese.impossible.findall(clause)) for clause in clauses)
    # Laughter and the like may be four characters in a row.
    odd += sum(len(run[0]) - 4 for run in re.finditer(r"(.)\1{4,}", "".join(said)))
    fours = Counter("".join(said[i : i + 4]) for i in range(len(said) - 3))
    odd += sum(times - MAX_SAME for times in fours.values() if times > MAX_SAME)
    bare = 0
    for clause in clauses:
        runs = [len(characters_of(run)) for run in chinese.function.split(clause)]
        bare = bare + 1 if len(runs) == 1 and 0 < runs[0] <= 4 else 0
        odd += sum(2 * max(0, run - MAX_RUN) for run in runs) + (2 * runs[0] if bare > MAX_BARE else 0)
    known = total = 0
    for stretch in _stretches(text):
        total += len(stretch)
        known += len({j for i in range(len(stretch) - 1) if stretch[i : i + 2] in chinese.common for j in (i, i + 1)})
    odd += max(0.0, MIN_KNOWN * total - known - SLACK) / MIN_KNOWN
    foreign = len(words_of(text)) * CHARACTERS_PER_WORD
    odd += max(0.0, foreign - MAX_FOREIGN * (len(said) + foreign))
    return max(0.0, 1.0 - 3.0 * odd / (len(said) + foreign))
