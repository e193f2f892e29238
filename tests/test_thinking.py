"""An agent that thinks: replies split into thought and words, and dialogues of one sequence or of one for each reply."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from policy.algorithms.advantages import group_advantages, to_tokens, turn_advantages, turns_to_tokens
from policy.algorithms.algorithms import Grpo
from policy.batch import collate
from policy.config import GrpoConfig
from policy.mode import MARK, check_mode
from policy.rollout.dialogue import RolloutGroup
from simulator.dialogue import Outcome
from simulator.tokens import CLOSE, INSTRUCTION, OPEN, Chat, take_apart, thought_of
from tests.test_rollout import FakeEngine, FakeUser, play
from tests.tiny_policy import chatml_tokenizer, tiny_tokenizer
from tests.tiny_scenario import AnyTask

STRIPPING = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% if loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
"""In the manner of Qwen3: thoughts of earlier turns are stripped, and only the last turn has a place for one."""


def tokenizer(*, template=None):
    made = tiny_tokenizer()
    made.add_tokens(["<think>", "</think>"])
    made.chat_template = template or made.chat_template
    return made


TOKENIZER = tokenizer()
KEEPING = Chat(TOKENIZER, thinking=True)
FORKING = Chat(TOKENIZER, thinking=True, keep_thoughts=False)
BOTH = pytest.mark.parametrize("chat", [KEEPING, FORKING], ids=["keeping", "forking"])


def sampled(text, *, chat=KEEPING, finish="stop"):
    """What an engine returns for a reply of this text."""
    return (*TOKENIZER(text, add_special_tokens=False)["input_ids"], *([chat.end_of_turn_id] if finish == "stop" else [])), finish


class ThinkingEngine(FakeEngine):
    """Decodes with the tags, and remembers what it returned."""

    def __init__(self, *replies):
        super().__init__(*replies)
        self.returned = []

    async def __call__(self, prompt_ids, *, sampling, seed):
        completion = await super().__call__(prompt_ids, sampling=sampling, seed=seed)
        completion = type(completion)(**{**vars(completion), "text": KEEPING.decode(completion.token_ids)})
        self.returned.append(completion)
        return completion


class HearingUser(FakeUser):
    """Remembers what it heard, and what it was shown of the dialogue."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.heard, self.seen = [], []

    async def react(self, dialogue, reply):
        self.heard.append(reply.text if hasattr(reply, "text") else reply)
        self.seen.append(str(dialogue))
        return await super().react(dialogue, reply)


THREE = ("<think>secret one</think>x", "no tags at all", "<think>secret three</think>z")


def thinking_rollout(chat, *replies, change=5, **settings):
    replies = replies or THREE
    engine = ThinkingEngine(*(sampled(reply) for reply in replies))
    user = HearingUser(ends_after=len(replies), change=change)
    return play(user=user, engine=engine, chat=chat, **settings), engine, user


@BOTH
def test_the_user_hears_the_words_alone(chat):
    rollout, _, user = thinking_rollout(chat)
    assert user.heard == ["x", "", "z"]
    assert not any("secret" in seen for seen in user.seen)
    assert rollout.dialogue.replies() == ["x", "", "z"] and rollout.dialogue.outcome is Outcome.FAREWELL
    assert [thought.text for thought in rollout.thoughts] == ["secret one", "no tags at all", "secret three"]
    assert [thought.well_formed for thought in rollout.thoughts] == [True, False, True]
    assert "secret" not in str(rollout.dialogue.to_dict())


@BOTH
def test_what_is_trained_on_is_what_was_sampled_each_token_once_in_the_context_it_was_sampled_in(chat):
    rollout, engine, _ = thinking_rollout(chat)
    mask = rollout.loss_mask
    assert rollout.token_ids[mask].tolist() == [token for reply in engine.returned for token in reply.token_ids]
    assert rollout.rollout_logprobs[mask].tolist() == [logprob for reply in engine.returned for logprob in reply.logprobs]
    assert rollout.num_sampled == sum(len(reply.token_ids) for reply in engine.returned)
    for turn, (asked, reply) in enumerate(zip(engine.asked, engine.returned, strict=True)):
        begins = int(np.flatnonzero(mask & (rollout.turn_ids == turn))[0])
        segment = next(segment for segment in rollout.segments if segment.start <= begins < segment.stop)
        assert tuple(rollout.token_ids[segment.start : begins].tolist()) == asked.prompt_ids
        assert tuple(rollout.token_ids[begins : begins + len(reply.token_ids)].tolist()) == reply.token_ids


