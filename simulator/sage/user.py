"""The embedded user with a SAGE profile: moved by the same rule, heard and speaking in the profile's own language.

A profile tells its story about the person, so such a user has no facts to add and no hints: beyond the opening it says how a reply felt.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from simulator.dialogue import Dialogue, Outcome, Reaction, Speaker, Turn
from simulator.emotion import EXPLORING, is_rebuff
from simulator.reading import Reading
from simulator.rule_user import Preset, RuleUser
from simulator.scenario import Difficulty, Scenario
from simulator.world import read_toml


class NativeUser(RuleUser):
    """The embedded user for profiles and for the built-in world; scenarios without facts are profiles."""

    def begin(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue; a profile's opening is said as it is."""
        if scenario.facts:
            return super().begin(scenario, difficulty, seed=seed)
        opening = Turn(speaker=Speaker.USER, text=scenario.opening, emotion=self.config.start_emotion)
        return Dialogue(scenario=scenario, difficulty=difficulty, seed=seed).then(opening)

    def answer(self, dialogue: Dialogue, reply: str, reading: Reading | None = None) -> Reaction:
        """The rule's reaction, in the profile's language; an agent that asks gets a pointer to the story, too."""
        reaction = super().answer(dialogue, reply, reading)
        scenario, outcome, change = dialogue.scenario, reaction.outcome, reaction.turn.change or 0
        if scenario.facts:
            return reaction
        pools = read_toml("native_users", Path(__file__).parent)[scenario.language][scenario.family.persona]
        if scenario.language != "zh":  # English lines are those of the built-in world
            pools = {**read_toml("phrases")["reactions"][scenario.family.persona], **pools}
        chance = random.Random(f"{scenario.scenario_id}|{dialogue.seed}|{dialogue.num_replies + 1}")
        if outcome in (Outcome.DELIGHTED, Outcome.LEFT):
            text = chance.choice(pools[outcome])
        else:
            mood = "up" if change > 1 else "down" if change < -1 else "flat"
            if self.config.preset is Preset.TRAINING and is_rebuff(dialogue) and change < 0:
                mood = "rebuff"
            # The chance of a muted word instead of the feeling is that of the built-in world.
            elif chance.random() < 0.8 * dialogue.difficulty.reserve:
                mood = "muted"
            asked = bool(EXPLORING & set(reaction.turn.heard)) and outcome is None
            said = "\n".join(dialogue.said())
            # Lines repeat once all have been said.
            lines = [self.fresh(pools[name], said, chance) for name in (mood, *(("asked",) if asked else ()))]
            text = ("" if scenario.language == "zh" else " ").join(lines)
        return replace(reaction, turn=replace(reaction.turn, text=text))
