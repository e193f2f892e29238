"""How much users repeat what users have said before: lines word for word the same as one of an earlier dialogue.

A line is all that a user says in a turn. Openings are given by the scenario and farewells (the line with which a user leaves or parts
delighted) are few by nature; both are counted apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.dialogue import Dialogue, Outcome, Speaker

FAREWELLS = (Outcome.DELIGHTED, Outcome.LEFT, Outcome.FAREWELL)


@dataclass(frozen=True, kw_only=True)
class Sameness:
    """Lines by kind, and how many of each had been said in an earlier dialogue; those said before in the same dialogue are separate."""

    num_lines: int
    """Without openings and farewells."""
    num_said_before: int
    num_repeated: int
    """Said before in the same dialogue."""
    num_openings: int
    num_openings_before: int
    num_farewells: int
    num_farewells_before: int

    @property
    def share(self) -> float:
        """Share of the lines that had been said before, [0, 1]; NaN without lines."""
        return self.num_said_before / self.num_lines if self.num_lines else float("nan")

    def lines(self) -> list[str]:
        """In words."""
        return [
            f"lines that an earlier dialogue had, word for word: {self.num_said_before} of {self.num_lines} ({100 * self.share:.1f} %), "
            f"besides openings ({self.num_openings_before} of {self.num_openings}) "
            f"and farewells ({self.num_farewells_before} of {self.num_farewells})",
            f"lines that the same dialogue had before: {self.num_repeated}",
        ]


def sameness(dialogues: Iterable[Dialogue]) -> Sameness:
    """Counts over dialogues in their order: of a line that occurs n times in different dialogues n - 1 had been said before."""
    known: set[str] = set()
    counts = dict.fromkeys(Sameness.__dataclass_fields__, 0)
    for dialogue in dialogues:
        own: set[str] = set()
        turns = [turn for turn in dialogue.turns if turn.speaker is Speaker.USER]
        for number, turn in enumerate(turns):
            is_last = number == len(turns) - 1 and number > 0
            kind = "openings" if number == 0 else "farewells" if is_last and dialogue.outcome in FAREWELLS else "lines"
            counts[f"num_{kind}"] += 1
            before = {"openings": "num_openings_before", "farewells": "num_farewells_before", "lines": "num_said_before"}[kind]
            counts[before] += turn.text in known
            counts["num_repeated"] += turn.text in own
            own.add(turn.text)
        known |= own
    return Sameness(**counts)
