"""The model listener: a language model reads each reply, in one short question to an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from simulator.dialogue import Dialogue, Speaker
from simulator.lexicon import Lexicon, lexicon
from simulator.listener import facts_stated, is_echo
from simulator.llm.client import Endpoints, Question
from simulator.llm.config import EndpointConfig
from simulator.llm.prompts import Unusable, object_of, quoted, record_of
from simulator.reading import Reading
from simulator.world import read_toml

T = TypeVar("T")


class ModelListener:
    """Asks a model for the parts of a reading; building it calls no server.

    Raises:
        ValueError: the key's environment variable is not set.
    """

    TONES = ("plain", "irony", "contempt")
    CLARITY: ClassVar = {"none": 0.0, "part": 0.5, "all": 1.0}

    def __init__(self, config: EndpointConfig) -> None:
        self.endpoints = Endpoints(config)

    def read(self, dialogue: Dialogue, reply: str) -> Reading:
        """The reading of a reply that is not yet in the dialogue."""
        return run(self.hear(dialogue, reply))

    async def hear(self, dialogue: Dialogue, reply: str) -> Reading:
        """The same on an event loop. Nothing is asked about a reply without a letter, or one that is mostly the user's own words.

        Raises:
            SimulatorError: the model gave no usable answer.
        """
        if not any(map(str.isalpha, reply)):
            return Reading(clarity=0.0)
        if is_echo(reply, dialogue.said(), dialogue.scenario.language):
            return Reading(echo=True)
        return await self.endpoints.ask(*self.question(dialogue, reply))

    def question(self, dialogue: Dialogue, reply: str) -> tuple[Question, Callable[[str], Reading]]:
        """What is asked about a reply, and how the answer is read."""
        words, said = read_toml("listener", Path(__file__).parent)[dialogue.scenario.language], dialogue.said()
        lines = [
            f'{{"turn": {i // 2 + 1}, "speaker": "{"user" if turn.speaker is Speaker.USER else "agent"}", "text": {beginning(turn.text)}}}'
            for i, turn in enumerate(dialogue.turns)
        ]
        asked = words["ask"].format(conversation="\n".join(lines), reply=beginning(reply))
        strategies = [pattern.strategy for pattern in lexicon(dialogue.scenario.language).patterns]
        schema = {
            "sense": {"type": "string", "enum": list(self.CLARITY)},
            "tone": {"type": "string", "enum": list(self.TONES)},
            # Lists are bounded, as small models do not end them.
            "strategies": {"type": "array", "items": {"type": "string", "enum": strategies}, "maxItems": 8},
            "taken_up": {"type": "array", "items": {"type": "integer", "enum": list(range(1, len(said) + 1))}, "maxItems": len(said)},
            "comes_back": {"type": "boolean"},
        }
        messages = (("system", words["system"].strip()), ("user", asked.strip()))
        seed = int.from_bytes(hashlib.sha256(asked.encode()).digest()[:4], "big") >> 1
        question = Question(name="reading", messages=messages, schema=object_of(schema), seed=seed)
        return question, lambda answer: self._read(answer, dialogue, strategies)

    def counts(self) -> dict[str, float]:
        """Totals so far, `Endpoints.COUNTS`."""
        return dict(self.endpoints.counts)

    def _read(self, answer: str, dialogue: Dialogue, known: list[str]) -> Reading:
        """The reading in an answer.

        Raises:
            Unusable: a part is missing or outside of the schema.
        """
        record, said = record_of(answer, "sense", "tone", "strategies", "taken_up", "comes_back"), dialogue.said()

        def chosen(name: str, values: list[Any]) -> list[Any]:
            found = record.get(name)
            if not isinstance(found, list) or any(type(value) is not type(values[0]) or value not in values for value in found):
                raise Unusable(f"{name} must be a list of {values}, got {found!r}")
            return list(dict.fromkeys(found))

        strategies, turns = chosen("strategies", known), chosen("taken_up", list(range(1, len(said) + 1)))
        sense, tone, comes_back = (record.get(name) for name in ("sense", "tone", "comes_back"))
        if not isinstance(sense, str) or sense not in self.CLARITY or tone not in self.TONES or not isinstance(comes_back, bool):
            raise Unusable(f"sense, tone and comes_back must be as in the schema, got {sense!r}, {tone!r} and {comes_back!r}")
        facts = dialogue.story.facts
        return Reading(
            strategies=tuple(strategies) if tone == "plain" else (),
            cues=tuple(sorted({fact for turn in turns for fact in facts_stated(said[turn - 1], facts)})),
            clarity=self.CLARITY[sense],
            contempt=() if tone == "plain" else (tone,),
            ties_back=comes_back,
        )


def beginning(text: str) -> str:
    """The beginning of a text, as a string of JSON."""
    return quoted(text[: Lexicon.MAX_READ])


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, also where a loop is running."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()
