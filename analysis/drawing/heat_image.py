"""A map of numbers as a PNG, for dashboards that show pictures and no drawings."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from analysis.drawing.hues import blue

CELL_HEIGHT, MOST_CELL, LEAST_CELL = 26, 38, 14
"""Pixels."""
LEFT, TOP, RIGHT, BOTTOM = 110, 34, 20, 50
"""Margins in pixels; the left one is wider where a row's name needs it."""
COLOURS = 256
"""A map has few besides the soft edges of its letters; a palette of them takes a quarter of the bytes."""
WIDTH = 900
"""Of the map without its margins, at most, where cells may be narrower."""
GROUND, INK, SOFT = "#ffffff", "#1b1f24", "#5c6570"


class Picture(NamedTuple):
    """An image as a dashboard takes it."""

    png: bytes
    width: int
    height: int


def heat_image(
    values: Mapping[tuple[str, str], float],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str,
    x_label: str,
    low: float,
    high: float,
    form: str = "{:.0f}",
) -> Picture:
    """Dark where numbers are high, each with its number where there is room; white where nothing was measured.

    Args:
        values: by row and column.
        low, high: values of the palest and of the darkest colour, low < high.
    """
    wide = max(min(WIDTH // max(len(columns), 1), MOST_CELL), LEAST_CELL)
    font, small = ImageFont.load_default(size=13), ImageFont.load_default(size=11)
    left = max(LEFT, *(math.ceil(font.getlength(row)) + 16 for row in rows))
    size = (left + wide * len(columns) + RIGHT, TOP + CELL_HEIGHT * len(rows) + BOTTOM)
    image = Image.new("RGB", (max(size[0], left + 300), size[1]), GROUND)
    draw = ImageDraw.Draw(image)
    draw.text((left, TOP / 2), title, fill=INK, font=ImageFont.load_default(size=14), anchor="lm")
    for i, row in enumerate(rows):
        middle = TOP + CELL_HEIGHT * (i + 0.5)
        draw.text((left - 8, middle), row, fill=SOFT, font=font, anchor="rm")
        for j, column in enumerate(columns):
            value = values.get((row, column))
            if value is None:
                continue
            share = min(max((value - low) / (high - low), 0.0), 1.0)
            x, y = left + wide * j, TOP + CELL_HEIGHT * i
            draw.rectangle((x, y, x + wide - 2, y + CELL_HEIGHT - 2), fill=blue(share))
            if wide >= 34:
                draw.text((x + wide / 2, middle), form.format(value), fill=GROUND if share > 0.55 else INK, font=small, anchor="mm")
    bottom = TOP + CELL_HEIGHT * len(rows)
    every = -(-44 // wide)
    for j, column in enumerate(columns):
        if j % every == 0:
            draw.text((left + wide * (j + 0.5), bottom + 6), column, fill=SOFT, font=small, anchor="mt")
    draw.text((left + wide * len(columns), bottom + 28), x_label, fill=SOFT, font=small, anchor="rt")
    stream = io.BytesIO()
    image.quantize(COLOURS).save(stream, format="PNG", optimize=True)
    return Picture(stream.getvalue(), *image.size)
