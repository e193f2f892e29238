"""One dialogue from opening to end, and groups of them: the tokens the policy is trained on, kept as they were sampled."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from policy.config import RolloutConfig
from policy.engine.engine import Completion, Generate, Sampling
from policy.rollout.chat import Thought, take_apart, thought_of, turns_with_format, with_format
from policy.rollout.outage import Outage, PatientUser
from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.llm.clock import dialogue_clock
from simulator.reward import Reward, Shares, binary, final_emotion, turn_rewards, turns_with_terms, with_terms
from simulator.scenario import Difficulty, Scenario
from simulator.user import UserSimulator

if TYPE_CHECKING:
    from policy.rollout.chat import Chat


ROLE_USER, ROLE_AGENT = 0, 1
"""Values of `Rollout.role_ids`; template tokens count with the role whose turn they open or close."""


class Task(Protocol):
    """What rolling out needs to know of a task; a teacher's TaskSpec and an evaluation's task both fit."""

    @property
    def uid(self) -> str: ...
    @property
    def scenario_id(self) -> str: ...
    @property
    def difficulty(self) -> Difficulty: ...
    @property
    def group_size(self) -> int: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class PlainTask:
    """What `Task` asks for and nothing else: what crosses to another process in place of whatever was submitted."""

    uid: str
    scenario_id: str
    difficulty: Difficulty
    group_size: int
    seed: int

    @classmethod
    def of(cls, task: Task) -> PlainTask:
        """The plain part of any task."""
        return cls(uid=task.uid, scenario_id=task.scenario_id, difficulty=task.difficulty, group_size=task.group_size, seed=task.seed)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A dialogue with the tokens behind it.

    Example, a dialogue of two replies (u user, a agent, e the agent's end-of-turn token):

        token_ids        u u u a a e u u a e u
        role_ids         0 0 0 1 1 1 0 0 1 1 0
        turn_ids         0 0 0 0 0 0 1 1 1 1 2      agent turns finished before
        loss_mask        0 0 0 1 1 1 0 0 1 1 0      tokens the policy sampled
        rollout_logprobs 0 0 0 x x x 0 0 x x 0

    Where earlier thoughts leave the context, each reply was sampled in a context of its own. The arrays then hold one sequence after the
    other, each with all that the engine saw. A sampled token is under the loss mask in the sequence in which it was sampled, and only
    there; in later sequences it is mere context. With t the thought of the first reply:

        token_ids        u u u t a e | u u u a e u u a e
        turn_ids         0 0 0 0 0 0 | 1 1 1 1 1 1 1 1 1
        loss_mask        0 0 0 1 1 1 | 0 0 0 0 0 0 0 1 1
        segment_starts   0             6
    """

    dialogue: Dialogue
    token_ids: np.ndarray
    """[T] int32."""
    role_ids: np.ndarray
    """[T] int8."""
    turn_ids: np.ndarray
    """[T] int16."""
    loss_mask: np.ndarray
    """[T] bool."""
    rollout_logprobs: np.ndarray
    """[T] float32 nats, 0 where the mask is."""
    reward: Reward
    """NaN for an ERROR dialogue."""
    turn_rewards: tuple[float, ...]
    """One per answered reply, each in [-1, 1]."""
    policy_versions: tuple[int, int]
    """Oldest and newest weights that sampled a token of it."""
    reply_versions: tuple[int, ...] = ()
    """Weights that sampled each reply: new ones take over between two replies and never within one."""
    num_attempts: int = 1
    """At this dialogue, the last of which this is; what was said in those before is nowhere."""
    thoughts: tuple[Thought, ...] = ()
    """One per reply of an agent that thinks; none of one that does not."""
    segment_starts: tuple[int, ...] = (0,)
    """Where in the arrays each sequence begins; ascending from 0."""

    @property
    def segments(self) -> list[slice]:
        """Where each sequence lies."""
        ends = (*self.segment_starts[1:], len(self.token_ids))
        return [slice(start, end) for start, end in zip(self.segment_starts, ends, strict=True)]

    @property
    def num_sampled(self) -> int:
        """Tokens the policy sampled."""
        return int(self.loss_mask.sum())

    @property
    def token_versions(self) -> np.ndarray:
        """[num_sampled] int64; the weights behind each sampled token, in order."""
        return np.array(self.reply_versions, dtype=np.int64)[self.turn_ids[self.loss_mask]]


