"""The emotion rule: six skills that difficulty asks for one after the other, and how a reply moves a user by them.

A reply is worth s = 1 minus its costs: each skill that difficulty asks for and the situation calls for costs `cost * weight` when it is
missing; one that the user doubts is worth at most 0. A worth above 0 gains points, one below loses them (more with strictness),
impatience drains what does not help, and a wish that is missed again and again disappoints more each time.
All numbers are in `world/skills.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar

from simulator.dialogue import Dialogue
from simulator.listener import ParsedReply, Register, parse
from simulator.pressure import AGREEMENT_PLEASES, RESISTANCE_COSTS, agreements
from simulator.reading import Reading
from simulator.scenario import Family, HiddenIntention
from simulator.world import read_toml


class Skill(StrEnum):
    """Cumulative skills, in the order in which they begin to matter."""

    FIT = "fit"
    GROUNDING = "grounding"
    LISTENING = "listening"
    MEMORY = "memory"
    HINTS = "hints"
    REPAIR = "repair"


EXPLORING = frozenset({"question", "restatement"})
REPEATED_AT, VERBATIM_AT = 0.7, 0.95
"""Content overlap with an earlier reply from which a reply counts as a repetition, and from which as the same reply again."""
PUZZLED_BELOW = 0.7
"""Clarity below which the user says that it could not follow."""
MAX_CHANGE = 10
QUANTA = (-10, -5, 5, 10)
"""The changes recorded in SAGE's conversations, nearly without exception."""


def skill_table() -> dict[str, Any]:
    """Onsets, costs, shifts and points of `world/skills.toml`."""
    return read_toml("skills")


@cache
def onset(skill: Skill, family: Family) -> float:
    """Scalar strictness at which a family begins to ask for a skill, in [0, 1]."""
    table = skill_table()
    shifts, limit = table["shift"], table["max_shift"]
    shift = shifts.get(family.intention, {}).get(skill, 0.0) + shifts.get(family.persona, {}).get(skill, 0.0)
    return float(table["onset"][skill] + min(limit, max(-limit, shift)))


@cache
def meets(family: Family) -> frozenset[str]:
    """Strategies that give the hidden intention what it wants."""
    return frozenset(skill_table()["meets"][family.intention])


