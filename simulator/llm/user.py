"""The SAGE user: a model behind an OpenAI-compatible endpoint that judges each reply in five steps, feels, and answers.

Source: SAGE, arXiv 2505.02847; RLVER, arXiv 2507.03112, trains against it. The prompts are our own (`simulator/prompts/`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, RELIEVED_AT, START_EMOTION, Dialogue, Outcome, Reaction, Speaker, Turn
from simulator.emotion import MAX_CHANGE
from simulator.llm.client import Endpoints, Question
from simulator.llm.config import ServedConfig
from simulator.llm.prompts import (
    Felt,
    Thought,
    conversation,
    messages_of,
    object_of,
    prompts,
    quoted,
    read_said,
    read_words,
    suspicions,
)
from simulator.scenario import Difficulty, Scenario
from simulator.settings import USER_SETTINGS

T = TypeVar("T")
WILLING_FROM = 40
"""Emotion from which the prompts call the user willing to talk."""


@dataclass(config=USER_SETTINGS, kw_only=True)
class LLMUserConfig(ServedConfig):
    """Settings of a user played by a model."""

    start_emotion: int = Field(default=START_EMOTION, ge=LEFT_BELOW, lt=DELIGHTED_AT)
    """Emotion at the opening, 10-99: 40 in SAGE, 30 in RLVER's training."""
    one_call: bool = False
    """Ask for the judgement and the user's next words in one call instead of two: about half the price, but the words ignore a clipped
    change."""
    max_chars: int = Field(default=0, ge=0)
    """>= 0: longest text that the schema allows, for servers that enforce it; 0 sets no limit."""
    profiles: str = ""
    """File of SAGE or RLVER profiles for training, instead of the built-in world; requires `heldout_profiles`."""
    heldout_profiles: str = ""
    """File of profiles for evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.profiles) != bool(self.heldout_profiles):
            got = f"got {self.profiles!r} and {self.heldout_profiles!r}"
            raise ValueError(f"simulator.profiles and simulator.heldout_profiles must be set together, {got}")


class LLMUser:
    """A `UserSimulator` played by a model. Building it calls no server.

    Raises:
        ValueError: the key's environment variable is not set.
    """

    def __init__(self, config: LLMUserConfig) -> None:
        self.config = config
        self.endpoints = Endpoints(config)
        self._num_clipped = 0
        self._text = {"type": "string", **({"maxLength": config.max_chars} if config.max_chars else {})}
        # The user thinks before it speaks.
        self._answered = {"plan": self._text, "reply": self._text, "goodbye": {"type": "boolean"}}

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue with the user's first words: the scenario's, or the model's where it has none.

        Raises:
            ValueError: there are no prompts in the scenario's language.
            SimulatorError: the model gave no usable answer.
        """
        ask = prompts(scenario.language)["ask"]
        dialogue, emotion = Dialogue(scenario=scenario, difficulty=difficulty, seed=seed), self.config.start_emotion
        words = scenario.opening
        if not words:
            text = ask["open"].format(emotion=emotion, manner_of_speech=ask["manner_of_speech"])
            words = await self._ask("open", dialogue, text, {"reply": self._text}, read_words)
        return dialogue.then(Turn(speaker=Speaker.USER, text=words, emotion=emotion))

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer to a reply.

        Raises:
            SimulatorError: the model gave no usable answer.
        """
        words = prompts(dialogue.scenario.language)
        ask, manner = words["ask"], words["ask"]["manner_of_speech"]
        felt, said = await self.judge(dialogue, reply)
        emotion = self.emotion_after(dialogue.emotion, felt)
        outcome = Outcome.DELIGHTED if emotion >= DELIGHTED_AT else Outcome.LEFT if emotion < LEFT_BELOW else None
        if said is None:
            state = outcome or ("high" if emotion >= RELIEVED_AT else "mid" if emotion >= WILLING_FROM else "low")
            asked = ask["reply"].format(
                conversation=conversation(dialogue, reply),
                # The model's words, but the reply may have put them there.
                feeling=quoted(felt.thought.feeling),
                inner=quoted(felt.thought.inner),
                change=emotion - dialogue.emotion,
                emotion=emotion,
                state=words["state"][state],
                manner_of_speech=manner,
            )
            said = await self._ask("reply", dialogue, asked, self._answered, partial(read_said, is_last=outcome is not None))
        text, goodbye = said
        self._num_clipped += felt.was_clipped
        turn = Turn(
            speaker=Speaker.USER,
            text=text,
            emotion=emotion,
            change=emotion - dialogue.emotion,
            thought=felt.thought.to_text(),
            suspicion=suspicions(reply),
            goodbye=goodbye,
        )
        # A farewell is declared by the model, never read off its words. From a user who is willing to talk it counts when it is repeated,
        # or when nothing is said with it.
        is_willing = WILLING_FROM <= emotion < RELIEVED_AT and not dialogue.turns[-1].goodbye and text
        return Reaction(turn=turn, outcome=outcome or (Outcome.FAREWELL if goodbye and not is_willing else None))

    async def judge(self, dialogue: Dialogue, reply: str) -> tuple[Felt, tuple[str, bool] | None]:
        """What a reply does to the user; with one call for each turn also the user's words, and whether they are to be the last.

        Raises:
            SimulatorError: the model gave no usable answer.
        """
        return await self.endpoints.ask(*self.judging(dialogue, reply))

    def judging(self, dialogue: Dialogue, reply: str) -> tuple[Question, Callable[[str], tuple[Felt, tuple[str, bool] | None]]]:
        """The question behind `judge`, and how its answer is read."""
        ask = prompts(dialogue.scenario.language)["ask"]
        text = ask["judge"].format(conversation=conversation(dialogue, reply), emotion=dialogue.emotion)
        # The steps in the order of thinking. An enumeration, because not every server that enforces a schema knows of bounds.
        judged = {step.name: self._text for step in fields(Thought)}
        judged |= {"change": {"type": "integer", "enum": list(range(-MAX_CHANGE, MAX_CHANGE + 1))}}
        if not self.config.one_call:
            return self._question("judge", dialogue, text, judged), lambda answer: (Felt.read(answer), None)

        def read_both(answer: str) -> tuple[Felt, tuple[str, bool]]:
            felt = Felt.read(answer)
            emotion = self.emotion_after(dialogue.emotion, felt)
            return felt, read_said(answer, is_last=not LEFT_BELOW <= emotion < DELIGHTED_AT)

        both = ask["judge_and_reply"].format(judge=text, manner_of_speech=ask["manner_of_speech"])
        return self._question("judge_and_reply", dialogue, both, {**judged, **self._answered}), read_both

    @staticmethod
    def emotion_after(before: int, felt: Felt) -> int:
        """0-100."""
        return max(0, min(DELIGHTED_AT, before + felt.change))

    def counts(self) -> dict[str, float]:
        """Totals so far: calls and costs (`Endpoints.COUNTS`), and `clipped`, changes that the model wanted beyond the bounds."""
        return {**self.endpoints.counts, "clipped": float(self._num_clipped)}

    async def _ask(self, name: str, dialogue: Dialogue, ask: str, schema: Mapping[str, Any], read: Callable[[str], T]) -> T:
        """The answer to one question of this turn."""
        return await self.endpoints.ask(self._question(name, dialogue, ask, schema), read)

    @staticmethod
    def _question(name: str, dialogue: Dialogue, ask: str, schema: Mapping[str, Any]) -> Question:
        """One question of this turn; siblings that said the same so far ask it with the same seed."""
        digest = hashlib.sha256(f"{dialogue.scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies}|{name}".encode()).digest()
        messages = messages_of(dialogue.scenario, dialogue.difficulty, ask)
        seed = int.from_bytes(digest[:4], "big") >> 1
        return Question(name=name, messages=messages, schema=object_of(schema), seed=seed)
