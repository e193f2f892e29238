"""A bar for what takes longer than a glance."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")


def progress(items: Iterable[Item], *, total: int, what: str) -> Iterable[Item]:
    """The items, with a bar on a terminal's stderr where tqdm is installed; it is no part of the light base."""
    if not sys.stderr.isatty():
        return items
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return items
    return tqdm(items, total=total, desc=what, leave=False)
