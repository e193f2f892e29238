"""Questions with options about a user's card, to see whether the model that plays the user still knows it; asked apart from the dialogue.

The card gives the right option, other cards of the same bank the wrong ones; the options are shuffled at every turn.
Source: question-and-answer consistency of simulated users, repaired: the simulator itself is asked, with its own prompt and history.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from simulator.dialogue import Dialogue
from simulator.llm.prompts import Messages, Unusable, conversation, messages_of, prompts, quoted, record_of, string_of
from simulator.scenario import Scenario


@dataclass(frozen=True, kw_only=True)
class QuizQuestion:
    """One question about the user."""

    LETTERS: ClassVar = "ABCD"

    name: str
    """person, happened, detail, other, goal or wish."""
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
        return self.LETTERS[self.right]

    @staticmethod
    def answers_of(scenario: Scenario) -> dict[str, list[str]]:
        """A card's answers to each question: several where any of them is right, none where the card does not say."""
        words, persona = prompts(scenario.language)["quiz"], scenario.persona
        return {
            "person": [words["whoever"].format(name=persona.name, age=persona.age, occupation=persona.occupation)] if persona.name else [],
            "happened": [fact.text for fact in scenario.facts[:1]],
            "detail": [fact.text for fact in scenario.facts[1:]],
            "other": [words["someone"].format(other=scenario.other)] if scenario.other else [],
            "goal": [scenario.goal] if scenario.goal else [],
            "wish": [scenario.hidden_intention],
        }


def quiz_of(scenario: Scenario, others: Sequence[Scenario], *, seed: int, turn: int) -> tuple[QuizQuestion, ...]:
    """The questions that a card can answer: the same for a seed, in an order of options that differs by turn.

    Args:
        others: cards for the wrong options.
    """
    strangers = [other for other in others if other.language == scenario.language and other.scenario_id != scenario.scenario_id]
    questions = []
    for name, own in QuizQuestion.answers_of(scenario).items():
        if not own:
            continue

        def sense(answer: str, name: str = name) -> str:
            # Answers with the same sense count as equal: a best friend is a friend.
            return answer.split()[-1] if name == "other" and answer.split() else answer

        chance = random.Random(f"quiz|{seed}|{scenario.scenario_id}|{name}")
        right = chance.choice(own)
        options, taken = [(right, scenario)], set(map(sense, own))
        # More cards than options, since some say the same.
        for stranger in chance.sample(strangers, min(len(strangers), 60)):
            answers = QuizQuestion.answers_of(stranger)[name]
            if not answers or (name == "wish" and stranger.family.intention is scenario.family.intention):
                continue
            option = chance.choice(answers)
            if sense(option) not in taken:
                taken.add(sense(option))
                options.append((option, stranger))
            if len(options) == len(QuizQuestion.LETTERS):
                break
        else:
            continue
        random.Random(f"order|{seed}|{scenario.scenario_id}|{name}|{turn}").shuffle(options)
        texts, cards = zip(*options, strict=True)
        text = prompts(scenario.language)["quiz"][name]
        questions.append(QuizQuestion(name=name, text=text, options=texts, cards=cards, right=texts.index(right)))
    return tuple(questions)


def messages_to_quiz(dialogue: Dialogue, questions: Sequence[QuizQuestion]) -> Messages:
    """Asks the model that plays the user, with its own prompt and history; a dialogue without turns has not begun."""
    words = prompts(dialogue.scenario.language)["quiz"]
    history = words["after"].format(conversation=conversation(dialogue)) if dialogue.turns else words["before"]
    asked = []
    for question in questions:
        options = (f"  {letter}. {quoted(text)}" for letter, text in zip(question.LETTERS, question.options, strict=True))
        asked.append("\n".join((f"{question.name}: {question.text}", *options)))
    return messages_of(dialogue.scenario, dialogue.difficulty, words["ask"].format(history=history.strip(), questions="\n".join(asked)))


def read_quiz(answer: str, questions: Sequence[QuizQuestion]) -> Mapping[str, str]:
    """The letter chosen for each question.

    Raises:
        Unusable: the answer is no such JSON, or lacks one.
    """
    record = record_of(answer, *(question.name for question in questions))
    letters = {question.name: string_of(record, question.name).strip() for question in questions}
    for name, letter in letters.items():
        if letter not in tuple(QuizQuestion.LETTERS):
            raise Unusable(f"{name} must be one of {', '.join(QuizQuestion.LETTERS)}, got {letter[:80]!r}")
    return letters
