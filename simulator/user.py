"""The contract of a simulated user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from simulator.dialogue import Dialogue, Outcome, Turn
from simulator.scenario import Difficulty, Scenario


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """The user's next turn, and the dialogue's outcome if it ends."""

    turn: Turn
    outcome: Outcome | None = None


class UserSimulator(Protocol):
    """A user without hidden state: the dialogue holds everything, so a reaction can be recomputed from a transcript.

    Implementations may await a model; an exception makes the dialogue an ERROR, never a score of 0. A ConnectionError, a TimeoutError or a
    `simulator.llm.client.SimulatorAwayError` means that the simulator cannot be reached, so the same question may be asked again.
    """

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue that holds the user's opening turn."""
        ...

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer to `reply`, which is not yet in `dialogue.turns`."""
        ...


@runtime_checkable
class Counts(Protocol):
    """A user that counts its usage."""

    def counts(self) -> dict[str, float]:
        """Totals since it was built, which only grow."""
        ...
