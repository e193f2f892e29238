"""How a reply is worded: a small learned reader that weighs pieces of one and two characters by hashed buckets.

No text is kept, only a figure for each bucket; which pieces of a reply weighed most can be told all the same, because the reply is at hand.
Source: the hashing of features is Weinberger et al., arXiv 0902.2206; the weights are fitted by `python -m simulator fit`.
"""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.ears import MAX_READ
from simulator.seen import as_seen

Floats = NDArray[np.float64]

NUM_BUCKETS = 4096
STEP = 0.001
"""Unit in which weights are stored."""
STORED = np.dtype("<i2")


@dataclass(frozen=True, kw_only=True)
class Wording:
    """What each bucket adds to a score, per unit of its share in a reply."""

    weights: Floats
    """[NUM_BUCKETS]"""
    offset: float
    """What the wording of an ordinary reply comes to, taken off."""

    @classmethod
    def silent(cls) -> Wording:
        """One to which all wording is the same."""
        return cls(weights=np.zeros(NUM_BUCKETS), offset=0.0)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Wording:
        """Reads what `to_dict` wrote."""
        steps = np.frombuffer(base64.b64decode(stored["weights"]), STORED)
        return cls(weights=steps.astype(np.float64) * STEP, offset=stored["offset"])

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record: weights as whole multiples of STEP, 16 bits each, little-endian, in base64."""
        steps = np.clip(np.round(self.weights / STEP), np.iinfo(STORED).min, np.iinfo(STORED).max)
        return {"offset": self.offset, "weights": base64.b64encode(steps.astype(STORED).tobytes()).decode("ascii")}

    def adds(self, reply: str) -> float:
        """What a reply's wording adds to its score."""
        weights = self._plain
        return sum(weights[bucket] * share for bucket, share in shares(reply).items()) - self.offset

    def strongest(self, reply: str, most: int) -> dict[str, float]:
        """The pieces of a reply whose buckets add or take most, with what these do; pieces of one bucket stand together."""
        share, named = shares(reply), dict[int, list[str]]()
        for piece in dict.fromkeys(pieces(reply)):
            named.setdefault(bucket_of(piece), []).append(piece)
        added = {"/".join(named[bucket]): self._plain[bucket] * share[bucket] for bucket in named}
        return {piece: added[piece] for piece in sorted(added, key=lambda piece: -abs(added[piece]))[:most]}

    @cached_property
    def _plain(self) -> Sequence[float]:
        """The weights as Python's own numbers, which are looked up faster one by one."""
        return [float(weight) for weight in self.weights]


def pieces(text: str) -> Iterator[str]:
    """Every character, and every pair of neighbours; spaces do not count."""
    seen = re.sub(r"\s", "", as_seen(text).lower())[:MAX_READ]
    yield from seen
    yield from map("".join, pairwise(seen))


@lru_cache(maxsize=1 << 17)
def bucket_of(piece: str) -> int:
    """The same in every process."""
    return zlib.crc32(piece.encode("utf-8", "surrogatepass")) % NUM_BUCKETS


@lru_cache(maxsize=4096)
def shares(text: str) -> Mapping[int, float]:
    """By bucket its share in a text: logarithms of counts, scaled to length 1 so that a longer text weighs no more."""
    counts = Counter(map(bucket_of, pieces(text)))
    size = math.sqrt(sum(math.log1p(count) ** 2 for count in counts.values()))
    return {bucket: math.log1p(count) / size for bucket, count in counts.items()}
