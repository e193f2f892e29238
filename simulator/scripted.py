"""Scripted agents that give difficulty a testable meaning: L0 always advises, each further rung adds one of the six skills."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Protocol

from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import Skill, hint_in, skill_table
from simulator.listener import cues_in, facts_told
from simulator.rule_user import RuleUser
from simulator.scenario import FAMILIES, Difficulty, Family, Scenario
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
        pools = read_toml("moves")[strategy]
        cue = "" if plain or Skill.GROUNDING not in self.skills else self._cue(dialogue)
        pool = pools["grounded"] if cue else pools["plain"]
        if Skill.MEMORY in self.skills:
            said = dialogue.replies()
            pool = [line for line in pool if not any(stem(line) in reply for reply in said)] or pool
        text = " ".join(dialogue.said())
        feeling = next((feeling for feeling in dialogue.scenario.feelings if feeling in text), "hurt")
        return fill(chance.choice(pool), dialogue.scenario, cue=cue, feeling=feeling)

    def _cue(self, dialogue: Dialogue) -> str:
        """The latest fact mentioned; with memory, from the third reply on, an earlier one that the last reply did not touch."""
        facts = dialogue.scenario.facts
        known = [fact for text in dialogue.said() for fact in facts_told(text, facts)]
        if Skill.MEMORY not in self.skills or dialogue.num_replies < 2:
            return facts[known[-1]].cue
        latest = facts_told(dialogue.turns[-1].text, facts)
        mentioned = [cues_in(reply, dialogue.scenario) for reply in dialogue.replies()]
        earlier = [fact for fact in known if fact not in latest and fact not in mentioned[-1]] or known
        return facts[min(earlier, key=lambda fact: sum(fact in cues for cues in mentioned))].cue


RUNGS = tuple(Skill)
AGENTS = {
    **{f"L{k}": ScriptedAgent(name=f"L{k}", skills=frozenset(RUNGS[:k])) for k in range(len(RUNGS) + 1)},
    "praise": ScriptedAgent(name="praise", skills=frozenset(), always="praise"),
    "parrot": ScriptedAgent(name="parrot", skills=frozenset(RUNGS), parrot=True),
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
    parts = template.replace("{", "\0").replace("}", "\0").split("\0")[::2]
    return max(parts, key=len)


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
    name: str, scenarios: Iterable[Scenario], strictness: Sequence[float], *, user: RuleUser, max_turns: int = MAX_TURNS, seed: int = 0
) -> dict[float, list[Dialogue]]:
    """One dialogue for every scenario at every strictness."""
    chosen = tuple(scenarios)
    return {
        d: [
            play(AGENTS[name], scenario, Difficulty.along(d), seed=seed + i, user=user, max_turns=max_turns)
            for i, scenario in enumerate(chosen)
        ]
        for d in strictness
    }


def mean_score(dialogues: Iterable[Dialogue]) -> float:
    """Mean final emotion, 0-100."""
    return fmean(dialogue.emotion for dialogue in dialogues)


def sample(scenarios: Iterable[Scenario], per_family: int, *, seed: int) -> list[Scenario]:
    """Up to `per_family` scenarios of each family, chosen by the seed."""
    by_family: dict[Family, list[Scenario]] = {family: [] for family in FAMILIES}
    for scenario in scenarios:
        by_family[scenario.family].append(scenario)
    chance = random.Random(seed)
    return [scenario for members in by_family.values() for scenario in chance.sample(members, min(per_family, len(members)))]
