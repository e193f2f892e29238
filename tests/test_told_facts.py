"""Facts that the embedded policy was told: how the questions are made, and that likelihoods answer them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_policy import save_tiny_policy
from tokenizers import AddedToken

from experiments.agents.reliability import Condition, Verdict, choose_in, told_facts
from policy.model import load_model
from policy.rollout.chat import CLOSE, MARK, OPEN
from simulator.scenario import Split
from simulator.text import words_of
from simulator.world import load_bank


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_policy(tmp_path_factory.mktemp("tiny"), hidden=32, layers=1)


@pytest.fixture(scope="module")
def facts(folder):
    return told_facts(load_model(folder)[1], num=12, seed=0)


def test_the_right_thing_was_told_and_the_wrong_one_only_by_the_claim(facts):
    assert len(facts) == 12
    for fact in facts:
        told = {condition: words_of(" ".join(m["content"] for m in messages)) for condition, messages in fact.conversation.items()}
        assert all(fact.right in words for words in told.values())
        assert [fact.wrong in told[condition] for condition in Condition] == [False, False, True]
        assert fact.begun.endswith(" the") and fact.right.endswith("s") == fact.wrong.endswith("s")


def test_conditions_differ_in_the_last_turn_alone(facts):
    for fact in facts:
        plain, emotional, belief = (fact.conversation[condition] for condition in Condition)
        assert plain[:2] == emotional[:2] == belief[:2] and len(plain) == 3
        assert plain[2] != emotional[2] and belief[2]["content"].startswith(plain[2]["content"])


def test_both_things_are_as_long_in_tokens(folder, facts):
    tokenizer = load_model(folder)[1]
    assert all(len({len(tokenizer(f" {noun}", add_special_tokens=False).input_ids) for noun in (f.right, f.wrong)}) == 1 for f in facts)


def test_no_training_scenario_is_asked_about(facts):
    training = {scenario.opening for scenario in load_bank().scenarios(Split.TRAIN)}
    assert not any(opening in fact.conversation[Condition.PLAIN][0]["content"] for fact in facts for opening in training)


def test_questions_are_the_same_for_the_same_seed(folder, facts):
    tokenizer = load_model(folder)[1]
    assert told_facts(tokenizer, num=12, seed=0) == facts != told_facts(tokenizer, num=12, seed=1)


def test_the_likelier_thing_is_the_answer(folder):
    items, margins, digest = choose_in(folder, num=6, seed=0)
    assert len(items) == 6 and len(digest) == 16
    for item in items:
        for condition in Condition:
            assert (margins[item.name][condition] > 0) == (item.verdicts[condition] is Verdict.RIGHT)
    assert choose_in(folder, num=6, seed=0)[1] == margins


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights, marked as those of a policy that thinks, with tokens for the tags."""
    folder = save_tiny_policy(tmp_path_factory.mktemp("thinker"), hidden=32, layers=1)
    tokenizer = load_model(folder)[1]
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in (OPEN, CLOSE)])
    tokenizer.save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), MARK: True}))
    return folder


def test_one_that_thinks_chooses_in_its_thought(thinker, facts):
    asked = told_facts(load_model(thinker)[1], num=12, seed=0, thinking=True)
    assert {fact.begun for fact in asked} == {"<think>Wish unclear, told of the"}
    assert [(fact.right, fact.wrong, fact.conversation) for fact in asked] == [(f.right, f.wrong, f.conversation) for f in facts]


def test_what_was_chosen_in_thoughts_is_another_probe(folder, thinker):
    (items, margins, digest), (_, plain_margins, plain_digest) = (choose_in(where, num=6, seed=0) for where in (thinker, folder))
    assert len(items) == 6 and digest != plain_digest and margins != plain_margins
    assert choose_in(thinker, num=6, seed=0)[1] == margins
