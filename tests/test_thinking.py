"""An agent that thinks: replies split into thought and words, and dialogues of one sequence or of one for each reply."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from policy_factories import AnyTask

from policy.algorithms.advantages import group_advantages, to_tokens, turn_advantages, turns_to_tokens
from policy.algorithms.algorithms import Grpo
from policy.batch import collate
from policy.config import EngineConfig, GrpoConfig
from policy.rollout.chat import CLOSE, INSTRUCTION, MARK, OPEN, Chat, check_mode, take_apart, thought_of, turns_with_format, with_format
from policy.rollout.dialogue import RolloutGroup
from simulator.dialogue import Outcome
from simulator.reward import Reward
from tests.test_rollout import FakeEngine, FakeUser, play
from tests.tiny_policy import chatml_tokenizer, tiny_tokenizer

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


def thinking_rollout(chat, *replies, **settings):
    replies = replies or THREE
    engine = ThinkingEngine(*(sampled(reply) for reply in replies))
    user = HearingUser(ends_after=len(replies))
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


def test_thoughts_stay_in_the_context_of_one_sequence_or_leave_it_for_sequences_of_their_own():
    kept, engine, _ = thinking_rollout(KEEPING)
    assert kept.segment_starts == (0,) and "secret one" in TOKENIZER.decode(engine.asked[2].prompt_ids)
    forked, engine, _ = thinking_rollout(FORKING)
    assert len(forked.segments) == 3
    assert TOKENIZER.decode(engine.asked[2].prompt_ids) == "<|user|>a<|end|><|assistant|>x<|end|><|user|>b<|end|><|assistant|><|end|>" + (
        "<|user|>c<|end|><|assistant|>"
    )


def test_a_template_that_strips_thoughts_forks_and_one_that_keeps_them_does_not():
    stripping = tokenizer(template=STRIPPING)
    chat = Chat(stripping, thinking=True)
    assert chat.forks and not KEEPING.forks
    rollout, engine, _ = thinking_rollout(chat)
    assert len(rollout.segments) == 3
    messages = rollout.dialogue.messages()[:3]
    text = stripping.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=True)
    assert TOKENIZER.decode(engine.asked[1].prompt_ids) == text
    with pytest.raises(ValueError, match=r"policy\.keep_thoughts must be false or unset with a chat template that strips"):
        Chat(stripping, thinking=True, keep_thoughts=True)


def test_a_model_without_tokens_for_the_tags_is_told_of_them():
    chat = Chat(chatml_tokenizer(), thinking=True)
    assert INSTRUCTION in chat.decode(chat.opening_ids([{"role": "user", "content": "a"}]))
    chat = Chat(chatml_tokenizer(), "Be kind.", thinking=True)
    assert f"Be kind.\n\n{INSTRUCTION}" in chat.decode(chat.opening_ids([{"role": "user", "content": "a"}]))
    own = f"Think between {OPEN} and {CLOSE}."
    chat = Chat(chatml_tokenizer(), own, thinking=True)
    assert INSTRUCTION not in (text := chat.decode(chat.opening_ids([{"role": "user", "content": "a"}]))) and own in text
    assert INSTRUCTION not in KEEPING.decode(KEEPING.opening_ids([{"role": "user", "content": "a"}]))


def test_tags_that_decoding_drops_are_refused():
    made = tiny_tokenizer()
    made.add_tokens(["<think>", "</think>"], special_tokens=True)
    with pytest.raises(ValueError, match=r"policy\.thinking must be false with a tokenizer whose decoding drops </think>"):
        Chat(made, thinking=True)


def test_a_context_that_strips_thoughts_fits_more_turns():
    long = "<think>" + "secret " * 6 + "</think>x"
    for chat, ending in ((KEEPING, Outcome.TRUNCATED), (FORKING, Outcome.MAX_TURNS)):
        rollout, engine, _ = thinking_rollout(chat, *([long] * 6), max_turns=5, max_new_tokens=30, max_context=110)
        assert rollout.dialogue.outcome is ending
        assert all(len(asked.prompt_ids) + 30 < 110 for asked in engine.asked)
        assert all(segment.stop - segment.start <= 110 for segment in rollout.segments)


def test_broken_replies_cost_reward_and_the_terms_say_so():
    rollout, _, _ = thinking_rollout(KEEPING)
    emotion = rollout.dialogue.emotion / 100
    assert rollout.reward.total == pytest.approx(emotion * 2 / 3) and rollout.reward.terms == pytest.approx(
        {"emotion": emotion, "format": 2 / 3}
    )
    assert rollout.turn_rewards == (0.5, 0.0, 0.5)


def test_an_error_has_neither_reward_nor_thoughts_to_judge():
    user = HearingUser(breaks_at={2: 9})
    rollout = play(user=user, engine=ThinkingEngine(*map(sampled, THREE)), chat=FORKING, retries=0)
    assert rollout.dialogue.outcome is Outcome.ERROR and np.isnan(rollout.reward.total)
    assert collate([RolloutGroup(task=AnyTask(group_size=1), rollouts=(rollout,))]).num_trained == 0


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
        EngineConfig(keep_thoughts=True)
    with pytest.raises(ValueError, match="format_weight"):
        EngineConfig(format_weight=1.5)


def model(folder, *, marked=None, recipe=False):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({} if marked is None else {MARK: marked}))
    if recipe:
        (folder / "recipe.json").write_text("{}")
    return folder


def test_a_model_of_ours_is_refused_in_the_mode_it_did_not_learn(tmp_path):
    prior, thinker = model(tmp_path / "prior", recipe=True), model(tmp_path / "thinker", marked=True, recipe=True)
    plain, other = model(tmp_path / "checkpoint", marked=False), model(tmp_path / "other")
    for folder, thinking in ((prior, True), (thinker, False), (plain, True)):
        with pytest.raises(ValueError, match=r"policy\.thinking"):
            check_mode(folder, thinking=thinking)
    for folder, thinking in ((prior, False), (thinker, True), (other, True), (other, False)):
        check_mode(folder, thinking=thinking)
