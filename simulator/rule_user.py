"""The embedded user: hears, feels and answers by rule, in microseconds, and the same on every machine."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import islice

from pydantic.dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, LEFT_BELOW, RELIEVED_AT, START_EMOTION, Dialogue, Outcome, Speaker, Turn
from simulator.emotion import EXPLORING, Appraisal, appraise, change_of_emotion, explain, is_rebuff, veiled_reserve
from simulator.listener import Register, facts_told
from simulator.preset import weigh
from simulator.scenario import Difficulty, Scenario
from simulator.settings import SETTINGS
from simulator.user import Reaction
from simulator.world import read_toml

AT_EASE_FROM, HURT_BELOW = RELIEVED_AT, 30
"""Emotion from which a user speaks as somebody at ease, and below which as somebody hurt."""

REMARK_PROB = 0.9
"""Chance that a user who tells no new fact says a word about the last one, [0, 1]; else a bare "Hm." stands."""


class Preset(StrEnum):
    """Which rule moves the user's emotion."""

    TRAINING = "training"
    """Skills that difficulty asks for, with weak momentum: late turns still earn credit."""
    SAGE = "sage"
    """Numbers fitted on SAGE's recorded users, in their four changes and with their full momentum; difficulty does not enter."""


@dataclass(config=SETTINGS)
class RuleUserConfig:
    """Settings of the embedded user."""

    start_emotion: int = START_EMOTION
    """Emotion at the opening, 10-99: 40 in SAGE, 30 in RLVER's training."""
    momentum: float = 0.2
    """Share of the last change that carries over, [0, 1). Weaker than in recorded conversations, so that late turns still earn credit."""
    register: Register | None = None
    """`open` hears ordinary English, `world` only the embedded world's own language; unset, a training run takes what its policy speaks."""
    quantise: bool = False
    """Round changes to -10, -5, 5, 10, as SAGE's users did nearly always."""
    preset: Preset = Preset.TRAINING
    """`training` or `sage`; the latter brings momentum, changes and start (40) of its own, so that those three must be left alone."""

    def __post_init__(self) -> None:
        if not LEFT_BELOW <= self.start_emotion < DELIGHTED_AT:
            raise ValueError(f"simulator.start_emotion must be in [{LEFT_BELOW}, {DELIGHTED_AT}), got {self.start_emotion!r}")
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"simulator.momentum must be in [0, 1), got {self.momentum!r}")
        if self.preset is Preset.SAGE:
            for name in ("start_emotion", "momentum", "quantise"):
                usual = getattr(RuleUserConfig, name)
                if getattr(self, name) != usual:
                    raise ValueError(
                        f"simulator.{name} must be {usual!r} with simulator.preset sage, which brings its own, got {getattr(self, name)!r}"
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
        weighed = weigh(dialogue, reply) if self.config.preset is Preset.SAGE else None
        if weighed is None:
            change = change_of_emotion(appraisal, dialogue, momentum=self.config.momentum, quantise=self.config.quantise)
        else:
            change = weighed.change
        emotion = max(0, min(DELIGHTED_AT, dialogue.emotion + change))
        outcome = _outcome(emotion, appraisal)
        rebuff = weighed is None and is_rebuff(dialogue) and change < 0
        facts = dialogue.story.facts
        cue = facts[appraisal.reading.cues[0]].cue if appraisal.reading.cues else ""
        turn = Turn(
            speaker=Speaker.USER,
            text=_words(dialogue, appraisal, emotion, change, outcome, rebuff=rebuff),
            emotion=emotion,
            change=emotion - dialogue.emotion,
            thought=weighed.thought
            if weighed
            else explain(appraisal, dialogue.scenario.family, dialogue.difficulty, rebuff=rebuff, cue=cue),
            heard=appraisal.reading.strategies,
        )
        return Reaction(turn=turn, outcome=outcome)

    def taken(self, dialogue: Dialogue, reply: str) -> Dialogue:
        """The dialogue as the user takes it when this reply comes: as it is. A subclass may take it at another difficulty."""
        return dialogue


def _outcome(emotion: int, appraisal: Appraisal) -> Outcome | None:
    if emotion >= DELIGHTED_AT:
        return Outcome.DELIGHTED
    if emotion < LEFT_BELOW:
        return Outcome.LEFT
    # Whoever hung up on a user in need would otherwise keep what further replies could lose.
    return Outcome.FAREWELL if appraisal.reading.farewell and emotion >= RELIEVED_AT else None


def _words(dialogue: Dialogue, appraisal: Appraisal, emotion: int, change: int, outcome: Outcome | None, *, rebuff: bool) -> str:
    """What the user says: how it felt (or a muted word), a further fact or a word about the last one, perhaps a hint."""
    turn = dialogue.num_replies + 1
    chance = _chance(dialogue, turn)
    phrases = read_toml("phrases")
    pools = phrases["reactions"][dialogue.scenario.family.persona]
    if outcome in (Outcome.DELIGHTED, Outcome.LEFT):
        return chance.choice(pools[outcome])
    mood = "rebuff" if rebuff else "up" if change > 1 else "down" if change < -1 else "flat"
    if not rebuff and chance.random() < 0.8 * dialogue.difficulty.reserve:
        mood = "muted"
    by_state = phrases["reactions_by_state"][dialogue.scenario.family.persona]
    pool = by_state.get(f"{mood}_{_state(emotion)}", pools[mood])
    said = _said(dialogue)
    reaction = _fresh(pool, said, chance)
    asked = bool((EXPLORING | {"listening"}) & set(appraisal.reading.strategies))
    told: Sequence[str] = ()
    if asked or chance.random() < (1.0 - 0.5 * dialogue.difficulty.reserve) * (0.4 if change <= -5 else 1.0):
        told = _next_fact(dialogue, said)
    if told and reaction in phrases["apart"]["telling"]:
        reaction = _fresh([line for line in pool if line not in phrases["apart"]["telling"]], said, chance)
    return " ".join([reaction, *(told or _remark(dialogue, said, chance)), *_asides(dialogue, turn=turn, emotion=emotion)])


def _state(emotion: int) -> str:
    """How an emotion bears on the choice of words; "" for the most of the scale."""
    return "at_ease" if emotion >= AT_EASE_FROM else "hurt" if emotion < HURT_BELOW else ""


def _next_fact(dialogue: Dialogue, said: str) -> list[str]:
    """The next fact not yet told, in an order that the seed decides; nothing when all is told."""
    facts = dialogue.scenario.facts
    order = _order_of_facts(dialogue.scenario.scenario_id, dialogue.seed, len(facts))
    untold = (facts[index].text for index in order if facts[index].text not in said)
    return [*islice(untold, 1)]


@lru_cache(maxsize=16384)
def _order_of_facts(scenario_id: str, seed: int, num_facts: int) -> tuple[int, ...]:
    order = list(range(1, num_facts))
    _generator(scenario_id, seed, -1).shuffle(order)
    return tuple(order)


def _remark(dialogue: Dialogue, said: str, chance: random.Random) -> list[str]:
    """Mostly a word about the thing told last, instead of a fact: it tells nothing new and keeps users from saying all the same."""
    facts = dialogue.scenario.facts
    if not facts or chance.random() >= REMARK_PROB:
        return []
    told = [index for turn in dialogue.turns if turn.speaker is Speaker.USER for index in facts_told(turn.text, facts)]
    thing = re.sub(r"^your ", "my ", facts[told[-1]].cue if told else facts[0].cue)
    pool = [line.format(thing=thing) for line in read_toml("phrases")["remarks"][dialogue.scenario.family.persona]]
    return [_fresh(pool, said, chance)]


def _asides(dialogue: Dialogue, *, turn: int, emotion: int) -> list[str]:
    """A feeling, and a hint at the hidden intention: rarer and more veiled as reserve grows, and nothing bleak from somebody at ease."""
    scenario, reserve = dialogue.scenario, dialogue.difficulty.reserve
    is_at_ease = emotion >= AT_EASE_FROM
    names_feeling = turn in (0, 4) and reserve < 0.6 and bool(scenario.feelings)
    kind = _hint_kind(turn, reserve, veil=veiled_reserve(scenario.family))
    if not names_feeling and not kind:
        return []
    chance, phrases = _chance(dialogue, 1000 + turn), read_toml("phrases")
    asides = []
    if names_feeling:
        said = phrases["feelings"]["at_ease" if is_at_ease else "said"]
        asides.append(chance.choice(said).format(feeling=chance.choice(scenario.feelings)))
    if kind:
        pool = phrases["hints"][scenario.family.intention][kind]
        bleak = phrases["apart"]["at_ease"] if is_at_ease else ()
        asides.append(_fresh([line for line in pool if line not in bleak], _said(dialogue), chance))
    return asides


def _hint_kind(turn: int, reserve: float, *, veil: float) -> str | None:
    """`overt`, `veiled` or None for the user's turn of that number (the opening is 0)."""
    if reserve >= veil:
        return "veiled" if turn % 2 == 1 else None
    if reserve < 0.2:
        return "overt" if turn % 2 == 0 else None
    if reserve < 0.4:
        return "overt" if turn % 3 == 0 else None
    return "overt" if turn % 3 == 2 else None


def _fresh(pool: Sequence[str], said: str, chance: random.Random) -> str:
    """A line of the pool that the user has not said yet, if there is one."""
    return chance.choice([line for line in pool if line not in said] or list(pool))


def _said(dialogue: Dialogue) -> str:
    """The user's turns, a line each; no phrase and no fact goes over a line."""
    return "\n".join(turn.text for turn in dialogue.turns if turn.speaker is Speaker.USER)


def _chance(dialogue: Dialogue, purpose: int) -> random.Random:
    """A private generator: the same dialogue and purpose give the same draws on every machine."""
    return _generator(dialogue.scenario.scenario_id, dialogue.seed, purpose)


def _generator(scenario_id: str, seed: int, purpose: int) -> random.Random:
    return random.Random(f"{scenario_id}|{seed}|{purpose}")
