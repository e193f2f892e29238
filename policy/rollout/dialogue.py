"""One dialogue from opening to end, and groups of them: the tokens the policy is trained on, kept as they were sampled."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from policy.config import RolloutConfig
from policy.engine.engine import Completion, EngineError, Generate, Sampling
from policy.rollout.outage import Outage, PatientUser
from simulator.dialogue import Dialogue, Outcome, UserSimulator
from simulator.episode import Episode
from simulator.llm.client import DialogueClock
from simulator.reward import Reward, Shares, final_emotion, turn_rewards, turns_with_terms, with_terms
from simulator.scenario import Difficulty, Scenario
from simulator.tokens import Chat, Thought, TokenColumns, take_apart, thought_of


class Task(Protocol):
    """A task as rollouts need it, pickled to the workers by reference: a teacher's TaskSpec, an evaluation's task."""

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
class Rollout:
    """A dialogue with the tokens behind it.

    Example, a dialogue of two replies (u user, a agent, e the agent's end-of-turn token):

        token_ids        u u u a a e u u a e u
        turn_ids         0 0 0 0 0 0 1 1 1 1 2      agent turns finished before
        loss_mask        0 0 0 1 1 1 0 0 1 1 0      tokens the policy sampled
        rollout_logprobs 0 0 0 x x x 0 0 x x 0

    Where earlier thoughts leave the context, each reply was sampled in another context. The arrays then hold one sequence after the
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
    turn_ids: np.ndarray
    """[T] int16."""
    loss_mask: np.ndarray
    """[T] bool."""
    rollout_logprobs: np.ndarray
    """[T] float32 nats, 0 where the mask is."""
    reward: Reward
    """NaN for an ERROR dialogue."""
    turn_rewards: tuple[float, ...]
    """One per answered reply: its change of emotion / 10, with the shares of reward terms (`simulator.reward.turns_with_terms`)."""
    policy_versions: tuple[int, int]
    """Oldest and newest weights that sampled a token of it."""
    reply_versions: tuple[int, ...] = ()
    """Weights that sampled each reply: new ones take over between two replies and never within one."""
    num_attempts: int = 1
    """At this dialogue, the last of which this is; the earlier ones are not kept."""
    thoughts: tuple[Thought, ...] = ()
    """One per reply of an agent that thinks; none of one that does not."""
    segment_starts: tuple[int, ...] = (0,)
    """Where in the arrays each sequence begins; ascending from 0."""

    @property
    def segments(self) -> list[slice]:
        ends = (*self.segment_starts[1:], len(self.token_ids))
        return [slice(start, end) for start, end in zip(self.segment_starts, ends, strict=True)]

    @property
    def segment_ids(self) -> np.ndarray:
        """[T] int16; the sequence of each token, from 0."""
        ids = np.zeros(len(self.token_ids), dtype=np.int16)
        for number, segment in enumerate(self.segments):
            ids[segment] = number
        return ids

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
class SamplingOverrides:
    """How the dialogues of one submission differ from the configured ones, where not None; evaluation may be colder and longer."""

    temperature: float | None = None
    max_turns: int | None = None


@dataclass(frozen=True, kw_only=True)
class RolloutContext:
    """The surroundings that dialogues have in common."""

    user: UserSimulator
    generate: Generate
    chat: Chat
    config: RolloutConfig
    outage: Outage | None = None
    """The user's, which is waited out and takes nothing off `rollout.dialogue_timeout_s`; None where each failure counts."""
    format_weight: float = 1.0
    """Share of the reward that depends on the form of the replies, where the agent thinks."""
    reward_terms: Shares = ()
    """Other terms with a share of the reward (`rollout.reward_terms`)."""
    overrides: SamplingOverrides = field(default_factory=SamplingOverrides)
    on_finished: Callable[[Rollout], None] = lambda rollout: None
    """Called with each rollout of a group as soon as it is done."""

    @property
    def max_turns(self) -> int:
        return self.overrides.max_turns or self.config.max_turns


def sampling_seed(seed: int, sibling: int, turn: int) -> int:
    """The seed of one reply: every reply of every sibling has its own, the same in every run."""
    return int(np.random.SeedSequence([seed, sibling, turn]).generate_state(1, np.uint64)[0] >> np.uint64(1))


async def roll_out(context: RolloutContext, scenario: Scenario, difficulty: Difficulty, seed: int, *, sibling: int = 0) -> Rollout:
    """One dialogue from its opening to its end; any failure becomes an ERROR dialogue with its traceback.

    The seed is the user's, and with `sibling` and the turn that of every reply.
    """
    config = context.config
    for attempt in range(config.retries + 1):
        limit = asyncio.timeout(config.dialogue_timeout_s)
        user = context.user if context.outage is None else PatientUser(context.user, context.outage, limit=limit)
        episode = Episode(user, scenario, difficulty, seed=seed, max_turns=context.max_turns)
        conversation = _Conversation(context, episode)
        try:
            async with limit:
                with DialogueClock(limit):
                    await conversation.converse(sibling)
            return conversation.rollout(num_attempts=attempt + 1)
        except Exception:  # noqa: BLE001 - the one boundary where a failure becomes data
            error = traceback.format_exc()
            if limit.expired():
                got = f"got {episode.dialogue.num_replies} of {context.max_turns} replies; raise it where many are played at once"
                error += f"a dialogue must end within rollout.dialogue_timeout_s={config.dialogue_timeout_s:g} s, {got}\n"
            episode.dialogue = episode.dialogue.then(outcome=Outcome.ERROR, error=error)
        if attempt < config.retries:
            await asyncio.sleep(config.retry_backoff_s * 2**attempt)
    return conversation.rollout(num_attempts=config.retries + 1)


async def roll_out_group(context: RolloutContext, task: Task, scenario: Scenario) -> RolloutGroup:
    """All siblings of a task at once. The user's seed is common to them, so that they differ in the agent's replies and nothing else."""

    async def one(sibling: int) -> Rollout:
        rollout = await roll_out(context, scenario, task.difficulty, task.seed, sibling=sibling)
        context.on_finished(rollout)
        return rollout

    async with asyncio.TaskGroup() as siblings:
        rollouts = [siblings.create_task(one(sibling)) for sibling in range(task.group_size)]
    return RolloutGroup(task=task, rollouts=tuple(rollout.result() for rollout in rollouts))


class _Conversation:
    """A dialogue under way, and the token columns that grow with it."""

    def __init__(self, context: RolloutContext, episode: Episode) -> None:
        self._episode, self._columns = episode, TokenColumns(context.chat)
        self._context, self._chat = context, context.chat
        self._thoughts: list[Thought] = []
        self._versions: list[int] = []

    @property
    def dialogue(self) -> Dialogue:
        return self._episode.dialogue

    async def converse(self, sibling: int) -> None:
        """Opening, then reply and reaction in turn, until the user, the number of turns or the context ends it."""
        config, overrides, seed = self._context.config, self._context.overrides, self.dialogue.seed
        temperature = config.temperature if overrides.temperature is None else overrides.temperature
        sampling = Sampling(max_tokens=config.max_new_tokens, temperature=temperature)
        await self._episode.open()
        self._columns.open(self.dialogue.messages())
        while not self._episode.over:
            prompt_ids = self._columns.context
            # A whole reply must fit, and an end of turn that it may lack.
            if len(prompt_ids) + config.max_new_tokens + 1 > config.max_context:
                self._episode.cut_off()
                break
            turn = self.dialogue.num_replies
            completion = await self._context.generate(prompt_ids, sampling=sampling, seed=sampling_seed(seed, sibling, turn))
            await self._episode.reply(self._words(completion))
            self._columns.add_answer(self.dialogue.messages())
        self._columns.close(config.max_context)

    def rollout(self, *, num_attempts: int) -> Rollout:
        reward, by_turn = self._rewards()
        if self.dialogue.outcome is not Outcome.ERROR and not all(map(math.isfinite, (reward.total, *by_turn))):
            error = f"a dialogue's rewards must be finite, got {reward.total} for its end and {by_turn} for its turns"
            self._episode.dialogue = self.dialogue.then(outcome=Outcome.ERROR, error=error)
            reward, by_turn = self._rewards()
        columns = self._columns
        return Rollout(
            dialogue=self.dialogue,
            token_ids=np.array(columns.token_ids, dtype=np.int32),
            turn_ids=np.array(columns.turn_ids, dtype=np.int16),
            loss_mask=np.array(columns.loss_mask, dtype=np.bool_),
            rollout_logprobs=np.array(columns.logprobs, dtype=np.float32),
            reward=reward,
            turn_rewards=tuple(by_turn),
            policy_versions=(min(self._versions, default=0), max(self._versions, default=0)),
            reply_versions=tuple(self._versions),
            num_attempts=num_attempts,
            thoughts=tuple(self._thoughts),
            segment_starts=tuple(columns.segment_starts),
        )

    def _words(self, completion: Completion) -> str:
        """What the user hears of a reply, whose tokens are kept."""
        self._columns.add_reply(completion.token_ids, completion.logprobs)
        self._versions.append(completion.policy_version)
        if not self._chat.thinking:
            return completion.text
        reply, ran_out = take_apart(completion.text, opened=self._chat.opens_thought), completion.finish_reason == "length"
        self._thoughts.append(thought_of(reply, completion.token_ids, decode=self._chat.decode, ran_out=ran_out))
        return reply.words

    def _rewards(self) -> tuple[Reward, list[float]]:
        """For the dialogue's end and for each turn; a dialogue that broke has none for its end."""
        context, by_turn = self._context, turn_rewards(self.dialogue)
        if self.dialogue.outcome is Outcome.ERROR:
            return Reward(total=math.nan), by_turn
        reward = final_emotion(self.dialogue, binary_at=context.config.binary_reward_at)
        if context.reward_terms:
            reward = with_terms(reward, self.dialogue, context.reward_terms)
            by_turn = turns_with_terms(by_turn, self.dialogue, context.reward_terms)
        if self._chat.thinking:
            # Malformed replies scale the reward and the gains of their turns down. Nothing is added: a dialogue of well-formed replies
            # earns the same as one without thoughts, so that both compare.
            weight, formed = context.format_weight, [thought.well_formed for thought in self._thoughts]
            share = sum(formed) / len(formed) if formed else 1.0
            reward = Reward(total=reward.total * (1.0 - weight * (1.0 - share)), terms={**reward.terms, "format": share})
            by_turn = [gain * (1.0 - weight) if gain > 0.0 and not ok else gain for gain, ok in zip(by_turn, formed, strict=False)]
        return reward, by_turn


def is_the_engines(dialogue: Dialogue) -> bool:
    """Whether it was an engine that broke a dialogue, by its traceback; all other failures are the simulator's."""
    return dialogue.outcome is Outcome.ERROR and EngineError.__name__ in dialogue.error
