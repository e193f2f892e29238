"""Judges of whether a simulated user stays who it is: a plain rule for users of the built-in world, and a model behind a server.

A judge gives None for a line that it cannot judge. That is an error and never a consistent line.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import hint_in
from simulator.llm.answers import whole_number
from simulator.llm.client import Endpoints, Question, SimulatorError
from simulator.llm.prompts import Messages, Unusable, object_of, quoted, record_of
from simulator.llm.quiz import QuizQuestion, messages_to_quiz, read_quiz
from simulator.options import in_options, of_judge
from simulator.rule_user import RuleUser
from simulator.scenario import Scenario
from simulator.settings import message
from simulator.text import content_words, number_of, words_of
from simulator.world import load_bank, read_toml

Read = TypeVar("Read")

SENTENCE = re.compile(r"(?<=[.!?])\s+")
NUMBER = r"(\d{1,3}|[a-z]+(?:[- ][a-z]+)?)"
SAID_OF_ONESELF = {
    "age": re.compile(rf"\b(?:i am|i'm|i have turned|i turned|i just turned) {NUMBER}(?: years? old\b|(?=[.,;!?]|$))"),
    "span": re.compile(rf"\bi (?:have|had|was|worked|lived)\b[^.!?]{{0,60}}?\bfor {NUMBER} years\b"),
    "name": re.compile(r"\b(?:[Mm]y name is|[Cc]all me|I am|I'm) ([A-Z][a-z]+)\b"),
    "occupation": re.compile(r"\bI(?: am|'m| work as) an? ([a-z' -]+?)(?= and\b| who\b| at\b| in\b| here\b|[.,;!?]|$)"),
    "relative": re.compile(r"\bmy (?:own |little |youngest |eldest |oldest |late )?([a-z]+)"),
}
"""Expressions by kind of claim; age, span and relative read lower-case text."""
LEAST_AGE = {
    **dict.fromkeys(("grandson", "granddaughter", "grandchild", "grandchildren", "grandsons", "granddaughters"), 34),
    **dict.fromkeys(("son", "daughter", "sons", "daughters", "children", "wife", "husband"), 17),
    **dict.fromkeys(("retirement", "pension"), 45),
}
"""Years without which hardly anybody has such a relative, or draws such money."""
ASSISTANT = re.compile(
    r"\bas an? (?:ai|language model|assistant)\b|\bi(?: a|')m (?:an? (?:ai|language model|assistant|chatbot)|here to help|here for you)\b"
    r"|\bhow (?:can|may) i (?:help|assist|support)\b|\bi(?: am|'m) (?:so )?sorry (?:to hear|you(?: are|'re) going)\b"
    r"|\bi understand how you feel\b|\bthank you for sharing\b|\b(?:it sounds like|it seems that) you\b|\byour feelings are valid\b"
    r"|\bi can (?:hear|imagine) how\b|\bi hear you\b|\byou (?:could try|might want|should consider|could consider)\b"
    r"|\bhave you (?:tried|considered|thought about)\b|\bi(?: would|'d) (?:suggest|recommend|encourage)\b|\bwould you like (?:me )?to\b",
    re.IGNORECASE,
)
"""How helpers and language models talk to somebody in trouble, and people in trouble do not."""


class LineVerdict(BaseModel):
    """A judge's findings in one line of a user."""

    model_config = ConfigDict(strict=True, frozen=True)

    contradicts_card: bool
    conflicts_with: frozenset[int]
    """Earlier lines of the user, by number from 0."""
    reveals_hidden: bool
    """States the hidden intention outright."""
    assistant_register: bool
    why: str

    @classmethod
    def read(cls, answer: str, *, num_earlier: int) -> LineVerdict:
        """The verdict in an answer; numbers that are named twice count once.

        Args:
            num_earlier: lines of the user before the one that was judged; a conflict with any other is no answer.

        Raises:
            Unusable: the answer is no such JSON.
        """
        try:
            verdict = cls.model_validate_json(json.dumps(record_of(answer, *cls.model_fields)))
        except ValidationError as error:
            raise Unusable(message(error)) from error
        if strange := [number for number in verdict.conflicts_with if not 0 <= number < num_earlier]:
            raise Unusable(f"conflicts_with must hold numbers of earlier lines (fewer than {num_earlier}), got {strange[0]!r}")
        return verdict


