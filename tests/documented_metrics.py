"""The metric keys that are documented, read from the tables that define them (docs/metrics*.md): against these the code is tested."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

PAGES = sorted((Path(__file__).resolve().parent.parent / "docs").glob("metrics*.md"))
ROW = re.compile(r"^\| `([^`]+)` \|")
PLACEHOLDER = re.compile(r"<\w+>")
"""For one word of a key, such as <intention>."""


def documented_keys() -> list[str]:
    """Every key of the tables, in their order; `<word>` in a key stands for any one word."""
    rows = [ROW.match(line) for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
    return [row.group(1) for row in rows if row]


def undocumented(keys: Iterable[str]) -> list[str]:
    """Those of `keys` that no table defines, sorted."""
    patterns = [pattern_of(key) for key in documented_keys()]
    return sorted(key for key in set(keys) if not any(pattern.fullmatch(key) for pattern in patterns))


def pattern_of(documented: str) -> re.Pattern[str]:
    """A documented key as an expression that matches the keys it means."""
    return re.compile(r"[\w.+-]+".join(map(re.escape, PLACEHOLDER.split(documented))))
