"""An evaluation's dialogues as they are measured: every answered reply with what was heard in it, read again by the embedded reader.

The embedded reader hears support strategies, facts taken up and repetition in any dialogue, whoever played the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from experiments.agents.players import Played
from simulator.dialogue import Outcome, Speaker
from simulator.emotion import EXPLORING, PUZZLED_BELOW, REPEATED_AT, Appraisal, Skill, hint_in, meets
from simulator.explain import appraisals
from simulator.listener import Register


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One reply that was answered."""

    played: Played
    dialogue: int
    """Number of its dialogue."""
    number: int
    """From 1: which of the dialogue's replies."""
    appraisal: Appraisal
    change: int
    """Points that it moved the user."""
    was_hinted: bool
    """The user had hinted at its wish, or is one who never hints: users of native profiles have no lines for that."""

    @property
    def scenario_id(self) -> str:
        """Whom it was said to."""
        return self.played.task.scenario_id

    @property
    def moves(self) -> frozenset[str]:
        """Support strategies heard in it."""
        return frozenset(self.appraisal.reading.strategies)

    @property
    def fits(self) -> bool:
        """It does what the wish wants."""
        return bool(meets(self.played.dialogue.scenario.family) & self.moves)

    @property
    def explores(self) -> bool:
        """One of the first two replies, which asks or restates instead of trying: right before anything is known."""
        return self.number <= 2 and bool(EXPLORING & self.moves) and not self.fits

    @property
    def sound(self) -> float:
        """How much of it could be followed, [0, 1]; 0 for one that repeats an earlier reply or says too much at once."""
        reading = self.appraisal.reading
        return 0.0 if reading.similarity >= REPEATED_AT or self.appraisal.scattered else reading.clarity

    @property
    def is_clear(self) -> bool:
        """Whether a listener would follow it."""
        return self.appraisal.reading.clarity >= PUZZLED_BELOW

    @property
    def only_veiled(self) -> bool:
        """The wish had only shone through."""
        return self.appraisal.shown[Skill.HINTS] is not None


def answered(played: Sequence[Played], register: Register) -> list[Answered]:
    """Every answered reply of the dialogues that did not break, in the order of their uids."""
    found: list[Answered] = []
    for place, one in enumerate(sound_ones(played)):
        users = [turn for turn in one.dialogue.turns if turn.speaker is Speaker.USER]
        hinted = not one.dialogue.scenario.facts
        for number, (appraisal, user, answer) in enumerate(
            zip(appraisals(one.dialogue, register=register), users, users[1:], strict=False)
        ):
            hinted = hinted or hint_in(user.text) is not None
            change = answer.change or 0
            found.append(Answered(played=one, dialogue=place, number=number + 1, appraisal=appraisal, change=change, was_hinted=hinted))
    return found


def sound_ones(played: Iterable[Played]) -> list[Played]:
    """The dialogues that did not break, in an order that does not depend on which ended first."""
    alive = [one for one in played if one.dialogue.outcome is not Outcome.ERROR]
    return sorted(alive, key=lambda one: (one.task.uid, one.sibling))