class QuizVerdict(NamedTuple):
    """One round of questions about the user."""

    num_questions: int
    num_answered: int
    num_right: int


def lines_of(dialogue: Dialogue) -> list[tuple[int, Turn]]:
    """The user's turns, each with its place among all turns."""
    return [(place, turn) for place, turn in enumerate(dialogue.turns) if turn.speaker is Speaker.USER]


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Values that a sentence claims of its speaker, by kind; an empty set claims nothing, several leave it open which.

    Read are names, ages, years that take an age, occupations, and the sentences that one kind of user of the built-in world says: the
    facts of its events, the hints of its wishes and the reactions of its persona types.
    """

    name: frozenset[str] = frozenset()
    age: frozenset[int] = frozenset()
    occupation: frozenset[str] = frozenset()
    event: frozenset[str] = frozenset()
    """Events of the built-in world in which somebody may say so."""
    wish: frozenset[str] = frozenset()
    """Hidden intentions of those who hint so."""
    manner: frozenset[str] = frozenset()
    """Persona types of those who react so."""
    least_age: int = 0
    """Years that it takes to say so."""

    @classmethod
    def in_line(cls, line: str) -> list[Claims]:
        """The claims of each sentence of a line, without sentences that claim nothing."""
        found = []
        names, jobs, *tables = _world()
        for part in SENTENCE.split(line.strip()):
            lower, plain = part.lower(), part.strip()
            ages = {age for text in SAID_OF_ONESELF["age"].findall(lower) if (age := number_of(text)) is not None and 5 <= age <= 110}
            spans = [span for text in SAID_OF_ONESELF["span"].findall(lower) if (span := number_of(text)) is not None]
            event, wish, manner = (table.get(plain, frozenset()) for table in tables)
            claims = cls(
                name=frozenset(SAID_OF_ONESELF["name"].findall(part)) & names.keys(),
                age=frozenset(ages),
                occupation=frozenset(job.lower().strip() for job in SAID_OF_ONESELF["occupation"].findall(part)) & jobs.keys(),
                event=event,
                wish=wish,
                manner=manner,
                least_age=max(
                    [*spans, *(LEAST_AGE[word] for word in SAID_OF_ONESELF["relative"].findall(lower) if word in LEAST_AGE)], default=0
                ),
            )
            if claims != cls():
                found.append(claims)
        return found

    @classmethod
    def of_card(cls, scenario: Scenario) -> Claims:
        """The card of a user of the built-in world, as claims."""
        persona = scenario.persona
        return cls(
            name=frozenset({persona.name}),
            age=frozenset({persona.age}),
            occupation=frozenset({persona.occupation}),
            event=frozenset({event_of(scenario)}),
            wish=frozenset({scenario.family.intention.value}),
            manner=frozenset({persona.persona_type.value}),
        )


@cache
def _world() -> tuple[dict[str, frozenset[str]], ...]:
    """Names, occupations, and sentences of facts, hints and reactions of the built-in world -> who has them."""
    tables: list[dict[str, frozenset[str]]] = [{}, {}, {}, {}, {}]
    names, jobs, events, wishes, manners = tables

    def add(table: dict[str, frozenset[str]], text: str, owner: str) -> None:
        for part in SENTENCE.split(text):
            table[part] = table.get(part, frozenset()) | {owner}

    for scenario in load_bank().by_id.values():
        names[scenario.persona.name] = jobs[scenario.persona.occupation] = frozenset()
        for fact in scenario.facts:
            add(events, fact.text, event_of(scenario))
    phrases = read_toml("phrases")
    for table, group in ((wishes, "hints"), (manners, "reactions"), (manners, "reactions_by_state")):
        for owner, pools in phrases[group].items():
            for line in (line for pool in pools.values() for line in pool):
                add(table, line, owner)
    return tuple(tables)


def event_of(scenario: Scenario) -> str:
    """The event of a scenario: the middle of its id, or the id where it has none."""
    parts = scenario.scenario_id.split("/")
    return parts[1] if len(parts) == 3 else scenario.scenario_id


def conflicts(claims: Iterable[Claims], others: Iterable[Claims]) -> tuple[str, ...]:
    """The kinds of claim in which the first disagree with the second, each once."""
    seconds, kinds = list(others), dict[str, None]()
    for one, other in product(claims, seconds):
        for kind in (field.name for field in fields(Claims) if field.name != "least_age"):
            mine, theirs = getattr(one, kind), getattr(other, kind)
            if kind == "occupation":
                # A ward nurse on her card may call herself a nurse.
                mine, theirs = ({job.split()[-1] for job in jobs} for jobs in (mine, theirs))
            if mine and theirs and not mine & theirs:
                kinds[kind] = None
        if (one.age and max(one.age) < other.least_age) or (other.age and max(other.age) < one.least_age):
            kinds["years"] = None
    return tuple(kinds)


def says_outright(line: str, scenario: Scenario) -> bool:
    """Whether a line states the hidden intention nearly in the card's words; the world's hints are meant to name it and do not count.

    Nearly: with 0.6 of the words of the intention, plurals aside, not counting words of the story.
    """

    def stems(words: Iterable[str]) -> set[str]:
        return {word[:-1] if word.endswith("s") and len(word) > 3 else word for word in words}

    wish = stems(content_words(scenario.hidden_intention) - {word for fact in scenario.facts for word in words_of(fact.text)})
    parts = SENTENCE.split(line) if wish else []
    is_near = any(len(wish & stems(content_words(part))) >= 0.6 * len(wish) and hint_in(part) is None for part in parts)
    return is_near or scenario.hidden_intention in line


class RuleJudge:
    """Compares the claims of lines with the card and with each other."""

    complaint = ""
    endpoints: Endpoints | None = None

    async def line(self, dialogue: Dialogue, number: int) -> LineVerdict | None:
        """The verdict on the user's line of that number."""
        texts = [turn.text for _, turn in lines_of(dialogue)]
        claims = Claims.in_line(texts[number])
        kinds = conflicts(claims, [Claims.of_card(dialogue.scenario)])
        return LineVerdict(
            contradicts_card=bool(kinds),
            conflicts_with=frozenset(i for i in range(number) if conflicts(claims, Claims.in_line(texts[i]))),
            reveals_hidden=says_outright(texts[number], dialogue.scenario),
            assistant_register=bool(ASSISTANT.search(texts[number])),
            why=", ".join(kinds),
        )

    async def demands(self, dialogue: Dialogue) -> float | None:
        """How demanding the user came across: minus the mean change that a reply brought, in points; None without a change."""
        changes = [turn.change for turn in dialogue.turns if turn.change is not None]
        return -sum(changes) / len(changes) if changes else None


