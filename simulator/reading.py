"""What a listener understood of a reply: all that the emotion rule asks about its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DOUBTED_BELOW = 0.6
"""Sincerity below which a reply is doubted: it is worth at most 0, its moves count for no later one, and the user says so."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reply as it was understood in the light of the conversation before it."""

    strategies: tuple[str, ...] = ()
    """Support strategies, each once."""
    cues: tuple[int, ...] = ()
    """Indices of the facts that the reply takes up."""
    clarity: float = 1.0
    """Share of the reply that makes sense here, in [0, 1]."""
    sincerity: float = 1.0
    """Probability that it is meant and makes sense, in [0, 1]; the rest counts as nonsense."""
    contempt: tuple[str, ...] = ()
    """Kinds of contempt, irony among them, each once."""
    ties_back: bool | None = None
    """Whether it comes back to something told before the turn that it answers; None where that is to be told from the facts taken up."""
    echo: bool = False
    """Mostly the user's own sentences; it shows no strategy and takes up no fact."""
    dropped: tuple[int, ...] = ()
    """Indices of facts that the reply names without saying anything about them."""

    def __post_init__(self) -> None:
        if not (0.0 <= self.clarity <= 1.0 and 0.0 <= self.sincerity <= 1.0):  # nor NaN, which would please
            raise ValueError(f"clarity and sincerity must be in [0, 1], got {self.clarity!r} and {self.sincerity!r}")

    @property
    def is_doubted(self) -> bool:
        """It may not be meant."""
        return self.sincerity < DOUBTED_BELOW

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record of the clarity and whatever else is not the default; `from_dict` reads it."""
        record, default = {name: getattr(self, name) for name in Reading.__dataclass_fields__}, vars(Reading())
        told = {name: value for name, value in record.items() if name == "clarity" or value != default[name]}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Reading:
        """The inverse of `to_dict`."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
        return cls(**values)
