"""The score of an agent at a given length of its replies, from the line that its evaluation fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Z = 1.959964
"""Half the width of a 95 % interval in standard errors."""


def score_at(line: Mapping[str, Any], words: float) -> dict[str, float]:
    """The length-controlled score at so many words a reply, 0-100, with its 95 % interval.

    Args:
        line: `intercept` and `slope` of final emotion over log2 of the words, and their `covariance`, [2, 2].
    """
    at = np.array([1.0, math.log2(words)])
    value = float(at @ [line["intercept"], line["slope"]])
    error = math.sqrt(max(0.0, float(at @ np.array(line["covariance"]) @ at)))
    return {
        name: min(100.0, max(0.0, bound)) for name, bound in (("value", value), ("low", value - Z * error), ("high", value + Z * error))
    }
