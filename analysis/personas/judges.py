"""What a judge of simulated users finds, and the judge that is a plain rule, for users of the built-in world."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from analysis.personas.claims import SENTENCE, Claims, card_of, claims_in, conflicts
from simulator.adversaries import LETTERS, QuizQuestion
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import hint_in
from simulator.rule_user import RuleUser
from simulator.scenario import Scenario
from simulator.text import content_words, words_of

OUTRIGHT_FROM = 0.6
"""Share of the words of a hidden intention, but for those that the story holds, from which a line says it outright."""
ASSISTANT = re.compile(
    r"\bas an? (?:ai|language model|assistant)\b|\bi(?: a|')m (?:an? (?:ai|language model|assistant|chatbot)|here to help|here for you)\b"
    r"|\bhow (?:can|may) i (?:help|assist|support)\b|\bi(?: am|'m) (?:so )?sorry (?:to hear|you(?: are|'re) going)\b"
    r"|\bi understand how you feel\b|\bthank you for sharing\b|\b(?:it sounds like|it seems that) you\b|\byour feelings are valid\b"
    r"|\bi can (?:hear|imagine) how\b|\bi hear you\b|\byou (?:could try|might want|should consider|could consider)\b"
    r"|\bhave you (?:tried|considered|thought about)\b|\bi(?: would|'d) (?:suggest|recommend|encourage)\b|\bwould you like (?:me )?to\b",
    re.IGNORECASE,
)
"""How helpers and language models talk to somebody in trouble, and people in trouble do not."""


@dataclass(frozen=True, kw_only=True)
class LineVerdict:
    """What was found in one line of a user."""

    contradicts_card: bool
    conflicts_with: frozenset[int]
    """Earlier lines of the user, by number from 0."""
    reveals_hidden: bool
    """States the hidden intention outright."""
    assistant_register: bool
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class QuizVerdict:
    """One round of questions about the user."""

    num_questions: int
    num_answered: int
    num_right: int


class Judge(Protocol):
    """Looks at users. Whatever it cannot judge is None, and an error: never a consistent line."""

    complaint: str
    """Why it last could not."""

    async def line(self, dialogue: Dialogue, number: int) -> LineVerdict | None:
        """The user's line of that number in a dialogue."""
        ...

    async def demands(self, dialogue: Dialogue) -> float | None:
        """How demanding the user came across, on any scale that rises."""
        ...

    async def close(self) -> None:
        """Lets go of whatever it holds."""
        ...


class Examiner(Protocol):
    """Puts questions to whoever plays a user."""

    complaint: str
    """Why it last could not."""

    async def ask(self, dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> QuizVerdict | None:
        """Asks at the end of a dialogue as it stands, apart from it; without turns before it begins. None where that failed."""
        ...

    async def close(self) -> None:
        """Lets go of whatever it holds."""
        ...


def lines_of(dialogue: Dialogue) -> list[tuple[int, Turn]]:
    """The user's turns, each with its place among all turns."""
    return [(place, turn) for place, turn in enumerate(dialogue.turns) if turn.speaker is Speaker.USER]


class RuleJudge:
    """Compares what lines claim with the card and with each other."""

    complaint = ""

    async def line(self, dialogue: Dialogue, number: int) -> LineVerdict:
        """The user's line of that number; a rule always finds an answer."""
        texts = [turn.text for _, turn in lines_of(dialogue)]
        claims = claims_in(texts[number])
        kinds = conflicts(claims, [card_of(dialogue.scenario)])
        return LineVerdict(
            contradicts_card=bool(kinds),
            conflicts_with=frozenset(i for i in range(number) if conflicts(claims, claims_in(texts[i]))),
            reveals_hidden=says_outright(texts[number], dialogue.scenario),
            assistant_register=bool(ASSISTANT.search(texts[number])),
            why=", ".join(kinds),
        )

    async def demands(self, dialogue: Dialogue) -> float | None:
        """Less the mean change that a reply brought, in points; None without a change."""
        changes = [turn.change for turn in dialogue.turns if turn.change is not None]
        return -sum(changes) / len(changes) if changes else None

    async def close(self) -> None:
        """Nothing to let go."""


def says_outright(line: str, scenario: Scenario) -> bool:
    """Whether a line states the hidden intention nearly in the card's words; the world's hints are meant to name what they name."""
    for sentence in SENTENCE.split(line):
        if hint_in(sentence) is None and _overlap(sentence, scenario) >= OUTRIGHT_FROM:
            return True
    return scenario.hidden_intention in line


def _overlap(sentence: str, scenario: Scenario) -> float:
    told = {word for fact in scenario.facts for word in words_of(fact.text)}
    wish = {_stem(word) for word in content_words(scenario.hidden_intention) - told}
    return len(wish & {_stem(word) for word in content_words(sentence)}) / len(wish) if wish else 0.0


def _stem(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 3 else word


def names_the_wish(line: str) -> bool:
    """Whether a line holds one of the world's overt hints."""
    return hint_in(line, kinds=("overt",)) is not None


class RuleExaminer:
    """Asks the embedded user, who knows no questions: it answers each as a reply of the agent, in a side branch of the dialogue.

    The answer is the one option whose card agrees with what that line claims; where none or more than one does, there is no answer.

    Args:
        user: as it was set in the dialogues.
    """

    complaint = ""

    def __init__(self, user: RuleUser) -> None:
        self._user = user

    async def ask(self, dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> QuizVerdict | None:
        """The answers of the side branches; before the dialogue it is the opening that answers."""
        answers = [answer_in(self._said(dialogue, question), question) for question in questions]
        right = sum(answer == question.letter for answer, question in zip(answers, questions, strict=True))
        return QuizVerdict(num_questions=len(questions), num_answered=sum(map(bool, answers)), num_right=right)

    async def close(self) -> None:
        """Nothing to let go."""

    def _said(self, dialogue: Dialogue, question: QuizQuestion) -> str:
        if not dialogue.turns:
            return self._user.begin(dialogue.scenario, dialogue.difficulty, seed=dialogue.seed).turns[0].text
        return self._user.answer(dialogue, question.text).turn.text


def answer_in(line: str, question: QuizQuestion) -> str:
    """The letter of the only option that a line supports; "" for none."""
    claims = claims_in(line)
    supported = [letter for letter, card in zip(LETTERS, question.cards, strict=True) if _supports(question.name, line, claims, card)]
    return supported[0] if len(supported) == 1 else ""


def _supports(name: str, line: str, claims: Sequence[Claims], card: Scenario) -> bool:
    if name == "other":
        return bool(card.other) and f"my {card.other}" in line.lower()
    own = card_of(card)
    kinds = {"person": ("name", "age", "occupation"), "happened": ("event",), "detail": ("event",), "wish": ("wish",), "goal": ()}[name]
    return any(getattr(claim, kind) & getattr(own, kind) for claim in claims for kind in kinds)
