"""From a finished dialogue to its reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulator.dialogue import Dialogue

TURN_UNIT = 0.1
"""Share of the final reward that equals a turn reward of 1, a change by 10 points of emotion."""


@dataclass(frozen=True, kw_only=True)
class Reward:
    """A reward with its terms."""

    total: float
    """In [0, 1]."""
    terms: dict[str, float] = field(default_factory=dict)
    """Unweighted parts, by name."""


def final_emotion(dialogue: Dialogue, *, binary_at: float = 0.0) -> Reward:
    """The user's last emotion over 100; with `binary_at`, 0-100, 1 from that emotion on and 0 below.

    Source: RLVER, arXiv 2507.03112, section 3.
    """
    value = dialogue.emotion / 100.0
    return Reward(total=float(dialogue.emotion >= binary_at) if binary_at else value, terms={"emotion": value})


def turn_rewards(dialogue: Dialogue) -> list[float]:
    """The change of emotion after each agent turn over 10, each in [-1, 1]; one entry per reply that was answered."""
    return [turn.change / 10.0 for turn in dialogue.turns if turn.change is not None]


@dataclass(frozen=True, kw_only=True)
class RewardTerm:
    """A term that may get a share of the reward besides the final emotion (`rollout.reward_terms`)."""

    total: Callable[[Dialogue], float]
    """Of a finished dialogue, in [0, 1]."""
    by_turn: Callable[[Dialogue], Sequence[float]]
    """The part of each answered reply; they sum to `total`."""
    reads_strategies: bool = False
    """It needs the strategies that a user heard (`Turn.heard`), which only the embedded users name."""


REWARD_TERMS: dict[str, RewardTerm] = {}
"""Terms by name; a study registers its own."""
Shares = Sequence[tuple[str, RewardTerm, float]]
"""Names, terms and shares of the reward."""


def with_terms(reward: Reward, dialogue: Dialogue, shares: Shares) -> Reward:
    """A reward shared with other terms: (1 - sum of shares) total + sum of share x term."""
    paid = {name: term.total(dialogue) for name, term, _ in shares}
    rest = 1.0 - sum(share for _, _, share in shares)
    total = rest * reward.total + sum(share * paid[name] for name, _, share in shares)
    return Reward(total=total, terms={**reward.terms, **paid})


def turns_with_terms(by_turn: Sequence[float], dialogue: Dialogue, shares: Shares) -> list[float]:
    """Turn rewards with the same shares: a tenth of their sum is the total of `with_terms`, less the emotion at the start.

    Each is in [-1, 1], but a term may pay up to 10 in a dialogue of one reply.
    """
    rest = 1.0 - sum(share for _, _, share in shares)
    paid = [rest * change for change in by_turn]
    for _, term, share in shares:
        paid = [sofar + share / TURN_UNIT * part for sofar, part in zip(paid, term.by_turn(dialogue), strict=True)]
    return paid
