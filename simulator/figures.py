"""How numbers and names are written in explanations."""

from __future__ import annotations

from collections.abc import Iterable


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
