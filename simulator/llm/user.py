"""The SAGE user: a model behind an OpenAI-compatible endpoint that judges each reply in five steps, feels, and answers.

Source: SAGE, arXiv 2505.02847; RLVER, arXiv 2507.03112, trains against it. The prompts are our own (`simulator/prompts/`).
"""

from __future__ import annotations

import hashlib

from pydantic import Field
from pydantic.dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, START_EMOTION, Dialogue, Outcome, Speaker, Turn
from simulator.llm.client import Endpoints, Question
from simulator.llm.config import EndpointConfig
from simulator.llm.prompts import (
    Felt,
    Messages,
    Schema,
    messages_to_judge,
    messages_to_open,
    messages_to_reply,
    prompts,
    read_felt,
    read_said,
    read_words,
    schema_to_judge,
    schema_to_open,
    schema_to_reply,
    suspicions,
)
from simulator.scenario import Difficulty, Scenario
from simulator.settings import USER_SETTINGS
from simulator.user import Reaction


@dataclass(config=USER_SETTINGS, kw_only=True)
class LLMUserConfig(EndpointConfig):
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

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue with the user's first words: the scenario's, or the model's where it has none.

        Raises:
            ValueError: there are no prompts in the scenario's language.
            SimulatorError: the model gave no usable answer.
        """
        prompts(scenario.language)
        dialogue, emotion = Dialogue(scenario=scenario, difficulty=difficulty, seed=seed), self.config.start_emotion
        words = scenario.opening
        if not words:
            messages = messages_to_open(scenario, difficulty, emotion=emotion)
            question = self._question("open", dialogue, messages, schema_to_open(max_chars=self.config.max_chars))
            words = await self.endpoints.ask(question, read_words)
        return dialogue.then(Turn(speaker=Speaker.USER, text=words, emotion=emotion))

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer to a reply.

        Raises:
            SimulatorError: the model gave no usable answer.
        """
        one_call, limit = self.config.one_call, self.config.max_chars
        judge = self._question(
            "judge_and_reply" if one_call else "judge",
            dialogue,
            messages_to_judge(dialogue, reply, with_reply=one_call),
            schema_to_judge(max_chars=limit, with_reply=one_call),
        )
        if one_call:
            felt, said = await self.endpoints.ask(judge, lambda answer: (read_felt(answer), read_said(answer)))
        else:
            felt = await self.endpoints.ask(judge, read_felt)
            messages = messages_to_reply(dialogue, reply, felt, emotion=emotion_after(dialogue, felt))
            said = await self.endpoints.ask(self._question("reply", dialogue, messages, schema_to_reply(max_chars=limit)), read_said)
        self._num_clipped += felt.was_clipped
        emotion = emotion_after(dialogue, felt)
        turn = Turn(
            speaker=Speaker.USER,
            text=said.text,
            emotion=emotion,
            change=emotion - dialogue.emotion,
            thought=felt.thought.to_text(),
            suspicion=suspicions(reply),
        )
        # A farewell is declared by the model, never read off its words.
        outcome = Outcome.FAREWELL if said.goodbye else None
        outcome = Outcome.DELIGHTED if emotion >= DELIGHTED_AT else Outcome.LEFT if emotion < LEFT_BELOW else outcome
        return Reaction(turn=turn, outcome=outcome)

    def counts(self) -> dict[str, float]:
        """Totals so far: calls and costs (`COUNTS`), and `clipped`, changes that the model wanted beyond the bounds."""
        return {**self.endpoints.counts, "clipped": float(self._num_clipped)}

    def _question(self, name: str, dialogue: Dialogue, messages: Messages, schema: Schema) -> Question:
        return Question(name=name, messages=messages, schema=schema, seed=question_seed(dialogue, name))


def emotion_after(dialogue: Dialogue, felt: Felt) -> int:
    """The emotion that a reply leaves, 0-100."""
    return max(0, min(DELIGHTED_AT, dialogue.emotion + felt.change))


def question_seed(dialogue: Dialogue, name: str) -> int:
    """A seed in [0, 2^31) for one question of one turn; siblings that said the same so far get the same."""
    digest = hashlib.sha256(f"{dialogue.scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies}|{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
