"""Remarks of a comparison, which know what they are about: a page that says it already need not read it off their words."""

from __future__ import annotations

from enum import Enum, auto
from typing import Any


class NoteKind(Enum):
    """What a remark says of an arm."""

    REMARK = auto()
    """Something about its runs, which count all the same."""
    LEFT_OUT = auto()
    """The runs of these seeds cannot be used."""
    NO_RUN = auto()
    """It has none that can."""
    LACKS_SEEDS = auto()
    """It has none of these seeds, so nothing is paired on them."""


class Note(str):
    """A sentence, and what it is about."""

    __slots__ = ("arm", "kind", "seeds")

    kind: NoteKind
    arm: str
    seeds: tuple[int, ...]

    def __new__(cls, text: str, *, arm: str, seeds: tuple[int, ...] = (), kind: NoteKind = NoteKind.REMARK) -> Note:
        note = super().__new__(cls, text)
        note.kind, note.arm, note.seeds = kind, arm, seeds
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Any]]:
        return (str(self),), {"arm": self.arm, "seeds": self.seeds, "kind": self.kind}


def no_run(arm: str) -> Note:
    """That an arm, or each that fits a pattern, has nothing to compare."""
    return Note(f"{arm} has no run that can be used.", arm=arm, kind=NoteKind.NO_RUN)
