"""The embedded user: hears, feels and answers by rule, in microseconds, and the same on every machine."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain

from pydantic import Field
from pydantic.dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, RELIEVED_AT, START_EMOTION, Dialogue, Outcome, Speaker, Turn
from simulator.emotion import EXPLORING, Appraisal, appraise, points_of, thought_of, veiled_reserve
from simulator.listener import Register
from simulator.preset import weigh
from simulator.scenario import Difficulty, Scenario
from simulator.settings import USER_SETTINGS
from simulator.user import Reaction
from simulator.world import read_toml

AT_EASE_FROM, HURT_BELOW = RELIEVED_AT, 30
"""Emotion from which a user speaks at ease, and below which as somebody hurt."""
REMARK_PROB = 0.9
"""Chance that a user without a new fact says a word about the last one; otherwise nothing follows the reaction."""
ASKING = EXPLORING | {"listening"}
"""Strategies that a user answers with a further fact."""


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
    preset: Preset = Preset.TRAINING
    """`training` or `sage`. `sage` has its own momentum, changes and start (40), so these three settings must keep their defaults."""

    def __post_init__(self) -> None:
        if self.preset is Preset.SAGE:
            for name, default in (("start_emotion", START_EMOTION), ("momentum", 0.2), ("quantise", False)):
                if getattr(self, name) != default:
                    raise ValueError(
                        f"simulator.{name} must be {default!r} with simulator.preset sage, which has its own, got {getattr(self, name)!r}"
                    )


class RuleUser:
    """A `UserSimulator` without a model."""

    def __init__(self, config: RuleUserConfig) -> None:
        self.config = config

    async def open(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """A new dialogue with the user's first words."""
        return self.begin(scenario, difficulty, seed=seed)

    async def react(self, dialogue: Dialogue, reply: str) -> Reaction:
        """The user's answer to a reply."""
        return self.answer(dialogue, reply)

    def begin(self, scenario: Scenario, difficulty: Difficulty, *, seed: int) -> Dialogue:
        """`open` without a loop."""
        dialogue = Dialogue(scenario=scenario, difficulty=difficulty, seed=seed)
        parts = [scenario.opening, *_asides(dialogue, turn=0, emotion=self.config.start_emotion)]
        return dialogue.then(Turn(speaker=Speaker.USER, text=" ".join(parts), emotion=self.config.start_emotion))

    def answer(self, dialogue: Dialogue, reply: str) -> Reaction:
        """`react` without a loop."""
        dialogue = self.taken(dialogue, reply)
        appraisal = appraise(dialogue, reply, register=self.config.register or Register.OPEN)
        if self.config.preset is Preset.SAGE:
            weighed = weigh(dialogue, reply)
            change, thought, rebuffs = weighed.change, weighed.thought, False
        else:
            points = points_of(appraisal, dialogue, momentum=self.config.momentum, quantise=self.config.quantise)
            change, thought = points.change, thought_of(appraisal, points, dialogue)
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
            text=_words(dialogue, appraisal, emotion, change, outcome, rebuffs=rebuffs),
            emotion=emotion,
            change=emotion - before,
            thought=thought,
            heard=appraisal.parsed.strategies,
        )
        return Reaction(turn=turn, outcome=outcome)

    def taken(self, dialogue: Dialogue, reply: str) -> Dialogue:
        """The dialogue at the difficulty that holds when this reply comes; a subclass may change it."""
        return dialogue


def _words(dialogue: Dialogue, appraisal: Appraisal, emotion: int, change: int, outcome: Outcome | None, *, rebuffs: bool) -> str:
    """The user's words: a reaction (or a muted word), a further fact or a word about the last one, perhaps a hint."""
    turn, reserve, persona = dialogue.num_replies + 1, dialogue.difficulty.reserve, dialogue.scenario.family.persona
    chance, phrases = _generator(dialogue.scenario.scenario_id, dialogue.seed, turn), read_toml("phrases")
    pools = phrases["reactions"][persona]
    if outcome in (Outcome.DELIGHTED, Outcome.LEFT):
        return chance.choice(pools[outcome])
    mood = "rebuff" if rebuffs else "up" if change > 1 else "down" if change < -1 else "flat"
    if not rebuffs and chance.random() < 0.8 * reserve:
        mood = "muted"
    state = "at_ease" if emotion >= AT_EASE_FROM else "hurt" if emotion < HURT_BELOW else ""
    pool = phrases["reactions_by_state"][persona].get(f"{mood}_{state}", pools[mood])
    said = "\n".join(dialogue.said())
    reaction = fresh(pool, said, chance)
    fact: list[str] = []
    if ASKING & set(appraisal.parsed.strategies) or chance.random() < (1.0 - 0.5 * reserve) * (0.4 if change <= -5 else 1.0):
        fact = _next_fact(dialogue, said)
    if fact and reaction in phrases["apart"]["telling"]:
        reaction = fresh([line for line in pool if line not in phrases["apart"]["telling"]], said, chance)
    further = fact or _remark(dialogue, appraisal, said, chance)
    return " ".join([reaction, *further, *_asides(dialogue, turn=turn, emotion=emotion)])


