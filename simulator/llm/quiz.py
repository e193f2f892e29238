"""Questions with options about a user's card, to see whether the model that plays the user still knows it; asked apart from the dialogue.

The card gives the right option, other cards of the same bank the wrong ones; the options are shuffled at every turn.
Source: question-and-answer consistency of simulated users, repaired: the simulator itself is asked, with its own prompt and history.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.dialogue import Dialogue
from simulator.llm.prompts import Messages, Schema, Unusable, conversation, messages_of, object_of, prompts, quoted, record_of, string_of
from simulator.scenario import Scenario

LETTERS = "ABCD"
NAMES = ("person", "happened", "detail", "other", "goal", "wish")
"""The questions in order; one that a card cannot answer is left out."""
MOST_ASKED = 60
"""Other cards that are searched for the wrong options of one question."""


@dataclass(frozen=True, kw_only=True)
class QuizQuestion:
    """One question about the user."""

    name: str
    text: str
    options: tuple[str, ...]
    """One for each letter."""
    cards: tuple[Scenario, ...]
    """The card of each option."""
    right: int
    """Index of the option from the user's own card."""

    @property
    def letter(self) -> str:
        """The letter of the right option."""
        return LETTERS[self.right]


def quiz_of(scenario: Scenario, others: Sequence[Scenario], *, seed: int, turn: int) -> tuple[QuizQuestion, ...]:
    """The questions that a card can answer: the same for a seed, in an order of options that differs by turn.

    Args:
        others: cards for the wrong options.
    """
    words = prompts(scenario.language)["quiz"]
    strangers = [other for other in others if other.language == scenario.language and other.scenario_id != scenario.scenario_id]
    questions = []
    for name in NAMES:
        chance = random.Random(f"quiz|{seed}|{scenario.scenario_id}|{name}")
        own = _answers(name, scenario)
        if not own:
            continue
        right = chance.choice(own)
        options = [(right, scenario), *_wrong(name, scenario, strangers, chance)]
        if len(options) == len(LETTERS):
            random.Random(f"order|{seed}|{scenario.scenario_id}|{name}|{turn}").shuffle(options)
            texts, cards = zip(*options, strict=True)
            questions.append(QuizQuestion(name=name, text=words[name], options=texts, cards=cards, right=texts.index(right)))
    return tuple(questions)


def _wrong(name: str, scenario: Scenario, strangers: Sequence[Scenario], chance: random.Random) -> list[tuple[str, Scenario]]:
    """Options of other cards, each different and none of them right for this one too."""

    def sense(answer: str) -> str:
        # Answers with the same sense count as equal: a best friend is a friend.
        return answer.split()[-1] if name == "other" and answer.split() else answer

    taken = set(map(sense, _answers(name, scenario)))
    found: list[tuple[str, Scenario]] = []
    # More than are needed, since some say the same.
    for stranger in chance.sample(strangers, min(len(strangers), MOST_ASKED)):
        answers = _answers(name, stranger)
        if (name == "wish" and stranger.family.intention is scenario.family.intention) or not answers:
            continue
        option = chance.choice(answers)
        if sense(option) not in taken:
            taken.add(sense(option))
            found.append((option, stranger))
        if len(found) == len(LETTERS) - 1:
            break
    return found


def _answers(name: str, scenario: Scenario) -> list[str]:
    """The card's answers to a question; several where any of them is right."""
    words, persona = prompts(scenario.language)["quiz"], scenario.persona
    return {
        "person": [words["whoever"].format(name=persona.name, age=persona.age, occupation=persona.occupation)] if persona.name else [],
        "happened": [scenario.facts[0].text] if scenario.facts else [],
        "detail": [fact.text for fact in scenario.facts[1:]],
        "other": [words["someone"].format(other=scenario.other)] if scenario.other else [],
        "goal": [scenario.goal] if scenario.goal else [],
        "wish": [scenario.hidden_intention],
    }[name]


def messages_to_quiz(dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> Messages:
    """Asks the model that plays the user, with its own prompt and history; a dialogue without turns has not begun."""
    words = prompts(dialogue.scenario.language)["quiz"]
    history = words["after"].format(conversation=conversation(dialogue)) if dialogue.turns else words["before"]
    asked = "\n".join(
        "\n".join((f"{question.name}: {question.text}", *(f"  {LETTERS[i]}. {quoted(text)}" for i, text in enumerate(question.options))))
        for question in questions
    )
    return messages_of(dialogue.scenario, dialogue.difficulty, words["ask"].format(history=history.strip(), questions=asked))


def schema_to_quiz(questions: Sequence[QuizQuestion]) -> Schema:
    """JSON schema of the answers."""
    return object_of({question.name: {"type": "string", "enum": list(LETTERS)} for question in questions})


def read_quiz(answer: str, questions: Sequence[QuizQuestion]) -> Mapping[str, str]:
    """The letter chosen for each question.

    Raises:
        Unusable: the answer is no such JSON, or lacks one.
    """
    record = record_of(answer)
    letters = {question.name: string_of(record, question.name).strip() for question in questions}
    for name, letter in letters.items():
        if letter not in tuple(LETTERS):
            raise Unusable(f"{name} must be one of {', '.join(LETTERS)}, got {letter[:80]!r}")
    return letters
