"""The emotion rule: six skills that difficulty asks for one after the other, and how a reply moves a user by them.

A reply is worth s = 1 minus its costs: each skill that difficulty asks for and the situation calls for costs `cost * weight` when it is
missing. A worth above 0 gains points, one below loses them (more with strictness), impatience drains what does not help, and a wish that
is missed again and again disappoints more each time. All numbers are in `world/skills.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import Any

from simulator.dialogue import Dialogue, Speaker
from simulator.listener import ParsedReply, Register, parse
from simulator.scenario import Difficulty, Family, HiddenIntention
from simulator.world import read_toml


class Skill(StrEnum):
    """Cumulative skills, in the order in which they begin to matter."""

    FIT = "fit"
    GROUNDING = "grounding"
    LISTENING = "listening"
    MEMORY = "memory"
    HINTS = "hints"
    REPAIR = "repair"


CHARGED = (Skill.FIT, Skill.GROUNDING, Skill.LISTENING, Skill.MEMORY, Skill.REPAIR)
"""Skills with a price. A veiled hint that was missed is charged as a missed fit."""
EXPLORING = frozenset({"question", "restatement"})
REPEATED_AT = 0.7
"""Content overlap with an earlier reply from which a reply counts as a repetition."""
VERBATIM_AT = 0.95
"""Overlap from which it counts as the same reply again."""
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


@lru_cache(maxsize=65536)
def weights(family: Family, strictness: float) -> dict[Skill, float]:
    """How much each skill counts: 0 below its onset, rising to 1 over the ramp."""
    ramp = skill_table()["ramp"]
    return {skill: min(1.0, max(0.0, (strictness - onset(skill, family)) / ramp)) for skill in Skill}


@cache
def veiled_reserve(family: Family) -> float:
    """Reserve from which this family's wish is only hinted at: the reserve at the onset of the hints skill."""
    return Difficulty.along(onset(Skill.HINTS, family)).reserve


@cache
def meets(family: Family) -> frozenset[str]:
    """Strategies that give the hidden intention what it wants."""
    return frozenset(skill_table()["meets"][family.intention])


@cache
def against(family: Family) -> frozenset[str]:
    """Strategies that run against the hidden intention."""
    return frozenset(skill_table()["against"][family.intention])


@cache
def _meets_any() -> frozenset[str]:
    """Strategies that meet one wish or another."""
    return frozenset().union(*skill_table()["meets"].values())


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

    parsed: ParsedReply
    demands: Mapping[Skill, float]
    """How much each skill counts at this difficulty, in [0, 1]."""
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

    @property
    def says_something(self) -> bool:
        """A strategy or a fact was heard."""
        return bool(self.parsed.strategies or self.parsed.cues)

    @property
    def times_again(self) -> int:
        """How often in a row the wish has been missed besides the first time, up to the number beyond which it gets no worse."""
        return min(max(0, self.times_missed - 1), int(skill_table()["points"]["longest"]))

    @property
    def excuse(self) -> float:
        """Share of a missed wish that is forgiven because the reply asks first, in [0, 1]: all of it where listening counts in full."""
        return max(skill_table()["asking_first"], self.demands[Skill.LISTENING]) if self.asks_first else 0.0

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """Deductions in the order in which they are taken; skills that do not count yet have a weight of 0."""
        table, shown, demands, overlap = skill_table(), self.shown, self.demands, self.parsed.similarity
        prices, costs = table["side_costs"], list[Cost]()
        for skill in CHARGED:
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

    @cached_property
    def worth(self) -> float:
        """In [-1, 1]; below 0 the reply does harm."""
        table, clarity = skill_table(), self.parsed.clarity
        if self.parsed.contempt:
            return float(table["contempt"])
        worth = 1.0 if self.says_something else 0.0
        for cost in self.costs:
            worth -= cost.taken
        return float(max(worth, table["worst"]) * clarity - table["side_costs"]["garble"] * (1.0 - clarity))


