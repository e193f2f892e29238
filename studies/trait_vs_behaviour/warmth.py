"""A reward for a warm register everywhere, whatever the situation calls for."""

from __future__ import annotations

from simulator.dialogue import Dialogue
from simulator.reward import RewardTerm

WARM = frozenset(("praise", "reassurance"))
"""Support strategies that are warm in any situation: they fit whoever is spoken to and ask for nothing that was told."""


def warmths(dialogue: Dialogue) -> list[float]:
    """1 for each answered reply in which the user heard a warm register, whatever it called for, else 0."""
    return [float(bool(WARM & set(turn.heard))) for turn in dialogue.turns if turn.change is not None]


def warm_share(dialogue: Dialogue) -> float:
    """Share of the answered replies that were warm; 0 without an answer."""
    warm = warmths(dialogue)
    return sum(warm) / len(warm) if warm else 0.0


def warm_parts(dialogue: Dialogue) -> list[float]:
    """What each answered reply has of the share."""
    warm = warmths(dialogue)
    return [each / len(warm) for each in warm]


WARMTH = RewardTerm(total=warm_share, by_turn=warm_parts, reads_strategies=True)
