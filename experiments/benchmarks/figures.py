"""What a part of the benchmark is given and what it returns.

Dialogues as long as real ones: the scripted agents of the ladder before the embedded user, as text and as a batch to train on.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from policy.config import EMBEDDED, EngineKind, PriorConfig
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


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to measure."""

    repeats: int = 5
    """>= 1; of every figure."""
    model: str = EMBEDDED
    """The policy: the embedded prior, or a Hugging Face folder or id."""
    engine: EngineKind = EngineKind.AUTO
    """What generates."""
    threads: int = 1
    """>= 1; CPU threads of the trainer and of each engine."""
    progress: Callable[[str], None] = lambda line: None
    """Told now and then what is being measured."""

    def folder(self) -> Path:
        """The policy's folder; the embedded prior is built when the cache does not hold it, with a progress bar."""
        from policy.model import find_model
        from policy.prior.prior import build_prior

        return build_prior(PriorConfig()) if self.model == EMBEDDED else find_model(self.model)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number, over its repeats."""

    median: float
    lowest: float
    highest: float
    repeats: int


Figures = dict[str, Figure | str]
"""By dotted key of bench.json; where nothing could be measured, the reason in words."""


def figure(values: Iterable[float]) -> Figure:
    """Median and range of repeated measurements, at least one."""
    found = list(values)
    return Figure(median=statistics.median(found), lowest=min(found), highest=max(found), repeats=len(found))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """The median of ratios repeat by repeat: what slows down the machine for a while slows down both sides of a pair."""
    return figure(a / b for a, b in zip(ours, theirs, strict=True))


def ratio_of_medians(ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """For what was measured one after the other and not in pairs: the range is from our slowest over their fastest to the contrary."""
    middle = statistics.median(ours) / statistics.median(theirs)
    return Figure(median=middle, lowest=min(ours) / max(theirs), highest=max(ours) / min(theirs), repeats=min(len(ours), len(theirs)))


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
