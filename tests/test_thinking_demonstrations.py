"""What the thinking prior is shown: thoughts that are short, true, and tell which reply follows."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from policy.config import DemonstrationConfig, PriorConfig
from policy.prior import prior_folder
from policy.prior.demonstrations import MOVES, WISHES, demonstrate, thoughts
from policy.prior.prior import build_prior, build_tokenizer, encode, words_told
from policy.rollout.chat import CLOSE, OPEN, learnt_to_think, take_apart
from simulator.dialogue import Speaker
from simulator.emotion import hint_in, skill_table
from simulator.listener import strategies_in
from simulator.scenario import HiddenIntention, Split
from simulator.world import load_bank

SCENARIOS = load_bank().scenarios(Split.TRAIN)
RECIPE = PriorConfig(num_tokens=20_000, vocab_size=600, hidden_size=32, num_layers=1, num_heads=2, thinking=True)
DEMOS = list(itertools.islice(demonstrate(DemonstrationConfig().skilled(0.6), SCENARIOS, seed=0), 80))


def pairs():
    """Each reply with the dialogue before it and its thought."""
    chance = random.Random(0)
    for demo in DEMOS:
        turns = demo.dialogue.turns
        places = [number for number, turn in enumerate(turns) if turn.speaker is Speaker.AGENT]
        for number, thought in zip(places, thoughts(demo, chance), strict=True):
            yield replace(demo.dialogue, turns=turns[:number]), turns[number].text, thought


def test_every_wish_and_every_move_has_a_name_of_its_own():
    assert set(WISHES) == set(HiddenIntention) and len(set(WISHES.values())) == len(WISHES)
    assert {move for moves in skill_table()["meets"].values() for move in moves} <= set(MOVES)
    assert len(set(MOVES.values())) == len(MOVES)


def test_a_thought_names_the_move_that_follows_and_what_it_takes_up():
    for _, reply, thought in pairs():
        for strategy in strategies_in(reply):
            assert MOVES[strategy] in thought.text
        assert all(phrase in thought.text and phrase.lower() in reply.lower() for phrase in thought.copied)


def test_a_thought_names_the_wish_that_was_hinted_at_last_and_no_other():
    named = 0
    for before, _, thought in pairs():
        said = [turn.text for turn in before.turns if turn.speaker is Speaker.USER]
        hints = [wish for text in said if (wish := hint_in(text, kinds=("overt", "veiled")))]
        wished = [WISHES[wish] for wish in hints[-1:]]
        assert [wish for wish in WISHES.values() if wish in thought.chosen] == wished
        named += bool(wished)
    assert named > 100


def test_thoughts_are_short_and_vary():
    texts = [thought.text for _, _, thought in pairs()]
    assert max(len(text.split()) for text in texts) <= 14
    assert len({text.split(",")[0].split(":")[0].split(" ")[0] for text in texts}) >= 4


def test_a_thinking_demonstration_is_the_plain_one_with_thoughts_in_it():
    tokenizer = build_tokenizer(RECIPE, [words_told(SCENARIOS)])
    for demo in DEMOS[:10]:
        ids, weights = encode(demo, tokenizer, RECIPE, random.Random(0))
        said = "".join(tokenizer.decode(ids, skip_special_tokens=False).split("<|end|>"))
        replies = [take_apart(part.partition("<|user|>")[0]) for part in said.split("<|assistant|>")[1:]]
        assert [reply.words for reply in replies] == demo.dialogue.replies() and all(reply.well_formed for reply in replies)
        assert len(ids) == len(weights)
        opening = [place for place, token in enumerate(ids) if token == tokenizer.convert_tokens_to_ids(OPEN)]
        assert opening and all(weights[place] > 0 for place in opening)


def test_the_plain_recipe_is_what_it_was_and_the_thinking_one_is_another():
    assert prior_folder(PriorConfig()) == prior_folder(PriorConfig(thinking=False)) != prior_folder(PriorConfig(thinking=True))


def test_a_prior_that_thinks_says_so_and_keeps_its_tags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = build_prior(RECIPE, progress=False)
    plain = build_prior(replace(RECIPE, thinking=None, num_tokens=2_000), progress=False)
    assert learnt_to_think(folder) is True and learnt_to_think(plain) is False
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    text = f"{OPEN}They want advice.{CLOSE}You could ask."
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids, skip_special_tokens=True) == text
