"""Dialogues that end because their context is full: from when on that is told, and whose words filled it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CUT_SHORT = "truncated"
"""The outcome of such a dialogue."""
MOST_CUT_SHORT = 0.1
"""Share of the dialogues from which on it is told: their scores are those of the users' first moods."""

Said = Sequence[tuple[str, str]]
"""A dialogue's turns: who spoke, `agent` or `user`, and the text."""


@dataclass(frozen=True, kw_only=True)
class CutShort:
    """How many of some dialogues were cut short, and by whom."""

    share: float
    """Of all dialogues, [0, 1]; NaN of none."""
    by_user: float
    """Of the characters said in those that were cut short, the user's share, [0, 1]; NaN where none was."""
    replies: float
    """Replies of the agent in one that was cut short, mean; NaN where none was."""

    @classmethod
    def of(cls, dialogues: Iterable[tuple[str, Said]]) -> CutShort:
        """Of dialogues, each its outcome and its turns; those that broke are the caller's to leave out."""
        ended = list(dialogues)
        cut = [said for outcome, said in ended if outcome == CUT_SHORT]
        num_replies = sum(speaker == "agent" for said in cut for speaker, _ in said)
        return cls(
            share=len(cut) / len(ended) if ended else float("nan"),
            by_user=user_share([turn for said in cut for turn in said]),
            replies=num_replies / len(cut) if cut else float("nan"),
        )

    @property
    def is_much(self) -> bool:
        """Whether it is to be told."""
        return self.share >= MOST_CUT_SHORT

    def words(self, *, context: str, reply: str) -> str:
        """What happened, to whom it is due, and what to set.

        Args:
            context: the setting that bounds a dialogue's tokens, with its value.
            reply: the one that bounds a reply's, with its value.
        """
        ended = f"cut short after {self.replies:.1f} replies on average, as no further one fits into {context}"
        if self.by_user >= 0.5:
            return f"{ended}: {self.by_user:.0%} of what was said are the user's words; raise {context.partition('=')[0]}"
        said = f"{1.0 - self.by_user:.0%} of what was said are the agent's own replies, each up to {reply}"
        return f"{ended}: {said}; raise {context.partition('=')[0]} or lower {reply.partition('=')[0]}"


def user_share(said: Said) -> float:
    """The user's share of the characters; NaN where nothing was said."""
    lengths = [len(text) for _, text in said]
    of_user = sum(length for length, (speaker, _) in zip(lengths, said, strict=True) if speaker == "user")
    return of_user / sum(lengths) if sum(lengths) else float("nan")
