"""A reward term for a warm register, whatever the situation."""

from __future__ import annotations

from simulator.dialogue import Dialogue
from simulator.reward import RewardTerm

WARM = frozenset(("praise", "reassurance"))
"""Support strategies that are warm in any situation: they fit any user and ask for nothing that was told."""


def warm_replies(dialogue: Dialogue) -> list[float]:
    """1 for each answered reply in which the user heard a warm register, whatever it called for, else 0.

    Of users who name no strategies that they heard, none is warm.
    """
    return [float(bool(WARM & set(turn.heard))) for turn in dialogue.turns if turn.change is not None]


def share(dialogue: Dialogue) -> float:
    """Warm replies of all replies, [0, 1]; 0 without a reply."""
    warm = warm_replies(dialogue)
    return sum(warm) / len(warm) if warm else 0.0


def by_turn(dialogue: Dialogue) -> list[float]:
    """By reply, so that a tenth of the sum is the share: up to 10 where there is one reply."""
    warm = warm_replies(dialogue)
    return [10.0 * each / len(warm) for each in warm]


WARMTH = RewardTerm(score=share, by_turn=by_turn)