@dataclass(frozen=True, kw_only=True)
class RolloutGroup:
    """The G siblings of one task."""

    task: Task
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, kw_only=True)
class Conduct:
    """How the dialogues of one submission differ from the configured ones; evaluation is colder and may be longer."""

    temperature: float | None = None
    """None for `rollout.temperature`; 0 is greedy."""
    max_turns: int | None = None
    """None for `rollout.max_turns`."""


def sampling_seed(seed: int, sibling: int, turn: int) -> int:
    """The seed of one reply: every reply of every sibling has its own, the same in every run."""
    return int(np.random.SeedSequence([seed, sibling, turn]).generate_state(1, np.uint64)[0] >> np.uint64(1))


async def roll_out(
    scenario: Scenario,
    difficulty: Difficulty,
    seed: int,
    *,
    user: UserSimulator,
    generate: Generate,
    chat: Chat,
    config: RolloutConfig,
    outage: Outage | None = None,
    format_weight: float = 1.0,
    reward_terms: Shares = (),
    sibling: int = 0,
    conduct: Conduct | None = None,
) -> Rollout:
    """One dialogue from its opening to its end; whatever breaks becomes an ERROR dialogue with its traceback.

    Args:
        seed: the user's, and with `sibling` and the turn that of every reply.
        outage: the user's, which is waited out and takes nothing off `rollout.dialogue_timeout_s`; None where each failure counts.
        format_weight: share of the reward that hangs on the form of the replies, where the agent thinks.
        reward_terms: what else has a share of the reward (`simulator.reward.resolved`).
    """
    conduct = conduct or Conduct()
    for attempt in range(config.retries + 1):
        conversation = _Conversation(
            Dialogue(scenario=scenario, difficulty=difficulty, seed=seed),
            chat=chat,
            format_weight=format_weight,
            config=config,
            reward_terms=reward_terms,
        )
        try:
            async with asyncio.timeout(config.dialogue_timeout_s) as limit:
                asked = user if outage is None else PatientUser(user, outage, limit=limit)
                with dialogue_clock(limit):
                    await _converse(conversation, user=asked, generate=generate, config=config, sibling=sibling, conduct=conduct)
            return conversation.rollout(num_attempts=attempt + 1)
        except Exception:  # noqa: BLE001 - the one boundary where anything that breaks becomes data
            late = f"{conversation.took_too_long(config, max_turns=conduct.max_turns or config.max_turns)}\n" if limit.expired() else ""
            conversation.fail(f"{traceback.format_exc()}{late}")
        if attempt < config.retries:
            await asyncio.sleep(config.retry_backoff_s * 2**attempt)
    return conversation.rollout(num_attempts=config.retries + 1)


async def roll_out_group(
    task: Task,
    scenario: Scenario,
    *,
    user: UserSimulator,
    generate: Generate,
    chat: Chat,
    config: RolloutConfig,
    outage: Outage | None = None,
    format_weight: float = 1.0,
    reward_terms: Shares = (),
    conduct: Conduct | None = None,
    on_finished: Callable[[Rollout], None] | None = None,
) -> RolloutGroup:
    """All siblings of a task at once.

    The user's seed is common to the siblings, so that they differ in what the agent said and in nothing else:
    less noise when they are compared.

    Args:
        outage, format_weight, reward_terms: see `roll_out`.
        on_finished: called with each rollout as soon as it is done.
    """

    async def one(sibling: int) -> Rollout:
        rollout = await roll_out(
            scenario,
            task.difficulty,
            task.seed,
            user=user,
            generate=generate,
            chat=chat,
            config=config,
            outage=outage,
            format_weight=format_weight,
            reward_terms=reward_terms,
            sibling=sibling,
            conduct=conduct,
        )
        if on_finished:
            on_finished(rollout)
        return rollout

    async with asyncio.TaskGroup() as siblings:
        rollouts = [siblings.create_task(one(sibling)) for sibling in range(task.group_size)]
    return RolloutGroup(task=task, rollouts=tuple(rollout.result() for rollout in rollouts))


