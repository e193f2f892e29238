"""Every figure between a reply and the change of emotion, apart and by name: what the emotion rule adds up, to be checked by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.dialogue import DELIGHTED_AT, Dialogue
from simulator.difficulty import Difficulty
from simulator.emotion import (
    MAX_CHANGE,
    QUANTA,
    REPEATED_AT,
    VERBATIM_AT,
    Appraisal,
    appraise,
    explain,
    is_rebuff,
    times_again,
)
from simulator.register import Register
from simulator.rule_user import RuleUserConfig
from simulator.scenario import Family
from simulator.skills import Skill, skill_table, weight

CHARGED = (Skill.FIT, Skill.GROUNDING, Skill.LISTENING, Skill.MEMORY, Skill.REPAIR)
"""Skills with a price. A veiled hint that was missed is charged as a missed fit."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one lack takes from a reply's worth."""

    name: str
    """A skill, or a name under `side_costs` of `world/skills.toml`."""
    price: float
    """Where it counts in full."""
    weight: float = 1.0
    """How much it counts at this difficulty, in [0, 1]."""
    excused: float = 0.0
    """Share that is forgiven because the reply asks first, in [0, 1]."""

    @property
    def taken(self) -> float:
        """Worth that the reply loses."""
        return self.price * (self.weight * (1.0 - self.excused))


@dataclass(frozen=True, kw_only=True)
class Worth:
    """How a reply comes to its worth."""

    start: float
    """1 where the reply was heard to say anything, else 0."""
    costs: tuple[Cost, ...]
    """In the order in which they are taken; those that do not count yet stand among them with a weight of 0."""
    floor: float
    """No lack makes a reply worth less."""
    clarity: float
    """Share of the words that could be followed."""
    garble: float
    """Taken, times the share that could not be followed."""
    contempt: float | None = None
    """What the reply is worth because it holds contempt, whatever else it holds; None where it holds none."""

    @property
    def lacking(self) -> float:
        """After all costs."""
        left = self.start
        for cost in self.costs:
            left -= cost.taken
        return left

    @property
    def total(self) -> float:
        """As the rule has it, in [-1, 1]."""
        if self.contempt is not None:
            return self.contempt
        return max(self.lacking, self.floor) * self.clarity - self.garble * (1.0 - self.clarity)


