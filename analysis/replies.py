"""What an agent's replies in a dialogue come to: how many, how long, and what the user heard in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from simulator.dialogue import Speaker

UNDERSTANDING = frozenset(("reflection", "listening", "guided_reflection", "motives", "both_sides"))
ACTING = frozenset(("suggestion", "information", "referral"))
"""Support strategies that give empathy and insight, and those that give something to do."""


class Replies(NamedTuple):
    """Counts of one dialogue."""

    num: int
    """Replies of the agent."""
    words: int
    """Words in them."""
    answered: int
    """Replies that the user reacted to."""
    understanding: int
    """Of these, how many in which a strategy of `UNDERSTANDING` was heard."""
    acting: int
    """Of these, how many in which one of `ACTING` was heard."""


def replies_in(line: Mapping[str, Any]) -> Replies:
    """The counts of a recorded dialogue.

    Raises:
        KeyError: it has no turns.
    """
    lengths = [len(turn["text"].split()) for turn in line["turns"] if turn["speaker"] == Speaker.AGENT]
    # A recorded turn leaves out what is empty: the opening has no change, and a reply in which nothing was heard has no `heard`.
    heard = [set(turn.get("heard", ())) for turn in line["turns"] if turn.get("change") is not None]
    return Replies(
        num=len(lengths),
        words=sum(lengths),
        answered=len(heard),
        understanding=sum(bool(UNDERSTANDING & each) for each in heard),
        acting=sum(bool(ACTING & each) for each in heard),
    )
