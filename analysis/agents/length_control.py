"""The score of an agent at a given length of its replies, from the line that its evaluation fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Z = 1.959964
"""Half the width of a 95 % interval in standard errors."""


def score_within(found: Mapping[str, Any], words: float) -> dict[str, float] | None:
    """`score_at`, but None where the agent does not speak at such length: nothing is known of what it would say.

    Args:
        found: `length` of an `agent.json`. One without `range` is of a version that fitted dialogues, where failing made replies long.
    """
    line, spoken = found.get("line"), found.get("range")
    return score_at(line, words) if line and spoken and spoken[0] <= words <= spoken[1] else None


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