async def _converse(
    conversation: _Conversation, *, user: UserSimulator, generate: Generate, config: RolloutConfig, sibling: int, conduct: Conduct
) -> None:
    temperature = config.temperature if conduct.temperature is None else conduct.temperature
    sampling = Sampling(max_tokens=config.max_new_tokens, temperature=temperature)
    max_turns = conduct.max_turns or config.max_turns
    seed = conversation.dialogue.seed
    conversation.open(await user.open(conversation.dialogue.scenario, conversation.dialogue.difficulty, seed=seed))
    while conversation.dialogue.outcome is None:
        if not conversation.has_room(config.max_new_tokens, config.max_context):
            conversation.dialogue = conversation.dialogue.then(outcome=Outcome.TRUNCATED)
            break
        turn = conversation.dialogue.num_replies
        completion = await generate(conversation.context_ids, sampling=sampling, seed=sampling_seed(seed, sibling, turn))
        reply = conversation.add_reply(completion)
        reaction = await user.react(conversation.dialogue, reply.text)
        outcome = reaction.outcome or (Outcome.MAX_TURNS if turn + 1 >= max_turns else None)
        conversation.dialogue = conversation.dialogue.then(reply, reaction.turn, outcome=outcome)
        conversation.add_user(reaction.turn.text)
    conversation.close(config.max_context)


