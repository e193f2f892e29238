"""Text in English and Chinese without a model: look-alike letters, words, content, length and fluency."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache, lru_cache
from itertools import chain, groupby, pairwise

from simulator.scenario import Split
from simulator.world import LEXICON, load_bank, read_toml

END = "</s>"
FUNCTION_WORDS = frozenset(
    "a an and are as at be but can do for from had has have he her him his how i if in is it its me my of on or our she so that the "
    "their them then they this to was we were what when which who will with would you your about not there did does been being".split()
)
"""Words that hold a sentence together; all others carry content."""
EVERYDAY = frozenset(
    "again all always am back because come even ever every feel felt get give go going good got hard just keep know last let "
    "like look make maybe more much never nobody no one out over part really say said see some still take talk tell thing "
    "things think time too two up very want way well where without yes need first after before day days".split()
)
"""Words that any two people share, whatever they talk about."""
CHARACTER = "[\u4e00-\u9fff]"
CHARACTERS_PER_WORD = 1.6
"""Chinese characters that say about as much as one English word; converts limits of length."""


@lru_cache(maxsize=65536)
def as_seen(text: str) -> str:
    """The text in plain letters: full-width and mathematical letters narrow, homoglyphs Latin, accents and invisible characters gone.

    So a reply cannot look new to a counter of words while it reads the same.
    """
    if text.isascii():
        return text
    look_alikes = str.maketrans(
        # Cyrillic, then Greek, capitals last: only letters that most fonts draw as the Latin one.
        "\u0430\u0441\u0501\u0435\u04bb\u0456\u0458\u043e\u0440\u0455\u0445\u0443\u051d\u0261\u04cf"
        "\u03b1\u03bf\u03c1\u03c5\u03bd\u03b9\u03ba\u03c7\u03f2\u0131"
        "\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u0423"
        "\u0391\u0392\u0395\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03a5\u0396",
        "acdehijopsxywglaopuvikxciABCEHIJKMOPSTXYABEHIKMNOPTXYZ",
    )
    decomposed = unicodedata.normalize("NFKD", text.translate(look_alikes))
    # Dropped: formatting, zero-width characters and marks on other letters.
    return "".join(character for character in decomposed if unicodedata.category(character) not in ("Cf", "Mn", "Me"))


def normalized(text: str, language: str) -> str:
    """The text in lower case, one spelling, single spaces or none, as expressions of the lexicon expect it."""
    table = read_toml(language, LEXICON)
    text = " ".join(as_seen(text).lower().replace("\n", table["writing"]["line"]).split())
    for spelling, normal in table["spelling"].items():
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


def number_of(text: str) -> int | None:
    """A number in figures or in English words below a hundred; None for anything else."""
    if text.strip().isdigit():
        return int(text)
    teens = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
    ones = f"zero one two three four five six seven eight nine {teens}".split()
    tens = "twenty thirty forty fifty sixty seventy eighty ninety".split()
    first, *rest = [*text.replace("-", " ").split(), ""]
    if first in tens:
        return 10 * (tens.index(first) + 2) + (ones.index(rest[0]) if rest and rest[0] in ones[1:10] else 0)
    return ones.index(first) if first in ones else None


@lru_cache(maxsize=65536)
def content_words(text: str) -> frozenset[str]:
    """The content of a text: lower-case words that are no function words, and pairs of neighbouring Chinese characters between them.

    Common Chinese words are kept whole.
    """
    return frozenset(content_in_order(text))


def content_in_order(text: str, known: AbstractSet[str] = frozenset()) -> list[str]:
    """The content of a text as it stands, first the words and then the Chinese pairs; `known` pairs are kept whole, too."""
    content = [word for word in words_of(text) if word not in FUNCTION_WORDS]
    if not text.isascii():
        function, common, _ = _chinese()
        for stretch in chain.from_iterable(map(function.split, re.findall(f"{CHARACTER}+", as_seen(text)))):
            i = 0
            while i < len(stretch) - 1:
                content.append(pair := stretch[i : i + 2])
                i += 2 if pair in common or pair in known else 1
    return content


def is_scrambled(reply: str, said: Sequence[str]) -> bool:
    """Whether a reply is made of the user's words, put together as they never stood: a salad that looks like taking something up.

    Without everyday words, more than three fifths of its content are the user's; of at least four pairs of taken words that follow each
    other, fewer than three in five stand within four content words of each other in a sentence of the user's.

    Args:
        said: the user's turns.
    """
    sentences = [content for text in said for content in _content_by_sentence(text)]
    theirs = frozenset().union(*sentences)
    content = [word for word in content_in_order(reply, theirs) if word not in EVERYDAY]
    taken = [word for word in content if word in theirs]
    pairs = [(first, second) for first, second in pairwise(taken) if first != second]
    if len(pairs) < 4 or len(taken) <= 0.6 * len(content):
        return False
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, words in enumerate(sentences):
        for place, word in enumerate(words):
            places[word].append((number, place))
    stand = [any(a == b and abs(i - j) <= 4 for a, i in places[first] for b, j in places[second]) for first, second in pairs]
    return sum(stand) < 0.6 * len(pairs)


@lru_cache(maxsize=4096)
def _content_by_sentence(text: str) -> tuple[list[str], ...]:
    return tuple(content_in_order(sentence) for sentence in re.split(r"[.?!;\n。？！；]", text))


@lru_cache(maxsize=65536)
def fluency(text: str) -> float:
    """1 for ordinary English, falling to 0 as a third of the neighbouring words become odd.

    A pair is odd when closed-class words meet that do not meet in English, or when the world's own texts would have shown it by chance
    and never did. More than four content words in a row are odd too. Words unknown to the world are no evidence against a sentence.
    """
    (counts, total), pairs, classes, between = _english()
    barred = read_toml("fluency_en", LEXICON)["odd"]
    odd = num = 0
    for words in _clauses_of(text):
        num += len(words)
        for first, second in pairwise((*words, END)):
            if (first, second) not in pairs:
                followers = classes.get(second, set())
                expected = counts.get(first, 0) * counts.get(second, 0) / total
                odd += first == second or any(followers & set(barred.get(name, ())) for name in classes.get(first, ())) or expected >= 0.75
        runs = (len(list(run)) for is_content, run in groupby(words, key=lambda word: word not in between) if is_content)
        odd += sum(2 * max(0, length - 4) for length in runs)
    return max(0.0, 1.0 - 3.0 * odd / num) if num else 0.0


def _clauses_of(text: str) -> Iterator[tuple[str, ...]]:
    """The words of each clause, contractions written out and possessives dropped."""
    for line in text.splitlines():
        plain = re.sub(r"'s\b", "", normalized(line, "en"))
        yield from filter(None, map(words_of, re.split(r"[.?!,;:]", plain)))


@cache
def _english() -> tuple[tuple[Mapping[str, float], int], AbstractSet[tuple[str, str]], Mapping[str, set[str]], AbstractSet[str]]:
    """Reference statistics of the training world's texts, slots filled with every phrase that they can take.

    Returns:
        Counts of words and their total, a sentence taken to end after ten; neighbours seen or allowed; closed classes of a word; words that
        separate content words within a clause.
    """
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
        "{cue}": {words_of(fact.cue) for scenario in scenarios for fact in scenario.facts},
        "{feeling}": {words_of(feeling) for scenario in scenarios for feeling in scenario.feelings},
        "{other}": people,
        "{other_cap}": people,
    }
    pairs.update(chain.from_iterable(pairwise(phrase) for phrases_of_slot in fillers.values() for phrase in phrases_of_slot))
    moves = chain.from_iterable((*move["grounded"], *move["plain"]) for move in read_toml("moves").values())
    for template in (*moves, *phrases["feelings"]["said"]):
        tokens = re.findall(r"\{\w+\}|[a-z]+|[.?!]", re.sub(r"'s\b", "", normalized(template, "en")))
        counts.update(token for token in tokens if token.isalpha())
        for left, right in pairwise([*(END if token in ".?!" else token for token in tokens), END]):
            lasts = {phrase[-1] for phrase in fillers[left]} if left in fillers else {left}
            firsts = {phrase[0] for phrase in fillers[right]} if right in fillers else {right}
            pairs.update((a, b) for a in lasts for b in firsts)
    classes = defaultdict(set, {END: {"END"}})
    for name, members in table["classes"].items():
        for word in members:
            classes[word].add(name)
    between = FUNCTION_WORDS.union(
        "after all am any because before both by could down even here into just many may might more most much never no nothing off one "
        "only out over should since some something still than these those through too until up very where while why".split()
    )
    return ({**counts, END: counts.total() / 10}, counts.total()), pairs, dict(classes), between


@cache
def _chinese() -> tuple[re.Pattern[str], frozenset[str], re.Pattern[str]]:
    """Function words, common words of two characters, and pairs of function words that cannot meet."""
    table = read_toml("fluency_zh", LEXICON)
    function = re.compile("|".join(sorted(table["function"].split(), key=len, reverse=True)))
    return function, frozenset(table["common"].split()), re.compile("|".join(table["odd"]["patterns"]))


@lru_cache(maxsize=65536)
def fluency_in_chinese(text: str) -> float:
    """1 for ordinary Chinese, falling to 0 as a third of it becomes odd; 0 without any Chinese.

    Odd are function words that cannot meet, repeated words, characters piled up without a function word or that make up no
    common word, and Latin letters beyond a name or two.
    """
    text, (function, common, impossible) = as_seen(text), _chinese()
    said = characters_of(text)
    if not said:
        return 0.0
    unquoted = re.sub("[“”‘’\"'「」『』《》（）()【】*#_\\[\\]]", "", text)
    clauses = list(filter(None, re.split(r"[\s,.;:!?，。；：！？、…—～~/|·•-]+", unquoted)))
    # A pair that cannot meet spoils five characters. Laughter and the like may be four characters in a row.
    odd: float = 5 * sum(len(impossible.findall(clause)) for clause in clauses)
    odd += sum(len(run[0]) - 4 for run in re.finditer(r"(.)\1{4,}", "".join(said)))
    # A reply may hold the same four characters in a row twice.
    fours = Counter("".join(said[i : i + 4]) for i in range(len(said) - 3))
    odd += sum(times - 2 for times in fours.values() if times > 2)
    # Ten characters without a function word are still normal, and six clauses in a row of a few characters, none of them such a word.
    bare = 0
    for clause in clauses:
        runs = [len(characters_of(run)) for run in function.split(clause)]
        bare = bare + 1 if len(runs) == 1 and 0 < runs[0] <= 4 else 0
        odd += sum(2 * max(0, run - 10) for run in runs) + (2 * runs[0] if bare > 6 else 0)
    # A fifth of the content must be common words, less two characters for short replies; names and rare words are in none.
    known = total = 0
    for stretch in chain.from_iterable(map(function.split, re.findall(f"{CHARACTER}+", text))):
        total += len(stretch)
        known += len({j for i in range(len(stretch) - 1) if stretch[i : i + 2] in common for j in (i, i + 1)})
    odd += max(0.0, 0.2 * total - known - 2) / 0.2
    # Three tenths may be in Latin letters: names, brands and abbreviations.
    foreign = len(words_of(text)) * CHARACTERS_PER_WORD
    odd += max(0.0, foreign - 0.3 * (len(said) + foreign))
    return max(0.0, 1.0 - 3.0 * odd / (len(said) + foreign))
