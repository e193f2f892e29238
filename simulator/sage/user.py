"""The embedded user as somebody out of a native profile: moved by the same rule, and heard in the profile's own language.

A profile of SAGE's kind tells its story about the person, so such a user has no facts to tell and no lines that hint: beyond the opening it
says how a reply felt. What it feels is the rule's alone; only words differ. Somebody of the built-in world speaks as ever.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from simulator.dialogue import Dialogue, Outcome, Speaker, Turn
from simulator.emotion import EXPLORING, is_rebuff
from simulator.rule_user import Preset, RuleUser
from simulator.scenario import Difficulty, PersonaType, Scenario
from simulator.user import Reaction
from simulator.world import read_toml

WORDS = Path(__file__).with_name("native_users.toml")
MUTED_PROB = 0.8
"""Times reserve: chance that a muted word stands for what was felt, as in the built-in world."""
Pools = Mapping[str, Sequence[str]]
"""Lines by mood."""


def is_native(scenario: Scenario) -> bool:
    """Whether it is a profile's, which has no facts, and not the built-in world's."""
    return not scenario.facts


class NativeUser(RuleUser):
    """The embedded user, for scenarios of both kinds."""

    def begin(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue with the profile's first words, which a user without a model cannot make up."""
        if not is_native(scenario):
            return super().begin(scenario, difficulty, seed=seed)
        opening = Turn(speaker=Speaker.USER, text=scenario.opening, emotion=self.config.start_emotion)
        return Dialogue(scenario=scenario, difficulty=difficulty, seed=seed).then(opening)

    def answer(self, dialogue: Dialogue, reply: str) -> Reaction:
        """What the rule makes of a reply, in the profile's language."""
        reaction = super().answer(dialogue, reply)
        if not is_native(dialogue.scenario):
            return reaction
        is_rebuffed = self.config.preset is Preset.TRAINING and is_rebuff(dialogue) and (reaction.turn.change or 0) < 0
        return replace(reaction, turn=replace(reaction.turn, text=words(dialogue, reaction, is_rebuffed=is_rebuffed)))


def words(dialogue: Dialogue, reaction: Reaction, *, is_rebuffed: bool) -> str:
    """How a reply felt, and a word about the story to whoever asked; a line is said again once all have been."""
    pools = pools_for(dialogue.scenario.language, dialogue.scenario.family.persona)
    said = "\n".join(turn.text for turn in dialogue.turns if turn.speaker is Speaker.USER)
    chance = random.Random(f"{dialogue.scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies + 1}")
    if reaction.outcome in (Outcome.DELIGHTED, Outcome.LEFT):
        return chance.choice(pools[reaction.outcome])
    change = reaction.turn.change or 0
    mood = "rebuff" if is_rebuffed else "up" if change > 1 else "down" if change < -1 else "flat"
    if not is_rebuffed and chance.random() < MUTED_PROB * dialogue.difficulty.reserve:
        mood = "muted"
    asked = bool(EXPLORING & set(reaction.turn.heard)) and reaction.outcome is None
    lines = [fresh(pools[name], said, chance) for name in (mood, *(("asked",) if asked else ()))]
    return ("" if dialogue.scenario.language == "zh" else " ").join(lines)


def fresh(pool: Sequence[str], said: str, chance: random.Random) -> str:
    """A line of the pool that was not said yet, if there is one."""
    return chance.choice([line for line in pool if line not in said] or list(pool))


@cache
def pools_for(language: str, persona: PersonaType) -> Pools:
    """The lines of a kind of person: Chinese ones of their own, the built-in world's in English."""
    own: Pools = tomllib.loads(WORDS.read_text(encoding="utf-8"))[language][persona]
    return own if language == "zh" else {**read_toml("phrases")["reactions"][persona], **own}