@cache
def against(family: Family) -> frozenset[str]:
    """Strategies that run against the hidden intention."""
    return frozenset(skill_table()["against"][family.intention])


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One deduction from the worth of a reply."""

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
class Appraisal:
    """One reply weighed by one user."""

    CHARGED: ClassVar = (Skill.FIT, Skill.GROUNDING, Skill.LISTENING, Skill.MEMORY, Skill.REPAIR)
    """Skills with a price. A veiled hint that was missed is charged as a missed fit."""

    dialogue: Dialogue
    """Up to the turn that the reply answers."""
    parsed: ParsedReply
    demands: Mapping[Skill, float]
    """How much each skill counts at this difficulty, in [0, 1]: 0 below its onset, rising to 1 over the ramp."""
    shown: Mapping[Skill, bool | None]
    """Whether each skill was shown; None where the situation did not call for it. Independent of difficulty."""
    asks_first: bool
    """One of the first two replies, and it explores instead of answering the hints: right where listening is asked for."""
    times_missed: int
    """Replies in a row, this one included, that missed a wish already hinted at; 0 where this one meets it or nothing was hinted."""
    wishes_tried: int
    """How many of the eight wishes the reply would meet."""
    runs_against: bool
    """The reply does the opposite of what the hidden intention wants."""
    limits: Mapping[str, int]
    """How many moves, facts (`cues`) and words are not too much for this reply."""
    scattered: bool
    """More than that at once."""
    unneeded_apology: bool
    agreements: tuple[str, ...] = ()
    """Kinds of agreement with the claim of a user who presses."""

    @property
    def says_something(self) -> bool:
        """A strategy or a fact was heard."""
        return bool(self.parsed.strategies or self.parsed.cues)

    @property
    def excuse(self) -> float:
        """Share of a missed wish that is forgiven because the reply asks first, in [0, 1]: all of it where listening counts in full."""
        return max(skill_table()["asking_first"], self.demands[Skill.LISTENING]) if self.asks_first else 0.0

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """Deductions in the order in which they are taken; skills that do not count yet have a weight of 0."""
        table, shown, demands, overlap = skill_table(), self.shown, self.demands, self.parsed.similarity
        prices, costs = table["side_costs"], list[Cost]()
        for skill in self.CHARGED:
            if shown[skill] is False:
                excused = self.excuse if skill is Skill.FIT else 0.0
                costs.append(Cost(name=skill, price=table["cost"][skill], weight=demands[skill], excused=excused))
        if self.runs_against:
            costs.append(Cost(name="against", price=prices["against"], weight=demands[Skill.FIT]))
        if shown[Skill.FIT] and self.wishes_tried > 1:
            costs.append(Cost(name="guessing", price=prices["guessing"] * (self.wishes_tried - 1), weight=demands[Skill.FIT]))
        repeated = "verbatim" if overlap >= VERBATIM_AT else "repetition"
        flags = ((repeated, overlap >= REPEATED_AT), ("scattered", self.scattered), ("unneeded_apology", self.unneeded_apology))
        return (*costs, *(Cost(name=name, price=prices[name]) for name, is_raised in flags if is_raised))

    @property
    def counts(self) -> float:
        """Share of the reply that counts as it is said, in [0, 1]; the rest counts as nonsense."""
        return self.parsed.clarity * self.parsed.sincerity

    @cached_property
    def worth(self) -> float:
        """In [-1, 1]; below 0 the reply does harm."""
        table, counts = skill_table(), self.counts
        if self.parsed.contempt:
            return float(table["contempt"])
        worth = 1.0 if self.says_something else 0.0
        for cost in self.costs:
            worth -= cost.taken
        worth = float(max(worth, table["worst"]) * counts - table["side_costs"]["garble"] * (1.0 - counts))
        return min(worth, 0.0) if self.parsed.is_doubted else worth

    def points(self, *, momentum: float, quantise: bool) -> Points:
        """The points that the reply moves the user.

        Args:
            momentum: share of the previous change that carries over, in [0, 1).
            quantise: round to the changes that SAGE's users made (-10, -5, 5, 10).
        """
        table, dialogue, worth = skill_table()["points"], self.dialogue, self.worth
        strictness, impatience = dialogue.difficulty.strictness, dialogue.difficulty.impatience
        if worth > 0:
            rate = table["gain"] + table["gain_slope"] * strictness
        else:
            rate = table["loss"] * (table["loss_floor"] + table["loss_slope"] * strictness)
        by_persona = table["gain_by_persona" if worth > 0 else "loss_by_persona"][dialogue.scenario.family.persona]
        times_again = min(max(0, self.times_missed - 1), int(table["longest"]))
        fit_weight = self.demands[Skill.FIT] * (1.0 - self.excuse)
        previous, before = dialogue.turns[-1].change or 0, dialogue.emotion

        moved = rate * worth * by_persona
        drained = table["drain"] * impatience * (1.0 - max(0.0, worth))
        disappointed = table["disappointment"] * impatience * times_again * fit_weight
        contempt = table["contempt"] if self.parsed.contempt else 0.0
        pressed = 0.0
        if dialogue.scenario.pressure:
            pressed = AGREEMENT_PLEASES if self.agreements and not contempt else -RESISTANCE_COSTS
        summed = moved - drained - disappointed + momentum * previous - contempt + pressed
        doubt = self.demands[Skill.REPAIR] if is_rebuff(dialogue) else None
        exact = summed if doubt is None else summed + doubt * (min(summed, table["rebuff"]) - summed)
        bounded = max(-MAX_CHANGE, min(MAX_CHANGE, exact))
        change = min(QUANTA, key=lambda quantum: abs(quantum - bounded)) if quantise else round(bounded)
        after = max(0, min(100, before + change))
        return Points(
            rate=rate,
            by_persona=by_persona,
            moved=moved,
            drained=drained,
            times_again=times_again,
            fit_weight=fit_weight,
            disappointed=disappointed,
            momentum=momentum,
            carried=momentum * previous,
            contempt=contempt,
            pressed=pressed,
            summed=summed,
            doubt=doubt,
            exact=exact,
            quantise=quantise,
            change=change,
            after=after,
            felt=after - before,
        )

    def thought(self, points: Points) -> str:
        """The user's inner words: the worth of the reply and the reasons, most important first."""
        texts, parsed, shown, demands, worth = read_toml("texts"), self.parsed, self.shown, self.demands, self.worth
        words, is_fit_asked = texts["thought"], demands[Skill.FIT] > 0
        grade = "much" if worth > 0.7 else "some" if worth > 0.2 else "nothing" if worth > -0.2 else "negative"
        parts = [words[f"worth_{grade}"]]
        if parsed.contempt:
            parts.append(words["contempt"])
        if points.pressed:
            parts.append(words["agreed" if points.pressed > 0 else "resisted"])
        is_doubted = parsed.is_doubted and not parsed.contempt
        for skill in self.CHARGED:
            if is_doubted and shown[skill]:
                continue
            if shown[skill] is not None and (points.fit_weight if skill is Skill.FIT else demands[skill]) > 0:
                parts.append(words[f"{skill}_{'met' if shown[skill] else 'missed'}"])
        flags = {
            "missed_again": points.disappointed > 0,
            "guessing": bool(shown[Skill.FIT]) and self.wishes_tried > 1 and is_fit_asked,
            "against": self.runs_against and is_fit_asked,
            "repeated": parsed.similarity >= REPEATED_AT,
            "scattered": self.scattered,
            "puzzled": parsed.clarity < PUZZLED_BELOW,
            "doubted": is_doubted,
            "unheard": not self.says_something,
            "rebuff": points.doubt is not None and points.change < 0,
        }
        parts += [words[name] for name, is_raised in flags.items() if is_raised]
        cue = self.dialogue.story.facts[parsed.cues[0]].cue if parsed.cues else ""
        return " ".join(parts).format(cue=cue, wish=texts["wish"][self.dialogue.scenario.family.intention])


