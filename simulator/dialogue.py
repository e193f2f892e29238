"""Dialogues: turns with the emotions that they cause, the ways in which one can end, and the contract of a simulated user."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

from simulator.reading import Reading
from simulator.scenario import Difficulty, Fact, Scenario

START_EMOTION = 40
"""SAGE's starting emotion; RLVER trains from 30."""
DELIGHTED_AT = 100
RELIEVED_AT = 70
"""Emotion from which a user can be left alone: SAGE's highest band."""
LEFT_BELOW = 10


class Speaker(StrEnum):
    """The speaker of a turn."""

    USER = "user"
    AGENT = "agent"


class Outcome(StrEnum):
    """How a dialogue ended."""

    DELIGHTED = "delighted"
    """Emotion reached 100."""
    LEFT = "left"
    """Emotion fell below 10."""
    FAREWELL = "farewell"
    MAX_TURNS = "max_turns"
    TRUNCATED = "truncated"
    """The agent ran out of tokens."""
    ERROR = "error"
    """An exception; such a dialogue enters no reward and no baseline."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One utterance. The user's feelings about a reply belong to the user's turn that answers it."""

    speaker: Speaker
    text: str
    emotion: int | None = None
    """0-100 after this turn; None on agent turns."""
    change: int | None = None
    """Points gained or lost through the agent's last reply; None on agent turns and on the opening."""
    thought: str = ""
    """Why the emotion changed, in the user's words."""
    heard: tuple[str, ...] = ()
    """Support strategies the user heard in the agent's last reply."""
    reading: Reading | None = None
    """What the listener understood of the agent's last reply; None where the lexicon alone heard it, and of other users."""
    suspicion: tuple[str, ...] = ()
    """Kinds of attempts, in the agent's last reply, to address the model behind the user (`simulator/llm/prompts.py`)."""
    goodbye: bool = False
    """The model that plays the user declared these words its last."""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record without empty fields other than the text; `from_dict` reads it."""
        record = {**vars(self), "speaker": self.speaker.value, "heard": list(self.heard), "suspicion": list(self.suspicion)}
        record["reading"] = self.reading and self.reading.to_dict()
        return {key: value for key, value in record.items() if key == "text" or (value is not False and value not in (None, "", []))}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Turn:
        """The inverse of `to_dict`."""
        lists = {name: tuple(record.get(name, ())) for name in ("heard", "suspicion")}
        reading = Reading.from_dict(record["reading"]) if record.get("reading") else None
        return cls(**{**record, "speaker": Speaker(record["speaker"]), "reading": reading, **lists})


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A conversation so far. Immutable: `then` returns a longer one."""

    scenario: Scenario
    difficulty: Difficulty
    seed: int
    """Decides all random choices of a simulated user (which phrase, which fact next)."""
    turns: tuple[Turn, ...] = ()
    outcome: Outcome | None = None
    """None while the conversation goes on."""
    error: str = ""
    """The traceback of an ERROR dialogue."""

    def then(self, *turns: Turn, outcome: Outcome | None = None, error: str = "") -> Dialogue:
        """This dialogue with further turns, and perhaps its end."""
        # Written out: `replace` takes three times as long, and is called for every turn.
        return Dialogue(
            scenario=self.scenario, difficulty=self.difficulty, seed=self.seed, turns=self.turns + turns, outcome=outcome, error=error
        )

    @property
    def emotion(self) -> int:
        """The user's latest emotion, 0-100."""
        return next((turn.emotion for turn in reversed(self.turns) if turn.emotion is not None), START_EMOTION)

    @cached_property
    def num_replies(self) -> int:
        """Agent turns so far."""
        return sum(turn.speaker is Speaker.AGENT for turn in self.turns)

    def replies(self) -> list[str]:
        """The agent's words, in order."""
        return [turn.text for turn in self.turns if turn.speaker is Speaker.AGENT]

    def said(self) -> list[str]:
        """The user's words, in order."""
        return [turn.text for turn in self.turns if turn.speaker is Speaker.USER]

    def readings(self) -> list[Reading | None]:
        """Of the answered replies, in order; None where the lexicon alone heard them."""
        return [turn.reading for turn in self.turns[2::2]]

    def answered(self) -> Iterator[tuple[Dialogue, str, Turn]]:
        """Each answered reply with the dialogue before it and the answer."""
        for index, turn in enumerate(self.turns[:-1]):
            if turn.speaker is Speaker.AGENT:
                yield replace(self, turns=self.turns[:index], outcome=None), turn.text, self.turns[index + 1]

    def require_feelings(self) -> None:
        """Raises unless the turns alternate, the user's first, and each of the user's has an emotion.

        Raises:
            ValueError: with the number of the turn.
        """
        if not self.turns:
            raise ValueError("turns must begin with the user's opening, got none")
        for number, turn in enumerate(self.turns, start=1):
            due = (Speaker.AGENT, Speaker.USER)[number % 2]
            if turn.speaker is not due:
                raise ValueError(f"turn {number} must be the {due}'s, got one of the {turn.speaker}")
            if due is Speaker.USER and (turn.emotion is None or (turn.change is None and number > 1)):
                raise ValueError(f"turn {number} must hold an emotion{' and a change' if number > 1 else ''}, got neither or one of them")

    @cached_property
    def story(self) -> Scenario:
        """The scenario with its facts; one without a list has the user's turns for facts, named by their first clauses."""
        if self.scenario.facts:
            return self.scenario
        clauses = re.compile(r"[,.;:!?，。；：！？…\n]")
        said = [text for text in self.said() if text.strip()]
        facts = [Fact(text=text, cue=next(filter(None, map(str.strip, clauses.split(text))), text)) for text in said]
        return replace(self.scenario, facts=tuple(facts))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record that names its scenario by id."""
        return {
            "scenario_id": self.scenario.scenario_id,
            "family": str(self.scenario.family),
            "hidden_intention": self.scenario.hidden_intention,
            "difficulty": self.difficulty.to_dict(),
            "seed": self.seed,
            "outcome": None if self.outcome is None else self.outcome.value,
            "emotion": self.emotion,
            "error": self.error,
            "turns": [turn.to_dict() for turn in self.turns],
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any], *, scenario: Scenario) -> Dialogue:
        """The inverse of `to_dict`; further keys are ignored.

        Args:
            scenario: the one the record names.

        Raises:
            ValueError: a field has an impossible value.
        """
        if scenario.scenario_id != record["scenario_id"]:
            raise ValueError(f"scenario must be {record['scenario_id']!r}, as the record says, got {scenario.scenario_id!r}")
        return cls(
            scenario=scenario,
            difficulty=Difficulty(**record["difficulty"]),
            seed=record["seed"],
            turns=tuple(Turn.from_dict(turn) for turn in record["turns"]),
            outcome=None if record["outcome"] is None else Outcome(record["outcome"]),
            error=record["error"],
        )

    def messages(self) -> list[dict[str, str]]:
        """The conversation as the agent sees it: chat messages with roles `user` and `assistant`."""
        role = {Speaker.USER: "user", Speaker.AGENT: "assistant"}
        return [{"role": role[turn.speaker], "content": turn.text} for turn in self.turns]


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """The user's next turn, and the dialogue's outcome if it ends."""

    turn: Turn
    outcome: Outcome | None = None


class UserSimulator(Protocol):
    """A simulated user without hidden state: the dialogue holds everything, so a reaction can be recomputed from a transcript.

    Implementations may await a model; an exception makes the dialogue an ERROR, never a score of 0. A ConnectionError, a TimeoutError or a
    `simulator.llm.client.SimulatorAwayError` means that the simulator cannot be reached, so the same question may be asked again.
    """

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue that holds the user's opening turn."""
        ...

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer to `reply`, which is not yet in `dialogue.turns`."""
        ...


class Listener(Protocol):
    """Understands replies. It holds no state of a dialogue, so a reading can be recomputed from a transcript."""

    def read(self, dialogue: Dialogue, reply: str) -> Reading:
        """The reading of a reply that is not yet in `dialogue.turns`."""
        ...

    async def hear(self, dialogue: Dialogue, reply: str) -> Reading:
        """`read` on an event loop, where others may be waiting."""
        ...

    def counts(self) -> dict[str, float]:
        """Totals of usage since it was built, which only grow."""
        ...


@runtime_checkable
class Counts(Protocol):
    """A user that counts its usage."""

    def counts(self) -> dict[str, float]:
        """Totals since it was built, which only grow."""
        ...