class RuleExaminer:
    """Asks the embedded user, who knows no questions: it answers each as a reply of the agent, in a side branch of the dialogue.

    Args:
        user: with the settings of the dialogues.
    """

    complaint = ""
    endpoints: Endpoints | None = None

    def __init__(self, user: RuleUser) -> None:
        self._user = user

    async def ask(self, dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> QuizVerdict | None:
        """The answers at the end of a dialogue, apart from it; before it begins the opening answers."""
        letters = []
        for question in questions:
            if dialogue.turns:
                line = self._user.answer(dialogue, question.text).turn.text
            else:
                line = self._user.begin(dialogue.scenario, dialogue.difficulty, seed=dialogue.seed).turns[0].text
            letters.append(self.letter_in(line, question))
        right = sum(letter == question.letter for letter, question in zip(letters, questions, strict=True))
        return QuizVerdict(num_questions=len(questions), num_answered=sum(map(bool, letters)), num_right=right)

    @staticmethod
    def letter_in(line: str, question: QuizQuestion) -> str:
        """The letter of the only option whose card agrees with the claims of a line; empty for none or several."""
        claims = Claims.in_line(line)

        def supports(card: Scenario) -> bool:
            if question.name == "other":
                return bool(card.other) and f"my {card.other}" in line.lower()
            own = Claims.of_card(card)
            of_question = {
                "person": ("name", "age", "occupation"),
                "happened": ("event",),
                "detail": ("event",),
                "wish": ("wish",),
                "goal": (),
            }
            return any(getattr(claim, kind) & getattr(own, kind) for claim in claims for kind in of_question[question.name])

        supported = [letter for letter, card in zip(question.LETTERS, question.cards, strict=True) if supports(card)]
        return supported[0] if len(supported) == 1 else ""


class ModelJudge:
    """Asks a model. An answer that cannot be read is asked for again, and then None.

    Args:
        endpoints: its servers; `complaint` is their last failure.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.complaint = ""

    async def line(self, dialogue: Dialogue, number: int) -> LineVerdict | None:
        """The verdict on the user's line of that number; None where no answer could be read."""
        text = judge_prompts()["line"].format(
            card=card_text(dialogue),
            hidden=quoted(dialogue.scenario.hidden_intention),
            conversation=numbered(dialogue, before=number),
            line=quoted(lines_of(dialogue)[number][1].text),
        )
        numbers = {"items": {"type": "integer", "enum": list(range(number))}} if number else {"items": {"type": "integer"}, "maxItems": 0}
        flag = {"type": "boolean"}
        schema = {"why": {"type": "string"}, "contradicts_card": flag, "conflicts_with": {"type": "array", **numbers}}
        schema |= {"reveals_hidden": flag, "assistant_register": flag}
        return await self._ask("line", text, schema, lambda answer: LineVerdict.read(answer, num_earlier=number))

    async def demands(self, dialogue: Dialogue) -> float | None:
        """How demanding the user came across, 0 to 10; None where no answer could be read."""
        schema = {"why": {"type": "string"}, "demands": {"type": "integer", "enum": list(range(11))}}

        def read_demands(answer: str) -> float:
            given = record_of(answer, "demands")["demands"]
            demands = whole_number(given)
            if demands is None or not 0 <= demands <= 10:
                raise Unusable(f"demands must be a whole number from 0 to 10, got {given!r}")
            return float(demands)

        return await self._ask("demands", judge_prompts()["dialogue"].format(conversation=numbered(dialogue)), schema, read_demands)

    async def _ask(self, name: str, text: str, schema: Mapping[str, Any], read: Callable[[str], Read]) -> Read | None:
        messages: Messages = (("system", judge_prompts()["system"].strip()), ("user", text.strip()))
        try:
            return await self.endpoints.ask(Question(name=name, messages=messages, schema=object_of(schema), seed=seed_of(messages)), read)
        except SimulatorError as error:
            self.complaint = of_judge(str(error))
            return None


class ModelExaminer:
    """Asks the model that plays the user, with its own prompt and history.

    Args:
        endpoints: of the user, not of the judge; `complaint` is their last failure.
    """

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints
        self.complaint = ""

    async def ask(self, dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> QuizVerdict | None:
        """One call for all questions; None where no answer could be read."""
        messages = messages_to_quiz(dialogue, questions)
        schema = object_of({one.name: {"type": "string", "enum": list(one.LETTERS)} for one in questions})
        question = Question(name="quiz", messages=messages, schema=schema, seed=seed_of(messages))
        try:
            letters = await self.endpoints.ask(question, lambda answer: read_quiz(answer, questions))
        except SimulatorError as error:
            self.complaint = in_options(str(error), "--user-")
            return None
        right = sum(letters[question.name] == question.letter for question in questions)
        return QuizVerdict(num_questions=len(questions), num_answered=len(questions), num_right=right)


Judge = RuleJudge | ModelJudge
Examiner = RuleExaminer | ModelExaminer


def card_text(dialogue: Dialogue) -> str:
    """The card for the judge's prompt."""
    scenario, persona = dialogue.scenario, dialogue.scenario.persona
    if persona.card:
        return "\n".join([persona.card, scenario.background])
    card = judge_prompts()["card"].format(
        name=persona.name,
        age=persona.age,
        occupation=persona.occupation,
        background=scenario.background,
        facts="\n".join(f"- {fact.text}" for fact in scenario.facts),
        goal=scenario.goal,
    )
    return str(card.strip())


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
    return tomllib.loads(Path(__file__).with_name("persona_judge.toml").read_text(encoding="utf-8"))


def seed_of(messages: Messages) -> int:
    """A seed in [0, 2^31) that follows from the messages."""
    return int.from_bytes(hashlib.sha256(repr(messages).encode()).digest()[:4], "big") >> 1