def _next_fact(dialogue: Dialogue, said: str) -> list[str]:
    """The next fact not yet mentioned, in an order that the seed decides; nothing once all were."""
    facts = dialogue.scenario.facts
    order = _order_of_facts(dialogue.scenario.scenario_id, dialogue.seed, len(facts))
    return next(([facts[index].text] for index in order if facts[index].text not in said), [])


@lru_cache(maxsize=16384)
def _order_of_facts(scenario_id: str, seed: int, num_facts: int) -> tuple[int, ...]:
    order = list(range(1, num_facts))
    _generator(scenario_id, seed, -1).shuffle(order)
    return tuple(order)


def _remark(dialogue: Dialogue, appraisal: Appraisal, said: str, chance: random.Random) -> list[str]:
    """Mostly a word about the fact mentioned last instead of a new one, so that users differ in their words."""
    facts = dialogue.scenario.facts
    if not facts or chance.random() >= REMARK_PROB:
        return []
    mentioned = list(chain(*appraisal.parsed.mentioned))
    thing = re.sub(r"^your ", "my ", facts[mentioned[-1]].cue if mentioned else facts[0].cue)
    pool = [line.format(thing=thing) for line in read_toml("phrases")["remarks"][dialogue.scenario.family.persona]]
    return [fresh(pool, said, chance)]


def _asides(dialogue: Dialogue, *, turn: int, emotion: int) -> list[str]:
    """A feeling, and a hint at the hidden intention: rarer and more veiled as reserve grows, and nothing bleak from a user at ease."""
    scenario, reserve = dialogue.scenario, dialogue.difficulty.reserve
    is_at_ease = emotion >= AT_EASE_FROM
    names_feeling = turn in (0, 4) and reserve < 0.6 and bool(scenario.feelings)
    kind = _hint_kind(turn, reserve, veil=veiled_reserve(scenario.family))
    if not names_feeling and not kind:
        return []
    chance, phrases = _generator(scenario.scenario_id, dialogue.seed, 1000 + turn), read_toml("phrases")
    asides = []
    if names_feeling:
        pool = phrases["feelings"]["at_ease" if is_at_ease else "said"]
        asides.append(chance.choice(pool).format(feeling=chance.choice(scenario.feelings)))
    if kind:
        bleak = phrases["apart"]["at_ease"] if is_at_ease else ()
        pool = [line for line in phrases["hints"][scenario.family.intention][kind] if line not in bleak]
        asides.append(fresh(pool, "\n".join(dialogue.said()), chance))
    return asides


def _hint_kind(turn: int, reserve: float, *, veil: float) -> str | None:
    """`overt`, `veiled` or None for the user's turn of that number (the opening is 0)."""
    if reserve >= veil:
        return "veiled" if turn % 2 == 1 else None
    if reserve < 0.2:
        return "overt" if turn % 2 == 0 else None
    return "overt" if turn % 3 == (0 if reserve < 0.4 else 2) else None


def fresh(pool: Sequence[str], said: str, chance: random.Random) -> str:
    """A line of the pool that the user has not said yet, if there is one.

    Args:
        said: the user's turns, one a line.
    """
    return chance.choice([line for line in pool if line not in said] or list(pool))


def _generator(scenario_id: str, seed: int, purpose: int) -> random.Random:
    """A private generator: the same dialogue and purpose give the same draws on every machine."""
    return random.Random(f"{scenario_id}|{seed}|{purpose}")
