"""Numbers of a command line."""

from __future__ import annotations

import argparse
import math


def finite(text: str) -> float:
    """A number that an option can mean: `float` takes nan and inf as well, which pass every bound or none.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}")
    return value
