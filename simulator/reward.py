"""From a finished dialogue to its reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.dialogue import Dialogue

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


@dataclass(frozen=True, kw_only=True)
class RewardTerm:
    """A part of the reward beside the user's emotion. Functions of a module, so that rollout workers can import them."""

    score: Callable[[Dialogue], float]
    """In [0, 1], of a finished dialogue."""
    by_turn: Callable[[Dialogue], list[float]]
    """The same by reply, for credit by turn: one entry per reply that was answered, a tenth of whose sum is the score."""


REWARD_TERMS: dict[str, RewardTerm] = {}
"""By the name that `rollout.reward_terms` has; a study registers its own."""


def with_terms(reward: Reward, by_turn: Sequence[float], dialogue: Dialogue, shares: Mapping[str, float]) -> tuple[Reward, list[float]]:
    """A reward, and turn rewards, of which terms of these names take their shares and the user's emotion the rest.

    Args:
        shares: by term, in [0, 1], in all at most 1.
    """
    rest = 1.0 - sum(shares.values())
    total, turns, terms = rest * reward.total, [rest * change for change in by_turn], dict(reward.terms)
    for name, share in shares.items():
        terms[name] = REWARD_TERMS[name].score(dialogue)
        total += share * terms[name]
        turns = [turn + share * each for turn, each in zip(turns, REWARD_TERMS[name].by_turn(dialogue), strict=True)]
    return Reward(total=total, terms=terms), turns
