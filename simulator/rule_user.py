"""The embedded user: hears, feels and answers by rule, in less than a millisecond, and the same on every machine."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING

from pydantic import Field
from pydantic.dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, RELIEVED_AT, START_EMOTION, Dialogue, Listener, Outcome, Reaction, Speaker, Turn
from simulator.emotion import EXPLORING, Appraisal, Skill, appraise, onset
from simulator.listener import ListenerKind, Register
from simulator.llm.config import ServedConfig
from simulator.preset import weigh
from simulator.pressure import pressed
from simulator.reading import Reading
from simulator.scenario import Difficulty, Scenario
from simulator.settings import USER_SETTINGS
from simulator.world import read_toml

if TYPE_CHECKING:
    from simulator.ngrams import NgramClassifier


class Preset(StrEnum):
    """The rule that moves the user's emotion."""

    TRAINING = "training"
    """Skills that difficulty asks for, with weak momentum: late turns still earn credit."""
    SAGE = "sage"
    """Numbers fitted on SAGE's recorded users, with their four changes and full momentum; difficulty has no influence."""


@dataclass(config=USER_SETTINGS)
class RuleUserConfig:
    """Settings of the embedded user."""

    start_emotion: int = Field(default=START_EMOTION, ge=LEFT_BELOW, lt=DELIGHTED_AT)
    """Emotion at the opening, 10-99: 40 in SAGE, 30 in RLVER's training."""
    momentum: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Share of the last change that carries over, [0, 1). Weaker than in recorded conversations, so that late turns still earn credit."""
    register: Register | None = None
    """`open` hears ordinary English, `world` only the embedded world's own language; unset, a training run takes the policy's language."""
    quantise: bool = False
    """Round changes to -10, -5, 5, 10, as SAGE's users did nearly always."""
    listener: ListenerKind = ListenerKind.RULE
    """How replies are understood: by `rule`, or in ordinary language (`register: open`) by the `encoder` or by a `model` on a server."""
    server: ServedConfig | None = None
    """The servers of `listener: model`, as those of a user that a model plays (`urls`, `model`, `serve`, ...)."""
    preset: Preset = Preset.TRAINING
    """`training` or `sage`. `sage` has its own momentum, changes and start (40), so these three settings must keep their defaults."""

    def __post_init__(self) -> None:
        if (self.listener is ListenerKind.MODEL) != (self.server is not None):
            raise ValueError(
                "simulator.server must be set with simulator.listener=model, by simulator.server.model=NAME, and with no other listener"
            )
        if self.listener is not ListenerKind.RULE:
            if self.register is Register.WORLD:
                raise ValueError(f"simulator.listener must be rule with simulator.register=world, got '{self.listener}'")
            if self.preset is Preset.SAGE:
                raise ValueError(
                    f"simulator.listener must be rule with simulator.preset=sage, which was fitted with it, got '{self.listener}'"
                )
        if self.preset is Preset.SAGE:
            for name, default in (("start_emotion", START_EMOTION), ("momentum", 0.2), ("quantise", False)):
                if getattr(self, name) != default:
                    raise ValueError(
                        f"simulator.{name} must be {default!r} with simulator.preset sage, which has its own, got {getattr(self, name)!r}"
                    )