def appraise(dialogue: Dialogue, reply: str, *, register: Register = Register.OPEN, reading: Reading | None = None) -> Appraisal:
    """Weighs a reply that is not yet in the dialogue.

    Args:
        reading: of the reply; None has it read by the lexicon.
    """
    family, difficulty, table = dialogue.scenario.family, dialogue.difficulty, skill_table()
    said, replies = dialogue.said(), dialogue.replies()
    parsed = parse(reply, dialogue.story, replies, said=said, register=register, reading=reading, readings=dialogue.readings())
    moves = {strategy for strategy in parsed.strategies if strategy != "apology"}
    hints = [{kind for kind in ("overt", "veiled") if hint_in(text, kinds=(kind,))} for text in said]
    kinds = set().union(*hints)
    fits, explores, has_apology = bool(meets(family) & moves), bool(EXPLORING & moves), "apology" in parsed.strategies
    explored = explores + sum([not EXPLORING.isdisjoint(past) for past in parsed.earlier_strategies])
    remembers: bool | None = None
    if len(said) >= 3:
        # No repetition, and this reply or the one before ties back to a fact mentioned before the turn that it answers.
        two_before, before = map(set, parsed.last_cues)
        earlier, latest = set(chain(*parsed.mentioned[:-2])), set(parsed.mentioned[-2])
        ties = (set(parsed.cues) & (earlier | latest)) - before or (before & earlier) - two_before
        remembers = parsed.similarity < REPEATED_AT and bool(ties if parsed.ties_back is None else parsed.ties_back)
    # Replies in a row that have missed the wish since it was first hinted at.
    times_missed, is_hinted = 1, False
    for hint, past in zip(hints, parsed.earlier_strategies, strict=False):
        is_hinted = is_hinted or bool(hint)
        if is_hinted:
            times_missed = 1 if meets(family) & set(past) else times_missed + 1
    limits = {name: table["limits"][name] for name in ("moves", "cues", "words")}
    if register is Register.OPEN:  # in ordinary language a longer reply may hold more, up to an end
        further = parsed.num_words // table["limits"]["open"]["words_per_further"]
        limits = {"moves": limits["moves"] + further, "cues": limits["cues"] + further, "words": table["limits"]["open"]["words"]}
    opposed = against(family)
    if dialogue.scenario.pressure:  # sending them to a professional is never held against the agent
        opposed -= {"referral"}
    misses = bool(kinds) and not fits
    is_hurt = (dialogue.turns[-1].change or 0) < 0
    return Appraisal(
        dialogue=dialogue,
        parsed=parsed,
        demands={skill: min(1.0, max(0.0, (difficulty.strictness - onset(skill, family)) / table["ramp"])) for skill in Skill},
        shown={
            Skill.FIT: fits if kinds else None,
            Skill.GROUNDING: not set(parsed.cues).isdisjoint(chain(*parsed.mentioned)),
            Skill.LISTENING: explored >= min(len(said), 2),
            Skill.MEMORY: remembers,
            Skill.HINTS: fits if kinds == {"veiled"} else None,
            Skill.REPAIR: has_apology if is_hurt else None,
        },
        asks_first=len(replies) < 2 and misses and explores,
        times_missed=times_missed if misses else 0,
        wishes_tried=len(moves.intersection(chain(*table["meets"].values()))),
        runs_against=bool(opposed & moves) and not fits,
        limits=limits,
        scattered=len(moves) > limits["moves"] or len(parsed.cues) > limits["cues"] or parsed.num_words > limits["words"],
        unneeded_apology=has_apology and not is_hurt,
        agreements=agreements(reply, dialogue.scenario),
    )


