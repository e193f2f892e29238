"""A sampled reply taken apart: what the user hears, what it never hears, and what a broken form costs."""

from __future__ import annotations

import json

import pytest

from policy.config import EngineConfig, ThinkingConfig
from policy.rollout.chat import CLOSE, MARK, OPEN, check_mode, take_apart, thought_of, turns_with_format, with_format
from simulator.reward import Reward


@pytest.mark.parametrize(
    ("text", "thought", "words", "well_formed"),
    [
        ("<think>They want advice.</think>You could ask.", "They want advice.", "You could ask.", True),
        (" <think> a </think>\n\nb ", "a", "b", True),
        ("<think>a</think>", "a", "", False),
        ("<think></think>b", "", "b", False),
        ("<think>a", "a", "", False),
        ("b", "b", "", False),
        ("", "", "", False),
        ("a</think>b", "a", "b", False),
        ("Hello. <think>a</think>b", "Hello. <think>a", "b", False),
        ("<think>a</think>b<think>c</think>d", "a</think>b<think>c", "d", False),
        ("<think>a</think>b<think>c", "a c", "b", False),
        ("<think>a<think>b</think>c", "a<think>b", "c", False),
        ("<think>a</think>b</think>c", "a</think>b", "c", False),
    ],
)
def test_the_user_hears_what_follows_the_last_closing_tag_and_no_thought(text, thought, words, well_formed):
    said = take_apart(text)
    assert (said.thought, said.words, said.well_formed) == (thought, words, well_formed)
    assert OPEN not in said.words and CLOSE not in said.words


def test_a_thought_that_the_template_opened_needs_no_opening_tag():
    said = take_apart("a</think>b", opened=True)
    assert (said.thought, said.words, said.well_formed) == ("a", "b", True)
    assert not take_apart("<think>a</think>b", opened=True).well_formed


def spelled(token_ids):
    return "".join(chr(token) for token in token_ids)


def kept(text, *, ran_out=False):
    return thought_of(take_apart(text), [ord(letter) for letter in text], decode=spelled, ran_out=ran_out)


def test_a_thoughts_tokens_are_counted_up_to_its_last_closing_tag_even_if_tags_are_many_tokens():
    assert kept("<think>ab</think>cd").num_tokens == len("<think>ab</think>")
    assert kept("<think>a</think>b<think>c</think>d").num_tokens == len("<think>a</think>b<think>c</think>")
    assert kept("no tags").num_tokens == len("no tags")
    assert kept("").num_tokens == 0


def test_a_thought_is_cut_off_when_the_tokens_end_before_it_does():
    assert kept("<think>a", ran_out=True).cut_off
    assert not kept("<think>a").cut_off
    assert not kept("<think>a</think>b", ran_out=True).cut_off


def test_broken_replies_scale_the_reward_down_and_sound_ones_leave_it():
    sound, broken = kept("<think>a</think>b"), kept("b")
    reward = Reward(total=0.8, terms={"emotion": 0.8})
    assert with_format(reward, [sound, sound], weight=1.0) == Reward(total=0.8, terms={"emotion": 0.8, "format": 1.0})
    half = with_format(reward, [sound, broken, broken, sound], weight=0.5)
    assert half.total == pytest.approx(0.8 * 0.75) and half.terms == {"emotion": 0.8, "format": 0.5}
    assert with_format(reward, [broken], weight=1.0).total == 0.0
    assert with_format(reward, [broken], weight=0.0).total == 0.8
    assert turns_with_format([0.4, 0.4, -0.4], [sound, broken, broken], weight=0.5) == [0.4, 0.2, -0.4]


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match=r"policy\.keep_thoughts must be unset where policy\.thinking is false, got True"):
        ThinkingConfig(keep_thoughts=True)
    with pytest.raises(ValueError, match=r"policy\.format_weight must be in \[0, 1\], got 1\.5"):
        EngineConfig(format_weight=1.5)


def model(folder, *, marked=None, recipe=False):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({} if marked is None else {MARK: marked}))
    if recipe:
        (folder / "recipe.json").write_text("{}")
    return folder


def test_a_model_of_ours_is_refused_in_the_mode_it_did_not_learn(tmp_path):
    prior = model(tmp_path / "prior", recipe=True)
    thinker = model(tmp_path / "thinker", marked=True, recipe=True)
    with pytest.raises(
        ValueError, match=r"learnt to speak without thoughts, got true; set policy\.thinking=false, or policy\.model=embedded"
    ):
        check_mode(prior, thinking=True)
    with pytest.raises(ValueError, match=r"learnt to think before it speaks, got false; set policy\.thinking=true$"):
        check_mode(thinker, thinking=False)
    with pytest.raises(ValueError, match="without thoughts"):
        check_mode(model(tmp_path / "checkpoint", marked=False), thinking=True)
    check_mode(prior, thinking=False)
    check_mode(thinker, thinking=True)


@pytest.mark.parametrize("thinking", [True, False])
def test_a_model_that_is_not_ours_may_do_either(tmp_path, thinking):
    check_mode(model(tmp_path / "other"), thinking=thinking)
