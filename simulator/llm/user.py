"""The SAGE user: a model behind an OpenAI-compatible endpoint that judges each reply in five steps, feels, and answers.

Source: SAGE, arXiv 2505.02847; RLVER, arXiv 2507.03112, trains against it. The prompts are our own (`simulator/prompts/`).
"""

from __future__ import annotations

import hashlib

from pydantic.dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, START_EMOTION, Dialogue, Outcome, Speaker, Turn
from simulator.llm.client import Endpoints, Question
from simulator.llm.config import EndpointConfig
from simulator.llm.prompts import (
    Felt,
    Messages,
    Said,
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
from simulator.settings import SETTINGS
from simulator.user import Reaction


@dataclass(config=SETTINGS, kw_only=True)
class LLMUserConfig(EndpointConfig):
    """Settings of the user that a model plays."""

    start_emotion: int = START_EMOTION
    """Emotion at the opening, 10-99: 40 in SAGE, 30 in RLVER's training."""
    one_call: bool = False
    """Ask for the judgement and the user's next words in one call instead of two, as SAGE does: about half the price, and words that do
    not know the clipped change."""
    max_chars: int = 0
    """>= 0: longest text that the schema allows, for servers that enforce it; 0 sets no limit."""
    profiles: str = ""
    """File of SAGE or RLVER profiles to practise on, instead of the built-in world; goes with `heldout_profiles`."""
    heldout_profiles: str = ""
    """File of profiles that evaluation uses."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEFT_BELOW <= self.start_emotion < DELIGHTED_AT:
            raise ValueError(f"simulator.start_emotion must be in [{LEFT_BELOW}, {DELIGHTED_AT}), got {self.start_emotion!r}")
        if self.max_chars < 0:
            raise ValueError(f"simulator.max_chars must be >= 0, got {self.max_chars!r}; 0 sets no limit")
        if bool(self.profiles) != bool(self.heldout_profiles):
            got = f"got {self.profiles!r} and {self.heldout_profiles!r}"
            raise ValueError(f"simulator.profiles and simulator.heldout_profiles must be set together, {got}")


class LLMUser:
    """A `UserSimulator` played by a model. Building it calls nobody.

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
            words = await self.endpoints.ask(self._question("open", dialogue, messages, schema_to_open(max_chars=self._limit)), read_words)
        return dialogue.then(Turn(speaker=Speaker.USER, text=words, emotion=emotion))

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer to a reply.

        Raises:
            SimulatorError: the model gave no usable answer.
        """
        felt, said = await self._judge_and_reply(dialogue, reply) if self.config.one_call else await self._judge_then_reply(dialogue, reply)
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
        return Reaction(turn=turn, outcome=outcome_of(emotion, said))

    def counts(self) -> dict[str, float]:
        """Totals so far: what its servers were asked and cost (`COUNTS`), and changes that the model wanted beyond the bounds."""
        return {**self.endpoints.counts, "clipped": float(self._num_clipped)}

    async def _judge_then_reply(self, dialogue: Dialogue, reply: str) -> tuple[Felt, Said]:
        messages = messages_to_judge(dialogue, reply, with_reply=False)
        schema = schema_to_judge(max_chars=self._limit, with_reply=False)
        felt = await self.endpoints.ask(self._question("judge", dialogue, messages, schema), read_felt)
        messages = messages_to_reply(dialogue, reply, felt, emotion=emotion_after(dialogue, felt))
        question = self._question("reply", dialogue, messages, schema_to_reply(max_chars=self._limit))
        return felt, await self.endpoints.ask(question, read_said)

    async def _judge_and_reply(self, dialogue: Dialogue, reply: str) -> tuple[Felt, Said]:
        messages = messages_to_judge(dialogue, reply, with_reply=True)
        schema = schema_to_judge(max_chars=self._limit, with_reply=True)
        question = self._question("judge_and_reply", dialogue, messages, schema)
        return await self.endpoints.ask(question, lambda answer: (read_felt(answer), read_said(answer)))

    def _question(self, name: str, dialogue: Dialogue, messages: Messages, schema: Schema) -> Question:
        return Question(name=name, messages=messages, schema=schema, seed=question_seed(dialogue, name))

    @property
    def _limit(self) -> int:
        return self.config.max_chars


def emotion_after(dialogue: Dialogue, felt: Felt) -> int:
    """The emotion that a reply leaves, 0-100."""
    return max(0, min(DELIGHTED_AT, dialogue.emotion + felt.change))


def outcome_of(emotion: int, said: Said) -> Outcome | None:
    """How the dialogue ends with this turn, if it does. A farewell is what the model declares one, never a word it happens to say."""
    if emotion >= DELIGHTED_AT:
        return Outcome.DELIGHTED
    if emotion < LEFT_BELOW:
        return Outcome.LEFT
    return Outcome.FAREWELL if said.goodbye else None


def question_seed(dialogue: Dialogue, name: str) -> int:
    """A seed in [0, 2^31) for one question of one turn; siblings that said the same so far get the same."""
    digest = hashlib.sha256(f"{dialogue.scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies}|{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
