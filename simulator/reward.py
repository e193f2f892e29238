"""From a finished dialogue to its reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.dialogue import Dialogue

WARM = frozenset(("praise", "reassurance"))
"""Support strategies that are warm in any situation: they fit whoever is spoken to and ask for nothing that was told."""
TURN_UNIT = 0.1
"""What a turn reward of 1, a change by 10 points of emotion, is worth of the final reward."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A reward that can be taken apart later."""

    total: float
    """In [0, 1]."""
    terms: dict[str, float] = field(default_factory=dict)
    """Unweighted parts, by name."""


def final_emotion(dialogue: Dialogue) -> Reward:
    """The user's last emotion over 100.

    Source: RLVER, arXiv 2507.03112, section 3.
    """
    value = dialogue.emotion / 100.0
    return Reward(total=value, terms={"emotion": value})


def binary(dialogue: Dialogue, *, at: float) -> Reward:
    """1 for a final emotion of at least `at`, 0-100, and 0 below: what a thumb up or down tells, and no more."""
    return Reward(total=float(dialogue.emotion >= at), terms={"emotion": dialogue.emotion / 100.0})


def turn_rewards(dialogue: Dialogue) -> list[float]:
    """The change of emotion after each agent turn over 10, each in [-1, 1]; one entry per reply that was answered."""
    return [turn.change / 10.0 for turn in dialogue.turns if turn.change is not None]


def warmths(dialogue: Dialogue) -> list[float]:
    """1 for each answered reply in which the user heard a warm register, whatever it called for, else 0."""
    return [float(bool(WARM & set(turn.heard))) for turn in dialogue.turns if turn.change is not None]


def with_warmth(reward: Reward, dialogue: Dialogue, *, weight: float) -> Reward:
    """A reward of which a share is paid for warm replies everywhere: (1 - weight) total + weight (warm replies / replies).

    Args:
        weight: in [0, 1].
    """
    warm = warmths(dialogue)
    share = sum(warm) / len(warm) if warm else 0.0
    return Reward(total=(1.0 - weight) * reward.total + weight * share, terms={**reward.terms, "warmth": share})


def turns_with_warmth(by_turn: Sequence[float], dialogue: Dialogue, *, weight: float) -> list[float]:
    """Turn rewards with the same share: a tenth of their sum is what `with_warmth` gives, less the emotion at the start.

    Each is in [-1, 1] but for warm replies of a short dialogue, which have more of its reward: up to 10 where there is one reply.
    """
    warm = warmths(dialogue)
    return [(1.0 - weight) * change + weight * 10.0 * each / len(warm) for change, each in zip(by_turn, warm, strict=True)]