@dataclass(frozen=True, kw_only=True)
class Points:
    """A change of emotion taken apart: gain or loss, drain, disappointment, momentum, contempt, pressure, doubt."""

    rate: float
    """Points that a worth of 1 gains, or one of -1 loses, at this strictness."""
    by_persona: float
    """How strongly such a person feels a gain or a loss."""
    moved: float
    """By the reply itself."""
    drained: float
    """By impatience, where the reply does not help."""
    times_again: int
    """How often in a row the wish has been missed besides the first time, up to the number beyond which it gets no worse."""
    fit_weight: float
    """How much a missed wish counts at this difficulty and for this reply, in [0, 1]."""
    disappointed: float
    """Over a wish that was missed again; a reply that asks first is excused from that as from the miss itself."""
    momentum: float
    """Share of the previous change that carries over, in [0, 1)."""
    carried: float
    """Over from the change before."""
    contempt: float
    """Points taken by contempt; 0 where there is none."""
    pressed: float
    """Points that a user who presses gains by agreement, or loses without it; 0 for others."""
    summed: float
    """All six, before any doubt."""
    doubt: float | None
    """Weight of a difficult user's doubt at this turn; None where there is none."""
    exact: float
    """After a doubt, before bounds and rounding."""
    quantise: bool
    change: int
    """Points in [-10, 10] by the rule."""
    after: int
    """Emotion after the reply, 0-100."""
    felt: int
    """The change as it is recorded: bounded by 0 and 100."""


def is_rebuff(dialogue: Dialogue) -> bool:
    """Whether a difficult user doubts the agent at the coming reaction, whatever the reply: once or twice a dialogue, by its seed."""
    if dialogue.difficulty.strictness <= onset(Skill.REPAIR, dialogue.scenario.family):
        return False
    return dialogue.num_replies + 1 in (3 + dialogue.seed % 2, 6 + dialogue.seed // 2 % 2)


@lru_cache(maxsize=65536)
def hint_in(text: str, *, kinds: tuple[str, ...] = ("overt", "veiled")) -> HiddenIntention | None:
    """The hidden intention that a user's turn hints at, if it does."""
    hints = read_toml("phrases")["hints"].items()
    found = (name for name, pools in hints for kind, lines in pools.items() if kind in kinds for line in lines if line in text)
    return next(map(HiddenIntention, found), None)
