"""Alternatives that are sorted by their first letters match where the plain ones do."""

from __future__ import annotations

import random
import re

import pytest

from simulator.lexicon import either

PATTERNS = [
    "you are",
    "you (?:were|have been)",
    "(?:that|this|it) is",
    "(?:so |very )?tired",
    "(?:a|b)+c",
    "(?<!if )yes",
    "(?<=^ )so",
    "(?!so )[a-z]+o",
    "th[aeiou]n",
    "i?t",
    r"wait\?",
    "(?:how|what (?:a|an)) sad",
    "no way|very thin",
]


def test_the_same_texts_are_matched_as_by_the_plain_alternatives():
    plain, sorted_ = re.compile(f" (?:{'|'.join(PATTERNS)})"), re.compile(f" (?:{either(PATTERNS)})")
    words = (
        "you are were have been that this it is so very tired a b ab abc if yes no go than thin then t wait wait? how what an sad".split()
    )
    chance = random.Random(0)
    texts = [" " + " ".join(chance.choices(words, k=chance.randint(1, 5))) for _ in range(3000)]
    verdicts = [bool(plain.search(text)) for text in texts]
    assert [bool(sorted_.search(text)) for text in texts] == verdicts
    assert 300 < sum(verdicts) < 2900


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_any_depth_will_do(depth: int):
    pattern = re.compile(either(["abc", "abd", "xyz", "(?:ab|xy)e"], depth=depth))
    assert all(pattern.fullmatch(text) for text in ("abc", "abd", "xyz", "abe", "xye"))
    assert not any(pattern.fullmatch(text) for text in ("ab", "abz", "xy", "abcd"))


def test_brackets_and_escapes_do_not_part_alternatives():
    pattern = re.compile(either([r"(?:a[|)]b|c\)d)e", "f"]))
    assert all(pattern.fullmatch(text) for text in ("a|be", "a)be", "c)de", "f"))


def test_a_group_that_is_left_open_is_refused():
    with pytest.raises(ValueError, match=r"pattern must close its groups, got '\(\?:a\|b'"):
        either(["(?:a|b", "c"])