def test_thoughts_stay_in_the_context_of_one_sequence_or_leave_it_for_a_sequence_a_reply():
    kept, engine, _ = thinking_rollout(KEEPING)
    assert kept.segment_starts == (0,) and "secret one" in TOKENIZER.decode(engine.asked[2].prompt_ids)
    forked, engine, _ = thinking_rollout(FORKING)
    spoken = "<|user|>a<|end|><|assistant|>x<|end|><|user|>b<|end|><|assistant|><|end|><|user|>c<|end|><|assistant|>"
    assert len(forked.segments) == 3 and TOKENIZER.decode(engine.asked[2].prompt_ids) == spoken


def test_a_template_that_strips_thoughts_forks_and_one_that_keeps_them_does_not():
    stripping = tokenizer(template=STRIPPING)
    chat = Chat(stripping, thinking=True)
    assert chat.forks and not KEEPING.forks
    rollout, engine, _ = thinking_rollout(chat)
    assert len(rollout.segments) == 3
    messages = rollout.dialogue.messages()[:3]
    text = stripping.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=True)
    assert TOKENIZER.decode(engine.asked[1].prompt_ids) == text
    with pytest.raises(ValueError, match=r"policy\.keep_thoughts"):
        Chat(stripping, thinking=True, keep_thoughts=True)


def test_a_model_without_tokens_for_the_tags_gets_an_instruction_and_tags_that_decoding_drops_are_refused():
    def opening(chat):
        return chat.decode(chat.opening_ids([{"role": "user", "content": "a"}]))

    assert INSTRUCTION in opening(Chat(chatml_tokenizer(), thinking=True)) and INSTRUCTION not in opening(KEEPING)
    assert f"Be kind.\n\n{INSTRUCTION}" in opening(Chat(chatml_tokenizer(), "Be kind.", thinking=True))
    named = opening(Chat(chatml_tokenizer(), f"Think between {OPEN} and {CLOSE}.", thinking=True))
    assert INSTRUCTION not in named and f"Think between {OPEN}" in named
    made = tiny_tokenizer()
    made.add_tokens([OPEN, CLOSE], special_tokens=True)
    with pytest.raises(ValueError, match=r"policy\.thinking must be false"):
        Chat(made, thinking=True)


def test_malformed_replies_cost_reward_and_the_terms_say_so():
    """One reply of three is malformed. The user's emotion goes from 40 to 55, or to 25; 5 points are half of a turn's largest reward."""
    rollout, _, _ = thinking_rollout(KEEPING)
    assert rollout.reward.terms == pytest.approx({"emotion": 0.55, "format": 2 / 3})
    assert rollout.reward.total == pytest.approx(0.55 * 2 / 3) and rollout.turn_rewards == (0.5, 0.0, 0.5)
    half, _, _ = thinking_rollout(KEEPING, format_weight=0.5)
    assert half.reward.total == pytest.approx(0.55 * 5 / 6) and half.turn_rewards == (0.5, 0.25, 0.5)
    losing, _, _ = thinking_rollout(KEEPING, change=-5)  # a loss is not made smaller
    assert losing.reward.total == pytest.approx(0.25 * 2 / 3) and losing.turn_rewards == (-0.5, -0.5, -0.5)
    sound, _, _ = thinking_rollout(KEEPING, THREE[0])
    assert sound.reward.total == 0.45 and sound.reward.terms == {"emotion": 0.45, "format": 1.0}


def siblings(chat):
    """Dialogues of one, two and three replies."""
    return RolloutGroup(task=AnyTask(group_size=3), rollouts=tuple(thinking_rollout(chat, *THREE[-length:])[0] for length in (1, 2, 3)))


def advantages(whole, **settings):
    return Grpo(GrpoConfig(**settings)).add_advantages(whole)


@BOTH
def test_the_kls_coefficient_moves_by_dialogues_and_not_by_sequences(chat):
    algorithm = Grpo(GrpoConfig(kl_coef=0.1, kl_target=0.01, kl_horizon=100.0))
    algorithm.observe(collate([siblings(chat)]).by_segment(), {"actor/kl_loss": 9.0})
    assert algorithm.kl_coef == pytest.approx(0.1 * (1 + 0.2 * 3 / 100))


