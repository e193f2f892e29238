"""Dialogues as long as real ones: the scripted agents of the ladder before the embedded user, as text and as a batch to train on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.dialogue import Dialogue, Speaker
from simulator.listener import Register
from simulator.reward import final_emotion
from simulator.rule_user import RuleUser, RuleUserConfig
from simulator.scenario import Difficulty, Split
from simulator.scripted import AGENTS, play
from simulator.world import load_bank

if TYPE_CHECKING:
    from policy.batch import Batch
    from policy.rollout.chat import Chat
    from policy.rollout.dialogue import Rollout

STRICTNESS = (0.1, 0.35, 0.6, 0.85)
"""Of the groups in turn; with it go dialogues that end early and some that end late."""
LADDER = ("L1", "L3", "L5", "L6")
"""Agents of the siblings in turn."""


def embedded_user() -> RuleUser:
    """The user of the main experiment."""
    return RuleUser(RuleUserConfig(register=Register.WORLD))


def dialogues(num_groups: int, group_size: int, *, seed: int, user: RuleUser) -> Iterator[list[Dialogue]]:
    """Groups of dialogues about one scenario each."""
    scenarios, agents = load_bank().scenarios(Split.TRAIN), itertools.cycle(LADDER)
    for i in range(num_groups):
        scenario = scenarios[(seed * num_groups + i) % len(scenarios)]
        difficulty = Difficulty.along(STRICTNESS[i % len(STRICTNESS)])
        yield [play(AGENTS[next(agents)], scenario, difficulty, seed=1000 * seed + sibling, user=user) for sibling in range(group_size)]


def real_batch(tokenizer: Any, *, num_groups: int = 8, group_size: int = 8, seed: int = 0) -> Batch:
    """The dialogues as a batch to train on, with every reply's tokens under the loss mask and made-up engine's logprobs of -1 nat."""
    from policy.batch import pack
    from policy.rollout.chat import Chat
    from policy.rollout.dialogue import PlainTask, RolloutGroup

    chat = Chat(tokenizer)
    groups = []
    for i, siblings in enumerate(dialogues(num_groups, group_size, seed=seed, user=embedded_user())):
        first = siblings[0]
        task = PlainTask(
            uid=str(i), scenario_id=first.scenario.scenario_id, difficulty=first.difficulty, group_size=group_size, seed=first.seed
        )
        groups.append(RolloutGroup(task=task, rollouts=tuple(_rollout(dialogue, chat, tokenizer) for dialogue in siblings)))
    return pack(groups)


def _rollout(dialogue: Dialogue, chat: Chat, tokenizer: Any) -> Rollout:
    from policy.rollout.dialogue import Rollout

    opening, *turns = dialogue.turns
    pieces = [(chat.opening_ids([{"role": "user", "content": opening.text}]), False)]
    for turn in turns:
        if turn.speaker is Speaker.AGENT:
            pieces.append(([*tokenizer(turn.text, add_special_tokens=False)["input_ids"], chat.end_of_turn_id], True))
        else:
            pieces.append(([*chat.closing_ids, *chat.continuation_ids(turn.text)], False))
    loss_mask = np.concatenate([np.full(len(ids), sampled) for ids, sampled in pieces])
    turn_ids = np.concatenate([np.full(len(ids), sum(sampled for _, sampled in pieces[: i + 1])) for i, (ids, _) in enumerate(pieces)])
    return Rollout(
        dialogue=dialogue,
        token_ids=np.concatenate([np.array(ids, dtype=np.int32) for ids, _ in pieces]),
        role_ids=loss_mask.astype(np.int8),
        turn_ids=turn_ids.astype(np.int16),
        loss_mask=loss_mask,
        rollout_logprobs=np.where(loss_mask, -1.0, 0.0).astype(np.float32),
        reward=final_emotion(dialogue),
        turn_rewards=(),
        policy_versions=(0, 0),
    )
