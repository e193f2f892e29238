"""Dialogues and groups, with engines and users that a test can predict."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from policy.config import RolloutConfig
from policy.engine.engine import Completion, Request
from policy.rollout.dialogue import RolloutContext, SamplingOverrides, roll_out, roll_out_group, sampling_seed
from policy.rollout.outage import Outage
from policy.rollout.worker import Lockstep
from simulator.dialogue import Dialogue, Outcome, Reaction, Speaker, Turn
from simulator.scenario import Difficulty
from simulator.tokens import Chat
from tests.tiny_policy import make_scenario, tiny_tokenizer
from tests.tiny_scenario import AnyTask

TOKENIZER = tiny_tokenizer()
CHAT = Chat(TOKENIZER)
END, USER, AGENT = 0, 3, 4
"""Ids of <|end|>, <|user|> and <|assistant|> in the tiny tokenizer."""


def ids(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


class FakeUser:
    """Says `a`, `b`, `c` and so on; ends after `ends_after` replies, and breaks at a reply as often as `breaks_at` says."""

    def __init__(self, *, ends_after=99, outcome=Outcome.FAREWELL, breaks_at=None, delay_s=0.0, change=5):
        self.ends_after, self.outcome, self.breaks_at, self.delay_s = ends_after, outcome, dict(breaks_at or {}), delay_s
        self.change, self.opened_with = change, []

    async def open(self, scenario, difficulty, *, seed):
        self.opened_with.append(seed)
        return Dialogue(scenario=scenario, difficulty=difficulty, seed=seed).then(Turn(speaker=Speaker.USER, text="a", emotion=40))

    async def react(self, dialogue, reply):
        await asyncio.sleep(self.delay_s)
        turn = dialogue.num_replies + 1
        if self.breaks_at.get(turn, 0) > 0:
            self.breaks_at[turn] -= 1
            raise ConnectionError(f"the user broke at reply {turn}")
        said = Turn(speaker=Speaker.USER, text="abcdefghij"[turn], emotion=dialogue.emotion + self.change, change=self.change)
        return Reaction(turn=said, outcome=self.outcome if turn >= self.ends_after else None)


class FakeEngine:
    """Replies `x` and an end of turn, or what `replies` says; remembers what it was asked."""

    def __init__(self, *replies):
        self.replies = list(replies)
        self.asked = []

    async def __call__(self, prompt_ids, *, sampling, seed):
        self.asked.append(Request(prompt_ids=tuple(prompt_ids), sampling=sampling, seed=seed))
        await asyncio.sleep(0)
        token_ids, finish = self.replies.pop(0) if self.replies else ((*ids("x"), END), "stop")
        logprobs = tuple(-0.5 - i for i in range(len(token_ids)))
        return Completion(
            token_ids=token_ids, logprobs=logprobs, text=CHAT.decode(token_ids), finish_reason=finish, policy_version=len(self.asked)
        )


def context(*, user=None, engine=None, chat=CHAT, **settings):
    names = ("outage", "overrides", "on_finished", "format_weight")
    named = {name: settings.pop(name) for name in names if name in settings}
    config = RolloutConfig(**{"retry_backoff_s": 0.0, **settings})
    return RolloutContext(user=user or FakeUser(), generate=engine or FakeEngine(), chat=chat, config=config, **named)


def play(**parts):
    return asyncio.run(roll_out(context(**parts), make_scenario(), Difficulty.along(0.5), 11))


def group_of(group_size, **parts):
    return asyncio.run(roll_out_group(context(**parts), AnyTask(group_size=group_size, seed=11), make_scenario()))


# Tokens ----------------------------------------------------------------------------------------------------------------------------


def test_arrays_of_two_replies_are_as_documented_and_go_with_dialogue_reward_and_versions():
    rollout = play(user=FakeUser(ends_after=2))
    a, b, c, x = (ids(letter)[0] for letter in "abcx")
    assert rollout.token_ids.tolist() == [USER, a, END, AGENT, x, END, USER, b, END, AGENT, x, END, USER, c, END]
    assert rollout.turn_ids.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2]
    assert rollout.loss_mask.tolist() == [i in (4, 5, 10, 11) for i in range(15)]
    assert rollout.rollout_logprobs.tolist() == [{4: -0.5, 5: -1.5, 10: -0.5, 11: -1.5}.get(i, 0.0) for i in range(15)]
    arrays = (rollout.token_ids, rollout.turn_ids, rollout.loss_mask, rollout.rollout_logprobs)
    assert [array.dtype for array in arrays] == [np.int32, np.int16, np.bool_, np.float32]

    assert rollout.dialogue.outcome is Outcome.FAREWELL
    spoken = [(str(turn.speaker), turn.text) for turn in rollout.dialogue.turns]
    assert spoken == [("user", "a"), ("agent", "x"), ("user", "b"), ("agent", "x"), ("user", "c")]
    assert rollout.reward.total == pytest.approx(0.5) and rollout.turn_rewards == (0.5, 0.5)
    assert rollout.policy_versions == (1, 2) and rollout.reply_versions == (1, 2)
    assert rollout.token_versions.tolist() == [1, 1, 2, 2] and rollout.num_sampled == 4


def test_sampled_ids_are_kept_even_where_tokenising_their_text_gives_others():
    letters = tuple(i for letter in "sister" for i in ids(letter))
    assert len(ids("sister")) < len(letters)
    rollout = play(user=FakeUser(ends_after=1), engine=FakeEngine(((*letters, END), "stop")))
    assert rollout.dialogue.replies() == ["sister"]
    assert tuple(rollout.token_ids[rollout.loss_mask]) == (*letters, END)


def test_a_reply_cut_by_length_gets_an_end_that_was_not_sampled_and_is_answered():
    rollout = play(user=FakeUser(ends_after=1), engine=FakeEngine((tuple(ids("x") * 3), "length")), max_new_tokens=3)
    assert rollout.dialogue.replies() == ["xxx"]
    assert rollout.token_ids[4:8].tolist() == [*ids("x") * 3, END]
    assert rollout.loss_mask[3:9].tolist() == [False, True, True, True, False, False]


# Ends ------------------------------------------------------------------------------------------------------------------------------


def test_a_dialogue_ends_after_max_turns_unless_the_user_ends_it_or_an_evaluation_is_longer_and_colder():
    rollout = play(max_turns=3)
    assert (rollout.dialogue.outcome, rollout.dialogue.num_replies) == (Outcome.MAX_TURNS, 3)
    assert play(user=FakeUser(ends_after=3, outcome=Outcome.LEFT), max_turns=3).dialogue.outcome is Outcome.LEFT
    engine = FakeEngine()
    rollout = play(engine=engine, max_turns=3, overrides=SamplingOverrides(temperature=0.0, max_turns=5))
    assert rollout.dialogue.num_replies == 5 and {request.sampling.temperature for request in engine.asked} == {0.0}


def test_dialogue_is_truncated_when_a_whole_reply_does_not_fit_any_more():
    """The prompt has 4 tokens and every exchange adds 6; a reply of 8 and its end need 9. 4 + 9 and 10 + 9 fit into 20, 16 + 9 do not."""
    rollout = play(max_new_tokens=8, max_context=20)
    assert (rollout.dialogue.outcome, rollout.dialogue.num_replies) == (Outcome.TRUNCATED, 2)
    assert rollout.dialogue.turns[-1].speaker is Speaker.USER and rollout.reward.total == pytest.approx(0.5)


def test_a_reply_needs_room_for_the_end_of_turn_that_it_may_lack_and_no_rollout_is_longer_than_its_context():
    """The prompt has 4 tokens: a reply of 8 and an end of turn fit into 13 tokens, not into 12; the user's answer would make 16."""
    assert play(max_new_tokens=8, max_context=12).dialogue.num_replies == 0
    assert play(max_new_tokens=8, max_context=13).dialogue.num_replies == 1
    rollout = play(engine=FakeEngine((tuple(ids("x") * 8), "length")), max_new_tokens=8, max_context=14)
    assert rollout.dialogue.outcome is Outcome.TRUNCATED and len(rollout.token_ids) == 14 and rollout.num_sampled == 8


