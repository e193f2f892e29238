"""An API key: read from the environment in one place, and taken out of whatever is written."""

from __future__ import annotations

import base64
import html
import json
import os
import re
from functools import lru_cache
from urllib.parse import quote, unquote

HIDDEN = "***"
WHOLLY_HIDDEN = "(not shown: it repeats the key)"
AROUND = "\ufeff\u200b\u2060\x00"
"""What files put before or behind a key beside whitespace: a byte order mark, spaces without width."""
SHORTEST_PART = 8
"""Characters of a key that are taken out although others around them are missing, as where a server masks the rest."""


def read_key(variable: str) -> str:
    """The key in an environment variable, without the whitespace and line ends that a file left around it.

    Raises:
        ValueError: there is none, or it is none that a header can carry; the sentence names the variable and shows nothing of the key.
    """
    value = os.environ.get(variable)
    if not value:
        # A name in lower case may be the key itself, given in the wrong place.
        named = repr(variable) if re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable) else "something else (not shown: it may be a key)"
        raise ValueError(f"simulator.api_key_env must name an environment variable that is set, got {named}; export it first")
    key = _without_margins(value)
    if wrong := why_no_key(key):
        raise ValueError(f"simulator.api_key_env must name a variable with a key, got {variable!r}, which {wrong}; the key is not shown")
    return key


def _without_margins(value: str) -> str:
    while (inner := value.strip().strip(AROUND)) != value:
        value = inner
    return value


def why_no_key(key: str) -> str:
    """What makes this no key that a header can carry, after the words "it"; empty for one that it can."""
    if not key:
        return "holds nothing but whitespace"
    if not key.isascii():
        return "holds a character that is not ASCII"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in key):
        return "holds a line end or another control character"
    if " " in key:
        return "holds a space"
    if key[0] in "'\"" and key[0] == key[-1]:
        return "holds quotation marks around the key"
    return ""


def hide(text: str, key: str) -> str:
    """The text without the key, however it is escaped, and without long parts of it; the text itself for an empty key."""
    if not key:
        return text
    text = _pattern(key).sub(HIDDEN, text)
    if any(key.lower() in plain.lower() for plain in _unescaped(text)):
        return WHOLLY_HIDDEN
    return _without_parts(text, key)


@lru_cache(maxsize=8)
def _pattern(key: str) -> re.Pattern[str]:
    """Whatever stands for the key: as it is, as Python, JSON, HTML, a URL, hexadecimal digits or base64 write it."""
    forms = {key, repr(key)[1:-1], json.dumps(key)[1:-1], html.escape(key), quote(key), quote(key, safe=""), key.encode().hex()}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        # Three places where it may begin in a longer text; the letters at either end depend on what stands around it.
        for before in range(3):
            whole = encode(b"\0" * before + key.encode()).decode().rstrip("=")
            inner = whole[(0, 2, 3)[before] : len(whole) if (before + len(key)) % 3 == 0 else -1]
            forms |= {inner} if len(inner) >= SHORTEST_PART or before == 0 else set()
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True) if form), re.IGNORECASE)


def _unescaped(text: str) -> list[str]:
    """The text as it reads once escapes of one kind are undone."""
    by_number = re.sub(r"\\(?:x|u00)([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text, flags=re.IGNORECASE)
    return [unquote(text), unquote(unquote(text)), html.unescape(text), by_number, text.replace("\\", "")]


def _without_parts(text: str, key: str) -> str:
    """Takes out what is a long part of the key, and the ends of it beside the asterisks by which a server masked the rest."""
    num = min(SHORTEST_PART, len(key))
    parts = {key[i : i + num] for i in range(len(key) - num + 1)}
    shown = [True] * len(text)
    for start in range(len(text) - num + 1):
        if text[start : start + num] in parts:
            shown[start : start + num] = [False] * num
    taken = "".join(letter if is_shown else "\0" for letter, is_shown in zip(text, shown, strict=True))
    masked = re.sub("\0+", HIDDEN, taken)

    def without_ends(found: re.Match[str]) -> str:
        before, after = found[1], found[2]
        is_of_key = (before and key.startswith(before)) or (after and key.endswith(after))
        return HIDDEN if is_of_key else found[0]

    return re.sub(r"([^\s*.,;'\"]*)(?:\*{2,}|\.{3,})([^\s*.,;'\"]*)", without_ends, masked)
