"""The inner steps of a user as one text that a person can read and a program can take apart again."""

from __future__ import annotations

from dataclasses import dataclass, fields

INDENT = "\n  "
"""How a step goes on in a further line; a label always starts one."""


@dataclass(frozen=True, kw_only=True)
class Thought:
    """Four of the five steps from a reply to a change of emotion; the fifth, the change itself, is a number of its own.

    Source: SAGE, arXiv 2505.02847, whose `planning` holds the same steps.
    """

    says: str
    """What the reply wants to say."""
    meets: str
    """How far it meets the goal and the hidden intention."""
    inner: str
    """What goes on in the user."""
    feeling: str
    """How the user feels about it."""

    def to_text(self) -> str:
        """A labelled line for each step; `parse` reads it back, line breaks inside the steps included."""
        return "\n".join(f"{step.name}: {getattr(self, step.name)}".replace("\n", INDENT) for step in fields(self))

    @classmethod
    def parse(cls, text: str) -> Thought | None:
        """What `to_text` wrote; None for a thought of another form, such as an embedded user's."""
        steps = text.replace(INDENT, "\0").split("\n")
        names = [step.name for step in fields(cls)]
        if len(steps) != len(names) or not all(step.startswith(f"{name}: ") for step, name in zip(steps, names, strict=True)):
            return None
        return cls(**{name: step[len(name) + 2 :].replace("\0", "\n") for step, name in zip(steps, names, strict=True)})