class RuleUser:
    """A `UserSimulator` without a model. All its random choices depend on the scenario, the dialogue's seed and the turn."""

    def __init__(self, config: RuleUserConfig) -> None:
        self.config = config

    @cached_property
    def listener(self) -> Listener | None:
        """None for the rule, which needs none."""
        if self.config.listener is ListenerKind.RULE:
            return None
        if self.config.listener is ListenerKind.ENCODER:
            encoder: Listener = import_module("simulator.encoder").make()
            return encoder
        model: Listener = import_module("simulator.llm.listener").ModelListener(self.config.server)
        return model

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue with the user's first words."""
        return self.begin(scenario, difficulty, seed=seed)

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer to a reply."""
        return self.answer(dialogue, reply, await self.listener.hear(dialogue, reply) if self.listener else None)

    def counts(self) -> dict[str, float]:
        """What listening cost so far; nothing for the rule."""
        return self.listener.counts() if self.listener else {}

    def begin(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """`open` without a loop."""
        dialogue = Dialogue(scenario=scenario, difficulty=difficulty, seed=seed)
        parts = [scenario.opening, *self._asides(dialogue, turn=0, emotion=self.config.start_emotion)]
        return dialogue.then(Turn(speaker=Speaker.USER, text=" ".join(parts), emotion=self.config.start_emotion))

    def answer(self, dialogue: Dialogue, reply: str, reading: Reading | None = None) -> Reaction:
        """`react` without a loop.

        Args:
            reading: of the reply; None asks the listener.
        """
        reading = reading or self.reading(dialogue, reply)
        dialogue = self.taken(dialogue, reply)
        appraisal = appraise(dialogue, reply, register=self.config.register or Register.OPEN, reading=reading)
        if self.config.preset is Preset.SAGE:
            weighed = weigh(dialogue, reply)
            change, thought, rebuffs = weighed.change, weighed.thought, False
        else:
            points = appraisal.points(momentum=self.config.momentum, quantise=self.config.quantise)
            change, thought = points.change, appraisal.thought(points)
            rebuffs = points.doubt is not None and change < 0
        before = dialogue.emotion
        emotion = max(0, min(DELIGHTED_AT, before + change))
        outcome = None
        if emotion >= DELIGHTED_AT:
            outcome = Outcome.DELIGHTED
        elif emotion < LEFT_BELOW:
            outcome = Outcome.LEFT
        elif appraisal.parsed.farewell and emotion >= RELIEVED_AT:
            # Only a relieved user lets the agent go: otherwise hanging up would keep what further replies could lose.
            outcome = Outcome.FAREWELL
        turn = Turn(
            speaker=Speaker.USER,
            text=self._words(appraisal, emotion, change, outcome, rebuffs=rebuffs),
            emotion=emotion,
            change=emotion - before,
            thought=thought,
            heard=appraisal.parsed.strategies,
            reading=reading,
        )
        return Reaction(turn=turn, outcome=outcome)

    def reading(self, dialogue: Dialogue, reply: str) -> Reading | None:
        """What the listener understands of a reply; None where the lexicon alone hears: the world's own language, the preset."""
        if self.listener:
            return self.listener.read(dialogue, reply)
        is_open = self.config.register is not Register.WORLD and self.config.preset is not Preset.SAGE
        if not is_open:
            return None
        classifier: NgramClassifier = import_module("simulator.ngrams").shipped(dialogue.scenario.language)
        return classifier.read(dialogue, reply)

    def taken(self, dialogue: Dialogue, reply: str) -> Dialogue:
        """The dialogue at the difficulty that holds when this reply comes; a subclass may change it."""
        return dialogue

    def _words(self, appraisal: Appraisal, emotion: int, change: int, outcome: Outcome | None, *, rebuffs: bool) -> str:
        """The user's words: a reaction (or a muted word), a further fact or a word about the last one, perhaps a hint."""
        dialogue, phrases = appraisal.dialogue, read_toml("phrases")
        scenario, reserve, persona = dialogue.scenario, dialogue.difficulty.reserve, dialogue.scenario.family.persona
        turn, pools = dialogue.num_replies + 1, phrases["reactions"][persona]
        chance = random.Random(f"{scenario.scenario_id}|{dialogue.seed}|{turn}")
        if outcome in (Outcome.DELIGHTED, Outcome.LEFT):
            return chance.choice(pools[outcome])
        mood = "rebuff" if rebuffs else "up" if change > 1 else "down" if change < -1 else "flat"
        if not rebuffs and chance.random() < 0.8 * reserve:
            mood = "muted"
        state = "at_ease" if emotion >= RELIEVED_AT else "hurt" if emotion < 30 else ""
        pool = phrases["reactions_by_state"][persona].get(f"{mood}_{state}", pools[mood])
        said = "\n".join(dialogue.said())
        reaction, telling = self.fresh(pool, said, chance), phrases["apart"]["telling"]
        further = ""
        if self._tells(appraisal, change, chance):
            # The next fact not yet mentioned, in an order that the seed decides.
            order = list(range(1, len(scenario.facts)))
            random.Random(f"{scenario.scenario_id}|{dialogue.seed}|-1").shuffle(order)
            further = next((scenario.facts[index].text for index in order if scenario.facts[index].text not in said), "")
        if (further or scenario.pressure) and reaction in telling:
            reaction = self.fresh([line for line in pool if line not in telling], said, chance)
        if scenario.pressure:
            further = f"{further} {pressed(scenario.pressure, turn)}".strip()
        elif not further and scenario.facts and chance.random() < 0.9:
            # Mostly a word about the fact mentioned last instead, so that users differ in their words.
            last = [0, *chain(*appraisal.parsed.mentioned)][-1]
            thing = re.sub(r"^your ", "my ", scenario.facts[last].cue)
            further = self.fresh([line.format(thing=thing) for line in phrases["remarks"][persona]], said, chance)
        return " ".join([reaction, *([further] if further else []), *self._asides(dialogue, turn=turn, emotion=emotion)])

    def _tells(self, appraisal: Appraisal, change: int, chance: random.Random) -> bool:
        """Whether the user tells a further fact: always when invited to; one who presses only then."""
        if not (EXPLORING | {"listening"}).isdisjoint(appraisal.parsed.strategies):
            return True
        if appraisal.dialogue.scenario.pressure:
            return False
        return chance.random() < (1.0 - 0.5 * appraisal.dialogue.difficulty.reserve) * (0.4 if change <= -5 else 1.0)

    def _asides(self, dialogue: Dialogue, *, turn: int, emotion: int) -> list[str]:
        """A feeling, and a hint at the hidden intention: rarer and more veiled as reserve grows, and nothing bleak from a user at ease.

        Args:
            turn: number of the user's turn; the opening is 0.
        """
        scenario, reserve = dialogue.scenario, dialogue.difficulty.reserve
        if reserve >= Difficulty.along(onset(Skill.HINTS, scenario.family)).reserve:
            kind = "veiled" if turn % 2 == 1 else ""
        elif reserve < 0.2:
            kind = "overt" if turn % 2 == 0 else ""
        else:
            kind = "overt" if turn % 3 == (0 if reserve < 0.4 else 2) else ""
        names_feeling = turn in (0, 4) and reserve < 0.6 and bool(scenario.feelings)
        if not names_feeling and not kind:
            return []
        chance, phrases = random.Random(f"{scenario.scenario_id}|{dialogue.seed}|{1000 + turn}"), read_toml("phrases")
        is_at_ease, asides = emotion >= RELIEVED_AT, []
        if names_feeling:
            pool = phrases["feelings"]["at_ease" if is_at_ease else "said"]
            asides.append(chance.choice(pool).format(feeling=chance.choice(scenario.feelings)))
        if kind:
            bleak = phrases["apart"]["at_ease"] if is_at_ease else ()
            pool = [line for line in phrases["hints"][scenario.family.intention][kind] if line not in bleak]
            asides.append(self.fresh(pool, "\n".join(dialogue.said()), chance))
        return asides

    @staticmethod
    def fresh(pool: Sequence[str], said: str, chance: random.Random) -> str:
        """A line of the pool that the user has not said yet, if there is one.

        Args:
            said: the user's turns, one a line.
        """
        return chance.choice([line for line in pool if line not in said] or list(pool))