def appraise(dialogue: Dialogue, reply: str, *, register: Register = Register.OPEN) -> Appraisal:
    """Weighs a reply that is not yet in the dialogue."""
    family, difficulty, table = dialogue.scenario.family, dialogue.difficulty, skill_table()
    said, replies = dialogue.said(), dialogue.replies()
    parsed = parse(reply, dialogue.story, replies, said=said, register=register)
    moves = {strategy for strategy in parsed.strategies if strategy != "apology"}
    kinds = {kind for text in said for kind, _ in _hints_in(text)}
    fits, explores = bool(meets(family) & moves), bool(EXPLORING & moves)
    explored = explores + sum([not EXPLORING.isdisjoint(past) for past in parsed.earlier_strategies])
    has_apology = "apology" in parsed.strategies
    shown: dict[Skill, bool | None] = {
        Skill.FIT: fits if kinds else None,
        Skill.GROUNDING: not set(parsed.cues).isdisjoint(chain(*parsed.mentioned)),
        Skill.LISTENING: explored >= min(len(said), 2),
        Skill.MEMORY: _remembers(parsed) if len(said) >= 3 else None,
        Skill.HINTS: fits if kinds == {"veiled"} else None,
        Skill.REPAIR: has_apology if (dialogue.turns[-1].change or 0) < 0 else None,
    }
    limits = {name: table["limits"][name] for name in ("moves", "cues", "words")}
    if register is Register.OPEN:  # in ordinary language a longer reply may hold more, up to an end
        further = parsed.num_words // table["limits"]["open"]["words_per_further"]
        limits = {"moves": limits["moves"] + further, "cues": limits["cues"] + further, "words": table["limits"]["open"]["words"]}
    return Appraisal(
        parsed=parsed,
        demands=weights(family, difficulty.strictness),
        shown=shown,
        asks_first=len(replies) < 2 and shown[Skill.FIT] is False and explores,
        times_missed=_times_missed(dialogue, parsed) if shown[Skill.FIT] is False else 0,
        wishes_tried=len(_meets_any() & moves),
        runs_against=bool(against(family) & moves) and not fits,
        limits=limits,
        scattered=len(moves) > limits["moves"] or len(parsed.cues) > limits["cues"] or parsed.num_words > limits["words"],
        unneeded_apology=has_apology and shown[Skill.REPAIR] is None,
    )


def _times_missed(dialogue: Dialogue, parsed: ParsedReply) -> int:
    """How many replies in a row have missed the wish since it was first hinted at, if the coming one misses it too."""
    wanted, strategies = meets(dialogue.scenario.family), iter(parsed.earlier_strategies)
    times, is_hinted = 1, False
    for turn in dialogue.turns:
        if turn.speaker is Speaker.USER:
            is_hinted = is_hinted or bool(_hints_in(turn.text))
        else:
            is_met = bool(wanted & set(next(strategies)))
            if is_hinted:
                times = 1 if is_met else times + 1
    return times


def _remembers(parsed: ParsedReply) -> bool:
    """No repetition, and this reply or the one before ties back to a fact mentioned before the turn that it answers."""
    if parsed.similarity >= REPEATED_AT:
        return False
    two_before, before = map(set, parsed.last_cues)
    earlier = set(chain(*parsed.mentioned[:-2]))
    return bool((set(parsed.cues) & (earlier | set(parsed.mentioned[-2]))) - before or (before & earlier) - two_before)


@dataclass(frozen=True, kw_only=True)
class Points:
    """A change of emotion taken apart: gain or loss, drain, disappointment, momentum, contempt, doubt."""

    worth: float
    """Of the reply, in [-1, 1]."""
    rate: float
    """Points that a worth of 1 gains, or one of -1 loses, at this strictness."""
    by_persona: float
    """How strongly such a person feels a gain or a loss."""
    drain: float
    """Points lost by a reply that does not help, where impatience is 1."""
    impatience: float
    disappointment: float
    """Points lost each time that the wish is missed again, where impatience is 1."""
    times_again: int
    fit_weight: float
    """How much a missed wish counts at this difficulty and for this reply, in [0, 1]."""
    momentum: float
    """Share of the previous change that carries over, in [0, 1)."""
    previous: int
    """The change before."""
    contempt: float
    """Points taken by contempt; 0 where there is none."""
    doubt: float | None
    """Weight of a difficult user's doubt at this turn; None where there is none."""
    doubted: float
    """Upper limit of the change where the doubt counts in full."""
    quantise: bool
    before: int
    """Emotion before the reply, 0-100."""

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
        """Over a wish that was missed again; a reply that asks first is excused from that as from the miss itself."""
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
        """Points in [-10, 10] by the rule."""
        bounded = max(-MAX_CHANGE, min(MAX_CHANGE, self.exact))
        return min(QUANTA, key=lambda quantum: abs(quantum - bounded)) if self.quantise else round(bounded)

    @property
    def after(self) -> int:
        """Emotion after the reply, 0-100."""
        return max(0, min(100, self.before + self.change))

    @property
    def felt(self) -> int:
        """The change as it is recorded: bounded by 0 and 100."""
        return self.after - self.before


