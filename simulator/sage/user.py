"""The embedded user with a SAGE profile: moved by the same rule, heard and speaking in the profile's own language.

A profile tells its story about the person, so such a user has no facts to add and no hints: beyond the opening it says how a reply felt.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import EXPLORING, is_rebuff
from simulator.rule_user import Preset, RuleUser, fresh
from simulator.scenario import Difficulty, PersonaType, Scenario
from simulator.user import Reaction
from simulator.world import read_toml

MUTED_PROB = 0.8
"""Times reserve: chance of a muted word instead of the feeling, as in the built-in world."""


class NativeUser(RuleUser):
    """The embedded user for profiles and for the built-in world; scenarios without facts are profiles."""

    def begin(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue; a profile's opening is said as it is."""
        if scenario.facts:
            return super().begin(scenario, difficulty, seed=seed)
        opening = Turn(speaker=Speaker.USER, text=scenario.opening, emotion=self.config.start_emotion)
        return Dialogue(scenario=scenario, difficulty=difficulty, seed=seed).then(opening)

    def answer(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The rule's reaction, in the profile's language."""
        reaction = super().answer(dialogue, reply)
        if dialogue.scenario.facts:
            return reaction
        rebuffs = self.config.preset is Preset.TRAINING and is_rebuff(dialogue) and (reaction.turn.change or 0) < 0
        return replace(reaction, turn=replace(reaction.turn, text=_words(dialogue, reaction, rebuffs=rebuffs)))


def _words(dialogue: Dialogue, reaction: Reaction, *, rebuffs: bool) -> str:
    """How a reply felt, and for an agent that asks a pointer to the story; lines repeat once all have been said."""
    scenario = dialogue.scenario
    pools = _pools(scenario.language, scenario.family.persona)
    said = "\n".join(dialogue.said())
    chance = random.Random(f"{scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies + 1}")
    if reaction.outcome in (Outcome.DELIGHTED, Outcome.LEFT):
        return chance.choice(pools[reaction.outcome])
    change = reaction.turn.change or 0
    mood = "rebuff" if rebuffs else "up" if change > 1 else "down" if change < -1 else "flat"
    if not rebuffs and chance.random() < MUTED_PROB * dialogue.difficulty.reserve:
        mood = "muted"
    asked = bool(EXPLORING & set(reaction.turn.heard)) and reaction.outcome is None
    lines = [fresh(pools[name], said, chance) for name in (mood, *(("asked",) if asked else ()))]
    return ("" if scenario.language == "zh" else " ").join(lines)


@cache
def _pools(language: str, persona: PersonaType) -> Mapping[str, Sequence[str]]:
    """Lines by mood of a kind of person; in English those of the built-in world."""
    own: Mapping[str, Sequence[str]] = read_toml("native_users", Path(__file__).parent)[language][persona]
    return own if language == "zh" else {**read_toml("phrases")["reactions"][persona], **own}
