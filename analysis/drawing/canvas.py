"""The one door to matplotlib: a figure that is painted when it is asked for, as SVG for a page and as SVG and PNG by itself.

No pyplot and no state that is kept: each picture has a figure of its own. Text stays text, ids follow from the picture's name, and no date
is written, so the same numbers make the same bytes. On a page the colours of paper are replaced by the page's own, which follow the
reader's light or dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from analysis.drawing.style import PAPER_COLOURS

PIXELS = 100.0
"""Of the page to matplotlib's inch, so that 8 points are 11 pixels."""
TITLE_HEIGHT = 28.0
"""Above a picture by itself."""
DPI = 150
"""Of a PNG: one and a half pixels to a pixel of the page."""
NARROW = 540.0
"""Pictures up to this width shrink with the page; wider ones stay readable, and what the screen cannot hold is scrolled to."""
LEAST, MOST = 0.7, 1.14
"""Of its own width, how far a picture that stands by itself follows the page."""
MARK = "mark"
"""First word of an artist's gid that goes into the SVG: `mark <class> <words>`."""
SMALL, WORDS, HEADING = 8.0, 8.6, 9.4
"""Sizes of letters, points."""
SETTINGS = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": SMALL,
    "svg.fonttype": "none",
    "text.parse_math": False,
    "path.simplify": True,
    "axes.linewidth": 0.7,
    "axes.unicode_minus": False,
}


def hue(name: str) -> str:
    """A colour of the page by name, as it is on paper, in six digits."""
    colour = PAPER_COLOURS[name]
    return colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A drawing that has not been drawn yet."""

    width: float
    height: float
    """Pixels of the page."""
    label: str
    """For those who do not see it."""
    paint: Callable[[Sheet], None]
    is_hero: bool = False
    """Stands by itself on the page, and is not stretched to its width."""

    def render(self, *, name: str, title: str, formats: Sequence[str] = ("svg",)) -> dict[str, bytes]:
        """The picture by itself, on white and with its title, by format (`svg`, `png`)."""
        import matplotlib
        from matplotlib.figure import Figure

        with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": name}):
            size = self.width / PIXELS, (self.height + TITLE_HEIGHT) / PIXELS
            figure = Figure(figsize=size, dpi=DPI, facecolor="none")
            sheet = Sheet(figure, self.width, self.height)
            sheet.text(6, 17 - TITLE_HEIGHT, title, size=10.0, weight="bold", gid=f"{MARK} title")
            self.paint(sheet)
            found = {}
            for form in formats:
                stream = io.BytesIO()
                ground = {"facecolor": "white"} if form == "png" else {}
                metadata = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
                figure.savefig(stream, format=form, metadata=metadata, **ground)
                found[form] = shortened(stream.getvalue()) if form == "svg" else stream.getvalue()
        return found


class Sheet:
    """What a plot is painted on: places are in pixels from the left and from the top."""

    def __init__(self, figure: Any, width: float, height: float) -> None:
        self.figure, self.width, self.height = figure, width, height

    def axes(self, left: float, top: float, right: float, bottom: float, *, ticks_left: bool = True) -> Any:
        """A frame between these edges, with faint lines to read values at.

        Args:
            ticks_left: the lines are horizontal, for an axis of values on the left; otherwise they are vertical.
        """
        whole = self.height + TITLE_HEIGHT
        place = (left / self.width, (self.height - bottom) / whole, (right - left) / self.width, (bottom - top) / whole)
        axes = self.figure.add_axes(place, facecolor="none")
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(side == "bottom" and ticks_left)
            axes.spines[side].set_color(hue("rule"))
        axes.tick_params(length=0, colors=hue("soft"), labelsize=SMALL, pad=4)
        axes.grid(True, axis="y" if ticks_left else "x", color=hue("rule"), linewidth=0.7)
        axes.set_axisbelow(True)
        return axes

    def line(self, xs: Sequence[float], y: float, **style: Any) -> None:
        """A horizontal line at a place of the sheet."""
        from matplotlib.lines import Line2D

        height = (self.height - y) / (self.height + TITLE_HEIGHT)
        self.figure.add_artist(Line2D([x / self.width for x in xs], [height] * len(xs), transform=self.figure.transFigure, **style))

    def text(self, x: float, y: float, words: str, *, colour: str = "ink", size: float = WORDS, **style: Any) -> None:
        """Words at a place of the sheet."""
        whole = self.height + TITLE_HEIGHT
        self.figure.text(x / self.width, (self.height - y) / whole, words, color=hue(colour), fontsize=size, **style)


def shortened(svg: bytes) -> bytes:
    """The same SVG with places to a hundredth of a point; words and names stay as they are."""
    return TAG.sub(lambda tag: PLACE.sub(lambda place: LONG.sub(rb"\1", place[0]), tag[0]), svg)


TAG = re.compile(rb"<[a-z][^>]*>")
PLACE = re.compile(rb' (?:d|x|y|x1|x2|y1|y2|cx|cy|r|width|height|viewBox|points|transform|style)="[^"]*"')
"""An attribute that says where or how large."""
LONG = re.compile(rb"(\d+\.\d\d)\d+")


def on_the_page(picture: bytes, plot: Plot) -> str:
    """A picture's SVG as it stands on a page: without its title, ids and ground, in the page's colours."""
    text = picture.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(rf'<g id="{MARK} title">.*?</g>', "", text, count=1, flags=re.DOTALL)
    text = re.sub(rf'<g id="{MARK} ([\w-]+) ?([^"]*)">', shown_when_pointed_at, text)
    text = re.sub(r' id="[A-Za-z][A-Za-z0-9]*_\d+"', "", text)
    text = re.sub(r"(fill|stroke): (#[0-9a-f]{6})", in_page_colours, text)
    text = re.sub(r" font-family: [^;\"]*;?", "", text)
    text = re.sub(r' transform="rotate\(-?0 [^"]*"', "", text)
    unit = 72.0 / PIXELS
    box = f"0 {TITLE_HEIGHT * unit:g} {plot.width * unit:g} {plot.height * unit:g}"
    bounds = f' style="min-width:{LEAST * plot.width:.0f}px;max-width:{MOST * plot.width:.0f}px"' if plot.is_hero else ""
    kind = f'xmlns:xlink="http://www.w3.org/1999/xlink" class="figure drawn"{bounds}'
    root = f'<svg {kind} viewBox="{box}" role="img" aria-label="{escape(plot.label)}">'
    return re.sub(r"<svg[^>]*>", lambda _: root, text, count=1, flags=re.DOTALL).strip()


def shown_when_pointed_at(match: re.Match[str]) -> str:
    """A group with a class, and the words that a pointer shows."""
    return f'<g class="{match[1]}">' + (f"<title>{match[2]}</title>" if match[2] else "")


def in_page_colours(match: re.Match[str]) -> str:
    """A colour of paper as the page's variable; any other as it is."""
    name = VARIABLES.get(match[2])
    return f"{match[1]}: var(--{name})" if name else match[0]


VARIABLES = {hue(name): name for name in ("before", "rule", "soft", "ink", "ground", "g", "f", "e", "d", "c", "b", "a")}
"""The page's colours by their digits on paper."""


def mark(kind: str, words: str = "") -> str:
    """The gid of an artist that is to be a class, with words to point at."""
    return f"{MARK} {kind} {words}".rstrip()