@dataclass(frozen=True, kw_only=True)
class Points:
    """How a worth comes to a change of emotion."""

    worth: float
    rate: float
    """Points that a worth of 1 gains, or one of -1 loses, at this strictness."""
    by_persona: float
    """How strongly such a person feels a gain or a loss."""
    drain: float
    impatience: float
    disappointment: float
    """Lost each time that the wish is missed again, where impatience is 1."""
    times_again: int
    """How often in a row it was missed besides the first time."""
    fit_weight: float
    """How much a missed wish counts at this difficulty and for this reply, in [0, 1]."""
    momentum: float
    previous: int
    """The change before."""
    doubt: float | None
    """Weight of a difficult user's doubt; None where this turn has none."""
    doubted: float
    """What a doubt in full makes of any change that is higher."""
    quantise: bool
    contempt: float
    """Taken by contempt; 0 where there is none."""
    before: int
    """Emotion that the reply met, 0-100."""

    @property
    def moved(self) -> float:
        """By the reply itself."""
        return self.rate * self.worth * self.by_persona

    @property
    def drained(self) -> float:
        """By impatience, where the reply does not help."""
        return self.drain * self.impatience * (1.0 - max(0.0, self.worth))

    @property
    def disappointed(self) -> float:
        """Over a wish that was missed again."""
        return self.disappointment * self.impatience * self.times_again * self.fit_weight

    @property
    def carried(self) -> float:
        """Over from the change before."""
        return self.momentum * self.previous

    @property
    def summed(self) -> float:
        """All five, before any doubt."""
        return self.moved - self.drained - self.disappointed + self.carried - self.contempt

    @property
    def exact(self) -> float:
        """After a doubt, before bounds and rounding."""
        return self.summed if self.doubt is None else self.summed + self.doubt * (min(self.summed, self.doubted) - self.summed)

    @property
    def change(self) -> int:
        """As the rule has it, in [-10, 10]."""
        bounded = max(-MAX_CHANGE, min(MAX_CHANGE, self.exact))
        return min(QUANTA, key=lambda quantum: abs(quantum - bounded)) if self.quantise else round(bounded)

    @property
    def after(self) -> int:
        """Emotion that the reply leaves, 0-100."""
        return max(0, min(DELIGHTED_AT, self.before + self.change))

    @property
    def felt(self) -> int:
        """The change as it is recorded: what 0 and 100 leave of it."""
        return self.after - self.before


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One reply, from its reading to the change."""

    dialogue: Dialogue
    """Up to the turn that the reply answers."""
    reply: str
    appraisal: Appraisal
    worth: Worth
    points: Points
    thought: str
    """The user's, in the user's words."""


def explain_reply(dialogue: Dialogue, reply: str, config: RuleUserConfig) -> Explanation:
    """Weighs a reply that is not yet in the dialogue as the embedded user does, and keeps every figure."""
    family, difficulty = dialogue.scenario.family, dialogue.difficulty
    appraisal = appraise(dialogue, reply, register=config.register or Register.OPEN)
    worth = worth_of(appraisal, family, difficulty)
    excused = _excused(appraisal, family, difficulty)
    points = points_of(
        worth.total,
        dialogue,
        config,
        times_missed_again=times_again(appraisal),
        excused=excused,
        is_contempt=bool(appraisal.reading.contempt),
    )
    cue = dialogue.story.facts[appraisal.reading.cues[0]].cue if appraisal.reading.cues else ""
    thought = explain(appraisal, family, difficulty, rebuff=points.doubt is not None and points.change < 0, cue=cue)
    return Explanation(dialogue=dialogue, reply=reply, appraisal=appraisal, worth=worth, points=points, thought=thought)


def worth_of(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> Worth:
    """The worth of an appraised reply, taken apart."""
    table = skill_table()
    return Worth(
        start=1.0 if appraisal.reading.strategies or appraisal.reading.cues else 0.0,
        costs=(*_skill_costs(appraisal, family, difficulty), *_side_costs(appraisal, family, difficulty)),
        floor=table["worst"],
        clarity=appraisal.reading.clarity,
        garble=table["side_costs"]["garble"],
        contempt=table["contempt"] if appraisal.reading.contempt else None,
    )


def points_of(
    worth: float, dialogue: Dialogue, config: RuleUserConfig, *, times_missed_again: int, excused: float, is_contempt: bool
) -> Points:
    """The change that a worth brings about, and a wish that was missed again, taken apart.

    Args:
        excused: share of a missed wish that is not held against a reply that asks first, in [0, 1].
    """
    table, family, difficulty = skill_table()["points"], dialogue.scenario.family, dialogue.difficulty
    if worth > 0:
        rate = table["gain"] + table["gain_slope"] * difficulty.strictness
    else:
        rate = table["loss"] * (table["loss_floor"] + table["loss_slope"] * difficulty.strictness)
    return Points(
        worth=worth,
        rate=rate,
        by_persona=table["gain_by_persona" if worth > 0 else "loss_by_persona"][family.persona],
        drain=table["drain"],
        impatience=difficulty.impatience,
        disappointment=table["disappointment"],
        times_again=times_missed_again,
        fit_weight=weight(Skill.FIT, family, difficulty) * (1.0 - excused),
        momentum=config.momentum,
        previous=dialogue.turns[-1].change or 0,
        doubt=weight(Skill.REPAIR, family, difficulty) if is_rebuff(dialogue) else None,
        doubted=table["rebuff"],
        quantise=config.quantise,
        contempt=table["contempt"] if is_contempt else 0.0,
        before=dialogue.emotion,
    )


def _skill_costs(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> Iterator[Cost]:
    for skill in CHARGED:
        if appraisal.shown[skill] is False:
            share = _excused(appraisal, family, difficulty) if skill is Skill.FIT else 0.0
            yield Cost(name=skill, price=skill_table()["cost"][skill], weight=weight(skill, family, difficulty), excused=share)


def _excused(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> float:
    """Share of a missed wish that is not held against this reply."""
    return max(skill_table()["asking_first"], weight(Skill.LISTENING, family, difficulty)) if appraisal.asks_first else 0.0


def _side_costs(appraisal: Appraisal, family: Family, difficulty: Difficulty) -> Iterator[Cost]:
    prices, overlap = skill_table()["side_costs"], appraisal.reading.similarity
    if appraisal.runs_against:
        yield Cost(name="against", price=prices["against"], weight=weight(Skill.FIT, family, difficulty))
    if appraisal.shown[Skill.FIT] and appraisal.wishes_tried > 1:
        price = prices["guessing"] * (appraisal.wishes_tried - 1)
        yield Cost(name="guessing", price=price, weight=weight(Skill.FIT, family, difficulty))
    if overlap >= REPEATED_AT:
        name = "verbatim" if overlap >= VERBATIM_AT else "repetition"
        yield Cost(name=name, price=prices[name])
    for name, broken in (("scattered", appraisal.scattered), ("unneeded_apology", appraisal.unneeded_apology)):
        if broken:
            yield Cost(name=name, price=prices[name])
