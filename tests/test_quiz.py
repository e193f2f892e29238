"""Questions about a user: built from its card and others', asked of whoever plays it, read strictly."""

from __future__ import annotations

import json

import pytest

from simulator.adversaries import LETTERS, NAMES, messages_to_quiz, quiz_of, read_quiz, schema_to_quiz
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.llm.prompts import Unusable
from simulator.sage.formats import profile_of, scenario_of
from simulator.scenario import Difficulty, Split
from simulator.world import load_bank

CARDS = load_bank().scenarios(Split.TRAIN)
ADA = load_bank().scenario("train/burned_bread/motives-negative")


def test_every_question_has_one_right_option_and_three_of_other_cards():
    for scenario in CARDS[::50]:
        questions = quiz_of(scenario, CARDS, seed=1, turn=0)
        assert [question.name for question in questions] == list(NAMES)
        for question in questions:
            assert len(set(question.options)) == len(LETTERS)
            assert [card == scenario for card in question.cards] == [i == question.right for i in range(len(LETTERS))]


def test_the_options_are_right_by_the_card_and_wrong_ones_are_not():
    texts = {question.name: question.options[question.right] for question in quiz_of(ADA, CARDS, seed=1, turn=0)}
    assert texts["person"] == "Ada, 27 years old, bakery assistant"
    assert texts["happened"] == ADA.opening and texts["other"] == "my boss"
    assert texts["wish"] == ADA.hidden_intention and texts["goal"] == ADA.goal
    assert texts["detail"] in [fact.text for fact in ADA.facts[1:]]
    for question in quiz_of(ADA, CARDS, seed=1, turn=0):
        wrong = [card for i, card in enumerate(question.cards) if i != question.right]
        if question.name == "wish":
            assert ADA.family.intention not in {card.family.intention for card in wrong}
        if question.name == "other":
            assert "boss" not in {card.other.split()[-1] for card in wrong}


def test_the_same_questions_are_asked_at_every_turn_in_another_order():
    orders = {tuple(question.options for question in quiz_of(ADA, CARDS, seed=1, turn=turn)) for turn in range(6)}
    assert len(orders) > 1
    assert len({tuple(frozenset(options) for options in order) for order in orders}) == 1
    assert quiz_of(ADA, CARDS, seed=1, turn=2) == quiz_of(ADA, CARDS, seed=1, turn=2)
    assert quiz_of(ADA, CARDS, seed=2, turn=2) != quiz_of(ADA, CARDS, seed=1, turn=2)


def test_the_right_letter_is_no_habit():
    letters = [question.letter for scenario in CARDS[:100] for question in quiz_of(scenario, CARDS, seed=0, turn=0)]
    assert all(0.15 < letters.count(letter) / len(letters) < 0.35 for letter in LETTERS)


def test_whoever_plays_the_user_is_asked_with_its_own_prompt_and_history():
    dialogue = Dialogue(scenario=ADA, difficulty=Difficulty.along(0.5), seed=0)
    questions = quiz_of(ADA, CARDS, seed=1, turn=0)
    (role, system), (_, asked) = messages_to_quiz(dialogue, questions)
    assert role == "system" and "Ada, 27 years old" in system and ADA.hidden_intention in system
    assert "not talked to anybody" in asked and f"person: {questions[0].text}" in asked
    begun = dialogue.then(Turn(speaker=Speaker.USER, text="I burned <all> of it.", emotion=40))
    assert '{"speaker": "you", "text": "I burned \\u003call\\u003e of it."}' in messages_to_quiz(begun, questions)[1][1]


def test_answers_are_read_strictly():
    questions = quiz_of(ADA, CARDS, seed=1, turn=0)
    right = {question.name: question.letter for question in questions}
    assert read_quiz(json.dumps(right), questions) == right
    assert list(schema_to_quiz(questions)["properties"]) == list(right)
    for broken in ("{}", "A", json.dumps({**right, "wish": "E"}), json.dumps({**right, "wish": 1}), json.dumps({**right, "goal": ""})):
        with pytest.raises(Unusable):
            read_quiz(broken, questions)


def test_a_card_is_asked_only_what_it_can_answer():
    """Profiles of SAGE hold a person, a goal and a wish; that all their goals are alike leaves nothing to choose."""
    ours = [profile_of(scenario) for scenario in CARDS[:60]]
    # SAGE's own have no topic, of which a goal would be read.
    theirs = [{name: value for name, value in record.items() if name != "topic"} for record in ours]
    for records, names in ((theirs, ["person", "wish"]), (ours, ["person", "goal", "wish"])):
        profiles = [scenario_of(record, split=Split.TRAIN) for record in records]
        assert [question.name for question in quiz_of(profiles[0], profiles, seed=0, turn=0)] == names
