"""Scripted agents that give difficulty a testable meaning: L0 always advises, each further rung adds one of the six skills."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Protocol

from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import Skill, hint_in, skill_table
from simulator.listener import cues_in, facts_stated
from simulator.rule_user import RuleUser
from simulator.scenario import FAMILIES, Difficulty, Scenario
from simulator.world import read_toml

MAX_TURNS = 8
"""Agent turns in a dialogue of the embedded default."""


class Agent(Protocol):
    """Anything that replies to a user without a model."""

    def reply(self, dialogue: Dialogue) -> str:
        """The next reply."""
        ...


@dataclass(frozen=True, kw_only=True)
class ScriptedAgent:
    """An agent that shows exactly the skills it has. It reads only the user's words, never the scenario's card."""

    name: str
    skills: frozenset[Skill]
    always: str | None = None
    """A single strategy for every turn, instead of choosing."""
    parrot: bool = False
    """Repeats its third reply to the end."""

    def reply(self, dialogue: Dialogue) -> str:
        """The next reply."""
        if self.parrot and dialogue.num_replies >= 3:
            return dialogue.replies()[2]
        chance = random.Random(f"{self.name}|{dialogue.scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies}")
        words = self._move(self._strategy(dialogue), dialogue, chance)
        if (dialogue.turns[-1].change or 0) < 0 and Skill.REPAIR in self.skills:
            return f"{self._move('apology', dialogue, chance, plain=True)} {words}"
        return words

    def _strategy(self, dialogue: Dialogue) -> str:
        if self.always:
            return self.always
        if Skill.LISTENING in self.skills and dialogue.num_replies < 2:
            return "question"
        if Skill.FIT in self.skills:
            kinds = ("overt", "veiled") if Skill.HINTS in self.skills else ("overt",)
            wish = next(filter(None, (hint_in(text, kinds=kinds) for text in reversed(dialogue.said()))), None)
            if wish is not None:
                return str(skill_table()["meets"][wish][0])
        return "question" if Skill.LISTENING in self.skills else "suggestion"

    def _move(self, strategy: str, dialogue: Dialogue, chance: random.Random, *, plain: bool = False) -> str:
        facts, replies = dialogue.scenario.facts, dialogue.replies()
        cue = ""
        if not plain and Skill.GROUNDING in self.skills:
            # The latest fact mentioned; with memory, from the third reply on, an earlier one that the last reply did not touch.
            known = [fact for text in dialogue.said() for fact in facts_stated(text, facts)]
            index = known[-1]
            if Skill.MEMORY in self.skills and len(replies) >= 2:
                touched = [cues_in(reply, dialogue.scenario) for reply in replies]
                passed = {*facts_stated(dialogue.turns[-1].text, facts), *touched[-1]}
                earlier = [fact for fact in known if fact not in passed] or known
                index = min(earlier, key=lambda fact: sum(fact in cues for cues in touched))
            cue = facts[index].cue
        pool = read_toml("moves")[strategy]["grounded" if cue else "plain"]
        if Skill.MEMORY in self.skills:
            pool = [line for line in pool if not any(stem(line) in reply for reply in replies)] or pool
        text = " ".join(dialogue.said())
        feeling = next((feeling for feeling in dialogue.scenario.feelings if feeling in text), "hurt")
        return fill(chance.choice(pool), dialogue.scenario, cue=cue, feeling=feeling)


AGENTS = {
    **{f"L{k}": ScriptedAgent(name=f"L{k}", skills=frozenset(list(Skill)[:k])) for k in range(7)},
    "praise": ScriptedAgent(name="praise", skills=frozenset(), always="praise"),
    "parrot": ScriptedAgent(name="parrot", skills=frozenset(Skill), parrot=True),
}
"""The ladder, an agent that only flatters, and one that repeats a golden sentence."""


def fill(template: str, scenario: Scenario, *, cue: str, feeling: str) -> str:
    """A move with its slots filled, starting with a capital."""
    other = f"your {scenario.other}"
    text = template.format(cue=cue, feeling=feeling, other=other, other_cap=other.capitalize())
    return text[0].upper() + text[1:]


@cache
def stem(template: str) -> str:
    """The longest stretch of a template without slots, by which it is recognised."""
    return max(re.split(r"[{}]", template)[::2], key=len)


def play(agent: Agent, scenario: Scenario, difficulty: Difficulty, *, seed: int, user: RuleUser, max_turns: int = MAX_TURNS) -> Dialogue:
    """One dialogue between an agent and the embedded user."""
    dialogue = user.begin(scenario, difficulty, seed=seed)
    while dialogue.outcome is None:
        dialogue = exchange(dialogue, agent.reply(dialogue), user=user, max_turns=max_turns)
    return dialogue


def exchange(dialogue: Dialogue, text: str, *, user: RuleUser, max_turns: int = MAX_TURNS) -> Dialogue:
    """The dialogue after one more reply and the embedded user's answer to it."""
    reaction = user.answer(dialogue, text)
    outcome = reaction.outcome or (Outcome.MAX_TURNS if dialogue.num_replies + 1 >= max_turns else None)
    return dialogue.then(Turn(speaker=Speaker.AGENT, text=text), reaction.turn, outcome=outcome)


def score_agent(
    name: str, scenarios: Sequence[Scenario], strictness: Sequence[float], *, user: RuleUser, seed: int = 0
) -> dict[float, list[Dialogue]]:
    """One dialogue for every scenario at every strictness."""
    return {
        d: [play(AGENTS[name], one, Difficulty.along(d), seed=seed + i, user=user) for i, one in enumerate(scenarios)] for d in strictness
    }


def mean_score(dialogues: Iterable[Dialogue]) -> float:
    """Mean final emotion, 0-100."""
    return fmean(dialogue.emotion for dialogue in dialogues)


def sample(scenarios: Sequence[Scenario], per_family: int, *, seed: int) -> list[Scenario]:
    """Up to `per_family` scenarios of each family, chosen by the seed."""
    members = [[scenario for scenario in scenarios if scenario.family == family] for family in FAMILIES]
    chance = random.Random(seed)
    return [scenario for ones in members for scenario in chance.sample(ones, min(per_family, len(ones)))]