def test_each_sequence_becomes_a_row_and_a_dialogue_counts_once_in_its_group():
    group = siblings(FORKING)
    whole = advantages(collate([group]), turn_credit=0.5)
    batch = whole.by_segment()
    assert batch.rollout_ids_B.tolist() == [0, 1, 1, 2, 2, 2]
    assert batch.num_trained == whole.num_trained == sum(rollout.num_sampled for rollout in group.rollouts)
    for row, ids in enumerate(rollout.token_ids[segment] for rollout in group.rollouts for segment in rollout.segments):
        assert batch.token_ids_BT[row, : len(ids)].tolist() == ids.tolist()
        assert batch.attention_BT[row].sum() == len(ids) and not batch.token_ids_BT[row, len(ids) :].any()
    rows, siblings_of = batch.rollout_ids_B, (whole.group_ids_B, whole.valid_B)
    assert batch.rewards_B.tolist() == whole.rewards_B[rows].tolist()
    by_turn_BK = turn_advantages(whole.turn_rewards_BK, *siblings_of, discount=GrpoConfig().turn_discount)
    expected_BT = 0.5 * to_tokens(group_advantages(whole.rewards_B, *siblings_of)[rows], batch.loss_mask_BT)
    expected_BT += 0.5 * turns_to_tokens(by_turn_BK[rows], batch.turn_ids_BT, batch.loss_mask_BT)
    torch.testing.assert_close(batch.advantages_BT, expected_BT)
    assert (kept := collate([siblings(KEEPING)])).by_segment() is kept


def test_a_token_is_scored_in_its_own_sequence():
    whole = collate([siblings(FORKING)])
    sequences = whole.by_segment()

    def place(batch):
        return torch.arange(batch.token_ids_BT.shape[1]).float().expand(batch.token_ids_BT.shape) * batch.loss_mask_BT

    scores_BT = whole.score_by_segment(place)
    assert scores_BT[whole.loss_mask_BT].tolist() == place(sequences)[sequences.loss_mask_BT].tolist()
    assert not scores_BT[~whole.loss_mask_BT].any()
    assert scores_BT[whole.loss_mask_BT].tolist() != place(whole)[whole.loss_mask_BT].tolist()


# Replies ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "thought", "words", "well_formed"),
    [
        ("<think>They want advice.</think>You could ask.", "They want advice.", "You could ask.", True),
        ("<think>a</think>", "a", "", False),
        ("<think>a", "a", "", False),
        ("a</think>b", "a", "b", False),
        ("Hello. <think>a</think>b", "Hello. <think>a", "b", False),
        ("<think>a</think>b<think>c", "a c", "b", False),
        ("<think>a<think>b</think>c", "a<think>b", "c", False),
    ],
)
def test_the_user_hears_what_follows_the_last_closing_tag_and_no_thought(text, thought, words, well_formed):
    said = take_apart(text)
    assert (said.thought, said.words, said.well_formed) == (thought, words, well_formed)


def test_a_thought_that_the_template_opened_needs_no_opening_tag():
    assert take_apart("a</think>b", opened=True).well_formed and not take_apart("<think>a</think>b", opened=True).well_formed


CUT_OFF = [("<think>ab</think>cd", 17, False), ("<think>a</think>b<think>c</think>d", 33, False), ("<think>a", 8, True)]


@pytest.mark.parametrize(("text", "num_tokens", "is_cut_off"), CUT_OFF)
def test_a_thoughts_tokens_reach_to_its_last_closing_tag_of_many_tokens_or_it_is_cut_off(text, num_tokens, is_cut_off):
    """Every letter is a token here, and the reply ran out of them."""

    def decode(token_ids):
        return "".join(map(chr, token_ids))

    cut, ended = (thought_of(take_apart(text), list(map(ord, text)), decode=decode, ran_out=ran_out) for ran_out in (True, False))
    assert (cut.num_tokens, cut.cut_off) == (num_tokens, is_cut_off)
    assert (ended.num_tokens, ended.cut_off) == (num_tokens, False)


def test_a_model_of_ours_is_refused_in_the_mode_it_did_not_learn(tmp_path):
    """By its mark; a prior without one does not think, and a model that is not ours may do either."""
    cases = (({}, True, [True]), ({MARK: True}, True, [False]), ({MARK: False}, False, [True]), ({}, False, []))
    for number, (config, is_prior, refused) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        if is_prior:
            (folder / "recipe.json").write_text("{}")
        for thinking in (True, False):
            with pytest.raises(ValueError, match=r"policy\.thinking") if thinking in refused else nullcontext():
                check_mode(folder, thinking=thinking)