def points_of(appraisal: Appraisal, dialogue: Dialogue, *, momentum: float, quantise: bool) -> Points:
    """The points that an appraised reply moves the user.

    Args:
        momentum: share of the previous change that carries over, in [0, 1).
        quantise: round to the changes that SAGE's users made (-10, -5, 5, 10).
    """
    table, family, difficulty = skill_table()["points"], dialogue.scenario.family, dialogue.difficulty
    worth, demands = appraisal.worth, appraisal.demands
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
        times_again=appraisal.times_again,
        fit_weight=demands[Skill.FIT] * (1.0 - appraisal.excuse),
        momentum=momentum,
        previous=dialogue.turns[-1].change or 0,
        contempt=table["contempt"] if appraisal.parsed.contempt else 0.0,
        doubt=demands[Skill.REPAIR] if is_rebuff(dialogue) else None,
        doubted=table["rebuff"],
        quantise=quantise,
        before=dialogue.emotion,
    )


def is_rebuff(dialogue: Dialogue) -> bool:
    """Whether a difficult user doubts the agent at the coming reaction, whatever the reply: once or twice a dialogue, by its seed."""
    if weights(dialogue.scenario.family, dialogue.difficulty.strictness)[Skill.REPAIR] <= 0.0:
        return False
    return dialogue.num_replies + 1 in (3 + dialogue.seed % 2, 6 + dialogue.seed // 2 % 2)


def hint_in(text: str, *, kinds: tuple[str, ...] = ("overt", "veiled")) -> HiddenIntention | None:
    """The hidden intention that a user's turn hints at, if it does."""
    return next((intention for kind, intention in _hints_in(text) if kind in kinds), None)


@lru_cache(maxsize=65536)
def _hints_in(text: str) -> tuple[tuple[str, HiddenIntention], ...]:
    lines = _hint_lines()
    possible = chain.from_iterable(lines[word] for word in {*text.split()} if word in lines)
    return tuple((kind, intention) for _, kind, line, intention in sorted(possible) if line in text)


@cache
def _hint_lines() -> Mapping[str, list[tuple[int, str, str, HiddenIntention]]]:
    """Place, kind, line and intention of each hint by the longest word within it: a turn with the line has that word."""
    hints = read_toml("phrases")["hints"]
    lines = [(kind, line, HiddenIntention(name)) for name, pools in hints.items() for kind, lines in pools.items() for line in lines]
    by_word: dict[str, list[tuple[int, str, str, HiddenIntention]]] = {}
    for place, (kind, line, intention) in enumerate(lines):
        by_word.setdefault(max(line.split()[1:-1], key=len), []).append((place, kind, line, intention))
    return by_word


def thought_of(appraisal: Appraisal, points: Points, dialogue: Dialogue) -> str:
    """The user's inner words: the worth of the reply and the reasons, most important first."""
    texts, family = read_toml("texts"), dialogue.scenario.family
    words, parsed, shown, worth = texts["thought"], appraisal.parsed, appraisal.shown, appraisal.worth
    demands = appraisal.demands
    is_fit_asked = demands[Skill.FIT] > 0
    parts = [words["worth_much" if worth > 0.7 else "worth_some" if worth > 0.2 else "worth_nothing" if worth > -0.2 else "worth_negative"]]
    if parsed.contempt:
        parts.append(words["contempt"])
    for skill in CHARGED:
        if shown[skill] is not None and (points.fit_weight if skill is Skill.FIT else demands[skill]) > 0:
            parts.append(words[f"{skill}_{'met' if shown[skill] else 'missed'}"])
    flags = {
        "missed_again": points.disappointed > 0,
        "guessing": bool(shown[Skill.FIT]) and appraisal.wishes_tried > 1 and is_fit_asked,
        "against": appraisal.runs_against and is_fit_asked,
        "repeated": parsed.similarity >= REPEATED_AT,
        "scattered": appraisal.scattered,
        "puzzled": parsed.clarity < PUZZLED_BELOW,
        "unheard": not appraisal.says_something,
        "rebuff": points.doubt is not None and points.change < 0,
    }
    parts += [words[name] for name, is_raised in flags.items() if is_raised]
    cue = dialogue.story.facts[parsed.cues[0]].cue if parsed.cues else ""
    return " ".join(parts).format(cue=cue, wish=texts["wish"][family.intention])