class _Conversation:
    """A dialogue under way, and the arrays that grow with it."""

    def __init__(self, dialogue: Dialogue, *, chat: Chat, format_weight: float, config: RolloutConfig, reward_terms: Shares = ()) -> None:
        self.dialogue = dialogue
        self._format_weight = format_weight
        self._reward_terms, self._binary_at = reward_terms, config.binary_reward_at
        self._thoughts: list[Thought] = []
        self._segment_starts = [0]
        self.token_ids: list[int] = []
        self._chat = chat
        self._role_ids: list[int] = []
        self._turn_ids: list[int] = []
        self._loss_mask: list[bool] = []
        self._logprobs: list[float] = []
        self._num_turns = 0
        self._versions: list[int] = []

    @property
    def context_ids(self) -> list[int]:
        """What the next reply is sampled after."""
        return self.token_ids[self._segment_starts[-1] :]

    def open(self, dialogue: Dialogue) -> None:
        self.dialogue = dialogue
        self._add_opening()

    def _add_opening(self) -> None:
        ids = self._chat.opening_ids(self.dialogue.messages())
        header = len(self._chat.header_ids)
        self._add(ids[:-header], ROLE_USER)
        self._add(ids[-header:], ROLE_AGENT)

    def has_room(self, num_tokens: int, max_context: int) -> bool:
        """Whether a reply of `num_tokens` and an end of turn that it may lack still fit."""
        return len(self.context_ids) + num_tokens + 1 <= max_context

    def add_reply(self, completion: Completion) -> Turn:
        self._add(completion.token_ids, ROLE_AGENT, logprobs=completion.logprobs)
        if self._chat.end_of_turn_id not in completion.token_ids[-1:]:
            self._add([self._chat.end_of_turn_id], ROLE_AGENT)
        self._versions.append(completion.policy_version)
        return Turn(speaker=Speaker.AGENT, text=self._words(completion))

    def _words(self, completion: Completion) -> str:
        """What the user hears of a reply; its thought is kept aside."""
        if not self._chat.thinking:
            return completion.text.strip()
        said = take_apart(completion.text, opened=self._chat.opens_thought)
        ran_out = completion.finish_reason == "length"
        self._thoughts.append(thought_of(said, completion.token_ids, decode=self._chat.decode, ran_out=ran_out))
        return said.words

    def add_user(self, text: str) -> None:
        """Takes in what the user said, which stands in `dialogue` by now."""
        if self._chat.forks:
            self._num_turns += 1
            self._segment_starts.append(len(self.token_ids))
            self._add_opening()
            return
        ids = self._chat.continuation_ids(text)
        closing, header = len(self._chat.closing_ids), len(self._chat.header_ids)
        self._add(ids[:closing], ROLE_AGENT)
        self._num_turns += 1
        self._add(ids[closing:-header], ROLE_USER)
        self._add(ids[-header:], ROLE_AGENT)

    def close(self, max_context: int) -> None:
        """Takes back the opening of a reply that will not come, and what no context may hold; no sampled token is among them."""
        length = min(len(self.token_ids) - len(self._chat.header_ids), max_context)
        if len(self._segment_starts) > 1:
            length = self._segment_starts.pop()
        for column in (self.token_ids, self._role_ids, self._turn_ids, self._loss_mask, self._logprobs):
            del column[length:]

    def took_too_long(self, config: RolloutConfig, *, max_turns: int) -> str:
        return (
            f"a dialogue must end within rollout.dialogue_timeout_s={config.dialogue_timeout_s:g} s, got {self.dialogue.num_replies} of "
            f"{max_turns} replies by then; where many are played at once by a slow engine or user, raise it"
        )

    def fail(self, error: str) -> None:
        self.dialogue = self.dialogue.then(outcome=Outcome.ERROR, error=error)

    def rollout(self, *, num_attempts: int) -> Rollout:
        reward, by_turn = self._rewards()
        if self.dialogue.outcome is not Outcome.ERROR and not all(map(math.isfinite, (reward.total, *by_turn))):
            self.fail(f"a dialogue's rewards must be finite, got {reward.total} for its end and {by_turn} for its turns")
            reward, by_turn = self._rewards()
        return Rollout(
            dialogue=self.dialogue,
            token_ids=np.array(self.token_ids, dtype=np.int32),
            role_ids=np.array(self._role_ids, dtype=np.int8),
            turn_ids=np.array(self._turn_ids, dtype=np.int16),
            loss_mask=np.array(self._loss_mask, dtype=np.bool_),
            rollout_logprobs=np.array(self._logprobs, dtype=np.float32),
            reward=reward,
            turn_rewards=tuple(by_turn),
            policy_versions=(min(self._versions, default=0), max(self._versions, default=0)),
            reply_versions=tuple(self._versions),
            num_attempts=num_attempts,
            thoughts=tuple(self._thoughts),
            segment_starts=tuple(self._segment_starts),
        )

    def _rewards(self) -> tuple[Reward, list[float]]:
        """For the dialogue's end and for each turn; a dialogue that broke has none for its end."""
        if self.dialogue.outcome is Outcome.ERROR:
            return Reward(total=math.nan), turn_rewards(self.dialogue)
        reward = binary(self.dialogue, at=self._binary_at) if self._binary_at else final_emotion(self.dialogue)
        by_turn = turn_rewards(self.dialogue)
        if self._reward_terms:
            reward = with_terms(reward, self.dialogue, self._reward_terms)
            by_turn = turns_with_terms(by_turn, self.dialogue, self._reward_terms)
        if self._chat.thinking:
            reward = with_format(reward, self._thoughts, weight=self._format_weight)
            by_turn = turns_with_format(by_turn, self._thoughts, weight=self._format_weight)
        return reward, by_turn

    def _add(self, ids: Sequence[int], role: int, *, logprobs: Sequence[float] | None = None) -> None:
        self.token_ids += ids
        self._role_ids += [role] * len(ids)
        self._turn_ids += [self._num_turns] * len(ids)
        self._loss_mask += [logprobs is not None] * len(ids)
        self._logprobs += [0.0] * len(ids) if logprobs is None else logprobs
        assert len(self._logprobs) == len(self.token_ids), "a completion must have one logprob per token"
