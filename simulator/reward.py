"""From a finished dialogue to its reward."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.dialogue import Dialogue


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


def turn_rewards(dialogue: Dialogue) -> list[float]:
    """The change of emotion after each agent turn over 10, each in [-1, 1]; one entry per reply that was answered."""
    return [turn.change / 10.0 for turn in dialogue.turns if turn.change is not None]
