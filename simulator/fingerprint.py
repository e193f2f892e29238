"""The behaviour fingerprint: a hash over emotions and words of users in fixed dialogues, which a test holds to the world's version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle

from simulator.adversaries import adversaries
from simulator.dialogue import Dialogue
from simulator.listener import Register
from simulator.rule_user import Preset, RuleUser, RuleUserConfig
from simulator.sage.user import NativeUser
from simulator.scenario import FAMILIES, Difficulty, Scenario, Split
from simulator.scripted import AGENTS, Agent, exchange, play
from simulator.world import load_bank

NUM_DIALOGUES = 504
"""21 for each family."""
LEVELS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CHINESE_REPLIES = (
    "你是不是觉得很委屈？",
    "听起来你真的很难过，换作是我也会这样。",
    "这不是你的错，你已经做得很好了。",
    "那天后来发生了什么？",
    "你应该直接去找他谈一谈。",
    "你想太多了，别这么小气。",
    "我在听，你慢慢说。",
    "谢谢你愿意告诉我这些。",
    "可能他也有自己的难处。",
    "再见。",
)
"""Replies to users of Chinese profiles: question, empathy, comfort, advice, contempt, a goodbye."""


@cache
def behaviour_fingerprint(name: str) -> str:
    """First 16 hex digits of a SHA-256 over emotions and words of fixed dialogues, and over every scenario's words. Takes some seconds.

    Names, docstrings and the order of code may change; words and feelings of users may not.

    Args:
        name: a register, or `sage` for the preset.
    """
    digest = hashlib.sha256()
    for scenario in load_bank().by_id.values():
        digest.update(json.dumps(scenario.to_dict(), sort_keys=True, ensure_ascii=False).encode())
    for dialogue in fixed_dialogues(name):
        turns = [(turn.text, turn.emotion, turn.change) for turn in dialogue.turns]
        digest.update(json.dumps([dialogue.scenario.scenario_id, turns, dialogue.outcome], ensure_ascii=False).encode())
    return digest.hexdigest()[:16]


def fixed_dialogues(name: str) -> Iterator[Dialogue]:
    """Scripted agents and adversaries with users of all families and difficulties; in the open register also in Chinese."""
    preset = Preset.SAGE if name == Preset.SAGE else Preset.TRAINING
    register = Register.WORLD if name == Register.WORLD else Register.OPEN
    user = NativeUser(RuleUserConfig(register=register, preset=preset))
    tricks = [trick for trick in adversaries() if trick.is_played_in(register) and trick.disguise != "endless"]
    agents: list[Agent] = [*AGENTS.values(), *tricks]
    scenarios = load_bank().by_family(Split.TRAIN)
    for i in range(NUM_DIALOGUES):
        family, round_ = FAMILIES[i % len(FAMILIES)], i // len(FAMILIES)
        scenario = load_bank().scenario(scenarios[family][round_ % len(scenarios[family])])
        difficulty = Difficulty.along(LEVELS[i % len(LEVELS)])
        yield play(agents[i % len(agents)], scenario, difficulty, seed=i, user=user)
        if register is Register.OPEN and round_ < 2:
            yield in_chinese(scenario, difficulty, seed=i, user=user)


def in_chinese(scenario: Scenario, difficulty: Difficulty, *, seed: int, user: RuleUser) -> Dialogue:
    """The dialogue of a user who speaks Chinese and has no facts, as profiles have none."""
    profile = replace(scenario, language="zh", facts=(), opening="我今天特别难受，没人理解我。")
    dialogue = user.begin(profile, difficulty, seed=seed)
    replies = cycle(CHINESE_REPLIES[seed % len(CHINESE_REPLIES) :] + CHINESE_REPLIES[: seed % len(CHINESE_REPLIES)])
    while dialogue.outcome is None:
        dialogue = exchange(dialogue, next(replies), user=user)
    return dialogue
