"""A model behind an OpenAI-compatible endpoint that judges simulated users, and one that is asked about itself while it plays one.

An answer that is not what was asked for is asked for again and then an error; it is never counted as consistent.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from analysis.personas.judges import LineVerdict, QuizVerdict, lines_of
from analysis.personas.wording import in_options, of_judge
from simulator.adversaries import QuizQuestion, messages_to_quiz, read_quiz, schema_to_quiz
from simulator.dialogue import Dialogue, Speaker
from simulator.llm.client import Endpoints, Question, SimulatorError
from simulator.llm.prompts import Messages, Unusable, object_of, quoted, record_of, string_of

PROMPTS = Path(__file__).parent / "persona_judge.toml"
MOST_DEMANDING = 10
NO_LINES = {"type": "array", "items": {"type": "integer"}, "maxItems": 0}


class ModelJudge:
    """A `Judge` that asks a model.

    Args:
        endpoints: where; what it complained of last stands in `complaint`.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.complaint = ""

    async def line(self, dialogue: Dialogue, number: int) -> LineVerdict | None:
        """The user's line of that number; None where no answer was of use."""
        texts = {
            "card": card_text(dialogue),
            "hidden": quoted(dialogue.scenario.hidden_intention),
            "conversation": numbered(dialogue, before=number),
            "line": quoted(lines_of(dialogue)[number][1].text),
        }
        schema = object_of(
            {
                "why": {"type": "string"},
                "contradicts_card": {"type": "boolean"},
                "conflicts_with": {"type": "array", "items": {"type": "integer", "enum": list(range(number))}} if number else NO_LINES,
                "reveals_hidden": {"type": "boolean"},
                "assistant_register": {"type": "boolean"},
            }
        )
        question = _question("line", judge_prompts()["line"].format(**texts), schema)
        try:
            return await self.endpoints.ask(question, lambda answer: read_line(answer, num_earlier=number))
        except SimulatorError as error:
            self.complaint = of_judge(str(error))
            return None

    async def demands(self, dialogue: Dialogue) -> float | None:
        """How demanding the user came across, 0 to 10; None where no answer was of use."""
        schema = object_of({"why": {"type": "string"}, "demands": {"type": "integer", "enum": list(range(MOST_DEMANDING + 1))}})
        text = judge_prompts()["dialogue"].format(conversation=numbered(dialogue))
        try:
            return await self.endpoints.ask(_question("demands", text, schema), read_demands)
        except SimulatorError as error:
            self.complaint = of_judge(str(error))
            return None

    async def close(self) -> None:
        """Closes the connections."""
        await self.endpoints.close()


class ModelExaminer:
    """Asks the model that plays the user, with its own prompt and history.

    Args:
        endpoints: of the user, not of the judge; what it complained of last stands in `complaint`.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.complaint = ""

    async def ask(self, dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> QuizVerdict | None:
        """One call for all questions; None where no answer was of use."""
        messages = messages_to_quiz(dialogue, questions)
        question = Question(name="quiz", messages=messages, schema=schema_to_quiz(questions), seed=seed_of(messages))
        try:
            letters = await self.endpoints.ask(question, lambda answer: read_quiz(answer, questions))
        except SimulatorError as error:
            self.complaint = in_options(str(error), "--user-")
            return None
        right = sum(letters[question.name] == question.letter for question in questions)
        return QuizVerdict(num_questions=len(questions), num_answered=len(questions), num_right=right)

    async def close(self) -> None:
        """Closes the connections."""
        await self.endpoints.close()


def read_line(answer: str, *, num_earlier: int) -> LineVerdict:
    """The verdict in an answer; numbers that are named twice count once.

    Args:
        num_earlier: lines of the user before the one that was judged; a conflict with any other is no answer.

    Raises:
        Unusable: the answer is no such JSON.
    """
    record = record_of(answer)
    numbers = record.get("conflicts_with")
    if not isinstance(numbers, list) or any(isinstance(number, bool) or not isinstance(number, int) for number in numbers):
        raise Unusable(f"conflicts_with must be a list of whole numbers, got {numbers!r}")
    strange = [number for number in numbers if not 0 <= number < num_earlier]
    if strange:
        raise Unusable(f"conflicts_with must hold numbers of earlier lines (fewer than {num_earlier}), got {strange[0]!r}")
    return LineVerdict(
        contradicts_card=_flag(record, "contradicts_card"),
        conflicts_with=frozenset(numbers),
        reveals_hidden=_flag(record, "reveals_hidden"),
        assistant_register=_flag(record, "assistant_register"),
        why=string_of(record, "why"),
    )


def read_demands(answer: str) -> float:
    """The number in an answer.

    Raises:
        Unusable: the answer is no such JSON, or the number is out of range.
    """
    demands = record_of(answer).get("demands")
    if isinstance(demands, bool) or not isinstance(demands, int) or not 0 <= demands <= MOST_DEMANDING:
        raise Unusable(f"demands must be a whole number from 0 to {MOST_DEMANDING}, got {demands!r}")
    return float(demands)


def card_text(dialogue: Dialogue) -> str:
    """The card as the judge sees it."""
    scenario, persona = dialogue.scenario, dialogue.scenario.persona
    if persona.card:
        return "\n".join([persona.card, scenario.background])
    return (
        judge_prompts()["card"]
        .format(
            name=persona.name,
            age=persona.age,
            occupation=persona.occupation,
            background=scenario.background,
            facts="\n".join(f"- {fact.text}" for fact in scenario.facts),
            goal=scenario.goal,
        )
        .strip()
    )


def numbered(dialogue: Dialogue, *, before: int | None = None) -> str:
    """The turns as lines of JSON, the user's with their numbers; only those before the user's line of that number if one is given."""
    lines, number = [], 0
    for turn in dialogue.turns:
        if turn.speaker is Speaker.USER:
            if number == before:
                break
            lines.append(f'{{"person": {number}, "text": {quoted(turn.text)}}}')
            number += 1
        else:
            lines.append(f'{{"other": true, "text": {quoted(turn.text)}}}')
    return "\n".join(lines) or "(nothing yet)"


@cache
def judge_prompts() -> dict[str, Any]:
    """The judge's prompts."""
    with PROMPTS.open("rb") as file:
        return tomllib.load(file)


def _question(name: str, text: str, schema: Any) -> Question:
    messages: Messages = (("system", judge_prompts()["system"].strip()), ("user", text.strip()))
    return Question(name=name, messages=messages, schema=schema, seed=seed_of(messages))


def seed_of(messages: Messages) -> int:
    """A seed in [0, 2^31) that follows from what is asked."""
    return int.from_bytes(hashlib.sha256(repr(messages).encode()).digest()[:4], "big") >> 1


def _flag(record: dict[str, Any], key: str) -> bool:
    value = record.get(key)
    if not isinstance(value, bool):
        raise Unusable(f"{key} must be true or false, got {value!r}")
    return value