# Failures --------------------------------------------------------------------------------------------------------------------------


def test_failure_is_tried_again_from_the_opening():
    engine, user = FakeEngine(), FakeUser(ends_after=3, breaks_at={2: 1})
    rollout = play(engine=engine, user=user, retries=1)
    assert rollout.dialogue.outcome is Outcome.FAREWELL
    assert user.opened_with == [11, 11] and rollout.num_attempts == 2
    assert [request.seed for request in engine.asked[2:]] == [sampling_seed(11, 0, turn) for turn in range(3)]


def test_failure_that_stays_is_data_with_its_traceback():
    rollout = play(user=FakeUser(breaks_at={2: 9}), retries=2)
    assert rollout.dialogue.outcome is Outcome.ERROR and "ConnectionError: the user broke at reply 2" in rollout.dialogue.error
    assert np.isnan(rollout.reward.total) and rollout.num_sampled == 4


def test_a_reward_that_is_not_finite_is_an_error():
    class Endless(FakeUser):
        async def react(self, dialogue, reply):
            return Reaction(turn=Turn(speaker=Speaker.USER, text="b", emotion=math.nan, change=1.0), outcome=Outcome.LEFT)

    rollout = play(user=Endless())
    assert rollout.dialogue.outcome is Outcome.ERROR and "finite" in rollout.dialogue.error and np.isnan(rollout.reward.total)


