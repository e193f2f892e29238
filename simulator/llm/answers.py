"""JSON objects in the text of an answer, also where a model leaves the form: words and thoughts around them, and nearly JSON.

Only the form is mended. What was cut off, or is missing, is never guessed.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

END_OF_THOUGHT = re.compile(
    r"</(?:think|thinking|thought|thoughts|reasoning|analysis)>|\[/THINK\]|<\|channel\|>\s*final\b|<channel\|>|<\|end_of_thought\|>", re.I
)
"""What ends a thought before an answer, by the markers that models are trained with."""
SPACE = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
"""Between the parts of an object; comments count as space."""
CLOSING = {'"': '"', "'": "'", "“": "“”", "”": "“”", "‘": "‘’", "’": "‘’"}
"""Quotation mark -> those that may close it."""
BARE = re.compile(r"[^\s,:{}\[\]\"“”'][^,{}\[\]\"“”\n]*")
WORDS = {"true": True, "false": False, "null": None, "none": None}


def objects_in(text: str) -> list[dict[str, Any]]:
    """The JSON objects of an answer in their order, those within a thought and within another object left out.

    Read as JSON are also: trailing and missing commas, single and typographic quotation marks, quotation marks that are not escaped, line
    breaks in strings, Python's constants, comments, numbers with a sign or a unit (as text), and an object within a JSON string.

    An object that begins as one and cannot be read hides what follows, up to the end of a thought: its strings may quote other objects.
    """
    if text.lstrip().startswith('"'):
        try:
            inner = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            inner = None
        if isinstance(inner, str):
            return objects_in(inner)
    found, start = list[dict[str, Any]](), 0
    while (brace := text.find("{", start)) >= 0:
        if END_OF_THOUGHT.search(text, start, brace):
            found.clear()
        try:
            record, start = _value(text, brace)
            found.append(record)
        except (ValueError, RecursionError):
            start = brace + 1
            if re.match(r"\{\s*[\"'“”]\w+[\"'“”]\s*:", text[brace : brace + 200]):
                thought = END_OF_THOUGHT.search(text, start)
                if thought is None:
                    return []
                start = thought.start()
    return [] if END_OF_THOUGHT.search(text, start) else found


def _value(text: str, start: int) -> tuple[Any, int]:
    """The value that begins there, and where it ends; ValueError where none does."""
    if text[start : start + 1] in ("{", "["):
        try:
            return json.JSONDecoder(strict=False).raw_decode(text, start)
        except ValueError:
            return _object(text, start) if text[start] == "{" else _list(text, start)
    if text[start : start + 1] in CLOSING:
        return _string(text, start)
    bare = BARE.match(text, start)
    if bare is None:
        raise ValueError(f"no value at {start}")
    word = bare[0].split("//")[0].strip()
    try:
        value = json.loads(word) if re.fullmatch(r"-?[0-9.eE+-]+", word) else WORDS.get(word.lower(), word)
    except ValueError:
        value = word
    return value, bare.end()


def _object(text: str, start: int) -> tuple[dict[str, Any], int]:
    record, at = dict[str, Any](), _space(text, start + 1)
    while text[at : at + 1] != "}":
        key, at = _string(text, at)
        at = _space(text, at)
        if text[at : at + 1] not in (":", "："):
            raise ValueError(f"no colon at {at}")
        record[key], at = _value(text, _space(text, at + 1))
        at = _space(text, at)
        at = _space(text, at + 1) if text[at : at + 1] in (",", "，") else at
    return record, at + 1


def _list(text: str, start: int) -> tuple[list[Any], int]:
    items, at = list[Any](), _space(text, start + 1)
    while text[at : at + 1] != "]":
        item, at = _value(text, at)
        items.append(item)
        at = _space(text, at)
        at = _space(text, at + 1) if text[at : at + 1] == "," else at
    return items, at + 1


def _string(text: str, start: int) -> tuple[str, int]:
    """A string ends at a quotation mark behind which the object goes on, so that others may stand in it unescaped."""
    closing = CLOSING.get(text[start : start + 1])
    if closing is None:
        raise ValueError(f"no string at {start}")
    goes_on = r"(?=\s*(?:[,，:：}\]]|//|/\*|[\"'“”]\w+[\"'“”]\s*[:：]))"
    end = re.compile(rf"((?:\\.|[^\\])*?)[{closing}]{goes_on}", re.DOTALL).match(text, start + 1)
    if end is None:
        raise ValueError(f"a string without an end at {start}")
    # JSON's escapes stay; of others only the character does, and bare quotation marks are escaped.
    body = re.sub(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))|(")', _escaped, end[1], flags=re.DOTALL)
    return json.loads(f'"{body}"', strict=False), end.end()


def _escaped(found: re.Match[str]) -> str:
    return '\\"' if found[3] else found[2] or found[0]


def _space(text: str, at: int) -> int:
    space = SPACE.match(text, at)
    return space.end() if space else at


def with_keys(value: Any, keys: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The object, or those in it and in its lists, that have all of these keys, in capitals or not. No text is searched: it may quote."""
    if isinstance(value, list):
        for item in value:
            yield from with_keys(item, keys)
    elif isinstance(value, dict):
        folded = {str(key).strip().lower(): item for key, item in value.items()} | value
        if all(key in folded for key in keys):
            yield folded
        else:
            yield from with_keys(list(value.values()), keys)


def number_in(text: str) -> float | None:
    """A number with its sign in whatever digits, before a unit or a remark: "−5", "＋5", "+5 points", "5/10", "负五", "plus 2.5".

    None where there is none, or it is not certain: a remark may turn a number without a sign around ("5 points lower").
    """
    plain = unicodedata.normalize("NFKC", text).lower()
    for signs, sign in (("−–—‒‐‑﹣➖", "-"), ("➕", "+")):
        plain = re.sub(f"[{signs}]", sign, plain)
    for word, sign in (("minus", "-"), ("negative", "-"), ("plus", "+"), ("负", "-"), ("負", "-"), ("减", "-"), ("正", "+"), ("加", "+")):
        plain = re.sub(rf"^\s*{word}\s*", sign, plain)
    plain = plain.strip(" \t\n*`'\"").translate({ord(c): str(n) for n, c in enumerate("零一二三四五六七八九十")})
    found = re.fullmatch(r"([+-]?)\s*(\d{1,6}(?:[.,]\d{1,6})?)\s*(?:/\s*10\b|out of 10)?\s*(.*?)", plain, re.DOTALL)
    if found is None:
        return None
    number, remark = float(found[2].replace(",", ".")), found[3].strip(" .")
    is_unit = not remark or re.fullmatch(r"points?|pts?|分|点|%", remark)
    if re.search(r"\d|^[-+~/^*]", remark) or not (is_unit or found[1] or number == 0):
        return None
    return -number if found[1] == "-" else number


def whole_number(value: Any) -> int | None:
    """A whole number, also one given as text (`number_in`) or with a decimal point; None for anything else."""
    number = number_in(value) if isinstance(value, str) else value
    is_whole = type(number) is int or (isinstance(number, float) and number.is_integer())
    return int(number) if number is not None and is_whole else None
