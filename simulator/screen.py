"""Words, bars and colours on a terminal, and the same without colours where there is none: plain ANSI, nothing to install."""

from __future__ import annotations

import io
import os
import shutil
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from simulator.dialogue import DELIGHTED_AT

MOODS = ((100, "delighted", "32"), (70, "relieved", "32"), (40, "wavering", "36"), (10, "hurt", "33"), (0, "gone", "31"))
"""From which emotion on, the word for it, and its ANSI colour; the bounds are SAGE's bands."""
BAR_CELLS = 40
WIDEST = 110


@dataclass(frozen=True, kw_only=True)
class Screen:
    """Where a conversation is shown."""

    out: TextIO
    width: int = WIDEST
    has_colours: bool = False
    is_unicode: bool = True

    @classmethod
    def of(cls, out: TextIO) -> Screen:
        """As wide as the terminal is, coloured if it is one and `NO_COLOR` does not forbid it."""
        is_terminal = out.isatty()
        colours = is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        return cls(
            out=out,
            width=max(40, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)) if is_terminal else WIDEST,
            has_colours=colours,
            is_unicode=(out.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32"),
        )

    def line(self, text: str = "", *, colour: str = "") -> None:
        """Prints a line."""
        if not self.is_unicode:
            text = text.translate(ASCII).encode("ascii", "replace").decode()
        print(f"\x1b[{colour}m{text}\x1b[0m" if colour and self.has_colours else text, file=self.out, flush=True)

    def paragraph(self, opening: str, text: str, *, colour: str = "") -> None:
        """Prints a text that is wrapped beside what opens it."""
        indent = " " * len(opening)
        for line in textwrap.wrap(text, self.width, initial_indent=opening, subsequent_indent=indent) or [opening.rstrip()]:
            self.line(line, colour=colour)

    def emotion(self, emotion: int, change: int | None, opening: str) -> None:
        """Prints the emotion as a bar with its number, what it moved by, and a word: nothing is told by colour alone."""
        _, mood, colour = next(mood for mood in MOODS if emotion >= mood[0])
        filled = round(BAR_CELLS * emotion / DELIGHTED_AT)
        moved = "" if change is None else f" {'▲' if change > 0 else '▼' if change < 0 else '='} {change:+d}"
        self.line(f"{opening}{'█' * filled}{'░' * (BAR_CELLS - filled)} {emotion:3}{moved} {mood}", colour=colour)


ASCII = str.maketrans({"█": "#", "░": ".", "▲": "^", "▼": "v", "−": "-", "×": "x", "→": ">", "±": "+", "“": '"', "”": '"'})
"""What stands for the characters that a poorer terminal lacks."""


class Input:
    """Lines that somebody types or that a pipe brings; a pipe's are shown, so that what is printed reads as a conversation."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._is_terminal = sys.stdin.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            # Bytes that are no text must end no conversation: `read` puts the usual sign for them in their place.
            sys.stdin.reconfigure(errors="surrogateescape")
        if self._is_terminal:
            # Importing it gives input() its editing keys; not every build of Python has it.
            with suppress(ModuleNotFoundError):
                import readline  # noqa: F401

    def read(self, prompt: str) -> str | None:
        """The next line without its end; None when there is no more (Ctrl-D, Ctrl-C, the end of the pipe)."""
        try:
            text = input(prompt if self._is_terminal else "")
        except (EOFError, KeyboardInterrupt):
            self._screen.line()
            return None
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if not self._is_terminal:
            self._screen.line(f"{prompt}{text}")
        return text