def test_the_time_of_a_dialogue_stands_still_while_its_user_is_away():
    outage = Outage(60.0)
    rollout = play(user=FakeUser(ends_after=3, breaks_at={2: 2}), outage=outage, dialogue_timeout_s=0.5, retries=0)
    assert rollout.dialogue.outcome is Outcome.FAREWELL and rollout.dialogue.num_replies == 3
    assert outage.paused_s > 0.5


class FadingUser(FakeUser):
    """Is away when it is asked first, and silent after some answers."""

    async def react(self, dialogue, reply):
        reaction = await super().react(dialogue, reply)
        await asyncio.sleep(30 if dialogue.num_replies >= self.ends_after else 0)
        return reaction


@pytest.mark.parametrize("answers", [0, 1], ids=["during an outage", "after it"])
def test_a_dialogue_that_hangs_times_out(answers):
    user = FadingUser(ends_after=answers, outcome=None, breaks_at={1: 1})
    rollout = play(user=user, outage=Outage(60.0), dialogue_timeout_s=0.3, retries=0)
    assert rollout.dialogue.outcome is Outcome.ERROR and rollout.dialogue.num_replies == answers
    assert "rollout.dialogue_timeout_s=0.3 s" in rollout.dialogue.error


def test_cancelling_is_not_swallowed():
    async def cancel():
        rolling = asyncio.create_task(roll_out(context(user=FakeUser(delay_s=30)), make_scenario(), Difficulty.along(0.5), 1))
        await asyncio.sleep(0.01)
        rolling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rolling

    asyncio.run(cancel())


# Groups ----------------------------------------------------------------------------------------------------------------------------


def test_siblings_share_the_user_and_differ_in_sampling():
    engine, user = FakeEngine(), FakeUser(ends_after=2)
    assert len(group_of(3, user=user, engine=engine).rollouts) == 3
    assert user.opened_with == [11, 11, 11]
    seeds = {request.seed for request in engine.asked}
    assert seeds == {sampling_seed(11, sibling, turn) for sibling in range(3) for turn in range(2)} and len(seeds) == 6


def test_one_broken_sibling_breaks_no_other():
    group = group_of(4, user=FakeUser(ends_after=2, breaks_at={1: 1}), retries=0)
    assert sorted(str(rollout.dialogue.outcome) for rollout in group.rollouts) == ["error", "farewell", "farewell", "farewell"]


class SlowUser(FakeUser):
    """Answers some replies late, by a list of delays."""

    def __init__(self, delays, **settings):
        super().__init__(**settings)
        self.delays = delays

    async def react(self, dialogue, reply):
        self.delay_s = self.delays.pop() if self.delays else 0.0
        return await super().react(dialogue, reply)


def lockstep_rounds(delays, *, breaks_at=None):
    rounds = []

    async def generate_all(requests):
        rounds.append([request.seed for request in requests])
        engine = FakeEngine()
        return [await engine(request.prompt_ids, sampling=request.sampling, seed=request.seed) for request in requests]

    lockstep = Lockstep(generate_all, num_dialogues=4)
    user = SlowUser(delays, ends_after=3, breaks_at=breaks_at)
    group_of(4, user=user, engine=lockstep, on_finished=lockstep.leave, retries=0)
    return rounds


def test_lockstep_samples_the_same_batches_at_any_timing_and_does_not_wait_for_a_broken_dialogue():
    late = lockstep_rounds([0.02, 0.0, 0.01, 0.0, 0.03, 0.01])
    assert lockstep_rounds([]) == late == [sorted(sampling_seed(11, sibling, turn) for sibling in range(4)) for turn in range(3)]
    assert [len(round_) for round_ in lockstep_rounds([], breaks_at={1: 1})] == [4, 3, 3]


def test_every_dialogue_of_a_round_gets_the_error_of_its_sampling():
    async def broken(requests):
        raise MemoryError("no cache left")

    lockstep = Lockstep(broken, num_dialogues=3)
    group = group_of(3, engine=lockstep, on_finished=lockstep.leave, retries=0)
    assert all("no cache left" in rollout.dialogue.error for rollout in group.rollouts)
